"""Errors of questions and verbs, with the exit code that each front end turns into its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from enum import IntEnum
from typing import TypeVar

from provisioner.formatting import sanitize

T = TypeVar("T")


class Exit(IntEnum):
    """Exit codes, the same for every verb."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNMET = 3
    PARTIAL = 4
    TIMED_OUT = 124
    INTERRUPTED = 130


class VerbError(Exception):
    """Error of a verb that cannot do what was asked.

    Its lines go to stderr, without a traceback.
    """

    code = Exit.FAILED

    def __init__(self, *lines: str, code: Exit | None = None) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.code = code or self.code


class UsageError(VerbError):
    """Error of a verb that is called wrongly."""

    code = Exit.USAGE


class UnmetError(VerbError):
    """Error of a verb whose condition is not met."""

    code = Exit.UNMET


def unknown(
    what: str, name: str, known: Sequence[str], where: str = "", code: Exit = Exit.FAILED
) -> VerbError:
    """Return the error for a name that is not among the known ones."""
    near = get_close_matches(name[:200], known, n=1)
    instead = f"did you mean `{near[0]}`?" if near else f"known: {named(known) or 'none'}"
    return VerbError(f"no {what} `{sanitize(name, 80)}`{where}; {instead}", code=code)


MAX_NAMED = 8


def named(ids: Sequence[str], joint: str = ", ") -> str:
    """Return the first of many ids, and how many more there are."""
    shown = joint.join(sanitize(i, 80) for i in ids[:MAX_NAMED])
    return shown + (f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else "")


@contextmanager
def reported(*kinds: type[Exception], prefix: str = "", code: Exit = Exit.FAILED) -> Iterator[None]:
    """Turn errors of these kinds, whose messages are for people, into :class:`VerbError`."""
    try:
        yield
    except kinds as error:
        raise VerbError(
            *(f"{prefix}{line}" for line in str(error).splitlines()), code=code
        ) from error


def parsed(parse: Callable[[str], T], option: str, text: str) -> T:
    """Return the value of an option. Raises :class:`VerbError` that names the option and the remedy."""
    with reported(ValueError, prefix=f"{option}: ", code=Exit.USAGE):
        return parse(text)
