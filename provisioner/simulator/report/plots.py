"""The plots of a report, each as SVG text. They can stand alone as well: in a page of docs, beside a benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING

from provisioner.simulator.report.drawing import INK, svg
from provisioner.simulator.report.figures import mean_hours, spread, waste
from provisioner.simulator.report.timeline import sites, thinned
from provisioner.simulator.report.words import amount, duration, name
from provisioner.simulator.results import GpuHours, Result, Waits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Runs = Mapping[str, Sequence[Result]]
"""Policy to its replays, one for each seed."""
PARTS = (
    ("good", "#2f9e5f"),
    ("badput", "#d1495b"),
    ("boot", "#3f7fbf"),
    ("release", "#8a63b8"),
    ("idle", "#c98a1b"),
)
"""Of the GPU-hours held, with colours that can be told from a white and from a black page."""
COLOURS = ("#3f7fbf", "#d1713a", "#2f9e5f", "#b0529f", "#8c7a2b", "#2a9d9d", "#d1495b", "#7f7f7f")
MARKERS = "osD^vP*X"
MOST_BARS = 48
MOST_CLASSES = 12
MOST_SITES = 8
MOST_POINTS = 300


def stacked_hours(runs: Runs) -> str:
    """Where the GPU-hours went: a bar for each policy, means over its seeds."""
    rows = [(policy, mean_hours([r.gpu_hours for r in results])) for policy, results in runs.items()]
    wastes = {policy: spread(waste(r.gpu_hours) for r in results) for policy, results in runs.items()}
    ends = [f"waste {amount(over.mean)} %" if (over := wastes[policy]) else "" for policy, _ in rows]
    return svg(
        "Where the GPU-hours went",
        f"Stacked bars for {_listed(runs)}: good, badput, boot, release and idle GPU-hours.",
        lambda figure: _bars(figure, rows, PARTS, ends),
        height=0.95 + 0.34 * len(rows),
    )


def site_waste(runs: Runs) -> str:
    """GPU-hours that were not good, by site and policy, means over the seeds."""
    rows = [
        (f"{name(site, 20)} · {name(policy, 20)}" if len(runs) > 1 else site, hours)
        for site in named_sites(runs)
        for policy, results in runs.items()
        if (hours := mean_hours([r.by_site.get(site, GpuHours()) for r in results])).held
    ][:MOST_BARS]
    return svg(
        "Waste by site",
        f"Stacked bars by site for {_listed(runs)}: badput, boot, release and idle GPU-hours.",
        lambda figure: _bars(figure, rows, PARTS[1:], [_share(hours) for _, hours in rows]),
        height=0.95 + 0.3 * len(rows),
    )


def waste_wait_scatter(runs: Runs) -> str:
    """Waste against mean wait: a point for each seed of each policy. Lower left is better."""
    points = {policy: finite_points(results) for policy, results in runs.items()}
    return svg(
        "Waste against mean wait",
        f"A point for each seed of {_listed(runs)}: mean wait to the right, waste in percent upwards; "
        "the lower left is better.",
        lambda figure: _scatter(figure, points),
        height=max(3.2, 0.4 + 0.22 * len(runs)),
    )


def class_waits(runs: Runs) -> str:
    """Median, mean and 95th percentile of waits, for all jobs and for the classes with most of them."""
    kinds = named_classes(runs)[: max(1, min(MOST_CLASSES, MOST_BARS // len(runs)))]
    bands = [("all jobs", {policy: mean_waits([r.waits for r in results]) for policy, results in runs.items()})]
    bands += [(kind, {policy: mean_waits(waits_of(kind, rs)) for policy, rs in runs.items()}) for kind in kinds]
    return svg(
        "Waits by class of job",
        f"For {_listed(runs)} a line from the median to the 95th percentile of waits, with a mark at the mean; "
        "all jobs first, then the classes with most jobs.",
        lambda figure: _dumbbells(figure, bands, list(runs)),
        height=1.0 + len(bands) * (0.12 + 0.16 * len(runs)),
    )


def time_line(result: Result) -> str:
    """Jobs, GPUs and sites over the time of one replay, one below the other."""
    return svg(
        f"Time line of {name(result.policy)}, seed {result.seed}",
        "Three plots over time: jobs waiting and running; GPUs held by drones, busy with jobs, and used by the owner; "
        "GPUs held at each site.",
        lambda figure: _time_line(figure, result),
        height=5.6,
    )


def named_sites(runs: Runs) -> list[str]:
    """All of them, the one at which most was held first."""
    held: dict[str, float] = {}
    for results in runs.values():
        for result in results:
            for site, hours in result.by_site.items():
                held[site] = held.get(site, 0.0) + hours.held
    return sorted(held, key=lambda site: (-held[site], site))


def named_classes(runs: Runs) -> list[str]:
    """All of them, the one with most jobs first."""
    jobs: dict[str, int] = {}
    for results in runs.values():
        for result in results:
            for kind, waits in result.waits_by_class.items():
                jobs[kind] = max(jobs.get(kind, 0), waits.jobs)
    return sorted(jobs, key=lambda kind: (-jobs[kind], kind))


def waits_of(kind: str, results: Sequence[Result]) -> list[Waits]:
    """Of the jobs of one class, in the replays that had any."""
    return [result.waits_by_class[kind] for result in results if kind in result.waits_by_class]


def mean_waits(waits: Sequence[Waits]) -> Waits | None:
    """Means over the seeds in which there were any such jobs."""
    known = [each for each in waits if each.jobs]
    if not known:
        return None
    count = len(known)
    return Waits(
        jobs=round(sum(w.jobs for w in known) / count),
        mean_s=sum(w.mean_s for w in known) / count,
        p50_s=sum(w.p50_s for w in known) / count,
        p95_s=sum(w.p95_s for w in known) / count,
    )


def finite_points(results: Sequence[Result]) -> list[tuple[float, float]]:
    """Mean wait in seconds and waste in percent, of the replays in which both are known and finite."""
    both = [(r.waits.mean_s, waste(r.gpu_hours)) for r in results if r.waits.jobs]
    return [(wait_s, percent) for wait_s, percent in both if percent is not None and isfinite(percent)]


# ------------------------------------------------------------------------------------------------------------ painting


def _bars(
    figure: Figure, rows: Sequence[tuple[str, GpuHours]], parts: Sequence[tuple[str, str]], ends: Sequence[str]
) -> None:
    axes = figure.subplots()
    lefts = [0.0] * len(rows)
    for part, colour in parts:
        widths = [max(0.0, getattr(hours, part)) for _, hours in rows]
        axes.barh(range(len(rows)), widths, left=lefts, height=0.62, color=colour, label=part)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    for place, (left, end) in enumerate(zip(lefts, ends, strict=True)):
        axes.annotate(end, (left, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    _bands(axes, [label for label, _ in rows])
    axes.set_xlim(0, 1.16 * max([*lefts, 1e-9]))
    axes.set_xlabel("GPU-hours")
    figure.legend(loc="outside upper left", ncols=len(parts))


def _scatter(figure: Figure, points: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    axes = figure.subplots()
    for n, (policy, seeds) in enumerate(points.items()):
        colour, marker = _look(n)
        axes.scatter(
            [wait_s for wait_s, _ in seeds],
            [percent for _, percent in seeds],
            s=34,
            marker=marker,
            color=colour,
            alpha=0.8,
            linewidths=0,
            label=_entry(policy),
        )
    flat = [point for seeds in points.values() for point in seeds]
    for scale, ticks, values in (
        (axes.set_xscale, axes.xaxis, [x for x, _ in flat]),
        (axes.set_yscale, axes.yaxis, [y for _, y in flat]),
    ):
        if values and min(values) > 0 and max(values) > 20 * min(values):
            scale("log")
        ticks.set_major_formatter(_on_axis)
    if not any(y <= 0 for _, y in flat) and axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.grid()
    axes.set_xlabel("mean wait (s)")
    axes.set_ylabel("waste (% of good GPU-hours)")
    figure.legend(loc="outside right upper")


def _dumbbells(
    figure: Figure, bands: Sequence[tuple[str, Mapping[str, Waits | None]]], policies: Sequence[str]
) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    axes = figure.subplots()
    step = 0.8 / len(policies)
    for n, policy in enumerate(policies):
        known = [(band - 0.4 + step * (n + 0.5), w) for band, (_, by) in enumerate(bands) if (w := by[policy])]
        places, (colour, marker) = [place for place, _ in known], _look(n)
        axes.hlines(places, [w.p50_s for _, w in known], [w.p95_s for _, w in known], color=colour, linewidth=2)
        axes.plot(
            [w.mean_s for _, w in known],
            places,
            linestyle="none",
            marker=marker,
            markersize=5,
            color=colour,
            label=_entry(policy),
        )
    _bands(axes, [label for label, _ in bands])
    most = max([w.p95_s for _, by in bands for w in by.values() if w] or [0.0])
    axes.set_xscale("symlog", linthresh=10, linscale=0.5)
    axes.set_xlim(0, max(60.0, 1.2 * most))
    axes.xaxis.set_major_locator(FixedLocator([0, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 70 * 86400]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(duration)
    axes.grid(axis="x")
    axes.set_xlabel("wait: median to 95th percentile, mark at the mean")
    if len(policies) > 1:
        figure.legend(loc="outside upper left", ncols=3)


def _time_line(figure: Figure, result: Result) -> None:
    samples = thinned(result.samples, MOST_POINTS)
    unit_s, unit = (86400.0, "days") if samples and samples[-1].at_s > 3 * 86400 else (3600.0, "hours")
    times = [sample.at_s / unit_s for sample in samples]
    jobs, gpus, places = figure.subplots(3, sharex=True)
    jobs.set_title("Jobs")
    jobs.plot(times, [s.jobs_waiting for s in samples], color="#d1713a", linestyle="--", linewidth=1.2, label="waiting")
    jobs.plot(times, [s.jobs_running for s in samples], color="#3f7fbf", linewidth=1.2, label="running")
    gpus.set_title("GPUs")
    gpus.fill_between(times, [s.gpus_held for s in samples], color="#c98a1b", alpha=0.6, linewidth=0, label="held")
    gpus.fill_between(times, [s.gpus_busy for s in samples], color="#2f9e5f", linewidth=0, label="busy")
    gpus.plot(times, [s.gpus_owner for s in samples], color=INK, linestyle=":", linewidth=1.2, label="owner's")
    places.set_title("GPUs held, by site")
    here = sites(samples)
    named, others = here[:MOST_SITES], here[MOST_SITES:]
    layers = [[s.by_site.get(site, 0.0) for s in samples] for site in named]
    labels = [_entry(site) for site in named]
    if others:
        layers.append([sum(s.by_site.get(site, 0.0) for site in others) for s in samples])
        labels.append(f"{len(others)} others")
    if layers:
        places.stackplot(times, *layers, labels=labels, colors=[*COLOURS, "#a0a0a0"][: len(layers)], linewidth=0)
    places.set_xlabel(unit)
    for axes in (jobs, gpus, places):
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
        axes.grid(axis="y")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05))


def _bands(axes: Axes, labels: Sequence[str]) -> None:
    """A row for each label, the first on top."""
    axes.set_yticks(range(len(labels)), [name(label, 42) for label in labels])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels) - 0.4, -0.6)


def _entry(label: str) -> str:
    """A foreign name in a legend, from which matplotlib leaves out whatever begins with an underscore."""
    text = name(label, 30)
    return f" {text}" if text.startswith("_") else text


def _share(hours: GpuHours) -> str:
    percent = waste(hours)
    return "" if percent is None else f"{amount(percent)} %"


def _listed(runs: Runs) -> str:
    return ", ".join(name(policy) for policy in runs)


def _on_axis(value: float, _position: object) -> str:
    return amount(value)


def _look(place: int) -> tuple[str, str]:
    """Colour and marker of the policy at ``place``; the first 64 differ."""
    turn = place // len(COLOURS)
    return COLOURS[place % len(COLOURS)], MARKERS[(place + turn) % len(MARKERS)]
