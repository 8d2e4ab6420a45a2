"""A command on some host: its input, its output, and whether it may have run without an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from adapters.shared.printing import printable
from provisioner.interfaces import UnavailableError
from provisioner.model import FaultKind

MAX_OUTPUT_BYTES = 64 * 1024**2
"""Bytes of output, both streams together. A command with more is ended."""
_NOT_FOUND = (126, 127)
_LAST_OWN = 128
"""Above it a shell reports a signal, and ssh (255) itself: no exit status of a command that came to its end."""


class NoReplyError(UnavailableError):
    """The command was sent, and its outcome is unknown: silence for a read, ``OutcomeUnknownError`` for a write."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ran to its own end."""

    code: int
    """Exit status, 0 to 128 without 126 and 127: everything else is raised, see :func:`judged`."""
    out: bytes = field(repr=False)
    err: bytes = field(repr=False)

    @property
    def said(self) -> str:
        """Text for a message: one line, of stderr if there is any."""
        words = " ".join((self.err or self.out)[:1500].decode(errors="replace").split())
        return f"exit status {self.code}: {printable(words, 400) or 'no output'}"


class Runner(Protocol):
    """Commands on one host. Calls overlap; ``async with`` gives back what it holds (a connection)."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", deadline_s: float) -> Finished:
        """Run ``argv`` and wait for its end.

        Raises:
            UnavailableError: it certainly did not run (no connection, no such program).
            NoReplyError: it was started, and no exit status of its own came within ``deadline_s``.
            AuthError: the host does not accept us, or we do not accept the host.
        """


def checked(argv: Sequence[str]) -> Sequence[str]:
    """Return ``argv``. ValueError if no program can be given that."""
    if not argv or not argv[0]:
        raise ValueError("no program to run")
    if any("\0" in word for word in argv):
        raise ValueError("an argument holds a NUL character")
    return argv


def judged(where: str, name: str, code: int, out: bytes, err: bytes) -> Finished:
    """Return the finished command, if ``code`` can be its own exit status. Else UnavailableError or NoReplyError."""
    done = Finished(code, out, err)
    if code in _NOT_FOUND:
        raise UnavailableError(
            f"{where}: `{name}` cannot be run there ({done.said}): is it installed?", FaultKind.CONFIG
        )
    if 0 <= code <= _LAST_OWN:
        return done
    if code == 255:
        raise NoReplyError(f"{where}: `{name}` ended with 255, as ssh does when it cannot reach a host ({done.said})")
    raise NoReplyError(f"{where}: `{name}` was ended by a signal ({done.said})")


def no_time(where: str, name: str, deadline_s: float) -> NoReplyError:
    return NoReplyError(f"{where}: `{name}` gave no answer within {deadline_s:g} s")


def too_much(where: str, name: str) -> NoReplyError:
    return NoReplyError(f"{where}: `{name}` says more than {MAX_OUTPUT_BYTES // 1024**2} MiB: it is not listened to")
