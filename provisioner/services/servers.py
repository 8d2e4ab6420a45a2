"""Servers of inference services: their addresses, whether they are ready, and what Triton's metrics say.

A server is a program of others, and another one may answer at its address: whatever it sends is
limited in time and size, and only numbers are taken from it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from provisioner.keys import serial_of
from provisioner.model import Drone, DroneId, DroneState, InferenceServer
from provisioner.values import factory, frozen

if TYPE_CHECKING:
    import aiohttp

PORTS_PER_SERVER = 3
LOOPBACK = "127.0.0.1"
"""Host of a server whose site names no node: the site is this host."""
PROBE_DEADLINE_S = 2.0
MAX_METRICS_BYTES = 1 << 20
MAX_COUNT = float(1 << 53)
_SAMPLE = re.compile(r"^nv_inference_(\w{1,64})\{([^}\n]{1,4096})\} (\S{1,32})$", re.MULTILINE)
_LABEL = re.compile(r'\b(\w{1,64})="([^"]{0,1024})"')
_COUNTERS = {
    "request_success": "requests",
    "exec_count": "executions",
    "compute_infer_duration_us": "compute_us",
    "queue_duration_us": "queue_us",
    "pending_request_count": "pending",
}
"""Metrics of Triton, without their prefix, and the fields of :class:`ModelCounters`.

Durations are summed over requests, each with that of the whole execution that it was a part of.
"""


@frozen
class BalancedServer:
    """The server in one drone, as the balancer needs to know it."""

    id: DroneId
    service: str
    host: str
    """Name or address."""
    http_port: int
    grpc_port: int
    metrics_port: int = 0
    draining: bool = False
    """It gets no new requests."""

    def port(self, protocol: str) -> int:
        """Return its port for a protocol."""
        return self.http_port if protocol == "http" else self.grpc_port


def server_of(drone: Drone, server: InferenceServer) -> BalancedServer:
    """Return the server of a drone at its address. The drone computes the same ports by itself."""
    host = drone.node or LOOPBACK
    ports = server_ports(drone.id, server)
    return BalancedServer(drone.id, server.service, host, *ports, draining=drone.is_leaving)


def server_ports(drone_id: DroneId, server: InferenceServer) -> tuple[int, int, int]:
    """Return the ports for HTTP, gRPC and metrics of a drone's server."""
    turn = (serial_of(drone_id) or 0) % (server.ports // PORTS_PER_SERVER)
    first = server.first_port + PORTS_PER_SERVER * turn
    return first, first + 1, first + 2


def may_serve(drone: Drone) -> bool:
    """Return True if the server of a drone may run, as far as its record says."""
    return bool(drone.service and drone.started_at) and drone.state is not DroneState.STOPPING


@frozen
class ModelCounters:
    """Counters of one model in one server, since its start."""

    requests: float = 0.0
    executions: float = 0.0
    compute_us: float = 0.0
    queue_us: float = 0.0
    pending: float = 0.0
    """Requests that wait in the server now."""

    def since(self, before: ModelCounters) -> ModelCounters:
        """Return what was counted since ``before``; all of it if the server has started again."""
        if self.requests < before.requests or self.executions < before.executions:
            return self
        return ModelCounters(
            self.requests - before.requests,
            self.executions - before.executions,
            max(0.0, self.compute_us - before.compute_us),
            max(0.0, self.queue_us - before.queue_us),
            self.pending,
        )

    @property
    def busy_s(self) -> float:
        """Time in which the server worked on the requests: executions times their mean duration."""
        if not self.requests:
            return 0.0
        return self.compute_us / 1e6 / self.requests * self.executions


@frozen
class ServerHealth:
    """Answer of one server."""

    ready: bool
    why: str = ""
    """Reason why it is not ready."""
    is_silent: bool = False
    """It did not answer in time."""
    models: Mapping[str, ModelCounters] = factory(dict)
    """By model, of those that it is configured with."""


def parse_metrics(text: str, models: Iterable[str]) -> Mapping[str, ModelCounters]:
    """Return the counters of ``models`` (``name:version``) in metrics of Triton; other lines are passed over."""
    found: dict[str, dict[str, float]] = {model: {} for model in models}
    for metric, labels, number in _SAMPLE.findall(text):
        field = _COUNTERS.get(metric)
        named = dict(_LABEL.findall(labels))
        of_model = found.get(f"{named.get('model', '')}:{named.get('version', '')}")
        if field is None or of_model is None:
            continue
        try:
            value = float(number)
        except ValueError:
            continue
        if 0 <= value <= MAX_COUNT:  # NaN is not
            of_model[field] = min(MAX_COUNT, of_model.get(field, 0.0) + value)
    return {model: ModelCounters(**counts) for model, counts in found.items()}


async def probe(
    session: aiohttp.ClientSession, address: BalancedServer, server: InferenceServer
) -> ServerHealth:
    """Return whether a server is ready, with its metrics if it has some. Never raises."""
    try:
        async with asyncio.timeout(PROBE_DEADLINE_S):
            status, _ = await _get(session, address.host, address.http_port, server.ready, 0)
    except Exception as error:  # whatever another program may answer
        return ServerHealth(False, _why(error), isinstance(error, TimeoutError))
    if status != 200:
        return ServerHealth(False, f"answers {status} at {server.ready}")
    try:
        async with asyncio.timeout(PROBE_DEADLINE_S):
            status, body = await _get(
                session, address.host, address.metrics_port, server.metrics, MAX_METRICS_BYTES
            )
        text = body.decode("ascii", errors="replace") if status == 200 else ""
    except Exception:  # a server need not have metrics
        text = ""
    return ServerHealth(True, models=parse_metrics(text, server.models))


async def _get(
    session: aiohttp.ClientSession, host: str, port: int, path: str, largest: int
) -> tuple[int, bytes]:
    """Return the status of an answer and up to ``largest`` bytes of it. ValueError for a host that is none."""
    from yarl import URL

    url = URL.build(scheme="http", host=host, port=port, path=path)
    async with session.get(url, allow_redirects=False) as response:
        body = bytearray()
        while len(body) < largest and (piece := await response.content.read(largest - len(body))):
            body += piece
        return response.status, bytes(body)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {PROBE_DEADLINE_S:g} s"
    refused = getattr(error, "os_error", None)
    return str(getattr(refused, "strerror", None) or type(error).__name__)
