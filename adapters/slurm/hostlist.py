"""Slurm's short form of many node names: ``hkn[0801-0803,0901],login1`` written out."""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST = 100_000
"""Names of one list: several times the nodes of the largest machines, and little memory."""

_NOTHING = ("", "(null)", "N/A", "None assigned")
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


def expand(text: str, most: int = MOST) -> tuple[str, ...]:
    """The names in the order of the list; none for what Slurm prints in the place of nothing.

    Brackets may come more than once in a name and be followed by more of it; numbers keep their leading zeros.

    Raises:
        ValueError: it is no such list, or one of more than ``most`` names.
    """
    if text.strip() in _NOTHING:
        return ()
    found: list[str] = []
    for term in _terms(text.strip()):
        found += _names(term, most - len(found))
    return tuple(found)


def _terms(text: str) -> Iterator[str]:
    """What stands between the commas outside of brackets."""
    start, depth = 0, 0
    for at, each in enumerate(text):
        depth += (each == "[") - (each == "]")
        if depth not in (0, 1):
            raise ValueError(f"brackets do not match in the node list `{_short(text)}`")
        if each == "," and not depth:
            yield text[start:at]
            start = at + 1
    if depth:
        raise ValueError(f"brackets do not match in the node list `{_short(text)}`")
    yield text[start:]


def _names(term: str, most: int) -> list[str]:
    """Of one term: plain pieces and choices in turn. Counted first: a short text can mean a million names."""
    pieces = re.split(r"[\[\]]", term)
    if not term or not all(_PLAIN.fullmatch(plain) for plain in pieces[::2]):
        raise ValueError(f"`{_short(term)}` is no name of nodes")
    choices = [[_range(part) for part in inside.split(",")] for inside in pieces[1::2]]
    count = 1
    for choice in choices:
        count *= sum(last - first + 1 for first, last, _ in choice)
        if count > most:
            raise ValueError(f"`{_short(term)}` stands for more nodes than there can be")
    if count > most:
        raise ValueError("the node list is longer than there can be nodes")
    names = [pieces[0]]
    for choice, plain in zip(choices, pieces[2::2], strict=True):
        numbers = [f"{n:0{width}d}" for first, last, width in choice for n in range(first, last + 1)]
        names = [f"{name}{number}{plain}" for name in names for number in numbers]
    return names


def _range(text: str) -> tuple[int, int, int]:
    """First, last, and how many digits at least."""
    found = _RANGE.fullmatch(text)
    if not found:
        raise ValueError(f"`{_short(text)}` is no range of node numbers")
    first, last = int(found[1]), int(found[2] or found[1])
    if last < first:
        raise ValueError(f"`{_short(text)}` is no range of node numbers")
    return first, last, len(found[1])


def _short(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:60])
