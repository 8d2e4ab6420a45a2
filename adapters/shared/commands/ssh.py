"""Commands on a login node: one ssh connection that all share, made again when it is lost, never in a storm."""

from __future__ import annotations

import asyncio
import datetime
import shlex
from collections.abc import Sequence
from typing import Self

import asyncssh

from adapters.shared.commands.runner import (
    LARGEST_ANSWER,
    Finished,
    NoReplyError,
    checked,
    judged,
    no_time,
    too_much,
)
from adapters.shared.commands.settings import SshSettings
from adapters.shared.commands.ssh_link import Link, Session
from adapters.shared.commands.ssh_login import login
from adapters.shared.commands.totp import Codes
from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError, UnavailableError

asyncssh.set_log_level("WARNING")  # it tells of every command, and what matters is in our errors


class SshRunner:
    """Runs commands as ``settings.user`` on ``settings.host``; connects at the first one.

    A server that cannot be reached is left alone for longer and longer, and meanwhile commands fail at once.
    """

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._where = f"{settings.user}@{settings.host}:{settings.port}"
        self._codes = Codes()
        self._link: Link | None = None
        self._connecting: asyncio.Task[Link | AdapterError] | None = None
        self._failures, self._not_before = 0, 0.0
        self._last: AdapterError = UnavailableError(self._where)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
            self._connecting = None
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", deadline_s: float) -> Finished:
        name, line = checked(argv)[0], shlex.join(argv)
        if self._settings.forced_command == "stdin":
            if "\n" in line:
                raise ValueError("an argument holds a line break, and the command has to go as one line")
            # exec: or a shell on the other side reads on, and takes the tool's input for commands
            stdin = f"exec {line}\n".encode() + stdin
        session = Session()
        try:
            async with asyncio.timeout(deadline_s):
                pause_s = 0.05
                while not await self._begun(line, session):
                    await asyncio.sleep(pause_s)
                    session, pause_s = Session(), min(1.0, 2 * pause_s)
                session.feed(stdin)
                await session.over.wait()
        except TimeoutError:
            if session.opened:
                raise no_time(self._where, name, deadline_s) from None
            raise UnavailableError(f"{self._where}: `{name}` had no turn within {deadline_s:g} s") from None
        finally:
            session.leave()
        return self._outcome(name, session)

    @property
    def where(self) -> str:
        return self._where

    async def connection(self) -> asyncssh.SSHClientConnection:
        """Return the connection itself, for uses other than commands.

        The caller sets the deadline, and reports with ``worked`` that the connection was of use. Raises
        UnavailableError or AuthError, as ``run``.
        """
        return (await self._linked()).hops[-1]

    def worked(self) -> None:
        """Record that the connection worked: when it is lost, the next attempt comes without a pause."""
        self._failures, self._not_before = 0, 0.0

    async def _begun(self, line: str, session: Session) -> bool:
        """Return whether the command was sent; if not, it may be tried again."""
        link = await self._linked()
        try:
            return await link.begin(line, session)
        except (asyncssh.Error, OSError) as error:
            if link.lost and session.opened:
                raise NoReplyError(f"{self._where}: the connection was lost as a command began") from None
            if link.lost:
                return False
            raise UnavailableError(f"{self._where}: it runs no commands for us: {printable(str(error))}") from None

    def _outcome(self, name: str, session: Session) -> Finished:
        if len(session.out) + len(session.err) > LARGEST_ANSWER:
            raise too_much(self._where, name)
        if session.code is None and not session.signal:
            raise NoReplyError(f"{self._where}: the connection was lost while `{name}` ran")
        self.worked()
        if session.code is None:
            raise NoReplyError(f"{self._where}: `{name}` was ended by signal {printable(session.signal, 20)}")
        return judged(self._where, name, session.code, bytes(session.out), bytes(session.err))

    async def _linked(self) -> Link:
        """Return the connection, made if there is none. All callers wait for one attempt."""
        if self._link is not None and not self._link.lost:
            return self._link
        if self._connecting is None:
            wait_s = self._not_before - asyncio.get_running_loop().time()
            if wait_s > 0:
                when = datetime.datetime.now().astimezone() + datetime.timedelta(seconds=wait_s)
                raise type(self._last)(f"{self._last}; not tried again before {when:%H:%M:%S}", self._last.kind)
            self._connecting = asyncio.create_task(self._attempt(), name=f"ssh to {self._where}")
        outcome = await asyncio.shield(self._connecting)
        if isinstance(outcome, AdapterError):
            raise type(outcome)(str(outcome), outcome.kind)
        return outcome

    async def _attempt(self) -> Link | AdapterError:
        settings, link = self._settings, Link(self._settings.max_sessions)
        try:
            async with asyncio.timeout(settings.connect_deadline):
                link.hops = await login(settings, self._codes, link.end)
            self._link = link
            self._last = UnavailableError(f"{self._where}: the connection was lost before a command was answered")
        except TimeoutError:
            self._last = UnavailableError(f"{self._where}: not connected within {settings.connect_deadline:g} s")
        except AdapterError as error:
            self._last = error
        finally:
            self._connecting = None
        # After a success too: only a command that is answered shows that the connection is worth anything.
        pause_s = min(settings.retry_at_most, settings.retry * 2 ** min(self._failures, 30))
        self._failures += 1
        self._not_before = asyncio.get_running_loop().time() + pause_s
        return self._link if self._link is link else self._last
