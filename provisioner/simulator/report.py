"""The report on replays: its JSON form, and one HTML page that needs neither script, network nor second file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from math import inf
from statistics import fmean
from string import Template
from typing import Any, Literal

from pydantic import TypeAdapter

from provisioner import __version__, serialization, svg
from provisioner.formatting import count, duration, iso, sanitize
from provisioner.simulator import results as figures
from provisioner.simulator.results import KeyFigure, ReplayResult, Runs, Sample, SeedStatistics
from provisioner.svg import Layer
from provisioner.values import frozen

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
"""Longest foreign name in a table; in legends it is shorter."""
MAX_VIOLATIONS = 100


def html_page(runs: Runs, *, notes: Sequence[str] = (), command: str = "", at: float = 0.0) -> str:
    """Return the page on ``runs``, of which there is at least one of each policy; the same for the same input.

    ``command`` is the command line that made it, ``at`` the time.
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
    head = ["Figure", *map(name, runs), *(f"{name(other)} less {name(first)}" for other in others)]
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
    """Yield the rows of the table: figures by policy, unless all are 0, and differences from the first policy."""
    for heading, of_heading in figures.FIGURES.items():
        known = [row for figure in of_heading if (row := _row(figure, runs))]
        if known:
            yield f'<tr><th scope="rowgroup" colspan="{2 * len(runs)}" class="group">{escape(heading)}</th></tr>'
            yield from known


def _row(figure: KeyFigure, runs: Runs) -> str:
    first, *others = runs.values()
    means = [figures.spread(figure.of(result) for result in results) for results in runs.values()]
    if not any(over and over.mean for over in means):
        return ""
    written = _durations if figure.unit == "s" else figures.amount
    cells = ["-" if over is None else _cell(over, written) for over in means]
    for results in others:
        versus = figures.paired(figure, first, results)
        better = (
            f"better in {versus.improved} of {versus.spread.count}"
            if versus and figure.better and (versus.improved or versus.spread.mean)
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
    deviation = f"± {written(over.deviation)}" if over.deviation > 1e-9 else ""
    told = ", ".join(filter(None, (deviation, more)))
    return f'<data value="{over.mean!r}">{text}</data> <span class="aside">{told}</span>'


PARTS: Mapping[str, tuple[str, str]] = {
    "good": ("use-good", "done work"),
    "badput": ("use-lost", "work cut short"),
    "boot": ("use-boot", "starting"),
    "release": ("use-draining", "leaving"),
    "idle": ("use-idle", "no job"),
}
"""Parts of the GPU-hours, each with its class in the style sheet and its meaning."""
MAX_SITES = 8
MAX_POINTS = 300
HOUR_S = 3600.0
DAY_S = 86400.0
WAIT_UNITS = {"d": DAY_S, "h": HOUR_S, "min": 60.0, "s": 1.0}


def _plots(runs: Runs) -> Iterator[str]:
    """Yield the sections of the page with plots, without those of which the replays have nothing to show."""
    yield _section(
        "Where the GPU-hours went",
        "A drone holds its GPUs from grant to release. Good is what jobs have to show for it; badput is work that was "
        "cut short and must be done again. Means over the seeds.",
        _hours_by_policy(runs),
    )
    if waits := list(figures.wait_rows(runs)):
        yield _section(
            "Waits by size of the jobs",
            "From submission to the end, less the run time. Half of the jobs waited up to the end of the dark bar, "
            "95 % up to the end of the light one. Means over the seeds.",
            _wait_table(waits),
        )
    for policy, results in runs.items():
        sampled = next((result for result in results if result.samples), None)
        if sampled is not None:
            title = f"Time line: {name(policy)}, trace {name(sampled.trace)}, seed {sampled.seed}"
            yield _section(title, "The line is in front of the areas.", _time_lines(sampled))


def _section(title: str, words: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n<p>{escape(words)}</p>\n{body}\n</section>"


def _hours_by_policy(runs: Runs) -> str:
    """Return a bar for each policy, of the parts of the GPU-hours held."""
    parts_of = {
        policy: {
            part: max(0.0, fmean(getattr(r.gpu_hours, part) for r in results)) for part in PARTS
        }
        for policy, results in runs.items()
    }
    axis = svg.Axis.to(max(sum(parts.values()) for parts in parts_of.values()))
    rows = []
    for policy, parts in parts_of.items():
        over = figures.spread(figures.waste(result.gpu_hours) for result in runs[policy])
        bar = svg.bar({PARTS[part][0]: hours for part, hours in parts.items()}, axis.end)
        waste = f"{figures.amount(over.mean)} %" if over else "-"
        rows.append([escape(name(policy)), bar, figures.amount(sum(parts.values())), waste])
    heads = ["Policy", svg.scale(axis, "GPU-h"), "Held, GPU-h", "Waste"]
    layers = [svg.Layer(part, colour, (), words) for part, (colour, words) in PARTS.items()]
    return svg.legend(layers) + _table("GPU-hours by policy", heads, rows)


def _wait_table(waits: Sequence[figures.WaitRow]) -> str:
    """Return the waits by size of the jobs and policy, with bars and reasons."""
    longest_s = max(row.p95_s for row in waits)
    unit = next((unit for unit, unit_s in WAIT_UNITS.items() if longest_s >= 2 * unit_s), "s")
    axis = svg.Axis.to(longest_s / WAIT_UNITS[unit])
    rows = []
    for row in waits:
        median, most = (each / WAIT_UNITS[unit] for each in (row.p50_s, row.p95_s))
        bar = svg.bar({"median": median, "most": max(0.0, most - median)}, axis.end)
        times = [_durations(each) for each in (row.p50_s, row.mean_s, row.p95_s)]
        cells = [figures.amount(row.jobs), *times, escape(sanitize(row.why))]
        rows.append([escape(name(row.label)), bar, escape(name(row.policy)), *cells])
    heads = ["Jobs that ask for", svg.scale(axis, unit), "Policy", "Jobs done"]
    heads += ["Median", "Mean", "95 %", "Main reasons"]
    return _table("Waits by size", heads, rows)


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of HTML, of which the first column names the rows and the second has bars."""
    head = "".join(f'<th scope="col">{each}</th>' for each in heads)
    body = "\n".join(
        f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        for first, *cells in rows
    )
    region = f'<div class="wide" role="region" tabindex="0" aria-label="{title}">'
    table = f'<table class="bars"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f"{region}{table}</div>"


def _time_lines(result: ReplayResult) -> str:
    """Return charts of jobs, GPUs and sites over the time of one replay."""
    samples = result.samples[:: -(-len(result.samples) // MAX_POINTS)]
    unit, unit_s = ("d", DAY_S) if samples[-1].at_s > 3 * DAY_S else ("h", HOUR_S)
    step_s = samples[-1].at_s / max(1, len(samples) - 1)
    span = (samples[-1].at_s + step_s) / unit_s or 1.0
    axis = svg.Axis.to(span)
    times = [
        svg.AxisLabel(part * axis.end / span, f"{text} {unit}")
        for part, text in axis.labels
        if part * axis.end < span
    ]

    def layer(text: str, colour: str, of: Callable[[Sample], float], line: bool = False) -> Layer:
        return Layer(text, colour, [of(sample) for sample in samples], is_line=line)

    owners = layer("owner's", "waiting", lambda s: s.gpus_owner, line=True)
    charts: dict[str, tuple[str, list[Layer]]] = {
        "Jobs": (
            "jobs",
            [
                layer("running", "running", lambda s: s.jobs_running),
                layer("waiting", "waiting", lambda s: s.jobs_waiting, line=True),
            ],
        ),
        "GPUs": (
            "GPUs",
            [
                layer("busy", "running", lambda s: s.gpus_busy),
                layer("held without work", "idle", lambda s: max(0.0, s.gpus_held - s.gpus_busy)),
                *([owners] if any(owners.values) else []),
            ],
        ),
        "GPUs held, by site": ("GPUs", _gpus_by_site(samples)),
    }
    drawn = "\n".join(
        f"<figure><figcaption>{title}</figcaption>{svg.legend(layers)}"
        f"{svg.time_chart(title, of, times, layers)}</figure>"
        for title, (of, layers) in charts.items()
        if layers
    )
    return f'<div class="charts">{drawn}</div>'


def _gpus_by_site(samples: Sequence[Sample]) -> list[Layer]:
    """Return the GPUs held at each sample by site; the smallest sites as one."""
    held: Counter[str] = Counter()
    for sample in samples:
        held.update(sample.by_site)
    here = [site for site, gpus_held in held.most_common() if gpus_held]
    layers = [
        Layer(name(site, 30), f"site-{n}", [s.by_site.get(site, 0.0) for s in samples])
        for n, site in enumerate(here[:MAX_SITES])
    ]
    if others := here[MAX_SITES:]:
        rest = [sum(s.by_site.get(site, 0.0) for site in others) for s in samples]
        layers.append(Layer(f"{len(others)} others", "draining", rest))
    return layers
