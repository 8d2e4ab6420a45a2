"""The report as one HTML page that needs nothing else: no script, no network, no second file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from string import Template

from provisioner import __version__
from provisioner.formatting import count, sanitize
from provisioner.simulator.report.figures import common_seeds, spread, waste
from provisioner.simulator.report.sections import Section, differences, headline, sections
from provisioner.simulator.report.tables import html_of
from provisioner.simulator.report.words import amount, name, span
from provisioner.simulator.results import Result

MOST_VIOLATIONS = 100
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
    path: str | Path, runs: Mapping[str, Sequence[Result]], *, title: str = "", notes: Sequence[str] = ()
) -> None:
    """Write the report on ``runs``, policy to one replay for each seed, to ``path``.

    ``ValueError`` where there is nothing to report on, :class:`PlotsMissing` where the plotting library is missing.
    """
    Path(path).write_text(html_page(runs, title=title, notes=notes), encoding="utf-8")


def html_page(
    runs: Mapping[str, Sequence[Result]], *, title: str = "", notes: Sequence[str] = (), command: str = ""
) -> str:
    """Return the page's text; the same for the same input. ``command``: the command line that it was made by."""
    _complain(runs)
    return Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8")).substitute(
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


def _complain(runs: Mapping[str, Sequence[Result]]) -> None:
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


def _subject(runs: Mapping[str, Sequence[Result]]) -> str:
    """What was replayed, in one line."""
    results = [result for each in runs.values() for result in each]
    traces = sorted({name(result.trace) for result in results})
    seeds = len({result.seed for result in results})
    shortest, longest = (amount(of(result.days for result in results)) for of in (min, max))
    days = shortest if shortest == longest else f"{shortest} to {longest}"
    policies = count(len(runs), "policy", "policies")
    return f"{', '.join(traces)}: {days} days, {policies}, {count(seeds, 'seed')}"


def _title(runs: Mapping[str, Sequence[Result]]) -> str:
    traces = sorted({name(result.trace) for results in runs.values() for result in results})
    policies = " against ".join(map(name, runs)) if len(runs) < 4 else count(len(runs), "policy", "policies")
    return f"Replay of {', '.join(traces)}: {policies}"


def _answer(runs: Mapping[str, Sequence[Result]]) -> str:
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


def _verdict(runs: Mapping[str, Sequence[Result]]) -> str:
    """Whether every promise was kept; if not, this is the first thing on the page."""
    lines = [
        f"{name(policy)}, trace {name(result.trace)}, seed {result.seed}: {sanitize(line)}"
        for policy, results in runs.items()
        for result in results
        for line in result.violations
    ]
    replays = count(sum(map(len, runs.values())), "replay")
    if not lines:
        return f'<p class="kept">No promise was broken in {replays}.</p>'
    shown = "\n".join(f"<li>{escape(line)}</li>" for line in lines[:MOST_VIOLATIONS])
    more = len(lines) - MOST_VIOLATIONS
    rest = f"\n<li>and {more} more</li>" if more > 0 else ""
    head = f"{count(len(lines), 'broken promise')} in {replays}"
    return f'<section class="broken" role="alert"><h2>{head}</h2>\n<ul>\n{shown}{rest}\n</ul></section>'


def _comparison(runs: Mapping[str, Sequence[Result]]) -> str:
    if len(runs) < 2:
        return ""
    return (
        "<section><h2>Side by side</h2>\n"
        f"<p>Seeds that all policies have: {common_seeds(runs)}. What a seed does to all alike falls out of the "
        "difference.</p>\n"
        f"{html_of(differences(runs))}</section>"
    )


def _section(section: Section) -> str:
    return _SECTION.substitute(
        title=escape(section.title), words=escape(section.words), svg=section.svg, table=html_of(section.table)
    )
