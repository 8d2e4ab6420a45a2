"""The report as one HTML page that needs nothing else: no script, no network, no second file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from provisioner import __version__
from provisioner.say import clean, count
from provisioner.sim.report.figures import common_seeds
from provisioner.sim.report.sections import Section, differences, headline, sections
from provisioner.sim.report.tables import html_of
from provisioner.sim.report.words import amount, name
from provisioner.sim.results import Result

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


def html_page(runs: Mapping[str, Sequence[Result]], *, title: str = "", notes: Sequence[str] = ()) -> str:
    """The page's text; the same for the same input."""
    _complain(runs)
    return Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=escape(clean(title) or "Replay of a job trace"),
        subject=escape(_subject(runs)),
        verdict=_verdict(runs),
        notes="".join(f"<p>{escape(clean(note))}</p>\n" for note in notes),
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
    days = sorted({amount(result.days) for result in results})
    policies = count(len(runs), "policy", "policies")
    return f"{', '.join(traces)}: {' or '.join(days)} days, {policies}, {count(seeds, 'seed')}"


def _verdict(runs: Mapping[str, Sequence[Result]]) -> str:
    """Whether every promise was kept; if not, this is the first thing on the page."""
    lines = [
        f"{name(policy)}, trace {name(result.trace)}, seed {result.seed}: {clean(line)}"
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
