"""Output of verbs: results on stdout, everything else on stderr."""

from __future__ import annotations

import gc
import io
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from provisioner.answers.columns import Answer, now, one_moment
from provisioner.answers.forms import Page, text_width, write
from provisioner.answers.query import Format, Query
from provisioner.cli.options import Screen
from provisioner.formatting import iso, local_times, sanitize

ANSWER_GARBAGE = 1_000_000
"""Values that an answer may leave behind before they are looked through.

`explain class` with 100,000 drones takes 5.9 s instead of 6.9 (make bench, answers).
"""


class Rendered(NamedTuple):
    """Answer whose form the web service has made."""

    text: str
    scope: str


def page_of(query: Query, screen: Screen) -> Page:
    """Return the page that is the terminal."""
    plain = screen.no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    width = shutil.get_terminal_size((0, 0)).columns or None  # COLUMNS, or that of a terminal
    if query.output is Format.WIDE:
        width = None
    return Page(width, sys.stdout.isatty() and not plain, screen.watch)


def note(*lines: str) -> None:
    """Write lines for the person at the terminal to stderr."""
    for line in lines:
        print(sanitize(line), file=sys.stderr)


def present(
    query: Query,
    screen: Screen,
    make: Callable[[], Answer | Rendered],
    clock: Callable[[], float] | None = None,
) -> None:
    """Show what ``make`` answers; with ``--watch`` again and again until interrupted.

    With ``--watch`` a record that cannot be read for a while (a full disk, a new version) is only
    reported.
    """
    with local_times(screen.local and query.output.for_people):
        _present(query, screen, make, clock or time.time)


def _present(
    query: Query,
    screen: Screen,
    make: Callable[[], Answer | Rendered],
    clock: Callable[[], float],
) -> None:
    from provisioner.store import StoreError

    gc.set_threshold(ANSWER_GARBAGE)
    while True:
        try:
            with one_moment(clock):
                _present_once(make(), query, screen)
        except StoreError as error:
            if not screen.watch:
                raise
            note(f"{iso(now())}  {error}")
        if not screen.watch:
            return
        time.sleep(screen.interval)


def _present_once(answer: Answer | Rendered, query: Query, screen: Screen) -> None:
    written = io.StringIO()
    scope = answer.scope if query.output.for_people and not query.no_header else ""
    if screen.watch and scope:
        scope = f"{iso(now())}  {scope}"
    if isinstance(answer, Rendered):
        written.write(answer.text)
    else:
        write(answer, query, page_of(query, screen), written)
    text = written.getvalue()
    if screen.watch and query.output.for_people and sys.stdout.isatty():
        text = f"\x1b[H\x1b[2J{_one_screen(text, scope)}"
    print(text, end="", flush=True)
    note(*filter(None, [scope]))


def _one_screen(text: str, scope: str) -> str:
    """Return the top of ``text``, as much as fits on the terminal above its line of scope."""
    columns, rows = shutil.get_terminal_size()
    room = rows - 1 - -(-text_width(scope) // columns)  # the last row is for the cursor
    lines = text.splitlines(keepends=True)
    if len(lines) <= room:
        return text
    return (
        "".join(lines[: room - 1])
        + f"... {len(lines) - room + 1} more lines: enlarge the terminal\n"
    )
