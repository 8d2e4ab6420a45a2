"""The nouns: job classes, drone types, drones, views, snapshots, actions and plans. Frozen values.

Units are in the names: ``_mib`` (MiB, integer), ``_s`` (seconds; a bare ``_at`` is seconds since the epoch, UTC),
``gpu_milli`` (thousandths of one GPU, integer). Words follow ``docs/reference/glossary.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from provisioner.estimates import NO_ESTIMATES, Estimates
from provisioner.reasons import Reason

DroneId = NewType("DroneId", str)
"""Ours, chosen before the drone is asked for: ``<controller>-<store birth>-<serial>``, ``[a-z0-9-]``, a DNS label."""

TypeKey = NewType("TypeKey", str)
"""``<site>/<drone type>``: names a drone type across all sites."""

WHOLE_GPU = 1000
"""One GPU in milli-GPU. Shares are integers: 0.2 + 0.1 must be 0.3 (field notes, B 27)."""


def type_key(site: str, name: str) -> TypeKey:
    """The key of drone type ``name`` of ``site``."""
    return TypeKey(f"{site}/{name}")


class Sharing(StrEnum):
    """How the jobs of one drone share a GPU."""

    EXCLUSIVE = "exclusive"
    TIME_SLICED = "time-sliced"
    MPS = "mps"
    MIG = "mig"


# --------------------------------------------------------------------------------------------- what sites can start


@dataclass(frozen=True, slots=True)
class DroneType:
    """A shape that a site can start. ``gpu_milli`` and the rest are of the whole drone, ``vram_mib`` is per GPU.
    Without a GPU it is a CPU drone: it takes jobs that want no GPU, and never what is kept for free GPUs."""

    site: str
    name: str
    gpu_milli: int
    cpus: int
    memory_mib: int
    disk_mib: int
    vram_mib: int = 0
    gpu_model: str = ""
    capability: int = 0
    """CUDA compute capability times 10: 8.0 is 80. 0: not a GPU, or not told."""
    driver: int = 0
    """Newest CUDA version the driver supports, HTCondor's form: 12.4 is 12040. 0: not told."""
    arch: str = "X86_64"
    walltime_s: float = 0.0
    """How long the site lets it live; 0 is without limit."""
    margin_s: float = 0.0
    """Part of that which no job gets: the drone's start, the site's grace and what its adapter keeps for the end."""
    sharing: Sharing = Sharing.EXCLUSIVE
    price: float = 1.0
    """Relative cost of one GPU-hour; placement takes the cheapest fit first."""
    max_drones: int | None = None
    ad: Mapping[str, str] = field(default_factory=dict)
    """Extra ClassAd attributes of the slot, as expressions, for the matching template."""
    shares: int = 1
    """As how many GPUs each of its GPUs is offered to small jobs, where ``sharing`` is not exclusive: a job gets one of
    them, and ``vram_mib // shares`` of the VRAM."""
    power_w: float = 0.0
    """Of one of its GPUs at work, with its part of the node; 0: not told."""
    kept_cpus: int = 0
    """Of the drone's CPUs: what each of its free GPUs keeps for the job that will take it (blocking)."""
    kept_memory_mib: int = 0
    kept_disk_mib: int = 0

    @property
    def key(self) -> TypeKey:
        return type_key(self.site, self.name)

    @property
    def longest_job_s(self) -> float:
        """The longest run that a job may state and still get a new drone of the type; 0 is without limit."""
        return max(1.0, self.walltime_s - self.margin_s) if self.walltime_s else 0.0


# ------------------------------------------------------------------------------------------------ the overlay's view


@dataclass(frozen=True, slots=True)
class UnmetRequirement:
    """Why a job class cannot run on a drone type: the first dimension that fails, what is wanted and what is there."""

    dimension: str
    wanted: str
    offered: str


@dataclass(frozen=True, slots=True)
class JobClass:
    """Waiting and running jobs with identical requirements (an HTCondor autocluster)."""

    id: str
    gpu_milli: int
    cpus: int
    memory_mib: int
    disk_mib: int = 0
    vram_mib: int = 0
    """Least VRAM per GPU."""
    capability: int = 0
    """Least CUDA compute capability times 10."""
    driver: int = 0
    """Least CUDA version supported by the driver."""
    arch: str = ""
    waiting: int = 0
    """Idle jobs that the last negotiation cycle has left idle: only these are demand."""
    fresh: int = 0
    """Idle jobs that no negotiation cycle has seen yet."""
    running: int = 0
    held: int = 0
    oldest_at: float = 0.0
    """When the oldest idle job was submitted; 0 if none waits."""
    owner: str = ""
    """User or accounting group."""
    priority: int = 0
    walltime_s: float = 0.0
    """What the job says that it needs (AllowedJobDuration, AllowedExecuteDuration, ...); 0 if it does not say."""
    invalid: str = ""
    """Set when the request itself can never be met by any slot: what is wrong and what to write instead."""
    refuses: Mapping[TypeKey, UnmetRequirement] = field(default_factory=dict)
    """Drone types that the jobs' own requirements refuse, or whose START would refuse them, as the overlay's own
    matchmaker judges. Types not named here are judged by the numbers above alone."""
    job_ids: str = ""
    """Ids of the idle jobs as ranges, for people: ``204.0-204.99, 207.3``."""
    group: str = ""
    """Accounting group, as in ``OverlayView.groups``; empty where there is none."""
    duty_milli: int = 0
    """Share of a run on a GPU of its own in which the GPU works, in thousandths; 0 if the jobs do not say."""
    width_milli: int = 0
    """Share of a GPU's multiprocessors that their kernels fill, in thousandths; 0 if they do not say."""
    splits: bool = True
    """Several of them are put on one exclusive GPU, by what they ask for. False: each takes all of it."""
    running_ids: str = ""
    """Ids of those that run and of those that are held, like ``job_ids``."""
    held_ids: str = ""
    idle_at: float = 0.0
    """Since when one of them has been idle without a break, at most; a job that was preempted began anew to wait. 0
    where the overlay does not tell: since ``oldest_at``."""

    limited: int = 0
    """Part of ``waiting`` that the overlay would match with no slot at all."""
    limit: str = ""
    """Limit of the overlay that keeps these waiting, in words."""

    @property
    def waits_since(self) -> float:
        """The longest wait that goes on began then; 0 if none waits."""
        return self.idle_at or self.oldest_at


class SlotState(StrEnum):
    """What a drone's slot does."""

    CHECKING = "checking"
    """In the pool but not accepting jobs yet."""
    IDLE = "idle"
    BUSY = "busy"
    """At least one claim, even if the claim is idle (claimed/idle is not idle: field notes, B 40)."""
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Slot:
    """One drone as the overlay sees it; what is left in it for further jobs."""

    drone_id: DroneId
    state: SlotState
    heard_at: float
    """Last sign of life on this host's clock. A slot is alive by this, never by being listed."""
    free_gpu_milli: int = 0
    free_cpus: int = 0
    free_memory_mib: int = 0
    free_disk_mib: int = 0
    jobs: int = 0
    """Jobs running now."""
    jobs_started: int = 0
    """Jobs started since the drone joined."""
    idle_since: float = 0.0
    """Since when no job runs; 0 if one runs or not told."""
    retires_at: float = 0.0
    """No new job after this; 0 without end."""
    name: str = ""
    """The overlay's name of it (``slot1@...``); untrusted text, for people only."""
    gpu_model: str = ""
    vram_mib: int = 0
    capability: int = 0
    work_gpu_milli: int = 0
    """GPUs (of a CPU drone: CPUs, in thousandths) that jobs use now; 0 if none runs or not told."""
    work_at: float = 0.0
    """Since when, on average over those, there is work that would be lost if the drone ended now: a job's start or its
    last checkpoint. What is lost at time t is ``work_gpu_milli / 1000 * (t - work_at)`` GPU-seconds."""
    owner: str = ""
    """Whose jobs run in it; empty if none runs, if they are of several, or if not told."""
    begun_at: float = 0.0
    """When the job that began first of those that run now began; 0 if none runs or not told."""
    job_gpu_milli: int = 0
    """What its job asks for, as its class does; with its CPUs and MiB below. 0 if none or several run, or not told."""
    job_cpus: int = 0
    job_memory_mib: int = 0
    job_ids: str = ""
    """Ids of the jobs that run now, with commas between; empty if none runs or not told."""


@dataclass(frozen=True, slots=True)
class CompletedJob:
    """A job that has left the queue because it was done, as its queue has it."""

    job_id: str
    ended_at: float
    submitted_at: float
    run_s: float
    """Of its last, successful run."""
    gpu_milli: int
    cpus: int
    memory_mib: int
    disk_mib: int = 0
    vram_mib: int = 0
    capability: int = 0
    owner: str = ""
    group: str = ""
    walltime_s: float = 0.0
    """What it said that it would need; 0 if it did not say."""
    drone_id: DroneId | None = None
    """Where it ran; None if not in one of our drones, or not told."""


@dataclass(frozen=True, slots=True)
class Group:
    """An accounting group as the overlay sees it. Amounts are GPUs in thousandths, with those of its sub-groups:
    ``physics.atlas`` is one of ``physics``."""

    name: str
    quota_milli: int | None = None
    """What it may use at once; None: as much as there is."""
    used_milli: int = 0
    surplus: bool = True
    """It may have more than its quota while others do not want theirs."""
    priority: float = 0.0
    """The negotiator's effective priority: the lower, the sooner served; 0: not told."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """A job that had to leave a drone before it was done, as its queue has it."""

    drone_id: DroneId
    job_id: str
    at: float
    gpu_milli: int
    """GPUs it used (of a CPU drone: CPUs, in thousandths)."""
    lost_s: float
    """Run time that it must do again: since its start there, or since its last checkpoint."""


@dataclass(frozen=True, slots=True)
class JobFailure:
    """A job that failed in a drone within seconds, or was held by it: the job's own fault, or that of the drone's
    node."""

    drone_id: DroneId
    job_id: str
    """As in ``CompletedJob``, where the job has left the queue."""
    at: float
    owner: str
    cause: str = ""
    """Failure in words: ``held with code 12``."""


@dataclass(frozen=True, slots=True)
class OverlayView:
    """One consistent look at the overlay pool."""

    taken_at: float
    classes: tuple[JobClass, ...] = ()
    slots: tuple[Slot, ...] = ()
    negotiated_at: float = 0.0
    """End of the last negotiation cycle; 0 if there is no such thing here, or none yet."""
    notices: tuple[str, ...] = ()
    """Oddities for an operator to look at (an ad without DroneId, a schedd that denies reading), a line each."""
    evictions: tuple[Eviction, ...] | None = None
    """Of the last quarter of an hour or so: each is told in many looks, and counts once. None where the overlay does
    not tell."""
    completions: tuple[CompletedJob, ...] | None = None
    """The same for jobs that are done."""
    groups: tuple[Group, ...] = ()
    """Accounting groups, where the overlay has any."""
    mishaps: tuple[JobFailure, ...] = ()
    """Failed jobs of the last quarter of an hour or so, where the overlay reports them. The overlay vouches that a job
    of this owner was in this drone."""
    remarks: tuple[str, ...] = ()
    """Oddities that users of the pool cause and no operator needs to act on (a request that is no amount), a line
    each. Unlike notices they do not alarm."""
    unheard: tuple[str, ...] = ()
    """Queues that did not answer, by name. The view is partial then: jobs of theirs are as of their last answer, or
    missing, and a job that is missing may wait or run."""


# -------------------------------------------------------------------------------------------------- a site's view


class RemoteState(StrEnum):
    """What the site says of a drone. Unknown counts as alive."""

    PENDING = "pending"
    RUNNING = "running"
    UNKNOWN = "unknown"
    STOPPED = "stopped"
    """Its run is over, and what it held is not given back yet: it counts against limits, and is no supply. Its site
    clears it away; it is asked to, if that takes long."""
    ENDED = "ended"


class EndKind(StrEnum):
    """How a site says that a drone ended."""

    EXITED = "exited"
    """By itself, with ``exit_code``."""
    STOPPED = "stopped"
    """On our request."""
    PREEMPTED = "preempted"
    """The site took its resources back."""
    FAULT = "fault"
    """The site could not run it: node fault, boot failure, held."""


@dataclass(frozen=True, slots=True)
class RemoteEnd:
    """The end of a drone as the site tells it."""

    kind: EndKind
    at: float
    exit_code: int | None = None
    message: str = ""
    fault: FaultKind | None = None
    """Of a fault: what kind of thing went wrong, where the site tells (a hold reason); its drone type backs off so."""


@dataclass(frozen=True, slots=True)
class RemoteDrone:
    """One of our drones in a site's listing."""

    drone_id: DroneId
    state: RemoteState
    remote_id: str = ""
    type: str = ""
    """Name of the drone type, where the site keeps it: lets an unrecorded drone be counted."""
    started_at: float = 0.0
    """When it began to run; 0 if not yet or not told."""
    reason: str = ""
    """The site's own word for why it waits."""
    expected_start_at: float = 0.0
    end: RemoteEnd | None = None
    node: str = ""
    """Name of the node it runs on, as in ``SiteView.nodes``."""
    slot: str = ""
    """The site's own name of its place there, for people."""
    notice_at: float = 0.0
    """Since when the site is taking its place back; 0 if it is not."""
    blocked: FaultKind | None = None
    """Why it waits, if that is an obstacle which others of its type would meet as well. A limit or a lack (QUOTA,
    CAPACITY, THROTTLED, DOWN) passes; anything else does not: it will never start."""
    final: bool = False
    """This one will not start any more, whatever the obstacle; another may, once that has passed."""

    @property
    def hopeless(self) -> bool:
        """It waits for what does not come by waiting."""
        return self.state is RemoteState.PENDING and (self.final or self.blocked not in _PASSES)


@dataclass(frozen=True, slots=True)
class OwnerDemand:
    """Owner jobs of one shape that wait for resources which our drones may hold. Sizes are of one job."""

    count: int
    gpu_milli: int
    cpus: int
    memory_mib: int
    since: float
    """When the first of them was submitted."""
    disk_mib: int = 0
    nodes: tuple[str, ...] = ()
    """Nodes that could host one if they were empty; none named: any."""
    who: str = ""
    """Whose they are, for people."""


@dataclass(frozen=True, slots=True)
class OwnerLoad:
    """What the owner's running jobs hold."""

    jobs: int = 0
    gpu_milli: int = 0
    cpus: int = 0
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a site that drones can run on: all of it, and what nobody holds. Blocking is not taken off."""

    name: str
    types: tuple[str, ...]
    """Names of the drone types that it could host if it were empty."""
    gpu_milli: int
    cpus: int
    memory_mib: int
    disk_mib: int
    free_gpu_milli: int
    free_cpus: int
    free_memory_mib: int
    free_disk_mib: int


@dataclass(frozen=True, slots=True)
class SiteView:
    """One listing of a site: everything of ours there, free capacity, the owner's claims."""

    site: str
    taken_at: float
    drones: Mapping[DroneId, RemoteDrone] = field(default_factory=dict)
    free: Mapping[str, int] | None = None
    """How many drones of each type (by type name) could start right now; None where the site does not tell. The
    counts are alternatives: they may share the same hardware. What those of ours will take that wait at the site and
    have no node yet is not taken off: the planner does that. Not looked at where ``nodes`` tells more."""
    nodes: tuple[Node, ...] = ()
    """All nodes that drones can run on, where the site tells node by node. Taken before ``claims``: a job that starts
    meanwhile is then missed as a claim rather than counted twice."""
    claims: tuple[OwnerDemand, ...] = ()
    owner_runs: OwnerLoad | None = None
    """None where the site does not tell."""
    downtime_at: float = 0.0
    """Start of the next planned downtime; 0 if none is known."""
    notices: tuple[str, ...] = ()
    """Oddities for an operator to look at, a line each."""
    quota: Mapping[str, int] | None = None
    """How many more drones of each type (by type name) the site's quota for us allows, whatever is free: alternatives,
    like ``free``. None where there is none, or none is told."""
    free_gpu_milli: int | None = None
    """GPUs that nobody holds, of the whole site, like ``free``; None where ``nodes`` tell, or nothing does."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Shortage by type name, for the types of which none could start now: ``cpus 8 > 2 free``. Empty where the
    site does not tell."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """The same for types of which none can ever start there, however empty it is."""
    remarks: tuple[str, ...] = ()
    """Oddities that the owner's users cause and no operator needs to act on (a job that fits no node), a line each."""


# ----------------------------------------------------------------------------------------------------------- drones


class DroneState(StrEnum):
    """States of a drone's life; ``planner/life.py`` holds the table."""

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
        return self in ENDS


ENDS = frozenset(
    {
        DroneState.DONE,
        DroneState.CANCELLED,
        DroneState.PREEMPTED,
        DroneState.FAILED,
        DroneState.LOST,
        DroneState.JOIN_TIMEOUT,
        DroneState.UNUSED,
    }
)


WAITING = (DroneState.REQUESTED, DroneState.SUBMITTED, DroneState.QUEUED)
"""At its site, as far as is known: it holds nothing there yet."""
PENDING = (*WAITING, DroneState.BOOTING)
"""Asked for, and not in the pool yet."""
ON_THE_WAY = (*PENDING, DroneState.JOINED)
"""It takes no jobs yet."""


class DrainMode(StrEnum):
    """How a drone is asked to leave the overlay."""

    NONE = "none"
    """Let it run out: only take it out of the counting."""
    PEACEFUL = "peaceful"
    """No new jobs; running ones end by themselves."""
    GRACEFUL = "graceful"
    """No new jobs; running ones are asked to leave and get their vacate time."""
    FAST = "fast"
    """No new jobs; running ones are killed."""
    RESUME = "resume"
    """Take a draining drone back into service."""


@dataclass(frozen=True, slots=True)
class Drone:
    """One pilot as we have it on record. Never built from a listing: the record comes first (intent before act)."""

    id: DroneId
    type: TypeKey
    state: DroneState
    since: float
    """Time at which it entered ``state``; for a requested drone, of its order or of the answer that failed to come."""
    requested_at: float
    gpu_milli: int
    """Of its type when it was asked for: the type may since have changed or gone."""
    for_class: str = ""
    """The job class that it was started for."""
    remote_id: str = ""
    submitted_at: float = 0.0
    """Time at which the site accepted the order; 0 while that is unknown."""
    started_at: float = 0.0
    joined_at: float = 0.0
    busy_at: float = 0.0
    """When it first had a job; 0 if never."""
    idle_at: float = 0.0
    """Since when it has had no job; 0 while busy. Before it joined: since when no job has waited for it."""
    heard_at: float = 0.0
    jobs: int = 0
    jobs_started: int = 0
    missing_at: float = 0.0
    """First fresh listing of the site without it; 0 while listed. Missing once is not gone."""
    unslotted_at: float = 0.0
    """First fresh look at the overlay without its slot after it had joined; 0 while there."""
    leaving: DroneState | None = None
    """The end that it will have once the site confirms that it is gone; set when we ask it to leave."""
    asked_at: float = 0.0
    """When it was last asked to drain or stop."""
    asked: int = 0
    """How often it was asked to stop."""
    retires_at: float = 0.0
    ended_at: float = 0.0
    slot: str = ""
    site_reason: str = ""
    node: str = ""
    site_slot: str = ""
    """The site's own name of its place on the node."""
    notice_at: float = 0.0
    """When the site's notice was first seen, or when we asked it to leave for the owner; 0 if neither."""
    work_gpu_milli: int = 0
    work_at: float = 0.0
    """As of its slot: what would be lost if it ended now."""
    lost_gpu_s: float = 0.0
    """GPU-seconds (of a CPU drone: CPU-seconds) of jobs' work that its end has cost; known once it has ended, and
    by ``lost_jobs`` evictions or, where the queue told none, by the work of its slot."""
    lost_jobs: int = 0
    avoids: str = ""
    """Users whose jobs it does not take, with commas between: they would lose too much before an owner
    (:mod:`provisioner.planner.avoids`)."""
    drain_mode: DrainMode = DrainMode.PEACEFUL
    """Mode of the last drain request; a repeated request uses the same."""
    drain_refusal: str = ""
    """Why the overlay did not do what it was last asked of the drone (drain, or resume); empty once its slot drains."""

    @property
    def site(self) -> str:
        return self.type.partition("/")[0]

    @property
    def goes(self) -> bool:
        """It was asked to leave, or its run is over: nothing can be expected of it, and nothing more asked."""
        return self.leaving is not None or self.state is DroneState.STOPPING

    @property
    def awaits_room(self) -> bool:
        """It waits at its site, and has no node there yet: what is free does not know of it."""
        return self.state in WAITING and not self.node


# -------------------------------------------------------------------------------------------------- faults and health


class FaultKind(StrEnum):
    """What kind of thing went wrong; each backs off differently (``planner/guard.py``)."""

    DOWN = "down"
    """The service does not answer."""
    CAPACITY = "capacity"
    """No room now."""
    QUOTA = "quota"
    DENIED = "denied"
    """Credentials or authorisation: tell a human."""
    THROTTLED = "throttled"
    NODE = "node"
    CONFIG = "config"
    """The order itself is wrong for this site."""
    DRONE = "drone"
    """Drones of this type die young or never join."""
    JOBS = "jobs"
    """The pool gives none of the waiting jobs of one class to drones of this type that were started for them."""
    BLACK_HOLE = "black-hole"
    """Drones on this node make jobs fail that run well elsewhere."""
    UNKNOWN = "unknown"


_PASSES = (None, FaultKind.QUOTA, FaultKind.CAPACITY, FaultKind.THROTTLED, FaultKind.DOWN)


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    message: str
    at: float
    of_order: bool = False
    """An order met it, not a look: then a look that succeeds says nothing of it."""
    accepted: bool = False
    """A drone met it whose order had been accepted: then another order that is accepted says nothing of it either."""


class BreakerState(StrEnum):
    ACTIVE = "active"
    DEGRADED = "degraded"
    BANNED = "banned"
    PROBING = "probing"


@dataclass(frozen=True, slots=True)
class Breaker:
    """Circuit breaker of a site (scope ``<site>``), of a drone type (scope ``<site>/<type>``), of a job class on a
    drone type (scope ``<site>/<type>#<class id>``) or of a node (scope ``<site>@<node>``), as data."""

    scope: str
    state: BreakerState = BreakerState.ACTIVE
    since: float = 0.0
    failures: int = 0
    """In a row."""
    until: float = 0.0
    """While banned: when it may be probed. Of the overlay after an outage: when it may be believed to need drones."""
    fault: Fault | None = None
    blind_until: float = 0.0
    """End of the last outage that was long enough for things to happen unseen."""

    @property
    def class_id(self) -> str:
        """The job class that backs off; empty for the breaker of a site or a type."""
        return self.scope.partition("#")[2]

    @property
    def node(self) -> str:
        """The node that backs off; empty for all other breakers."""
        return "" if "/" in self.scope else self.scope.partition("@")[2]

    @property
    def forgotten(self) -> bool:
        """Says no more than a missing record: classes and nodes come and go, and theirs are not kept."""
        return self.state is BreakerState.ACTIVE and bool(self.class_id or self.node)


def class_scope(key: TypeKey, class_id: str) -> str:
    """Return the breaker scope of a job class on a drone type."""
    return f"{key}#{class_id}"


def node_scope(site: str, node: str) -> str:
    """Return the breaker scope of a node of a site."""
    return f"{site}@{node}"


@dataclass(frozen=True, slots=True)
class OwnerClaimBackoff:
    """What is remembered from tick to tick of a site whose owner's jobs wait."""

    site: str
    since: float = 0.0
    """Since when free room stands for them of which none was taken; 0 if none stands."""
    standing: int = 0
    """Jobs for which it stands."""
    offer: int = 0
    """To how many jobs room is offered at once; 0 is to all."""


@dataclass(frozen=True, slots=True)
class PolledSite:
    """The newest good view of a site, and what went wrong since."""

    site: str
    view: SiteView | None = None
    fault: Fault | None = None
    """Of the newest look; None if it succeeded."""
    busy: bool = False
    """Orders given to it earlier are still under way."""


@dataclass(frozen=True, slots=True)
class PolledOverlay:
    view: OverlayView | None = None
    fault: Fault | None = None


# ------------------------------------------------------------------------------------------------------------- policy


class ReserveWhen(StrEnum):
    """When a reserve is kept."""

    ALWAYS = "always"
    GPU_DEMAND = "gpu-demand"
    """Released while no GPU job waits in the overlay; taken back, from our own CPU drones, when one does."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Blocking: what each free GPU of certain nodes keeps for the drone that will take it."""

    nodes: tuple[str, ...] = ("*",)
    """Patterns of node names (``*``, ``?``, ``[...]``); the first reserve that matches a node is its own."""
    cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0
    when: ReserveWhen = ReserveWhen.ALWAYS
    release_after_s: float = 600.0
    """How long no GPU job must have waited before the reserve is released."""


@dataclass(frozen=True, slots=True)
class SitePolicy:
    """What the operator wrote for one site. Limits count drones asked for and not confirmed gone."""

    site: str
    enabled: bool = True
    """False: nothing new there; what runs may run out."""
    max_drones: int = 10
    max_gpu_milli: int | None = None
    max_pending: int = 20
    """Drones that have not joined yet."""
    max_starts_per_tick: int = 10
    price: float = 1.0
    """Factor on the types' prices: the operator's preference between sites."""
    queue_when_full: bool = False
    """Ask for drones even where the site shows no free capacity."""
    view_max_age_s: float = 120.0
    poll_deadline_s: float = 20.0
    order_deadline_s: float = 60.0
    order_confirm_s: float = 120.0
    """After this long a fresh listing without a requested drone means that the order never arrived."""
    missing_s: float = 30.0
    """A drone missing from fresh listings for this long, at least twice, is gone."""
    queued_s: float = 86400.0
    booting_s: float = 600.0
    joining_s: float = 300.0
    """Longest time in the pool without accepting jobs (the GPU check)."""
    slot_loss_s: float = 300.0
    """Longest time that a joined drone may be out of the pool while the site still runs it."""
    draining_s: float = 86400.0
    stopping_s: float = 60.0
    """After this long in `stopping` it is asked again."""
    grace_s: float = 30.0
    """What the site gives a drone between notice and kill."""
    blocking: tuple[Reserve, ...] = ()
    preempt_proactively: bool = True
    """Drones are asked to leave for the owner's waiting jobs before the site takes their place."""
    min_runtime_s: float = 0.0
    """A drone that has not yet worked for so long since its first job is not asked to leave for the owner."""
    idle_timeout_s: float | None = None
    """Of its drones, instead of the policy's."""
    idle_fixed: bool | None = None
    """The same of whether it is fixed."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """Warm drones: room for so many jobs of one shape is kept free for those that have not come yet."""

    name: str
    gpu_milli: int = WHOLE_GPU
    """Of one of the jobs, like all that follows."""
    cpus: int = 1
    memory_mib: int = 1024
    disk_mib: int = 0
    vram_mib: int = 0
    count: int = 1
    site: str = ""
    """Only there; empty: anywhere."""
    types: tuple[str, ...] = ()
    """Names of drone types; none named: any that fits."""
    from_h: int = 0
    """Kept from this hour of the day (UTC) until ``to_h``, which may lie behind midnight."""
    to_h: int = 24


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator wrote for all sites together."""

    idle_timeout_s: float = 600.0
    """A drone without a job for this long leaves."""
    max_drones: int = 1000
    max_gpu_milli: int | None = None
    overlay_max_age_s: float = 120.0
    slot_max_age_s: float = 900.0
    """A slot not heard from for this long does not count as alive."""
    early_exit_window_s: float = 60.0
    """A drone that ends by itself within this time of its start, without a job, died young."""
    max_unhealthy_fraction: float = 0.2
    """More unhealthy drones than this share at once: stop acting, it is probably us."""
    min_unhealthy: int = 5
    sites: Mapping[str, SitePolicy] = field(default_factory=dict)
    headroom: tuple[Headroom, ...] = ()
    """In the order in which they are served."""

    waiting_cost: float = 0.3
    """GPU-seconds that a second of one job's waiting is worth: how soon a dearer start is made."""

    idle_fixed: bool = False
    """The idle time-out holds as it is: nothing learned shortens it, and no slow start lengthens it."""

    def idle_fixed_at(self, site: str) -> bool:
        """Return the site's own setting, or the one of all."""
        own = self.sites[site].idle_fixed if site in self.sites else None
        return self.idle_fixed if own is None else own

    def idle_timeout_at(self, site: str) -> float:
        """Seconds: the site's own, or the one of all."""
        own = self.sites[site].idle_timeout_s if site in self.sites else None
        return self.idle_timeout_s if own is None else own


# ------------------------------------------------------------------------------------------------------------ requests


class RequestKind(StrEnum):
    """Kinds of operators' requests."""

    DRAIN = "drain"
    KILL = "kill"
    RESET = "reset"
    """Lift bans: ``drone_ids`` holds breaker scopes, ``<site>`` (with all of its types) or ``<site>/<type>``."""


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """What an operator asked for on the command line; recorded first, carried out at the next tick."""

    id: int
    at: float
    kind: RequestKind
    drone_ids: tuple[DroneId, ...]
    reason: str
    by: str
    mode: DrainMode = DrainMode.PEACEFUL


# ------------------------------------------------------------------------------------------------------------ snapshot


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a decision may depend on, at one time. Same snapshot, same plan."""

    now: float
    tick: int
    id_prefix: str
    """``<controller>-<store birth>``: new drone ids are this and a serial number."""
    next_serial: int
    policy: Policy
    types: tuple[DroneType, ...]
    overlay: PolledOverlay
    sites: Mapping[str, PolledSite]
    drones: Mapping[DroneId, Drone]
    """Recorded and not ended."""
    breakers: Mapping[str, Breaker] = field(default_factory=dict)
    requests: tuple[OperatorRequest, ...] = ()
    ended: Mapping[DroneId, DroneState] = field(default_factory=dict)
    """How those ended on record that a site lists all the same."""
    gpu_wanted_at: float = 0.0
    """When a GPU job was last seen to wait, or when the controller started if that was later."""
    patience: Mapping[str, OwnerClaimBackoff] = field(default_factory=dict)
    """By site, as the plan before left it."""
    estimates: Estimates = NO_ESTIMATES
    drift_s: float = 0.0
    """Lead of the host's wall clock over ``now``, in seconds."""


# ---------------------------------------------------------------------------------------------------------------- plan


@dataclass(frozen=True, slots=True)
class StateChange:
    """What is now known of a drone: its new record, and why if its state changed."""

    drone: Drone
    was: DroneState | None
    """State before; None for a drone that did not exist."""
    reason: Reason


@dataclass(frozen=True, slots=True)
class Start:
    """Start one drone. ``drone`` is the intent to be recorded before the site is called."""

    drone: Drone
    reason: Reason
    vram_mib: int = 0
    """VRAM per GPU that the jobs need for which it is started."""
    walltime_s: float = 0.0
    """How long it may live, where that is less than its type says: its site goes down before. 0: as its type says."""
    uses_reserve: bool = False
    """A CPU drone that may stand on what is kept for GPUs, because no GPU job waits."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Ask the overlay to let a drone leave. ``drone`` is its record once asked."""

    drone: Drone
    was: DroneState
    mode: DrainMode
    reason: Reason


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask the site to end a drone (by its notice and grace). ``drone`` is its record once asked."""

    drone: Drone
    was: DroneState
    reason: Reason
    kill: bool = False
    """Without notice: asked politely often enough, or the operator wants it so."""


@dataclass(frozen=True, slots=True)
class StopOrphan:
    """End something at a site that carries our tag and that we have no live record of."""

    site: str
    drone_id: DroneId
    remote_id: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something not done, and why. ``subject``: ``class:<id>``, ``site:<name>``, ``type:<site/name>`` or ``all``."""

    subject: str
    count: int
    """Jobs or drones concerned."""
    reason: Reason


@dataclass(frozen=True, slots=True)
class Plan:
    """What one tick will do, finished: acting makes no choices."""

    tick: int
    at: float
    moves: tuple[StateChange, ...] = ()
    starts: tuple[Start, ...] = ()
    drains: tuple[Drain, ...] = ()
    stops: tuple[Stop, ...] = ()
    orphans: tuple[StopOrphan, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    breakers: tuple[Breaker, ...] = ()
    """Breakers that changed because of what was seen."""
    requests_done: tuple[int, ...] = ()
    patience: tuple[OwnerClaimBackoff, ...] = ()
    """For the next tick to remember."""

    @property
    def leaves(self) -> tuple[Drain | Stop, ...]:
        """All that asks a drone on record to leave (or, ``DrainMode.RESUME``, to stay)."""
        return (*self.drains, *self.stops)

    @property
    def asks(self) -> tuple[Start | Drain | Stop, ...]:
        """All that concerns a drone on record or to be recorded."""
        return (*self.starts, *self.drains, *self.stops)

    @property
    def acts(self) -> bool:
        return bool(self.starts or self.drains or self.stops or self.orphans)


# ----------------------------------------------------------------------------------------------- orders and receipts


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What a drone needs to join the overlay: a start script, secret files, environment.

    The script runs on a bare worker node with a POSIX shell. ``files`` are written, mode 0600, into the drone's own
    directory before the script starts there; values may be secret and are never logged.
    """

    script: bytes
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class StartOrder:
    """Start one drone of ``type`` under ``drone_id``; a second start under the same id is the same drone."""

    drone_id: DroneId
    type: DroneType
    idle_timeout_s: float
    """When the drone leaves by itself without the controller: later than the controller would ask it to."""
    grace_s: float
    bootstrap: Bootstrap | None = None
    """None when the overlay is asked; set when the site is."""
    kept_vram_mib: int = 0
    """For its first ``kept_s`` in the pool it takes only jobs that need at least this much VRAM per GPU: those it was
    started for. Else jobs that would run anywhere take it first, and another like it must be started."""
    kept_s: float = 0.0
    uses_reserve: bool = False
    """It may stand on what is kept for GPUs; the site's own blocking must let it."""
    avoids: str = ""
    """Users whose jobs it must not take, with commas between; each of letters, digits and ``._@-``."""
    comes_within_s: float = 0.0
    """Longest time from the order until it accepts jobs: in its site's queue, booting and joining. Afterwards the
    controller ends it. A token for it has to outlast this and its walltime."""


@dataclass(frozen=True, slots=True)
class StopOrder:
    """End one drone; already gone is success. ``kill``: without notice."""

    drone_id: DroneId
    remote_id: str
    kill: bool = False


class OrderOutcome(StrEnum):
    """What became of an order."""

    OK = "ok"
    REJECTED = "rejected"
    """Certainly not carried out."""
    UNKNOWN = "unknown"
    """May have happened: only a later listing settles it."""


@dataclass(frozen=True, slots=True)
class OrderResult:
    drone_id: DroneId
    answer: OrderOutcome
    remote_id: str = ""
    fault: Fault | None = None
