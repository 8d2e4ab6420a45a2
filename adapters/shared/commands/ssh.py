"""Commands on a login node: one ssh connection that all share, made again when it is lost, never in a storm."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import shlex
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

import asyncssh

from adapters.shared.commands.runner import (
    MAX_OUTPUT_BYTES,
    Finished,
    NoReplyError,
    checked,
    judged,
    no_time,
    program,
    too_much,
)
from adapters.shared.commands.settings import SshSettings
from adapters.shared.commands.ssh_login import Codes, login
from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError, UnavailableError

Ends = TypeVar("Ends", bound=asyncio.Protocol)

_CLOSE_TIMEOUT_S = 5.0

asyncssh.set_log_level("WARNING")  # it logs every command, and what matters is in our errors


class SshCommand(asyncssh.SSHClientSession[bytes]):
    """One command: its output and its end, told apart from an end of the connection."""

    def __init__(self) -> None:
        self.freed: Callable[[], None] = lambda: None
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self.over = asyncio.Event()
        self.opened = False
        """From here on the command may have been started."""
        self.unwanted = False
        self.out = bytearray()
        self.err = bytearray()
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
        if self.is_too_long:
            self.abort()

    @property
    def is_too_long(self) -> bool:
        return len(self.out) + len(self.err) > MAX_OUTPUT_BYTES

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

    def abort(self) -> None:
        """End it, if it has not ended: killed where the server allows that, and its channel closed."""
        if self._channel is not None and not self.over.is_set():
            with contextlib.suppress(OSError):
                self._channel.kill()
            self._channel.abort()


class SshConnection:
    """A connection in use. It runs as many commands at a time as the server has sessions for."""

    def __init__(self, sessions: int) -> None:
        self._free = asyncio.Semaphore(sessions)
        self._busy = 0
        self._opening: set[asyncio.Task[object]] = set()
        self.hops: Sequence[asyncssh.SSHClientConnection] = ()
        self.lost = asyncio.Event()

    async def begin(self, line: str, command: SshCommand) -> bool:
        """Return whether ``line`` was begun as ``command``; False if the server had no session. Raises as asyncssh."""
        await self._free.acquire()
        self._busy += 1
        command.freed = self._release
        opening: asyncio.Task[object] = asyncio.create_task(
            self.hops[-1].create_session(lambda: command, line, encoding=None)
        )
        self._opening.add(opening)
        opening.add_done_callback(lambda task: self._began(task, command))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            command.unwanted = True
            raise
        except asyncssh.ChannelOpenError:
            if command.opened or self.lost.is_set():
                raise
            return False
        return True

    def _began(self, task: asyncio.Task[object], command: SshCommand) -> None:
        self._opening.discard(task)
        failed = task.cancelled() or task.exception() is not None
        if failed and not command.opened:
            # Refused by MaxSessions: its place is given up for good, as long as others hold theirs.
            self._busy -= 1
            if self.lost.is_set() or self._busy == 0 or command.unwanted:
                self._free.release()

    def _release(self) -> None:
        self._busy -= 1
        self._free.release()

    async def close(self) -> None:
        self.lost.set()
        for hop in reversed(self.hops):
            hop.close()
            with contextlib.suppress(TimeoutError, OSError, asyncssh.Error):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await hop.wait_closed()
            hop.abort()
        if self._opening:
            await asyncio.wait(self._opening, timeout=_CLOSE_TIMEOUT_S)


class SshRunner:
    """Runs commands as ``settings.user`` on ``settings.host``; connects at the first one.

    A server that cannot be reached is left alone for longer and longer, and meanwhile commands fail
    at once.
    """

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self.where = f"{settings.user}@{settings.host}:{settings.port}"
        self._codes = Codes()
        self._connection: SshConnection | None = None
        self._connecting: asyncio.Task[SshConnection | AdapterError] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._last: AdapterError = UnavailableError(self.where)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
            self._connecting = None
        if self._connection is not None:
            connection = self._connection
            self._connection = None
            await connection.close()

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", deadline_s: float) -> Finished:
        name = program(checked(argv))
        line = shlex.join(argv)
        if self._settings.forced_command == "stdin":
            if "\n" in line:
                raise ValueError(
                    "an argument holds a line break, and the command has to go as one line"
                )
            # exec: or a shell on the other side reads on, and takes the tool's input for commands
            stdin = f"exec {line}\n".encode() + stdin
        command = SshCommand()
        try:
            async with asyncio.timeout(deadline_s):
                pause_s = 0.05
                while not await self._begun(line, command):
                    await asyncio.sleep(pause_s)
                    command = SshCommand()
                    pause_s = min(1.0, 2 * pause_s)
                command.feed(stdin)
                await command.over.wait()
        except TimeoutError:
            if command.opened:
                raise no_time(self.where, name, deadline_s) from None
            raise UnavailableError(
                f"{self.where}: `{name}` had no turn within {deadline_s:g} s"
            ) from None
        finally:
            command.abort()
        if command.is_too_long:
            raise too_much(self.where, name)
        if command.code is None and not command.signal:
            raise NoReplyError(f"{self.where}: the connection was lost while `{name}` ran")
        self._worked()
        if command.code is None:
            raise NoReplyError(
                f"{self.where}: `{name}` was ended by signal {printable(command.signal, 20)}"
            )
        return judged(self.where, name, command.code, bytes(command.out), bytes(command.err))

    async def connect_unix(self, path: str, protocol: Callable[[], Ends]) -> Ends:
        """Connect to a unix socket on the host, as ``loop.create_unix_connection`` does.

        The caller sets the deadline and bounds how many there are. UnavailableError and AuthError:
        nothing was sent.
        """
        connection = (await self._connected()).hops[-1]
        ends = protocol()
        try:
            await connection.create_unix_connection(lambda: _SocketChannel(ends), path)
        except (asyncssh.Error, OSError) as error:
            why = printable(str(error) or type(error).__name__)
            raise UnavailableError(
                f"{self.where}: no connection to its socket {path}: {why}"
            ) from None
        self._worked()
        return ends

    def _worked(self) -> None:
        """Let the next attempt, when the connection is lost, come without a pause."""
        self._failures = 0
        self._not_before = 0.0

    async def _begun(self, line: str, command: SshCommand) -> bool:
        """Return whether the command was sent; if not, it may be tried again."""
        connection = await self._connected()
        try:
            return await connection.begin(line, command)
        except (asyncssh.Error, OSError) as error:
            if connection.lost.is_set() and command.opened:
                raise NoReplyError(
                    f"{self.where}: the connection was lost as a command began"
                ) from None
            if connection.lost.is_set():
                return False
            raise UnavailableError(
                f"{self.where}: it refuses to run commands: {printable(str(error))}"
            ) from None

    async def _connected(self) -> SshConnection:
        """Return the connection, made if there is none. All callers wait for one attempt."""
        if self._connection is not None and not self._connection.lost.is_set():
            return self._connection
        if self._connecting is None:
            wait_s = self._not_before - asyncio.get_running_loop().time()
            if wait_s > 0:
                when = datetime.datetime.now().astimezone() + datetime.timedelta(seconds=wait_s)
                raise type(self._last)(
                    f"{self._last}; not tried again before {when:%H:%M:%S}", self._last.kind
                )
            self._connecting = asyncio.create_task(self._connect(), name=f"ssh to {self.where}")
        outcome = await asyncio.shield(self._connecting)
        if isinstance(outcome, AdapterError):
            raise type(outcome)(str(outcome), outcome.kind)
        return outcome

    async def _connect(self) -> SshConnection | AdapterError:
        settings = self._settings
        connection = SshConnection(self._settings.max_sessions)
        try:
            async with asyncio.timeout(settings.connect_deadline):
                connection.hops = await login(settings, self._codes, connection.lost.set)
            self._connection = connection
            self._last = UnavailableError(
                f"{self.where}: the connection was lost before a command was answered"
            )
        except TimeoutError:
            self._last = UnavailableError(
                f"{self.where}: not connected within {settings.connect_deadline:g} s"
            )
        except AdapterError as error:
            self._last = error
        finally:
            self._connecting = None
        # After a success too: only a command that is answered shows that the connection is worth
        # anything.
        pause_s = min(settings.retry_at_most, settings.retry * 2 ** min(self._failures, 30))
        self._failures += 1
        self._not_before = asyncio.get_running_loop().time() + pause_s
        return connection if self._connection is connection else self._last


class _SocketChannel(asyncssh.SSHUNIXSession[bytes]):
    """An adapter from asyncssh's channel to a protocol of asyncio. A channel offers what a transport does."""

    def __init__(self, ends: asyncio.Protocol) -> None:
        self._ends = ends
        for name in ("connection_made", "connection_lost", "pause_writing", "resume_writing"):
            setattr(self, name, getattr(ends, name))

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self._ends.data_received(data)

    def eof_received(self) -> bool:
        return bool(self._ends.eof_received())
