"""The site seam for an HTCondor cluster: one query lists all of ours, one submit starts all drones of a type."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from adapters.htcondor.site.audit import gaps
from adapters.htcondor.site.blocking import render
from adapters.htcondor.site.cluster import Cluster
from adapters.htcondor.site.hold_reasons import SPOOLING
from adapters.htcondor.site.listing import (
    COMPLETED,
    HELD,
    OUR_WORDS,
    PROJECTION,
    REMOVED,
    Listing,
    has_started,
    is_spooling,
    job_id,
    listing,
    ours,
)
from adapters.htcondor.site.nodes import nodes, shape
from adapters.htcondor.site.occupancy import carved, corrections
from adapters.htcondor.site.owner_queues import OwnerQueues
from adapters.htcondor.site.roll_call import RollCall
from adapters.htcondor.site.settings import HTCondorSiteConfig
from adapters.htcondor.site.submission import (
    Batch,
    Unfit,
    admins_commands,
    admins_requirements,
    admins_universe,
    batches,
    checked,
    files_limit_s,
    share,
)
from adapters.htcondor.site.surroundings import admins_attributes, hardware, owned
from adapters.htcondor.site.transports import cluster_of
from adapters.shared.htcondor.ads import Ad, text, whole
from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError, AuditFinding, OutcomeUnknownError
from provisioner.model import (
    DroneId,
    DroneType,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    SitePolicy,
    SiteView,
    StartOrder,
    StopOrder,
)

_COLLECTED_AT_ONCE = 8
_COLLECT_TRIES = 3
_RELEASED_WITHIN_S = 30.0


class HTCondorSite:
    """Drones as jobs of a schedd. What is true is in its queue, so a restarted controller sees the same."""

    Config = HTCondorSiteConfig

    def __init__(self, name: str, config: HTCondorSiteConfig, types: Sequence[DroneType], controller: str) -> None:
        self._name, self._config, self._types, self._controller = name, config, tuple(types), controller
        self._ours = ours(controller, name)
        self._cluster: Cluster = cluster_of(config, name)
        self._sent: dict[int, float] = {}
        """When (by the steady clock) the files of a cluster were all sent."""
        self._tried: dict[DroneId, int] = {}
        self._queues = OwnerQueues(self._cluster, config.owner)
        self._roll_call = RollCall(config.collector, config.slot_max_age)
        self._on_nodes = any(admins_universe(admins_commands(config, kind)) != "grid" for kind in self._types)
        """Whether drones run on nodes of this pool, and not on those behind a computing element."""
        self._looks = 0
        self._errand: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Drones live on."""
        if self._errand is not None:
            self._errand.cancel()
            await asyncio.wait([self._errand])
            self._errand = None
        await self._cluster.__aexit__(*exc)

    # -------------------------------------------------------------------------------------------------------- looking

    async def poll(self) -> SiteView:
        """All nodes, then everything of ours (ended drones for ``retain_finished``), then the owner's claims, asked
        in this
        order. Nothing is changed by it; UnavailableError if the nodes that were there a while ago are not listed."""
        taken_at = time.time()
        site = await hardware(self._cluster, self._config.slot_max_age)
        missed = self._roll_call.notices(host.name for host in site.hosts) if self._on_nodes else ()
        ads = await self._cluster.jobs(self._ours, PROJECTION)
        found = listing(
            ads,
            self._controller,
            site.noticed,
            carved=carved(site.hosts),
            files_limit_s=files_limit_s(self._config),
        )
        listed = {whole(ad, "ClusterId") for ad in ads}
        self._sent = {cluster: at for cluster, at in self._sent.items() if cluster in listed}
        theirs = await owned(self._cluster, self._config.owner, self._queues, site)
        shapes = {kind.name: shape(kind) for kind in self._types}
        more = corrections(site.hosts, found.drones.values(), shapes, theirs.held, found.users)
        view = SiteView(
            site=self._name,
            taken_at=taken_at,
            drones=found.drones,
            free={kind.name: 0 for kind in self._types} if self._on_nodes and not site.hosts else None,
            nodes=nodes(site.hosts, self._types, self._demanded(), more),
            claims=theirs.claims,
            owner_runs=theirs.runs,
            notices=(*found.notices, *missed, *theirs.notices, *self._strange_types(), *self._house_trouble()),
            remarks=theirs.remarks,
        )
        self._keep_house(found)
        return view

    def _demanded(self) -> Mapping[str, str]:
        return {kind.name: admins_requirements(self._config, kind) for kind in self._types}

    def _strange_types(self) -> Iterable[str]:
        known = {kind.name for kind in self._types}
        strange = sorted(self._config.types.keys() - known)
        unknown = [f"options.types.{name}: the site has no such drone type" for name in strange]
        return [*unknown, *(f"{why}: it is never started here" for kind in self._types if (why := share(kind)))]

    # -------------------------------------------------------------------------------------------------- housekeeping

    def _keep_house(self, found: Listing) -> None:
        """Between looks, one errand at a time; who looks but once (``provisioner check``) keeps no house."""
        self._looks += 1
        if self._looks > 1 and (self._errand is None or self._errand.done()):
            self._errand = asyncio.create_task(self._tidied_up(found), name=f"housekeeping of site {self._name}")

    def _house_trouble(self) -> Iterable[str]:
        errand = self._errand
        if errand is not None and errand.done() and not errand.cancelled() and (error := errand.exception()):
            yield printable(f"housekeeping: {type(error).__name__}: {error}", 300)

    async def _tidied_up(self, found: Listing) -> None:
        with contextlib.suppress(AdapterError):  # then after the next look
            await self._cluster.remove(found.abandoned, f"{OUR_WORDS}its files never came")
        await self._bring_home(found)

    async def _bring_home(self, found: Listing) -> None:
        """A few at a time; what cannot be had costs no drone anything."""
        wanted = {
            drone_id: drone.remote_id
            for drone_id, drone in found.drones.items()
            if drone.end is not None and drone.started_at and self._tried.get(drone_id, 0) < _COLLECT_TRIES
        }
        self._tried = {drone_id: tries for drone_id, tries in self._tried.items() if drone_id in found.drones}
        some = dict(list(wanted.items())[:_COLLECTED_AT_ONCE])
        with contextlib.suppress(AdapterError, OSError):
            for drone_id in some:
                self._tried[drone_id] = self._tried.get(drone_id, 0) + 1
            if some:
                failed = await self._cluster.collect(some)
                self._tried |= dict.fromkeys(some.keys() - failed.keys(), _COLLECT_TRIES)
            await self._cluster.tidy(found.inputs, found.drones.keys())

    # ------------------------------------------------------------------------------------------------------- auditing

    async def audit(self, policy: SitePolicy) -> Sequence[AuditFinding]:
        """Where the nodes do not do what ``policy`` says, as their slot ads show it."""
        site = await hardware(self._cluster, self._config.slot_max_age)
        attributes = admins_attributes(self._config.submit)
        return gaps(site.hosts, policy, self._types, self._demanded(), attributes)

    def render_blocking(self, policy: SitePolicy) -> str:
        """HTCondor configuration for the site's nodes and negotiator."""
        return render(policy, self._types)

    # ------------------------------------------------------------------------------------------------------- starting

    async def start(self, orders: Sequence[StartOrder]) -> Sequence[OrderResult]:
        """Drones that are in the queue already are done; the others go in one submit for each type."""
        receipts: dict[DroneId, OrderResult] = {}
        fit = []
        for order in orders:
            try:
                checked(order, self._controller)
                fit.append(order)
            except Unfit as error:
                receipts[order.drone_id] = _refused(order.drone_id, FaultKind.CONFIG, str(error))
        if fit:
            there = await self._there([order.drone_id for order in fit])
            abandoned = [ad for ad in there if self._is_abandoned(ad)]
            if abandoned:
                await self._cluster.remove([job_id(ad) for ad in abandoned], f"{OUR_WORDS}its files never came")
            kept = {DroneId(text(ad, "DroneId")): job_id(ad) for ad in there if not _never_was(ad, abandoned)}
            receipts |= {
                drone_id: OrderResult(drone_id, OrderOutcome.OK, remote_id) for drone_id, remote_id in kept.items()
            }
            missing = [order for order in fit if order.drone_id not in kept]
            for batch in batches(missing, self._config, self._controller):
                receipts |= {receipt.drone_id: receipt for receipt in await self._submitted(batch)}
        return [receipts[order.drone_id] for order in orders]

    async def _there(self, drone_ids: Iterable[DroneId]) -> Sequence[Ad]:
        wanted = ",".join(sorted(drone_ids))
        return await self._cluster.jobs(f'{self._ours} && stringListMember(DroneId, "{wanted}", ",")', PROJECTION)

    def _is_abandoned(self, ad: Ad) -> bool:
        """Whether a job waits for files that nobody sends any more: whoever began to has been cut short. (The schedd
        takes a moment to see that those that we did send are all there; if it dies in that moment, it never does.)"""
        sent_at = self._sent.get(whole(ad, "ClusterId"))
        return is_spooling(ad) and (sent_at is None or time.monotonic() - sent_at > _RELEASED_WITHIN_S)

    async def _submitted(self, batch: Batch) -> list[OrderResult]:
        """Never raises a site's error: another batch may have gone through."""
        try:
            cluster = await self._cluster.submit(batch.submission)
            self._sent[cluster] = time.monotonic()
        except AdapterError as error:
            answer = OrderOutcome.UNKNOWN if isinstance(error, OutcomeUnknownError) else OrderOutcome.REJECTED
            fault = Fault(error.kind, str(error), time.time())
            return [OrderResult(drone_id, answer, "", fault) for drone_id in batch.drone_ids]
        return [OrderResult(each, OrderOutcome.OK, f"{cluster}.{proc}") for proc, each in enumerate(batch.drone_ids)]

    # ------------------------------------------------------------------------------------------------------- stopping

    async def stop(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        """By ``condor_rm``, which gives them the site's grace. ``kill`` of a drone that was removed before takes it
        out of the queue at once, whatever its node says."""
        if not orders:
            return []
        kill = {order.drone_id for order in orders if order.kill}
        polite: list[str] = []
        forced: list[str] = []
        remote: dict[DroneId, str] = {}
        for ad in await self._there([order.drone_id for order in orders]):
            drone_id, status = DroneId(text(ad, "DroneId")), whole(ad, "JobStatus")
            remote[drone_id] = job_id(ad)
            if status not in (REMOVED, COMPLETED):
                polite.append(job_id(ad))
            elif status == REMOVED and drone_id in kill and text(ad, "RemoteHost"):
                forced.append(job_id(ad))
        if polite:
            await self._cluster.remove(polite, f"{OUR_WORDS}asked to leave")
        if forced:
            await self._cluster.remove(forced, f"{OUR_WORDS}killed", force=True)
        return [OrderResult(order.drone_id, OrderOutcome.OK, remote.get(order.drone_id, "")) for order in orders]


def _never_was(ad: Ad, abandoned: Sequence[Ad]) -> bool:
    """Whether a job never was a drone: its files did not come, and now or earlier it was removed for that."""
    if ad in abandoned:
        return True
    before = whole(ad, "LastJobStatus") == HELD and whole(ad, "LastHoldReasonCode") == SPOOLING
    return whole(ad, "JobStatus") == REMOVED and before and not has_started(ad)


def _refused(drone_id: DroneId, kind: FaultKind, message: str) -> OrderResult:
    return OrderResult(drone_id, OrderOutcome.REJECTED, "", Fault(kind, message, time.time()))
