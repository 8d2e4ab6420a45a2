"""Untrusted text made fit for one line of a log. Standard library only."""

import os
import re
from pathlib import Path
from urllib.parse import unquote

_POOL_TOKEN = re.compile(r"eyJ[A-Za-z0-9_=-]{12,}[A-Za-z0-9_.=-]*")
_TAIL_BYTES = 4096
_LAST_LINE_LIMIT = 300
LONGEST = 200
"""Characters of untrusted text that go on to people."""


def printable(text: str, limit: int = LONGEST) -> str:
    """Return one line of ``text`` without control characters, shortened."""
    line = "".join(c if c.isprintable() else "?" for c in text[: limit + 1].replace("\n", " "))
    return line if len(line) <= limit else line[: limit - 3] + "..."


def without_tokens(text: str) -> str:
    """Return text of a drone without what may be a token of its pool."""
    return _POOL_TOKEN.sub("(token)", text)


def drone_report(words: str, limit: int) -> str:
    """Return reason and explanation of a drone's own report (``docs/reference/drone.md``), else all of its words."""
    told = dict(word.split("=", 1) for word in reversed(words.split(" ")) if "=" in word)
    if reason := told.get("reason"):
        words = f"{reason}: {unquote(told['why'])}" if told.get("why") else reason
    return printable(without_tokens(words.strip()), limit)


def last_line(path: Path) -> str:
    """Return the last line of a file that has text in it, made printable; empty if there is none to read."""
    try:
        # A drone or a job may have put a link, a pipe or a directory there.
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    cleaned = (
        "".join(c if c.isprintable() else " " for c in line).strip() for line in reversed(lines)
    )
    return next(filter(None, cleaned), "")[:_LAST_LINE_LIMIT]
