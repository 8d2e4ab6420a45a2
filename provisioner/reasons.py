"""Reasons why something is done or not done: typed values with their numbers.

A reason is one class: its base is the category, its name makes the stable ``kind`` of records and
JSON, ``sentence`` or ``describe`` says it to people, and a docstring says what the sentence does not.
``docs/explanation/loop.md`` lists the categories. A new class also goes into one of the unions
at the end, which tell pydantic how to read it. The reasons for which a drone that has a job may leave
are also listed in :mod:`provisioner.planner.validation`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from string import Formatter
from typing import Annotated, Any, ClassVar, Literal, TypeVar, dataclass_transform, get_args

from provisioner.formatting import (
    age,
    amounts,
    count,
    iso,
    number,
    seconds,
    short,
    size,
    tail,
    whole,
)
from provisioner.job_filter import FILTER_WORDS
from provisioner.values import frozen


class Category(StrEnum):
    """Category of a reason: first those that need a person, then those that only take time."""

    CONFIGURATION = "configuration"
    NOTHING_FITS = "nothing-fits"
    LIMIT = "limit"
    BACK_OFF = "back-off"
    START = "start"
    WAITING_SITE = "waiting-site"
    WAITING_NEGOTIATION = "waiting-negotiation"
    LEAVE = "leave"
    STEP = "step"
    """A fact about a drone."""


class _SentenceFormatter(Formatter):
    """Formatter of sentences: a spec is a unit, ``tail`` for foreign text at the end, or a noun that is counted."""

    UNITS: Mapping[str, Callable[[Any], str]] = {
        "tail": tail,
        "seconds": seconds,
        "time": iso,
        "percent": "{:.1%}".format,
    }

    def format_field(self, value: Any, spec: str) -> str:
        if not spec:
            return short(value) if isinstance(value, str) else number(value)
        return self.UNITS[spec](value) if spec in self.UNITS else count(value, spec)


_SENTENCE_FORMATTER = _SentenceFormatter()


class _Reason:
    """A reason with its sentence for people."""

    __slots__ = ()
    kind: str
    category: ClassVar[Category]
    sentence: ClassVar[str] = ""
    """Text with the fields in braces, formatted by :class:`_SentenceFormatter`."""

    def describe(self) -> str:
        """Return one line for people, with the numbers of the reason; foreign texts are cut."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return _SENTENCE_FORMATTER.vformat(self.sentence, (), values)


R = TypeVar("R", bound=_Reason)


@dataclass_transform(frozen_default=True)
def _reason(made: type[R]) -> type[R]:
    """Make a frozen dataclass of a reason, with its ``kind``: by default the name of the class with hyphens."""
    words = re.findall("[A-Z][a-z]+", made.__name__)
    made.kind = made.__dict__.get("kind") or "-".join(words).lower()
    made.__annotations__["kind"] = Literal[made.kind]
    return frozen(made)


class StepReason(_Reason):
    __slots__ = ()
    category = Category.STEP


class StartReason(_Reason):
    __slots__ = ()
    category = Category.START


class LeaveReason(_Reason):
    __slots__ = ()
    category = Category.LEAVE


class ConfigurationReason(_Reason):
    __slots__ = ()
    category = Category.CONFIGURATION


class NothingFitsReason(_Reason):
    __slots__ = ()
    category = Category.NOTHING_FITS


class LimitReason(_Reason):
    __slots__ = ()
    category = Category.LIMIT


class BackOffReason(_Reason):
    __slots__ = ()
    category = Category.BACK_OFF


class WaitingSiteReason(_Reason):
    __slots__ = ()
    category = Category.WAITING_SITE


class WaitingNegotiationReason(_Reason):
    __slots__ = ()
    category = Category.WAITING_NEGOTIATION


def _over(value_s: float, limit_s: float) -> str:
    """Return ``612 s > 600 s``, with decimals where rounding would hide the difference."""
    sign = ">" if value_s > limit_s else "<" if value_s < limit_s else "="
    left = seconds(whole(value_s))
    right = seconds(whole(limit_s))
    if sign != "=" and left == right:
        left = f"{value_s:.3f} s"
        right = f"{limit_s:.3f} s"
    return f"{left} {sign} {right}"


IDLE_LIMIT_WORDS = {
    "gaps": "the timeout that costs least over the recorded gaps between jobs at its site",
    "start-cost": "the cost of another start at its site, learned from earlier drones there",
    "time-out": "the configured timeout",
    "slow-start": "the time that the drone needed to start, at most three times the configured timeout",
    "fixed": "the configured timeout, which is fixed",
    "refused-jobs": "it accepts none of the waiting jobs and occupies resources that they need",
}
"""Source of the limit of an idle drone."""
REFUSAL_RULE_WORDS = FILTER_WORDS | {"ends": "it ends before the walltime of the jobs"}
"""Causes for which an idle drone refuses jobs."""


@_reason
class Accepted(StepReason):
    remote_id: str

    def describe(self) -> str:
        return f"the site accepted the order{tail(self.remote_id, ' as ')}"


@_reason
class OrderRefused(StepReason):
    """The site certainly did not carry the order out."""

    sentence = "the site refused the order ({fault}){message:tail}"

    fault: str
    message: str


@_reason
class DrainRefused(StepReason):
    """The overlay certainly did not carry out an order to drain or to undrain."""

    fault: str
    message: str

    def describe(self) -> str:
        fault = f" ({short(self.fault)})" if self.fault else ""
        return f"the overlay refused the order to drain{fault}{tail(self.message)}"


@_reason
class DrainRepeated(LeaveReason):
    sentence = "drain ordered again: jobs still start in it {after_s:seconds} after the first order{message:tail}"

    after_s: float
    message: str = ""


@_reason
class OutcomeUnknown(StepReason):
    sentence = (
        "outcome unknown (no reply to the order); the next poll will resolve it{message:tail}"
    )

    message: str


@_reason
class SeenAtSite(StepReason):
    sentence = "the site lists it as {site_state}{site_reason:tail}"

    site_state: str
    site_reason: str = ""


@_reason
class StartLost(StepReason):
    """A fail-over of the database loses its last commits if its replication is asynchronous."""

    sentence = "listed with the name of this record, which has lost its start: adopted"


@_reason
class SeenInPool(StepReason):
    sentence = "in the pool, {slot_state} with {jobs:job}, {after_s:seconds} after the order"

    slot_state: str
    jobs: int
    after_s: float


@_reason
class NotInListing(StepReason):
    sentence = (
        "missing from the newest listing of the site; waiting for more listings before acting"
    )


@_reason
class NeverArrived(StepReason):
    waited_s: float
    limit_s: float

    def describe(self) -> str:
        return f"the order never arrived: not in the site's listings for {_over(self.waited_s, self.limit_s)}"


@_reason
class Disappeared(StepReason):
    missing_s: float
    limit_s: float

    def describe(self) -> str:
        return f"lost: missing from the site's listings for {_over(self.missing_s, self.limit_s)}"


@_reason
class EndedAtSite(StepReason):
    end: str
    exit_code: int | None
    message: str
    lived_s: float
    jobs_started: int
    fault: str = ""

    def describe(self) -> str:
        code = "" if self.exit_code is None else f", exit code {self.exit_code}"
        code += f": {EXIT_WORDS[self.exit_code]}" if self.exit_code in EXIT_WORDS else ""
        lived = f" after {seconds(whole(self.lived_s))} and {count(self.jobs_started, 'job')}"
        return f"ended at the site ({short(self.end)}{code}){lived}{tail(self.message)}"


EXIT_WORDS = {
    64: "wrong call or missing input",
    71: "GPU check failed",
    72: "GPU check hung",
    73: "could not join the pool",
    74: "HTCondor programs missing or not starting",
    75: "the pool was lost",
}
"""Meanings of the drone's own exit codes (the contract of the drone script)."""


@_reason
class IdleTimeout(LeaveReason):
    idle_s: float
    limit_s: float
    by: str = ""
    """Source of the limit, as in :class:`provisioner.planner.states.IdleLimit`; empty in old records."""

    def describe(self) -> str:
        return ", ".join(
            [
                f"idle {_over(self.idle_s, self.limit_s)}",
                *filter(None, [IDLE_LIMIT_WORDS.get(self.by)]),
            ]
        )


@_reason
class OptionalJobsOnly(LeaveReason):
    """``idle_s`` is the time since the drone last ran a job that needs its GPU, or since it joined."""

    idle_s: float
    limit_s: float

    def describe(self) -> str:
        return (
            f"draining: no job that needs a GPU for {_over(self.idle_s, self.limit_s)},"
            " only jobs for which a GPU is optional"
        )


@_reason
class DrainAtRisk(LeaveReason):
    sentence = (
        "draining: the owner of {site} will probably need this GPU, and waiting jobs would lose "
        "{lost:percent} of their work there; they accept {tolerated:percent}"
    )

    site: str
    lost: float
    tolerated: float
    """Expected share of lost work of such jobs there, and the share that they accept."""


@_reason
class BlackHoleDrone(LeaveReason):
    """The drone drains: jobs fail in it within seconds that succeed elsewhere or belong to several users."""

    failed: int
    good: int
    """Failed starts of jobs in the last 15 minutes, and jobs that succeeded in it during that time."""
    owners: int
    node: str
    message: str
    kind = "black-hole"

    def describe(self) -> str:
        on = f" on {short(self.node)}" if self.node else ""
        return (
            f"black hole{on}: {count(self.failed, 'start')} of jobs of {count(self.owners, 'user')} failed within "
            f"seconds or ended in a hold, {count(self.good, 'job')} succeeded{tail(self.message)}"
        )


@_reason
class BlackHoleNode(LeaveReason):
    """The drone has no job yet, and jobs failed in several drones on its node."""

    sentence = (
        "node {node} is avoided until {until:time} because jobs failed in {failures:drone} on it"
        "{message:tail}"
    )

    node: str
    until: float
    failures: int
    message: str


@_reason
class Unneeded(LeaveReason):
    sentence = "no waiting job needs it any more, and it is still {state}"

    state: str


@_reason
class SurplusServer(LeaveReason):
    sentence = "service {service} has {servers:server} and needs {wanted}"

    service: str
    servers: int
    wanted: int
    """Servers that the demand of the last minutes needed."""


@_reason
class ServerYields(LeaveReason):
    """Servers have more than their part of the GPUs (`services_share`), and waiting jobs lack them."""

    sentence = "servers of services have {held} of {gpus} GPUs, and may have {share:percent} while jobs lack GPUs"

    held: float
    gpus: float
    share: float


@_reason
class ServerEnds(LeaveReason):
    """The drone of a server nears its end. A successor is started before, as far as one is needed."""

    sentence = (
        "withdrawn before its end at {ends_at:time}: {ready:other server} ready, {wanted} needed"
    )

    ends_at: float
    ready: int
    wanted: int


@_reason
class ServerReturns(StepReason):
    sentence = "back in service {service}: {needed:server} needed, {servers} there or coming"

    service: str
    needed: int
    servers: int


@_reason
class ServerDrained(LeaveReason):
    sentence = "the server is withdrawn from the balancer and works on no request any more"


@_reason
class StateTimeout(LeaveReason):
    state: str
    for_s: float
    limit_s: float

    def describe(self) -> str:
        return f"{short(self.state)} for {_over(self.for_s, self.limit_s)}"


@_reason
class LeftPool(LeaveReason):
    for_s: float
    limit_s: float

    def describe(self) -> str:
        return f"missing from the pool for {_over(self.for_s, self.limit_s)}, but the site still runs it"


@_reason
class OperatorRequested(LeaveReason):
    sentence = "requested by {by}{text:tail}"

    by: str
    text: str


@_reason
class PreemptedForOwner(LeaveReason):
    """The owner's jobs wait: together with other drones on its node it makes room for one of them."""

    waiting: int
    waited_s: float
    node: str = ""
    gpus: float = 0.0
    """Request of one of these jobs."""
    lost_gpu_s: float = 0.0
    """Work lost by its end, as far as its slot reports it, in ``unit``."""
    unit: str = "GPU-seconds"

    def describe(self) -> str:
        where = f" on {short(self.node)}" if self.node else ""
        gpus = f" ({number(self.gpus)} GPUs each)" if self.gpus else ""
        work = f"{number(self.lost_gpu_s)} {short(self.unit)}"
        cost = f"; {work} of work are lost" if self.lost_gpu_s else ""
        jobs = f"{count(self.waiting, 'job')} of the owner{gpus}"
        return f"makes room for the owner of the hardware{where}: {jobs} waiting for {seconds(self.waited_s)}{cost}"


@_reason
class Preempted(StepReason):
    """The site preempted it, or the provisioner stopped it for the owner."""

    message: str
    notice_s: float
    """Time between the notice and its end; 0 if no notice was seen."""
    grace_s: float
    lost_gpu_s: float
    """Work of jobs that must be repeated, in ``unit``."""
    lost_jobs: int
    unit: str = "GPU-seconds"

    def describe(self) -> str:
        grace = (
            f" {seconds(self.notice_s)} after the notice (of {seconds(self.grace_s)})"
            if self.notice_s
            else ""
        )
        jobs = count(self.lost_jobs, "job")
        lost = (
            f"{jobs}, {number(self.lost_gpu_s)} {short(self.unit)}" if self.lost_jobs else "no work"
        )
        return f"preempted for the owner{grace}, {lost} lost{tail(self.message)}"


@_reason
class PreemptionNotice(StepReason):
    sentence = "the site announced its preemption{message:tail}"

    message: str
    kind = "notice"


@_reason
class Requeued(LeaveReason):
    """A second run would begin with old tokens, and nobody requested it."""

    sentence = "the site preempted and requeued it; it must not start again{site_reason:tail}"

    site_reason: str = ""


@_reason
class ReserveReclaimed(LeaveReason):
    sentence = "it uses the reserve of a free GPU on {node}, which a waiting GPU job needs"

    node: str


@_reason
class TypeRemoved(LeaveReason):
    sentence = "drone type {type} is no longer in the configuration"

    type: str


@_reason
class Orphan(LeaveReason):
    recorded_end: str = ""

    def describe(self) -> str:
        return "the site lists it under this controller's name, but " + (
            f"the record says that it ended as {short(self.recorded_end)}"
            if self.recorded_end
            else "it is not on record"
        )


@_reason
class OrphansKept(ConfigurationReason):
    """A lost or restored record, or a second controller of this name: an operator decides."""

    sentence = (
        "not on record, so neither used nor stopped: {drones:drone} named {record}-* at {site}. Run `provisioner "
        "sites adopt-orphans SITE` if the record was lost, else `provisioner sites stop-orphans SITE`. "
        "Drones without a job are stopped at {until:time}"
    )

    site: str
    record: str
    """``<controller>-<birth>``: the beginning of their ids."""
    drones: int
    until: float
    """Time after which those without a job are stopped."""


@_reason
class LiveTwin(ConfigurationReason):
    """Nothing is started or stopped beside another living controller of this name."""

    sentence = (
        "another controller of this name is running (record {record}, {evidence}), so this one starts and "
        "stops nothing. Stop one of the two, or rename it (`controller:`)"
    )

    record: str
    evidence: str
    """Its newest drone, or its process."""


@_reason
class NewLeader(BackOffReason):
    """Orders of the leader before may still be carried out, and must be in the listing that starts count on."""

    sentence = "another controller led until now: no drone is started at {site} before a listing after {until:time}"

    site: str
    until: float


@_reason
class DemandReturned(StepReason):
    sentence = "back in service: it can run waiting jobs of class {class_name} ({waiting:job})"

    class_id: str
    class_name: str
    waiting: int


@_reason
class JobsWaiting(StartReason):
    class_id: str
    class_name: str
    waiting: int
    covered: int
    starts: int

    def describe(self) -> str:
        verb = "waits" if self.waiting == 1 else "wait"
        return (
            f"starting {count(self.starts, 'drone')}: {count(self.waiting, 'job')} of class"
            f" {short(self.class_name)} {verb}, existing drones cover {self.covered}"
        )


@_reason
class HeadroomShort(StartReason):
    sentence = "starting {starts:drone}: headroom {name} is for {wanted:job}, existing drones cover {covered}"

    name: str
    wanted: int
    covered: int
    starts: int


@_reason
class ServiceRequested(StartReason):
    sentence = (
        "starting {starts:server} of service {service}: {requests_per_s} requests/s, {queued:request} waiting; "
        "{needed:server} needed, {servers} there or coming"
    )

    service: str
    requests_per_s: float
    """Requests that come to its balancer."""
    queued: int
    """Requests that wait at the balancer."""
    needed: int
    servers: int
    starts: int


@_reason
class ServiceAnnounced(StartReason):
    """Jobs call models of the service, or will, by their own announcement (`+WantsInference`)."""

    sentence = (
        "starting {starts:server} of service {service}: {waiting:job} waiting and {running} running announce its "
        "models; {needed:server} needed, {servers} there or coming"
    )

    service: str
    waiting: int
    running: int
    needed: int
    servers: int
    starts: int


@_reason
class ServiceMinimum(StartReason):
    sentence = (
        "starting {starts:server} of service {service}: at least {at_least} are kept, {servers} there or "
        "coming"
    )

    service: str
    at_least: int
    servers: int
    starts: int


@_reason
class BadRequest(ConfigurationReason):
    sentence = "no slot can ever satisfy the request of these jobs{message:tail}"

    message: str


@_reason
class PlannerFailed(ConfigurationReason):
    """An error of the planner, not of the jobs. All other jobs are planned."""

    sentence = "the planner failed on these jobs and skips them{error:tail}. Report it with `provisioner snapshot`"

    error: str


@_reason
class InvalidAction(ConfigurationReason):
    """The independent validation of plans found that this action breaks a promise."""

    sentence = (
        "removed from the plan as invalid{promise:tail}. Report it with `provisioner snapshot`"
    )

    promise: str


@_reason
class NothingFits(NothingFitsReason):
    nearest: str
    dimension: str
    requested: str
    available: str

    def describe(self) -> str:
        wanted, offered = amounts(self.requested, self.available)
        nearest = (
            f"the nearest, {short(self.nearest)}, has {short(offered)}"
            if self.nearest
            else "no drone type is configured"
        )
        return f"no drone type fits: {short(self.dimension)} must be {short(wanted)}; {nearest}"


@_reason
class LimitReached(LimitReason):
    sentence = "limit {limit} of {scope} is reached: {used}/{allowed}"

    limit: str
    scope: str
    used: float
    allowed: float


@_reason
class GroupQuota(LimitReason):
    sentence = (
        "group {group} has used its quota ({used_gpus}/{quota_gpus} GPUs) and accepts no surplus, so the "
        "negotiator matches no more of its jobs"
    )

    group: str
    """The group with the quota: the jobs' own, or one that contains it."""
    used_gpus: float
    quota_gpus: float


@_reason
class PoolLimit(LimitReason):
    sentence = "the pool would match no more of these jobs to any slot{message:tail}"

    message: str


@_reason
class ServicesShare(LimitReason):
    sentence = (
        "servers of services have {held} of {gpus} GPUs: while jobs wait for GPUs they may have {share:percent} "
        "(`services_share`)"
    )

    held: float
    gpus: float
    """GPUs of all drones, and those that are free."""
    share: float


@_reason
class ModelUnknown(ConfigurationReason):
    """The jobs run nevertheless: they find no server for the model."""

    sentence = "these jobs announce model {model}, which no service has"

    model: str


@_reason
class OwnerRisk(WaitingSiteReason):
    sentence = (
        "jobs of typically {typical_s:seconds} would lose more than {tolerated:percent} of their work to "
        "the owner of {site}; waiting for a site without an owner costs less (expected wait {safe_s:seconds}, "
        "waited so far {waited_s:seconds})"
    )

    site: str
    typical_s: float
    waited_s: float
    tolerated: float
    safe_s: float = 0.0
    """Expected wait for a drone at a site without an owner."""


@_reason
class IdleDroneRefuses(LimitReason):
    """Given beside the reason that counts the jobs."""

    drone: str
    """One of them."""
    type: str
    rule: str
    """A rule of the job filter, or ``ends``."""
    drones: int
    until: float

    def describe(self) -> str:
        rule = REFUSAL_RULE_WORDS.get(self.rule, short(self.rule))
        return (
            f"refused by {count(self.drones, 'idle drone')} of fitting types until {iso(self.until)}, or"
            f" later if other jobs arrive; {short(self.drone)} of {short(self.type)}: {rule}"
        )


@_reason
class ExistingDronesSuffice(WaitingSiteReason):
    sentence = (
        "these jobs run for {mean_s:seconds}, so waiting for existing drones costs less than starting "
        "more ({running} run now)"
    )

    mean_s: float
    running: int


@_reason
class HeadroomYields(WaitingSiteReason):
    sentence = "headroom {name} (for {wanted:job}) waits because real jobs or the owner come first"

    name: str
    wanted: int


@_reason
class BackingOff(BackOffReason):
    """A circuit breaker is open."""

    sentence = "{scope} is not used until {until:time} ({fault}){message:tail}"

    scope: str
    until: float
    fault: str
    message: str


@_reason
class NegotiatorSilent(BackOffReason):
    """No job of the pool starts anywhere, whatever it requests."""

    sentence = (
        "no negotiation cycle for {silent_s:seconds}, so no job starts in the pool: its administrator "
        "must repair the negotiator"
    )

    silent_s: float


@_reason
class CredentialUnusable(BackOffReason):
    """A token, key or certificate that drones or their orders need is expired, damaged or missing."""

    used_by: str
    name: str
    identity: str = ""
    expired_at: float = 0.0
    problem: str = ""

    def describe(self) -> str:
        return (
            f"no drone is started because a credential of {short(self.used_by)} is unusable: {short(self.name)}"
            + (f" of {short(self.identity)}" if self.identity else "")
            + (f" expired at {iso(self.expired_at)}" if self.expired_at else tail(self.problem))
        )


@_reason
class StartsUnmatched(BackOffReason):
    sentence = (
        "the last drones of {type} for these jobs got none of them ({failures} in a row): the next attempt "
        "is at {until:time}; other jobs are not affected{message:tail}"
    )

    type: str
    until: float
    failures: int
    message: str


@_reason
class ExclusiveOnly(BackOffReason):
    faults: int
    """Faults of the user's jobs on shared GPUs; 0: neighbours ended one of their jobs repeatedly."""
    window_s: float
    until: float
    message: str

    def describe(self) -> str:
        why = f"{count(self.faults, 'fault')} on shared GPUs in {age(self.window_s)}: exclusive GPUs only"
        if not self.faults:
            why = (
                "neighbours on shared GPUs ended a job twice, not its own fault:"
                " exclusive GPU until it is done, at most"
            )
        return f"{why} until {iso(self.until)}{tail(self.message)}"


@_reason
class SiteFull(WaitingSiteReason):
    sentence = "the site has no free capacity for {type} or any other fitting type{lack:tail}"

    type: str
    lack: str = ""
    """Shortage, if the site reports it: ``cpus 8 > 2 free``."""


@_reason
class GpusStranded(WaitingSiteReason):
    """GPUs are free, but others use the CPUs, memory or disk of their nodes (blocking prevents that)."""

    type: str
    nodes: int
    """Nodes with enough free GPUs for one drone of the type."""
    free_gpus: float
    dimension: str
    """Resource that is short on most of them: ``cpus``, ``memory`` or ``disk``."""
    wanted: int
    free: int

    def describe(self) -> str:
        show = number if self.dimension == "cpus" else size
        where = f"{number(self.free_gpus)} GPUs are free on {count(self.nodes, 'node')}"
        return (
            f"{where}, but others use the {short(self.dimension)} there:"
            f" {short(self.type)} needs {show(self.wanted)}, at most {show(self.free)} are free"
        )


@_reason
class SiteQuota(LimitReason):
    sentence = "the site's quota allows no more drones of {type} or any other fitting type"

    type: str


@_reason
class StartBlocked(WaitingSiteReason):
    """A drone of the type waits at its site for a reason that would hold back another one, too."""

    sentence = "the site starts no more drones of {type} ({fault}){message:tail}"

    type: str
    fault: str
    message: str


@_reason
class Downtime(WaitingSiteReason):
    sentence = "downtime of {site} from {at:time}: {left_s:seconds} are left, {wanted_s:seconds} are needed"

    site: str
    at: float
    left_s: float
    wanted_s: float


@_reason
class OwnerWaits(WaitingSiteReason):
    site: str
    jobs: int
    gpus: float

    def describe(self) -> str:
        return (
            f"capacity at {short(self.site)} is reserved for {count(self.jobs, 'job')} of the owner"
            + (f" ({number(self.gpus)} GPUs)" if self.gpus else "")
        )


@_reason
class NodeReserved(WaitingSiteReason):
    """A job of several GPUs needs a node: its drones drain, and no drone is started there for other jobs."""

    site: str
    node: str
    class_id: str
    class_name: str
    gpus: float
    """Request of the job."""
    at: float
    """Time at which its GPUs are expected to be free."""
    overran_s: float = 0.0
    """Delay against the promised time, caused by a running job that overran."""

    def describe(self) -> str:
        node = f"node {short(self.node)} at {short(self.site)}"
        return (
            f"{node} is reserved for a job of class {short(self.class_name)} with {number(self.gpus)} GPUs:"
            f" expected to be free at {iso(self.at)}"
            + (
                f", {age(self.overran_s)} later than promised because a running job overran"
                if self.overran_s
                else ""
            )
        )


@_reason
class UserTurn(WaitingSiteReason):
    """Turn of the user of some jobs when drones are started. ``explain`` shows it; no plan contains it."""

    sentence = (
        "for new drones the user of these jobs is number {place} of {users} with waiting jobs: "
        "they hold {gpus} GPUs, weighted by {factor}, their effective priority"
    )

    place: int
    users: int
    """Number of users with waiting jobs."""
    gpus: float
    """GPUs of the user's running jobs, and of drones that were started for them and have no job yet."""
    factor: float
    """Effective priority of the user in the pool, as a multiple of the smallest one: the greater, the later."""


@_reason
class ReserveKept(WaitingSiteReason):
    sentence = (
        "no free capacity for {type}: the free CPUs, memory and disk are reserved for {free_gpus} free GPUs "
        "(`blocking`)"
    )

    type: str
    free_gpus: float


@_reason
class SiteDisabled(ConfigurationReason):
    """Disabled in the configuration, or by the operator ``by``."""

    site: str
    by: str = ""
    text: str = ""

    def describe(self) -> str:
        return f"site {short(self.site)} is disabled " + (
            f"by {short(self.by)}{tail(self.text)}" if self.by else "in the configuration"
        )


@_reason
class DemandCovered(WaitingSiteReason):
    jobs: int
    drones: int
    delayed: int = 0
    """Number of these drones that are delayed: their jobs may start elsewhere."""
    held_back: str = ""
    """Kind of the reason why no drone is started elsewhere in place of a delayed one; empty if there is none."""

    def describe(self) -> str:
        delayed = ""
        if self.delayed:
            other = f"; no other one starts: {short(self.held_back)}" if self.held_back else ""
            delayed = f" ({self.delayed} delayed{other})"
        jobs = count(self.jobs, "job")
        drones = count(self.drones, "drone")
        return f"free slots and {drones} on the way{delayed} are enough for {jobs}"


@_reason
class AwaitingNegotiation(WaitingNegotiationReason):
    sentence = "{fresh:job} not yet considered in a negotiation cycle"

    fresh: int


@_reason
class AwaitingIdleGpu(WaitingSiteReason):
    """Jobs for which a GPU is optional wait for an existing drone, or for one without a GPU."""

    cpu_type: str
    """Drone type without a GPU that fits them best; empty if there is none."""
    held_back: str = ""
    """Kind of the reason why no drone of that type is started; empty if there is none."""

    def describe(self) -> str:
        cpu_slot = ""
        if self.cpu_type:
            held_back = f": {short(self.held_back)}" if self.held_back else ""
            cpu_slot = f" or a CPU slot (drone type {short(self.cpu_type)}{held_back})"
        return (
            "no GPU drone is started because a GPU is optional for these jobs:"
            f" they wait for an idle GPU{cpu_slot}"
        )


@_reason
class StaleView(WaitingSiteReason):
    view: str
    age_s: float
    """-1 if there never was one."""
    limit_s: float
    message: str

    def describe(self) -> str:
        how = f"{seconds(whole(self.age_s))} old, and the last poll failed"
        if self.age_s < 0:
            how = "missing, because no poll has succeeded"
        elif self.age_s > self.limit_s:
            how = f"too old ({_over(self.age_s, self.limit_s)})"
        return f"no decision for {short(self.view)}: its view is {how}{tail(self.message)}"


@_reason
class AllVanished(WaitingSiteReason):
    """Several listings must confirm that many drones of a site are gone at once."""

    sentence = "{drones:drone} suddenly missing from the listing of {site}; waiting for more listings before acting"

    site: str
    drones: int


@_reason
class TooManyUnhealthy(BackOffReason):
    unhealthy: int
    drones: int
    fraction: float

    def describe(self) -> str:
        return (
            f"{self.unhealthy} of {count(self.drones, 'drone')} look unhealthy,"
            f" more than {number(100 * self.fraction)} %: the controller has stopped acting;"
            " check its host and network"
        )


@_reason
class ShadowOnly(StartReason):
    """A start that is suppressed in shadow mode."""

    sentence = (
        "shadow mode starts nothing; a controller would start {drones:drone} of {type} in addition to those "
        "of the other system"
    )

    type: str
    drones: int


@_reason
class Probing(BackOffReason):
    sentence = "{scope} is tested with one drone before more are started"

    scope: str


@_reason
class UnknownDrone(ConfigurationReason):
    sentence = "no live drone {drone_id} is on record"

    drone_id: str


@_reason
class NotDraining(ConfigurationReason):
    sentence = "{drone_id} is {state}: only a draining drone can return to service"

    drone_id: str
    state: str


_Ordered = Accepted | OrderRefused | DrainRefused | DrainRepeated | OutcomeUnknown
_Observed = (
    SeenAtSite | StartLost | SeenInPool | NotInListing | NeverArrived | Disappeared | EndedAtSite
)
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
_Served = (
    ServiceRequested
    | ServiceAnnounced
    | ServiceMinimum
    | SurplusServer
    | ServerYields
    | ServerEnds
    | ServerReturns
    | ServerDrained
    | ServicesShare
    | ModelUnknown
)
_Asked = (
    OperatorRequested
    | PreemptedForOwner
    | Preempted
    | PreemptionNotice
    | Requeued
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
_Waiting = OwnerRisk | ExistingDronesSuffice | HeadroomYields | BackingOff | StartsUnmatched
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
    | NewLeader
)
_Unknown = UnknownDrone | NotDraining | ShadowOnly | OrphansKept | LiveTwin
_Held = _Limited | _Waiting | _AtSite | _Withheld | _Doubted | _Unknown


class _ByKind:
    """Mark of a union that pydantic reads and writes by the ``kind`` alone, not by trying one after the other."""

    def __get_pydantic_core_schema__(self, source: object, schema_of: Any) -> Any:
        kinds = {each.__dataclass_fields__["kind"].default: each for each in get_args(source)}
        choices = {kind: schema_of.generate_schema(each) for kind, each in kinds.items()}
        return {"type": "tagged-union", "discriminator": "kind", "choices": choices}


Reason = Annotated[_Ordered | _Observed | _Timed | _Served | _Asked | _Wanted | _Held, _ByKind()]


class StartOutcome(StrEnum):
    """Outcome of the next tick for one waiting job."""

    STARTS = "starts"
    """A free slot, a drone on its way or a drone that is started now will run it."""
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
