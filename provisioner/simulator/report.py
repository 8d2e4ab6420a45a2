"""The report as one HTML page that needs nothing else: no script, no network, no second file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from provisioner import __version__, serialization
from provisioner.formatting import count, sanitize
from provisioner.simulator.figures import (
    FIGURES,
    NOTHING,
    KeyFigure,
    PairedDifference,
    Runs,
    SeedStatistics,
    amount,
    change,
    class_waits,
    common_seeds,
    finite_points,
    mean_hours,
    mean_waits,
    name,
    named_classes,
    named_sites,
    paired,
    site_waste,
    sites,
    span,
    spread,
    stacked_hours,
    thinned,
    time_line,
    waits_of,
    waste,
    waste_wait_scatter,
)
from provisioner.simulator.results import SCHEMA, GpuHours, ReplayResult, WaitStatistics


@dataclass(frozen=True, slots=True)
class Report:
    """Replays by policy, one for each seed."""

    schema: Literal[1]
    """Version of this form."""
    runs: Mapping[str, tuple[ReplayResult, ...]]


def to_json(runs: Mapping[str, Sequence[ReplayResult]]) -> str:
    """Return ``runs`` as compact JSON. Raises ValueError for a number that JSON does not know."""
    report = Report(1, {policy: tuple(results) for policy, results in runs.items()})
    return json.dumps(serialization.to_plain(report), allow_nan=False, separators=(",", ":"))


def from_json(text: str | bytes) -> dict[str, tuple[ReplayResult, ...]]:
    """Return the runs that :func:`to_json` wrote. Raises ValueError, which says what is wrong, and where."""
    try:
        version = json.loads(text)["schema"]
    except (ValueError, TypeError, KeyError):
        raise ValueError("no report of a replay: a JSON object with the key 'schema' is wanted") from None
    if version != SCHEMA:
        raise ValueError(f"a report of version {version!r}; this provisioner reads {SCHEMA}: write it anew")
    try:
        return dict(serialization.from_json(Report, text).runs)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ValueError(f"no report of a replay: {where}: {first['msg']}") from None


SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_FILE = "simulate.schema.json"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the JSON form."""
    body = TypeAdapter(Report).json_schema(mode="serialization")
    return {"$schema": SCHEMA_DIALECT, **body, "title": "GPU drone provisioner: report of provisioner simulate"}


def schema_text() -> str:
    """Return the schema as it is committed."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write the schema into the directory after ``--write``, or to standard output."""
    match arguments:
        case ["--write", directory]:
            (Path(directory) / SCHEMA_FILE).write_text(schema_text(), encoding="utf-8")
        case []:
            sys.stdout.write(schema_text())
        case _:
            print("usage: python -m provisioner.simulator.report [--write DIRECTORY]", file=sys.stderr)
            return 2
    return 0


Cell = str | float | SeedStatistics | PairedDifference | None
MAX_TABLE_ROWS = 200
"""More do not help a reader; the JSON form has them all."""


@dataclass(frozen=True, slots=True)
class GroupHeading:
    """A row that names the group of those below."""

    text: str


@dataclass(frozen=True, slots=True)
class ReportTable:
    """The first cell of each row is its heading."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...] | GroupHeading]


def html_of(table: ReportTable) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.head)
    rows = "\n".join(_row(row, len(table.head)) for row in table.rows[:MAX_TABLE_ROWS])
    left_out = len(table.rows) - MAX_TABLE_ROWS
    more = f"; {left_out} more rows are in the JSON form" if left_out > 0 else ""
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(table.caption)}"><table>\n'
        f"<caption>{escape(table.caption + more)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _row(row: tuple[Cell, ...] | GroupHeading, width: int) -> str:
    if isinstance(row, GroupHeading):
        return f'<tr><th scope="rowgroup" colspan="{width}" class="group">{escape(row.text)}</th></tr>'
    first, *rest = row
    return f'<tr><th scope="row">{_cell(first)}</th>{"".join(f"<td>{_cell(cell)}</td>" for cell in rest)}</tr>'


def _cell(cell: Cell) -> str:
    match cell:
        case None:
            return NOTHING
        case str():
            return escape(cell)
        case SeedStatistics():
            return _number(cell.mean, amount(cell.mean)) + _deviation(cell)
        case PairedDifference():
            better = f' <span class="aside">better in {cell.improved} of {cell.spread.count}</span>'
            return _number(cell.spread.mean, change(cell.spread.mean)) + _deviation(cell.spread) + better
        case _:
            return _number(cell, amount(cell))


def _number(value: float, text: str) -> str:
    """For people rounded, for programs as it is."""
    return f'<data value="{value!r}">{text}</data>'


def _deviation(spread: SeedStatistics) -> str:
    return f' <span class="aside">± {amount(spread.deviation)}</span>' if spread.count > 1 else ""


MAX_TIME_ROWS = 48
"""Rows of the time line's table."""
HOURS = ("good", "badput", "boot", "release", "idle", "held")
WAITS = ("mean wait s", "median wait s", "95th percentile s")


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A plot, what to make of it, and its numbers."""

    title: str
    words: str
    svg: str
    table: ReportTable


def headline(runs: Runs) -> ReportTable:
    """Every figure by policy: mean and standard deviation over the seeds."""
    rows: list[tuple[Cell, ...] | GroupHeading] = []
    for heading, figures in FIGURES.items():
        body = [
            (_label(figure), *(spread(figure.of(result) for result in results) for results in runs.values()))
            for figure in figures
        ]
        known = [row for row in body if any(cell is not None for cell in row[1:])]
        rows += [GroupHeading(heading), *known] if known else []
    return ReportTable("Figures by policy: mean ± standard deviation over the seeds", ("", *_names(runs)), rows)


def differences(runs: Runs) -> ReportTable:
    """Every policy less the first one, seed by seed."""
    first, *others = runs
    rows: list[tuple[Cell, ...] | GroupHeading] = []
    for heading, figures in FIGURES.items():
        body = [
            (_label(figure), *(paired(figure, runs[first], runs[other]) for other in others))
            for figure in figures
            if figure.better
        ]
        known = [row for row in body if any(cell is not None for cell in row[1:])]
        rows += [GroupHeading(heading), *known] if known else []
    caption = f"Difference from {name(first)} over the seeds that both have: mean ± standard deviation"
    return ReportTable(caption, ("", *_names(others)), rows)


def sections(runs: Runs) -> Iterable[ReportSection]:
    """In the order of the page; those of which the replays tell nothing are left out."""
    yield _hours(runs)
    yield _seeds(runs)
    yield _waits(runs)
    if named_sites(runs):
        yield _sites(runs)
    for result in _one_seed(runs):
        yield _time_line(result)


def _hours(runs: Runs) -> ReportSection:
    rows = [(name(policy), *_hours_of([r.gpu_hours for r in results])) for policy, results in runs.items()]
    return ReportSection(
        "Where the GPU-hours went",
        "A drone holds its GPUs from grant to release. Good is what jobs have to show for it; badput is work that was "
        "cut short and must be done again. Means over the seeds.",
        stacked_hours(runs),
        ReportTable("GPU-hours by policy, means over the seeds", ("Policy", *HOURS, "waste %"), rows),
    )


def _seeds(runs: Runs) -> ReportSection:
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
    hidden = sum(len(results) - len(finite_points(results)) for results in runs.values())
    missing = f" {hidden} without good GPU-hours or waits cannot be shown." if hidden else ""
    return ReportSection(
        "Waste against mean wait",
        "A point for each seed: less waste is further down, shorter waits are further left." + missing,
        waste_wait_scatter(runs),
        ReportTable(
            "Each replay",
            ("Policy", "trace", "seed", "waste %", *WAITS, "requests", "violations"),
            rows,
        ),
    )


def _waits(runs: Runs) -> ReportSection:
    rows: list[tuple[Cell, ...]] = [
        ("all jobs", name(policy), *_jobs_and_waits([r.waits for r in results])) for policy, results in runs.items()
    ]
    rows += [
        (name(kind), name(policy), *_jobs_and_waits(waits_of(kind, results)))
        for kind in named_classes(runs)
        for policy, results in runs.items()
    ]
    return ReportSection(
        "Waits by class of job",
        "From the median to the 95th percentile, with a mark at the mean; the axis is linear up to 10 s and "
        "logarithmic from there. A job's wait is completion less submission less run time: work that was lost counts "
        "as wait. Classes with most jobs come first.",
        class_waits(runs),
        ReportTable(
            "Waits by class and policy, means over the seeds",
            ("Class", "policy", "jobs", *WAITS),
            rows,
        ),
    )


def _sites(runs: Runs) -> ReportSection:
    rows = [
        (name(site), name(policy), *_hours_of([r.by_site.get(site, GpuHours()) for r in results]))
        for site in named_sites(runs)
        for policy, results in runs.items()
    ]
    return ReportSection(
        "Waste by site",
        "GPU-hours that were held and not good; behind each bar the waste in percent of that site's good GPU-hours. "
        "Means over the seeds.",
        site_waste(runs),
        ReportTable("GPU-hours by site and policy, means over the seeds", ("Site", "policy", *HOURS, "waste %"), rows),
    )


def _time_line(result: ReplayResult) -> ReportSection:
    samples = thinned(result.samples, MAX_TIME_ROWS)
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
    return ReportSection(
        title,
        "Each point is the mean over its stretch of time.",
        time_line(result),
        ReportTable(title, head, rows),
    )


def _one_seed(runs: Runs) -> list[ReplayResult]:
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


def _jobs_and_waits(waits: Sequence[WaitStatistics]) -> tuple[Cell, ...]:
    mean = mean_waits(waits)
    return (mean.jobs, mean.mean_s, mean.p50_s, mean.p95_s) if mean else (0, None, None, None)


def _label(figure: KeyFigure) -> str:
    return f"{figure.name} ({figure.unit})" if figure.unit else figure.name


def _names(policies: Iterable[str]) -> tuple[str, ...]:
    return tuple(name(policy) for policy in policies)


MAX_VIOLATIONS = 100
"""Lines that are shown of them; each is counted."""

_SECTION = Template(
    """<section>
<h2>$title</h2>
<p>$words</p>
<figure>$svg</figure>
<details><summary>The numbers</summary>
$table
</details>
</section>"""
)


def write_html(
    path: str | Path, runs: Mapping[str, Sequence[ReplayResult]], *, title: str = "", notes: Sequence[str] = ()
) -> None:
    """Write the report on ``runs``, policy to one replay for each seed, to ``path``.

    ``ValueError`` where there is nothing to report on, :class:`PlotsMissing` where the plotting library is missing.
    """
    Path(path).write_text(html_page(runs, title=title, notes=notes), encoding="utf-8")


def html_page(
    runs: Mapping[str, Sequence[ReplayResult]], *, title: str = "", notes: Sequence[str] = (), command: str = ""
) -> str:
    """Return the page's text; the same for the same input. ``command``: the command line that it was made by."""
    _complain(runs)
    return Template(files(__package__).joinpath("report.html").read_text(encoding="utf-8")).substitute(
        title=escape(sanitize(title) or _title(runs)),
        subject=escape(_subject(runs)),
        command=f'<p class="subject"><code>{escape(sanitize(command))}</code></p>' if command else "",
        verdict=_verdict(runs) + _answer(runs),
        notes="".join(f"<p>{escape(sanitize(note))}</p>\n" for note in notes),
        headline=html_of(headline(runs)),
        comparison=_comparison(runs),
        sections="\n".join(map(_section, sections(runs))),
        version=escape(__version__),
    )


def _complain(runs: Mapping[str, Sequence[ReplayResult]]) -> None:
    if not runs:
        raise ValueError("no replay to report on")
    for policy, results in runs.items():
        if not results:
            raise ValueError(f"no replay of the policy {policy!r} to report on")
        seen = set()
        for result in results:
            if (result.trace, result.seed) in seen:
                raise ValueError(f"policy {policy!r} has seed {result.seed} of the trace {result.trace!r} twice")
            seen.add((result.trace, result.seed))


def _subject(runs: Mapping[str, Sequence[ReplayResult]]) -> str:
    """Return one line on what was replayed."""
    results = [result for each in runs.values() for result in each]
    traces = sorted({name(result.trace) for result in results})
    seeds = len({result.seed for result in results})
    shortest, longest = (amount(of(result.days for result in results)) for of in (min, max))
    days = shortest if shortest == longest else f"{shortest} to {longest}"
    policies = count(len(runs), "policy", "policies")
    return f"{', '.join(traces)}: {days} days, {policies}, {count(seeds, 'seed')}"


def _title(runs: Mapping[str, Sequence[ReplayResult]]) -> str:
    traces = sorted({name(result.trace) for results in runs.values() for result in results})
    policies = " against ".join(map(name, runs)) if len(runs) < 4 else count(len(runs), "policy", "policies")
    return f"Replay of {', '.join(traces)}: {policies}"


def _answer(runs: Mapping[str, Sequence[ReplayResult]]) -> str:
    """Return the figures that most readers look for, in a sentence for each policy; means over its seeds."""
    lines = []
    for policy, results in runs.items():
        parts = [f"{amount(fmean(r.jobs_done for r in results))} of {amount(fmean(r.jobs for r in results))} jobs done"]
        waited = [r.waits for r in results if r.waits.jobs]
        if waited:
            mean_s, p95_s = fmean(w.mean_s for w in waited), fmean(w.p95_s for w in waited)
            parts.append(f"mean wait {span(mean_s)}, 95 % of waits within {span(p95_s)}")
        wastes = spread(waste(r.gpu_hours) for r in results)
        if wastes:
            parts.append(f"waste {amount(wastes.mean)} % of the good GPU-hours")
        lines.append(f"<li>{escape(name(policy))}: {'; '.join(parts)}</li>")
    return f'<ul class="answer">{"".join(lines)}</ul>'


def _verdict(runs: Mapping[str, Sequence[ReplayResult]]) -> str:
    """Return whether every guarantee held; if not, this is the first thing on the page."""
    lines = [
        f"{name(policy)}, trace {name(result.trace)}, seed {result.seed}: {sanitize(line)}"
        for policy, results in runs.items()
        for result in results
        for line in result.violations
    ]
    replays = count(sum(map(len, runs.values())), "replay")
    if not lines:
        return f'<p class="kept">No promise was broken in {replays}.</p>'
    shown = "\n".join(f"<li>{escape(line)}</li>" for line in lines[:MAX_VIOLATIONS])
    more = len(lines) - MAX_VIOLATIONS
    rest = f"\n<li>and {more} more</li>" if more > 0 else ""
    head = f"{count(len(lines), 'broken promise')} in {replays}"
    return f'<section class="broken" role="alert"><h2>{head}</h2>\n<ul>\n{shown}{rest}\n</ul></section>'


def _comparison(runs: Mapping[str, Sequence[ReplayResult]]) -> str:
    if len(runs) < 2:
        return ""
    return (
        "<section><h2>Side by side</h2>\n"
        f"<p>Seeds that all policies have: {common_seeds(runs)}. What a seed does to all alike falls out of the "
        "difference.</p>\n"
        f"{html_of(differences(runs))}</section>"
    )


def _section(section: ReportSection) -> str:
    return _SECTION.substitute(
        title=escape(section.title), words=escape(section.words), svg=section.svg, table=html_of(section.table)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
