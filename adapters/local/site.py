"""The ``local`` site: drones are process groups on this host that outlive the controller.

What is true is in the drones' directories and in ``/proc``, so another instance, after any crash, sees the same.
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

from adapters.local import config as options
from adapters.local.allotment import Allotment, NoRoom, Room
from adapters.local.directory import (
    DroneDirectory,
    Record,
    claim,
    is_drone_id,
    prepare,
    sweep,
)
from adapters.local.environment import drone_environment
from adapters.local.host import Host, disk_mib, survey
from adapters.local.processes import Process, kill_tagged
from adapters.local.roll import Known, Life, Roll, Seen, Tags, holds
from provisioner.interfaces import AuditFinding, UnavailableError
from provisioner.model import (
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


def _shortages(host: Host, room: Room, types: Sequence[DroneType]) -> _Shortages:
    """Return what each type lacks of which none could start: of this host, or of what is free on it."""
    found = _Shortages(lacks={}, unfit={})
    for kind in types:
        if isinstance(never := Room.of(host).find(kind), NoRoom):
            found["unfit"][kind.name] = never.compared("of this host")
        elif isinstance(now := room.find(kind), NoRoom):
            found["lacks"][kind.name] = now.compared("free on this host")
    return found


class LocalSite:
    """Drones as processes of this host. Blocking work is done in threads, one at a time."""

    Config = options.Config
    on_this_host = True

    def __init__(self, name: str, config: options.Config, types: Sequence[DroneType], controller: str) -> None:
        self._name = name
        self._config = config
        self._types = tuple(types)
        self._controller = controller
        self._root = config.root.absolute()
        self._turn = threading.Lock()
        self._roll = Roll(self._root)
        self._host: Host | None = None

    async def __aenter__(self) -> Self:
        """Makes the root if it can; if not, the first look says why."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._root.mkdir, mode=_ROOT_MODE, parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing is held: drones live on."""

    async def poll(self) -> SiteView:
        """Everything of ours, ended drones for ``retain_finished``. Raises :class:`UnavailableError`."""
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
        """Cancelled in the middle it stops before the next drone; what it began is in the next listing."""
        return await self._in_thread(lambda given_up: self._start_all(tuple(orders), given_up))

    async def stop(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        """The launcher sees to notice and grace, so neither needs us."""
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
        host, tags = self._surveyed(), Tags()
        notices = list(host.notices)
        drones: dict[DroneId, RemoteDrone] = {}
        held: list[Allotment] = []
        over: list[Seen] = []
        for seen in self._roll.call(notices):
            if not self._owns(seen.known.record):
                if holds(seen, tags):
                    held.append(seen.known.record.allotment)
                continue
            drone = self._roll.settle(seen, tags)
            drones[drone.drone_id] = drone
            if drone.end is not None:
                over.append(seen)
                continue
            seen.directory.shorten_log(self._config.log_limit << 20)
            if drone.state is not RemoteState.PENDING:  # what waits has its room promised by the planner
                held.append(seen.known.record.allotment)
        room = Room.of(host, held)
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

    def _owns(self, record: Record) -> bool:
        return record.controller == self._controller and record.site == self._name

    def _surveyed(self) -> Host:
        """Return this host. Its GPUs are looked up once, as that takes seconds; the size of its disk may change."""
        if self._host is None:
            self._host = survey(self._config)
        elif self._config.disk is None:
            self._host = replace(self._host, disk_mib=disk_mib(self._config.root))
        return self._host

    def _purge(self, over: Sequence[Seen]) -> None:
        """Remove directories that ended long ago; as many as the time allows, the rest at the next look."""
        began, now = time.monotonic(), time.time()
        sweep(self._root, self._roll.boot)
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
        with self._allotting():
            # Unlike a look this settles nothing, so doubt counts as taken.
            held = [seen.known.record.allotment for seen in self._roll.call([]) if seen.life is not Life.ENDED]
            room = Room.of(host, held)
            for order in orders:
                if given_up.is_set():
                    break
                begun.append(self._begin(order, host, room))
        return self._await_launchers(begun, orders, given_up)

    @contextlib.contextmanager
    def _allotting(self) -> Iterator[None]:
        """One controller at a time shares out the host; the lock goes with the process that holds it."""
        with open(self._root / ".lock", "a") as lock:
            give_up_at = time.monotonic() + _LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > give_up_at:
                        raise UnavailableError(f"{self._root}: another controller shares out this host") from None
                    time.sleep(0.01)
            yield

    def _begin(self, order: StartOrder, host: Host, room: Room) -> OrderResult | DroneDirectory:
        """Claim the order's directory and launch it, or say why not."""
        target = DroneDirectory(self._root / order.drone_id)
        if not is_drone_id(order.drone_id) or not order.drone_id.startswith(f"{self._controller}-"):
            return _refused(order.drone_id, FaultKind.CONFIG, "not a drone id of this controller")
        if order.bootstrap is None:
            return _refused(order.drone_id, FaultKind.CONFIG, "the order has no admission: nothing to run")
        if order.type.gpu_milli < 0 or isinstance(never := Room.of(host).find(order.type), NoRoom):
            why = str(never) if order.type.gpu_milli >= 0 else "negative GPUs"
            return _refused(order.drone_id, FaultKind.CONFIG, f"this host can never hold {order.type.key}: {why}")
        try:
            if not target.path.is_dir():
                found = room.find(order.type)
                if isinstance(found, NoRoom):
                    return _refused(order.drone_id, FaultKind.CAPACITY, f"no room now: {found}")
                if self._claim(order, target, found):
                    room.take(found)
            return self._launch(order, target)
        except ValueError as error:  # a bad file name, or somebody else's directory in the place
            return _refused(order.drone_id, FaultKind.CONFIG, str(error))
        except (OSError, subprocess.SubprocessError) as error:
            return self._undone(order, target, error)

    def _claim(self, order: StartOrder, target: DroneDirectory, allotment: Allotment) -> bool:
        assert order.bootstrap is not None
        starter = Process.own()
        record = Record(self._controller, self._name, order.type.name, order.grace_s, str(starter), allotment)
        return claim(prepare(self._root, starter, order.bootstrap), target, record)

    def _launch(self, order: StartOrder, target: DroneDirectory) -> OrderResult | DroneDirectory:
        """Run a launcher where none has been; the launchers themselves see to it that one wins."""
        assert order.bootstrap is not None
        record = target.record()
        if not self._owns(record):
            return _refused(order.drone_id, FaultKind.CONFIG, f"the id belongs to controller {record.controller}")
        if target.launcher() is not None:
            return target
        argv = ["setsid", "--fork", "/bin/sh", str(_LAUNCHER), str(target.path), f"{record.grace_s:g}"]
        if self._config.nice:
            argv = ["nice", "-n", str(self._config.nice), *argv]
        gpus = self._host.gpus if self._host else ()
        environment = drone_environment(order, order.bootstrap, record.allotment, target.own, self._config, gpus)
        with open(target.log, "ab", opener=_private) as log:
            # The launcher becomes nobody's child at once: our death and its life are independent from the start.
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
        """A refusal where it is certain that nothing runs, doubt otherwise."""
        kind, what = FaultKind.NODE, str(error)
        if isinstance(error, OSError):
            kind = FaultKind.DENIED if error.errno in (errno.EACCES, errno.EPERM) else FaultKind.NODE
            what = f"{error.filename or target.path}: {error.strerror or error}"
        try:
            if not target.path.is_dir():
                return _refused(order.drone_id, kind, what)
            if target.abandon(self._roll.boot):
                shutil.rmtree(target.path, ignore_errors=True)
                return _refused(order.drone_id, kind, what)
        except OSError:
            pass  # the disk that failed us fails us again: the listing will tell
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
            known = Known(directory.record())
            if not self._owns(known.record):
                return _refused(order.drone_id, FaultKind.CONFIG, f"it belongs to {known.record.controller}")
            life = self._roll.life(directory, known)
            if life is Life.ENDED:
                return OrderResult(order.drone_id, OrderOutcome.OK, known.remote_id)
            with contextlib.suppress(OSError):  # only the word for its end depends on it
                directory.ask_to_stop()
            return self._end(directory, known, order.kill)
        except FileNotFoundError:
            return OrderResult(order.drone_id, OrderOutcome.OK)  # removed meanwhile
        except (OSError, ValueError) as error:
            return OrderResult(order.drone_id, OrderOutcome.UNKNOWN, "", Fault(FaultKind.NODE, str(error), time.time()))

    def _end(self, directory: DroneDirectory, known: Known, kill: bool) -> OrderResult:
        if known.launcher is None and directory.abandon(self._roll.boot):
            self._roll.finish(directory, known, "stopped before it was launched")
            return OrderResult(DroneId(directory.drone_id), OrderOutcome.OK)
        if (launcher := directory.launcher()) is not None:
            known.launcher = launcher[0]
        done = OrderResult(DroneId(directory.drone_id), OrderOutcome.OK, known.remote_id)
        if not kill and known.launcher is not None and known.launcher.signal(signal.SIGTERM, self._roll.boot):
            return done
        if directory.end() is not None:
            return done
        if not kill_tagged(directory.drone_id):
            fault = Fault(FaultKind.NODE, "some of its processes cannot be killed", time.time())
            return OrderResult(DroneId(directory.drone_id), OrderOutcome.UNKNOWN, known.remote_id, fault)
        self._roll.finish(directory, known, "its launcher vanished")
        return done


def _refused(drone_id: DroneId, kind: FaultKind, message: str) -> OrderResult:
    return OrderResult(drone_id, OrderOutcome.REJECTED, "", Fault(kind, message, time.time()))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
