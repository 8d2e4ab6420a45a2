"""The site seam for a Slurm cluster: one listing tells all of ours, one array starts all drones of a type."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from adapters.shared.parcel import Unfit
from adapters.shared.printing import printable
from adapters.shared.starts import Starts
from adapters.slurm.audit import gaps
from adapters.slurm.blocking import render
from adapters.slurm.capacity import nodes
from adapters.slurm.downtime import downtime_at
from adapters.slurm.forgotten import Forgotten
from adapters.slurm.listing import Cancelled, Listing, listing, never_was
from adapters.slurm.names import is_drone, named
from adapters.slurm.owner import HIDDEN, Wanted, claims, hidden, running
from adapters.slurm.records import Partition, Reservation, SlurmClient, SlurmJob, job_id_key
from adapters.slurm.script import USUAL_ARRAY, Batch, batch, batches, checked, largest_array
from adapters.slurm.settings import SlurmSiteConfig
from adapters.slurm.states import map_state
from adapters.slurm.transports import cluster_of
from provisioner.interfaces import AdapterError, AuditFinding, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import (
    DroneId,
    DroneType,
    Fault,
    FaultKind,
    Node,
    OrderOutcome,
    OrderResult,
    OwnerLoad,
    RemoteDrone,
    RemoteState,
    SitePolicy,
    SiteView,
    StartOrder,
    StopOrder,
)

_STEADY_S = 60.0
"""Partitions and reservations are asked for again after so long."""
_MAY_COME_S = 180.0
"""A submit whose answer was lost may still get through for so long: sbatch itself tries again and again."""
_REMEMBERED_S = 86400.0


class SlurmSite:
    """Drones as jobs of our account. What is true is in slurmctld, so a restarted controller sees the same."""

    Config = SlurmSiteConfig

    def __init__(self, name: str, config: SlurmSiteConfig, types: Sequence[DroneType], controller: str) -> None:
        self._name, self._config, self._types, self._controller = name, config, tuple(types), controller
        self._entered: SlurmClient | None = None
        self._since = time.time()
        self._cancelled: dict[DroneId, float] = {}
        """When this controller asked for which end."""
        self._forgotten = Forgotten(config.retain_finished, config.accounting)
        self._starts = Starts(name, _MAY_COME_S)
        self._largest = 0
        self._steady: tuple[Sequence[Partition], Sequence[Reservation]] = (), ()
        self._steady_until = 0.0
        self._user = ""
        self._private: frozenset[str] | None = None
        """PrivateData of slurm.conf; None until it has been read."""
        self._looks = 0
        self._errand: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        cluster = cluster_of(self._config, self._name)
        self._entered = await cluster.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Drones live on. A submit that is under way is waited for: cut, nobody would know what became of it."""
        await self._starts.close(self._config.submit_deadline)
        if self._errand is not None:
            self._errand.cancel()
            await asyncio.wait([self._errand])
            self._errand = None
        if self._entered is not None:
            cluster, self._entered = self._entered, None
            await cluster.__aexit__(*exc)

    @property
    def _cluster(self) -> SlurmClient:
        if self._entered is None:
            raise UnavailableError("the site is not connected")
        return self._entered

    # -------------------------------------------------------------------------------------------------------- looking

    async def poll(self) -> SiteView:
        """Everything of ours (ended drones for ``retain_finished``), then the nodes, then the owner's jobs: in this
        order,
        so that a drone which starts meanwhile is counted twice rather than not at all, and an owner's job that starts
        is missed as a claim. Nothing is changed by it."""
        taken_at = time.time()
        jobs = await self._cluster.own_jobs()
        self._user = next((job.user for job in jobs if job.user), self._user)
        found = self._listing(jobs, taken_at)
        more, doubts = await self._forgotten.told(
            self._cluster, found.drones, lambda jobs: self._accounted(jobs, taken_at), taken_at, self._cancelled
        )
        slurm_nodes = await self._cluster.nodes()
        partitions, reservations = await self._steady_ones()
        users = (self._user,) if self._user else ()
        wheres = [self._config.where(kind.name) for kind in self._types]
        down_at = downtime_at(reservations, slurm_nodes, partitions, wheres, taken_at, users)
        here = nodes(
            slurm_nodes,
            partitions,
            self._types,
            self._config,
            reservations,
            now=taken_at,
            downtime_at=down_at,
            users=users,
        )
        wanted, runs, notices = Wanted(), None, [*found.notices, *doubts]
        if self._config.owner is not None:
            theirs = await self._cluster.active_jobs(self._config.owner.partitions)
            wanted = claims(theirs, slurm_nodes, here, self._config, is_drone)
            runs = running(theirs, here, self._config, is_drone)
            if hidden(theirs, await self._private_data(), self._user, is_drone):
                runs, notices = None, [*notices, f"owner: {HIDDEN}"]
        view = self._view(taken_at, {**more, **found.drones}, here, wanted, runs, down_at, notices)
        self._keep_house(found)
        return view

    def _view(
        self,
        taken_at: float,
        drones: Mapping[DroneId, RemoteDrone],
        here: Sequence[Node],
        wanted: Wanted,
        runs: OwnerLoad | None,
        down_at: float,
        notices: Sequence[str],
    ) -> SiteView:
        return SiteView(
            site=self._name,
            taken_at=taken_at,
            drones=drones,
            free=None if here else {kind.name: 0 for kind in self._types},
            nodes=tuple(here),
            claims=wanted.claims,
            owner_runs=runs,
            downtime_at=down_at,
            notices=(*notices, *self._cluster.notices(), *self._house_trouble()),
            remarks=wanted.notices,
        )

    def _listing(self, jobs: Iterable[SlurmJob], now: float, keep_s: float = 0.0) -> Listing:
        self._cancelled = {d: at for d, at in self._cancelled.items() if at > now - _REMEMBERED_S}
        cancelled = Cancelled(self._since, self._cancelled)
        keep_s = keep_s or self._config.retain_finished
        return listing(jobs, self._controller, self._name, cancelled, now=now, keep_s=keep_s)

    def _accounted(self, jobs: Iterable[SlurmJob], now: float) -> Mapping[DroneId, RemoteDrone]:
        """Who may ask for everybody's jobs (root) is told of everybody's: a name alone makes no drone of ours."""
        ours = (job for job in jobs if not self._user or job.user in ("", self._user))
        return self._listing(ours, now, keep_s=math.inf).drones

    async def _steady_ones(self) -> tuple[Sequence[Partition], Sequence[Reservation]]:
        """What changes but now and then."""
        if time.monotonic() >= self._steady_until:
            self._steady = await self._cluster.partitions(), await self._cluster.reservations()
            self._steady_until = time.monotonic() + _STEADY_S
        return self._steady

    async def _private_data(self) -> frozenset[str]:
        """Return the words of PrivateData; none while the configuration cannot be read."""
        if self._private is None:
            try:
                told = (await self._cluster.configuration()).get("PrivateData", "")
            except AdapterError:
                return frozenset()
            self._private = frozenset(told.lower().split(","))
        return self._private

    # --------------------------------------------------------------------------------------------------- housekeeping

    def _keep_house(self, found: Listing) -> None:
        """Between looks, one errand at a time; who looks but once (``provisioner check``) keeps no house."""
        self._looks += 1
        if self._looks > 1 and found.surplus and (self._errand is None or self._errand.done()):
            errand = self._without_surplus(found.surplus)
            self._errand = asyncio.create_task(errand, name=f"housekeeping of site {self._name}")

    async def _without_surplus(self, surplus: Sequence[str]) -> None:
        """Of a drone that is there twice, the one that has less to lose goes."""
        with contextlib.suppress(AdapterError):  # then after the next look
            await self._cluster.cancel(surplus)

    def _house_trouble(self) -> Iterable[str]:
        errand = self._errand
        if errand is not None and errand.done() and not errand.cancelled() and (error := errand.exception()):
            yield printable(f"housekeeping: {type(error).__name__}: {error}", 300)

    # ------------------------------------------------------------------------------------------------------- auditing

    async def audit(self, policy: SitePolicy) -> Sequence[AuditFinding]:
        """Where the cluster does not do what ``policy`` says, as its configuration shows it."""
        here = await self._cluster.nodes()
        partitions = await self._cluster.partitions()
        configuration = await self._cluster.configuration()
        found = gaps(here, partitions, configuration, policy, self._types, self._config)
        if self._config.owner is None:
            return found
        private = configuration.get("PrivateData", "").lower().split(",")
        theirs = await self._cluster.active_jobs(self._config.owner.partitions)
        return (
            (*found, AuditFinding("slurm.conf", "owner", HIDDEN))
            if hidden(theirs, private, self._user, is_drone)
            else found
        )

    def render_blocking(self, policy: SitePolicy) -> str:
        """Lines for the cluster's slurm.conf."""
        return render(policy, self._types, self._config)

    # ------------------------------------------------------------------------------------------------------- starting

    async def start(self, orders: Sequence[StartOrder]) -> Sequence[OrderResult]:
        """Drones that are there already are done; the others go in one array for each type.

        A caller that gives up does not cut the submit that is under way: it comes to its end (nothing is submitted
        after it), and the next start waits for that and then finds its drones in the listing.
        """
        receipts: dict[DroneId, OrderResult] = {}
        fit = []
        for order in orders:
            try:
                checked(order, self._controller)
                fit.append(order)
            except Unfit as error:
                receipts[order.drone_id] = _refused(order.drone_id, FaultKind.CONFIG, printable(str(error), 300))
        if fit:
            answers = await self._starts.run(
                [order.drone_id for order in fit], lambda given_up: self._started(fit, given_up)
            )
            receipts |= {receipt.drone_id: receipt for receipt in answers}
        return [receipts[order.drone_id] for order in orders]

    async def _started(self, orders: Sequence[StartOrder], given_up: asyncio.Event) -> Sequence[OrderResult]:
        there = await self._there({order.drone_id for order in orders})
        self._starts.there(there)
        receipts = [OrderResult(drone_id, OrderOutcome.OK, jobs[0].remote_id) for drone_id, jobs in there.items()]
        missing = []
        for order in orders:
            if self._starts.may_come(order.drone_id):
                receipts.append(_unsure(order.drone_id, "an earlier submit of it may still get through"))
            elif order.drone_id not in there:
                missing.append(order)
        for each in batches(missing, self._config, await self._largest_array(len(missing))):
            if not given_up.is_set():
                receipts += await self._submitted(each)
        return receipts

    async def _there(self, drone_ids: Iterable[DroneId]) -> Mapping[DroneId, Sequence[SlurmJob]]:
        """The jobs of these drones, those that live before those that have ended, then the oldest first."""
        wanted = frozenset(drone_ids)
        found: dict[DroneId, list[SlurmJob]] = {}
        for job in await self._cluster.own_jobs():
            who = named(job, self._controller, self._name)
            if who is not None and who.drone_id in wanted and not never_was(job):
                found.setdefault(who.drone_id, []).append(job)
        for jobs in found.values():
            jobs.sort(key=lambda job: (not _lives(job), job_id_key(job.remote_id)))
        return found

    async def _largest_array(self, orders: int) -> int:
        if not self._largest and orders > 1:
            try:
                self._largest = largest_array(await self._cluster.configuration())
            except AdapterError:
                return USUAL_ARRAY
        return self._largest or USUAL_ARRAY

    async def _submitted(self, drones: Batch) -> list[OrderResult]:
        """Never raises a site's error: another batch may have gone through. Of an array that is refused as a whole, by
        a limit or as larger than arrays are here, as many drones as are taken are found by halving."""
        try:
            job = await self._cluster.submit(drones.submission)
        except AdapterError as error:
            if isinstance(error, OutcomeUnknownError):
                self._starts.without_answer(drones.drone_ids)
                return [_unsure(drone_id, str(error)) for drone_id in drones.drone_ids]
            if isinstance(error, RejectedError) and len(drones.orders) > 1 and _is_of_so_many(error):
                return await self._submitted_in_halves(drones)
            return [_refused(drone_id, error.kind, str(error)) for drone_id in drones.drone_ids]
        ids = zip(drones.drone_ids, drones.remote_ids(job), strict=True)
        return [OrderResult(drone_id, OrderOutcome.OK, remote_id) for drone_id, remote_id in ids]

    async def _submitted_in_halves(self, drones: Batch) -> list[OrderResult]:
        half = len(drones.orders) // 2
        first = await self._submitted(batch(drones.orders[:half], self._config))
        if first[-1].answer is OrderOutcome.OK:
            return first + await self._submitted(batch(drones.orders[half:], self._config))
        fault = first[-1].fault
        return first + [OrderResult(drone_id, OrderOutcome.REJECTED, "", fault) for drone_id in drones.drone_ids[half:]]

    # ------------------------------------------------------------------------------------------------------- stopping

    async def stop(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        """By ``scancel``: SIGTERM to the drone, SIGKILL after KillWait; with ``kill`` at once."""
        if not orders:
            return []
        wanted = {order.drone_id: order.kill for order in orders}
        await self._starts.settled(wanted.keys())
        asked: list[DroneId] = []
        polite: list[str] = []
        forced: list[str] = []
        remote: dict[DroneId, str] = {}
        for drone_id, jobs in (await self._there(wanted)).items():
            remote[drone_id] = jobs[0].remote_id
            if any(map(_lives, jobs)):  # the end of one that has ended is not ours
                asked.append(drone_id)
            for job in filter(_lives, jobs):
                if wanted[drone_id]:
                    forced.append(job.remote_id)
                elif "COMPLETING" not in (*job.flags, job.state):
                    polite.append(job.remote_id)
        self._cancelled |= dict.fromkeys(asked, time.time())
        if polite:
            await self._cluster.cancel(polite)
        if forced:
            await self._cluster.cancel(forced, kill=True)
        return [OrderResult(order.drone_id, OrderOutcome.OK, remote.get(order.drone_id, "")) for order in orders]


def _lives(job: SlurmJob) -> bool:
    return map_state(job.state, job.flags).state is not RemoteState.ENDED


def _is_of_so_many(error: RejectedError) -> bool:
    """Whether it may be the number of drones that is refused. (MaxArraySize is not told by every transport.)"""
    return error.kind is FaultKind.QUOTA or (error.kind is FaultKind.CONFIG and "array" in str(error))


def _unsure(drone_id: DroneId, message: str) -> OrderResult:
    return OrderResult(drone_id, OrderOutcome.UNKNOWN, "", Fault(FaultKind.UNKNOWN, message, time.time()))


def _refused(drone_id: DroneId, kind: FaultKind, message: str) -> OrderResult:
    return OrderResult(drone_id, OrderOutcome.REJECTED, "", Fault(kind, message, time.time()))
