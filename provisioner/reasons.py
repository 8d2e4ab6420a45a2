"""Why something is done or not done: typed values with their numbers. Text is made at the edge
(``provisioner.formatting``).

Every class carries a constant ``kind``, its stable name in records and JSON. Tiers of refusals follow
``docs/explanation/reasons.md``: configuration, nothing-fits, limit, back-off, waiting-site, waiting-negotiation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# ------------------------------------------------------------------------------------------ what happened to a drone


@dataclass(frozen=True, slots=True)
class Accepted:
    """The site took the order."""

    remote_id: str
    kind: Literal["accepted"] = "accepted"


@dataclass(frozen=True, slots=True)
class OrderRefused:
    """The site certainly did not carry the order out."""

    fault: str
    message: str
    kind: Literal["order-refused"] = "order-refused"


@dataclass(frozen=True, slots=True)
class DrainRefused:
    """The overlay certainly did not carry out an order to drain, or to take back into service."""

    fault: str
    message: str
    kind: Literal["drain-refused"] = "drain-refused"


@dataclass(frozen=True, slots=True)
class DrainRepeated:
    """The drone was asked to drain, and its slot still takes jobs: it is asked again."""

    after_s: float
    """Since it was first asked."""
    message: str = ""
    kind: Literal["drain-repeated"] = "drain-repeated"


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """The order may have been carried out; a later listing settles it."""

    message: str
    kind: Literal["outcome-unknown"] = "outcome-unknown"


@dataclass(frozen=True, slots=True)
class SeenAtSite:
    """The site's listing shows it."""

    site_state: str
    site_reason: str = ""
    kind: Literal["seen-at-site"] = "seen-at-site"


@dataclass(frozen=True, slots=True)
class SeenInPool:
    """The overlay shows its slot."""

    slot_state: str
    jobs: int
    after_s: float
    """Since it was asked for."""
    kind: Literal["seen-in-pool"] = "seen-in-pool"


@dataclass(frozen=True, slots=True)
class NotInListing:
    """A fresh listing of the site lacks it: missing, not yet gone."""

    kind: Literal["not-in-listing"] = "not-in-listing"


@dataclass(frozen=True, slots=True)
class NeverArrived:
    """Fresh listings lack an order long after it was given."""

    waited_s: float
    limit_s: float
    kind: Literal["never-arrived"] = "never-arrived"


@dataclass(frozen=True, slots=True)
class Disappeared:
    """Fresh listings lack it for longer than the limit."""

    missing_s: float
    limit_s: float
    kind: Literal["disappeared"] = "disappeared"


@dataclass(frozen=True, slots=True)
class EndedAtSite:
    """The site says that it ended."""

    end: str
    exit_code: int | None
    message: str
    lived_s: float
    jobs_started: int
    fault: str = ""
    """What kind of thing went wrong, where the site tells."""
    kind: Literal["ended-at-site"] = "ended-at-site"


# ------------------------------------------------------------------------------------------------- why a drone leaves


@dataclass(frozen=True, slots=True)
class IdleTimeout:
    """It has had no job for longer than an idle drone is kept."""

    idle_s: float
    limit_s: float
    by: str = ""
    """Source of the limit: ``gaps`` between jobs at its site, what another start costs there (``start-cost``),
    the configured ``time-out``, how long the drone took to come (``slow-start``), or the setting that makes the
    time-out ``fixed``. Empty in old records."""
    kind: Literal["idle-timeout"] = "idle-timeout"


@dataclass(frozen=True, slots=True)
class DrainAtRisk:
    """It ends what it runs and takes no more jobs: its site's owner, by what has been seen of him, is likely to take
    its place before they are done, and they can wait for a safer one."""

    site: str
    lost: float
    """Share of such jobs' work that may be expected to be lost there."""
    tolerated: float
    """What they accept after as long a wait."""
    kind: Literal["drain-at-risk"] = "drain-at-risk"


@dataclass(frozen=True, slots=True)
class BlackHoleDrone:
    """Jobs fail in it within seconds, or are held by it, that run well elsewhere or are of several users. It takes no
    more jobs."""

    failed: int
    """Starts of jobs, in the last quarter of an hour."""
    good: int
    """Jobs that went well in it meanwhile."""
    owners: int
    """Users of the jobs that failed."""
    node: str
    message: str
    """The newest failure."""
    kind: Literal["black-hole"] = "black-hole"


@dataclass(frozen=True, slots=True)
class BlackHoleNode:
    """It has no job yet, and several drones on its node made jobs fail. The node is avoided for a while."""

    node: str
    until: float
    failures: int
    """Drones in a row that made jobs fail there."""
    message: str
    kind: Literal["black-hole-node"] = "black-hole-node"


@dataclass(frozen=True, slots=True)
class Unneeded:
    """It has not started work and no waiting job needs it any more."""

    state: str
    kind: Literal["unneeded"] = "unneeded"


@dataclass(frozen=True, slots=True)
class StateTimeout:
    """It is in one state for longer than that state may last."""

    state: str
    for_s: float
    limit_s: float
    kind: Literal["state-timeout"] = "state-timeout"


@dataclass(frozen=True, slots=True)
class LeftPool:
    """Its slot has left the pool but the site still runs it."""

    for_s: float
    limit_s: float
    kind: Literal["left-pool"] = "left-pool"


@dataclass(frozen=True, slots=True)
class OperatorRequested:
    by: str
    text: str
    kind: Literal["operator-requested"] = "operator-requested"


@dataclass(frozen=True, slots=True)
class PreemptedForOwner:
    """The owner of the hardware waits for it: this drone is one of the set that frees a place for his job."""

    waiting: int
    """Jobs of that shape."""
    waited_s: float
    node: str = ""
    gpus: float = 0.0
    """Of one of those jobs."""
    lost_gpu_s: float = 0.0
    """What its end costs, as far as its slot tells."""
    unit: str = "GPU-seconds"
    """Of what is lost; of a CPU drone ``CPU-seconds``."""
    kind: Literal["preempted-for-owner"] = "preempted-for-owner"


@dataclass(frozen=True, slots=True)
class Preempted:
    """Its site, or the owner by way of us, has taken its place back."""

    message: str
    notice_s: float
    """Between the notice and its end: the grace that it used. 0 if no notice was seen."""
    grace_s: float
    """What the site gives."""
    lost_gpu_s: float
    """Work of jobs that must be done again, in GPU-seconds (of a CPU drone: CPU-seconds)."""
    lost_jobs: int
    unit: str = "GPU-seconds"
    kind: Literal["preempted"] = "preempted"


@dataclass(frozen=True, slots=True)
class PreemptionNotice:
    """Its site has told it to leave."""

    message: str
    kind: Literal["notice"] = "notice"


@dataclass(frozen=True, slots=True)
class ReserveReclaimed:
    """It stands on what is kept for a free GPU, and a GPU job waits again."""

    node: str
    kind: Literal["reserve-reclaimed"] = "reserve-reclaimed"


@dataclass(frozen=True, slots=True)
class TypeRemoved:
    """The configuration no longer has its drone type."""

    type: str
    kind: Literal["type-removed"] = "type-removed"


@dataclass(frozen=True, slots=True)
class Orphan:
    """It carries our tag but we have no live record of it."""

    recorded_end: str = ""
    """How our record of it ended, if there ever was one."""
    kind: Literal["orphan"] = "orphan"


@dataclass(frozen=True, slots=True)
class DemandReturned:
    """A draining drone goes back into service because jobs wait that it can run."""

    class_id: str
    waiting: int
    kind: Literal["demand-returned"] = "demand-returned"


# ---------------------------------------------------------------------------------------------- why a drone is started


@dataclass(frozen=True, slots=True)
class JobsWaiting:
    """Waiting jobs of a class exceed what existing drones will take."""

    class_id: str
    waiting: int
    covered: int
    """Of those, taken by free slots and drones on their way."""
    starts: int
    """Drones of this type started for the class in this plan."""
    kind: Literal["jobs-waiting"] = "jobs-waiting"


@dataclass(frozen=True, slots=True)
class HeadroomShort:
    """Drones are kept warm for jobs that have not come yet, and fewer are than the policy says."""

    name: str
    wanted: int
    """Jobs of that shape for which there is to be room."""
    covered: int
    starts: int
    kind: Literal["headroom-short"] = "headroom-short"


# ------------------------------------------------------------------------------------------- why something is not done


@dataclass(frozen=True, slots=True)
class BadRequest:
    """The jobs ask for something that no slot can ever offer."""

    message: str
    kind: Literal["bad-request"] = "bad-request"


@dataclass(frozen=True, slots=True)
class PlannerFailed:
    """The planner fails on these jobs, by a mistake of its own. They are left out, and all others are decided on."""

    error: str
    kind: Literal["planner-failed"] = "planner-failed"


@dataclass(frozen=True, slots=True)
class InvalidAction:
    """The independent judge of plans has left this out: it would have broken a promise."""

    promise: str
    """The one that would have been broken, with its numbers."""
    kind: Literal["invalid-action"] = "invalid-action"


@dataclass(frozen=True, slots=True)
class NothingFits:
    """No drone type fits; the nearest one, and the first dimension in which it fails."""

    nearest: str
    dimension: str
    wanted: str
    offered: str
    kind: Literal["nothing-fits"] = "nothing-fits"


@dataclass(frozen=True, slots=True)
class LimitReached:
    limit: str
    """Name of the policy setting."""
    scope: str
    used: float
    allowed: float
    kind: Literal["limit-reached"] = "limit-reached"


@dataclass(frozen=True, slots=True)
class GroupQuota:
    """The negotiator would match no more jobs of this accounting group: its quota is used up, and it takes no surplus.
    A drone for them would start for nothing."""

    group: str
    """Whose quota it is: the jobs' own group, or one that contains it."""
    used_gpus: float
    """With what this plan grants it."""
    quota_gpus: float
    kind: Literal["group-quota"] = "group-quota"


@dataclass(frozen=True, slots=True)
class PoolLimit:
    """The overlay would match no more of these jobs, whatever slots came: a limit of its own is used up. A drone for
    them would start for nothing."""

    message: str
    kind: Literal["pool-limit"] = "pool-limit"


@dataclass(frozen=True, slots=True)
class OwnerRisk:
    """Jobs there would lose too much of their work to the site's owner, by what has been seen of him; more is accepted
    the longer they wait."""

    site: str
    typical_s: float
    """Half of such jobs run no longer."""
    waited_s: float
    tolerated: float
    """Share of work that may be expected to be lost."""
    kind: Literal["owner-risk"] = "owner-risk"


@dataclass(frozen=True, slots=True)
class AwaitingCheaperType:
    """A drone of this type holds its GPUs for longer before its first job than others; it is started once the jobs have
    waited as long, all together, as that is worth."""

    type: str
    waited_s: float
    """Of all jobs together."""
    more_s: float
    """Of waiting, from when on it is started."""
    kind: Literal["awaiting-cheaper-type"] = "awaiting-cheaper-type"


@dataclass(frozen=True, slots=True)
class ExistingDronesSuffice:
    """So short are the jobs that the drones there are soon have room for them."""

    mean_s: float
    """Run time of such jobs."""
    running: int
    kind: Literal["existing-drones-suffice"] = "existing-drones-suffice"


@dataclass(frozen=True, slots=True)
class HeadroomYields:
    """No headroom is kept where real jobs lack room, or where the owner waits."""

    name: str
    wanted: int
    """Jobs of that shape for which there would be room kept."""
    kind: Literal["headroom-yields"] = "headroom-yields"


@dataclass(frozen=True, slots=True)
class BackingOff:
    scope: str
    until: float
    fault: str
    message: str
    kind: Literal["backing-off"] = "backing-off"


@dataclass(frozen=True, slots=True)
class StartsUnmatched:
    """Drones of this type that were started for these jobs left without one, while the jobs waited. No more are started
    for them until a time. Other jobs get drones of this type all the same."""

    type: str
    until: float
    failures: int
    """In a row."""
    message: str
    kind: Literal["starts-unmatched"] = "starts-unmatched"


@dataclass(frozen=True, slots=True)
class SiteFull:
    """The site shows no free capacity for any type that fits."""

    type: str
    lack: str = ""
    """Shortage, where the site reports it: ``cpus 8 > 2 free``."""
    kind: Literal["site-full"] = "site-full"


@dataclass(frozen=True, slots=True)
class GpusStranded:
    """GPUs are free, but others hold what a drone needs beside them on those nodes (blocking prevents that)."""

    type: str
    nodes: int
    """With enough free GPUs for one of the type."""
    free_gpus: float
    """On those nodes."""
    dimension: str
    """What is short on most of them: ``cpus``, ``memory`` or ``disk``."""
    wanted: int
    """By one drone; CPUs, or MiB."""
    free: int
    """The most that is left on one of them."""
    kind: Literal["gpus-stranded"] = "gpus-stranded"


@dataclass(frozen=True, slots=True)
class SiteQuota:
    """What the site grants us is used up: it would refuse another drone of the type."""

    type: str
    kind: Literal["site-quota"] = "site-quota"


@dataclass(frozen=True, slots=True)
class StartBlocked:
    """A drone of the type waits at its site for a reason that another would meet as well (a limit, a bad request)."""

    type: str
    fault: str
    message: str
    kind: Literal["start-blocked"] = "start-blocked"


@dataclass(frozen=True, slots=True)
class Downtime:
    """The site goes down before a drone would be of use there."""

    site: str
    at: float
    left_s: float
    """What a drone would have to live."""
    wanted_s: float
    kind: Literal["downtime"] = "downtime"


@dataclass(frozen=True, slots=True)
class OwnerWaits:
    """The owner's waiting jobs get what is free there."""

    site: str
    jobs: int
    """Of those that wait, the ones that get room there."""
    gpus: float
    """Of all of them."""
    kind: Literal["owner-waits"] = "owner-waits"


@dataclass(frozen=True, slots=True)
class ReserveKept:
    """Nodes have room, but it is kept for their free GPUs."""

    type: str
    free_gpus: float
    """On nodes that would have had room otherwise."""
    kind: Literal["reserve-kept"] = "reserve-kept"


@dataclass(frozen=True, slots=True)
class SiteDisabled:
    site: str
    kind: Literal["site-disabled"] = "site-disabled"


@dataclass(frozen=True, slots=True)
class DemandCovered:
    """Free slots and drones on their way will take the jobs."""

    jobs: int
    drones: int
    kind: Literal["demand-covered"] = "demand-covered"


@dataclass(frozen=True, slots=True)
class AwaitingNegotiation:
    """No negotiation cycle has seen the jobs yet."""

    fresh: int
    kind: Literal["awaiting-negotiation"] = "awaiting-negotiation"


@dataclass(frozen=True, slots=True)
class StaleView:
    """A view is missing, failed or too old: leave alone what depends on it."""

    view: str
    age_s: float
    """-1 if there never was one."""
    limit_s: float
    message: str
    kind: Literal["stale-view"] = "stale-view"


@dataclass(frozen=True, slots=True)
class AllVanished:
    """Every drone of a site vanished from its listing at once: believe it only after some time."""

    site: str
    drones: int
    kind: Literal["all-vanished"] = "all-vanished"


@dataclass(frozen=True, slots=True)
class TooManyUnhealthy:
    """More drones look unhealthy at once than can be their own fault."""

    unhealthy: int
    drones: int
    fraction: float
    kind: Literal["too-many-unhealthy"] = "too-many-unhealthy"


@dataclass(frozen=True, slots=True)
class Probing:
    """After a back-off one drone is tried before more are."""

    scope: str
    kind: Literal["probing"] = "probing"


@dataclass(frozen=True, slots=True)
class UnknownDrone:
    """An operator named a drone that is not on record as alive."""

    drone_id: str
    kind: Literal["unknown-drone"] = "unknown-drone"


@dataclass(frozen=True, slots=True)
class NotDraining:
    """An operator asked to take a drone back into service that is in service, or is being stopped."""

    drone_id: str
    state: str
    kind: Literal["not-draining"] = "not-draining"


Reason = (
    Accepted
    | OrderRefused
    | DrainRefused
    | DrainRepeated
    | OutcomeUnknown
    | SeenAtSite
    | SeenInPool
    | NotInListing
    | NeverArrived
    | Disappeared
    | EndedAtSite
    | IdleTimeout
    | DrainAtRisk
    | BlackHoleDrone
    | BlackHoleNode
    | Unneeded
    | StateTimeout
    | LeftPool
    | OperatorRequested
    | PreemptedForOwner
    | Preempted
    | PreemptionNotice
    | ReserveReclaimed
    | TypeRemoved
    | Orphan
    | DemandReturned
    | JobsWaiting
    | HeadroomShort
    | BadRequest
    | PlannerFailed
    | InvalidAction
    | NothingFits
    | LimitReached
    | GroupQuota
    | PoolLimit
    | OwnerRisk
    | AwaitingCheaperType
    | ExistingDronesSuffice
    | HeadroomYields
    | BackingOff
    | StartsUnmatched
    | SiteFull
    | GpusStranded
    | SiteQuota
    | StartBlocked
    | Downtime
    | OwnerWaits
    | ReserveKept
    | SiteDisabled
    | DemandCovered
    | AwaitingNegotiation
    | StaleView
    | AllVanished
    | TooManyUnhealthy
    | Probing
    | UnknownDrone
    | NotDraining
)
