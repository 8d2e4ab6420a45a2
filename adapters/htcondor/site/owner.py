"""Jobs of the owner of the hardware: waiting ones as claims, running ones as a sum.

Ads are slow to carry and to look into: 5000 of them are a second. Jobs that cannot be distinguished
go as one group with one ad as its sample, made where the ads were read. Jobs that differ in
anything that START or their own Requirements look at are in different groups: these attributes are
found by reading the expressions, and asked for by name.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from adapters.htcondor import classads
from adapters.htcondor.classads import (
    IDLE,
    PARALLEL,
    RUNNING,
    Ad,
    attribute_names,
    source,
    text,
    whole,
)
from adapters.htcondor.site.nodes import MachineSlot, PoolMachine, SlotResources, refused, start_of
from adapters.htcondor.site.settings import HTCondorOwnerConfig
from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError
from provisioner.model import WHOLE_GPU, OwnerDemand, OwnerLoad
from provisioner.values import define, factory, frozen

if TYPE_CHECKING:
    from adapters.htcondor.site.client import HTCondorClient

# universes of jobs that do not run on a machine of the pool: scheduler, grid, local
ELSEWHERE = (7, 9, 12)
_NO_DRONE_OR_SOURCE = (
    'ProvisionerController =?= undefined && IsBackfill =!= true && Managed =!= "External"'
)
"""False for drones, and for jobs that a JobRouter manages: their routed copies run instead of them."""
OWNER_JOB_PROJECTION = (
    *attribute_names(
        """
        ClusterId ProcId JobStatus JobUniverse QDate User Owner AcctGroup RemoteHost RequestGPUs RequestCpus
        RequestMemory RequestDisk Requirements RequireGPUs GPUsProvisioned CpusProvisioned MemoryProvisioned ServerTime
        DiskUsage ImageSize MemoryUsage ResidentSetSize
        """
    ),
    *classads.LIMITS_PROJECTION,
)
"""Attributes of every query. HTCondor computes requests from usage and sizes where a job has none."""
MOST_GROUPS = 1000  # largest number of groups, the oldest first
_MAX_REFERENCES = 300
_JUDGED = attribute_names(
    "requirements requiregpus requestgpus requestcpus requestmemory requestdisk concurrencylimits"
)
_OF_ONE_JOB = attribute_names(
    """
    clusterid procid globaljobid jobstatus lastjobstatus qdate enteredcurrentstatus servertime remotehost diskusage
    diskusage_raw imagesize imagesize_raw memoryusage residentsetsize residentsetsize_raw
    """
)
"""Attributes, in small letters, that the sample has and that distinguish no groups."""
_REFERENCE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_SCOPES = ("target", "my", "other", "self", "parent", "")


@frozen
class OwnerJobGroup:
    """Waiting jobs of one user that no expression distinguishes."""

    who: str
    user: str
    size: SlotResources  # request of one job
    # the same for groups that differ only in their user: what one can run on, the other can too
    alike: str
    # when, by our clock, each job came into its queue; the oldest first
    submitted: tuple[float, ...]
    ids: tuple[str, ...]  # ids of the first three
    sample: Ad = field(repr=False, compare=False)
    used_up: str = ""
    """Concurrency limits of the jobs, where the negotiator has lately refused one for them: no room helps."""


@frozen
class OwnerJobQueue:
    groups: tuple[OwnerJobGroup, ...] = ()  # the oldest first
    # the slot of each running job, and what it holds there
    running: tuple[tuple[str, SlotResources], ...] = ()
    # attributes, in small letters, that its jobs' expressions look at
    references: frozenset[str] = frozenset()
    left_out: int = 0  # groups beyond ``MOST_GROUPS``


def job_constraint(settings: HTCondorOwnerConfig) -> str:
    """Return the constraint for jobs of the owner that wait or run on machines."""
    return f"{owner_jobs(settings)} && (JobStatus == {IDLE} || JobStatus == {RUNNING})"


def owner_jobs(settings: HTCondorOwnerConfig) -> str:
    """Return the constraint for jobs of the owner that use machines, in any state. Drones are left out."""
    elsewhere = "".join(f" && JobUniverse =!= {universe}" for universe in ELSEWHERE)
    return f"({settings.jobs}){elsewhere} && {_NO_DRONE_OR_SOURCE}"


def group_jobs(
    job_ads: Iterable[Ad], names: Collection[str] = (), now: float | None = None
) -> OwnerJobQueue:
    """Return the jobs of a queue in groups.

    ``names``: attributes beside ``OWNER_JOB_PROJECTION`` that were asked for since an expression
    looks at them. ``now``: when the ads were read. Jobs that are neither idle nor running, or run
    without a machine, are left out. A matched job counts as running before its schedd names the
    slot: until then it is one that waits.
    """
    now = time.time() if now is None else now
    apart = sorted({*_JUDGED, *map(str.lower, names)}.difference(_OF_ONE_JOB))
    found: dict[tuple[str, ...], list[tuple[float, Ad]]] = {}
    running: list[tuple[str, SlotResources]] = []
    ads = [ad for ad in job_ads if whole(ad, "JobUniverse") not in ELSEWHERE]
    for ad in ads:
        status = whole(ad, "JobStatus")
        placed = text(ad, "RemoteHost") or whole(ad, "JobUniverse") == PARALLEL
        if status == IDLE or (status == RUNNING and not placed):
            user = text(ad, "User", 80)
            who = text(ad, "AcctGroup", 80) or user or text(ad, "Owner", 80)
            key = (who, user, repr(_size(ad)), *(source(ad, name) for name in apart))
            found.setdefault(key, []).append((classads.our_moment(ad, "QDate", now), ad))
        elif status == RUNNING:
            running.append((text(ad, "RemoteHost", 600), _provisioned(ad)))
    oldest = sorted(found.items(), key=lambda item: (min(at for at, _ in item[1]), item[0]))
    reached = classads.used_up(classads.refusals(ads, now))
    groups = [
        _job_group(key, [ad for _, ad in members], sorted(at for at, _ in members), reached)
        for key, members in oldest[:MOST_GROUPS]
    ]
    looked_at = (
        _bare(classads.references(source(group.sample, name))) for group in groups for name in apart
    )
    references = frozenset[str]().union(*looked_at)
    return OwnerJobQueue(tuple(groups), tuple(running), references, len(oldest) - len(groups))


def _job_group(
    key: Sequence[str], ads: Sequence[Ad], submitted: Sequence[float], reached: Collection[str]
) -> OwnerJobGroup:
    """Return the group of jobs that have a key of :func:`group_jobs`. ``reached``: limits that are used up."""
    who, user, *rest = key
    words = "\0".join(rest).encode(errors="replace")
    limits = text(ads[0], "ConcurrencyLimits", 80)
    return OwnerJobGroup(
        who,
        user,
        _size(ads[0]),
        hashlib.blake2s(words, digest_size=16).hexdigest(),
        tuple(submitted),
        tuple(map(classads.job_id, ads[:3])),
        sample=ads[0],
        used_up=limits if limits in reached else "",
    )


def _provisioned(ad: Ad) -> SlotResources:
    """Return what a running job holds; what it asks for where its ad does not say."""
    names = ("GPUsProvisioned", "CpusProvisioned", "MemoryProvisioned")
    held = (
        whole(ad, name) if classads.value(ad, name) is not None else asked
        for name, asked in zip(names, _size(ad), strict=False)
    )
    return SlotResources(*held)


def _size(ad: Ad) -> SlotResources:
    """Return what one job asks for; disk in KiB rounded up to MiB."""
    gpus, cpus, memory_mib = (whole(ad, f"Request{name}") for name in ("GPUs", "Cpus", "Memory"))
    return SlotResources(gpus, max(1, cpus), memory_mib, -(-whole(ad, "RequestDisk") // 1024))


def wanted_by(machines: Iterable[PoolMachine]) -> frozenset[str]:
    """Return the attributes of jobs, in small letters, that the START of any slot looks at."""
    slots = (slot for machine in machines for slot in machine.slots)
    return _bare(name for slot in slots for name in classads.references(start_of(slot), slot.ad))


def further(queue: OwnerJobQueue, names: Collection[str]) -> frozenset[str]:
    """Return the attributes that the queue's jobs look at and that were not asked for."""
    return queue.references - frozenset(map(str.lower, (*OWNER_JOB_PROJECTION, *names)))


def _bare(references: Iterable[str]) -> frozenset[str]:
    """Return the bare names of some references: ``TARGET.Machine.Name`` is ``machine``."""
    found = set()
    for scope, _, rest in (each.lower().partition(".") for each in references):
        found.add(rest.partition(".")[0] if scope in _SCOPES else scope)
    return frozenset(
        sorted(name for name in found if _REFERENCE_NAME.fullmatch(name))[:_MAX_REFERENCES]
    )


_MAX_OWNER_NOTICES = 10
_MAX_CLAIMS = 500
"""Largest number of different claims. It is more than the site's nodes can be freed for in one tick."""


@frozen
class HTCondorOwnerView:
    claims: tuple[OwnerDemand, ...] = ()
    runs: OwnerLoad | None = None
    notices: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    # the slots of their running jobs, and what each holds
    held: tuple[tuple[str, SlotResources], ...] = ()


def claims(
    groups: Iterable[OwnerJobGroup], machines: Sequence[PoolMachine], left_out: int = 0
) -> HTCondorOwnerView:
    """Return a claim for each group that some node could host, from when it is in the queue: room must be made then."""
    found = list[OwnerDemand]()
    hopeless = list[str]()
    feasible: dict[str, tuple[str, ...]] = {}
    limited = Counter[str]()
    for group in groups:
        size = group.size
        count = len(group.submitted)
        if group.used_up:
            limited[group.used_up] += count
            continue
        if group.alike not in feasible:
            fitting = (
                each.name
                for each in machines
                if any(_could_host(slot, group) for slot in each.slots)
            )
            feasible[group.alike] = tuple(fitting)
        where = feasible[group.alike]
        if where or not machines:
            nodes = () if len(where) == len(machines) else where
            found.append(_demand(count, size, group.submitted[0], group.who, nodes))
            continue
        more = ", ..." if count > len(group.ids) else ""
        line = (
            f"owner: {count} jobs of {group.who or 'nobody'} ({', '.join(group.ids)}{more}) fit no node even if it"
            f" were empty ({size.gpus} GPUs, {size.cpus} CPUs, {size.memory_mib} MiB each): no room is made for them"
        )
        hopeless.append(printable(line, 400))
    notices = hopeless[:_MAX_OWNER_NOTICES]
    notices += [
        f"owner: no room is made for {count} waiting jobs: the negotiator refuses them for the concurrency limit {name}"
        for name, count in sorted(limited.items())[:_MAX_OWNER_NOTICES]
    ]
    if (
        more_shapes := len(found[_MAX_CLAIMS:]) + len(hopeless[_MAX_OWNER_NOTICES:]) + left_out
    ) > 0:
        notices.append(f"owner: {more_shapes} further shapes of waiting jobs are not looked at")
    return HTCondorOwnerView(tuple(found[:_MAX_CLAIMS]), notices=tuple(notices))


def _demand(
    count: int, size: SlotResources, since: float, who: str, nodes: tuple[str, ...] = ()
) -> OwnerDemand:
    gpu_milli = size.gpus * WHOLE_GPU
    return OwnerDemand(
        count,
        gpu_milli,
        size.cpus,
        size.memory_mib,
        since,
        disk_mib=size.disk_mib,
        nodes=nodes,
        who=who,
    )


def _could_host(slot: MachineSlot, group: OwnerJobGroup) -> bool:
    """Return True if a slot, when empty, could host the job.

    What cannot be judged from here does not speak against it: a claim too many costs a drone, a
    claim too few lets the owner wait. (A job that is too greedy for START on the empty node may yet
    run beside others, where fewer GPUs are free to keep something for: drones that leave do not
    help it.)
    """
    size = group.size
    job = group.sample
    if not slot.all.holds(size):
        return False
    if size.gpus and source(job, "RequireGPUs") and slot.gpus:
        count = "countMatches(MY.RequireGPUs, TARGET.AvailableGPUs)"
        fitting = classads.evaluated_number(count, job, slot.ad)
        if fitting is not None and fitting < size.gpus:
            return False
    return not refused(source(job, "Requirements"), job, slot.ad) and not refused(
        start_of(slot), slot.ad, job
    )


def submitter_claims(
    submitter_ads: Iterable[Ad], settings: HTCondorOwnerConfig, now: float
) -> tuple[OwnerDemand, ...]:
    """Return a claim per submitter whose queue may not be read, with ``settings.shape`` and ``now`` as its age."""
    idle = {
        (text(ad, "Name"), text(ad, "ScheddName")): whole(ad, "IdleJobs") for ad in submitter_ads
    }
    counts = Counter[str]()
    for (name, _), count in idle.items():
        counts[name] += (
            count if any(fnmatchcase(name, pattern) for pattern in settings.submitters) else 0
        )
    size = SlotResources(settings.shape.gpus, settings.shape.cpus, settings.shape.memory)
    return tuple(_demand(count, size, now, name) for name, count in sorted(counts.items()) if count)


def running(
    held: Iterable[tuple[str, SlotResources]], machines: Sequence[PoolMachine]
) -> OwnerLoad:
    """Return the sum of what the owner's jobs hold on these machines. ``held``: slot and resources of each job."""
    names = {machine.name.lower() for machine in machines}
    here = [amount for slot, amount in held if slot.rpartition("@")[2].lower() in names]
    total = sum(here, SlotResources())
    return OwnerLoad(len(here), total.gpus * WHOLE_GPU, total.cpus, total.memory_mib)


SUBMITTER_PROJECTION = ("Name", "ScheddName", "IdleJobs", "LastHeardFrom", "MyAddress")
OWNER_QUEUE_TIMEOUT_S = 6.0  # longest wait for all of them together
REMEMBERED_S = 600.0  # the last answer of a silent queue counts for this long
_FIRST_WAIT_S = 30.0
_LONGEST_WAIT_S = 300.0
_MAX_NAMES = 300
_MAX_QUERIES = 4  # an attribute that is looked at may be an expression that looks at others


@define
class OwnerQueueState:
    """State of one schedd; times by the monotonic clock."""

    queue: OwnerJobQueue = factory(OwnerJobQueue)  # its newest answer
    slots: frozenset[tuple[str, float]] = frozenset()
    """The dynamic slots of the site at that time: one that is not among them has begun since."""
    heard_at: float = -math.inf
    failures: int = 0  # questions in a row that it did not answer
    error: str = ""
    ask_at: float = 0.0
    names: frozenset[str] = frozenset()  # attributes that its jobs look at

    def counts(self, now: float) -> bool:
        return now - self.heard_at <= REMEMBERED_S

    def claims(self, machines: Sequence[PoolMachine]) -> HTCondorOwnerView:
        in_use = {slot for slot, _ in self.queue.running}
        waiting = without_matched(
            self.queue.groups, machines, in_use, self.slots if self.failures else None
        )
        return claims(waiting, machines, self.queue.left_out)

    def notice(self, schedd: str, now: float) -> str:
        meanwhile = "its jobs are not seen"
        said = f"what it said {now - self.heard_at:.0f} s ago"
        if self.heard_at > -math.inf:
            meanwhile = (
                f"{said} still counts" if self.counts(now) else f"{meanwhile}, {said} is too old"
            )
        return printable(f"owner's schedd {schedd}: {meanwhile}: {self.error}", 300)


class OwnerQueuePoller:
    """The owner's queues, all asked at once.

    A queue that does not answer delays nothing. Its last answer counts for a while: without its
    claims drones would start in the very room that is being made for its jobs.
    """

    def __init__(
        self,
        client: HTCondorClient,
        settings: HTCondorOwnerConfig | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._known: Mapping[str, OwnerQueueState] = {
            schedd: OwnerQueueState() for schedd in (settings.schedds if settings else ())
        }

    async def poll(self, machines: Sequence[PoolMachine]) -> HTCondorOwnerView:
        if self._settings is None:
            return HTCondorOwnerView()
        states, notices = await self.query(machines)
        # some milliseconds for each shape
        found = await asyncio.to_thread(lambda: [state.claims(machines) for state in states])
        demands = [demand for each in found for demand in each.claims]
        if self._settings.submitters:
            totals = await self._client.ads("submitters", "true", SUBMITTER_PROJECTION)
            demands += submitter_claims(totals, self._settings, time.time())
        fresh = [state.queue for state in states if not state.failures]
        held = tuple(each for queue in fresh for each in queue.running)
        remarks = tuple(line for each in found for line in each.notices)
        runs = running(held, machines) if fresh else None
        return HTCondorOwnerView(tuple(demands), runs, tuple(notices), remarks, held)

    async def query(
        self, machines: Sequence[PoolMachine]
    ) -> tuple[Sequence[OwnerQueueState], Sequence[str]]:
        """Return each queue whose answer counts, and a notice for each silent one; it takes limited time."""
        now = self._clock()
        async with asyncio.TaskGroup() as group:
            for schedd, known in self._known.items():
                if known.ask_at <= now:
                    group.create_task(self._ask(schedd, known, machines))
        now = self._clock()
        notices = [
            known.notice(schedd, now) for schedd, known in self._known.items() if known.failures
        ]
        return [known for known in self._known.values() if known.counts(now)], notices

    async def _ask(
        self, schedd: str, known: OwnerQueueState, machines: Sequence[PoolMachine]
    ) -> None:
        """Ask for a queue with all that its jobs' expressions look at, again (which is rare) until all is known."""
        assert self._settings is not None
        wanted = wanted_by(machines)
        slots = dynamic_slots(machines)
        constraint = job_constraint(self._settings)
        try:
            async with asyncio.timeout(OWNER_QUEUE_TIMEOUT_S):
                for _ in range(_MAX_QUERIES):
                    names = wanted | known.names
                    queue = await self._client.owner_queue(schedd, constraint, sorted(names))
                    more = further(queue, names)
                    if not more or len(known.names | more) > _MAX_NAMES:
                        break
                    known.names |= more
        except (AdapterError, TimeoutError) as error:
            known.failures += 1
            known.error = str(error) or f"no answer within {OWNER_QUEUE_TIMEOUT_S:g} s"
            known.ask_at = self._clock() + min(
                _FIRST_WAIT_S * 2 ** min(known.failures - 1, 8), _LONGEST_WAIT_S
            )
        else:
            known.queue, known.slots, known.heard_at = queue, slots, self._clock()
            known.failures = 0
            known.error = ""
            known.ask_at = 0.0


def dynamic_slots(machines: Iterable[PoolMachine]) -> frozenset[tuple[str, float]]:
    return frozenset(
        (slot.name, slot.entered_at) for machine in machines for slot in machine.carved or ()
    )


def without_matched(
    groups: Sequence[OwnerJobGroup],
    machines: Iterable[PoolMachine],
    in_use: Collection[str] = (),
    before: Collection[tuple[str, float]] | None = None,
) -> list[OwnerJobGroup]:
    """Return the owner's waiting jobs without those that have a slot already.

    Such a slot is claimed by their user and large enough, and nothing runs in it yet: neither by
    its ad nor by the queue (``in_use``: names). Where the queue was read when there were only the
    slots ``before``, it is a new one.
    """
    ready = [
        slot
        for machine in machines
        for slot in machine.carved or ()
        if (before is not None and (slot.name, slot.entered_at) not in before)
        or (slot.waits_for_its_job and slot.name not in in_use)
    ]
    waiting = [list(group.submitted) for group in groups]
    users = {slot.user for slot in ready}
    for at, n in sorted(
        (at, n) for n, group in enumerate(groups) if group.user in users for at in group.submitted
    ):
        needed = groups[n].size._replace(disk_mib=0)  # it is cut to what is there
        mine = next((s for s in ready if s.user == groups[n].user and s.amount.holds(needed)), None)
        if mine is not None:
            ready.remove(mine)
            waiting[n].remove(at)
    return [
        replace(group, submitted=tuple(left))
        for group, left in zip(groups, waiting, strict=True)
        if left
    ]
