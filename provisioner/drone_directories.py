"""Drones as directories of a host, for sites that start drones as processes, on this host or another one.

Each drone has a directory ``ROOT/CONTROLLER/DRONE_ID``. A launcher runs the drone once, holds a
lock while it runs, and writes down how it ended, so a restarted controller sees the same. The
host's GPUs are given to one drone at a time. The host needs a POSIX shell, GNU tar, grep and
coreutils, and util-linux (``flock``, ``setsid``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol

from provisioner import drone
from provisioner.interfaces import (
    AdapterError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)
from provisioner.model import (
    WHOLE_GPU,
    DroneId,
    EndKind,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    OrderResults,
    RemoteDrone,
    RemoteEnd,
    RemoteState,
    StartOrder,
    StopOrder,
)

_DIRECTORIES = drone.script("directories.sh").decode()
_DIRECTORY_LAUNCHER = drone.script("launcher.sh")


class HostCommand(Protocol):
    """The way to run a command on the host: all that differs between sites of this kind."""

    async def __call__(self, argv: Sequence[str], stdin: bytes, *, writes: bool) -> str:
        """Return what the command prints. Raises one of the four errors of adapters if it fails.

        ``writes``: the command changes something, so without an answer its outcome is unknown.
        """


class DroneDirectories:
    """The drones of one controller on one host."""

    def __init__(self, run: HostCommand, root: str, controller: str, *, gpus: int) -> None:
        """``root``: directory on the host. ``gpus``: GPUs of the host."""
        self._run = run
        self._root = root
        self._controller = controller
        self._gpus = gpus

    async def drones(self) -> Mapping[DroneId, RemoteDrone]:
        """Return the drones that have a directory, those that ended too."""
        lines = await self._lines("list", writes=False)
        return {each.drone_id: each for each in map(_remote_drone, lines)}

    async def forget(self, drones: Mapping[DroneId, RemoteDrone], ended_before: float) -> None:
        """Remove the directories of drones that ended before a time."""
        old = [each for each in drones.values() if each.end and each.end.at <= ended_before]
        if old:
            await self._lines("forget", *(each.drone_id for each in old), writes=True)

    async def start(self, orders: Sequence[StartOrder]) -> OrderResults:
        """Start drones; an order for a drone that exists starts nothing."""
        return await asyncio.gather(*(_result(each.drone_id, self._start(each)) for each in orders))

    async def stop(self, orders: Sequence[StopOrder]) -> OrderResults:
        """Send SIGTERM, and SIGKILL after the grace period or at once; a drone that is gone needs nothing."""
        return await asyncio.gather(*(_result(each.drone_id, self._stop(each)) for each in orders))

    async def _start(self, order: StartOrder) -> None:
        gpus = order.type.gpu_milli // WHOLE_GPU
        words = (order.drone_id, order.type.name, gpus, self._gpus)
        lines = await self._lines("start", *words, stdin=_archive(order), writes=True)
        if lines == ["full"]:
            kind = FaultKind.CONFIG if gpus > self._gpus else FaultKind.CAPACITY
            raise RejectedError(f"the host has no {gpus} free GPUs", kind)

    async def _stop(self, order: StopOrder) -> None:
        await self._lines("stop", order.drone_id, int(order.kill), writes=True)

    async def _lines(
        self, verb: str, *words: object, stdin: bytes = b"", writes: bool
    ) -> list[str]:
        """Run a verb of ``directories.sh``, and return its lines. Raises one of the four errors."""
        argv = ["sh", "-c", _DIRECTORIES, "sh", self._root, self._controller, verb]
        output = await self._run([*argv, *map(str, words)], stdin, writes=writes)
        *lines, last = output.splitlines() or [""]
        if last != "end":
            lost = OutcomeUnknownError if writes else UnavailableError
            raise lost(f"the answer to `{verb}` is not complete")
        return lines


async def _result(drone_id: DroneId, call: Awaitable[None]) -> OrderResult:
    try:
        await call
    except AdapterError as error:
        unknown = isinstance(error, OutcomeUnknownError)
        outcome = OrderOutcome.UNKNOWN if unknown else OrderOutcome.REJECTED
        return OrderResult(drone_id, outcome, "", Fault(error.kind, str(error), time.time()))
    return OrderResult(drone_id, OrderOutcome.OK, drone_id)


def _archive(order: StartOrder) -> bytes:
    """Return the tar archive of a drone's directory."""
    assert order.bootstrap is not None
    env = {
        **order.bootstrap.env,
        **drone.environment(order),
        "PROVISIONER_DRONE_ID": order.drone_id,
    }
    files = {
        "launcher": _DIRECTORY_LAUNCHER,
        "script": order.bootstrap.script,
        "grace": f"{order.grace_s:g}\n".encode(),
        "env": "".join(f"{line}\n" for line in drone.exports(env)).encode(),
        **{f"work/{name}": data for name, data in order.bootstrap.files.items()},
    }
    return drone.archive(files)


def _remote_drone(line: str) -> RemoteDrone:
    drone_id, type_name, state, started_at, end_kind, ended_at, code = line.split(" ")
    end = None
    if state == "ended":
        exit_code = None if code == "-" else int(code)
        if code != "-" or end_kind == "stopped":
            end = RemoteEnd(EndKind(end_kind), float(ended_at), exit_code)
        else:
            why = "the host went down, or its launcher was killed"
            end = RemoteEnd(EndKind.FAULT, float(ended_at), None, why)
    return RemoteDrone(
        DroneId(drone_id), RemoteState(state), drone_id, type_name, float(started_at), end=end
    )
