"""``provisioner events``: steps of drones and events of the controller, newest last; ``--follow`` goes on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from provisioner import formatting
from provisioner.cli import complete, table
from provisioner.cli.cells import text, time_at, words
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.listing import Column, Listing
from provisioner.cli.options import Format, Pick, Show, Where, shared
from provisioner.cli.output import Page, dumps, picked, present
from provisioner.cli.where import open_record
from provisioner.reasons import Reason
from provisioner.store import Event, Reader, Transition

app = typer.Typer(add_completion=False, rich_markup_mode=None)

SCHEMA = "provisioner.events/1"
PAGE_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Happening:
    """One line: a step of a drone or an event."""

    at: float
    step: Transition | None
    event: Event | None

    @property
    def name(self) -> str:
        return self.step.state.value if self.step else self.event.name if self.event else ""

    @property
    def text(self) -> str:
        if self.step is not None:
            return formatting.describe(self.step.reason)
        fields = self.event.fields if self.event else {}
        return ", ".join(f"{key} {value}" for key, value in fields.items())


def columns() -> tuple[Column[Happening], ...]:
    """Of what happened."""
    from provisioner.serialization import to_plain

    return (
        time_at("at", lambda h: h.at, "When.", level=0),
        Column[Happening](
            "kind",
            lambda h: "step" if h.step else "event",
            "step of a drone, or event.",
            level=1,
            choices=("step", "event"),
        ),
        text("name", lambda h: h.name, "The state that was entered, or the event's name.", level=0),
        text(
            "drone",
            lambda h: h.step.drone_id if h.step else "",
            "The drone; empty for events.",
            level=0,
            least=16,
            tail=True,
        ),
        words("text", lambda h: h.text, "Why or what, in words.", level=0, head="WHY", least=24),
        Column[Happening](
            "was", lambda h: h.step.was.value if h.step and h.step.was else None, "State before.", null=True
        ),
        Column[Happening](
            "reason",
            lambda h: to_plain(h.step.reason, Reason) if h.step else None,
            "Why, as data; null for events.",
            kind="object",
            null=True,
        ),
        Column[Happening](
            "fields", lambda h: dict(h.event.fields) if h.event else None, "Of an event.", kind="object", null=True
        ),
        Column[Happening](
            "tick",
            lambda h: h.step.tick if h.step else None,
            "Number of the tick; null for events.",
            kind="integer",
            null=True,
            level=1,
            right=True,
        ),
    )


@app.command()
@shared
def events(
    where: Where,
    show: Show,
    pick: Pick,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes; jsonl for programs.")] = False,
    since: Annotated[
        str, typer.Option("--since", metavar="AGE", help="Go back this far: 30m, 4h, 2d; all for everything.")
    ] = "1h",
    drone: Annotated[
        str | None,
        typer.Option(
            "--drone", metavar="ID", help="Only of this drone, by any id.", autocompletion=complete.any_drones
        ),
    ] = None,
) -> None:
    """Tell what happened.

    Every step of every drone with its reason, and the events of the controller.

    \b
    Examples:
      provisioner events --since 4h
      provisioner events --follow
      provisioner events --follow -o jsonl | jq 'select(.name == "failed")'
    """
    reader = open_record(where)
    start = 0.0 if since == "all" else time.time() - age_s(since)
    only = _only(reader, drone)
    if not follow:
        present(show, lambda: picked(_listing(reader, start, since, only), pick))
        return
    if show.output not in (Format.TABLE, Format.WIDE, Format.JSONL, Format.JSON, Format.NAME):
        raise Failure(f"--follow gives table, wide, name or jsonl, not {show.output.value}", code=Exit.USAGE)
    _follow(reader, show, start, only)


def age_s(text_: str) -> float:
    """``30m``, ``1h30m``, ``45s`` or plain seconds, as seconds. Raises :class:`Failure`."""
    import re

    found = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text_.strip())
    if not text_.strip() or found is None:
        raise Failure(f"{formatting.sanitize(text_, 40)!r} is not an age: write 45s, 30m, 1h30m or 2d", code=Exit.USAGE)
    days, hours, minutes, rest = (int(n or 0) for n in found.groups())
    return float(days * 86400 + hours * 3600 + minutes * 60 + rest)


def _only(reader: Reader, any_id: str | None) -> str:
    from provisioner.cli.resolve import the_drone

    return the_drone(reader, any_id) if any_id else ""


def _listing(reader: Reader, start: float, since: str, only: str) -> Listing[Happening]:
    found = [*(Happening(t.at, t, None) for _, t in _steps(reader, start, 0))]
    if only:
        found = [h for h in found if h.step and h.step.drone_id == only]
    else:
        found += [Happening(e.at, None, e) for e in all_events(reader) if e.at >= start]
    found.sort(key=lambda h: h.at)
    back = "everything on record" if since == "all" else f"of the last {since}; --since for more"
    whose = f" of drone {only}" if only else ""
    scope = f"{formatting.count(len(found), 'entry', 'entries')}{whose}, {back}"
    return Listing(SCHEMA, columns(), found, lambda h: h.name, scope)


def _steps(reader: Reader, since: float, after: int) -> Iterator[tuple[int, Transition]]:
    while True:
        page = reader.transitions(since=since, after=after, limit=PAGE_ROWS)
        yield from page
        if len(page) < PAGE_ROWS:
            return
        after = page[-1][0]


def all_events(reader: Reader, after: int = 0) -> list[Event]:
    """Every event on record from ``after`` on, oldest first."""
    found: list[Event] = []
    while True:
        page = reader.events(after=found[-1].id if found else after, limit=PAGE_ROWS)
        found += page
        if len(page) < PAGE_ROWS:
            return found


def _follow(reader: Reader, show: Show, start: float, only: str) -> None:
    page = Page.of(show)
    step, event = 0, 0
    while True:
        found = []
        for number, t in _steps(reader, start, step):
            step = number
            found.append(Happening(t.at, t, None))
        for e in all_events(reader, event):
            event = e.id
            if e.at >= start:
                found.append(Happening(e.at, None, e))
        found.sort(key=lambda h: h.at)
        _write([h for h in found if not only or (h.step and h.step.drone_id == only)], show, page)
        time.sleep(show.interval)


def _write(found: list[Happening], show: Show, page: Page) -> None:
    """A stream has no column widths: one line each, complete."""
    known = columns()
    for happening in found:
        match show.output:
            case Format.TABLE | Format.WIDE:
                drone = f"{happening.step.drone_id} " if happening.step else ""
                line = formatting.sanitize(f"{formatting.iso(happening.at)}  {drone}{happening.name}: {happening.text}")
                print(line if page.width is None else table.shorten(line, page.width))
            case Format.NAME:
                print(formatting.sanitize(happening.name))
            case _:
                print(dumps({c.key: c.of(happening) for c in known}))
    sys.stdout.flush()
