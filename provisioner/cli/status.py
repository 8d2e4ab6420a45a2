"""``provisioner status`` and ``events``: one screen of the whole, and what happened."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from provisioner import formatting
from provisioner.answers import troubles
from provisioner.answers.columns import Listing, ago, one_moment
from provisioner.answers.errors import UsageError
from provisioner.answers.events import EVENT_COLUMNS, EventsQuery, events as event_list, happenings
from provisioner.answers.forms import dumps, shorten
from provisioner.answers.query import Format, Query, written
from provisioner.answers.status import facts_of, status as screen
from provisioner.cli import options as opt, output as out
from provisioner.cli.questions import ask
from provisioner.formatting import local_times
from provisioner.store.reader import Reader

CHECK_UNKNOWN = 3
"""Exit code of ``--check`` for what cannot be found out, as monitoring plugins give it."""


def _events(
    query: EventsQuery,
    host: opt.Host,
    follow: Annotated[
        bool, opt.switch("Continue with new entries; use -o jsonl for programs.", "--follow", "-f")
    ] = False,
) -> None:
    if not follow:
        ask(event_list, query, host)
        return
    if not (query.output.for_people or query.output in (Format.JSONL, Format.JSON)):
        wrong = f"--follow writes table, wide or jsonl, not {query.output.value}"
        raise UsageError(wrong)
    if host.url is None:
        rows = _followed(opt.open_record(host), query, host.interval)
    else:
        from provisioner.cli import remote

        _ = query.start, query.begin  # wrong ones are refused before the stream begins
        if "since" in written(query):
            wrong = "--since with --follow needs the record: use --after, or remove --url"
            raise UsageError(wrong)
        rows = remote.followed(host, query.after or "")
    with local_times(host.local and query.output.for_people):
        for row in rows:
            print(_line(row, query, host), flush=True)


events = opt.shared(_events, event_list.help)


def _followed(reader: Reader, query: EventsQuery, interval_s: float) -> Iterator[Mapping[str, Any]]:
    """Yield what happened, and what happens."""
    with one_moment(reader.now):
        start = query.start
        position = query.begin
    while True:
        found = happenings(reader, start, position)
        position = found[-1].position if found else position
        yield from Listing("", EVENT_COLUMNS, sorted(found, key=lambda h: h.at)).plain()
        time.sleep(interval_s)


def _line(row: Mapping[str, Any], query: Query, screen: opt.Screen) -> str:
    """Return the line of an event for ``--follow``: a stream has no column widths."""
    if not query.output.for_people:
        return dumps(row)
    what = f"{row['drone']} {row['name']}: {row['text']}".lstrip()
    line = formatting.sanitize(f"{formatting.iso(row['at'])}  {what}")
    width = out.page_of(query, screen).width
    return line if width is None else shorten(line, width)


def _status(
    query: Query,
    host: opt.Host,
    check: Annotated[
        bool,
        opt.switch(
            "Print one line and exit as a monitoring plugin (0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN).",
            "--check",
        ),
    ] = False,
) -> None:
    if check:
        raise typer.Exit(_run_check(host))
    ask(screen, query, host)


status = opt.shared(_status, screen.help)


def _run_check(where: opt.Where) -> int:
    """Print the line of ``--check`` and return its exit code. A record that cannot be read is UNKNOWN."""
    try:
        reader = opt.open_record(where)
        with one_moment(reader.now):
            return _print_check(facts_of(reader))
    except Exception as error:
        failure = opt.verb_error(error)
        if failure is None:
            raise
        print(
            formatting.sanitize(f"PROVISIONER UNKNOWN - {'; '.join(failure.lines)}").replace(
                "|", "/"
            )
        )
        return CHECK_UNKNOWN


def _print_check(facts: troubles.TroubleContext) -> int:
    drones = sum(each.drones for each in facts.live)
    idle = sum(each.idle for each in facts.waiting)
    last_tick = ago(facts.views.at) if facts.views else "-"
    counts = f"{formatting.count(drones, 'drone')}, {formatting.count(idle, 'idle job')}"
    code, line = troubles.check_line(
        troubles.troubles(facts), f"{counts}, last tick {last_tick} ago"
    )
    print(f"{line} | drones={drones} idle_jobs={idle}")
    return code
