"""An HTCondor cluster as a site: one query lists all of our jobs, one submit starts all drones of a type."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Self

from adapters.htcondor import classads
from adapters.htcondor.classads import HELD, REMOVED, Ad, job_id, text, whole
from adapters.htcondor.site import listing, nodes, submission
from adapters.htcondor.site.blocking import gaps, render
from adapters.htcondor.site.client import HTCondorClient, client_for
from adapters.htcondor.site.mig import mig_gaps
from adapters.htcondor.site.owner import OwnerQueuePoller
from adapters.htcondor.site.settings import HTCondorSiteConfig
from adapters.htcondor.site.trial import try_submits
from adapters.shared.failed_nodes import FailedNodes
from adapters.shared.housekeeping import Housekeeping
from adapters.shared.printing import printable
from adapters.shared.starts import done, failed, rejected
from provisioner import model
from provisioner.interfaces import AdapterError, AuditFinding, UnavailableError
from provisioner.model import DroneId, DroneType, FaultKind, OrderResults, SitePolicy, SiteView

__all__ = ["HTCondorSite", "HTCondorSiteConfig"]

_COLLECTED_AT_ONCE = 8
_COLLECT_TRIES = 3
_SPOOL_SLACK_S = 15.0
_SPOOL_RELEASE_S = 30.0
_ABANDONED_REASON = f"{listing.OUR_REASON}its files never came"
_DUPLICATE_REASON = f"{listing.OUR_REASON}another job is the same drone"


class HTCondorSite:
    """Drones as jobs of a schedd. The state is in its queue, so a restarted controller sees the same."""

    Config = HTCondorSiteConfig
    audits_mig = True

    def __init__(
        self, name: str, config: HTCondorSiteConfig, types: Sequence[DroneType], controller: str
    ) -> None:
        self._name = name
        self._config = config
        self._types = tuple(types)
        self._controller = controller
        self._ours = listing.our_jobs(controller, name)
        self._client: HTCondorClient = client_for(config, name)
        # when (by the monotonic clock) the files of a cluster were all sent
        self._sent: dict[int, float] = {}
        self._tried: dict[DroneId, int] = {}
        self._owner = OwnerQueuePoller(self._client, config.owner)
        self._registry = NodeRegistry(config.collector, config.slot_max_age)
        self._requirements = {
            kind.name: submission.admins_requirements(config, kind) for kind in types
        }
        self._on_nodes = not all(map(config.is_grid, self._types))
        """False if drones run on nodes behind a computing element, not on those of this pool."""
        self._failed_nodes = FailedNodes()
        self._housekeeping = Housekeeping(name)
        self._not_removed = ""  # why the newest removal of such jobs failed

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Leave the drones running."""
        await self._housekeeping.close()
        await self._client.__aexit__(*exc)

    async def poll(self) -> SiteView:
        """Return all nodes, then all of our jobs (ended ones for ``retain_finished``), then the owner's claims.

        They are asked in this order: what begins or ends meanwhile is then known to the queues, and
        a job of the owner that has started meanwhile is no claim any more. Nothing is changed by
        it. UnavailableError if the nodes that were there a while ago are not listed.
        """
        taken_at = time.time()
        machines, noticed = await self._machines() if self._on_nodes else ((), {})
        missed = self._registry.notices(each.name for each in machines) if self._on_nodes else ()
        ads = await self._client.ads("jobs", self._ours, listing.DRONE_JOB_PROJECTION)
        # then their sender has been cut short
        limit_s = self._config.submit_deadline + _SPOOL_SLACK_S
        found = listing.list_drones(
            ads, self._controller, noticed, None, nodes.carved(machines), limit_s
        )
        listed = {whole(ad, "ClusterId") for ad in ads}
        self._sent = {cluster: at for cluster, at in self._sent.items() if cluster in listed}
        owner = await self._owner.poll(machines)
        shapes = {kind.name: nodes.shape(kind) for kind in self._types}
        more = dict(
            nodes.corrections(machines, found.drones.values(), shapes, owner.held, found.users)
        )
        errors = list(self._housekeeping.notices)
        errors += self._failed_nodes.note(found.drones, taken_at)
        more |= {
            each.name: nodes.SlotResources() - each.free
            for each in machines
            if each.name in self._failed_nodes.avoided
        }
        if self._not_removed:
            errors.append(
                f"duplicates and jobs without their files were not removed: {self._not_removed}"
            )
        self._housekeeping.begin(lambda: [self._clean_up(found)])
        return SiteView(
            site=self._name,
            taken_at=taken_at,
            drones=found.drones,
            free={kind.name: 0 for kind in self._types}
            if self._on_nodes and not machines
            else None,
            nodes=nodes.nodes(machines, self._types, self._requirements, more),
            claims=owner.claims,
            owner_runs=owner.runs,
            notices=(*found.notices, *missed, *owner.notices, *errors),
            remarks=owner.remarks,
        )

    async def _machines(self) -> tuple[tuple[nodes.PoolMachine, ...], Mapping[str, float]]:
        slot_ads = await self._client.ads(
            "slots", nodes.MACHINE_SLOTS, nodes.MACHINE_SLOT_PROJECTION
        )
        noticed = await self._client.ads("slots", nodes.NOTICE_CONSTRAINT, nodes.NOTICE_PROJECTION)
        newest = max((classads.moment(ad, "LastHeardFrom") for ad in slot_ads), default=0.0)
        # Nothing was heard in the future. A clock that is behind cannot be distinguished from
        # silence: it counts as right, and which slots are alive is judged by the one that was heard
        # last.
        ahead_s = newest - time.time()
        ahead_s = ahead_s if ahead_s > classads.SAME_CLOCK_S else 0.0
        machines = nodes.machines_of(slot_ads, newest - self._config.slot_max_age)
        return machines, nodes.notices(noticed, ahead_s)

    async def _clean_up(self, found: listing.DroneJobsView) -> None:
        try:
            await self._client.remove(found.abandoned, _ABANDONED_REASON)
            await self._client.remove(found.duplicates, _DUPLICATE_REASON)
            self._not_removed = ""
        except AdapterError as error:  # then after the next poll
            self._not_removed = printable(str(error), 300)
        with contextlib.suppress(AdapterError, OSError):
            await self._collect(found)
            await self._client.clean_up(found.inputs, found.drones.keys())

    async def _collect(self, found: listing.DroneJobsView) -> None:
        """Fetch what a few ended drones have left. A failure costs no drone anything."""
        self._tried = {drone_id: self._tried.get(drone_id, 0) for drone_id in found.drones}
        ended = (
            drone for drone in found.drones.values() if drone.end is not None and drone.started_at
        )
        wanted = (drone for drone in ended if self._tried[drone.drone_id] < _COLLECT_TRIES)
        some = {drone.drone_id: drone.remote_id for drone in islice(wanted, _COLLECTED_AT_ONCE)}
        for drone_id in some:
            self._tried[drone_id] += 1
        if some:
            failed = await self._client.collect(some)
            self._tried |= dict.fromkeys(some.keys() - failed.keys(), _COLLECT_TRIES)

    async def audit(self, policy: SitePolicy) -> Sequence[AuditFinding]:
        """Return where the nodes do not do what ``policy`` says, or a computing element takes no job."""
        if not self._on_nodes:
            return await try_submits(self._client, self._config, self._types)
        machines, _ = await self._machines()
        attributes = dict(_plain_attributes(self._config.submit))
        return (
            *gaps(machines, policy, self._types, self._requirements, attributes),
            *mig_gaps(machines, policy),
        )

    def render_blocking(self, policy: SitePolicy) -> str:
        return render(policy)

    async def start(self, orders: Sequence[model.StartOrder]) -> OrderResults:
        """Submit the drones that are not in the queue yet, in one submit for each type."""
        why = {
            order.drone_id: submission.unsubmittable(order, self._controller) for order in orders
        }
        results = {
            each: rejected(each, FaultKind.CONFIG, reason) for each, reason in why.items() if reason
        }
        fit = [order for order in orders if order.drone_id not in results]
        there = await self._queued([order.drone_id for order in fit]) if fit else ()
        abandoned = [ad for ad in there if self._is_abandoned(ad)]
        if abandoned:
            await self._client.remove([job_id(ad) for ad in abandoned], _ABANDONED_REASON)
        for ad in there:
            if not _never_was(ad, abandoned):
                drone_id = DroneId(text(ad, "DroneId"))
                results[drone_id] = done(drone_id, job_id(ad))
        missing = [order for order in fit if order.drone_id not in results]
        avoided = self._failed_nodes.avoided
        for batch in submission.batches(missing, self._config, self._controller, avoided):
            results |= {result.drone_id: result for result in await self._submit(batch)}
        return [results[order.drone_id] for order in orders]

    async def _submit(self, batch: submission.SubmitDescription) -> OrderResults:
        """Submit a batch. An error is its result: another batch may have gone through."""
        try:
            cluster = await self._client.submit(batch)
        except AdapterError as error:
            return [failed(drone_id, error) for drone_id in batch.drone_ids]
        self._sent[cluster] = time.monotonic()
        return [done(each, f"{cluster}.{proc}") for proc, each in enumerate(batch.drone_ids)]

    async def _queued(self, drone_ids: Iterable[DroneId]) -> Sequence[Ad]:
        wanted = f"{self._ours} && {submission.of_drones(sorted(drone_ids))}"
        return await self._client.ads("jobs", wanted, listing.DRONE_JOB_PROJECTION)

    def _is_abandoned(self, ad: Ad) -> bool:
        """Return True if a job waits for files that are not being sent any more, because the sender has been cut short.

        The schedd takes a moment to see that the files that we did send are all there; if it dies
        in that moment, it never does.
        """
        sent_at = self._sent.get(whole(ad, "ClusterId"))
        return listing.is_spooling(ad) and (
            sent_at is None or time.monotonic() - sent_at > _SPOOL_RELEASE_S
        )

    async def stop(self, orders: Sequence[model.StopOrder]) -> OrderResults:
        """Remove drones with the site's grace, or, with ``kill``, those already removed at once."""
        kill = {order.drone_id for order in orders if order.kill}
        polite = list[str]()
        forced = list[str]()
        remote = dict[DroneId, str]()
        for ad in await self._queued([order.drone_id for order in orders]) if orders else ():
            drone_id = DroneId(text(ad, "DroneId"))
            status = whole(ad, "JobStatus")
            remote[drone_id] = job_id(ad)
            if status not in (REMOVED, classads.COMPLETED):
                polite.append(job_id(ad))
            elif status == REMOVED and drone_id in kill and text(ad, "RemoteHost"):
                forced.append(job_id(ad))
        if polite:
            await self._client.remove(polite, f"{listing.OUR_REASON}asked to leave")
        if forced:
            await self._client.remove(forced, f"{listing.OUR_REASON}killed", force=True)
        return [done(order.drone_id, remote.get(order.drone_id, "")) for order in orders]


class NodeRegistry:
    """Nodes listed lately: a collector that has just started lists none or few, and that is no news."""

    def __init__(
        self, collector: str, remembered_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._collector = collector
        self._remembered_s = remembered_s
        self._clock = clock
        self._seen_at: dict[str, float] = {}

    def notices(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return notices about the nodes listed now. UnavailableError if none is, though some were a while ago."""
        now = self._clock()
        listed = set(names)
        who = f"collector {self._collector}"
        lately = {name for name, at in self._seen_at.items() if now - at <= self._remembered_s}
        if not listed and lately:
            raise UnavailableError(
                f"{who} lists no slots (just started?), of {len(lately)} nodes lately"
            )
        self._seen_at = {name: self._seen_at[name] for name in lately} | dict.fromkeys(listed, now)
        if not listed:
            return (f"{who} lists no slots: nothing can start here",)
        few = f"{who} lists {len(listed)} nodes (just started?); {len(lately - listed)} are missed"
        return (few,) if 2 * len(listed & lately) < len(lately) else ()


def _never_was(ad: Ad, abandoned: Sequence[Ad]) -> bool:
    """Return True if a job never was a drone: its files did not come, and now or earlier it was removed for that."""
    if ad in abandoned:
        return True
    before = (
        whole(ad, "LastJobStatus") == HELD and whole(ad, "LastHoldReasonCode") == listing.SPOOLING
    )
    return whole(ad, "JobStatus") == REMOVED and before and not listing.has_started(ad)


def _plain_attributes(commands: Mapping[str, str]) -> Iterable[tuple[str, object]]:
    """Yield the attributes that the site's admin gives drones' jobs, where they are plain values."""
    for name, value in commands.items():
        attribute = re.fullmatch(r"(?:\+|my\.)(.+)", name, re.IGNORECASE)
        nothing = nodes.request(nodes.SlotResources())
        found = classads.evaluated(value, nothing, nothing)
        if attribute and isinstance(found, bool | int | float | str):
            yield attribute[1], found
