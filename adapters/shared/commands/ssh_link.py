"""One ssh connection and the commands on it: as many at a time as the server has sessions for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import asyncssh

from adapters.shared.commands.runner import LARGEST_ANSWER

_CLOSING_S = 5.0


class Session(asyncssh.SSHClientSession[bytes]):
    """One command: what it said and how it ended, told apart from an end of the connection."""

    def __init__(self) -> None:
        self.freed: Callable[[], None] = lambda: None
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self.over = asyncio.Event()
        self.opened = False
        """From here on the command may have been started."""
        self.unwanted = False
        self.out, self.err = bytearray(), bytearray()
        self.code: int | None = None
        self.signal = ""

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel = chan
        if self.unwanted:  # nobody waits any longer: the command is not sent
            chan.abort()
            raise ConnectionAbortedError("not wanted any more")
        self.opened = True

    def data_received(self, data: bytes, datatype: int | None) -> None:
        (self.err if datatype else self.out).extend(data)
        if len(self.out) + len(self.err) > LARGEST_ANSWER:
            self.leave()

    def exit_status_received(self, status: int) -> None:
        self.code = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        self.signal = signal or "?"

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()
        self.freed()

    def feed(self, stdin: bytes) -> None:
        assert self._channel is not None
        with contextlib.suppress(OSError):  # it has ended already
            if stdin:
                self._channel.write(stdin)
            self._channel.write_eof()

    def leave(self) -> None:
        """End it, if it has not ended: killed where the server allows that, and its channel closed."""
        if self._channel is not None and not self.over.is_set():
            with contextlib.suppress(OSError):
                self._channel.kill()
            self._channel.abort()


class Link:
    """A connection in use. ``lost`` is set by the one who made it."""

    def __init__(self, sessions: int) -> None:
        self._room = asyncio.Semaphore(sessions)
        self._busy = 0
        self._opening: set[asyncio.Task[object]] = set()
        self.hops: Sequence[asyncssh.SSHClientConnection] = ()
        self.lost = False

    def end(self) -> None:
        self.lost = True

    async def begin(self, line: str, session: Session) -> bool:
        """Whether ``line`` was begun in ``session``; False if the server had no room for it.

        Raises what asyncssh raises; then too ``session.opened`` says whether the command may have been sent.
        """
        await self._room.acquire()
        self._busy += 1
        session.freed = self._leave
        opening: asyncio.Task[object] = asyncio.create_task(
            self.hops[-1].create_session(lambda: session, line, encoding=None)
        )
        self._opening.add(opening)
        opening.add_done_callback(lambda task: self._began(task, session))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            session.unwanted = True
            raise
        except asyncssh.ChannelOpenError:
            if session.opened or self.lost:
                raise
            return False
        return True

    def _began(self, task: asyncio.Task[object], session: Session) -> None:
        self._opening.discard(task)
        failed = task.cancelled() or task.exception() is not None
        if failed and not session.opened:
            # Refused by MaxSessions: its place is given up for good, as long as others hold theirs.
            self._busy -= 1
            if self.lost or self._busy == 0 or session.unwanted:
                self._room.release()

    def _leave(self) -> None:
        self._busy -= 1
        self._room.release()

    async def close(self) -> None:
        self.end()
        for hop in reversed(self.hops):
            hop.close()
            with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
                async with asyncio.timeout(_CLOSING_S):
                    await hop.wait_closed()
            hop.abort()
        if self._opening:
            await asyncio.wait(self._opening, timeout=_CLOSING_S)
