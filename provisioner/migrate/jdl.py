"""An HTCondor submit template of TARDIS taken apart: a submit file in which ``$Cores`` and the like are filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

_COMMAND = re.compile(r"\s*((?:\+|[Mm][Yy]\.)?[A-Za-z_][A-Za-z0-9_.]*)\s*=(?!=)\s*(.*)", re.DOTALL)
_QUEUE = re.compile(r"\s*queue\b.*", re.IGNORECASE | re.DOTALL)
_MANY_LINES = re.compile(r"\s*[\w.+]+\s*@=\s*(\w+)\s*")


@dataclass(frozen=True, slots=True)
class Command:
    """One line of a submit file, continuations joined."""

    line: int
    name: str
    """As written, ``+IsBackfill`` and ``queue`` included; empty for a line that is no command."""
    value: str

    @property
    def bare(self) -> str:
        """In small letters, without the ``+`` or ``MY.`` of an attribute."""
        return re.sub(r"^(\+|my\.)", "", self.name.lower())


def commands(text: str) -> list[Command]:
    """The commands of a template, in order. A text of many lines (``name @=end``) is one that is no command."""
    found: list[Command] = []
    pending, began, until = "", 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if until:
            until = "" if line.strip() == until else until
            continue
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        began = began or number
        line = line.lstrip() if pending else line
        if line.rstrip().endswith("\\"):
            pending += line.rstrip()[:-1].rstrip() + " "
            continue
        many = _MANY_LINES.fullmatch(line)
        until = f"@{many[1]}" if many else ""
        found.append(_command(began, pending + line))
        pending, began = "", 0
    if pending.strip():
        found.append(_command(began, pending))
    return found


def _command(line: int, text: str) -> Command:
    if _QUEUE.fullmatch(text):
        return Command(line, "queue", text.strip())
    parts = _COMMAND.fullmatch(text)
    if parts is None:
        return Command(line, "", text.strip())
    return Command(line, parts[1], parts[2].strip())


def filled(value: str, numbers: Mapping[str, str]) -> tuple[str, str]:
    """``value`` with TARDIS's variables filled in, and the name of the first that is not in ``numbers`` (or nothing).

    ``$$`` is how a template writes a single ``$``.
    """
    try:
        return Template(value).substitute(numbers), ""
    except KeyError as error:
        return value, str(error.args[0])
    except ValueError:
        return value, "$"
