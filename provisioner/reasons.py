"""Reasons why something is done or not done: typed values with their numbers.

``provisioner.formatting`` has the sentence of each; a docstring here says what that does not. Every
class has a constant ``kind``, its stable name in records and JSON. The categories of refusals are
described in ``docs/explanation/loop.md``: configuration, nothing-fits, limit, back-off,
waiting-site, waiting-negotiation.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from provisioner.values import frozen


@frozen
class Accepted:
    remote_id: str
    kind: Literal["accepted"] = "accepted"


@frozen
class OrderRefused:
    """The site certainly did not carry the order out."""

    fault: str
    message: str
    kind: Literal["order-refused"] = "order-refused"


@frozen
class DrainRefused:
    """The overlay certainly did not carry out an order to drain or to undrain."""

    fault: str
    message: str
    kind: Literal["drain-refused"] = "drain-refused"


@frozen
class DrainRepeated:
    after_s: float
    message: str = ""
    kind: Literal["drain-repeated"] = "drain-repeated"


@frozen
class OutcomeUnknown:
    message: str
    kind: Literal["outcome-unknown"] = "outcome-unknown"


@frozen
class SeenAtSite:
    site_state: str
    site_reason: str = ""
    kind: Literal["seen-at-site"] = "seen-at-site"


@frozen
class SeenInPool:
    slot_state: str
    jobs: int
    after_s: float
    kind: Literal["seen-in-pool"] = "seen-in-pool"


@frozen
class NotInListing:
    kind: Literal["not-in-listing"] = "not-in-listing"


@frozen
class NeverArrived:
    waited_s: float
    limit_s: float
    kind: Literal["never-arrived"] = "never-arrived"


@frozen
class Disappeared:
    missing_s: float
    limit_s: float
    kind: Literal["disappeared"] = "disappeared"


@frozen
class EndedAtSite:
    end: str
    exit_code: int | None
    message: str
    lived_s: float
    jobs_started: int
    fault: str = ""
    kind: Literal["ended-at-site"] = "ended-at-site"


EXIT_WORDS = {
    64: "wrong call or missing input",
    71: "GPU check failed",
    72: "GPU check hung",
    73: "could not join the pool",
    74: "HTCondor programs missing or not starting",
    75: "the pool was lost",
}
"""Meanings of the drone's own exit codes (the contract of the drone script)."""


@frozen
class IdleTimeout:
    idle_s: float
    limit_s: float
    by: str = ""
    """Source of the limit, as in :class:`provisioner.planner.states.IdleLimit`; empty in old records."""
    kind: Literal["idle-timeout"] = "idle-timeout"


@frozen
class OptionalJobsOnly:
    """``idle_s`` is the time since the drone last ran a job that needs its GPU, or since it joined."""

    idle_s: float
    limit_s: float
    kind: Literal["optional-jobs-only"] = "optional-jobs-only"


@frozen
class DrainAtRisk:
    site: str
    lost: float
    tolerated: float
    """Expected share of lost work of such jobs there, and the share that they accept."""
    kind: Literal["drain-at-risk"] = "drain-at-risk"


@frozen
class BlackHoleDrone:
    """It takes no more jobs: jobs fail in it within seconds that succeed elsewhere or belong to several users."""

    failed: int
    good: int
    """Failed starts of jobs in the last quarter of an hour, and jobs that succeeded in it meanwhile."""
    owners: int
    node: str
    message: str
    kind: Literal["black-hole"] = "black-hole"


@frozen
class BlackHoleNode:
    """It has no job yet, and several drones on its node made jobs fail.

    The node is avoided for a while.
    """

    node: str
    until: float
    failures: int
    message: str
    kind: Literal["black-hole-node"] = "black-hole-node"


@frozen
class Unneeded:
    state: str
    kind: Literal["unneeded"] = "unneeded"


@frozen
class StateTimeout:
    state: str
    for_s: float
    limit_s: float
    kind: Literal["state-timeout"] = "state-timeout"


@frozen
class LeftPool:
    for_s: float
    limit_s: float
    kind: Literal["left-pool"] = "left-pool"


@frozen
class OperatorRequested:
    by: str
    text: str
    kind: Literal["operator-requested"] = "operator-requested"


@frozen
class PreemptedForOwner:
    """The owner of the hardware waits for its place: with others on its node it frees room for one of their jobs."""

    waiting: int
    waited_s: float
    node: str = ""
    gpus: float = 0.0
    """Request of one of these jobs."""
    lost_gpu_s: float = 0.0
    """Work lost by its end, as far as its slot reports it, in ``unit``."""
    unit: str = "GPU-seconds"
    kind: Literal["preempted-for-owner"] = "preempted-for-owner"


@frozen
class Preempted:
    """Its site has taken its place back, or the owner has by way of the provisioner."""

    message: str
    notice_s: float
    """Time between the notice and its end; 0 if no notice was seen."""
    grace_s: float
    lost_gpu_s: float
    """Work of jobs that must be repeated, in ``unit``."""
    lost_jobs: int
    unit: str = "GPU-seconds"
    kind: Literal["preempted"] = "preempted"


@frozen
class PreemptionNotice:
    message: str
    kind: Literal["notice"] = "notice"


@frozen
class ReserveReclaimed:
    node: str
    kind: Literal["reserve-reclaimed"] = "reserve-reclaimed"


@frozen
class TypeRemoved:
    type: str
    kind: Literal["type-removed"] = "type-removed"


@frozen
class Orphan:
    recorded_end: str = ""
    kind: Literal["orphan"] = "orphan"


@frozen
class OrphansKept:
    """A lost or restored record, or a second controller of this name: an operator decides."""

    site: str
    record: str
    """``<controller>-<birth>``: the beginning of their ids."""
    drones: int
    until: float
    """Time after which those without a job are stopped."""
    kind: Literal["orphans-kept"] = "orphans-kept"


@frozen
class LiveTwin:
    """Nothing is started or stopped beside another living controller of this name."""

    record: str
    evidence: str
    """Its newest drone, or its process."""
    kind: Literal["live-twin"] = "live-twin"


@frozen
class DemandReturned:
    class_id: str
    waiting: int
    kind: Literal["demand-returned"] = "demand-returned"


@frozen
class JobsWaiting:
    class_id: str
    waiting: int
    covered: int
    starts: int
    kind: Literal["jobs-waiting"] = "jobs-waiting"


@frozen
class HeadroomShort:
    name: str
    wanted: int
    covered: int
    starts: int
    kind: Literal["headroom-short"] = "headroom-short"


@frozen
class BadRequest:
    message: str
    kind: Literal["bad-request"] = "bad-request"


@frozen
class PlannerFailed:
    """The planner fails on these jobs by an error of its own.

    They are left out; all others are planned.
    """

    error: str
    kind: Literal["planner-failed"] = "planner-failed"


@frozen
class InvalidAction:
    """The independent validation of plans has left out this action: it would have broken a promise."""

    promise: str
    kind: Literal["invalid-action"] = "invalid-action"


@frozen
class NothingFits:
    nearest: str
    dimension: str
    requested: str
    available: str
    gpu_optional: bool = False
    """The jobs can do without a GPU: a CPU drone type of their size would do."""
    kind: Literal["nothing-fits"] = "nothing-fits"


@frozen
class LimitReached:
    limit: str
    scope: str
    used: float
    allowed: float
    kind: Literal["limit-reached"] = "limit-reached"


@frozen
class GroupQuota:
    group: str
    """The group with the quota: the jobs' own, or one that contains it."""
    used_gpus: float
    quota_gpus: float
    kind: Literal["group-quota"] = "group-quota"


@frozen
class PoolLimit:
    message: str
    kind: Literal["pool-limit"] = "pool-limit"


@frozen
class OwnerRisk:
    site: str
    typical_s: float
    waited_s: float
    tolerated: float
    safe_s: float = 0.0
    """Expected wait for a place without an owner."""
    kind: Literal["owner-risk"] = "owner-risk"


@frozen
class IdleDroneRefuses:
    """Given beside the reason that counts the jobs."""

    drone: str
    """One of them."""
    type: str
    rule: str
    """``avoids`` (their user), ``min_gpus`` (smaller jobs), ``kept`` (for larger jobs, at first) or ``ends``."""
    drones: int
    until: float
    kind: Literal["idle-drone-refuses"] = "idle-drone-refuses"


@frozen
class AwaitingCheaperType:
    """Read from older records: it is not given any more."""

    type: str
    waited_s: float
    more_s: float
    kind: Literal["awaiting-cheaper-type"] = "awaiting-cheaper-type"


@frozen
class ExistingDronesSuffice:
    mean_s: float
    running: int
    kind: Literal["existing-drones-suffice"] = "existing-drones-suffice"


@frozen
class HeadroomYields:
    name: str
    wanted: int
    kind: Literal["headroom-yields"] = "headroom-yields"


@frozen
class BackingOff:
    """A circuit breaker is open."""

    scope: str
    until: float
    fault: str
    message: str
    kind: Literal["backing-off"] = "backing-off"


@frozen
class NegotiatorSilent:
    """No job of the pool starts anywhere, whatever it requests."""

    silent_s: float
    kind: Literal["negotiator-silent"] = "negotiator-silent"


@frozen
class CredentialUnusable:
    """A token, key or certificate that drones or their orders need is expired, damaged or gone."""

    used_by: str
    name: str
    identity: str = ""
    expired_at: float = 0.0
    problem: str = ""
    kind: Literal["credential-unusable"] = "credential-unusable"


@frozen
class StartsUnmatched:
    type: str
    until: float
    failures: int
    message: str
    kind: Literal["starts-unmatched"] = "starts-unmatched"


@frozen
class ExclusiveOnly:
    faults: int
    """Faults of the user's jobs on shared GPUs; 0: neighbours ended one of their jobs repeatedly."""
    window_s: float
    until: float
    message: str
    kind: Literal["exclusive-only"] = "exclusive-only"


@frozen
class SiteFull:
    type: str
    lack: str = ""
    """Shortage, if the site reports it: ``cpus 8 > 2 free``."""
    kind: Literal["site-full"] = "site-full"


@frozen
class GpusStranded:
    """GPUs are free, but others hold what a drone needs beside them on those nodes (blocking prevents that)."""

    type: str
    nodes: int
    """Nodes with enough free GPUs for one drone of the type."""
    free_gpus: float
    dimension: str
    """Resource that is short on most of them: ``cpus``, ``memory`` or ``disk``."""
    wanted: int
    free: int
    kind: Literal["gpus-stranded"] = "gpus-stranded"


@frozen
class SiteQuota:
    type: str
    kind: Literal["site-quota"] = "site-quota"


@frozen
class StartBlocked:
    """A drone of the type waits at its site for an obstacle that another one would meet as well."""

    type: str
    fault: str
    message: str
    kind: Literal["start-blocked"] = "start-blocked"


@frozen
class Downtime:
    site: str
    at: float
    left_s: float
    wanted_s: float
    kind: Literal["downtime"] = "downtime"


@frozen
class OwnerWaits:
    site: str
    jobs: int
    gpus: float
    kind: Literal["owner-waits"] = "owner-waits"


@frozen
class NodeReserved:
    """A job of several GPUs needs a node: its drones take no more jobs, and others get room on other nodes only."""

    site: str
    node: str
    class_id: str
    gpus: float
    """Request of the job."""
    at: float
    """Time at which the room is expected to be free."""
    overran_s: float = 0.0
    """The promised time has moved by so much, as a running job overran."""
    kind: Literal["node-reserved"] = "node-reserved"


@frozen
class UserTurn:
    """Turn of the user of some jobs when drones are started.

    ``explain`` tells it; no plan has it.
    """

    place: int
    users: int
    """Number of users with waiting jobs."""
    gpus: float
    """GPUs of the user's running jobs, and of drones that were started for them and have no job yet."""
    factor: float
    """Effective priority of the user in the pool, as a multiple of the smallest one: the greater, the later."""
    kind: Literal["user-turn"] = "user-turn"


@frozen
class ReserveKept:
    type: str
    free_gpus: float
    kind: Literal["reserve-kept"] = "reserve-kept"


@frozen
class SiteDisabled:
    """Disabled in the configuration, or by the operator ``by``."""

    site: str
    by: str = ""
    text: str = ""
    kind: Literal["site-disabled"] = "site-disabled"


@frozen
class DemandCovered:
    jobs: int
    drones: int
    delayed: int = 0
    """Number of these drones that are delayed: their jobs take room elsewhere, if there is some."""
    held_back: str = ""
    """Kind of the reason why no drone is started elsewhere in place of a delayed one; empty if there is none."""
    kind: Literal["demand-covered"] = "demand-covered"


@frozen
class AwaitingNegotiation:
    fresh: int
    kind: Literal["awaiting-negotiation"] = "awaiting-negotiation"


@frozen
class AwaitingIdleGpu:
    """Jobs for which a GPU is optional wait for a drone that is there, or for one without a GPU."""

    cpu_type: str
    """Drone type without a GPU that they could get; empty if none fits."""
    held_back: str = ""
    """Kind of the reason why no drone of that type is started; empty if there is none."""
    kind: Literal["awaiting-idle-gpu"] = "awaiting-idle-gpu"


@frozen
class StaleView:
    view: str
    age_s: float
    """-1 if there never was one."""
    limit_s: float
    message: str
    kind: Literal["stale-view"] = "stale-view"


@frozen
class AllVanished:
    """Many drones of a site vanished from its listing at once: this is believed only after some time."""

    site: str
    drones: int
    kind: Literal["all-vanished"] = "all-vanished"


@frozen
class TooManyUnhealthy:
    unhealthy: int
    drones: int
    fraction: float
    kind: Literal["too-many-unhealthy"] = "too-many-unhealthy"


@frozen
class ShadowOnly:
    """A start that a controller would make, beside the drones of the other system, were it no shadow."""

    type: str
    drones: int
    kind: Literal["shadow-only"] = "shadow-only"


@frozen
class Probing:
    scope: str
    kind: Literal["probing"] = "probing"


@frozen
class UnknownDrone:
    drone_id: str
    kind: Literal["unknown-drone"] = "unknown-drone"


@frozen
class NotDraining:
    drone_id: str
    state: str
    kind: Literal["not-draining"] = "not-draining"


_Ordered = Accepted | OrderRefused | DrainRefused | DrainRepeated | OutcomeUnknown
_Observed = SeenAtSite | SeenInPool | NotInListing | NeverArrived | Disappeared | EndedAtSite
_Timed = (
    IdleTimeout
    | OptionalJobsOnly
    | DrainAtRisk
    | BlackHoleDrone
    | BlackHoleNode
    | Unneeded
    | StateTimeout
    | LeftPool
)
_Asked = (
    OperatorRequested
    | PreemptedForOwner
    | Preempted
    | PreemptionNotice
    | ReserveReclaimed
    | TypeRemoved
    | Orphan
)
_Wanted = DemandReturned | JobsWaiting | HeadroomShort
_Limited = (
    BadRequest
    | PlannerFailed
    | InvalidAction
    | NothingFits
    | LimitReached
    | GroupQuota
    | PoolLimit
    | ExclusiveOnly
)
_Waiting = (
    OwnerRisk
    | AwaitingCheaperType
    | ExistingDronesSuffice
    | HeadroomYields
    | BackingOff
    | StartsUnmatched
)
_AtSite = IdleDroneRefuses | SiteFull | GpusStranded | SiteQuota | StartBlocked | Downtime
_Withheld = (
    CredentialUnusable
    | NegotiatorSilent
    | OwnerWaits
    | NodeReserved
    | ReserveKept
    | SiteDisabled
    | UserTurn
)
_Doubted = (
    DemandCovered
    | AwaitingIdleGpu
    | AwaitingNegotiation
    | StaleView
    | AllVanished
    | TooManyUnhealthy
    | Probing
)
_Unknown = UnknownDrone | NotDraining | ShadowOnly | OrphansKept | LiveTwin
_Held = _Limited | _Waiting | _AtSite | _Withheld | _Doubted | _Unknown
Reason = _Ordered | _Observed | _Timed | _Asked | _Wanted | _Held


class StartOutcome(StrEnum):
    """Outcome of the next tick for one waiting job."""

    STARTS = "starts"
    """It has a place: a free slot, a drone that is on its way, or one that is started for it."""
    WAITS = "waits"
    NEVER = "never"
    """Nothing that is configured can run it."""


@frozen
class StartForecast:
    outcome: StartOutcome
    wait_s: float | None = None
    """Expected time until the job starts; None: unknown."""


@frozen
class RequestAdvice:
    """The one change of a waiting job's request that would start it soonest; without ``dimension`` there is none."""

    now: StartForecast
    """Forecast without a change, of the last of the waiting jobs of the class."""
    why: Reason | None = None
    """Reason that holds it back now."""
    dimension: str = ""
    """Changed request, as in :class:`provisioner.model.UnmetRequirement`; ``no-<dimension>``: a requirement to drop."""
    requested: str = ""
    advised: str = ""
    then: StartForecast | None = None
    """Forecast with the change."""
