"""The ``local`` site: drones are process groups on this host that outlive the controller.

Its state is in the drones' directories and in ``/proc``, so another instance, after any crash, sees the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, TypedDict, TypeVar

from adapters.local.config import LocalSiteConfig
from adapters.local.drones import (
    DroneDirectory,
    DroneFacts,
    DronePhase,
    DroneRecord,
    LocalDroneRegistry,
    RegisteredDrone,
    TaggedProcesses,
    claim,
    clean_up,
    holds,
    is_drone_id,
    prepare,
)
from adapters.local.processes import TAG, Process, kill_tagged
from adapters.local.resources import (
    FreeHostResources,
    HostAllocation,
    LocalGpu,
    LocalHost,
    ResourceShortage,
    disk_mib,
    survey,
)
from provisioner import drone
from provisioner.interfaces import AuditFinding, UnavailableError
from provisioner.model import (
    Bootstrap,
    DroneId,
    DroneType,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    RemoteDrone,
    RemoteState,
    SitePolicy,
    SiteView,
    StartOrder,
    StopOrder,
)

_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
"""Variables that a drone inherits. The controller's environment may hold secrets, so there are no others."""
_LAUNCHER = Path(__file__).with_name("launcher.sh")
_LOCK_WAIT_S = 10.0
_LAUNCH_WAIT_S = 5.0
_ROOT_MODE = 0o711 if os.geteuid() == 0 else 0o700
"""For launchers to report; a drone of which nothing is heard by then is one we are unsure of."""
_PURGE_BUDGET_S = 1.0
T = TypeVar("T")


class _Shortages(TypedDict):
    lacks: dict[str, str]
    unfit: dict[str, str]


def _shortages(host: LocalHost, room: FreeHostResources, types: Sequence[DroneType]) -> _Shortages:
    """Return what each type lacks of which none could start: of this host, or of what is free on it."""
    found = _Shortages(lacks={}, unfit={})
    for kind in types:
        if isinstance(never := FreeHostResources.of(host).find(kind), ResourceShortage):
            found["unfit"][kind.name] = never.compared("of this host")
        elif isinstance(now := room.find(kind), ResourceShortage):
            found["lacks"][kind.name] = now.compared("free on this host")
    return found


class LocalSite:
    """Drones as processes of this host. Blocking work is done in threads, one at a time."""

    Config = LocalSiteConfig
    on_this_host = True

    def __init__(self, name: str, config: LocalSiteConfig, types: Sequence[DroneType], controller: str) -> None:
        self._name = name
        self._config = config
        self._types = tuple(types)
        self._controller = controller
        self._root = config.root.absolute()
        self._turn = threading.Lock()
        self._drones = LocalDroneRegistry(self._root)
        self._host: LocalHost | None = None

    async def __aenter__(self) -> Self:
        """Make the root if possible; if not, the first poll tells why."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._root.mkdir, mode=_ROOT_MODE, parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Do nothing: drones live on."""

    async def poll(self) -> SiteView:
        """List the drones of this controller; ended ones for ``retain_finished``. Raises :class:`UnavailableError`."""
        return await self._in_thread(lambda given_up: self._look())

    async def audit(self, policy: SitePolicy) -> Sequence[AuditFinding]:
        """Return whether drones could not be started for want of a directory that can be written."""

        def try_to_write() -> Sequence[AuditFinding]:
            try:
                with tempfile.TemporaryFile(dir=self._root):
                    return []
            except OSError as error:
                message = f"{self._root} cannot be written: {error.strerror}. Make it writable for this user"
                return [AuditFinding("", "directory", message)]

        return await asyncio.to_thread(try_to_write)

    async def start(self, orders: Sequence[StartOrder]) -> Sequence[OrderResult]:
        """Start drones. If it is cancelled it stops before the next drone; the next poll lists what it began."""
        return await self._in_thread(lambda given_up: self._start_all(tuple(orders), given_up))

    async def stop(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        """End drones. The launcher applies notice and grace."""
        return await self._in_thread(lambda given_up: self._stop_all(tuple(orders)))

    async def _in_thread(self, work: Callable[[threading.Event], T]) -> T:
        given_up = threading.Event()
        try:
            return await asyncio.to_thread(self._one_at_a_time, work, given_up)
        finally:
            given_up.set()

    def _one_at_a_time(self, work: Callable[[threading.Event], T], given_up: threading.Event) -> T:
        if not self._turn.acquire(timeout=_LOCK_WAIT_S):
            raise UnavailableError(f"an earlier call still works on {self._root}")
        try:
            return work(given_up)
        except OSError as error:
            raise UnavailableError(f"{self._root}: {error.strerror or error}", FaultKind.NODE) from error
        finally:
            self._turn.release()

    # ------------------------------------------------------------------------------------------------- looking

    def _look(self) -> SiteView:
        host, tags = self._surveyed(), TaggedProcesses()
        notices = list(host.notices)
        drones: dict[DroneId, RemoteDrone] = {}
        held: list[HostAllocation] = []
        over: list[RegisteredDrone] = []
        for seen in self._drones.list_all(notices):
            if not self._owns(seen.known.record):
                if holds(seen, tags):
                    held.append(seen.known.record.allocation)
                continue
            drone = self._drones.settle(seen, tags)
            drones[drone.drone_id] = drone
            if drone.end is not None:
                over.append(seen)
                continue
            seen.directory.shorten_log(self._config.log_limit << 20)
            if drone.state is not RemoteState.PENDING:  # what waits has its room promised by the planner
                held.append(seen.known.record.allocation)
        room = FreeHostResources.of(host, held)
        view = SiteView(
            site=self._name,
            taken_at=time.time(),
            drones=drones,
            free={kind.name: room.count(kind) for kind in self._types},
            notices=tuple(notices),
            **_shortages(host, room, self._types),
        )
        self._purge(over)
        return view

    def _owns(self, record: DroneRecord) -> bool:
        return record.controller == self._controller and record.site == self._name

    def _surveyed(self) -> LocalHost:
        """Return this host. Its GPUs are detected once, as that takes seconds; the size of its disk may change."""
        if self._host is None:
            self._host = survey(self._config)
        elif self._config.disk is None:
            self._host = replace(self._host, disk_mib=disk_mib(self._config.root))
        return self._host

    def _purge(self, over: Sequence[RegisteredDrone]) -> None:
        """Remove directories of drones that ended long ago: as many as the time allows, the rest at the next poll."""
        began, now = time.monotonic(), time.time()
        clean_up(self._root, self._drones.boot)
        for seen in over:
            if time.monotonic() - began > _PURGE_BUDGET_S:
                return
            if seen.known.end is not None and now - seen.known.end.at > self._config.retain_finished:
                with contextlib.suppress(OSError):  # tried again at the next look
                    seen.directory.remove()

    # ------------------------------------------------------------------------------------------------ starting

    def _start_all(self, orders: Sequence[StartOrder], given_up: threading.Event) -> Sequence[OrderResult]:
        host = self._surveyed()
        begun: list[OrderResult | DroneDirectory] = []
        with self._allocation_lock():
            # Unlike a poll this settles nothing, so doubt counts as taken.
            held = [
                seen.known.record.allocation for seen in self._drones.list_all([]) if seen.life is not DronePhase.ENDED
            ]
            room = FreeHostResources.of(host, held)
            for order in orders:
                if given_up.is_set():
                    break
                begun.append(self._begin(order, host, room))
        return self._await_launchers(begun, orders, given_up)

    @contextlib.contextmanager
    def _allocation_lock(self) -> Iterator[None]:
        """Let one controller at a time allocate the host; the lock ends with the process that holds it."""
        with open(self._root / ".lock", "a") as lock:
            give_up_at = time.monotonic() + _LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > give_up_at:
                        raise UnavailableError(f"{self._root}: another controller holds its lock") from None
                    time.sleep(0.01)
            yield

    def _begin(self, order: StartOrder, host: LocalHost, room: FreeHostResources) -> OrderResult | DroneDirectory:
        """Claim the order's directory and launch it, or return a rejection."""
        target = DroneDirectory(self._root / order.drone_id)
        if not is_drone_id(order.drone_id) or not order.drone_id.startswith(f"{self._controller}-"):
            return _rejected(order.drone_id, FaultKind.CONFIG, "not a drone id of this controller")
        if order.bootstrap is None:
            return _rejected(order.drone_id, FaultKind.CONFIG, "the order has no bootstrap: nothing to run")
        if order.type.gpu_milli < 0:
            return _rejected(order.drone_id, FaultKind.CONFIG, f"{order.type.key} asks for negative GPUs")
        if isinstance(never := FreeHostResources.of(host).find(order.type), ResourceShortage):
            return _rejected(order.drone_id, FaultKind.CONFIG, f"this host can never hold {order.type.key}: {never}")
        try:
            if not target.path.is_dir():
                found = room.find(order.type)
                if isinstance(found, ResourceShortage):
                    return _rejected(order.drone_id, FaultKind.CAPACITY, f"no room now: {found}")
                if self._claim(order, target, found):
                    room.take(found)
            return self._launch(order, target)
        except ValueError as error:  # a bad file name, or a foreign directory with that name
            return _rejected(order.drone_id, FaultKind.CONFIG, str(error))
        except (OSError, subprocess.SubprocessError) as error:
            return self._undone(order, target, error)

    def _claim(self, order: StartOrder, target: DroneDirectory, allocation: HostAllocation) -> bool:
        assert order.bootstrap is not None
        starter = Process.own()
        record = DroneRecord(self._controller, self._name, order.type.name, order.grace_s, str(starter), allocation)
        return claim(prepare(self._root, starter, order.bootstrap), target, record)

    def _launch(self, order: StartOrder, target: DroneDirectory) -> OrderResult | DroneDirectory:
        """Run a launcher where none has been; of several launchers one wins."""
        assert order.bootstrap is not None
        record = target.record()
        if not self._owns(record):
            return _rejected(order.drone_id, FaultKind.CONFIG, f"the id belongs to controller {record.controller}")
        if target.launcher() is not None:
            return target
        argv = ["setsid", "--fork", "/bin/sh", str(_LAUNCHER), str(target.path), f"{record.grace_s:g}"]
        if self._config.nice:
            argv = ["nice", "-n", str(self._config.nice), *argv]
        gpus = self._host.gpus if self._host else ()
        environment = _drone_environment(order, order.bootstrap, record.allocation, target.own, self._config, gpus)
        with open(target.log, "ab", opener=_private) as log:
            # The launcher is reparented at once, so it survives the controller.
            subprocess.run(
                argv,
                cwd=target.path,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=_LAUNCH_WAIT_S,
                check=True,
            )
        return target

    def _undone(self, order: StartOrder, target: DroneDirectory, error: Exception) -> OrderResult:
        """Return a rejection where it is certain that nothing runs, else an unknown outcome."""
        kind, what = FaultKind.NODE, str(error)
        if isinstance(error, OSError):
            kind = FaultKind.DENIED if error.errno in (errno.EACCES, errno.EPERM) else FaultKind.NODE
            what = f"{error.filename or target.path}: {error.strerror or error}"
        try:
            if not target.path.is_dir():
                return _rejected(order.drone_id, kind, what)
            if target.abandon(self._drones.boot):
                shutil.rmtree(target.path, ignore_errors=True)
                return _rejected(order.drone_id, kind, what)
        except OSError:
            pass  # the disk fails again: the next poll resolves it
        return OrderResult(order.drone_id, OrderOutcome.UNKNOWN, "", Fault(kind, what, time.time()))

    def _await_launchers(
        self, begun: Sequence[OrderResult | DroneDirectory], orders: Sequence[StartOrder], given_up: threading.Event
    ) -> list[OrderResult]:
        give_up_at = time.monotonic() + _LAUNCH_WAIT_S
        receipts = []
        for one, order in zip(begun, orders, strict=False):
            if isinstance(one, DroneDirectory):
                while (launcher := one.launcher()) is None and time.monotonic() < give_up_at and not given_up.is_set():
                    time.sleep(0.002)
                if launcher is None:
                    fault = Fault(FaultKind.NODE, "its launcher has not reported", time.time())
                    one = OrderResult(order.drone_id, OrderOutcome.UNKNOWN, "", fault)
                else:
                    one = OrderResult(order.drone_id, OrderOutcome.OK, str(launcher[0].pid or ""))
            receipts.append(one)
        return receipts

    # ------------------------------------------------------------------------------------------------ stopping

    def _stop_all(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        with os.scandir(self._root):  # without it nothing is known to be gone
            pass
        return [self._stop(order) for order in orders]

    def _stop(self, order: StopOrder) -> OrderResult:
        directory = DroneDirectory(self._root / order.drone_id)
        if not is_drone_id(order.drone_id) or not directory.path.is_dir():
            return OrderResult(order.drone_id, OrderOutcome.OK)
        try:
            known = DroneFacts(directory.record())
            if not self._owns(known.record):
                return _rejected(order.drone_id, FaultKind.CONFIG, f"it belongs to {known.record.controller}")
            life = self._drones.phase(directory, known)
            if life is DronePhase.ENDED:
                return OrderResult(order.drone_id, OrderOutcome.OK, known.remote_id)
            with contextlib.suppress(OSError):  # only the word for its end depends on it
                directory.ask_to_stop()
            return self._end(directory, known, order.kill)
        except FileNotFoundError:
            return OrderResult(order.drone_id, OrderOutcome.OK)  # removed meanwhile
        except (OSError, ValueError) as error:
            return OrderResult(order.drone_id, OrderOutcome.UNKNOWN, "", Fault(FaultKind.NODE, str(error), time.time()))

    def _end(self, directory: DroneDirectory, known: DroneFacts, kill: bool) -> OrderResult:
        if known.launcher is None and directory.abandon(self._drones.boot):
            self._drones.finish(directory, known, "stopped before it was launched")
            return OrderResult(DroneId(directory.drone_id), OrderOutcome.OK)
        if (launcher := directory.launcher()) is not None:
            known.launcher = launcher[0]
        done = OrderResult(DroneId(directory.drone_id), OrderOutcome.OK, known.remote_id)
        if not kill and known.launcher is not None and known.launcher.signal(signal.SIGTERM, self._drones.boot):
            return done
        if directory.end() is not None:
            return done
        if not kill_tagged(directory.drone_id):
            fault = Fault(FaultKind.NODE, "some of its processes cannot be killed", time.time())
            return OrderResult(DroneId(directory.drone_id), OrderOutcome.UNKNOWN, known.remote_id, fault)
        self._drones.finish(directory, known, "its launcher vanished")
        return done


def _rejected(drone_id: DroneId, kind: FaultKind, message: str) -> OrderResult:
    return OrderResult(drone_id, OrderOutcome.REJECTED, "", Fault(kind, message, time.time()))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _drone_environment(
    order: StartOrder,
    bootstrap: Bootstrap,
    allocation: HostAllocation,
    directory: Path,
    config: LocalSiteConfig,
    gpus: Sequence[LocalGpu],
) -> dict[str, str]:
    inherited = {name: value for name in _INHERITED if (value := os.environ.get(name)) is not None}
    contract = {
        **drone.environment(order),
        TAG: order.drone_id,
        "DRONE_DIR": str(directory),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order in which nvidia-smi numbers devices
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, sorted(allocation.gpus))),
    }
    pretended = [gpu.simulate for gpu in gpus if gpu.index in allocation.gpus and gpu.simulate is not None]
    if pretended:
        # As many as this host has: of those the discovery takes the ones in CUDA_VISIBLE_DEVICES.
        contract["DRONE_GPU_SIMULATE"] = f"{pretended[0]},{len(gpus)}"
    return {"PATH": os.defpath, **inherited, **config.env, **bootstrap.env, **contract}
