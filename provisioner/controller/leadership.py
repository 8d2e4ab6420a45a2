"""Leadership: whether this controller may act, and for how much longer.

A controller that alone holds its record always leads. With ``ha`` several members share a record,
and the one that holds the lease leads. Its time is counted by monotonic clocks alone: that of the
leader counts from before a renewal was sent, and that of a standby from when it saw the renewal. So
the lease ends for the leader first, and no clock that is set matters.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from math import inf

import structlog

from provisioner.controller.compute_thread import ComputeThread
from provisioner.interfaces import RejectedError
from provisioner.model import FaultKind
from provisioner.store import StoreError
from provisioner.store.lease import Lease, LeaseStore, Member, Term
from provisioner.values import define, factory

log = structlog.get_logger()

BEATS_PER_LEASE = 5
"""Renewals within the time of a lease: four may fail."""
LEAST_PART_LEFT = 0.5
"""Part of the lease that has to be left for a call to be made."""


async def any_set(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waits = [asyncio.ensure_future(each.wait()) for each in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


class LeaseEndsError(RejectedError):
    """The call was not made: this controller may not lead for as long as it takes."""

    kind = FaultKind.LEASE


class Leadership:
    """The leadership of a controller that alone holds its record."""

    term: Term | None = None
    """Proved by each transaction; None: there is nothing to prove."""
    takes_over = False
    """Orders of a leader before this one may still be carried out."""

    def require(self) -> None:
        """Raise :class:`LeaseEndsError` unless a call may be made now."""

    def limit(self, deadline_s: float) -> AbstractAsyncContextManager[object]:
        """Limit a call to its deadline, and to the leadership. Leaving it raises TimeoutError."""
        return asyncio.timeout(deadline_s)


@define
class Membership(Leadership):
    """The leadership of one of several members, which holds while its lease is renewed."""

    leases: LeaseStore
    thread: ComputeThread
    member: Member
    duration_s: float
    on_change: Callable[[str], None] = lambda status: None
    """Called with a line for people when the state changes."""
    lacks: Callable[[], tuple[str, ...]] = tuple
    """Returns the views that this member lacks."""
    files: Callable[[], str] = str
    """Returns why the own files of this member are not in force."""
    unfit: str = ""
    """Why this member may not lead; empty: it may."""
    lease: Lease | None = None
    """As it was last read."""
    news: asyncio.Event = factory(asyncio.Event)
    """Set when there are other generations of the configuration on record."""
    changed: asyncio.Event = factory(asyncio.Event)
    """Set when this member begins to lead, or ceases to."""
    term: Term | None = None
    takes_over: bool = False
    orderly: bool = True
    """No order of the term is under way any more."""
    went_back: str = ""
    """Evidence that the database has lost an epoch; empty: none."""
    _until: float = -inf
    """End of the lease, by the event loop's clock."""
    _not_before: float = -inf
    """Time before which the lease is left to others, by the same clock."""
    _calls: dict[asyncio.Timeout, float] = factory(dict)
    """Limits of the calls under way, each with the deadline of its own."""
    _seen_at: float = inf
    """When ``lease`` was first seen with its renewal, by the same clock."""
    _watches: bool = False
    """A renewal was seen."""
    _epoch: int = 0
    """Largest seen."""
    _failure: str = ""

    @property
    def leads(self) -> bool:
        return self.term is not None and not self.term.lost

    @property
    def left_s(self) -> float:
        """Return the time left of the lease; 0 for a standby."""
        left_s = self._until - asyncio.get_running_loop().time()
        return max(0.0, left_s) if self.leads else 0.0

    def require(self) -> None:
        left_s = self.left_s
        if left_s < self.duration_s * LEAST_PART_LEFT:
            raise LeaseEndsError(
                f"not ordered: the lease of this controller ends in {left_s:.1f} s"
            )

    @asynccontextmanager
    async def limit(self, deadline_s: float) -> AsyncIterator[None]:
        """Limit a call as the base class does. It goes on for as long as the lease is renewed."""
        ends = asyncio.get_running_loop().time() + deadline_s
        async with asyncio.timeout_at(min(ends, self._until)) as limit:
            self._calls[limit] = ends
            try:
                yield
            finally:
                del self._calls[limit]

    async def run(self) -> None:
        """Renew or seek the lease, for as long as this task lives."""
        while True:
            await self.beat()
            await asyncio.sleep(self.duration_s / BEATS_PER_LEASE)

    async def beat(self) -> None:
        """Renew or seek the lease once. Never raises: without an answer the lease runs out."""
        sent = asyncio.get_running_loop().time()
        term = self.term if self.leads else None
        lost = None if self.leads else self.term
        if lost is not None:
            self._end(f"the term of epoch {lost.epoch} is over")
        lacks = (self.unfit, *self.lacks()) if self.unfit else self.lacks()
        known = self.leases.generations
        member = replace(self.member, lacks=lacks, epoch=self._epoch, files=self.files())
        takes = partial(self._takes, sent)
        try:
            beat = partial(self.leases.beat, member, self.duration_s, term, takes)
            before, lease = await self.thread.run(beat)
        except StoreError as error:
            self._failed(str(error))
            return
        self._failed("")
        if lost is not None and before.term == (lost.epoch, lost.nonce):
            self._note_loss(before, lost.writes)
        self._compare(before)
        self._compare(lease)
        if self.leases.generations != known:
            self.news.set()
        if lease.is_held and lease.member != self.member.name:
            self._not_before = -inf  # it was left to this one, which may give it back at once
        if term is not None and lease.term != (term.epoch, term.nonce):
            self._end(f"{lease.member} leads now, in epoch {lease.epoch}")
        elif term is not None:
            self._extend(sent + self.duration_s)
        elif lease.member == self.member.name and lease.term != before.term:
            self._extend(sent + self.duration_s)
            self.takes_over = not before.was_released
            self.term = Term(*lease.term)
            log.info("lease.acquired", member=self.member.name, epoch=lease.epoch)
            self._tell(f"leads in epoch {lease.epoch}")

    async def leave(self) -> None:
        """Leave. After an ``orderly`` term the lease is free at once, else it is left to run out."""
        if self.term is not None:
            self._end("released the lease" if self.orderly else "the lease is left to run out")
        try:
            await self.thread.run(partial(self.leases.leave, self.member, releases=self.orderly))
        except StoreError as error:
            self._failed(str(error))

    def stand_back(self) -> None:
        """Leave the lease to others for a while."""
        self._not_before = asyncio.get_running_loop().time() + 2 * self.duration_s

    def _extend(self, until: float) -> None:
        self._until = until
        for limit, ends in self._calls.items():
            if not limit.expired():
                limit.reschedule(min(ends, until))

    def _end(self, why: str) -> None:
        self.term = None
        self._until = -inf
        for limit in self._calls:
            if not limit.expired():
                limit.reschedule(-inf)
        log.info("lease.lost", member=self.member.name, why=why)
        self._tell(f"stands by: {why}")

    def _takes(self, now: float, lease: Lease) -> bool:
        """Return True if the lease is free: given back, or not renewed for as long as it lasts.

        A member that has seen no renewal yet goes by the clock of the database.
        """
        if self.unfit or now < self._not_before:
            return False
        if self.lease is None:
            return not lease.is_held
        lasts_s = max(self.duration_s, lease.until_at - lease.renewed_at)
        is_silent = now >= self._seen_at + lasts_s and lease.renewal == self.lease.renewal
        trusts_clock = lease.was_released or not self._watches
        return is_silent or (trusts_clock and not lease.is_held)

    def _compare(self, lease: Lease) -> None:
        """Note the newest lease, and whether it is older than what was seen before."""
        seen = self.lease or lease
        if self.lease is None or lease.renewal != seen.renewal:
            self._seen_at = asyncio.get_running_loop().time()
            self._watches = self.lease is not None
        self.lease = lease
        if lease.term == seen.term:
            self._note_loss(lease, seen.writes)
        elif lease.epoch <= seen.epoch and seen.nonce:
            self._goes_back(f"epoch {lease.epoch} after {seen.epoch}")
        self._epoch = max(self._epoch, lease.epoch)

    def _note_loss(self, lease: Lease, writes: int) -> None:
        if lease.writes < writes:
            self._goes_back(f"{writes - lease.writes} transactions of epoch {lease.epoch}")

    def _goes_back(self, evidence: str) -> None:
        if self.went_back:
            return
        self.went_back = evidence
        log.error("lease.epoch_went_back", evidence=evidence)

    def _failed(self, why: str) -> None:
        if why and not self._failure:
            self.on_change(f"no order is given: {why}")
            log.error("lease.renewal_failed", message=why, left_s=round(self.left_s, 1))
        elif self._failure and not why:
            log.info("lease.database_answers", left_s=round(self.left_s, 1))
            self.on_change("leads" if self.leads else "stands by")
        self._failure = why

    def _tell(self, text: str) -> None:
        self.on_change(text)
        self.changed.set()
