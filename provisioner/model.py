"""Data model: job classes, drone types, drones, views, snapshots, actions and plans, as frozen values.

Units are in the names: ``_mib`` (MiB, integer), ``_s`` (seconds; a bare ``_at`` is seconds since
the epoch, UTC), ``gpu_milli`` (thousandths of one GPU, integer). Terms follow
``docs/reference/glossary.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from typing import NewType, final

from provisioner.estimates import NO_ESTIMATES, Estimates
from provisioner.job_filter import TAKES_ALL, JobFilter
from provisioner.keys import Scope as Scope, Subject as Subject, TypeKey as TypeKey, site_of
from provisioner.reasons import NodeReserved, Reason
from provisioner.settings import (
    NVIDIA as NVIDIA,
    WHOLE_GPU as WHOLE_GPU,
    AccountingPolicy as AccountingPolicy,
    Benchmark as Benchmark,
    DroneType as DroneType,
    GpuBudget as GpuBudget,
    Headroom as Headroom,
    InferenceServer as InferenceServer,
    LowUseAction as LowUseAction,
    LowUsePolicy as LowUsePolicy,
    MigLayout as MigLayout,
    Policy as Policy,
    Reserve as Reserve,
    Service as Service,
    Sharing as Sharing,
    SitePolicy as SitePolicy,
)
from provisioner.values import factory, frozen

DroneId = NewType("DroneId", str)
"""Id of a drone, chosen before its order: ``<controller>-<store birth>-<serial>``, ``[a-z0-9-]``, a DNS label."""


@frozen
class UnmetRequirement:
    """First requirement of a job class that a drone type does not meet: request and available amount."""

    dimension: str
    requested: str
    available: str
    others: int = 0
    """Number of further requirements that the type does not meet, as far as they were judged."""

    @property
    def is_amount(self) -> bool:
        """Return True if an amount is requested (``9``, ``20480 MiB``, ``CUDA 12.4``), not an expression or a name."""
        return re.match(r"(CUDA )?[0-9]+(\.[0-9]+)?( |$)", self.requested) is not None


@frozen
class JobClass:
    """Waiting and running jobs with identical requirements (an HTCondor autocluster).

    The request is of one job; ``vram_mib`` is per GPU, ``capability`` and ``driver`` are as in
    :class:`DroneType`.
    """

    id: str
    gpu_milli: int
    cpus: int
    memory_mib: int
    disk_mib: int = 0
    vram_mib: int = 0
    capability: int = 0
    driver: int = 0
    arch: str = ""
    waiting: int = 0
    """Idle jobs that the last negotiation cycle left idle: only these are demand."""
    fresh: int = 0
    """Idle jobs that no negotiation cycle has considered yet."""
    running: int = 0
    held: int = 0
    oldest_at: float = 0.0
    """Submission time of the oldest idle job; 0 if none waits."""
    owner: str = ""
    """User or accounting group."""
    priority: int = 0
    walltime_s: float = 0.0
    """Declared run time (AllowedJobDuration, AllowedExecuteDuration, ...); 0 if undeclared."""
    invalid: str = ""
    """Problem of a request that no slot can ever meet, and what to write instead."""
    refuses: Mapping[TypeKey, UnmetRequirement] = factory(dict)
    """Drone types that the jobs refuse, or whose START refuses them, by the overlay's own matchmaker."""
    job_ids: str = ""
    """Ids of the idle jobs as ranges, for display: ``204.0-204.99, 207.3``."""
    group: str = ""
    duty_milli: int = 0
    width_milli: int = 0
    """As in :class:`provisioner.sharing.Load`, in thousandths; 0 if undeclared."""
    splits: bool = True
    """Several jobs share one exclusive GPU, by their requests. False: each takes all of it."""
    running_ids: str = ""
    held_ids: str = ""
    idle_at: float = 0.0
    """Earliest start of a continuous idle time that still lasts; 0 if unknown: then ``oldest_at`` counts."""
    limited: int = 0
    """Part of ``waiting`` that the overlay would match with no slot at all."""
    limit: str = ""
    ends_within_s: float = 0.0
    """The overlay ends a run after this time; 0: never."""
    gpu_optional: bool = False
    """A GPU drone lends them an idle GPU by its START. For the planner they are jobs without a GPU."""
    vo: str = ""
    """Virtual organisation; empty: none, or unknown."""
    vo_member: str = ""
    """Member of the VO (a FQAN, or issuer and subject of a token); empty unless the overlay is configured to tell."""

    inference: tuple[str, ...] = ()
    """Models, each with its version, that its jobs announce to call (`+WantsInference`)."""

    @property
    def waits_since(self) -> float:
        """Time since which its oldest idle job waits, in seconds since the epoch."""
        return self.idle_at or self.oldest_at

    @property
    def idle(self) -> int:
        """Return the number of idle jobs, negotiated or not."""
        return self.waiting + self.fresh

    def with_optional_gpu(self) -> JobClass:
        """Return the class as one whose GPU is optional."""
        return replace(self, gpu_milli=0, vram_mib=0, capability=0, driver=0, gpu_optional=True)


class SlotState(StrEnum):
    """State of a drone in the overlay."""

    CHECKING = "checking"
    """In the pool but not accepting jobs yet."""
    IDLE = "idle"
    BUSY = "busy"
    """At least one claim, even if the claim is idle (claimed/idle is not idle)."""
    DRAINING = "draining"


@frozen
class Slot:
    """One drone as the overlay sees it, with its free resources."""

    drone_id: DroneId
    state: SlotState
    heard_at: float
    """Last sign of life by this host's clock. It decides whether a slot is alive, not the listing."""
    free_gpu_milli: int = 0
    free_cpus: int = 0
    free_memory_mib: int = 0
    free_disk_mib: int = 0
    jobs: int = 0
    jobs_started: int = 0
    """Jobs started since the drone joined."""
    idle_since: float = 0.0
    """0 if a job runs, or unknown."""
    retires_at: float = 0.0
    """The slot accepts no new job after this; 0: never retires."""
    name: str = ""
    """The overlay's name of the slot (``slot1@...``); untrusted text, for display only."""
    gpu_model: str = ""
    vram_mib: int = 0
    capability: int = 0
    work_gpu_milli: int = 0
    """GPUs (of a CPU drone: CPUs, in thousandths) that jobs use now; 0 if none runs or unknown."""
    work_at: float = 0.0
    """Average start, or last checkpoint, of the work that would be lost if the drone ended now. The
    loss at time t is ``work_gpu_milli / 1000 * (t - work_at)`` GPU-seconds."""
    owner: str = ""
    """Owner of the running jobs; empty if none runs, if there are several owners, or if unknown."""
    begun_at: float = 0.0
    """Start of the running job that began first; 0 if none runs or unknown."""
    gpus_offline: int = 0
    """GPUs of the drone that its checks have taken offline."""
    job_gpu_milli: int = 0
    job_cpus: int = 0
    job_memory_mib: int = 0
    """Request of its job; 0 if none or several run, or unknown."""
    job_ids: str = ""
    optional_jobs: int = 0
    """Part of ``jobs`` for which a GPU is optional; 0 if unknown."""

    @property
    def only_optional(self) -> bool:
        """Return True if jobs run in it and none of them needs its GPU."""
        return 0 < self.jobs <= self.optional_jobs


@frozen
class CompletedJob:
    """A run of a job that ended, as reported by its queue: the job completed, or with ``unfinished`` it did not."""

    job_id: str
    ended_at: float
    submitted_at: float
    run_s: float
    gpu_milli: int
    cpus: int
    memory_mib: int
    disk_mib: int = 0
    vram_mib: int = 0
    capability: int = 0
    owner: str = ""
    group: str = ""
    walltime_s: float = 0.0
    drone_id: DroneId | None = None
    """The drone that it ran in; None if it was no drone, or unknown."""
    unfinished: bool = False
    """The run ended before the job was done: it was evicted, held or removed."""
    splits: bool = True
    """As of its class."""
    used_milli: int | None = None
    """Mean use of GPUs during the run, in thousandths of one GPU; None: not measured, as in the next two."""
    peak_vram_mib: int | None = None
    """Largest use of memory per GPU."""
    energy_j: int | None = None
    vo: str = ""
    vo_member: str = ""
    """As of its class."""
    used_cpu_s: int | None = None
    """CPU time of all its processes; None: not measured, as in the next."""
    peak_memory_mib: int | None = None
    routed_from: str = ""
    """Id of the job whose routed copy it was; empty: of none."""
    failed: bool = False
    """The job ended with a signal, or an exit code other than 0."""

    @property
    def job_number(self) -> str:
        """Return the id without the schedd, as that of :class:`JobFailure`."""
        return self.job_id.rpartition("#")[2]


@frozen
class Group:
    """An accounting group of the overlay; its amounts include those of its sub-groups (``physics.atlas``)."""

    name: str
    quota_milli: int | None = None
    used_milli: int = 0
    surplus: bool = True
    """It may exceed its quota while others do not use theirs."""
    priority: float = 0.0
    """The negotiator's effective priority: groups with lower values are served first; 0: unknown."""


@frozen
class Eviction:
    """A job that left a drone before it completed, as reported by its queue."""

    drone_id: DroneId
    job_id: str
    at: float
    gpu_milli: int
    """GPUs that it used (of a CPU drone: CPUs, in thousandths)."""
    lost_s: float


class Blame(StrEnum):
    """Causes of a job's failure."""

    UNKNOWN = "unknown"
    """Its own fault, or that of the node: the black-hole rule judges it."""
    JOB = "job"
    """It faulted on a shared GPU, or exceeded its share of the VRAM."""
    COLLATERAL = "collateral"
    """A neighbour on the shared GPU ended it."""
    SETTLED = "settled"
    """Collateral of a job that has completed since."""


@frozen
class JobFailure:
    """A job that failed in a drone within seconds, was held, or was ended by a fault on a shared GPU."""

    drone_id: DroneId
    job_id: str
    at: float
    owner: str
    cause: str = ""
    blame: Blame = Blame.UNKNOWN

    @property
    def job_number(self) -> str:
        """Return ``<cluster>.<process>``: not each source reports the schedd."""
        return self.job_id.rpartition("#")[2]


@frozen
class OtherDrones:
    """GPU drones of other systems in the pool, of one site and GPU model."""

    site: str
    """Name that the other system gives the site; untrusted text."""
    gpu_model: str
    drones: int
    gpu_milli: int
    busy_gpu_milli: int
    """GPUs that jobs have claimed."""
    joined: int = 0
    """Drones that have joined since the first poll; it begins anew with the process that polls."""


NEGOTIATION_TIMEOUT_S = 300.0
"""HTCondor negotiates once a minute by default. Jobs that waited for five without a cycle wait for a person."""


@final
@frozen
class OverlayView:
    """View of the overlay: waiting jobs by class, and the slots of drones. Times are seconds since the epoch."""

    taken_at: float
    classes: tuple[JobClass, ...] = ()
    slots: tuple[Slot, ...] = ()
    negotiated_at: float = 0.0
    """End of the last negotiation cycle; 0 if there is none."""
    notices: tuple[str, ...] = ()
    """Problems that an operator should look at (an ad without DroneId, a schedd that denies reading), a line each."""
    evictions: tuple[Eviction, ...] | None = None
    """Evictions of the last quarter of an hour or so, in many polls. None if the overlay does not report them."""
    completions: tuple[CompletedJob, ...] | None = None
    completions_at: float = 0.0
    """Time up to which completed jobs are known; 0: as of the view."""
    groups: tuple[Group, ...] = ()
    priorities: Mapping[str, float] = factory(dict)
    """Effective priorities of users, as the negotiator reports them: a lower value is a larger share."""
    mishaps: tuple[JobFailure, ...] = ()
    """Failed jobs of the last quarter of an hour or so; the overlay guarantees that each was in the drone."""
    remarks: tuple[str, ...] = ()
    """Problems that users cause and that need no action (an invalid request), a line each: they raise no alarm."""
    unheard: tuple[str, ...] = ()
    """Names of queues that did not answer: their jobs are as of their last answer, or missing."""
    others: tuple[OtherDrones, ...] | None = None
    """Drones of other systems; None if they were not queried: only a shadow does."""
    routed: Mapping[str, str] = factory(dict)
    """Ids of jobs that do not count, as a router manages them, with those of their routed copies, which do."""

    def silent_s(self, classes: Iterable[JobClass]) -> float:
        """Return for how long no negotiation cycle has run although ``classes`` wait; 0 while that is no trouble."""
        jobs = [job for job in classes if (job.waiting or job.fresh) and not job.invalid]
        if not jobs:
            return 0.0
        fresh_since = min(
            (job.waits_since for job in jobs if job.fresh and job.waits_since),
            default=self.taken_at,
        )
        silent_s = self.taken_at - (self.negotiated_at or fresh_since)
        return silent_s if silent_s > NEGOTIATION_TIMEOUT_S else 0.0


@frozen
class ModelUse:
    """Work of the servers of a service on one model, summed since the service has been watched."""

    model: str
    """Name and version."""
    requests: int = 0
    queue_s: float = 0.0
    """Time that requests waited in servers."""
    compute_s: float = 0.0
    """Time in which servers worked on them."""


@frozen
class ServiceView:
    """Demand for one inference service, as its balancer and its servers measure it."""

    name: str
    requests: int = 0
    """Requests that came to the balancer, refused ones included, summed since the service has been watched."""
    refused: int = 0
    """Part of ``requests`` that no server took."""
    requested_at: float = 0.0
    """Newest time at which requests came or were under way; 0: none is known."""
    requests_per_s: float = 0.0
    """Requests that come per second now."""
    in_flight: int = 0
    """Requests in servers."""
    queued: int = 0
    """Requests that wait at the balancer."""
    request_s: float = 0.0
    """Time that one server works on one request, as a part of a batch; 0: not measured."""
    by_vo: Mapping[str, int] = factory(dict)
    """Requests by VO; empty where the service has no tokens."""
    models: tuple[ModelUse, ...] = ()


@final
@frozen
class ServicesView:
    """One look at all servers and their balancer. Servers are slots, and their requests the jobs of these."""

    taken_at: float
    services: tuple[ServiceView, ...] = ()
    slots: tuple[Slot, ...] = ()
    """Servers that are ready: ``draining`` once withdrawn. Until it is ready, a drone boots."""
    notices: tuple[str, ...] = ()
    """Problems that an operator should look at, a line each."""
    remarks: tuple[str, ...] = ()
    """Problems that need no action, a line each: a server that is not ready is replaced."""


@frozen
class ServiceState:
    """Memory of the planner about one service, from tick to tick."""

    name: str
    wanted: int = 0
    """Servers that are kept or started now."""
    needed: int = 0
    """Servers that the demand of this tick needs."""
    peaks: tuple[tuple[float, int], ...] = ()
    """Times and values of earlier ``needed`` that are still held, each larger than all later ones."""
    announced: int = 0
    """Running jobs that announce its models."""
    request_s: float = 0.0
    """Newest measured time of one server for one request; 0: never measured."""
    job_requests_per_s: float = 0.0
    """Learned requests per second of one running job that announces it; 0: never measured."""
    learned_at: float = 0.0
    """Time up to which that is learned; 0 while no job runs that announces it."""
    measured_jobs: int = 0
    """Running jobs at that time that still run: what they request is in the measured rate."""


class RemoteState(StrEnum):
    """States of a drone as the site reports them. Unknown counts as alive."""

    PENDING = "pending"
    RUNNING = "running"
    UNKNOWN = "unknown"
    STOPPED = "stopped"
    """It still holds resources until its site cleans it up: it counts against limits and is no supply."""
    ENDED = "ended"


class EndKind(StrEnum):
    """Kinds of ends of a drone at its site."""

    EXITED = "exited"
    """By itself, with ``exit_code``."""
    STOPPED = "stopped"
    PREEMPTED = "preempted"
    FAULT = "fault"
    """The site could not run it: node fault, boot failure, held."""


@frozen
class RemoteEnd:
    """End of a drone at its site, at the time ``at`` (seconds since the epoch)."""

    kind: EndKind
    at: float
    exit_code: int | None = None
    message: str = ""
    fault: FaultKind | None = None
    """If the site reports it (a hold reason): its drone type backs off accordingly."""
    contained: bool = False
    """The site leaves out the device or node that failed: the drone type has no part in it."""


@frozen
class RemoteDrone:
    """A drone as its site lists it. Times are seconds since the epoch."""

    drone_id: DroneId
    state: RemoteState
    remote_id: str = ""
    type: str = ""
    """Name of the drone type, if the site keeps it: lets an unrecorded drone be counted."""
    started_at: float = 0.0
    """Start of its run; 0 if not started or unknown."""
    reason: str = ""
    expected_start_at: float = 0.0
    end: RemoteEnd | None = None
    node: str = ""
    slot: str = ""
    notice_at: float = 0.0
    """Start of the preemption by the site; 0 if there is none."""
    blocked: FaultKind | None = None
    """Obstacle that keeps it waiting, and that others of its type would meet as well."""
    final: bool = False
    """This drone will not start any more, whatever the obstacle; another may, once it has passed."""
    epoch: int = 0
    """That of its start order; 0 without one."""

    @property
    def hopeless(self) -> bool:
        """Return True if it waits for what waiting does not bring."""
        return self.state is RemoteState.PENDING and (self.final or self.blocked not in _PASSES)


@frozen
class OwnerDemand:
    """Waiting owner jobs of one shape that need resources that our drones may hold. Sizes are of one job."""

    count: int
    gpu_milli: int
    cpus: int
    memory_mib: int
    since: float
    disk_mib: int = 0
    nodes: tuple[str, ...] = ()
    """Nodes that could run one if they were empty; empty: any."""
    who: str = ""


@frozen
class OwnerLoad:
    """Number of waiting jobs of the owner of a site, and the resources that they request together."""

    jobs: int = 0
    gpu_milli: int = 0
    cpus: int = 0
    memory_mib: int = 0


@frozen
class Node:
    """A node that can run drones: its total and free resources, without blocking."""

    name: str
    types: tuple[str, ...]
    """Names of the drone types that it could run if it were empty."""
    gpu_milli: int
    cpus: int
    memory_mib: int
    disk_mib: int
    free_gpu_milli: int
    free_cpus: int
    free_memory_mib: int
    free_disk_mib: int
    exclusive: tuple[str, ...] = field(default=(), kw_only=True)
    """Names of the types of which each drone gets the node as a whole, and needs it empty."""


@final
@frozen
class SiteView:
    """One listing of a site: our drones, free capacity, and the owner's claims."""

    site: str
    taken_at: float
    drones: Mapping[DroneId, RemoteDrone] = factory(dict)
    free: Mapping[str, int] | None = None
    """Number of drones of each type (by type name) that could start right now: alternatives, which
    may share the same hardware. Drones that wait there without a node are not subtracted. None if
    unknown; unused with ``nodes``."""
    nodes: tuple[Node, ...] = ()
    """All nodes that can run drones, if the site reports them. Queried before ``claims``: a job
    that starts meanwhile is then missed as a claim rather than counted twice."""
    claims: tuple[OwnerDemand, ...] = ()
    owner_runs: OwnerLoad | None = None
    downtime_at: float = 0.0
    notices: tuple[str, ...] = ()
    quota: Mapping[str, int] | None = None
    """Number of further drones of each type within our quota, whatever is free: alternatives; None if unknown."""
    free_gpu_milli: int | None = None
    """Free GPUs of the whole site, like ``free``; None if ``nodes`` reports them, or unknown."""
    lacks: Mapping[str, str] = factory(dict)
    """Shortage by type name, for types of which none could start now: ``cpus 8 > 2 free``. Empty if unknown."""
    unfit: Mapping[str, str] = factory(dict)
    """The same for types of which none can ever start there, however empty the site is."""
    remarks: tuple[str, ...] = ()
    """Problems that the owner's users cause and that need no action (a job that fits no node), a line each."""


class DroneState(StrEnum):
    """States of a drone's life cycle: meanings in ``descriptions.STATE_WORDS``, rules in ``planner/lifecycle.py``."""

    REQUESTED = "requested"
    SUBMITTED = "submitted"
    QUEUED = "queued"
    BOOTING = "booting"
    JOINED = "joined"
    IDLE = "idle"
    BUSY = "busy"
    DRAINING = "draining"
    STOPPING = "stopping"
    # ends
    DONE = "done"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    FAILED = "failed"
    LOST = "lost"
    JOIN_TIMEOUT = "join-timeout"
    UNUSED = "unused"

    @property
    def ended(self) -> bool:
        """True for a final state."""
        return self in ENDS


ENDS = frozenset(
    map(DroneState, ("done", "cancelled", "preempted", "failed", "lost", "join-timeout", "unused"))
)
_AT_SITE = (DroneState.SUBMITTED, DroneState.QUEUED)
WAITING = (DroneState.REQUESTED, DroneState.SUBMITTED, DroneState.QUEUED)
"""At its site, as far as is known, and without a place there."""
PENDING = (*WAITING, DroneState.BOOTING)
"""Ordered, and not in the pool yet."""
ON_THE_WAY = (*PENDING, DroneState.JOINED)
"""It accepts no jobs yet."""


class DrainMode(StrEnum):
    """Ways to drain a drone; ``descriptions.DRAIN_MODE_WORDS`` says what happens to its jobs."""

    NONE = "none"
    PEACEFUL = "peaceful"
    GRACEFUL = "graceful"
    FAST = "fast"
    RESUME = "resume"


@frozen
class Drone:
    """One pilot on record. Never built from a listing: the record comes first (intent before act)."""

    id: DroneId
    type: TypeKey
    state: DroneState
    since: float
    """Time at which it entered ``state``; for a requested drone, of its order or of the missing answer."""
    requested_at: float
    gpu_milli: int
    """Size of its type at the order: the type may have changed or gone since."""
    for_class: str = ""
    remote_id: str = ""
    submitted_at: float = 0.0
    """Time at which the site accepted the order; 0 while that is unknown."""
    started_at: float = 0.0
    joined_at: float = 0.0
    busy_at: float = 0.0
    """Time of its first job; 0 if it had none."""
    idle_at: float = 0.0
    """Start of the time without a job; 0 while busy. Before it joined: without a job waiting for it."""
    heard_at: float = 0.0
    jobs: int = 0
    jobs_started: int = 0
    missing_at: float = 0.0
    """Time of the first fresh listing without it; 0 while listed. Missing once is not gone."""
    unslotted_at: float = 0.0
    """Time of the first fresh overlay view without its slot after it had joined; 0 while there."""
    leaving: DroneState | None = None
    """Final state that it gets once the site confirms its end; set when it is asked to leave."""
    asked_at: float = 0.0
    asked: int = 0
    retires_at: float = 0.0
    ended_at: float = 0.0
    slot: str = ""
    site_reason: str = ""
    node: str = ""
    site_slot: str = ""
    notice_at: float = 0.0
    """Time of the site's notice, or of our order to leave for the owner; 0 if neither."""
    work_gpu_milli: int = 0
    work_at: float = 0.0
    lost_gpu_s: float = 0.0
    """GPU-seconds (of a CPU drone: CPU-seconds) of work that its end has cost."""
    lost_jobs: int = 0
    job_filter: JobFilter = TAKES_ALL
    drain_mode: DrainMode = DrainMode.PEACEFUL
    """Mode of the last drain order; a repeated order uses the same."""
    service: str = ""
    """Service that its server belongs to, as of its order; empty: it takes jobs."""
    drain_refusal: str = ""
    """Reason why the overlay did not carry out the last drain or undrain; empty once its slot drains."""

    @property
    def site(self) -> str:
        """Name of the site of its drone type."""
        return site_of(self.type)

    @property
    def is_leaving(self) -> bool:
        """Return True if it was asked to leave or has stopped: it is no supply and gets no further orders."""
        return self.leaving is not None or self.state is DroneState.STOPPING

    @property
    def waits_at_site(self) -> bool:
        """True while the site has the drone in a queue of its own."""
        return self.state in _AT_SITE

    @property
    def awaits_room(self) -> bool:
        """Return True if it waits at its site without a node: the free capacity does not count it yet."""
        return self.state in WAITING and not self.node


class FaultKind(StrEnum):
    """Kinds of faults; each has its own back-off (``planner/breakers.py``, ``planner/blame.py``)."""

    DOWN = "down"
    CAPACITY = "capacity"
    QUOTA = "quota"
    DENIED = "denied"
    """Credentials or authorisation fail: a human must act."""
    THROTTLED = "throttled"
    NODE = "node"
    CONFIG = "config"
    """The order itself is invalid for this site."""
    DRONE = "drone"
    """Drones of this type end early or never join."""
    JOBS = "jobs"
    """The pool matches no waiting job of a class to the drones started for it, or a user's jobs fail on shared GPUs."""
    BLACK_HOLE = "black-hole"
    """Drones on this node make jobs fail that succeed elsewhere."""
    LEASE = "lease"
    """The controller made no call: its own lease ends too soon. No breaker counts it."""
    UNKNOWN = "unknown"


_PASSES = (None, FaultKind.QUOTA, FaultKind.CAPACITY, FaultKind.THROTTLED, FaultKind.DOWN)


@frozen
class Fault:
    """A fault of a site, an order or a drone, met at the time ``at`` (seconds since the epoch)."""

    kind: FaultKind
    message: str
    at: float
    of_order: bool = False
    """An order met it, not a poll: a successful poll does not clear it."""
    accepted: bool = False
    """A drone met it after its order was accepted: another accepted order does not clear it."""


class BreakerState(StrEnum):
    """State of a circuit breaker."""

    ACTIVE = "active"
    DEGRADED = "degraded"
    BANNED = "banned"
    PROBING = "probing"


@frozen
class Breaker:
    """Circuit breaker of a part of the world."""

    scope: Scope
    state: BreakerState = BreakerState.ACTIVE
    since: float = 0.0
    """Start of the state. Of a user: the last reset, or 0; failures before it do not count."""
    failures: int = 0
    until: float = 0.0
    """End of a ban, when it may be probed. Of the overlay after an outage: when its demand is trusted again."""
    fault: Fault | None = None
    blind_until: float = 0.0
    """End of the last outage that was long enough to hide events."""
    faults: tuple[JobFailure, ...] = ()
    """Failures of a user's jobs on shared GPUs, oldest first."""

    @property
    def forgotten(self) -> bool:
        """Return True if it says no more than a missing record, and need not be kept."""
        scope = self.scope
        spent = scope.class_id or scope.node or (scope.user and not self.since)
        return self.state is BreakerState.ACTIVE and bool(spent)

    def tells_of(self, fault: Fault) -> bool:
        """Return True if the fault that the breaker met says the same."""
        met = self.fault
        return met is not None and (met.kind, met.message) == (fault.kind, fault.message)


Breakers = Mapping[Scope, Breaker]


USER_NAME = re.compile(r"[A-Za-z0-9._@-]{1,80}")
"""Names of users that a drone can refuse."""


@frozen
class OwnerClaimBackoff:
    """State kept from tick to tick for a site whose owner's jobs wait."""

    site: str
    since: float = 0.0
    """Start of the time in which free room stands unused for them; 0 if none stands."""
    standing: int = 0
    offer: int = 0
    """Number of jobs that are offered room at once; 0: all."""


@frozen
class PolledSite:
    """The newest good view of a site, and the fault of the newest poll, if any."""

    site: str
    view: SiteView | None = None
    fault: Fault | None = None
    busy: bool = False


@frozen
class PolledOverlay:
    """Result of one poll of the overlay: its view, or the fault."""

    view: OverlayView | None = None
    fault: Fault | None = None


@frozen
class PolledServices:
    """Result of one look at the inference services, or the fault."""

    view: ServicesView | None = None
    fault: Fault | None = None


CREDENTIAL_WARNING_S = 7 * 86400.0
"""A credential that expires within this time is worth a warning."""


@frozen
class Credential:
    """A token, key or certificate that the overlay, a site or the web service uses. It never holds the secret."""

    name: str
    """Option that names it, with dots between the levels: ``drone_token``, ``rest.token``."""
    source: str
    """``file /etc/provisioner/drone.token``, or ``environment variable NAME``."""
    identity: str = ""
    scopes: tuple[str, ...] = ()
    """Rights that it is limited to; empty: not limited, or unknown."""
    not_after: float = 0.0
    """End of its validity on the host's wall clock; 0: none, or unknown."""
    problem: str = ""
    """Reason why it cannot be used, whatever the time."""
    doubtful: bool = False
    """`check` only warns of the problem: for another account, or another configuration of the pool, it may be none."""
    warning_s: float = CREDENTIAL_WARNING_S
    """Time before its end from which it is warned of."""
    fingerprint: str = ""
    """Beginning of the SHA-256 of its content: another one is a renewed credential."""
    used_by: str = ""
    """``overlay``, ``site:<name>``, ``service:<name>`` or ``web``."""

    def is_dead(self, now: float) -> bool:
        """Return whether it cannot be used at ``now``, in seconds since the epoch."""
        return bool(self.problem) or 0 < self.not_after <= now


class RequestKind(StrEnum):
    """Kinds of requests of operators."""

    DRAIN = "drain"
    KILL = "kill"
    RESET = "reset"
    """Lift bans: ``drone_ids`` holds breaker scopes: ``<site>`` with its types, ``<site>/<type>``, ``user:<name>``."""
    DISABLE = "disable"
    """Start nothing at the sites that ``drone_ids`` names. It stays open, and so in force, until they are enabled."""
    ENABLE = "enable"
    RELOAD = "reload"
    """Read the configuration again."""
    ADOPT_ORPHANS = "adopt-orphans"
    """Put the orphans of the sites that ``drone_ids`` names on record."""
    STOP_ORPHANS = "stop-orphans"
    """Stop them."""
    RESIGN = "resign"
    """Leave the lease to another member."""


@frozen
class OperatorRequest:
    """Request of an operator on the command line; recorded first, carried out at the next tick."""

    id: int
    at: float
    kind: RequestKind
    drone_ids: tuple[DroneId, ...]
    reason: str
    by: str
    mode: DrainMode = DrainMode.PEACEFUL


@frozen
class Snapshot:
    """Everything that a plan may depend on, at one time. The same snapshot gives the same plan."""

    now: float
    tick: int
    id_prefix: str
    """``<controller>-<store birth>``: new drone ids consist of this and a serial number."""
    next_serial: int
    policy: Policy
    types: tuple[DroneType, ...]
    overlay: PolledOverlay
    sites: Mapping[str, PolledSite]
    drones: Mapping[DroneId, Drone]
    breakers: Breakers = factory(dict)
    requests: tuple[OperatorRequest, ...] = ()
    ended: Mapping[DroneId, DroneState] = factory(dict)
    """Final states of recorded drones that have ended, and that a site still lists or in which jobs failed lately."""
    patience: Mapping[str, OwnerClaimBackoff] = factory(dict)
    reserved: Mapping[str, NodeReserved] = factory(dict)
    """Reservations for jobs of several GPUs by site, as the plan before made them."""
    estimates: Estimates = NO_ESTIMATES
    drift_s: float = 0.0
    """Lead of the host's wall clock over ``now``, in seconds."""
    credentials: tuple[Credential, ...] = ()
    renewed: frozenset[str] = frozenset()
    """Users of credentials (``used_by``) that have another one, or one that can be used again, since the last tick."""
    orphans: Mapping[DroneId, float] = factory(dict)
    """Listed drones without any record, each with the time since which ``orphan_grace_s`` counts."""
    services: PolledServices = PolledServices()
    service_states: Mapping[str, ServiceState] = factory(dict)
    """By service, as the plan before left them."""
    twins: Mapping[str, str] = factory(dict)
    """Other living controllers of this name, by their records, each with its newest drone or its process."""
    starts_from: float = 0.0
    """A new leader starts no drone at a site whose view is older: orders of the one before may still arrive there."""
    unlisted: frozenset[str] = frozenset()
    """Sites that a new leader has not listed often enough to stop orphans there."""
    adopts: bool = False
    """Orphans with the name of this record are adopted: the database may have lost their start in a fail-over."""

    @property
    def disabled(self) -> Mapping[str, OperatorRequest]:
        """The sites that operators have disabled, with the request of each."""
        return disabled_sites(self.requests)


def disabled_sites(requests: Iterable[OperatorRequest]) -> dict[str, OperatorRequest]:
    """Return the requests that disable sites by site, of open requests from the oldest to the newest."""
    found: dict[str, OperatorRequest] = {}
    for request in requests:
        for site in request.drone_ids:
            if request.kind is RequestKind.DISABLE:
                found[site] = request
            elif request.kind is RequestKind.ENABLE:
                found.pop(site, None)
    return found


@frozen
class StateChange:
    """Change of a drone's record: the new record, the previous state (None for a new drone), and the reason."""

    drone: Drone
    was: DroneState | None
    reason: Reason


@frozen
class Start:
    """Start of one drone. ``drone`` is the intent that is recorded before the site is called."""

    drone: Drone
    reason: Reason
    walltime_s: float = 0.0
    """Longest life, if a downtime makes it shorter than that of its type. 0: as its type."""


@frozen
class Drain:
    """Order to the overlay to drain a drone. ``drone`` is its record afterwards."""

    drone: Drone
    was: DroneState
    mode: DrainMode
    reason: Reason


@frozen
class Stop:
    """Order to the site to stop a drone with notice and grace period. ``drone`` is its record afterwards."""

    drone: Drone
    was: DroneState
    reason: Reason
    kill: bool = False
    """Without notice: it was asked often enough, or an operator wants it."""


@frozen
class StopOrphan:
    """Order to stop something at a site that carries our tag without a live record."""

    site: str
    drone_id: DroneId
    remote_id: str
    reason: Reason


@frozen
class Refusal:
    """Something not done."""

    subject: Subject
    count: int
    reason: Reason


@frozen
class Plan:
    """Everything that one tick does, and why it does not do more."""

    tick: int
    at: float
    moves: tuple[StateChange, ...] = ()
    starts: tuple[Start, ...] = ()
    drains: tuple[Drain, ...] = ()
    stops: tuple[Stop, ...] = ()
    orphans: tuple[StopOrphan, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    breakers: tuple[Breaker, ...] = ()
    requests_done: tuple[int, ...] = ()
    patience: tuple[OwnerClaimBackoff, ...] = ()
    services: tuple[ServiceState, ...] = ()

    @property
    def leaves(self) -> tuple[Drain | Stop, ...]:
        """The orders to drain and to stop drones."""
        return (*self.drains, *self.stops)

    @property
    def asks(self) -> tuple[Start | Drain | Stop, ...]:
        """The orders to start, drain and stop drones."""
        return (*self.starts, *self.drains, *self.stops)

    @property
    def acts(self) -> bool:
        """True if the plan changes something at a site or in the overlay."""
        return bool(self.starts or self.drains or self.stops or self.orphans)


@frozen
class Bootstrap:
    """Files that a drone needs to join the overlay: a start script, secret files, environment.

    The script runs on a bare worker node with a POSIX shell. ``files`` are written, mode 0600, into
    the drone's own directory before the script starts there; values may be secret and are never
    logged.
    """

    script: bytes
    env: Mapping[str, str] = factory(dict)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@frozen
class StartOrder:
    """Order to start one drone of ``type`` as ``drone_id``; a second one with the same id is the same drone."""

    drone_id: DroneId
    type: DroneType
    idle_timeout_s: float
    """Time after which the drone leaves by itself without the controller: later than the controller would ask."""
    grace_s: float
    bootstrap: Bootstrap | None = None
    """None when the overlay is asked; set when the site is."""
    job_filter: JobFilter = TAKES_ALL
    """Jobs that it must refuse."""
    comes_within_s: float = 0.0
    """Longest time from the order until it accepts jobs: a token for it has to outlast this and its walltime."""
    epoch: int = 0
    """Epoch of the leader that gives the order; 0 without ``ha``. Its site keeps it with the drone id."""


@frozen
class StopOrder:
    """Order to stop one drone; already gone is success. ``kill``: without notice."""

    drone_id: DroneId
    remote_id: str
    kill: bool = False


class OrderOutcome(StrEnum):
    """Outcome of an order to a site or to the overlay."""

    OK = "ok"
    REJECTED = "rejected"
    """Certainly not carried out."""
    UNKNOWN = "unknown"
    """It may have been carried out: only a later listing resolves it."""


@frozen
class OrderResult:
    """Answer to one order; with a ``fault`` unless its outcome is ``OK``."""

    drone_id: DroneId
    answer: OrderOutcome
    remote_id: str = ""
    fault: Fault | None = None


OrderResults = Sequence[OrderResult]
