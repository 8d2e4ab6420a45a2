"""What a console tells of a drone's end: the line that ``guest.sh`` says last, and for people what stands above it.

A console is untrusted text, and the kernel speaks in the middle of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from adapters.shared.printing import printable
from provisioner.model import DroneId

LARGEST_TAIL = 16 * 1024
_LONGEST_WORDS = 300
_LONGEST_LINE = 1000
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
_TOKEN = re.compile(r"eyJ[A-Za-z0-9_=-]{12,}[A-Za-z0-9_.=-]*")
_SAID_BY = r"(?:\[ *[0-9.]+\] *)?(?:[A-Za-z0-9_.@-]{1,64}\[[0-9]+\]: )?"
"""The kernel's clock, and which process it was: before each line that a service says on the console."""
_VERDICT = rf"{_SAID_BY}=== drone %s exit=([0-9]{{1,3}}) (.*) ===\s*"
_OUTCOME = re.compile(r"(?:^| )reason=(?P<reason>\S+)")
_WHY = re.compile(r"(?:^| )why=(?P<why>\S+)")


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a drone ended."""

    exit_code: int
    """``docs/reference/drone.md``; 69: the server is not fit for a drone, 70: its files did not arrive, 128 and more:
    a signal."""
    words: str


def verdict(console: str, drone_id: DroneId) -> Verdict | None:
    """The last one that a console tells of this drone; None if it has not come to it."""
    wanted = re.compile(_VERDICT % re.escape(drone_id))
    found = [match for line in _lines(console) if (match := wanted.fullmatch(line))]
    if not found:
        return None
    return Verdict(int(found[-1][1]), _in_words(found[-1][2]))


def _in_words(told: str) -> str:
    reason, why = _OUTCOME.search(told), _WHY.search(told)
    if reason is not None:
        told = reason["reason"] + (f": {unquote(why['why'])}" if why else "")
    return printable(_TOKEN.sub("(token)", told.strip()), _LONGEST_WORDS)


def tail(console: str, lines: int) -> str:
    """The last ``lines`` lines as they may be shown to people: plain characters, no tokens, 16 KiB at most."""
    kept = [line[:_LONGEST_LINE].rstrip() for line in _lines(_TOKEN.sub("(token)", console))]
    text = "\n".join([line for line in kept if line][-lines:] if lines > 0 else [])
    cut = text.encode(errors="replace")
    if len(cut) <= LARGEST_TAIL:
        return cut.decode()
    return cut[-LARGEST_TAIL:].decode(errors="ignore").partition("\n")[2]


def _lines(console: str) -> Iterator[str]:
    """Without what steers a terminal. A carriage return begins a line, as a terminal would show it."""
    for line in re.split(r"\r*\n|\r", _ESCAPE.sub("", console)):
        yield "".join(c if c.isprintable() else " " if c == "\t" else "?" for c in line)
