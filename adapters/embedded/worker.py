"""The worker process of an embedded drone: it joins, checks itself, runs jobs from the queue, and leaves.

Exit status: 0 left in order, 64 called wrongly, 71 the GPU check failed, 72 it hung, 73 the queue could not be
reached, 75 the queue was lost. The last line of ``outcome`` in the drone's directory says why. Standard library only.

A small process beside the worker (:class:`LeaseGuard`) kills the jobs when the worker dies, or is stopped for so long
that the leases expire: then no job runs twice at once. It reads lines from a pipe: ``+PGID`` a job begins,
``*PGID,PGID`` these are all process groups, ``=SECONDS`` the leases are valid until then (monotonic clock).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from adapters.embedded import table
from adapters.embedded.table import ClaimedJob, lease_clock

_MAX_SHARES = 32
_VALUE_TYPES: dict[Any, Callable[[str], Any]] = {"Path": Path, "str": str, "int": int, "float": float}


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlaySettings:
    """Variables ``EMBEDDED_*``, which the overlay sets."""

    queue: Path
    capability: int
    gpu_model: str
    lease_s: float
    poll_s: float
    negotiation_s: float
    max_lost: int
    check_deadline_s: float
    avoids: str
    """Users whose jobs it does not take, with commas between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings(OverlaySettings):
    """Variables ``DRONE_*``, which every site sets, and those of the overlay."""

    id: str
    site: str
    type: str
    dir: Path
    gpu_milli: int
    cpus: int
    memory_mib: int
    disk_mib: int
    vram_mib: int
    shares: int
    """Number of shares that each of its GPUs is offered in to small jobs."""
    sharing: str
    """``mig``: no job may have several shares of a GPU."""
    idle_s: float
    grace_s: float
    walltime_s: float
    devices: tuple[str, ...]
    check: tuple[str, ...]

    @classmethod
    def read(cls, env: Mapping[str, str]) -> WorkerSettings:
        """Read the environment. Raises ValueError for a variable that is missing or invalid."""
        ours, values = {each.name for each in fields(OverlaySettings)}, dict[str, Any]()
        try:
            for each in fields(cls):
                if each.type in _VALUE_TYPES:
                    prefix = "EMBEDDED" if each.name in ours else "DRONE"
                    values[each.name] = _VALUE_TYPES[each.type](env[f"{prefix}_{each.name.upper()}"])
            check = tuple(json.loads(env["EMBEDDED_CHECK"]))
        except KeyError as error:
            raise ValueError(f"{error.args[0]} is not set") from None
        if not 1 <= values["shares"] <= _MAX_SHARES:
            raise ValueError(f"DRONE_SHARES is {values['shares']}: 1 to {_MAX_SHARES}")
        devices = tuple(filter(None, env.get("CUDA_VISIBLE_DEVICES", "").split(",")))
        return cls(**values, devices=devices, check=check)


_WHOLE_GPU = 1000


class GpuShares:
    """Free milli-GPU by device. A drone's own share may leave its last device less than whole.

    With ``shares``, a device is given out in whole shares: several to a job only if they ``join``, and none to a job
    that wants the whole device.
    """

    def __init__(self, names: Sequence[str], gpu_milli: int, shares: int = 1, joins: bool = True) -> None:
        self._shared, self._joins = shares > 1, joins
        self._unit = _WHOLE_GPU // shares if self._shared else 1
        whole, rest = divmod(gpu_milli, _WHOLE_GPU)
        sizes = [_WHOLE_GPU] * whole + [rest] * bool(rest)
        if len(names) < len(sizes):
            raise ValueError(f"{len(sizes)} GPUs were promised, {len(names)} are visible")
        self._free = dict(zip(names, sizes, strict=False))

    @property
    def free_milli(self) -> int:
        return sum(self._free.values())

    @property
    def untouched(self) -> int:
        return 0 if self._shared else sum(free == _WHOLE_GPU for free in self._free.values())

    @property
    def largest_share(self) -> int:
        most = max(self._free.values(), default=0) // self._unit * self._unit
        return most if self._joins else min(most, self._unit)

    def take(self, gpu_milli: int) -> dict[str, int]:
        """Take whole devices, or a part of one. Raises ValueError if there is no room."""
        count = gpu_milli // _WHOLE_GPU
        if not count:
            chosen = self._part(gpu_milli)
        else:
            names = [name for name, free in self._free.items() if free == _WHOLE_GPU] if count <= self.untouched else []
            chosen = dict.fromkeys(names[:count], _WHOLE_GPU)
        if gpu_milli and not chosen:
            raise ValueError(f"no room for {gpu_milli} milli-GPU in {self._free}")
        for name, milli in chosen.items():
            self._free[name] -= milli
        return chosen

    def _part(self, gpu_milli: int) -> dict[str, int]:
        """Choose the fullest device with room; for shares the emptiest, as jobs on one device slow each other."""
        part = -(-gpu_milli // self._unit) * self._unit
        if not 0 < part <= self.largest_share:
            return {}
        enough = [name for name, free in self._free.items() if free >= part]
        best = max if self._shared else min
        return {best(enough, key=self._free.__getitem__): part}

    def give_back(self, taken: Mapping[str, int]) -> None:
        for name, milli in taken.items():
            self._free[name] += milli


class LeaseGuard:
    """The worker's end of the pipe. Create it before anything is opened that a child must not share."""

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._writer)
            _watch(reader)
        os.close(reader)

    def prepare(self) -> None:
        """Register this process and unblock signals. Called in the job's process before it executes anything."""
        self._send(f"+{os.getpid()}")
        signal.pthread_sigmask(signal.SIG_SETMASK, set())

    def only(self, groups: Iterable[int]) -> None:
        """Forget all other groups: their ids may be reused."""
        self._send("*" + ",".join(map(str, groups)))

    def hold_until(self, lease_until: float) -> None:
        self._send(f"={lease_until!r}")

    def close(self) -> None:
        os.close(self._writer)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _send(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the guard was killed, and so is the worker soon
            os.write(self._writer, f"{line}\n".encode())


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _watch(reader: int) -> NoReturn:
    groups: set[int] = set()
    until, rest = math.inf, b""
    while True:
        wait_s = None if until == math.inf or not groups else max(0.0, until - lease_clock())
        expired = not select.select([reader], [], [], wait_s)[0]
        received = b"" if expired else os.read(reader, 65536)
        if not received:  # the leases have expired, or the worker has died
            for group in groups:
                kill_group(group)
            if not expired:
                os._exit(0)
            until = math.inf
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            match line[:1]:
                case b"+":
                    groups.add(int(line[1:]))
                case b"*":
                    groups = {int(group) for group in line[1:].split(b",") if group}
                case b"=":
                    until = float(line[1:])


_OUTPUT_TAIL_BYTES = 2048
_MESSAGE_LIMIT = 300
_CANNOT_RUN = 127


@dataclass(slots=True)
class JobAttempt:
    """One run of a job, in a directory of its own."""

    claim: ClaimedJob
    gpus: Mapping[str, int]
    directory: Path
    ends_at: float = math.inf
    """Monotonic; by the job's own walltime, infinite if it has none."""
    process: subprocess.Popen[bytes] | None = None
    """None: it could not be executed."""
    trouble: str = ""
    asked: bool = False
    """It was sent SIGTERM."""
    overran: bool = False
    cut: bool = False
    """Killed for no fault of its own: the drone leaves, or the job belongs to another drone."""

    def begin(self, env: Mapping[str, str], guard: LeaseGuard) -> None:
        """Run the job. One that cannot be run has ended with status 127."""
        claim, kept_out = self.claim, ("PYTHONPATH", "EMBEDDED_")
        if claim.walltime_s > 0:
            self.ends_at = time.monotonic() + claim.walltime_s
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            variables = {
                **{name: value for name, value in env.items() if not name.startswith(kept_out)},
                **{str(name): str(value) for name, value in json.loads(claim.env).items()},
                "PROVISIONER_DRONE_ID": env["DRONE_ID"],
                "JOB_ID": str(claim.id),
                "JOB_GPU_MILLI": str(claim.gpu_milli),
                "CUDA_VISIBLE_DEVICES": ",".join(self.gpus),
                "TMPDIR": str(self.directory),
            }
            with open(self.directory / "out", "wb") as out, open(self.directory / "err", "wb") as err:
                self.process = subprocess.Popen(
                    [str(word) for word in json.loads(claim.argv)],
                    cwd=self.directory,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    preexec_fn=guard.prepare,
                )
        except (OSError, ValueError, TypeError, AttributeError, subprocess.SubprocessError) as error:
            # the row is the user's, and may hold anything
            self.trouble = f"cannot be run: {error}"[:_MESSAGE_LIMIT]

    def ask_to_end(self) -> None:
        if self.process is not None and not self.asked:
            self.asked = True
            with contextlib.suppress(ProcessLookupError):  # it just ended; the next check notices
                os.killpg(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        if self.process is not None:
            kill_group(self.process.pid)

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    @property
    def group(self) -> int:
        """Its process group; 0 if it never had one."""
        return self.process.pid if self.process is not None else 0

    @property
    def unfinished(self) -> bool:
        """True if the drone ended it, so that it should run again."""
        return self.exit_code != 0 and not self.overran and (self.asked or self.cut)

    @property
    def exit_code(self) -> int:
        """The status as a shell reports it: 128 and the signal's number for a killed one."""
        if self.process is None:
            return _CANNOT_RUN
        code = self.process.returncode
        return code if code >= 0 else 128 - code

    @property
    def message(self) -> str:
        if self.trouble or self.overran:
            return self.trouble or f"ran longer than its walltime of {self.claim.walltime_s:g} s"
        names = ("err", "out") if self.exit_code else ("out",)
        return next(filter(None, (_last_line(self.directory / name) for name in names)), "")


def _last_line(path: Path) -> str:
    """Return the last line of a job's output, made printable."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _OUTPUT_TAIL_BYTES))
            lines = file.read(_OUTPUT_TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    cleaned = ("".join(c if c.isprintable() else " " for c in line).strip() for line in reversed(lines))
    return next(filter(None, cleaned), "")[:_MESSAGE_LIMIT]


_EVENTS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
_FOREVER_S = 1e12
_KILLED = 128 + signal.SIGKILL
_LEASE_SAFE = 0.9
"""Share of the lease after which its jobs are killed if it was not renewed: before another drone may take them."""
_LOST_LEASES = 5
"""The queue is lost when it could not be used for this many leases."""


class WorkerExitError(Exception):
    """The drone leaves: exit status and reason."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def check(argv: Sequence[str], guard: LeaseGuard, deadline_s: float, pause: Callable[[], None]) -> None:
    """Run the operator's check, and ``pause`` meanwhile. Raises :class:`WorkerExitError` if it fails or hangs."""
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=guard.prepare)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise WorkerExitError(71, f"GPU check cannot be run: {error}") from error
    give_up_at = time.monotonic() + deadline_s
    try:
        while process.poll() is None:
            if time.monotonic() > give_up_at:
                raise WorkerExitError(72, f"GPU check hung: no answer within {deadline_s:g} s")
            pause()
    finally:
        kill_group(process.pid)
        guard.only(())
    if process.returncode:
        raise WorkerExitError(71, f"GPU check failed with status {process.returncode}")


@dataclass(frozen=True, slots=True)
class WorkerRetirement:
    """A time without new jobs. Running ones are asked to end at ``ask_at`` and killed at ``kill_at`` (monotonic)."""

    why: str
    ask_at: float
    kill_at: float

    @classmethod
    def within(cls, why: str, begin_at: float, grace_s: float) -> WorkerRetirement:
        return cls(why, begin_at + 0.7 * grace_s, begin_at + 0.9 * grace_s)


class Worker:
    """One drone in the pool. It has one thread and waits for signals, so no handler interrupts it."""

    def __init__(self, settings: WorkerSettings, guard: LeaseGuard, connection: sqlite3.Connection) -> None:
        self._settings = settings
        self._guard = guard
        self._table = connection
        self._inode = os.stat(settings.queue).st_ino
        self._devices = GpuShares(settings.devices, settings.gpu_milli, settings.shares, settings.sharing != "mig")
        self._running: list[JobAttempt] = []
        self._ended: list[JobAttempt] = []
        """Ended, and not reported yet."""
        self._began = time.monotonic()
        self._idle_from = self._began
        self._state = "checking"
        self._jobs_started = 0
        self._heartbeat_at = 0.0
        self._lease_until = 0.0
        self._drained: WorkerRetirement | None = None
        self._drain_mode = ""
        self._asked: WorkerRetirement | None = None

    # ---------------------------------------------------------------------------------------------- its life

    def run(self) -> NoReturn:
        """Run until :class:`WorkerExitError` is raised."""
        self._heartbeat()
        if self._settings.check:
            check(self._settings.check, self._guard, self._settings.check_deadline_s, self._pause)
        self._state, self._idle_from, self._heartbeat_at = "idle", time.monotonic(), 0.0
        while True:
            self._tolerating_errors(self._turn)
            self._wait(min(self._settings.poll_s, self._settings.lease_s / 4))

    def _pause(self) -> None:
        """Send heartbeats while the check runs, and leave if asked to."""
        self._wait(min(1.0, self._settings.lease_s / 4))
        self._tolerating_errors(self._heartbeat)
        if (retirement := self._retirement()) is not None:
            raise WorkerExitError(0, retirement.why)

    def _tolerating_errors(self, step: Callable[[], None]) -> None:
        """Run a step; leave if the queue is gone or could not be used for long."""
        try:
            step()
        except sqlite3.OperationalError as error:
            self._assert_queue()
            if time.monotonic() > self._lease_until + _LOST_LEASES * self._settings.lease_s:
                raise WorkerExitError(75, f"the queue could not be used: {error}") from error

    def _turn(self) -> None:
        self._reap()
        self._kill_unleased()
        self._report()
        # A drain takes effect at once, not at the next heartbeat.
        if (
            time.monotonic() >= self._heartbeat_at
            or table.drain_mode(self._table, self._settings.id) != self._drain_mode
        ):
            self._heartbeat()
        retirement = self._retirement()
        self._end_jobs(retirement)
        if retirement is None:
            self._take()
        if self._running or self._ended:
            return
        if retirement is not None:
            raise WorkerExitError(0, retirement.why)
        idle_s = time.monotonic() - self._idle_from
        if idle_s > self._settings.idle_s:
            raise WorkerExitError(0, f"no job for {idle_s:.1f} s > {self._settings.idle_s:g} s")

    def _assert_queue(self) -> None:
        with contextlib.suppress(OSError):
            if os.stat(self._settings.queue).st_ino == self._inode:
                return
        raise WorkerExitError(75, f"the queue {self._settings.queue} is gone")

    def _wait(self, pause_s: float) -> None:
        """Wait until a job ends, a signal asks the drone to leave, or the pause is over."""
        caught = signal.sigtimedwait(_EVENTS, pause_s)
        if caught is not None and caught.si_signo in (signal.SIGTERM, signal.SIGINT) and self._asked is None:
            self._asked = WorkerRetirement.within("asked to leave", time.monotonic(), self._settings.grace_s)
            self._heartbeat_at = 0.0

    # -------------------------------------------------------------------------------------------------- jobs

    def _take(self) -> None:
        while table.fits_any(self._table, self._offer()):
            lease_until = table.lease_clock() + self._settings.lease_s
            begun = self._claim(lease_until)
            if begun is None:
                return
            if len(self._running) == 1:  # with others running, the earlier lease is the one that counts
                self._hold(lease_until)
            begun.begin(os.environ, self._guard)
            self._guard.only(one.group for one in self._running if one.group)

    def _claim(self, lease_until: float) -> JobAttempt | None:
        """Take a job and publish it in the slot, both or neither."""
        begun: JobAttempt | None = None
        try:
            with table.writing(self._table):
                claim = table.take(self._table, self._offer(), self._settings.id, lease_until)
                if claim is None:
                    return None
                directory = self._settings.dir / f"job-{claim.id}.{claim.attempt}"
                begun = JobAttempt(claim, self._devices.take(claim.gpu_milli), directory)
                self._running.append(begun)
                self._jobs_started += 1
                self._publish()
        except BaseException:
            if begun is not None:
                self._running.remove(begun)
                self._devices.give_back(begun.gpus)
                self._jobs_started -= 1
            raise
        return begun

    def _offer(self) -> table.SlotOffer:
        settings = self._settings
        used = [one.claim for one in (*self._running, *self._ended)]
        return table.SlotOffer(
            whole_gpus=self._devices.untouched,
            share_milli=self._devices.largest_share,
            cpus=settings.cpus - sum(claim.cpus for claim in used),
            memory_mib=settings.memory_mib - sum(claim.memory_mib for claim in used),
            disk_mib=settings.disk_mib - sum(claim.disk_mib for claim in used),
            vram_mib=settings.vram_mib // settings.shares,
            capability=settings.capability,
            gpu_model=settings.gpu_model,
            life_s=self._retires_at - time.monotonic() if settings.walltime_s else _FOREVER_S,
            submitted_before=_last_negotiation(time.time(), settings.negotiation_s),
            for_gpus=settings.gpu_milli > 0,
            each_milli=1000 // settings.shares,
            avoids=settings.avoids,
        )

    def _reap(self) -> None:
        for one in [one for one in self._running if one.ended]:
            one.kill()  # what the job left in its process group goes with it
            if one.exit_code == _KILLED and table.lease_clock() >= self._safe_until:
                one.cut = True  # by the guard, while we were stopped and the lease ran out
            self._running.remove(one)
            self._ended.append(one)
            self._guard.only(other.group for other in self._running if other.group)

    def _report(self) -> None:
        """Record the ends of jobs; jobs that were cut short become idle again."""
        for one in list(self._ended):
            with table.writing(self._table):
                if one.unfinished:
                    table.give_back(self._table, one.claim, f"drone {self._settings.id} left")
                else:
                    table.finish(self._table, one.claim, one.exit_code, one.message)
            self._ended.remove(one)
            self._devices.give_back(one.gpus)
            self._idle_from = time.monotonic()
            self._heartbeat_at = 0.0

    def _kill_unleased(self) -> None:
        """Kill the jobs of a lease that could not be renewed before it expires."""
        if table.lease_clock() >= self._safe_until:
            for one in self._running:
                one.cut = True
                one.kill()

    def _hold(self, lease_until: float) -> None:
        self._lease_until = lease_until
        self._guard.hold_until(self._safe_until)

    @property
    def _safe_until(self) -> float:
        return self._lease_until - (1 - _LEASE_SAFE) * self._settings.lease_s

    # ---------------------------------------------------------------------------------------------- retiring

    @property
    def _retires_at(self) -> float:
        """Return the monotonic time at which the site's walltime leaves no more than the grace."""
        settings = self._settings
        return self._began + max(0.0, settings.walltime_s - settings.grace_s) if settings.walltime_s else math.inf

    def _retirement(self) -> WorkerRetirement | None:
        """Return the strictest of the retirements that are due."""
        due = [each for each in (self._asked, self._drained) if each is not None]
        if time.monotonic() >= self._retires_at:
            why = f"end of its walltime of {self._settings.walltime_s:g} s"
            due.append(WorkerRetirement.within(why, self._retires_at, self._settings.grace_s))
        if not due:
            return None
        first = min(due, key=lambda each: each.kill_at)
        return WorkerRetirement(first.why, min(each.ask_at for each in due), first.kill_at)

    def _end_jobs(self, retirement: WorkerRetirement | None) -> None:
        now = time.monotonic()
        for one in self._running:
            if now >= one.ends_at:
                one.overran = True
                one.kill()
            if retirement is not None and now >= retirement.kill_at:
                one.cut = True
                one.kill()
            elif retirement is not None and now >= retirement.ask_at:
                one.ask_to_end()

    def _apply_drain(self, mode: str) -> None:
        """Apply the drain mode that the overlay asks for; an empty mode takes the drain back."""
        if mode == self._drain_mode:
            return
        now = time.monotonic()
        self._drain_mode = mode
        match mode:
            case "":
                self._drained = None
            case "fast":
                self._drained = WorkerRetirement("drained (fast)", now, now)
            case "graceful":
                self._drained = WorkerRetirement("drained (graceful)", now, now + self._settings.grace_s)
            case _:
                self._drained = WorkerRetirement(f"drained ({mode})", math.inf, math.inf)

    # -------------------------------------------------------------------------------------------------- beat

    @property
    def joined(self) -> bool:
        return self._lease_until > 0

    def leave_pool(self) -> None:
        """Remove the slot from the pool; if that fails the slot expires."""
        try:
            with table.writing(self._table):
                table.remove_slot(self._table, self._settings.id)
        except sqlite3.Error as error:
            print(f"slot not removed: {error}", file=sys.stderr)

    def _heartbeat(self) -> None:
        """Renew leases, publish the slot, read drain requests and release lost jobs of other drones."""
        self._assert_queue()
        lease_until = table.lease_clock() + self._settings.lease_s
        with table.writing(self._table):
            for one in (*self._running, *self._ended):
                if not table.renew(self._table, one.claim, lease_until):
                    one.cut = True
                    one.kill()
            table.expire(self._table, self._settings.max_lost)
            self._apply_drain(table.drain_mode(self._table, self._settings.id))
            self._publish()
        self._hold(lease_until)
        self._heartbeat_at = time.monotonic() + self._settings.lease_s / 3

    def _publish(self) -> None:
        settings, offer, now, mono = self._settings, self._offer(), time.time(), time.monotonic()
        jobs = len(self._running) + len(self._ended)
        if self._state != "checking":
            self._state = "draining" if self._retirement() is not None else "busy" if jobs else "idle"
        table.publish(
            self._table,
            drone_id=settings.id,
            site=settings.site,
            type=settings.type,
            state=self._state,
            free_gpu_milli=self._devices.free_milli,
            free_cpus=offer.cpus,
            free_memory_mib=offer.memory_mib,
            free_disk_mib=offer.disk_mib,
            jobs=jobs,
            jobs_started=self._jobs_started,
            idle_since=0.0 if jobs else now - (mono - self._idle_from),
            retires_at=now - mono + self._retires_at if settings.walltime_s else 0.0,
            gpu_model=settings.gpu_model,
            vram_mib=settings.vram_mib,
            capability=settings.capability,
        )


def _last_negotiation(now: float, period_s: float) -> float:
    """Return the end of the last negotiation; without negotiation, a time after every submission."""
    return now // period_s * period_s if period_s > 0 else now + _FOREVER_S


def main() -> int:
    """Run a drone with the settings in its environment; return its exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _EVENTS)
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell starts its background jobs with SIGINT ignored
        signal.signal(number, signal.SIG_DFL)
    try:
        settings = WorkerSettings.read(os.environ)
    except ValueError as error:
        print(f"called wrongly: {error}", file=sys.stderr)
        return 64
    leave = _serve(settings)
    line = f"{'left' if leave.status == 0 else 'failed'}: {leave}"
    print(line, flush=True)
    try:
        (settings.dir / "outcome").write_text(line + "\n")
    except OSError as error:
        print(f"{settings.dir}/outcome: {error.strerror}", file=sys.stderr)
    return leave.status


def _serve(settings: WorkerSettings) -> WorkerExitError:
    """Join, work and leave. The guard kills jobs that still run; they are idle again when their leases expire."""
    guard = LeaseGuard()
    worker: Worker | None = None
    try:
        connection = table.connect(settings.queue, busy_s=min(5.0, settings.lease_s / 4))
        worker = Worker(settings, guard, connection)
        worker.run()
    except WorkerExitError as leave:
        if worker is not None and leave.status != 75:
            worker.leave_pool()
        return leave
    except ValueError as error:
        return WorkerExitError(71, f"GPU check failed: {error}")
    except (sqlite3.Error, OSError) as error:
        return WorkerExitError(
            75 if worker is not None and worker.joined else 73, f"the queue {settings.queue}: {error}"
        )
    finally:
        guard.close()


if __name__ == "__main__":
    sys.exit(main())
