"""The worker process of an embedded drone: it joins, runs jobs from the queue, and leaves. Standard library only.

Exit status: 0 left in order, 64 called wrongly, 71 GPUs are missing, 73 the queue could not be
reached, 75 the queue was lost. The last line of ``outcome`` in the drone's directory says why.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

from adapters.embedded import queue
from adapters.embedded.queue import EmbeddedJob, lease_clock
from adapters.shared.printing import last_line
from provisioner.values import define

_WHOLE_GPU = 1000
_EVENTS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
_KILLED = 128 + signal.SIGKILL
_CANNOT_RUN = 127
_LEASE_SAFE = 0.9
"""Share of the lease after which its jobs are killed if it was not renewed: before another drone may take them."""
_LOST_LEASES = 5
"""The queue is lost when it could not be used for this many leases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Environment of a drone: each field is the variable of that name, in lower case."""

    drone_id: str
    drone_site: str
    drone_type: str
    drone_dir: Path
    drone_gpu_milli: int
    drone_cpus: int
    drone_memory_mib: int
    drone_disk_mib: int
    drone_vram_mib: int
    drone_idle_s: float
    drone_grace_s: float
    drone_walltime_s: float
    drone_job_filter: str
    cuda_visible_devices: tuple[str, ...]
    embedded_queue: Path
    embedded_capability: int
    embedded_gpu_model: str
    embedded_lease_s: float
    embedded_poll_s: float
    embedded_max_lost: int

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Self:
        """Read the environment. Raises ValueError for a variable that is missing or invalid."""
        parsers: dict[Any, Callable[[str], Any]] = {
            "Path": Path,
            "str": str,
            "int": int,
            "float": float,
        }
        devices = tuple(filter(None, env.get("CUDA_VISIBLE_DEVICES", "").split(",")))
        try:
            values = {
                f.name: parsers[f.type](env[f.name.upper()])
                for f in fields(cls)
                if f.type in parsers
            }
        except KeyError as error:
            raise ValueError(f"{error.args[0]} is not set") from None
        return cls(**values, cuda_visible_devices=devices)


class FreeGpus(dict[str, int]):
    """Free milli-GPU by device. A drone's own share may leave its last device less than whole."""

    @classmethod
    def promised(
        cls,
        gpu_milli: int,
        names: Sequence[str],
    ) -> Self:
        """Return the devices of a drone. Raises ValueError if fewer are visible than promised."""
        whole, rest = divmod(gpu_milli, _WHOLE_GPU)
        sizes = [_WHOLE_GPU] * whole + [rest] * bool(rest)
        if len(names) < len(sizes):
            raise ValueError(f"{len(sizes)} GPUs were promised, {len(names)} are visible")
        return cls(zip(names, sizes, strict=False))

    @property
    def untouched(self) -> list[str]:
        return [name for name, free in self.items() if free == _WHOLE_GPU]

    def take(self, gpu_milli: int) -> dict[str, int]:
        """Take whole devices, or a share of the fullest device with room. There has to be room."""
        if count := gpu_milli // _WHOLE_GPU:
            taken = dict.fromkeys(self.untouched[:count], _WHOLE_GPU)
        else:
            fullest = sorted(
                (name for name, free in self.items() if free >= gpu_milli), key=self.__getitem__
            )
            taken = {fullest[0]: gpu_milli} if gpu_milli else {}
        for name, milli in taken.items():
            self[name] -= milli
        return taken

    def give_back(self, taken: Mapping[str, int]) -> None:
        for name, milli in taken.items():
            self[name] += milli


def _balancer(addresses: str, announced: str) -> dict[str, str]:
    """Return the address of the first service that has a model which a job announces, or of the only service."""
    models = ["*", *re.split(r"[\s,]+", announced)]
    for each in addresses.split(","):
        model, _, address = each.partition("=")
        if model in models:
            host, _, port = address.rpartition(":")
            return {"SONIC_LOCAL_BALANCER_HOST": host, "SONIC_LOCAL_BALANCER_PORT": port}
    return {}


def _unblock_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it just ended
        os.killpg(group, number)


@define
class JobAttempt:
    """One run of a job, in a directory and a process group of its own."""

    job: EmbeddedJob
    gpus: Mapping[str, int]
    directory: Path
    process: subprocess.Popen[bytes] | None = None
    exit_code: int | None = None
    """Its status as a shell reports it, once it has ended: 128 and the signal's number for a killed one."""
    ends_at: float = math.inf
    """End of its own walltime (monotonic)."""
    trouble: str = ""
    interrupted: bool = False
    """The drone leaves, or the job belongs to another drone: it should run again."""

    def begin(self, env: Mapping[str, str]) -> None:
        """Run the job. One that cannot be run has ended with status 127."""
        job = self.job
        if job.walltime_s > 0:
            self.ends_at = time.monotonic() + job.walltime_s
        variables = {
            **{
                name: value
                for name, value in env.items()
                if not name.startswith(("PYTHONPATH", "EMBEDDED_"))
            },
            **_balancer(env.get("DRONE_INFERENCE", ""), job.env.get("WANTS_INFERENCE", "")),
            **job.env,
            "PROVISIONER_DRONE_ID": env["DRONE_ID"],
            "JOB_ID": str(job.id),
            "JOB_GPU_MILLI": str(job.used_gpu_milli),
            queue.ATTEMPT_TAG: job.token,
            "CUDA_VISIBLE_DEVICES": ",".join(self.gpus),
            "TMPDIR": str(self.directory),
        }
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            with (
                open(self.directory / "out", "wb") as out,
                open(self.directory / "err", "wb") as err,
            ):
                self.process = subprocess.Popen(
                    job.argv,
                    cwd=self.directory,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    preexec_fn=_unblock_signals,
                )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.trouble = f"cannot be run: {error}"[:300]
            self.exit_code = _CANNOT_RUN

    def poll(self) -> bool:
        """Return whether it has just ended. What it left in its process group goes with it."""
        if self.process is None or self.exit_code is not None or self.process.poll() is None:
            return False
        self.signal(signal.SIGKILL)
        code = self.process.returncode
        self.exit_code = code if code >= 0 else 128 - code
        return True

    def interrupt(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Ask it to end, once, or kill it, for no fault of its own."""
        if self.exit_code is None and not (self.interrupted and number is signal.SIGTERM):
            self.interrupted = True
            self.signal(number)

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            _signal_group(self.process.pid, number)

    @property
    def message(self) -> str:
        names = ("err", "out") if self.exit_code else ("out",)
        return self.trouble or next(
            filter(None, (last_line(self.directory / name) for name in names)), ""
        )


class WorkerExitError(Exception):
    """The drone leaves: exit status and reason."""

    def __init__(
        self,
        status: int,
        why: str,
    ) -> None:
        super().__init__(why)
        self.status = status


class WorkerRetirement(NamedTuple):
    """A time without new jobs: running ones are asked to end at ``ask_at`` and killed at ``kill_at`` (monotonic)."""

    kill_at: float
    ask_at: float
    begin_at: float
    why: str

    @classmethod
    def within(
        cls,
        why: str,
        begin_at: float,
        grace_s: float,
    ) -> Self:
        return cls(begin_at + 0.9 * grace_s, begin_at + 0.7 * grace_s, begin_at, why)


class Worker:
    """One drone in the pool. It has one thread and waits for signals, so no handler interrupts it."""

    def __init__(
        self,
        settings: WorkerSettings,
        connection: sqlite3.Connection,
    ) -> None:
        self._settings = settings
        self._queue = connection
        self._inode = os.stat(settings.embedded_queue).st_ino
        self._gpus = FreeGpus.promised(settings.drone_gpu_milli, settings.cuda_visible_devices)
        self._jobs: list[JobAttempt] = []
        """Jobs that run, or have ended and are not reported yet."""
        self._jobs_started = 0
        self._idle_from = self._changed_at = time.monotonic()
        self._heartbeat_at = 0.0
        self.lease_until = 0.0
        """0 until it has joined."""
        self._drain_mode = ""
        self._retirements: dict[str, WorkerRetirement] = {}
        """By what causes them: ``walltime``, ``drain``, ``site``."""
        self._retires_at = math.inf
        if settings.drone_walltime_s:
            self._retires_at = self._idle_from + max(
                0.0, settings.drone_walltime_s - settings.drone_grace_s
            )
            why = f"end of its walltime of {settings.drone_walltime_s:g} s"
            self._retirements["walltime"] = WorkerRetirement.within(
                why, self._retires_at, settings.drone_grace_s
            )

    def run(self) -> NoReturn:
        """Run until :class:`WorkerExitError` is raised."""
        self._heartbeat()
        while True:
            try:
                self._turn()
            except sqlite3.OperationalError as error:
                self._assert_queue()
                if (
                    time.monotonic()
                    > self.lease_until + _LOST_LEASES * self._settings.embedded_lease_s
                ):
                    raise WorkerExitError(75, f"the queue could not be used: {error}") from error
            self._wait(min(self._settings.embedded_poll_s, self._settings.embedded_lease_s / 4))

    def leave_pool(self) -> None:
        """Remove the slot from the pool; if that fails the slot expires."""
        with contextlib.suppress(sqlite3.Error):
            queue.forget(self._queue, self._settings.drone_id)

    def kill_jobs(self) -> None:
        """Kill jobs that still run; they are idle again when their leases expire."""
        for one in self._jobs:
            one.interrupt()

    def _turn(self) -> None:
        safe_until = self.lease_until - (1 - _LEASE_SAFE) * self._settings.embedded_lease_s
        expired = lease_clock() >= safe_until
        for one in self._jobs:
            if one.poll() and one.exit_code == _KILLED and expired:
                one.interrupted = True  # by another process, which found the lease expired
            elif expired:
                one.interrupt()
        self._report()
        # A drain takes effect at once, not at the next heartbeat.
        mode = queue.drain_mode(self._queue, self._settings.drone_id)
        if time.monotonic() >= self._heartbeat_at or mode != self._drain_mode:
            self._heartbeat()
        retirement = self._retirement()
        self._end_jobs(retirement)
        if retirement is None:
            self._take()
        if self._jobs:
            return
        if retirement is not None:
            raise WorkerExitError(0, retirement.why)
        idle_s = time.monotonic() - self._idle_from
        if idle_s > self._settings.drone_idle_s:
            raise WorkerExitError(
                0, f"no job for {idle_s:.1f} s > {self._settings.drone_idle_s:g} s"
            )

    def _assert_queue(self) -> None:
        with contextlib.suppress(OSError):
            if os.stat(self._settings.embedded_queue).st_ino == self._inode:
                return
        raise WorkerExitError(75, f"the queue {self._settings.embedded_queue} is gone")

    def _wait(self, pause_s: float) -> None:
        """Wait until a job ends, a signal asks the drone to leave, or the pause is over."""
        caught = signal.sigtimedwait(_EVENTS, pause_s)
        if caught is not None and caught.si_signo in (signal.SIGTERM, signal.SIGINT):
            asked = WorkerRetirement.within(
                "asked to leave", time.monotonic(), self._settings.drone_grace_s
            )
            self._retirements.setdefault("site", asked)
            self._heartbeat_at = 0.0

    def _take(self) -> None:
        settings = self._settings
        before = self._jobs_started
        while True:
            lease_until = lease_clock() + settings.embedded_lease_s
            job = queue.take(self._queue, self._offer(), settings.drone_id, lease_until)
            if job is None:
                break
            begun = JobAttempt(
                job,
                self._gpus.take(job.used_gpu_milli),
                settings.drone_dir / f"job-{job.id}.{job.attempts}",
            )
            self._jobs.append(begun)
            self._jobs_started += 1
            self._changed_at = time.monotonic()
            # with others running, the earlier lease is the one that counts
            if len(self._jobs) == 1:
                self.lease_until = lease_until
            begun.begin(os.environ)
        if self._jobs_started > before:
            self._heartbeat()

    def _offer(self) -> queue.Offer:
        settings = self._settings
        jobs = [one.job for one in self._jobs]
        return {
            "has_gpus": settings.drone_gpu_milli > 0,
            "unchanged": time.monotonic() - self._changed_at > settings.embedded_lease_s,
            "whole_gpus": len(self._gpus.untouched),
            "share_milli": max(self._gpus.values(), default=0),
            "vram_mib": settings.drone_vram_mib,
            "cpus": settings.drone_cpus - sum(job.cpus for job in jobs),
            "memory_mib": settings.drone_memory_mib - sum(job.memory_mib for job in jobs),
            "disk_mib": settings.drone_disk_mib - sum(job.disk_mib for job in jobs),
            "capability": settings.embedded_capability,
            "gpu_model": settings.embedded_gpu_model,
            "life_s": self._retires_at - time.monotonic(),
            "job_filter": settings.drone_job_filter,
        }

    def _report(self) -> None:
        """Record the ends of jobs; jobs that were interrupted become idle again."""
        for one in [one for one in self._jobs if one.exit_code is not None]:
            if one.exit_code and one.interrupted and not one.trouble:
                queue.give_back(self._queue, one.job, f"drone {self._settings.drone_id} left")
            else:
                queue.finish(self._queue, one.job, one.exit_code or 0, one.message)
            self._jobs.remove(one)
            self._gpus.give_back(one.gpus)
            self._idle_from = self._changed_at = time.monotonic()
            self._heartbeat_at = 0.0

    def _retirement(self) -> WorkerRetirement | None:
        """Return the strictest of the retirements that have begun."""
        now = time.monotonic()
        return min(
            (each for each in self._retirements.values() if now >= each.begin_at), default=None
        )

    def _end_jobs(self, retirement: WorkerRetirement | None) -> None:
        now = time.monotonic()
        for one in self._jobs:
            if now >= one.ends_at:
                one.trouble = f"ran longer than its walltime of {one.job.walltime_s:g} s"
                one.signal(signal.SIGKILL)
            elif retirement is not None and now >= retirement.kill_at:
                one.interrupt()
            elif retirement is not None and now >= retirement.ask_at:
                one.interrupt(signal.SIGTERM)

    def _apply_drain(self, mode: str) -> None:
        """Apply the drain mode that the overlay asks for; an empty mode takes the drain back."""
        if mode != self._drain_mode:
            now = time.monotonic()
            limits_s = {"fast": (0.0, 0.0), "graceful": (0.0, self._settings.drone_grace_s)}
            ask_s, kill_s = limits_s.get(mode, (math.inf, math.inf))
            drain = WorkerRetirement(now + kill_s, now + ask_s, now, f"drained ({mode})")
            self._retirements["drain"], self._drain_mode = drain, mode
        if not mode:
            self._retirements.pop("drain", None)

    def _heartbeat(self) -> None:
        """Renew leases, publish the slot, read drain requests and release lost jobs of other drones."""
        self._assert_queue()
        lease_until = lease_clock() + self._settings.embedded_lease_s
        with queue.writing(self._queue):
            for one in self._jobs:
                if not queue.renew(self._queue, one.job, lease_until):
                    one.interrupt()
            self._apply_drain(queue.drain_mode(self._queue, self._settings.drone_id))
            self._publish()
        self.lease_until = lease_until
        self._heartbeat_at = time.monotonic() + self._settings.embedded_lease_s / 3
        queue.expire(self._queue, self._settings.embedded_max_lost)

    def _publish(self) -> None:
        settings = self._settings
        offer = self._offer()
        jobs = len(self._jobs)
        since_epoch_s = time.time() - time.monotonic()
        slot = {
            "name": f"{settings.drone_type}@{settings.drone_site}#{settings.drone_id}",
            "state": "draining" if self._retirement() is not None else "busy" if jobs else "idle",
            "free_gpu_milli": sum(self._gpus.values()),
            "free_cpus": offer["cpus"],
            "free_memory_mib": offer["memory_mib"],
            "free_disk_mib": offer["disk_mib"],
            "gpu_model": offer["gpu_model"],
            "vram_mib": offer["vram_mib"],
            "capability": offer["capability"],
            "jobs": jobs,
            "jobs_started": self._jobs_started,
            "idle_since": 0.0 if jobs else since_epoch_s + self._idle_from,
            "retires_at": since_epoch_s + self._retires_at if settings.drone_walltime_s else 0.0,
        }
        queue.publish(self._queue, settings.drone_id, slot)


def main() -> int:
    """Run a drone with the settings in its environment; return its exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _EVENTS)
    # a shell starts its background jobs with SIGINT ignored
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        settings = WorkerSettings.read(os.environ)
    except ValueError as error:
        print(f"called wrongly: {error}", file=sys.stderr)
        return 64
    leave = _serve(settings)
    line = f"{'failed' if leave.status else 'left'}: {leave}"
    print(line, flush=True)
    with contextlib.suppress(OSError):  # the log has it, too
        (settings.drone_dir / "outcome").write_text(line + "\n")
    return leave.status


def _serve(settings: WorkerSettings) -> WorkerExitError:
    """Join, work and leave."""
    worker: Worker | None = None
    try:
        busy_s = min(5.0, settings.embedded_lease_s / 4)
        worker = Worker(settings, queue.connect(settings.embedded_queue, busy_s=busy_s))
        worker.run()
    except WorkerExitError as leave:
        if worker is not None and leave.status != 75:
            worker.leave_pool()
        return leave
    except ValueError as error:
        return WorkerExitError(71, f"GPU check failed: {error}")
    except (sqlite3.Error, OSError) as error:
        status = 75 if worker is not None and worker.lease_until > 0 else 73
        return WorkerExitError(status, f"the queue {settings.embedded_queue}: {error}")
    finally:
        if worker is not None:
            worker.kill_jobs()


if __name__ == "__main__":
    sys.exit(main())
