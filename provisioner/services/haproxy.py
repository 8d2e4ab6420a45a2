"""Client of haproxy's run-time API: its servers follow those of the services, and its counters show the demand.

Nothing is remembered about haproxy's servers: each call compares what is there with what has to
be, so that a restarted haproxy is filled again. The configuration is that of
:mod:`provisioner.services.balancer_config`.
"""

from __future__ import annotations

import asyncio
import csv
import re
import socket
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple, Self

from provisioner.interfaces import UnavailableError
from provisioner.model import DroneId, ServiceView
from provisioner.services.balancer_config import PROTOCOLS
from provisioner.services.servers import BalancedServer
from provisioner.values import define, factory, frozen

DEADLINE_S = 5.0
ANSWER_LIMIT = 64 * 1024 * 1024
COMMANDS_PER_LINE = 40
"""A line of commands is limited by haproxy's buffer of 16 KiB."""
RATE_SPAN_S = 5.0
"""Time of which the rate of requests is the mean, or the time between two polls if that is longer."""
_FORCED_MAINTENANCE, _FORCED_DRAIN = 0x01, 0x08
"""Bits of ``srv_admin_state``."""


@frozen
class BalancerView:
    """Demand and load that the balancer measured."""

    services: tuple[ServiceView, ...] = ()
    """Without what the servers themselves measure."""
    in_flight: Mapping[DroneId, int] = factory(dict)
    """Requests in each server that the balancer knows."""
    notices: tuple[str, ...] = ()


class _Slot(NamedTuple):
    """Place for a server in a backend of haproxy."""

    address: str
    port: int
    state: str

    @classmethod
    def of(cls, row: Mapping[str, str]) -> Self:
        admin = int(row["srv_admin_state"])
        state = "maint" if admin & _FORCED_MAINTENANCE else "ready"
        if state == "ready" and admin & _FORCED_DRAIN:
            state = "drain"
        return cls(row["srv_addr"], int(row["srv_port"]), state)


@define
class _Counter:
    """Sum of a counter that haproxy starts again at zero."""

    last: int
    total: int = 0

    def add(self, value: int) -> int:
        """Return what was added since the call before."""
        grown = value if value < self.last else value - self.last
        self.last = value
        self.total += grown
        return grown


@define
class _Demand:
    """Requests of one service since it has been watched."""

    requests: dict[str, _Counter] = field(default_factory=dict)
    by_vo: dict[str, _Counter] = field(default_factory=dict)
    knows_vos: bool = False
    """The counters of VOs were read before: one that is new since then started at zero."""
    requested_at: float = 0.0
    requests_per_s: float = 0.0
    recent: deque[tuple[float, int]] = field(default_factory=deque)
    """Times of calls and the requests until then: the newest one that is old enough, and those since."""

    @property
    def total(self) -> int:
        return sum(each.total for each in self.requests.values())

    def measure(
        self, name: str, rows: Mapping[tuple[str, str], Mapping[str, str]], now: float
    ) -> None:
        """Add the counters of the backends."""
        for backend in _backends(name):
            row = rows[backend, "BACKEND"]
            value = int(row["stot"])
            grown = self.requests.setdefault(backend, _Counter(value)).add(value)
            if grown or int(row["scur"] or 0):
                self.requested_at = now
        self.recent.append((now, self.total))
        while len(self.recent) > 2 and self.recent[1][0] <= now - RATE_SPAN_S:
            self.recent.popleft()
        began, before = self.recent[0]
        if now > began:
            self.requests_per_s = (self.total - before) / (now - began)

    def measure_vos(self, counts: Mapping[str, int]) -> None:
        """Add the counters of the VOs."""
        for vo, value in counts.items():
            self.by_vo.setdefault(vo, _Counter(0 if self.knows_vos else value)).add(value)
        self.knows_vos = True


def _backends(name: str) -> Iterator[str]:
    for protocol in PROTOCOLS:
        yield f"{name}-{protocol}"
        yield f"{name}-{protocol}-refused"


class Haproxy:
    """One haproxy, by the socket of its run-time API."""

    def __init__(self, path: Path, services: Mapping[str, bool]) -> None:
        """``services``: by name, whether the service has tokens."""
        self._path = path
        self._services = services
        self._demand = {name: _Demand() for name in services}

    async def sync(self, servers: Sequence[BalancedServer], now: float) -> BalancerView:
        """Let haproxy serve by these servers alone, and return what it measured.

        ``now``: seconds since the epoch. Raises UnavailableError where haproxy does not answer.
        """
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._sync(servers, now)
        except (OSError, TimeoutError, KeyError, ValueError) as error:
            raise UnavailableError(
                f"haproxy does not answer at {self._path}: {str(error) or 'time-out'}"
            ) from error

    async def _sync(self, servers: Sequence[BalancedServer], now: float) -> BalancerView:
        addresses, notices = await _resolved(servers)
        slots = await self._slots()
        taken: dict[tuple[str, str], BalancedServer] = {}
        commands: list[str] = []
        for name in self._services:
            wanted = {
                (addresses[each.host], each.http_port): each
                for each in servers
                if each.service == name and each.host in addresses
            }
            placed = _placed(slots.get(f"{name}-http", {}), wanted)
            taken |= {(name, slot): each for slot, each in placed.items()}
            if missing := len(wanted) - len(placed):
                notices.append(
                    f"haproxy has no place for {missing} servers of {name}: install the output of `render balancer`"
                )
            for protocol in PROTOCOLS:
                backend = f"{name}-{protocol}"
                for slot, found in slots.get(backend, {}).items():
                    server = placed.get(slot)
                    address = addresses[server.host] if server else ""
                    commands += _commands(f"{backend}/{slot}", found, server, address, protocol)
        for start in range(0, len(commands), COMMANDS_PER_LINE):
            line = ";".join(commands[start : start + COMMANDS_PER_LINE])
            answer = (await self._ask(line)).strip()
            if "denied" in answer:
                raise OSError(f"{answer}: its socket needs `level admin`")
        return await self._measured(taken, notices, now)

    async def _slots(self) -> Mapping[str, dict[str, _Slot]]:
        """Return the places of all backends by backend and name."""
        found: dict[str, dict[str, _Slot]] = {}
        lines = (await self._ask("show servers state")).splitlines()
        header = next(line for line in lines if line.startswith("# ")).removeprefix("# ").split()
        for line in lines:
            row = dict(zip(header, line.split(), strict=False))
            if len(row) == len(header) and not line.startswith("#"):
                found.setdefault(row["be_name"], {})[row["srv_name"]] = _Slot.of(row)
        return found

    async def _measured(
        self, taken: Mapping[tuple[str, str], BalancedServer], notices: list[str], now: float
    ) -> BalancerView:
        table = csv.DictReader((await self._ask("show stat")).removeprefix("# ").splitlines())
        rows = {(row["pxname"], row["svname"]): row for row in table}
        views = []
        for name, has_tokens in self._services.items():
            if any((backend, "BACKEND") not in rows for backend in _backends(name)):
                notices.append(
                    f"haproxy does not know service {name}: install the output of `render balancer`"
                )
                continue
            demand = self._demand[name]
            demand.measure(name, rows, now)
            if has_tokens:
                counted = await self._ask(f"show table {name}-vos")
                demand.measure_vos(
                    {vo: int(n) for vo, n in re.findall(r"key=(\S+) .*http_req_cnt=(\d+)", counted)}
                )
            views.append(_service_view(name, demand, rows))
        in_flight = {
            server.id: sum(
                int(rows[f"{name}-{protocol}", slot]["scur"] or 0) for protocol in PROTOCOLS
            )
            for (name, slot), server in taken.items()
        }
        return BalancerView(tuple(views), in_flight, tuple(notices))

    async def _ask(self, commands: str) -> str:
        """Return the answer to a line of commands. haproxy closes the connection after it."""
        reader, writer = await asyncio.open_unix_connection(self._path)
        try:
            writer.write(f"{commands}\n".encode())
            await writer.drain()
            answer = bytearray()
            while read := await reader.read(1 << 16):
                answer += read
                if len(answer) > ANSWER_LIMIT:
                    raise ValueError(f"its answer is longer than {ANSWER_LIMIT} bytes")
            return answer.decode(errors="replace")
        finally:
            writer.close()


async def _resolved(servers: Sequence[BalancedServer]) -> tuple[dict[str, str], list[str]]:
    """Return the addresses of all hosts, and a notice for each that has none: haproxy takes no names at run time."""
    loop = asyncio.get_running_loop()
    found: dict[str, str] = {}
    notices = []
    for host in {each.host for each in servers}:
        try:
            found[host] = str(ip_address(host))
            continue
        except ValueError:
            pass
        try:
            answers = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            # servers listen on IPv4 where they are not told otherwise
            first = min(answers, key=lambda answer: answer[0] is not socket.AF_INET)
            found[host] = str(first[4][0])
        except OSError as error:
            notices.append(f"servers on {host} get no requests: {error.strerror}")
    return found, notices


def _placed(
    slots: Mapping[str, _Slot], wanted: Mapping[tuple[str, int], BalancedServer]
) -> Mapping[str, BalancedServer]:
    """Return which server has which slot: the one that it has already, or else a free one."""
    left = dict(wanted)
    placed = {}
    for name, slot in slots.items():
        if (server := left.pop((slot.address, slot.port), None)) is not None:
            placed[name] = server
    others = [name for name in slots if name not in placed]
    # a place that was left earlier has fewer requests of its old server
    others.sort(key=lambda name: slots[name].state != "maint")
    return placed | dict(zip(others, left.values(), strict=False))


def _commands(
    path: str, slot: _Slot, server: BalancedServer | None, address: str, protocol: str
) -> Iterator[str]:
    """Yield what makes a slot serve by a server, or by none."""
    if server is None:
        if slot.state != "maint":
            yield f"set server {path} state maint"
        return
    state = "drain" if server.draining else "ready"
    port = server.port(protocol)
    if (slot.address, slot.port) != (address, port):
        yield f"set server {path} state maint"
        yield f"set server {path} addr {address} port {port}"
        yield f"set server {path} state {state}"
    elif slot.state != state:
        yield f"set server {path} state {state}"


def _service_view(
    name: str, demand: _Demand, rows: Mapping[tuple[str, str], Mapping[str, str]]
) -> ServiceView:
    serving = [rows[f"{name}-{protocol}", "BACKEND"] for protocol in PROTOCOLS]
    queued = sum(int(row["qcur"] or 0) for row in serving)
    return ServiceView(
        name=name,
        requests=demand.total,
        refused=sum(
            each.total for key, each in demand.requests.items() if key.endswith("-refused")
        ),
        requested_at=demand.requested_at,
        requests_per_s=demand.requests_per_s,
        in_flight=max(0, sum(int(row["scur"] or 0) for row in serving) - queued),
        queued=queued,
        by_vo={vo: each.total for vo, each in demand.by_vo.items()},
    )
