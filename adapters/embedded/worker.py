"""What runs in a drone of the embedded overlay: it joins, checks itself, runs jobs from the queue, and leaves.

Exit status: 0 left in order, 64 called wrongly, 71 the GPU check failed, 72 it hung, 73 the queue could not be
reached, 75 the queue was lost. The last line of ``outcome`` in the drone's directory says why. Standard library only.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from adapters.embedded import attempt, table
from adapters.embedded.attempt import Attempt
from adapters.embedded.check import check
from adapters.embedded.devices import Devices
from adapters.embedded.guard import Guard
from adapters.embedded.terms import BadTerms, Terms

_EVENTS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
_FOREVER_S = 1e12
_KILLED = 128 + signal.SIGKILL
_LEASE_SAFE = 0.9
"""Share of the lease after which its jobs are killed if it could not be renewed: before anybody else may take them."""
_LOST_LEASES = 5
"""The queue is lost when it could not be used for this many leases."""


class Leave(Exception):
    """The drone ends: exit status and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Retirement:
    """No new jobs. Running ones are asked to end at ``ask_at`` and killed at ``kill_at`` (monotonic)."""

    why: str
    ask_at: float
    kill_at: float


def _strictest(retirements: list[Retirement]) -> Retirement | None:
    if not retirements:
        return None
    first = min(retirements, key=lambda r: r.kill_at)
    return Retirement(first.why, min(r.ask_at for r in retirements), first.kill_at)


class Worker:
    """One drone in the pool. One thread; signals are waited for, so nothing happens behind its back."""

    def __init__(self, terms: Terms, guard: Guard, connection: sqlite3.Connection) -> None:
        self._terms = terms
        self._guard = guard
        self._table = connection
        self._inode = os.stat(terms.queue).st_ino
        self._devices = Devices(terms.devices, terms.gpu_milli, terms.shares, terms.joins)
        self._running: list[Attempt] = []
        self._over: list[Attempt] = []
        """Ended, and not reported yet."""
        self._began = time.monotonic()
        self._idle_from = self._began
        self._state = "checking"
        self._jobs_started = 0
        self._beat_at = 0.0
        self._lease_until = 0.0
        self._drained: Retirement | None = None
        self._drain_mode = ""
        self._asked: Retirement | None = None

    # ---------------------------------------------------------------------------------------------- its life

    def run(self) -> NoReturn:
        """Raises :class:`Leave`, whatever happens."""
        self._beat()
        if self._terms.check:
            verdict = check(self._terms.check, self._guard, self._terms.check_deadline_s, self._pause)
            if verdict is not None:
                raise Leave(*verdict)
        self._state, self._idle_from, self._beat_at = "idle", time.monotonic(), 0.0
        while True:
            self._bearing(self._turn)
            self._wait(min(self._terms.poll_s, self._terms.lease_s / 4))

    def _pause(self) -> None:
        """While the check runs we show signs of life, and leave if asked to."""
        self._wait(min(1.0, self._terms.lease_s / 4))
        self._bearing(self._beat)
        if (retirement := self._retirement()) is not None:
            raise Leave(0, retirement.why)

    def _bearing(self, step: Callable[[], None]) -> None:
        """A queue that is busy comes back; one that is gone does not."""
        try:
            step()
        except sqlite3.OperationalError as error:
            self._assert_queue()
            if time.monotonic() > self._lease_until + _LOST_LEASES * self._terms.lease_s:
                raise Leave(75, f"the queue could not be used: {error}") from error

    def _turn(self) -> None:
        self._reap()
        self._fence()
        self._report()
        # A drain is heard at once, not at the next beat: who asked waits for it.
        if time.monotonic() >= self._beat_at or table.drain_mode(self._table, self._terms.drone_id) != self._drain_mode:
            self._beat()
        retirement = self._retirement()
        self._press(retirement)
        if retirement is None:
            self._take()
        self._leave_if_done(retirement)

    def _leave_if_done(self, retirement: Retirement | None) -> None:
        if self._running or self._over:
            return
        if retirement is not None:
            raise Leave(0, retirement.why)
        idle_s = time.monotonic() - self._idle_from
        if idle_s > self._terms.idle_s:
            raise Leave(0, f"no job for {idle_s:.1f} s > {self._terms.idle_s:g} s")

    def _assert_queue(self) -> None:
        try:
            if os.stat(self._terms.queue).st_ino == self._inode:
                return
        except OSError:
            pass
        raise Leave(75, f"the queue {self._terms.queue} is gone")

    def _wait(self, pause_s: float) -> None:
        """Until something happens: a job ends, we are asked to leave, the pause is over."""
        caught = signal.sigtimedwait(_EVENTS, pause_s)
        if caught is not None and caught.si_signo in (signal.SIGTERM, signal.SIGINT) and self._asked is None:
            now, grace_s = time.monotonic(), self._terms.grace_s
            self._asked = Retirement("asked to leave", now + 0.7 * grace_s, now + 0.9 * grace_s)
            self._beat_at = 0.0

    # -------------------------------------------------------------------------------------------------- jobs

    def _take(self) -> None:
        while table.fits_any(self._table, self._offer()):
            lease_until = table.lease_clock() + self._terms.lease_s
            begun = self._claim(lease_until)
            if begun is None:
                return
            if len(self._running) == 1:  # with others running, the earlier lease is the one that counts
                self._hold(lease_until)
            self._running[-1] = attempt.begin(
                begun.claim, begun.gpus, self._terms.directory, dict(os.environ), self._guard
            )
            self._guard.only(one.group for one in self._running if one.group)

    def _claim(self, lease_until: float) -> Attempt | None:
        """Take a job and show it in our slot, both or neither."""
        begun: Attempt | None = None
        try:
            with table.writing(self._table):
                claim = table.take(self._table, self._offer(), self._terms.drone_id, lease_until)
                if claim is not None:
                    begun = Attempt(claim, self._devices.take(claim.gpu_milli), self._terms.directory, float("inf"))
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

    def _offer(self) -> table.Offer:
        terms = self._terms
        used = [one.claim for one in (*self._running, *self._over)]
        return table.Offer(
            whole_gpus=self._devices.untouched,
            share_milli=self._devices.largest_share,
            cpus=terms.cpus - sum(claim.cpus for claim in used),
            memory_mib=terms.memory_mib - sum(claim.memory_mib for claim in used),
            disk_mib=terms.disk_mib - sum(claim.disk_mib for claim in used),
            vram_mib=terms.vram_mib // terms.shares,
            capability=terms.capability,
            gpu_model=terms.gpu_model,
            life_s=self._retires_at - time.monotonic() if terms.walltime_s else _FOREVER_S,
            submitted_before=_last_negotiation(time.time(), terms.negotiation_s),
            for_gpus=terms.gpu_milli > 0,
            each_milli=1000 // terms.shares,
            avoids=terms.avoids,
        )

    def _reap(self) -> None:
        for one in [one for one in self._running if one.ended]:
            one.kill()  # what the job left in its process group goes with it
            if one.exit_code == _KILLED and table.lease_clock() >= self._safe_until:
                one.cut = True  # by the guard, while we were stopped and the lease ran out
            self._running.remove(one)
            self._over.append(one)
            self._guard.only(other.group for other in self._running if other.group)

    def _report(self) -> None:
        """Write down how jobs ended; what was cut short waits again."""
        for one in list(self._over):
            with table.writing(self._table):
                if one.unfinished:
                    table.give_back(self._table, one.claim, f"drone {self._terms.drone_id} left")
                else:
                    table.finish(self._table, one.claim, one.exit_code, one.message)
            self._over.remove(one)
            self._devices.give_back(one.gpus)
            self._idle_from = time.monotonic()
            self._beat_at = 0.0

    def _fence(self) -> None:
        """Before a lease that we cannot renew runs out, its jobs must be dead."""
        if table.lease_clock() >= self._safe_until:
            for one in self._running:
                one.cut = True
                one.kill()

    def _hold(self, lease_until: float) -> None:
        self._lease_until = lease_until
        self._guard.hold_until(self._safe_until)

    @property
    def _safe_until(self) -> float:
        return self._lease_until - (1 - _LEASE_SAFE) * self._terms.lease_s

    # ---------------------------------------------------------------------------------------------- retiring

    @property
    def _retires_at(self) -> float:
        """Monotonic; when the site's walltime leaves no more than the grace."""
        terms = self._terms
        return self._began + max(0.0, terms.walltime_s - terms.grace_s) if terms.walltime_s else float("inf")

    def _retirement(self) -> Retirement | None:
        reasons = [reason for reason in (self._asked, self._drained) if reason is not None]
        if time.monotonic() >= self._retires_at:
            grace_s = self._terms.grace_s
            why = f"end of its walltime of {self._terms.walltime_s:g} s"
            reasons.append(Retirement(why, self._retires_at + 0.7 * grace_s, self._retires_at + 0.9 * grace_s))
        return _strictest(reasons)

    def _press(self, retirement: Retirement | None) -> None:
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

    def _heed(self, mode: str) -> None:
        """What the overlay has asked of us since the last beat; an empty mode takes it back."""
        if mode == self._drain_mode:
            return
        now, never = time.monotonic(), float("inf")
        self._drain_mode = mode
        match mode:
            case "":
                self._drained = None
            case "fast":
                self._drained = Retirement("drained (fast)", now, now)
            case "graceful":
                self._drained = Retirement("drained (graceful)", now, now + self._terms.grace_s)
            case _:
                self._drained = Retirement(f"drained ({mode})", never, never)

    # -------------------------------------------------------------------------------------------------- beat

    @property
    def joined(self) -> bool:
        return self._lease_until > 0

    def withdraw(self) -> None:
        """Out of the pool; a slot that cannot be withdrawn now is forgotten when it gives no sign of life."""
        try:
            with table.writing(self._table):
                table.withdraw(self._table, self._terms.drone_id)
        except sqlite3.Error as error:
            print(f"slot not withdrawn: {error}", file=sys.stderr)

    def _beat(self) -> None:
        """A sign of life: leases renewed, slot shown, requests heard, other drones' lost jobs set free."""
        self._assert_queue()
        lease_until = table.lease_clock() + self._terms.lease_s
        with table.writing(self._table):
            for one in (*self._running, *self._over):
                if not table.renew(self._table, one.claim, lease_until):
                    one.cut = True
                    one.kill()
            table.expire(self._table, self._terms.max_lost)
            self._heed(table.drain_mode(self._table, self._terms.drone_id))
            self._publish()
        self._hold(lease_until)
        self._beat_at = time.monotonic() + self._terms.lease_s / 3

    def _publish(self) -> None:
        terms, offer, now, mono = self._terms, self._offer(), time.time(), time.monotonic()
        jobs = len(self._running) + len(self._over)
        if self._state != "checking":
            self._state = "draining" if self._retirement() is not None else "busy" if jobs else "idle"
        table.publish(
            self._table,
            table.SlotRow(
                drone_id=terms.drone_id,
                site=terms.site,
                type=terms.type,
                state=self._state,
                free_gpu_milli=self._devices.free_milli,
                free_cpus=offer.cpus,
                free_memory_mib=offer.memory_mib,
                free_disk_mib=offer.disk_mib,
                jobs=jobs,
                jobs_started=self._jobs_started,
                idle_since=0.0 if jobs else now - (mono - self._idle_from),
                retires_at=now - mono + self._retires_at if terms.walltime_s else 0.0,
                gpu_model=terms.gpu_model,
                vram_mib=terms.vram_mib,
                capability=terms.capability,
            ),
        )


def _last_negotiation(now: float, period_s: float) -> float:
    """The end of the last negotiation; without such a thing, a time that every job was submitted before."""
    return now // period_s * period_s if period_s > 0 else now + _FOREVER_S


def main() -> int:
    """Run a drone by the environment that it was started with; its exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _EVENTS)
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell starts its background jobs with SIGINT ignored
        signal.signal(number, signal.SIG_DFL)
    try:
        terms = Terms.read(os.environ)
    except BadTerms as error:
        print(f"called wrongly: {error}", file=sys.stderr)
        return 64
    leave = _serve(terms)
    line = f"{'left' if leave.status == 0 else 'failed'}: {leave}"
    print(line, flush=True)
    try:
        (terms.directory / "outcome").write_text(line + "\n")
    except OSError as error:
        print(f"{terms.directory}/outcome: {error.strerror}", file=sys.stderr)
    return leave.status


def _serve(terms: Terms) -> Leave:
    """Join, work, leave; jobs that still run then are killed by the guard, and wait again when their leases end."""
    guard = Guard()
    worker: Worker | None = None
    try:
        connection = table.connect(terms.queue, busy_s=min(5.0, terms.lease_s / 4))
        worker = Worker(terms, guard, connection)
        worker.run()
    except Leave as leave:
        if worker is not None and leave.status != 75:
            worker.withdraw()
        return leave
    except ValueError as error:
        return Leave(71, f"GPU check failed: {error}")
    except (sqlite3.Error, OSError) as error:
        return Leave(75 if worker is not None and worker.joined else 73, f"the queue {terms.queue}: {error}")
    finally:
        guard.close()


if __name__ == "__main__":
    sys.exit(main())
