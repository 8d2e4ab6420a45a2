"""The ``local`` site: drones are process groups on this host that outlive the controller.

Its state is in the drones' directories and in ``/proc``, so another instance, after any crash, sees
the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import math
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar

from adapters.local.account import DroneAccount
from adapters.local.config import LocalSiteConfig
from adapters.local.drones import (
    DroneRecord,
    LocalDrone,
    claim,
    clean_up,
    directories,
    is_drone_id,
)
from adapters.local.resources import (
    FreeHostResources,
    LocalHost,
    declared_host,
    disk_mib,
    survey,
)
from adapters.shared.starts import outcome_unknown, rejected
from provisioner import drone as drone_contract, model
from provisioner.interfaces import OBSERVING, AuditFinding, UnavailableError
from provisioner.model import (
    Bootstrap,
    DroneId,
    FaultKind,
    OrderOutcome,
    OrderResult,
    OrderResults,
    RemoteState,
    SiteView,
    StartOrder,
    StopOrder,
)
from provisioner.processes import DRONE_TAG, Process

_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
"""Variables that a drone inherits. The controller's environment may hold secrets, so there are no others."""
_OF_ACCOUNT = ("HOME", "USER", "LOGNAME")
"""These as well, if it runs under the controller's account."""
_LAUNCHER = Path(__file__).with_name("launcher.sh")
_LOCK_WAIT_S = 10.0
_LAUNCH_WAIT_S = 5.0
"""For a launcher to report; of a drone whose launcher has not by then the outcome is unknown."""
_CLEANUP_BUDGET_S = 1.0
_DRIVER_RETRY_S = 60.0
"""Time until a driver that failed is asked again, which may take its time limit."""
_TRY_AGAIN = "It is tried again when the verdict expires, or once you remove that drone's directory"
T = TypeVar("T")
_CLAIMS: dict[Path, int] = {}
"""Descriptors of the claims of this process, which are held until it ends: adapters are replaced at a reload."""


class LocalSite:
    """Drones as processes of this host. Blocking work is done in threads, one at a time."""

    Config = LocalSiteConfig
    on_this_host = True

    def __init__(
        self,
        name: str,
        config: LocalSiteConfig,
        types: Sequence[model.DroneType],
        controller: str,
    ) -> None:
        self._name = name
        self._config = config
        self._types = tuple(types)
        self._controller = controller
        self._root = config.root.absolute()
        self._turn = threading.Lock()
        self._host: LocalHost | None = None
        self._survey_again_at = math.inf
        self._account = DroneAccount(config.account) if config.account else None

    async def __aenter__(self) -> Self:
        """Make the root if possible; if not, the first poll tells why."""
        mode = 0o711 if self._account or os.geteuid() == 0 else 0o700
        with contextlib.suppress(OSError):
            await asyncio.to_thread(self._root.mkdir, mode=mode, parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Do nothing: drones keep running."""

    async def poll(self) -> SiteView:
        """List the drones of this controller; ended ones for ``retain_finished``. Raises :class:`UnavailableError`."""
        return await asyncio.to_thread(self._one_at_a_time, self._view)

    async def claim(self, birth: str) -> Sequence[str]:
        """Hold a locked file in the root, as long as this process lives, and return other holders of our name."""
        return await asyncio.to_thread(self._claim, birth)

    def _claim(self, birth: str) -> Sequence[str]:
        mine = self._root / f".claim-{self._controller}-{birth}-{os.getpid()}"
        others = list[str]()
        if mine not in _CLAIMS or not mine.exists():
            fd = os.open(mine, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            # of a process with our number in another container
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _CLAIMS[mine] = fd
        named = re.compile(rf"\.claim-{re.escape(self._controller)}-([a-z0-9]+)-(\d+)")
        for path in self._root.iterdir():
            found = named.fullmatch(path.name)
            if found is not None and path not in _CLAIMS:
                with contextlib.suppress(OSError), open(path, "r+b") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        path.unlink()
                    except BlockingIOError:
                        others.append(f"{found[1]} with pid {found[2]}")
        return others

    async def audit(self, policy: model.SitePolicy) -> Sequence[AuditFinding]:
        """Report what would let no drone start: a directory that cannot be written, an account that cannot be used."""
        try:
            (await asyncio.to_thread(tempfile.TemporaryFile, dir=self._root)).close()
        except OSError as error:
            message = (
                f"{self._root} cannot be written: {error.strerror}. Make it writable for this user"
            )
            return [AuditFinding("", "directory", message)]
        problem = await asyncio.to_thread(self._account.check, self._root) if self._account else ""
        return [AuditFinding("", "account", problem)] if problem else []

    async def start(self, orders: Sequence[StartOrder]) -> OrderResults:
        """Start drones. If it is cancelled the thread goes on; the next poll lists what it began."""
        return await asyncio.to_thread(self._one_at_a_time, lambda: self._start_all(orders))

    async def stop(self, orders: Sequence[StopOrder]) -> OrderResults:
        """End drones. The launcher applies notice and grace."""
        return await asyncio.to_thread(self._one_at_a_time, lambda: self._stop_all(orders))

    def _one_at_a_time(self, work: Callable[[], T]) -> T:
        if not self._turn.acquire(timeout=_LOCK_WAIT_S):
            raise UnavailableError(f"an earlier call still works on {self._root}")
        try:
            return work()
        except OSError as error:
            raise UnavailableError(
                f"{self._root}: {error.strerror or error}", FaultKind.NODE
            ) from error
        finally:
            self._turn.release()

    def _list(self, notices: list[str]) -> Iterator[LocalDrone]:
        """Yield every drone, of any controller. Raises OSError if the root cannot be read."""
        for drone in map(LocalDrone, list(directories(self._root))):
            try:
                _ = drone.record, drone.launcher, drone.end
            except FileNotFoundError:
                continue  # not a drone, or removed meanwhile
            except ValueError as error:
                notices.append(
                    f"{drone.path}: not a readable drone directory: {str(error).splitlines()[0]}"
                )
            else:
                yield drone

    def _view(self) -> SiteView:
        host = self._surveyed()
        notices = list(host.notices)
        drones: dict[DroneId, model.RemoteDrone] = {}
        listed = list(self._list(notices))
        bad = self._bad_gpus(listed)
        notices += [
            f"GPU {gpu} is left out: its check failed in {bad[gpu].id}. {_TRY_AGAIN}" for gpu in bad
        ]
        whole = FreeHostResources.of(host)
        room = FreeHostResources.of(_without(host, bad))
        old: list[LocalDrone] = []
        for drone in listed:
            if not self._owns(drone.record):  # left as it is
                if drone.end is None:
                    room.take(drone.record.allocation)
                continue
            drones[drone.id] = remote = drone.listed()
            if remote.end is None:
                drone.shorten_log()
                # what waits has its room promised by the planner
                if remote.state is not RemoteState.PENDING:
                    room.take(drone.record.allocation)
            elif (
                time.time() - remote.end.at > self._config.retain_finished
                and drone not in bad.values()
            ):
                old.append(drone)
        unfit = {t.name: found for t in self._types if isinstance(found := whole.find(t), str)}
        lacks = {
            t.name: found
            for t in self._types
            if isinstance(found := room.find(t), str) and t.name not in unfit
        }
        free = {kind.name: room.count(kind) for kind in self._types}
        view = SiteView(
            self._name,
            time.time(),
            drones,
            free=free,
            notices=tuple(notices),
            lacks=lacks,
            unfit=unfit,
        )
        if not OBSERVING.get():
            self._clean_up(old)
        return view

    def _bad_gpus(self, drones: Iterable[LocalDrone]) -> Mapping[int, LocalDrone]:
        """Return the devices whose check has failed, each with a drone that says so."""
        return {gpu: drone for drone in drones for gpu in drone.bad_gpus(self._config.env)}

    def _owns(self, record: DroneRecord) -> bool:
        return record.controller == self._controller and record.site == self._name

    def _surveyed(self) -> LocalHost:
        """Return this host. Its GPUs are detected once, as that takes seconds; the size of its disk may change.

        While the driver fails, this host has drones without GPUs alone.
        """
        if self._host is None or time.monotonic() > self._survey_again_at:
            try:
                self._host = survey(self._config)
                self._survey_again_at = math.inf
            except UnavailableError as error:
                if self._config.gpus != "auto" or all(kind.gpu_milli for kind in self._types):
                    raise
                host = declared_host(self._config, self._config.root)
                self._host = replace(host, notices=(f"{error}. Drones with GPUs do not start",))
                self._survey_again_at = time.monotonic() + _DRIVER_RETRY_S
        elif self._config.disk is None:
            self._host = replace(self._host, disk_mib=disk_mib(self._config.root))
        return self._host

    def _clean_up(self, old: Sequence[LocalDrone]) -> None:
        """Remove old directories: as many as the time allows, the rest at the next poll."""
        give_up_at = time.monotonic() + _CLEANUP_BUDGET_S
        clean_up(self._root)
        for drone in old:
            if time.monotonic() < give_up_at:
                with contextlib.suppress(OSError):  # tried again at the next poll
                    drone.remove()

    def _start_all(self, orders: Sequence[StartOrder]) -> OrderResults:
        host = self._surveyed()
        with self._allocation_lock():
            drones = list(self._list([]))
            held = [drone.record.allocation for drone in drones if drone.end is None]
            room = FreeHostResources.of(_without(host, self._bad_gpus(drones)), held)
            return [self._start(order, host, room) for order in orders]

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
                        raise UnavailableError(
                            f"{self._root}: another controller holds its lock"
                        ) from None
                    time.sleep(0.01)
            yield

    def _start(
        self,
        order: StartOrder,
        host: LocalHost,
        room: FreeHostResources,
    ) -> OrderResult:
        """Claim the order's directory and launch it."""
        if not is_drone_id(order.drone_id) or not order.drone_id.startswith(f"{self._controller}-"):
            return rejected(order.drone_id, FaultKind.CONFIG, "not a drone id of this controller")
        if order.bootstrap is None:
            return rejected(
                order.drone_id, FaultKind.CONFIG, "the order has no bootstrap: nothing to run"
            )
        if isinstance(never := FreeHostResources.of(host).find(order.type), str):
            return rejected(
                order.drone_id,
                FaultKind.CONFIG,
                f"this host can never hold {order.type.key}: {never}",
            )
        drone = LocalDrone(self._root / order.drone_id)
        try:
            if not drone.path.is_dir():
                found = room.find(order.type)
                if isinstance(found, str):
                    return rejected(order.drone_id, FaultKind.CAPACITY, f"no room now: {found}")
                me = Process.own()
                record = DroneRecord(
                    self._controller,
                    self._name,
                    order.type.name,
                    order.grace_s,
                    str(me),
                    found,
                    self._config.account,
                    order.epoch,
                )
                environment = _drone_environment(
                    order, order.bootstrap, drone, record, self._config, host
                )
                if claim(
                    drone.path, record, me, order.bootstrap, drone_contract.exports(environment)
                ):
                    room.take(found)
            if not self._owns(drone.record):
                return rejected(
                    drone.id,
                    FaultKind.CONFIG,
                    f"the id belongs to controller {drone.record.controller}",
                )
            if drone.launcher is None:
                self._launch(drone, order, order.bootstrap, host)
            give_up_at = time.monotonic() + _LAUNCH_WAIT_S
            while drone.launcher is None:
                if time.monotonic() > give_up_at:
                    return outcome_unknown(drone.id, "its launcher has not reported")
                time.sleep(0.002)
            return _done(drone)
        except ValueError as error:  # a bad file name, or a foreign directory with that name
            return rejected(order.drone_id, FaultKind.CONFIG, str(error))
        except (OSError, subprocess.SubprocessError) as error:
            return self._undone(drone, error)

    def _launch(
        self,
        drone: LocalDrone,
        order: StartOrder,
        bootstrap: Bootstrap,
        host: LocalHost,
    ) -> None:
        """Run a launcher; of several launchers of a drone one wins."""
        record = drone.record
        argv = [
            "setsid",
            "--fork",
            "/bin/sh",
            str(_LAUNCHER),
            str(drone.path),
            f"{record.grace_s:g}",
            record.account,
        ]
        if self._config.nice:
            argv = ["nice", "-n", str(self._config.nice), *argv]
        with open(drone.log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
            # The launcher is reparented at once, so it survives the controller.
            subprocess.run(
                argv,
                cwd=drone.path,
                env=_drone_environment(order, bootstrap, drone, record, self._config, host),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=_LAUNCH_WAIT_S,
                check=True,
            )

    @staticmethod
    def _undone(drone: LocalDrone, error: Exception) -> OrderResult:
        """Return a rejection where it is certain that nothing runs, else an unknown outcome."""
        kind = FaultKind.NODE
        what = str(error)
        if isinstance(error, OSError):
            kind = (
                FaultKind.DENIED if error.errno in (errno.EACCES, errno.EPERM) else FaultKind.NODE
            )
            what = f"{error.filename or drone.path}: {error.strerror or error}"
        if drone.path.is_dir() and not drone.abandon():
            return outcome_unknown(drone.id, what)
        drone.discard()
        return rejected(drone.id, kind, what)

    def _stop_all(self, orders: Sequence[StopOrder]) -> OrderResults:
        with os.scandir(self._root):  # without it nothing is known to be gone
            pass
        return [self._stop(order) for order in orders]

    def _stop(self, order: StopOrder) -> OrderResult:
        drone = LocalDrone(self._root / order.drone_id)
        if not is_drone_id(order.drone_id) or not drone.path.is_dir():
            return OrderResult(order.drone_id, OrderOutcome.OK)
        try:
            if not self._owns(drone.record):
                return rejected(
                    drone.id, FaultKind.CONFIG, f"it belongs to {drone.record.controller}"
                )
            if drone.end is not None:
                return _done(drone)
            drone.ask_to_stop()
            if drone.launcher is None and drone.abandon():
                drone.finish("stopped before it was launched")
            elif (
                not order.kill
                and drone.launcher is not None
                and drone.launcher.signal(signal.SIGTERM)
            ):
                pass
            elif drone.end is None:
                if not drone.kill():
                    return outcome_unknown(drone.id, "some of its processes cannot be killed")
                drone.finish("its launcher vanished")
            return _done(drone)
        except FileNotFoundError:
            return OrderResult(drone.id, OrderOutcome.OK)  # removed meanwhile
        except (OSError, ValueError) as error:
            return outcome_unknown(drone.id, str(error))


def _without(host: LocalHost, bad: Container[int]) -> LocalHost:
    return replace(host, gpus=tuple(gpu for gpu in host.gpus if gpu.index not in bad))


def _done(drone: LocalDrone) -> OrderResult:
    return OrderResult(drone.id, OrderOutcome.OK, drone.remote_id)


def _drone_environment(
    order: StartOrder,
    bootstrap: Bootstrap,
    drone: LocalDrone,
    record: DroneRecord,
    config: LocalSiteConfig,
    host: LocalHost,
) -> dict[str, str]:
    names = _INHERITED if record.account else (*_INHERITED, *_OF_ACCOUNT)
    inherited = {name: os.environ[name] for name in names if name in os.environ}
    indexes = sorted(record.allocation.gpus)
    contract = {
        **drone_contract.environment(order),
        DRONE_TAG: order.drone_id,
        "DRONE_DIR": str(drone.own),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order in which nvidia-smi numbers devices
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, indexes)),
    }
    pretended = [
        gpu.simulate for gpu in host.gpus if gpu.index in indexes and gpu.simulate is not None
    ]
    if pretended:
        # As many as this host has: of those the discovery takes the ones in CUDA_VISIBLE_DEVICES.
        contract["DRONE_GPU_SIMULATE"] = f"{pretended[0]},{len(host.gpus)}"
    return {"PATH": os.defpath, **inherited, **config.env, **bootstrap.env, **contract}
