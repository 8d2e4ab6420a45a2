"""Results of a simulation, and of several beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from provisioner.answers.columns import (
    Document,
    Listing,
    finite,
    ident,
    items,
    number,
    rounded,
    span_s,
    text,
    whole,
    words,
)
from provisioner.simulator import results as figures
from provisioner.simulator.replay import Replay
from provisioner.simulator.results import FIGURES, KeyFigure, PairedDifference, Runs, SeedStatistics
from provisioner.simulator.traces import Trace
from provisioner.simulator.world_file import describe_world

SIMULATION_SCHEMA = "provisioner.simulation/1"


class FigureRow(NamedTuple):
    """Figure of one policy, and its difference from the first policy."""

    heading: str
    figure: KeyFigure
    policy: str
    over: SeedStatistics
    versus: PairedDifference | None


class ViolationRow(NamedTuple):
    policy: str
    seed: int
    text: str


class SimulationRow(NamedTuple):
    trace: Trace
    seeds: list[int]
    policies: list[str]
    world: list[str]
    notes: list[str]


SIMULATION_FACTS = (
    text("trace", "Name of the trace; `recorded` for jobs on record.", "trace.name", level=0),
    whole("jobs", "Jobs replayed.", lambda f: len(f.trace.jobs), level=0),
    span_s(
        "span_s", "From begin to last submission, seconds.", "trace.span_s", head="SPAN", null=False
    ),
    whole("left_out", "Jobs without a run time or a GPU.", "trace.left_out"),
    whole(
        "bad_lines",
        "Lines left out because they could not be understood.",
        lambda f: len(f.trace.bad),
    ),
    items("seeds", "Seeds of the replays.", level=0),
    items(
        "policies",
        "What was replayed; others are compared with the first.",
        level=0,
        unit="; ".join,
    ),
    items("world", "The sites of the first.", level=0, unit="; ".join),
    items("notes", "Assumptions about the sites, where no file has the value."),
)


def _deviation(over: SeedStatistics | None) -> str:
    return figures.amount(over.deviation) if over and over.deviation > 1e-9 else ""


def _difference_deviation(row: FigureRow) -> str:
    return _deviation(row.versus.spread) if row.versus else ""


def _improved(row: FigureRow) -> str:
    return (
        f"{row.versus.improved} of {row.versus.spread.count}"
        if row.versus and row.figure.better
        else ""
    )


_amount = partial(number, null=True, convert=finite)
_POLICY = ident("policy", "Under which policy.", least=16)
_DIFFERENCE = "Mean difference to the first policy, seed by seed; null for the first."
_SPREAD = "versus.spread.deviation"
FIGURE_COLUMNS = (
    text("group", "What the figure is about.", "heading"),
    text("figure", "Its name.", "figure.name", level=0),
    text("unit", "Its unit; empty for a count.", "figure.unit", level=0),
    _POLICY,
    _amount(
        "mean", "Mean over the seeds; null: infinite.", "over.mean", level=0, unit=figures.amount
    ),
    _amount(
        "deviation",
        "Over the seeds.",
        "over.deviation",
        head="+-",
        spare=2,
        show=lambda r: _deviation(r.over),
    ),
    whole("seeds", "Replays with this figure.", "over.count"),
    _amount(
        "difference",
        _DIFFERENCE,
        "versus.spread.mean",
        head="DIFFERENCE",
        spare=1,
        unit=figures.change,
    ),
    _amount(
        "difference_deviation", "Of these.", _SPREAD, head="+-", spare=2, show=_difference_deviation
    ),
    whole(
        "improved",
        "Seeds.",
        "versus.improved",
        null=True,
        head="BETTER IN",
        spare=2,
        show=_improved,
    ),
)
_wait = partial(number, convert=rounded, unit=figures.amount)
WAIT_COLUMNS = (
    ident("class", "What the jobs ask for.", "label", least=16),
    _POLICY,
    number("jobs", "Jobs done.", level=0, unit=figures.amount),
    _wait("mean_s", "Mean wait.", head="MEAN s"),
    _wait("p50_s", "Median wait.", head="MEDIAN s"),
    _wait("p95_s", "95th percentile.", head="P95 s"),
    words("why", "Main reasons of the planner, with their shares of the waiting time.", least=20),
)
VIOLATION_COLUMNS = (
    text("policy", "Under which policy.", level=0),
    whole("seed", "With which seed.", level=0),
    words("text", "The promise that was broken.", least=30),
)


def simulation(
    trace: Trace, replays: Sequence[Replay], runs: Runs, *, brief: bool = False
) -> Document:
    """Return the answer; with ``brief`` only the main figures."""
    results = [(policy, result) for policy, of_policy in runs.items() for result in of_policy]
    facts = SimulationRow(
        trace,
        seeds=[result.seed for result in next(iter(runs.values()), ())],
        policies=list(runs),
        world=[line for replay in replays[:1] for line in describe_world(replay.world)],
        notes=world_notes(replays),
    )
    violations = [
        ViolationRow(policy, result.seed, line)
        for policy, result in results
        for line in result.violations
    ]
    shown = list(_figure_rows(runs, brief))
    title = "figures, mean over the seeds"
    return Document(
        SIMULATION_SCHEMA,
        SIMULATION_FACTS,
        facts,
        {
            "figures": Listing("", FIGURE_COLUMNS, shown, lambda r: r.figure.name, title=title),
            "classes": Listing(
                "", WAIT_COLUMNS, list(figures.wait_rows(runs)), title="waits by size of the jobs"
            ),
            "violations": Listing("", VIOLATION_COLUMNS, violations),
        },
        main="figures",
        name=trace.name,
    )


def world_notes(replays: Sequence[Replay]) -> list[str]:
    return list(dict.fromkeys(line for replay in replays for line in replay.world.notes))


def _figure_rows(runs: Runs, brief: bool) -> Iterator[FigureRow]:
    first = next(iter(runs.values()), ())
    for heading, of_heading in FIGURES.items():
        for figure in of_heading:
            if brief and figure.detail:
                continue
            for n, (policy, results) in enumerate(runs.items()):
                if (over := figures.spread(figure.of(result) for result in results)) is not None:
                    versus = figures.paired(figure, first, results) if n else None
                    yield FigureRow(heading, figure, policy, over, versus)
