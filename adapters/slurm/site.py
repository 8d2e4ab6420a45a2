"""The Slurm site: one listing shows all of our drones, one array starts all drones of a type."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Self

from adapters.shared import optional_packages
from adapters.shared.failed_nodes import FailedNodes
from adapters.shared.housekeeping import Housekeeping
from adapters.shared.parcel import UnfitError
from adapters.shared.starts import Starts, done, failed, outcome_unknown
from adapters.slurm import capacity
from adapters.slurm.blocking import SlurmAudit, render_blocking
from adapters.slurm.drones import SlurmDrones, is_alive, is_completing
from adapters.slurm.records import Partition, SlurmClient
from adapters.slurm.settings import SlurmSiteConfig
from adapters.slurm.submission import (
    SlurmBatch,
    make_batch,
    make_batches,
    max_array_size,
    validate_order,
)
from provisioner import model
from provisioner.interfaces import AdapterError, AuditFinding, OutcomeUnknownError, RejectedError
from provisioner.model import (
    DroneId,
    DroneType,
    FaultKind,
    OrderOutcome,
    OrderResult,
    OrderResults,
    SitePolicy,
    SiteView,
    StartOrder,
)

_LATE_SUBMIT_S = 180.0
"""A submission whose answer was lost may still get through for so long: sbatch itself retries."""


class SlurmSite:
    """Drones as jobs of our account. All state is in slurmctld, so a restarted controller sees the same."""

    Config = SlurmSiteConfig

    def __init__(
        self, name: str, config: SlurmSiteConfig, types: Sequence[DroneType], controller: str
    ) -> None:
        self._name = name
        self._config = config
        self._types = tuple(types)
        self._controller = controller
        self._cluster: SlurmClient
        self._stack = contextlib.AsyncExitStack()
        self._drones = SlurmDrones(controller, name, config.retain_finished, since=time.time())
        self._failed_nodes = FailedNodes()
        self._starts = Starts(name, _LATE_SUBMIT_S)
        self._slurm_conf: Mapping[str, str] = {}
        self._housekeeping = Housekeeping(name)

    async def __aenter__(self) -> Self:
        self._cluster = await self._stack.enter_async_context(make_client(self._config, self._name))
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Leave drones alone, and wait for a submission in progress: the outcome of a cut one is unknown."""
        await self._starts.close(self._config.submit_deadline)
        await self._housekeeping.close()
        await self._stack.aclose()

    async def poll(self) -> SiteView:
        """Return our drones, the nodes, and the owner's jobs; change nothing.

        In this order: a drone that starts meanwhile is counted twice rather than not at all, and an
        owner's job that starts meanwhile is missed as a demand.
        """
        config = self._config
        taken_at = time.time()
        jobs = await self._cluster.own_jobs()
        listing = self._drones.listing(jobs, taken_at)
        forgotten, accounting_notices = await self._drones.forgotten(
            self._cluster, listing.drones, taken_at
        )
        drones = {**forgotten, **listing.drones}
        notices = [*listing.notices, *accounting_notices]
        notices += self._failed_nodes.note(drones, taken_at)
        slurm_nodes = await self._cluster.nodes()
        partitions, types = await self._partitions()
        reservations = await self._cluster.reservations()
        downtime_at = capacity.next_downtime(reservations, slurm_nodes, types, taken_at)
        for_drones = [
            replace(each, state="AVOIDED") if each.name in self._failed_nodes.avoided else each
            for each in slurm_nodes
        ]
        cluster = for_drones, partitions, types, config, reservations
        ours = {name for job in jobs if is_alive(job) for name in job.nodes}
        nodes = capacity.list_nodes(*cluster, now=taken_at, downtime_at=downtime_at, ours=ours)
        demands: tuple[model.OwnerDemand, ...] = ()
        load = None
        if config.owner is not None:
            active = await self._cluster.active_jobs(config.owner.partitions)
            demands = capacity.owner_demands(active, slurm_nodes, nodes, config.owner)
            load = capacity.owner_load(active, nodes, config.owner)
            if capacity.are_jobs_hidden(active, await self._configuration(), self._drones.user):
                load = None
                notices = [*notices, f"owner: {capacity.HIDDEN_OWNER_JOBS}"]
        self._housekeeping.begin(lambda: self._cancellations(listing.duplicates))
        return SiteView(
            site=self._name,
            taken_at=taken_at,
            drones=drones,
            free=None if nodes else {each.name: 0 for each in self._types},
            nodes=nodes,
            claims=demands,
            owner_runs=load,
            downtime_at=downtime_at,
            notices=(*notices, *self._cluster.notices(), *self._housekeeping.notices),
        )

    async def _configuration(self) -> Mapping[str, str]:
        """Return slurm.conf as it was when it could be read first; nothing until then."""
        if not self._slurm_conf:
            with contextlib.suppress(AdapterError):
                self._slurm_conf = await self._cluster.configuration()
        return self._slurm_conf

    async def _partitions(self) -> tuple[Sequence[Partition], Sequence[capacity.SlurmDroneType]]:
        """Return the partitions, and our types in them. With select/linear every job gets whole nodes."""
        partitions = await self._cluster.partitions()
        if "linear" in (await self._configuration()).get("SelectType", ""):
            partitions = [replace(each, exclusive="NODE") for each in partitions]
        return partitions, capacity.resolve_types(self._types, partitions, self._config)

    def _cancellations(self, duplicates: Sequence[str]) -> Sequence[Awaitable[None]]:
        """Return the task that a poll leaves: to cancel jobs that are the same drone as another one."""
        return [self._cluster.cancel(duplicates)] if duplicates else []

    async def audit(self, policy: SitePolicy) -> Sequence[AuditFinding]:
        """Return where the cluster's configuration does not do what ``policy`` says."""
        nodes = await self._cluster.nodes(reserves=True)
        configuration = await self._cluster.configuration()
        partitions, types = await self._partitions()
        findings = SlurmAudit(nodes, partitions, configuration, policy, types, self._config).gaps()
        if self._config.owner is not None:
            active = await self._cluster.active_jobs(self._config.owner.partitions)
            if capacity.are_jobs_hidden(active, configuration, self._drones.user):
                return (*findings, AuditFinding("slurm.conf", "owner", capacity.HIDDEN_OWNER_JOBS))
        return findings

    def render_blocking(self, policy: SitePolicy) -> str:
        """Return lines for the cluster's slurm.conf and gres.conf."""
        return render_blocking(policy, self._types, self._config)

    async def start(self, orders: Sequence[StartOrder]) -> OrderResults:
        """Submit drones, one array for each type. Drones that exist already are done.

        A caller that gives up does not cut the submission in progress: it completes (nothing is
        submitted after it), and the next start waits for it and then finds its drones in the
        listing.
        """
        results: dict[DroneId, OrderResult] = {}
        valid = []
        for order in orders:
            try:
                validate_order(order, self._controller)
                valid.append(order)
            except UnfitError as error:
                results[order.drone_id] = failed(order.drone_id, error)
        if valid:
            drone_ids = [order.drone_id for order in valid]
            started = await self._starts.run(
                drone_ids, lambda given_up: self._start(valid, given_up)
            )
            results |= {result.drone_id: result for result in started}
        return [results[order.drone_id] for order in orders]

    async def _start(self, orders: Sequence[StartOrder], given_up: asyncio.Event) -> OrderResults:
        existing = self._drones.jobs(await self._cluster.own_jobs())
        self._starts.there(existing)
        results: list[OrderResult] = []
        missing = []
        for order in orders:
            if jobs := existing.get(order.drone_id):
                results.append(done(order.drone_id, jobs[0].remote_id))
            elif self._starts.may_come(order.drone_id):
                results.append(
                    outcome_unknown(
                        order.drone_id, "an earlier submission of it may still get through"
                    )
                )
            else:
                missing.append(order)
        largest = max_array_size(await self._configuration() if len(missing) > 1 else {})
        avoided = self._failed_nodes.avoided
        for batch in make_batches(missing, self._config, largest, avoided):
            if not given_up.is_set():
                results += await self._submit(batch)
        return results

    async def _submit(self, batch: SlurmBatch) -> list[OrderResult]:
        """Submit a batch. If an array is rejected by a limit or for its size, halving finds as many as are accepted."""
        try:
            job = await self._cluster.submit(batch.submission)
        except OutcomeUnknownError as error:
            self._starts.without_answer(batch.drone_ids)
            return [failed(drone_id, error) for drone_id in batch.drone_ids]
        except AdapterError as error:
            half = len(batch.orders) // 2
            kind = error.kind
            # Not every transport reports MaxArraySize.
            is_too_large = kind is FaultKind.QUOTA or (
                kind is FaultKind.CONFIG and "array" in str(error)
            )
            if not half or not is_too_large or not isinstance(error, RejectedError):
                return [failed(drone_id, error) for drone_id in batch.drone_ids]
            first = await self._submit(
                make_batch(batch.orders[:half], self._config, self._failed_nodes.avoided)
            )
            if first[-1].answer is OrderOutcome.OK:
                return first + await self._submit(
                    make_batch(batch.orders[half:], self._config, self._failed_nodes.avoided)
                )
            fault = first[-1].fault
            return first + [
                OrderResult(each, OrderOutcome.REJECTED, "", fault)
                for each in batch.drone_ids[half:]
            ]
        return list(map(done, batch.drone_ids, batch.remote_ids(job)))

    async def stop(self, orders: Sequence[model.StopOrder]) -> OrderResults:
        """Cancel drones: SIGTERM to the drone, SIGKILL after KillWait; with ``kill`` at once."""
        if not orders:
            return []
        await self._starts.settled([order.drone_id for order in orders])
        jobs_of = self._drones.jobs(await self._cluster.own_jobs())
        polite: list[str] = []
        forced: list[str] = []
        for order in orders:
            alive = [job for job in jobs_of.get(order.drone_id, ()) if is_alive(job)]
            if alive:  # the end of one that has ended is not ours
                self._drones.cancelled[order.drone_id] = time.time()
            if order.kill:
                forced += [job.remote_id for job in alive]
            else:
                polite += [job.remote_id for job in alive if not is_completing(job)]
        if polite:
            await self._cluster.cancel(polite)
        if forced:
            await self._cluster.cancel(forced, kill=True)
        remote = {drone_id: jobs[0].remote_id for drone_id, jobs in jobs_of.items()}
        return [done(order.drone_id, remote.get(order.drone_id, "")) for order in orders]


def make_client(config: SlurmSiteConfig, name: str) -> SlurmClient:
    """Return the client of the configured transport. UnavailableError if it needs a Python package that is missing."""
    if config.transport == "rest":
        with optional_packages("slurm-rest", "slurmrestd needs", "aiohttp"):
            from adapters.slurm.rest import SlurmRestClient
        return SlurmRestClient(config, name)
    if config.transport == "native":
        from adapters.slurm.native import SlurmNativeClient

        return SlurmNativeClient(config, name)
    from adapters.slurm.tools import SlurmToolsClient

    return SlurmToolsClient(config, name)
