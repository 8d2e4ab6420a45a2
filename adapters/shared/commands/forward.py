"""A unix socket on the login node, reached over the one ssh connection: each connection to it is a channel there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import asyncssh

from adapters.shared.commands.ssh import SshRunner
from adapters.shared.printing import printable
from provisioner.interfaces import UnavailableError

Ends = TypeVar("Ends", bound=asyncio.Protocol)


class Forward:
    """Connections to the socket ``path`` of the host that ``runner`` reaches. How many at a time, the caller bounds."""

    def __init__(self, runner: SshRunner, path: str) -> None:
        self._runner, self._path = runner, path

    async def connect(self, ends: Callable[[], Ends]) -> Ends:
        """Connect to the socket, as ``loop.create_unix_connection`` does.

        The caller sets the deadline. Raises UnavailableError if there is no connection and nothing was sent, and
        AuthError as :meth:`SshRunner.run`.
        """
        connection = await self._runner.connection()
        try:
            _, session = await connection.create_unix_connection(lambda: _Channel(ends()), self._path)
        except (asyncssh.Error, OSError) as error:
            why = printable(str(error) or type(error).__name__)
            raise UnavailableError(f"{self._runner.where}: no connection to its socket {self._path}: {why}") from None
        self._runner.worked()
        return cast("_Channel[Ends]", session).ends


class _Channel(asyncssh.SSHUNIXSession[bytes], Generic[Ends]):
    """An adapter from asyncssh's channel to a protocol of asyncio. A channel offers what a transport does."""

    def __init__(self, ends: Ends) -> None:
        self.ends = ends

    def connection_made(self, chan: asyncssh.SSHUNIXChannel[bytes]) -> None:
        self.ends.connection_made(cast(asyncio.Transport, chan))

    def data_received(self, data: bytes, datatype: int | None) -> None:
        self.ends.data_received(data)

    def eof_received(self) -> bool:
        return bool(self.ends.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.connection_lost(exc)

    def pause_writing(self) -> None:
        self.ends.pause_writing()

    def resume_writing(self) -> None:
        self.ends.resume_writing()
