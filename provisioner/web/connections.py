"""Connections of the web service: limits in all and by peer, and the end of those that take no answer.

A new connection is never refused. At a limit it takes the place of the one that was silent for the
longest time, of the same peer or of the peer with most connections. So a peer with many connections
loses its own, and a request that is complete when it comes gets its answer.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import ssl
import stat
import struct
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

log = structlog.get_logger()

REQUEST_TIMEOUT_S = 30.0
"""A request has to be complete, and the next one of a connection has to come, within this time."""
HANDSHAKE_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 60.0
"""A client that has not taken what was sent to it after this time is cut off."""
SWEEP_S = 2.0
ACCEPT_RETRY_S = 0.2
BACKLOG = 512
FILES_WANTED = 8320
"""File descriptors of the process, where its hard limit allows so many."""
FILES_KEPT = 128
"""File descriptors that are not for connections: the record, its readers, the keys of issuers."""
IPV6_PREFIX = 64
"""Network that counts as one peer: a host has all of it."""


def connection_room() -> int:
    """Raise the limit of file descriptors, and return the connections that TCP and unix sockets may have each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = max(soft, FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return (min(soft, FILES_WANTED) - min(FILES_KEPT, soft // 2)) // 2


class Connection(socket.socket):
    """Accepted socket that says when it is closed."""

    def __init__(self, accepted: socket.socket, closed: Callable[[Connection], None]) -> None:
        super().__init__(fileno=accepted.detach())
        self.setblocking(False)
        self.peer = peer_key(self)
        self.opening: asyncio.Task[None] | None = None
        self.transport: asyncio.WriteTransport | None = None
        self.unread_since: float | None = None
        """Time since when the client has not taken all that was sent."""
        self._when_closed = closed

    def close(self) -> None:
        self._when_closed(self)
        super().close()

    def opened(self, _: object) -> None:
        if self.transport is None:  # it was displaced, or speaks no TLS
            self.close()

    def cut_off(self) -> None:
        """End the connection, whatever it does."""
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


def peer_key(connection: socket.socket) -> Hashable:
    """Return the peer that a connection counts for: a user of this host, or an address."""
    if connection.family == socket.AF_UNIX:
        return credentials_of(connection)[0]
    try:
        address = ipaddress.ip_address(connection.getpeername()[0].partition("%")[0])
    except OSError:  # it left at once
        return None
    if address.version == 6:
        return ipaddress.ip_network((address, IPV6_PREFIX), strict=False)
    return address


def credentials_of(connection: Any) -> tuple[int, int]:
    """Return user and group of the process at the other end of a unix socket (``SO_PEERCRED``, unix(7))."""
    credentials: bytes = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, gid = struct.unpack("3i", credentials)
    return uid, gid


class ConnectionTable:
    """Open connections by peer, the one that was silent for the longest time first.

    A peer has at most half of ``most``, so that it displaces nobody else; ``shared`` are those that
    speak for many.
    """

    def __init__(self, most: int, shared: Collection[Hashable] = ()) -> None:
        self._most = most
        self._shared = shared
        self._by_peer: defaultdict[Hashable, dict[Connection, None]] = defaultdict(dict)
        self.count = 0

    def add(self, connection: Connection) -> None:
        """Add a connection. At a limit it takes the place of another."""
        own = self._by_peer[connection.peer]
        if self.count >= self._most:
            self._displace(max(self._by_peer.values(), key=len))
        elif len(own) >= self._most // 2 and connection.peer not in self._shared:
            self._displace(own)
        self._by_peer[connection.peer][connection] = None
        self.count += 1

    def _displace(self, connections: dict[Connection, None]) -> None:
        oldest = next(iter(connections))
        self.remove(oldest)
        oldest.cut_off()

    def used(self, connection: Connection) -> None:
        """Note that a request came through a connection."""
        own = self._by_peer.get(connection.peer, {})
        if connection in own:
            own[connection] = own.pop(connection)

    def remove(self, connection: Connection) -> None:
        own = self._by_peer.get(connection.peer, {})
        if connection in own:
            del own[connection]
            self.count -= 1
        if not own:
            self._by_peer.pop(connection.peer, None)


class Connections:
    """All connections of the service."""

    def __init__(self, proxy_uids: Collection[int] = ()) -> None:
        room = connection_room()
        self._by_file: dict[int, Connection] = {}
        self._tables = {True: ConnectionTable(room, proxy_uids), False: ConnectionTable(room)}
        """By whether they are unix sockets: what comes from the network leaves those of this host their room."""

    def accept(
        self, accepted: socket.socket, server: web.Server, context: ssl.SSLContext | None
    ) -> None:
        """Speak with a client."""
        connection = Connection(accepted, self._closed)
        self._by_file[connection.fileno()] = connection
        connection.opening = asyncio.create_task(self._open(connection, server, context))
        connection.opening.add_done_callback(connection.opened)
        self._table(connection).add(connection)

    async def _open(
        self, connection: Connection, server: web.Server, context: ssl.SSLContext | None
    ) -> None:
        limit_s = HANDSHAKE_TIMEOUT_S if context else None
        with suppress(OSError):  # no TLS, or not in time
            connection.transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                server, connection, ssl=context, ssl_handshake_timeout=limit_s
            )

    def _table(self, connection: Connection) -> ConnectionTable:
        return self._tables[connection.family == socket.AF_UNIX]

    def _closed(self, connection: Connection) -> None:
        self._by_file.pop(connection.fileno(), None)
        self._table(connection).remove(connection)

    def _of(self, transport: asyncio.BaseTransport | None) -> Connection | None:
        found = transport.get_extra_info("socket") if transport else None
        return self._by_file.get(found.fileno()) if found else None

    def peer(self, transport: asyncio.BaseTransport | None) -> Hashable:
        """Return the peer that a transport counts for."""
        connection = self._of(transport)
        return connection.peer if connection else None

    def used(self, transport: asyncio.BaseTransport | None) -> None:
        """Note that a request came through a transport."""
        if connection := self._of(transport):
            self._table(connection).used(connection)

    async def run(self) -> None:
        """Cut off clients that do not take their answers, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for connection in [*self._by_file.values()]:
                self._examine(connection, time.monotonic())

    def _examine(self, connection: Connection, now: float) -> None:
        if connection.transport is None or not connection.transport.get_write_buffer_size():
            connection.unread_since = None
        elif connection.unread_since is None:
            connection.unread_since = now
        elif now - connection.unread_since > ANSWER_TIMEOUT_S:
            connection.cut_off()


class BoundedSite(web.BaseSite):
    """Listener of a :class:`aiohttp.web.AppRunner` whose connections have limits."""

    def __init__(
        self,
        runner: web.AppRunner,
        connections: Connections,
        open_sockets: Callable[[], Sequence[socket.socket]],
        context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(runner)
        assert runner.server is not None
        self._web_server = runner.server
        self._connections = connections
        self._open_sockets = open_sockets
        self._context = context
        self._accepting: list[asyncio.Task[None]] = []

    @property
    def name(self) -> str:
        return "bounded"

    async def start(self) -> None:
        """Listen. Raises ``OSError`` if that cannot be done."""
        sockets = await asyncio.to_thread(self._open_sockets)
        await super().start()
        self._accepting = [asyncio.create_task(self._accept(listener)) for listener in sockets]

    async def stop(self) -> None:
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        await super().stop()

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                try:
                    accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
                except OSError as error:
                    log.warning("service.accept_failed", why=error.strerror)
                    await asyncio.sleep(ACCEPT_RETRY_S)
                    continue
                self._connections.accept(accepted, self._web_server, self._context)
                # while connections wait, `sock_accept` leaves the others no turn
                await asyncio.sleep(0)


def tcp_sockets(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets at all addresses of a name."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made = [
        socket.create_server(address[:2], family=family, backlog=BACKLOG)
        for family, address in dict.fromkeys(
            (family, address) for family, _, _, _, address in found
        )
    ]
    for listener in made:
        listener.setblocking(False)
    return made


def unix_sockets(path: Path) -> list[socket.socket]:
    """Return a listening socket at a path, in the place of one that a killed process left."""
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return [listener]
