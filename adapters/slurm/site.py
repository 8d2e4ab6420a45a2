"""The Slurm site: one listing shows all of our drones, one array starts all drones of a type."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from adapters.shared.commands.choice import optional_package
from adapters.shared.parcel import UnfitError
from adapters.shared.printing import printable
from adapters.shared.starts import Starts
from adapters.slurm.blocking import SlurmAudit, render_blocking
from adapters.slurm.capacity import list_nodes, next_downtime, resolve_types
from adapters.slurm.drones import (
    CancelledDrones,
    ForgottenDrones,
    SlurmDroneListing,
    drone_of,
    is_rejected_submission,
    list_drones,
)
from adapters.slurm.owner import HIDDEN_OWNER_JOBS, SlurmOwnerDemands, are_jobs_hidden, owner_demands, owner_load
from adapters.slurm.records import Partition, Reservation, SlurmClient, SlurmJob, job_id_key
from adapters.slurm.settings import SlurmSiteConfig
from adapters.slurm.states import map_state
from adapters.slurm.submission import (
    DEFAULT_MAX_ARRAY_SIZE,
    SlurmBatch,
    make_batch,
    make_batches,
    max_array_size,
    validate_order,
)
from provisioner.interfaces import AdapterError, AuditFinding, OutcomeUnknownError, RejectedError, UnavailableError
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

_CLUSTER_REFRESH_S = 60.0
"""Partitions and reservations are listed again after so long."""
_LATE_SUBMIT_S = 180.0
"""A submission whose answer was lost may still get through for so long: sbatch itself retries."""
_CANCELLED_TTL_S = 86400.0


class SlurmSite:
    """Drones as jobs of our account. All state is in slurmctld, so a restarted controller sees the same."""

    Config = SlurmSiteConfig

    def __init__(self, name: str, config: SlurmSiteConfig, types: Sequence[DroneType], controller: str) -> None:
        self._name, self._config, self._types, self._controller = name, config, tuple(types), controller
        self._client: SlurmClient | None = None
        self._since = time.time()
        self._cancelled: dict[DroneId, float] = {}
        """When this controller cancelled which drone."""
        self._forgotten = ForgottenDrones(config.retain_finished, config.accounting)
        self._starts = Starts(name, _LATE_SUBMIT_S)
        self._partitions: tuple[Sequence[Partition], Sequence[Reservation]] = (), ()
        self._partitions_until = 0.0
        self._user = ""
        self._slurm_conf: Mapping[str, str] = {}
        self._polls = 0
        self._cleanup: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        client = make_client(self._config, self._name)
        self._client = await client.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Leave drones alone, and wait for a submission in progress: the outcome of a cut one is unknown."""
        await self._starts.close(self._config.submit_deadline)
        if self._cleanup is not None:
            self._cleanup.cancel()
            await asyncio.wait([self._cleanup])
            self._cleanup = None
        if self._client is not None:
            client, self._client = self._client, None
            await client.__aexit__(*exc)

    @property
    def _cluster(self) -> SlurmClient:
        if self._client is None:
            raise UnavailableError("the site is not connected")
        return self._client

    # -------------------------------------------------------------------------------------------------------- polling

    async def poll(self) -> SiteView:
        """Return our drones (ended ones for ``retain_finished``), the nodes, and the owner's jobs; change nothing.

        They are listed in this order, so that a drone which starts meanwhile is counted twice rather than not at all,
        and an owner's job that starts meanwhile is missed as a demand.
        """
        taken_at = time.time()
        jobs = await self._cluster.own_jobs()
        self._user = next((job.user for job in jobs if job.user), self._user)
        listing = self._listing(jobs, taken_at)
        forgotten, accounting_notices = await self._forgotten.resolve(
            self._cluster, listing.drones, lambda jobs: self._accounted(jobs, taken_at), taken_at, self._cancelled
        )
        slurm_nodes = await self._cluster.nodes()
        partitions, reservations = await self._partitions_and_reservations()
        types = resolve_types(self._types, partitions, self._config)
        downtime_at = next_downtime(reservations, slurm_nodes, types, taken_at)
        own = (self._types, self._config)
        nodes = list_nodes(slurm_nodes, partitions, *own, reservations, now=taken_at, downtime_at=downtime_at)
        demands, load = SlurmOwnerDemands(), None
        notices = [*listing.notices, *accounting_notices]
        if self._config.owner is not None:
            active = await self._cluster.active_jobs(self._config.owner.partitions)
            demands = owner_demands(active, slurm_nodes, nodes, self._config)
            load = owner_load(active, nodes, self._config)
            if are_jobs_hidden(active, await self._configuration(), self._user):
                load, notices = None, [*notices, f"owner: {HIDDEN_OWNER_JOBS}"]
        view = SiteView(
            site=self._name,
            taken_at=taken_at,
            drones={**forgotten, **listing.drones},
            free=None if nodes else {each.name: 0 for each in self._types},
            nodes=nodes,
            claims=demands.demands,
            owner_runs=load,
            downtime_at=downtime_at,
            notices=(*notices, *self._cluster.notices()),
            remarks=demands.notices,
        )
        self._clean_up(listing)
        return view

    def _listing(self, jobs: Iterable[SlurmJob], now: float, retain_s: float = 0.0) -> SlurmDroneListing:
        self._cancelled = {d: at for d, at in self._cancelled.items() if at > now - _CANCELLED_TTL_S}
        cancelled = CancelledDrones(self._since, self._cancelled)
        retain_s = retain_s or self._config.retain_finished
        return list_drones(jobs, self._controller, self._name, cancelled, now=now, retain_s=retain_s)

    def _accounted(self, jobs: Iterable[SlurmJob], now: float) -> Mapping[DroneId, RemoteDrone]:
        """Return drones from accounting, which lists everybody's jobs to root: a name alone makes no drone of ours."""
        own = (job for job in jobs if not self._user or job.user in ("", self._user))
        return self._listing(own, now, retain_s=math.inf).drones

    async def _partitions_and_reservations(self) -> tuple[Sequence[Partition], Sequence[Reservation]]:
        if time.monotonic() >= self._partitions_until:
            self._partitions = await self._cluster.partitions(), await self._cluster.reservations()
            self._partitions_until = time.monotonic() + _CLUSTER_REFRESH_S
        return self._partitions

    async def _configuration(self) -> Mapping[str, str]:
        """Return slurm.conf as it was when it could be read first; nothing until then."""
        if not self._slurm_conf:
            with contextlib.suppress(AdapterError):
                self._slurm_conf = await self._cluster.configuration()
        return self._slurm_conf

    # -------------------------------------------------------------------------------------------------------- cleanup

    def _clean_up(self, listing: SlurmDroneListing) -> None:
        """Cancel duplicates between polls, one cleanup at a time. A single poll (``provisioner check``) starts none."""
        self._polls += 1
        if self._polls > 1 and listing.duplicates and (self._cleanup is None or self._cleanup.done()):
            work = self._cancel_duplicates(listing.duplicates)
            self._cleanup = asyncio.create_task(work, name=f"cleanup of site {self._name}")

    async def _cancel_duplicates(self, remote_ids: Sequence[str]) -> None:
        with contextlib.suppress(AdapterError):  # then after the next poll
            await self._cluster.cancel(remote_ids)

    # ------------------------------------------------------------------------------------------------------- auditing

    async def audit(self, policy: SitePolicy) -> Sequence[AuditFinding]:
        """Return where the cluster's configuration does not do what ``policy`` says."""
        nodes, partitions = await self._cluster.nodes(), await self._cluster.partitions()
        configuration = await self._cluster.configuration()
        findings = SlurmAudit(nodes, partitions, configuration, policy, self._types, self._config).gaps()
        if self._config.owner is not None:
            active = await self._cluster.active_jobs(self._config.owner.partitions)
            if are_jobs_hidden(active, configuration, self._user):
                return (*findings, AuditFinding("slurm.conf", "owner", HIDDEN_OWNER_JOBS))
        return findings

    def render_blocking(self, policy: SitePolicy) -> str:
        """Return lines for the cluster's slurm.conf and gres.conf."""
        return render_blocking(policy, self._types, self._config)

    # ------------------------------------------------------------------------------------------------------- starting

    async def start(self, orders: Sequence[StartOrder]) -> Sequence[OrderResult]:
        """Submit drones, one array for each type. Drones that exist already are done.

        A caller that gives up does not cut the submission in progress: it completes (nothing is submitted after it),
        and the next start waits for it and then finds its drones in the listing.
        """
        results: dict[DroneId, OrderResult] = {}
        valid = []
        for order in orders:
            try:
                validate_order(order, self._controller)
                valid.append(order)
            except UnfitError as error:
                results[order.drone_id] = _rejected(order.drone_id, FaultKind.CONFIG, printable(str(error), 300))
        if valid:
            drone_ids = [order.drone_id for order in valid]
            started = await self._starts.run(drone_ids, lambda given_up: self._start(valid, given_up))
            results |= {result.drone_id: result for result in started}
        return [results[order.drone_id] for order in orders]

    async def _start(self, orders: Sequence[StartOrder], given_up: asyncio.Event) -> Sequence[OrderResult]:
        existing = await self._jobs_of({order.drone_id for order in orders})
        self._starts.there(existing)
        results = [OrderResult(drone_id, OrderOutcome.OK, jobs[0].remote_id) for drone_id, jobs in existing.items()]
        missing = []
        for order in orders:
            if self._starts.may_come(order.drone_id):
                results.append(_unknown(order.drone_id, "an earlier submission of it may still get through"))
            elif order.drone_id not in existing:
                missing.append(order)
        largest = max_array_size(await self._configuration()) if len(missing) > 1 else DEFAULT_MAX_ARRAY_SIZE
        for batch in make_batches(missing, self._config, largest):
            if not given_up.is_set():
                results += await self._submit(batch)
        return results

    async def _jobs_of(self, drone_ids: Iterable[DroneId]) -> Mapping[DroneId, Sequence[SlurmJob]]:
        """Return the jobs of these drones: live ones before ended ones, then the oldest first."""
        requested = frozenset(drone_ids)
        found: dict[DroneId, list[SlurmJob]] = {}
        for job in await self._cluster.own_jobs():
            name = drone_of(job, self._controller, self._name)
            if name is not None and name.drone_id in requested and not is_rejected_submission(job):
                found.setdefault(name.drone_id, []).append(job)
        for jobs in found.values():
            jobs.sort(key=lambda job: (not _is_alive(job), job_id_key(job.remote_id)))
        return found

    async def _submit(self, batch: SlurmBatch) -> list[OrderResult]:
        """Submit a batch. Site errors become results: another batch may have gone through.

        Of an array that is rejected as a whole, by a limit or for its size, halving finds as many drones as are
        accepted.
        """
        try:
            job = await self._cluster.submit(batch.submission)
        except OutcomeUnknownError as error:
            self._starts.without_answer(batch.drone_ids)
            return [_unknown(drone_id, str(error)) for drone_id in batch.drone_ids]
        except AdapterError as error:
            half = len(batch.orders) // 2
            if not half or not _may_be_size(error):
                return [_rejected(drone_id, error.kind, str(error)) for drone_id in batch.drone_ids]
            first = await self._submit(make_batch(batch.orders[:half], self._config))
            if first[-1].answer is OrderOutcome.OK:
                return first + await self._submit(make_batch(batch.orders[half:], self._config))
            rejected, fault = OrderOutcome.REJECTED, first[-1].fault
            return first + [OrderResult(drone_id, rejected, "", fault) for drone_id in batch.drone_ids[half:]]
        ids = zip(batch.drone_ids, batch.remote_ids(job), strict=True)
        return [OrderResult(drone_id, OrderOutcome.OK, remote_id) for drone_id, remote_id in ids]

    # ------------------------------------------------------------------------------------------------------- stopping

    async def stop(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        """Cancel drones: SIGTERM to the drone, SIGKILL after KillWait; with ``kill`` at once."""
        if not orders:
            return []
        kill = {order.drone_id: order.kill for order in orders}
        await self._starts.settled(kill.keys())
        jobs_of = await self._jobs_of(kill)
        polite: list[str] = []
        forced: list[str] = []
        for drone_id, jobs in jobs_of.items():
            alive = [job for job in jobs if _is_alive(job)]
            if alive:  # the end of one that has ended is not ours
                self._cancelled[drone_id] = time.time()
            if kill[drone_id]:
                forced += [job.remote_id for job in alive]
            else:
                polite += [job.remote_id for job in alive if "COMPLETING" not in (*job.flags, job.state)]
        if polite:
            await self._cluster.cancel(polite)
        if forced:
            await self._cluster.cancel(forced, kill=True)
        remote = {drone_id: jobs[0].remote_id for drone_id, jobs in jobs_of.items()}
        return [OrderResult(order.drone_id, OrderOutcome.OK, remote.get(order.drone_id, "")) for order in orders]


def _is_alive(job: SlurmJob) -> bool:
    return map_state(job.state, job.flags).state is not RemoteState.ENDED


def _may_be_size(error: AdapterError) -> bool:
    """Return whether the size of the array may be the reason. Not every transport reports MaxArraySize."""
    too_large = error.kind is FaultKind.QUOTA or (error.kind is FaultKind.CONFIG and "array" in str(error))
    return isinstance(error, RejectedError) and too_large


def _unknown(drone_id: DroneId, message: str) -> OrderResult:
    return OrderResult(drone_id, OrderOutcome.UNKNOWN, "", Fault(FaultKind.UNKNOWN, message, time.time()))


def _rejected(drone_id: DroneId, kind: FaultKind, message: str) -> OrderResult:
    return OrderResult(drone_id, OrderOutcome.REJECTED, "", Fault(kind, message, time.time()))


def make_client(config: SlurmSiteConfig, name: str) -> SlurmClient:
    """Return the client of site ``name`` for the configured transport, not entered yet.

    Raises:
        UnavailableError: (CONFIG) a Python package is missing that the transport needs.
    """
    match config.transport:
        case "tools":
            from adapters.slurm.tools import SlurmToolsClient

            return SlurmToolsClient(config, name)
        case "rest":
            with optional_package("aiohttp", "slurm-rest", "slurmrestd needs"):
                from adapters.slurm.rest import SlurmRestClient
            return SlurmRestClient(config, name)
        case "native":
            from adapters.slurm.native import SlurmNativeClient

            return SlurmNativeClient(config, name)
