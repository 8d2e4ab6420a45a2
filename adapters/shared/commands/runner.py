"""A command on some host: its input, its output, and whether it may have run without an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from typing import Protocol, Self

from adapters.shared.printing import printable
from provisioner.interfaces import UnavailableError
from provisioner.model import FaultKind
from provisioner.values import frozen

MAX_OUTPUT_BYTES = 64 * 1024**2
"""Bytes of output, both streams together. A command with more is ended."""
_NOT_FOUND, _LAST_OWN = (126, 127), 128
"""Above 128 a shell reports a signal, and ssh (255) itself: no exit status of a command that came to its end."""

_AFTER_ENV = re.compile(r"env (?:-u \S+ |\S+=\S* )*(\S+)")


class NoReplyError(UnavailableError):
    """The command was sent, and its outcome is unknown: silence for a read, ``OutcomeUnknownError`` for a write."""


@frozen
class Finished:
    """A command that ran to its own end."""

    code: int
    """Exit status, 0 to 128 without 126 and 127: everything else is raised, see :func:`judged`."""
    out: bytes = field(repr=False)
    err: bytes = field(repr=False)

    @property
    def said(self) -> str:
        words = " ".join((self.err or self.out)[:1500].decode(errors="replace").split())
        return f"exit status {self.code}: {printable(words, 400) or 'no output'}"


class Runner(Protocol):
    """Commands on one host. Calls overlap; ``async with`` gives back what it holds (a connection)."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", deadline_s: float) -> Finished:
        """Run ``argv`` and wait for its end.

        UnavailableError if it certainly did not run (no connection, no such program), NoReplyError
        if it was started and no exit status of its own came in time, AuthError if the host does not
        accept us, or we do not accept it.
        """


def checked(argv: Sequence[str]) -> Sequence[str]:
    """Return ``argv``. ValueError if no program can be given that."""
    if any("\0" in word for word in argv):
        raise ValueError("an argument holds a NUL character")
    return argv


def program(argv: Sequence[str]) -> str:
    """Return the program that a person knows: after ``env`` with its variables, where the command begins so."""
    found = _AFTER_ENV.match(" ".join(argv))
    return found[1] if found else argv[0]


def judged(where: str, name: str, code: int, out: bytes, err: bytes) -> Finished:
    """Return the finished command, if ``code`` can be its own exit status. Else UnavailableError or NoReplyError."""
    done = Finished(code, out, err)
    if code in _NOT_FOUND:
        message = f"{where}: `{name}` cannot be run there ({done.said}): is it installed?"
        raise UnavailableError(message, FaultKind.CONFIG)
    if 0 <= code <= _LAST_OWN:
        return done
    how = (
        "ended with 255, as ssh does when it cannot reach a host"
        if code == 255
        else "was ended by a signal"
    )
    raise NoReplyError(f"{where}: `{name}` {how} ({done.said})")


def no_time(where: str, name: str, deadline_s: float) -> NoReplyError:
    return NoReplyError(f"{where}: `{name}` gave no answer within {deadline_s:g} s")


def too_much(where: str, name: str) -> NoReplyError:
    return NoReplyError(
        f"{where}: `{name}` says more than {MAX_OUTPUT_BYTES // 1024**2} MiB: it is not listened to"
    )
