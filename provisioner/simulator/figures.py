"""The plots of a report, each as SVG text. They can stand alone as well: in a page of docs, beside a benchmark."""

from __future__ import annotations

import io
import re
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import inf, isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any

from provisioner.formatting import sanitize
from provisioner.simulator.results import GpuHours, ReplayResult, Sample, WaitStatistics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOTHING = "-"
MAX_NAME_LENGTH = 60
"""Longest foreign name in a table; in plots it is half of that."""


def amount(value: float | None) -> str:
    """Three significant digits, from a thousand on all before the point: ``1,234``, ``12.3``, ``0.00123``."""
    if value is None or value != value:
        return NOTHING
    if not isfinite(value):
        return "∞" if value > 0 else "-∞"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value else "0"


def change(value: float) -> str:
    """With its sign."""
    return f"+{amount(value)}" if value > 0 else amount(value)


def duration(seconds: float, _position: object = None) -> str:
    """In its largest unit, as on an axis: ``30 s``, ``10 min``, ``2 h``, ``3 d``."""
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds else "0"


def span(seconds: float) -> str:
    """Return a duration in its two largest units: ``45 s``, ``1 min 30 s``, ``2 h 40 min``, ``3 d 4 h``."""
    if not isfinite(seconds):
        return amount(seconds)
    if seconds < 59.5:
        return f"{amount(seconds)} s"
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (large_s, large), (small_s, small) in pairwise(units):
        rounded = round(seconds / small_s) * small_s
        if rounded >= large_s:
            whole, rest = divmod(rounded, large_s)
            more = f" {rest // small_s} {small}" if rest else ""
            return f"{whole} {large}{more}"
    raise AssertionError("unreachable")


def name(text: str, most: int = MAX_NAME_LENGTH) -> str:
    """Return a foreign name on one line, without invisible characters and not too long."""
    return sanitize(text, most).strip() or "(no name)"


def thinned(samples: Sequence[Sample], most: int) -> list[Sample]:
    """At most ``most`` samples, each the mean over its stretch and set to its beginning; few stay as they are."""
    if len(samples) <= most:
        return list(samples)
    start_s, end_s = samples[0].at_s, samples[-1].at_s
    stretch_s = (end_s - start_s) / most or 1.0
    stretches: dict[int, list[Sample]] = {}
    for sample in samples:
        stretches.setdefault(min(most - 1, int((sample.at_s - start_s) / stretch_s)), []).append(sample)
    return [_mean(start_s + n * stretch_s, together) for n, together in sorted(stretches.items())]


def sites(samples: Sequence[Sample]) -> list[str]:
    """Those that held anything, the largest holder first."""
    held: dict[str, float] = {}
    for sample in samples:
        for site, gpus in sample.by_site.items():
            held[site] = held.get(site, 0.0) + gpus
    return sorted((site for site in held if held[site] > 0), key=lambda site: (-held[site], site))


def _mean(at_s: float, samples: Sequence[Sample]) -> Sample:
    return Sample(
        at_s=at_s,
        jobs_waiting=round(fmean(sample.jobs_waiting for sample in samples)),
        jobs_running=round(fmean(sample.jobs_running for sample in samples)),
        gpus_held=fmean(sample.gpus_held for sample in samples),
        gpus_busy=fmean(sample.gpus_busy for sample in samples),
        gpus_owner=fmean(sample.gpus_owner for sample in samples),
        by_site={site: fmean(s.by_site.get(site, 0.0) for s in samples) for site in sites(samples)},
    )


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """One number of a replay."""

    name: str
    unit: str
    of: Callable[[ReplayResult], float | None]
    """None where the replay does not tell."""
    better: int = 0
    """1: more is better, -1: less is, 0: neither."""


@dataclass(frozen=True, slots=True)
class SeedStatistics:
    """Mean and deviation of one figure over seeds."""

    count: int
    mean: float
    deviation: float
    """Sample standard deviation; 0 for a single seed."""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Difference of one figure between two policies, seed by seed, so that common effects cancel."""

    spread: SeedStatistics
    improved: int
    """Seeds in which the second policy is the better one."""


def spread(values: Iterable[float | None]) -> SeedStatistics | None:
    """Return mean and deviation of the known values; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if not all(map(isfinite, known)):
        return SeedStatistics(len(known), inf, 0.0)
    return SeedStatistics(len(known), statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0)


def paired(figure: KeyFigure, first: Sequence[ReplayResult], second: Sequence[ReplayResult]) -> PairedDifference | None:
    """``second`` less ``first`` over the seeds of both; None where no pair has finite values."""
    before = {(result.trace, result.seed): figure.of(result) for result in first}
    changes: list[float] = []
    for result in second:
        a, b = before.get((result.trace, result.seed)), figure.of(result)
        if a is not None and b is not None and isfinite(a) and isfinite(b):
            changes.append(b - a)
    over = spread(changes)
    return PairedDifference(over, sum(change * figure.better > 0 for change in changes)) if over else None


def common_seeds(runs: Mapping[str, Sequence[ReplayResult]]) -> int:
    """Replays of the same trace with the same seed that every policy has."""
    return len(set.intersection(*({(result.trace, result.seed) for result in results} for results in runs.values())))


def mean_hours(hours: Sequence[GpuHours]) -> GpuHours:
    """Each part's mean."""
    parts = ("held", "good", "badput", "boot", "release", "idle")
    return GpuHours(**{part: statistics.fmean(getattr(each, part) for each in hours) for part in parts})


def of_good(part: Callable[[GpuHours], float], hours: GpuHours) -> float | None:
    """Return a part in percent of the good GPU-hours; infinite without good hours, None if none were held."""
    if hours.good:
        return 100 * part(hours) / hours.good
    if not hours.held:
        return None
    return inf if part(hours) > 0 else 0.0


def waste(hours: GpuHours) -> float | None:
    """In percent of the good GPU-hours."""
    return of_good(lambda h: h.held - h.good, hours)


def _boot_and_release(hours: GpuHours) -> float:
    return hours.boot + hours.release


def _per_job(amount: float | None, result: ReplayResult) -> float | None:
    return None if amount is None or not result.jobs_done else amount / result.jobs_done


def _decisions_per_second(result: ReplayResult) -> float | None:
    return result.decisions.per_second if result.decisions.count else None


FIGURES: Mapping[str, tuple[KeyFigure, ...]] = {
    "GPU-hours": (
        KeyFigure("Held", "GPU-h", lambda r: r.gpu_hours.held),
        KeyFigure("Good", "GPU-h", lambda r: r.gpu_hours.good, 1),
        KeyFigure("Idle", "GPU-h", lambda r: r.gpu_hours.idle, -1),
        KeyFigure("Boot and release", "GPU-h", lambda r: _boot_and_release(r.gpu_hours), -1),
        KeyFigure("Badput", "GPU-h", lambda r: r.gpu_hours.badput, -1),
    ),
    "Waste, of the good GPU-hours": (
        KeyFigure("Waste", "%", lambda r: waste(r.gpu_hours), -1),
        KeyFigure("by idle GPUs", "%", lambda r: of_good(lambda h: h.idle, r.gpu_hours), -1),
        KeyFigure("by boot and release", "%", lambda r: of_good(_boot_and_release, r.gpu_hours), -1),
        KeyFigure("by badput", "%", lambda r: of_good(lambda h: h.badput, r.gpu_hours), -1),
    ),
    "Waits": (
        KeyFigure("Mean wait", "s", lambda r: r.waits.mean_s if r.waits.jobs else None, -1),
        KeyFigure("Median wait", "s", lambda r: r.waits.p50_s if r.waits.jobs else None, -1),
        KeyFigure("95th percentile of waits", "s", lambda r: r.waits.p95_s if r.waits.jobs else None, -1),
        KeyFigure("First start of a burst", "s", lambda r: r.burst_first_s, -1),
        KeyFigure("80 % of a burst started", "s", lambda r: r.burst_most_s, -1),
        KeyFigure("Owner's wait for drones", "s", lambda r: r.owner_wait_s, -1),
    ),
    "Jobs and drones": (
        KeyFigure("Jobs", "", lambda r: r.jobs),
        KeyFigure("Jobs done", "", lambda r: r.jobs_done, 1),
        KeyFigure("Jobs that fit no drone", "", lambda r: r.jobs_impossible),
        KeyFigure("Requests", "drones", lambda r: r.requests, -1),
        KeyFigure("Requests per job", "", lambda r: _per_job(r.requests, r), -1),
        KeyFigure("Started", "drones", lambda r: r.drones_started),
        KeyFigure("Withdrawn", "drones", lambda r: r.withdrawn, -1),
        KeyFigure("Preempted", "attempts", lambda r: r.preempted, -1),
        KeyFigure("Violations", "", lambda r: len(r.violations), -1),
    ),
    "Cost": (
        KeyFigure("Decisions per second", "1/s", _decisions_per_second, 1),
        KeyFigure("Slowest decision", "s", lambda r: r.decisions.worst_s if r.decisions.count else None, -1),
        KeyFigure("Energy", "kWh", lambda r: r.energy_kwh, -1),
        KeyFigure("Energy per job", "kJ", lambda r: r.kj_per_job, -1),
        KeyFigure("CO2 per job", "kg", lambda r: _per_job(r.co2_kg, r), -1),
    ),
}
"""By heading. Those that no replay tells are left out of a report."""


INK = "#010203"
"""Becomes the colour of the text around: dark on light, light on dark. No other colour may be this one."""
STYLE: dict[str, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "grid.alpha": 0.2,
    "grid.color": INK,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: to be searched, read aloud and set in the reader's font
    "text.color": INK,
    "text.parse_math": False,  # names may have dollar signs
    "xtick.color": INK,
    "ytick.color": INK,
}
SCHEMES = (
    "svg.plot{color:#1c2127}svg.plot *{stroke-linejoin:round;stroke-linecap:butt}"
    "@media screen and (prefers-color-scheme:dark){svg.plot{color:#dfe3e8}}"
)


class PlotsMissingError(RuntimeError):
    """The plotting library is not installed; the text says how to get it."""

    def __init__(self) -> None:
        super().__init__(
            "the report's plots need the Python package matplotlib: pip install 'gpu-drone-provisioner[report]'"
        )


def plots_there() -> None:
    """Raise PlotsMissingError if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise PlotsMissingError from None


def svg(title: str, told: str, paint: Callable[[Figure], None], *, height: float, width: float = 7.4) -> str:
    """Return the SVG of what ``paint`` draws on a figure of this size (inches), described by ``told``.

    The text is the same for the same input, whatever the user's own settings of matplotlib are.
    """
    plots_there()
    import matplotlib
    from matplotlib.figure import Figure

    page = io.StringIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        # Only the layout suffers: the reader's browser has the glyph.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        matplotlib.rcdefaults()
        # Ids come from the salt and the content: those of two plots in one page differ, or mean the same.
        settings: Any = matplotlib.rcParams
        settings.update({**STYLE, "svg.hashsalt": title})
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(page, format="svg", transparent=True, metadata=nothing)
    return _tidied(page.getvalue(), title, told)


def _tidied(text: str, title: str, told: str) -> str:
    """From ``<svg`` on, with words for those who do not see it, and without what only costs room."""
    text = text[text.index("<svg") :].replace(INK, "currentColor").strip()
    text = re.sub(r"<metadata>.*?</metadata>\s*|<style type=.*?</style>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    text = re.sub(r"\s*\n\s*", "\n", text)
    told = escape(told)
    words = f"<title>{escape(title)}</title>\n<desc>{told}</desc>\n<style>{SCHEMES}</style>"
    return re.sub(
        r"<svg ([^>]*)>",
        lambda tag: f'<svg class="plot" role="img" aria-label="{escape(title)}. {told}" {tag[1]}>\n{words}',
        text,
        count=1,
    )


Runs = Mapping[str, Sequence[ReplayResult]]
"""Policy to its replays, one for each seed."""
PARTS = (
    ("good", "#2f9e5f"),
    ("badput", "#d1495b"),
    ("boot", "#3f7fbf"),
    ("release", "#8a63b8"),
    ("idle", "#c98a1b"),
)
"""Parts of the GPU-hours held, with colours that are visible on white and on black."""
COLOURS = ("#3f7fbf", "#d1713a", "#2f9e5f", "#b0529f", "#8c7a2b", "#2a9d9d", "#d1495b", "#7f7f7f")
MARKERS = "osD^vP*X"
MAX_BARS = 48
MAX_CLASSES = 12
MAX_SITES = 8
MAX_POINTS = 300


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
    ][:MAX_BARS]
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
    kinds = named_classes(runs)[: max(1, min(MAX_CLASSES, MAX_BARS // len(runs)))]
    bands = [("all jobs", {policy: mean_waits([r.waits for r in results]) for policy, results in runs.items()})]
    bands += [(kind, {policy: mean_waits(waits_of(kind, rs)) for policy, rs in runs.items()}) for kind in kinds]
    return svg(
        "Waits by class of job",
        f"For {_listed(runs)} a line from the median to the 95th percentile of waits, with a mark at the mean; "
        "all jobs first, then the classes with most jobs.",
        lambda figure: _dumbbells(figure, bands, list(runs)),
        height=1.0 + len(bands) * (0.12 + 0.16 * len(runs)),
    )


def time_line(result: ReplayResult) -> str:
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


def waits_of(kind: str, results: Sequence[ReplayResult]) -> list[WaitStatistics]:
    """Return the waits of one class in the replays that had such jobs."""
    return [result.waits_by_class[kind] for result in results if kind in result.waits_by_class]


def mean_waits(waits: Sequence[WaitStatistics]) -> WaitStatistics | None:
    """Means over the seeds in which there were any such jobs."""
    known = [each for each in waits if each.jobs]
    if not known:
        return None
    count = len(known)
    return WaitStatistics(
        jobs=round(sum(w.jobs for w in known) / count),
        mean_s=sum(w.mean_s for w in known) / count,
        p50_s=sum(w.p50_s for w in known) / count,
        p95_s=sum(w.p95_s for w in known) / count,
    )


def finite_points(results: Sequence[ReplayResult]) -> list[tuple[float, float]]:
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
    figure: Figure, bands: Sequence[tuple[str, Mapping[str, WaitStatistics | None]]], policies: Sequence[str]
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


def _time_line(figure: Figure, result: ReplayResult) -> None:
    samples = thinned(result.samples, MAX_POINTS)
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
    named, others = here[:MAX_SITES], here[MAX_SITES:]
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
    """Set a row for each label, the first on top."""
    axes.set_yticks(range(len(labels)), [name(label, 42) for label in labels])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels) - 0.4, -0.6)


def _entry(label: str) -> str:
    """Return a foreign name for a legend; matplotlib leaves out labels that begin with an underscore."""
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
