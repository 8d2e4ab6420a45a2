"""Which jobs there are, by one cheap listing of states, and whose they are, by looking at each job once.

slurmrestd has no cheap listing that tells whose a job is. What was seen of a job is remembered for as long as slurmctld
knows it, and a job is looked at again when its state changes, if it is ours or in a partition that we watch. Of those
of ours that do not change a few are looked at in turn: what a job waits for, when it is expected to start, and that it
is being preempted, is not in the listing of states.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from adapters.shared.printing import printable
from adapters.slurm.records import SlurmJob
from adapters.slurm.rest_link import RestLink, TooLong
from adapters.slurm.rest_records import Entry, Looked, entry, looked
from provisioner.interfaces import AdapterError, UnavailableError
from provisioner.model import FaultKind

LONGEST_ARRAY = 5000
"""Tasks of an array of ours. One call tells of all of an array's jobs; an array that is longer than an answer may be
is nobody that we need to know."""
_WIDTH = 6
_NO_SUCH_JOB = 2017
_STILL_NEW_S = 1.0
"""Age of a listing at which it still tells what others do."""
_WAITS_OR_RUNS = ("PENDING", "RUNNING", "SUSPENDED")
_ALL_IS_SAID = (*_WAITS_OR_RUNS, "CANCELLED")
"""States that can do without an exit status and a reason for a while."""
_FOLLOWED_AT_ONCE = 500
"""Looks at jobs whose state changed: half a second of our time."""


@dataclass(slots=True)
class _Known:
    """What is remembered of one of Slurm's job numbers."""

    looked: Looked | None
    """None: it is not shown to us, so it is not ours."""
    listed: Entry
    """How it was listed when it was looked at."""
    turn: int
    """When that was."""


class Roll:
    """The jobs that slurmctld knows. ``user`` is who we are."""

    def __init__(self, link: RestLink, user: str, per_look: int) -> None:
        self._link, self._user, self._per_look = link, user, per_look
        self._known: dict[int, _Known] = {}
        self._watched: frozenset[str] = frozenset()
        self._turn, self._credit = 0, 0
        self._busy = asyncio.Lock()
        self._listing: dict[int, list[Entry]] = {}
        self._listed_at = -math.inf
        self._surely_ours = 0

    async def own_jobs(self, deadline_s: float) -> Sequence[SlurmJob]:
        """All of our jobs. UnavailableError as long as it is not known of every job whether it is ours."""
        jobs = await self._caught_up(deadline_s, old_s=0.0)
        self._judge_who_we_are()
        return [job for job in jobs if job.user == self._user]

    async def active_jobs(self, partitions: Collection[str], deadline_s: float) -> Sequence[SlurmJob]:
        """Everyone's jobs that wait or run in these partitions. UnavailableError as in :meth:`ours`."""
        wanted = self._watched = frozenset(partitions)
        jobs = await self._caught_up(deadline_s, old_s=_STILL_NEW_S)
        return [job for job in jobs if job.state in _WAITS_OR_RUNS and _in(job, wanted)]

    def submitted(self, number: int) -> None:
        """This one is certainly ours."""
        self._surely_ours = number

    def _judge_who_we_are(self) -> None:
        known = self._known.get(self._surely_ours)
        if known is not None and known.looked is not None and known.looked.job.user != self._user:
            who = printable(known.looked.job.user, 60)
            raise UnavailableError(
                f"{self._link.where}: jobs that we submit are `{who}`'s, not `{self._user}`'s: write `user: {who}`",
                FaultKind.CONFIG,
            )

    # ------------------------------------------------------------------------------------------------------ catching up

    async def _caught_up(self, deadline_s: float, *, old_s: float) -> Sequence[SlurmJob]:
        """All jobs, of a listing that may be so old. What was looked at is kept when time runs out."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        until = asked_at + deadline_s
        try:
            async with asyncio.timeout_at(until):
                await self._busy.acquire()
        except TimeoutError:
            raise UnavailableError(f"{self._link.where}: another listing takes longer than {deadline_s:g} s") from None
        try:
            if self._listed_at < asked_at - old_s:  # else one was begun meanwhile, and is as good as our own
                began_at = loop.time()
                self._listing = await self._states(until - began_at)
                self._listed_at = began_at
                self._turn += 1
                self._credit = min(self._per_look, self._credit + self._per_look)
                for gone in self._known.keys() - self._listing.keys():
                    del self._known[gone]
            await self._learn(until)
            await self._follow(until)
            await self._look_again(until)
            return list(self._jobs())
        finally:
            self._busy.release()

    async def _states(self, left_s: float) -> dict[int, list[Entry]]:
        answer = await self._link.read("slurm/{}/jobs/state/", deadline_s=max(left_s, 0.001))
        found: dict[int, list[Entry]] = {}
        for each in map(entry, answer.items("jobs")):
            found.setdefault(each.number, []).extend(self._tasks(each) if each.all_tasks else [each])
        return {number: entries for number, entries in found.items() if entries}

    def _tasks(self, every: Entry) -> Sequence[Entry]:
        """Which tasks are meant is known from before, or not at all; then they have ended without having begun."""
        last = [each for each in self._listing.get(every.number, ()) if each.task is not None]
        if not last and every.state in _WAITS_OR_RUNS:
            return [every]
        return [replace(each, state=every.state, flags=every.flags) for each in last]

    def _unknown(self) -> Sequence[int]:
        """Numbers of which nothing can be told before they are looked at, new ones first: whose they are, or how they
        ended. Ascending: the first number of an array tells of all of it."""
        new = [number for number in self._listing if number not in self._known]
        return [*sorted(new), *(number for number in self._changed() if self._ended_since(number))]

    def _ended_since(self, number: int) -> bool:
        known, now = self._known[number], self._listing[number][0].state
        ours = known.looked is not None and known.looked.job.user == self._user
        return ours and now not in _ALL_IS_SAID and now != known.listed.state

    def _changed(self) -> Sequence[int]:
        return sorted(number for number, entries in self._listing.items() if self._has_changed(number, entries[0]))

    def _has_changed(self, number: int, now: Entry) -> bool:
        known = self._known.get(number)
        if known is None or known.looked is None or known.turn == self._turn:
            return False
        if known.looked.job.user != self._user and not _in(known.looked.job, self._watched):
            return False
        if (known.listed.state, known.listed.flags) != (now.state, now.flags):
            return True
        # the last waiting task of an array takes the array's own number along when it starts
        return known.looked.task is not None and known.looked.task != now.task

    async def _learn(self, until: float) -> None:
        """Look at all that nothing can be told of otherwise."""
        failures = await self._look_at(self._unknown(), until)
        if left := len(self._unknown()):
            if failures and asyncio.get_running_loop().time() < until:
                raise failures[0]
            known_of, all_of_them = len(self._listing) - left, len(self._listing)
            raise UnavailableError(
                f"{self._link.where}: still learning which jobs are ours: {known_of} of {all_of_them}"
            )

    async def _follow(self, until: float) -> None:
        """Look at what has changed, as much as can be done now; of the rest only the state is told this time."""
        loop = asyncio.get_running_loop()
        half_way = loop.time() + (until - loop.time()) / 2
        failures = await self._look_at(self._changed()[:_FOLLOWED_AT_ONCE], half_way)
        if failures and loop.time() < half_way:
            raise failures[0]

    async def _look_at(self, numbers: Sequence[int], until: float) -> Sequence[AdapterError]:
        """What failed; after a failure no more are begun."""
        left, failures = iter(numbers), list[AdapterError]()

        async def some() -> None:
            for number in left:
                known = self._known.get(number)
                if failures:
                    return
                if known is not None and known.turn == self._turn:
                    continue  # told of by another of its array
                try:
                    await self._look(number, until)
                except AdapterError as error:
                    failures.append(error)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until), asyncio.TaskGroup() as group:
                for _ in range(min(_WIDTH, len(numbers))):
                    group.create_task(some())
        return failures

    async def _look_again(self, until: float) -> None:
        """At a few that have not changed, as far as time and the operator's bound allow: those looked at longest ago,
        one that runs after each that waits. An array that was begun costs as much as it has jobs."""
        loop = asyncio.get_running_loop()
        half_way = loop.time() + (until - loop.time()) / 2
        waiting, running = (self._oldest(state) for state in ("PENDING", "RUNNING"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(half_way):
                while self._credit > 0 and (waiting or running):
                    for queue in (waiting, running):
                        if queue and self._credit > 0:
                            self._credit -= await self._look(queue.popleft(), until)

    def _oldest(self, state: str) -> deque[int]:
        found = [
            (known.turn, number)
            for number, known in self._known.items()
            if known.looked
            and known.turn < self._turn
            and known.looked.job.user == self._user
            and known.listed.state == state
        ]
        return deque(number for _, number in sorted(found)[: self._per_look])

    async def _look(self, number: int, until: float) -> int:
        """Look at one number, and how many jobs were told of."""
        left_s = max(until - asyncio.get_running_loop().time(), 0.001)
        listed = self._listing[number][0]
        try:
            # without `flags` it would tell of every core that a job has, three times as much
            answer = await self._link.ask("GET", f"slurm/{{}}/job/{number}", [("flags", "ALL")], deadline_s=left_s)
        except TooLong:
            self._known[number] = _Known(None, listed, self._turn)
            return 1
        if answer.complains_of(_NO_SUCH_JOB):
            self._known[number] = _Known(None, listed, self._turn)
            return 1
        if answer.status != 200 or answer.complaints:
            raise UnavailableError(f"{self._link.where}: {answer.said}")
        found = [looked(record) for record in answer.items("jobs")]
        for each in found:
            if entries := self._listing.get(each.number):
                self._known[each.number] = _Known(each, entries[0], self._turn)
        if not any(each.number == number for each in found):
            raise UnavailableError(f"{self._link.where}: asked for job {number}, it tells of another")
        return len(found)

    # ---------------------------------------------------------------------------------------------------------- telling

    def _jobs(self) -> Iterator[SlurmJob]:
        for number, entries in self._listing.items():
            known = self._known[number]
            if known.looked is not None:
                yield from _told(known, entries, fresh=known.turn == self._turn)


def _in(job: SlurmJob, partitions: frozenset[str]) -> bool:
    return not partitions.isdisjoint(job.partition.split(","))


def _told(known: _Known, entries: Iterable[Entry], *, fresh: bool) -> Iterator[SlurmJob]:
    """The jobs that one number stands for: more than one where tasks of an array wait."""
    assert known.looked is not None
    seen, job = known.looked, known.looked.job
    for each in entries:
        remote_id = f"{seen.array}_{each.task}" if seen.array and each.task is not None else job.remote_id
        if fresh and seen.task == each.task:
            yield job
        elif each.state == job.state:
            yield replace(job, remote_id=remote_id, flags=each.flags)
        else:  # it has moved on since: who it is does not change
            yield replace(
                job,
                remote_id=remote_id,
                state=each.state,
                flags=each.flags,
                reason="",
                started_at=0.0,
                ends_at=0.0,
                preempted_at=0.0,
                nodes=(),
                exit_code=None,
                signal=0,
            )
