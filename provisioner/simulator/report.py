"""The report on replays: its JSON form, and one HTML page that needs neither script, network nor second file."""

from __future__ import annotations

import base64
import json
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from io import BytesIO
from math import inf
from statistics import fmean
from string import Template
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import TypeAdapter

from provisioner import __version__, serialization
from provisioner.formatting import count, duration, iso, sanitize
from provisioner.simulator import results as figures
from provisioner.simulator.results import KeyFigure, ReplayResult, Runs, Sample, SeedStatistics
from provisioner.values import frozen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar("T")

# ----------------------------------------------------------------------------------------------------------
# JSON form

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_FILE = "simulate.schema.json"


@frozen
class Report:
    """Replays by policy, one for each seed."""

    schema: Literal[1]
    """Version of this form; a field that changes its meaning raises it."""
    runs: Mapping[str, tuple[ReplayResult, ...]]


def to_json(runs: Runs) -> str:
    """Return ``runs`` as compact JSON. Raises ValueError for a number that JSON does not know."""
    report = Report(1, {policy: tuple(results) for policy, results in runs.items()})
    return json.dumps(serialization.to_plain(report), allow_nan=False, separators=(",", ":"))


def from_json(text: str | bytes) -> dict[str, tuple[ReplayResult, ...]]:
    """Return the runs that :func:`to_json` wrote. Raises ValueError, which says what is wrong, and where."""
    return dict(serialization.from_json(Report, text).runs)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the JSON form."""
    body = TypeAdapter(Report).json_schema(mode="serialization")
    return {
        "$schema": SCHEMA_DIALECT,
        **body,
        "title": "GPU drone provisioner: report of provisioner simulate",
    }


MAX_NAME_LENGTH = 60
"""Longest foreign name in a table; in plots it is shorter."""
MAX_VIOLATIONS = 100


def html_page(runs: Runs, *, notes: Sequence[str] = (), command: str = "", at: float = 0.0) -> str:
    """Return the page on ``runs``, of which there is at least one of each policy; the same for the same input.

    ``command`` is the command line that made it, ``at`` the time. Raises PlotsMissingError without
    matplotlib.
    """
    results = [result for each in runs.values() for result in each]
    traces = ", ".join(sorted({name(result.trace) for result in results}))
    policies = count(len(runs), "policy", "policies")
    spans = (duration(86400 * of(result.days for result in results)) for of in (min, max))
    subject = [
        f"{traces}: {' to '.join(dict.fromkeys(spans))}",
        policies,
        count(len({r.seed for r in results}), "seed"),
    ]
    subject += [f"made {iso(at)}"] if at else []
    first, *others = runs
    caption = "Figures by policy: mean ± standard deviation over the seeds"
    if others:
        caption += "; differences seed by seed over the seeds that both have"
    head = ["", *map(name, runs), *(f"{name(other)} less {name(first)}" for other in others)]
    return Template(
        files(__package__).joinpath("report.html").read_text(encoding="utf-8")
    ).substitute(
        title=escape(
            f"Replay of {traces}: {' against '.join(map(name, runs)) if len(runs) < 4 else policies}"
        ),
        style=files("provisioner")
        .joinpath("web", "static", "style.css")
        .read_text(encoding="utf-8"),
        subject=escape(", ".join(subject)),
        command=escape(sanitize(command)),
        verdict=_verdict(runs),
        answer="".join(
            f"<li>{escape(_answer(policy, each))}</li>" for policy, each in runs.items()
        ),
        notes="".join(f"<p>{escape(sanitize(note))}</p>\n" for note in notes),
        caption=escape(caption),
        head="".join(f'<th scope="col">{escape(text)}</th>' for text in head),
        rows="\n".join(_rows(runs)),
        plots="\n".join(_plots(runs)),
        version=escape(__version__),
    )


def name(text: str, most: int = MAX_NAME_LENGTH) -> str:
    """Return a foreign name on one line, without invisible characters and not too long."""
    return sanitize(text, most).strip() or "(no name)"


def _verdict(runs: Runs) -> str:
    """Return whether every guarantee held; if not, this is the first thing on the page."""
    lines = [
        f"{name(policy)}, trace {name(result.trace)}, seed {result.seed}: {sanitize(line)}"
        for policy, results in runs.items()
        for result in results
        for line in result.violations
    ]
    replays = count(sum(map(len, runs.values())), "replay")
    if not lines:
        return f'<p class="lead kept">No promise was broken in {replays}.</p>'
    more = [f"and {len(lines) - MAX_VIOLATIONS} more"] if len(lines) > MAX_VIOLATIONS else []
    listed = "\n".join(f"<li>{escape(line)}</li>" for line in [*lines[:MAX_VIOLATIONS], *more])
    head = f"{count(len(lines), 'broken promise')} in {replays}"
    return f'<section class="broken" role="alert"><h2>{head}</h2>\n<ul>\n{listed}\n</ul></section>'


def _answer(policy: str, results: Sequence[ReplayResult]) -> str:
    """Return the figures that most readers look for; means over the seeds."""
    done = fmean(r.jobs_done for r in results)
    jobs = fmean(r.jobs for r in results)
    parts = [f"{figures.amount(done)} of {figures.amount(jobs)} jobs done"]
    if waits := [r.waits for r in results if r.waits.jobs]:
        mean_s = fmean(each.mean_s for each in waits)
        p95_s = fmean(each.p95_s for each in waits)
        parts.append(f"mean wait {duration(mean_s)}, 95 % of waits within {duration(p95_s)}")
    if wastes := figures.spread(figures.waste(r.gpu_hours) for r in results):
        parts.append(f"waste {figures.amount(wastes.mean)} % of the good GPU-hours")
    return f"{name(policy)}: {'; '.join(parts)}"


def _rows(runs: Runs) -> Iterator[str]:
    """Yield the rows of the table: each known figure by policy, and the differences from the first policy."""
    for heading, of_heading in figures.FIGURES.items():
        known = [row for figure in of_heading if (row := _row(figure, runs))]
        if known:
            yield f'<tr><th scope="rowgroup" colspan="{2 * len(runs)}" class="group">{escape(heading)}</th></tr>'
            yield from known


def _row(figure: KeyFigure, runs: Runs) -> str:
    first, *others = runs.values()
    means = [figures.spread(figure.of(result) for result in results) for results in runs.values()]
    if not any(means):
        return ""
    written = _durations if figure.unit == "s" else figures.amount
    cells = ["-" if over is None else _cell(over, written) for over in means]
    for results in others:
        versus = figures.paired(figure, first, results)
        better = (
            f", better in {versus.improved} of {versus.spread.count}"
            if versus and figure.better
            else ""
        )
        cells.append("-" if versus is None else _cell(versus.spread, written, better, sign="+"))
    label = f"{figure.name} ({figure.unit})" if figure.unit not in ("", "s") else figure.name
    return f'<tr><th scope="row">{escape(label)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'


def _durations(value_s: float) -> str:
    return duration(value_s) if 60 <= abs(value_s) < inf else f"{figures.amount(value_s)} s"


def _cell(
    over: SeedStatistics, written: Callable[[float], str], more: str = "", sign: str = ""
) -> str:
    text = f"{sign if over.mean > 1e-9 else ''}{written(over.mean)}"
    deviation = f" ± {written(over.deviation)}" if over.count > 1 else ""
    return f'<data value="{over.mean!r}">{text}</data> <span class="aside">{deviation}{more}</span>'


INK, DARK_INK = "#1a1f25", "#dde3e9"
"""Colours of the page's text, light and dark."""
_PLOT_STYLE = (
    "text {font-family: system-ui, sans-serif !important}"
    "@media (prefers-color-scheme: dark) {"
    f'[style*="fill: {INK}"] {{fill: {DARK_INK} !important}}'
    f'[style*="stroke: {INK}"] {{stroke: {DARK_INK} !important}}}}'
)
STYLE: dict[str, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    **dict.fromkeys(
        (
            "axes.edgecolor",
            "axes.labelcolor",
            "grid.color",
            "text.color",
            "xtick.color",
            "ytick.color",
        ),
        INK,
    ),
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "grid.alpha": 0.2,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "text.parse_math": False,  # names may have dollar signs
}
PARTS = {
    "good": "#3f9c66",
    "badput": "#cf4b55",
    "boot": "#5b8fd0",
    "release": "#8a63b8",
    "idle": "#d99a2b",
}
COLOURS = ("#5b8fd0", "#d1713a", "#3f9c66", "#b0529f", "#8c7a2b", "#2a9d9d", "#d1495b", "#7f7f7f")
MAX_SITES = 8
MAX_POINTS = 300


class PlotsMissingError(RuntimeError):
    """The plotting library is not installed; the text says how to get it."""


def require_matplotlib() -> None:
    """Raise PlotsMissingError if matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise PlotsMissingError(
            "the report's plots need the Python package matplotlib: pip install 'gpu-drone-provisioner[report]'"
        ) from None


def _plots(runs: Runs) -> Iterator[str]:
    """Yield the sections of the page with plots, without those of which the replays have nothing to show."""
    yield _section(
        "Where the GPU-hours went",
        "A drone holds its GPUs from grant to release. Good is what jobs have to show for it; badput is work that was "
        "cut short and must be done again. Means over the seeds.",
        svg(hours_by_policy, runs),
    )
    for policy, results in runs.items():
        sampled = next((result for result in results if result.samples), None)
        if sampled is not None:
            title = f"Time line: {name(policy)}, trace {name(sampled.trace)}, seed {sampled.seed}"
            yield _section(
                title,
                "Jobs; GPUs held, busy and the owner's; GPUs held by site.",
                svg(time_line, sampled),
            )


def _section(title: str, words: str, picture: bytes) -> str:
    title = escape(title)
    data = base64.b64encode(picture).decode()
    image = f'<img alt="{title}" src="data:image/svg+xml;base64,{data}"/>'
    return (
        f"<section>\n<h2>{title}</h2>\n<p>{escape(words)}</p>\n<figure>{image}</figure>\n</section>"
    )


def svg(paint: Callable[[Figure, T], None], subject: T) -> bytes:
    """Return the SVG that ``paint`` draws of ``subject``, whatever the user's own settings of matplotlib are."""
    require_matplotlib()
    from matplotlib import style
    from matplotlib.figure import Figure

    page = BytesIO()
    with style.context(STYLE, after_reset=True), warnings.catch_warnings():
        # Only the layout suffers: the reader's browser has the glyph.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure = Figure(figsize=(7.4, 5.6))
        paint(figure, subject)
        figure.savefig(page, format="svg", metadata={"Date": None}, transparent=True)
    begin = b'<style type="text/css">'
    return page.getvalue().replace(begin, begin + _PLOT_STYLE.encode(), 1)


def hours_by_policy(figure: Figure, runs: Runs) -> None:
    """Draw a bar for each policy, of the parts of the GPU-hours held."""
    figure.set_figheight(0.95 + 0.32 * len(runs))
    axes = figure.subplots()
    lefts = [0.0] * len(runs)
    for part, colour in PARTS.items():
        widths = [
            max(0.0, fmean(getattr(r.gpu_hours, part) for r in results))
            for results in runs.values()
        ]
        bars = axes.barh(
            range(len(runs)), widths, left=lefts, height=0.62, color=colour, label=part
        )
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    wastes = [
        figures.spread(figures.waste(result.gpu_hours) for result in results)
        for results in runs.values()
    ]
    ends = [f"waste {figures.amount(over.mean)} %" if over else "" for over in wastes]
    axes.bar_label(bars, ends, padding=4, fontsize=8)
    axes.margins(x=0.16)
    axes.set_xlabel("GPU-hours")
    axes.set_yticks(range(len(runs)), [textwrap.fill(name(policy), 32) for policy in runs])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(runs) - 0.4, -0.6)
    figure.legend(loc="outside upper left", ncols=len(PARTS))


def time_line(figure: Figure, result: ReplayResult) -> None:
    """Draw jobs, GPUs and sites over the time of one replay, one below the other."""
    samples = result.samples[:: -(-len(result.samples) // MAX_POINTS)]
    unit_s, unit = (86400.0, "days") if samples[-1].at_s > 3 * 86400 else (3600.0, "hours")
    times = [sample.at_s / unit_s for sample in samples]
    jobs, gpus, places = figure.subplots(3, sharex=True)
    jobs.set_title("Jobs")
    jobs.plot(
        times,
        [s.jobs_waiting for s in samples],
        color="#d1713a",
        linestyle="--",
        linewidth=1.2,
        label="waiting",
    )
    jobs.plot(
        times, [s.jobs_running for s in samples], color="#5b8fd0", linewidth=1.2, label="running"
    )
    gpus.set_title("GPUs")
    gpus.fill_between(
        times, [s.gpus_held for s in samples], color="#d99a2b", alpha=0.6, linewidth=0, label="held"
    )
    gpus.fill_between(
        times, [s.gpus_busy for s in samples], color="#3f9c66", linewidth=0, label="busy"
    )
    gpus.plot(
        times,
        [s.gpus_owner for s in samples],
        color=INK,
        linestyle=":",
        linewidth=1.2,
        label="owner's",
    )
    places.set_title("GPUs held, by site")
    layers = _gpus_by_site(samples)
    if layers:
        places.stackplot(
            times, *layers.values(), labels=list(layers), colors=[*COLOURS, "#a0a0a0"], linewidth=0
        )
    places.set_xlabel(unit)
    for axes in (jobs, gpus, places):
        axes.set_ylim(bottom=0)
        axes.margins(x=0)
        axes.grid(axis="y")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.05))


def _gpus_by_site(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """Return the GPUs held at each sample, by the name of the site in a legend; the smallest sites as one."""
    held: Counter[str] = Counter()
    for sample in samples:
        held.update(sample.by_site)
    here = [site for site, gpus_held in held.most_common() if gpus_held]
    names = {site: name(site, 30) for site in here[:MAX_SITES]}
    # "_": not in a legend
    names = {site: f" {text}" if text.startswith("_") else text for site, text in names.items()}
    layers = {text: [s.by_site.get(site, 0.0) for s in samples] for site, text in names.items()}
    if others := here[MAX_SITES:]:
        layers[f"{len(others)} others"] = [
            sum(s.by_site.get(site, 0.0) for site in others) for s in samples
        ]
    return layers
