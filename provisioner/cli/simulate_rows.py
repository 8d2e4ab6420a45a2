"""The answer of ``provisioner simulate``: figures of each policy over the seeds, and how two policies differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from provisioner.cli.cells import text, whole, words
from provisioner.cli.listing import Column, Document, Listing
from provisioner.formatting import age
from provisioner.simulator.figures import FIGURES, Difference, KeyFigure, Spread, amount, change, paired, spread
from provisioner.simulator.replay import Replay
from provisioner.simulator.results import Result
from provisioner.simulator.traces import Trace
from provisioner.simulator.world_file import described

SCHEMA = "provisioner.simulation/1"

BRIEF = (
    "Good",
    "Idle",
    "Boot and release",
    "Badput",
    "Waste",
    "Mean wait",
    "Median wait",
    "95th percentile of waits",
    "First start of a burst",
    "Owner's wait for drones",
    "Jobs done",
    "Jobs that fit no drone",
    "Requests",
    "Preempted",
    "Violations",
    "Decisions per second",
    "Energy per job",
)
"""Of the many figures, those in tables; wide ones and machines get all."""


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of one policy."""

    heading: str
    figure: KeyFigure
    policy: str
    alone: bool
    """There is no other policy."""
    over: Spread
    versus: Difference | None
    """Against the first policy, seed by seed."""


@dataclass(frozen=True, slots=True)
class ClassRow:
    """Waits of jobs of one size under one policy; means over the seeds."""

    label: str
    policy: str
    alone: bool
    jobs: float
    mean_s: float
    p50_s: float
    p95_s: float


@dataclass(frozen=True, slots=True)
class Broken:
    policy: str
    seed: int
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    trace: Trace
    seeds: tuple[int, ...]
    policies: tuple[str, ...]
    world: tuple[str, ...]
    notes: tuple[str, ...]


def simulation(
    trace: Trace, replays: Sequence[Replay], runs: Mapping[str, Sequence[Result]], *, brief: bool = False
) -> Document:
    """The answer; ``brief``: with the most telling figures only."""
    seeds = tuple(result.seed for result in next(iter(runs.values()), ()))
    world = tuple(line for replay in replays[:1] for line in described(replay.world))
    notes = tuple(dict.fromkeys(line for replay in replays for line in replay.world.notes))
    facts = Facts(trace, seeds, tuple(runs), world, notes)
    return Document(
        SCHEMA,
        Listing("", fact_columns(), [facts], lambda f: f.trace.name),
        {
            "figures": Listing(
                "", figure_columns(several=len(runs) > 1), list(_figures(runs, brief)), lambda r: r.figure.name
            ),
            "classes": Listing("", class_columns(), list(_classes(runs)), lambda r: r.label),
            "violations": Listing("", broken_columns(), list(_broken(runs)), lambda b: b.text),
        },
        {"figures": "figures, mean over the seeds", "classes": "waits by size of the jobs"},
        main="figures",
    )


def _figures(runs: Mapping[str, Sequence[Result]], brief: bool) -> Iterator[FigureRow]:
    first = next(iter(runs.values()), ())
    for heading, figures in FIGURES.items():
        for figure in figures:
            if brief and figure.name not in BRIEF:
                continue
            for n, (policy, results) in enumerate(runs.items()):
                over = spread(figure.of(result) for result in results)
                if over is not None:
                    versus = paired(figure, first, results) if n else None
                    yield FigureRow(heading, figure, policy, len(runs) == 1, over, versus)


def _classes(runs: Mapping[str, Sequence[Result]]) -> Iterator[ClassRow]:
    for label in sorted({label for results in runs.values() for r in results for label in r.waits_by_class}):
        for policy, results in runs.items():
            told = [r.waits_by_class[label] for r in results if label in r.waits_by_class]
            if told:
                jobs, mean_s, p50_s, p95_s = (
                    fmean(getattr(w, key) for w in told) for key in ("jobs", "mean_s", "p50_s", "p95_s")
                )
                yield ClassRow(label, policy, len(runs) == 1, jobs, mean_s, p50_s, p95_s)


def _broken(runs: Mapping[str, Sequence[Result]]) -> Iterator[Broken]:
    for policy, results in runs.items():
        for result in results:
            for line in result.violations:
                yield Broken(policy, result.seed, line)


# ------------------------------------------------------------------------------------------------------------- columns


def fact_columns() -> tuple[Column[Facts], ...]:
    return (
        text("trace", lambda f: f.trace.name, "Name of the trace; `recorded` for jobs on record.", level=0),
        whole("jobs", lambda f: len(f.trace.jobs), "Jobs replayed.", level=0),
        Column(
            "span_s",
            lambda f: round(f.trace.span_s, 3),
            "From the begin of the replay to the last submission.",
            kind="number",
            level=0,
            head="SPAN",
            show=lambda f: age(f.trace.span_s),
        ),
        whole("left_out", lambda f: f.trace.left_out, "Jobs without a run time or a GPU."),
        whole("bad_lines", lambda f: len(f.trace.bad), "Lines left out because they could not be understood."),
        Column("seeds", lambda f: list(f.seeds), "Seeds of the replays.", kind="array", level=0),
        Column(
            "policies",
            lambda f: list(f.policies),
            "What was replayed; others are compared with the first.",
            kind="array",
            level=0,
            show=lambda f: "; ".join(f.policies),
        ),
        Column(
            "world",
            lambda f: list(f.world),
            "The sites of the first.",
            kind="array",
            level=0,
            show=lambda f: "; ".join(f.world),
        ),
        Column("notes", lambda f: list(f.notes), "What no file told of the sites, and what was taken.", kind="array"),
    )


def figure_columns(*, several: bool = False) -> tuple[Column[FigureRow], ...]:
    """``several``: policies are compared, and no width is so small that this is not to be seen."""
    spare = 0 if several else 1
    return (
        text("group", lambda r: r.heading, "What the figure is about."),
        text("figure", lambda r: r.figure.name, "Its name.", level=0),
        text("unit", lambda r: r.figure.unit, "Its unit; empty for a count.", level=0),
        Column(
            "policy",
            lambda r: r.policy,
            "Under which policy.",
            level=0,
            least=16,
            tail=True,
            spare=spare,
            show=lambda r: "" if r.alone else r.policy,
        ),
        Column(
            "mean",
            lambda r: _finite(r.over.mean),
            "Mean over the seeds; null: infinite.",
            kind="number",
            null=True,
            level=0,
            right=True,
            show=lambda r: amount(r.over.mean),
        ),
        Column(
            "deviation",
            lambda r: _finite(r.over.deviation),
            "Standard deviation over the seeds.",
            kind="number",
            level=0,
            head="+-",
            right=True,
            spare=2,
            show=lambda r: amount(r.over.deviation) if r.over.count > 1 else "",
        ),
        whole("seeds", lambda r: r.over.count, "Replays that tell the figure."),
        Column(
            "difference",
            lambda r: _finite(r.versus.spread.mean) if r.versus else None,
            "Mean difference to the first policy, seed by seed; null for the first.",
            kind="number",
            null=True,
            level=0,
            head="DIFFERENCE",
            right=True,
            spare=spare,
            show=lambda r: change(r.versus.spread.mean) if r.versus else "",
        ),
        Column(
            "difference_deviation",
            lambda r: _finite(r.versus.spread.deviation) if r.versus else None,
            "Its standard deviation.",
            kind="number",
            null=True,
            level=0,
            head="+-",
            right=True,
            spare=2,
            show=lambda r: amount(r.versus.spread.deviation) if r.versus and r.versus.spread.count > 1 else "",
        ),
        Column(
            "improved",
            lambda r: r.versus.improved if r.versus else None,
            "Seeds in which it is better than the first.",
            kind="integer",
            null=True,
            level=0,
            head="BETTER IN",
            right=True,
            spare=2,
            show=_improved,
        ),
    )


def _improved(row: FigureRow) -> str:
    if row.versus is None or not row.figure.better:
        return ""
    return f"{row.versus.improved} of {row.versus.spread.count}"


def class_columns() -> tuple[Column[ClassRow], ...]:
    return (
        text("class", lambda r: r.label, "What the jobs ask for.", level=0, least=16),
        Column(
            "policy",
            lambda r: r.policy,
            "Under which policy.",
            level=0,
            least=16,
            tail=True,
            spare=1,
            show=lambda r: "" if r.alone else r.policy,
        ),
        Column(
            "jobs", lambda r: r.jobs, "Jobs done.", kind="number", level=0, right=True, show=lambda r: amount(r.jobs)
        ),
        *(
            Column[ClassRow](
                key,
                lambda r, key=key: round(getattr(r, key), 3),  # type: ignore[misc]
                doc,
                kind="number",
                level=0,
                head=head,
                right=True,
                show=lambda r, key=key: amount(getattr(r, key)),  # type: ignore[misc]
            )
            for key, head, doc in (
                ("mean_s", "MEAN s", "Mean wait."),
                ("p50_s", "MEDIAN s", "Median wait."),
                ("p95_s", "P95 s", "95th percentile."),
            )
        ),
    )


def broken_columns() -> tuple[Column[Broken], ...]:
    return (
        text("policy", lambda b: b.policy, "Under which policy.", level=0),
        whole("seed", lambda b: b.seed, "With which seed.", level=0),
        words("text", lambda b: b.text, "The promise that was broken.", level=0, least=30),
    )


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
