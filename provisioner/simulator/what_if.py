"""Questions of the kind "what if", as a line of words. (``changed_snapshot`` and ``changed_world`` answer them.)

SITE down                   away, for good
SITE down 2d..3d            away from 2 days after the begin until 3 days after it; `2d` alone: from then on
SITE gpus=20                so many GPUs there, and its limit with them
SITE max_gpus=20            the limit alone; likewise `max_drones=20`
SITE price=2                the operator's factor on its prices
SITE queue*2                waits in its queue take twice as long; likewise `boot`
SITE owner=none             nobody else's GPUs any more
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from provisioner.config.messages import choices
from provisioner.config.units import parse_duration

NUMBERS = ("gpus", "max_gpus", "max_drones", "price")
"""What is set to a number with ``=``; whole ones but for the price and ``max_gpus``."""
FACTORS = ("queue", "boot")
"""What takes so many times as long with ``*``."""
_WHOLE = frozenset({"gpus", "max_drones"})
_MOST = 1e6
_WORDS = (*NUMBERS, *FACTORS, "owner", "down")
FORMS = "`SITE down`, `SITE down 2d..3d`, `SITE gpus=20`, `SITE price=2`, `SITE queue*2` or `SITE owner=none`"


class QuestionError(Exception):
    """A question that is not understood, or that cannot be asked here; the text says what to write instead."""


@dataclass(frozen=True, slots=True)
class Down:
    """A site is away for a time, counted from the begin; without an end for good."""

    site: str
    from_s: float = 0.0
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """One of :data:`NUMBERS` has another value at a site."""

    site: str
    key: str
    value: float


@dataclass(frozen=True, slots=True)
class Times:
    """One of :data:`FACTORS` takes so many times as long at a site."""

    site: str
    key: str
    factor: float


@dataclass(frozen=True, slots=True)
class Unowned:
    """A site has no owner who comes first."""

    site: str


Question = Down | Number | Times | Unowned


def read(text: str, sites: Iterable[str]) -> Question:
    """The question in ``text`` about one of ``sites``. Raises QuestionError."""
    known = list(sites)
    site, _, rest = " ".join(text.split()).partition(" ")
    if site not in known:
        raise QuestionError(f"`{text}`: no site `{site}` here: {choices(site, known)}")
    if down := re.fullmatch(r"down(?: (\S+?)(?:\.\.(\S+))?)?", rest):
        return _down(text, site, *down.groups())
    if not (change := re.fullmatch(r"(\w+) ?([=*]) ?(\S+)", rest)):
        word = re.match(r"\w*", rest)
        near = choices(word[0], _WORDS) if word and word[0] and word[0] not in _WORDS else f"write {FORMS}"
        raise QuestionError(f"`{text}` is not understood: {near}")
    key, sign, value = change.groups()
    if key == "owner" and sign == "=":
        if value != "none":
            raise QuestionError(f"`{text}`: write `{site} owner=none`")
        return Unowned(site)
    if sign == "=" and key in NUMBERS:
        return Number(site, key, _number(text, value, whole=key in _WHOLE))
    if sign == "*" and key in FACTORS:
        return Times(site, key, _number(text, value))
    if key in NUMBERS or key in FACTORS:
        raise QuestionError(f"`{text}`: write `{site} {key}{'=' if key in NUMBERS else '*'}{value}`")
    raise QuestionError(f"`{text}`: nothing is known of `{key}`: {choices(key, _WORDS)}")


def _down(text: str, site: str, begin: str | None, end: str | None) -> Down:
    try:
        from_s = parse_duration(begin) if begin else 0.0
        until_s = parse_duration(end) if end else None
    except ValueError as error:
        raise QuestionError(f"`{text}`: {error}") from None
    if until_s is not None and until_s <= from_s:
        raise QuestionError(f"`{text}`: {end} is not after {begin}")
    return Down(site, from_s, until_s)


def _number(text: str, value: str, *, whole: bool = False) -> float:
    try:
        number = float(int(value) if whole else float(value))
    except ValueError:
        raise QuestionError(f"`{text}`: `{value}` is no {'whole ' if whole else ''}number") from None
    if not 0 <= number < _MOST:
        raise QuestionError(f"`{text}`: a number from 0 to a million is wanted")
    return number
