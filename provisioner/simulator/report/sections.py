"""What a report consists of: each plot with the table of its numbers, and the tables that lead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from provisioner.simulator.report import plots
from provisioner.simulator.report.figures import FIGURES, Figure, mean_hours, paired, spread, waste
from provisioner.simulator.report.plots import Runs
from provisioner.simulator.report.tables import Cell, Heading, Table
from provisioner.simulator.report.timeline import sites, thinned
from provisioner.simulator.report.words import name
from provisioner.simulator.results import GpuHours, Result, Waits

MOST_TIMES = 48
"""Rows of the time line's table."""
HOURS = ("good", "badput", "boot", "release", "idle", "held")
WAITS = ("mean wait s", "median wait s", "95th percentile s")


@dataclass(frozen=True, slots=True)
class Section:
    """A plot, what to make of it, and its numbers."""

    title: str
    words: str
    svg: str
    table: Table


def headline(runs: Runs) -> Table:
    """Every figure by policy: mean and standard deviation over the seeds."""
    rows: list[tuple[Cell, ...] | Heading] = []
    for heading, figures in FIGURES.items():
        body = [
            (_label(figure), *(spread(figure.of(result) for result in results) for results in runs.values()))
            for figure in figures
        ]
        known = [row for row in body if any(cell is not None for cell in row[1:])]
        rows += [Heading(heading), *known] if known else []
    return Table("Figures by policy: mean ± standard deviation over the seeds", ("", *_names(runs)), rows)


def differences(runs: Runs) -> Table:
    """Every policy less the first one, seed by seed."""
    first, *others = runs
    rows: list[tuple[Cell, ...] | Heading] = []
    for heading, figures in FIGURES.items():
        body = [
            (_label(figure), *(paired(figure, runs[first], runs[other]) for other in others))
            for figure in figures
            if figure.better
        ]
        known = [row for row in body if any(cell is not None for cell in row[1:])]
        rows += [Heading(heading), *known] if known else []
    caption = f"Difference from {name(first)} over the seeds that both have: mean ± standard deviation"
    return Table(caption, ("", *_names(others)), rows)


def sections(runs: Runs) -> Iterable[Section]:
    """In the order of the page; those of which the replays tell nothing are left out."""
    yield _hours(runs)
    yield _seeds(runs)
    yield _waits(runs)
    if plots.named_sites(runs):
        yield _sites(runs)
    for result in _one_seed(runs):
        yield _time_line(result)


def _hours(runs: Runs) -> Section:
    rows = [(name(policy), *_hours_of([r.gpu_hours for r in results])) for policy, results in runs.items()]
    return Section(
        "Where the GPU-hours went",
        "A drone holds its GPUs from grant to release. Good is what jobs have to show for it; badput is work that was "
        "cut short and must be done again. Means over the seeds.",
        plots.stacked_hours(runs),
        Table("GPU-hours by policy, means over the seeds", ("Policy", *HOURS, "waste %"), rows),
    )


def _seeds(runs: Runs) -> Section:
    rows: list[tuple[Cell, ...]] = [
        (
            name(policy),
            name(result.trace),
            str(result.seed),
            waste(result.gpu_hours),
            *_jobs_and_waits([result.waits])[1:],
            result.requests,
            len(result.violations),
        )
        for policy, results in runs.items()
        for result in results
    ]
    hidden = sum(len(results) - len(plots.finite_points(results)) for results in runs.values())
    missing = f" {hidden} without good GPU-hours or waits cannot be shown." if hidden else ""
    return Section(
        "Waste against mean wait",
        "A point for each seed: less waste is further down, shorter waits are further left." + missing,
        plots.waste_wait_scatter(runs),
        Table(
            "Each replay",
            ("Policy", "trace", "seed", "waste %", *WAITS, "requests", "violations"),
            rows,
        ),
    )


def _waits(runs: Runs) -> Section:
    rows: list[tuple[Cell, ...]] = [
        ("all jobs", name(policy), *_jobs_and_waits([r.waits for r in results])) for policy, results in runs.items()
    ]
    rows += [
        (name(kind), name(policy), *_jobs_and_waits(plots.waits_of(kind, results)))
        for kind in plots.named_classes(runs)
        for policy, results in runs.items()
    ]
    return Section(
        "Waits by class of job",
        "From the median to the 95th percentile, with a mark at the mean; the axis is linear up to 10 s and "
        "logarithmic from there. A job's wait is completion less submission less run time: work that was lost counts "
        "as wait. Classes with most jobs come first.",
        plots.class_waits(runs),
        Table(
            "Waits by class and policy, means over the seeds",
            ("Class", "policy", "jobs", *WAITS),
            rows,
        ),
    )


def _sites(runs: Runs) -> Section:
    rows = [
        (name(site), name(policy), *_hours_of([r.by_site.get(site, GpuHours()) for r in results]))
        for site in plots.named_sites(runs)
        for policy, results in runs.items()
    ]
    return Section(
        "Waste by site",
        "GPU-hours that were held and not good; behind each bar the waste in percent of that site's good GPU-hours. "
        "Means over the seeds.",
        plots.site_waste(runs),
        Table("GPU-hours by site and policy, means over the seeds", ("Site", "policy", *HOURS, "waste %"), rows),
    )


def _time_line(result: Result) -> Section:
    samples = thinned(result.samples, MOST_TIMES)
    here = sites(samples)
    rows: list[tuple[Cell, ...]] = [
        (
            f"{sample.at_s / 3600:.2f}",
            sample.jobs_waiting,
            sample.jobs_running,
            sample.gpus_held,
            sample.gpus_busy,
            sample.gpus_owner,
            *(sample.by_site.get(site, 0.0) for site in here),
        )
        for sample in samples
    ]
    title = f"Time line: {name(result.policy)}, trace {name(result.trace)}, seed {result.seed}"
    head = ("Hours", "jobs waiting", "jobs running", "GPUs held", "GPUs busy", "GPUs of owner", *map(name, here))
    return Section(
        title,
        "Each point is the mean over its stretch of time.",
        plots.time_line(result),
        Table(title, head, rows),
    )


def _one_seed(runs: Runs) -> list[Result]:
    """One replay of each policy that has samples: of the first policy's first seed where there is one."""
    sampled = {policy: [r for r in results if r.samples] for policy, results in runs.items()}
    wanted = next(((results[0].trace, results[0].seed) for results in sampled.values() if results), None)
    return [
        next((result for result in results if (result.trace, result.seed) == wanted), results[0])
        for results in sampled.values()
        if results
    ]


def _hours_of(hours: Sequence[GpuHours]) -> tuple[Cell, ...]:
    mean, wastes = mean_hours(hours), spread(waste(each) for each in hours)
    return (*(getattr(mean, part) for part in HOURS), wastes and wastes.mean)


def _jobs_and_waits(waits: Sequence[Waits]) -> tuple[Cell, ...]:
    mean = plots.mean_waits(waits)
    return (mean.jobs, mean.mean_s, mean.p50_s, mean.p95_s) if mean else (0, None, None, None)


def _label(figure: Figure) -> str:
    return f"{figure.name} ({figure.unit})" if figure.unit else figure.name


def _names(policies: Iterable[str]) -> tuple[str, ...]:
    return tuple(name(policy) for policy in policies)
