"""Everything on record that a person should look at, one line each: a list of small rules over the facts of `status`.

A rule takes a :class:`TroubleContext` and yields :class:`OperatorTrouble` rows. To have another
trouble shown, add a rule to :data:`TROUBLE_RULES`, or record an event: a name in :data:`EVENT_ENDS`
holds until the event that ends it, and any other name that ends in ``.rejected`` or ``.failed`` or
``_failed``, or has words here, is shown for an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from provisioner import descriptions, formatting
from provisioner.accounting.reports import BudgetUse
from provisioner.answers.columns import ident, items, span_s, text, time_at, words
from provisioner.answers.errors import named
from provisioner.descriptions import ClassNames
from provisioner.keys import OVERLAY_SCOPE, Scope
from provisioner.model import (
    Breaker,
    BreakerState,
    Drone,
    Fault,
    FaultKind,
    JobClass,
    Plan,
    PolledOverlay,
    PolledServices,
    PolledSite,
)
from provisioner.reasons import (
    AllVanished,
    Category,
    IdleDroneRefuses,
    LiveTwin,
    OrphansKept,
    Reason,
    TooManyUnhealthy,
)
from provisioner.store import Event, Holder, Views
from provisioner.store.generations import Generation
from provisioner.store.lease import Lease, Member
from provisioner.store.measures import DroneCount, reasons_by_class
from provisioner.usage import MeasuredUse, describe_use

RECENT_TROUBLE_S = 3600.0
"""Time for which the failure of a drone, and an event that nothing ends, counts as a trouble."""
MIN_FAILED_DRONES = 3
"""So many failed drones of one type within :data:`RECENT_TROUBLE_S` are a trouble: one alone may be a bad node."""
MIN_FREE_BYTES = 32 << 20
"""Below this much free space on the store's disk the next writes may fail."""
MAX_NOTICES = 5

EVENT_ENDS = {
    "config.rejected": "config.reloaded",
    "plan.rejected": "plan.accepted",
    "clock.stepped": "clock.caught_up",
    "clock.doubted": "clock.trusted",
}
"""Events that begin a trouble, each with the one that ends it. The start of another controller ends them all."""
LASTING_EVENTS = (*EVENT_ENDS, *EVENT_ENDS.values())
DRONE_EVENTS = frozenset({"drain.rejected", "drain.failed"})
"""Events whose trouble the drone's own record shows, for as long as it lasts."""
_EVENT_WORDS = {
    "config.rejected": "the changed configuration is invalid; the old one stays in force. Run `provisioner check`",
    "plan.rejected": "parts of a plan were refused as inconsistent; report it with `provisioner snapshot`",
    "clock.stepped": "the clock of this host was set; the controller adjusts its times slowly",
    "clock.doubted": "the clock of this host may be wrong: no limit ends a drone and no record is deleted",
    "drone.black_hole": "draining because jobs failed in it one after the other; check its node",
    "slots.not_removed": "the pool still lists slots of dead drones and may match jobs to them",
    "lease.epoch_went_back": "orders of these seconds may be missing on record; their drones are adopted",
    "store.outdated": "the record is older than the drones at the sites, as after a restored backup",
}
STOPPED_ELSEWHERE = "drone.stopped_elsewhere"
_EXPECTED_FAULTS = frozenset({FaultKind.CAPACITY, FaultKind.QUOTA})
"""Faults of a drone type that need nobody: the site has no room."""


class Severity(StrEnum):
    """Weight of a trouble. ``note``: users or sites cause it and the service works; it does not alarm."""

    CRITICAL = "critical"
    WARNING = "warning"
    NOTE = "note"


class OperatorTrouble(NamedTuple):
    """Problem that a person should look at."""

    severity: Severity
    kind: str
    subject: str
    """``overlay``, ``services``, ``controller``, or ``<kind>:<name>`` of a site, type, class or drone."""
    text: str


Troubles = Iterator[OperatorTrouble]


class TroubleContext(NamedTuple):
    now: float
    holder: Holder | None
    views: Views | None
    plan: Plan | None
    breakers: Sequence[Breaker]
    waiting: Sequence[JobClass]
    events: Sequence[Event] = ()
    ended: Sequence[Drone] = ()
    live: Sequence[DroneCount] = ()
    refusing: Sequence[Drone] = ()
    """Live drones whose drain the overlay refused."""
    free_bytes: int | None = None
    """On the store's disk; None: not known."""
    underused: Sequence[MeasuredUse] = ()
    """Job classes that ``policy.low_use`` is about."""
    budgets: Sequence[BudgetUse] = ()
    shadow: bool = False
    controller: str = ""
    """Name of the controller whose record this is."""
    lease: Lease | None = None
    """Lease of the members that share the record; None: a controller on its own."""
    members: Sequence[Member] = ()
    generation: Generation | None = None
    """Generation of the configuration that members decide by."""
    names: ClassNames = ClassNames(None)


TroubleRule = Callable[[TroubleContext], Troubles]


def troubles(facts: TroubleContext) -> list[OperatorTrouble]:
    """Return all troubles, the most severe first."""
    order = list(Severity)
    found = [trouble for rule in TROUBLE_RULES for trouble in rule(facts)]
    return sorted(found, key=lambda t: order.index(t.severity))


_SEVERITY = (
    "critical: the controller cannot act; warning: a part cannot; note: users or sites cause it."
)
TROUBLE_COLUMNS = (
    text(
        "severity",
        _SEVERITY,
        level=0,
        choices=tuple(Severity),
        tint={"critical": "red", "warning": "yellow"},
    ),
    text("kind", "Stable name of the kind of trouble."),
    ident(
        "subject",
        "overlay, services, controller, site:NAME, type:SITE/NAME, class:ID or drone:ID.",
        least=12,
    ),
    words("text", "Problem and remedy.", head="TROUBLE", least=30),
)

_critical = partial(OperatorTrouble, Severity.CRITICAL)
_warning = partial(OperatorTrouble, Severity.WARNING)
_note = partial(OperatorTrouble, Severity.NOTE)


def _controller(facts: TroubleContext) -> Troubles:
    """Yield that no controller runs, or that it makes no progress."""
    if facts.holder is None:
        last = (
            f", the last tick was {formatting.ago(facts.views.at, facts.now)} ago"
            if facts.views
            else ""
        )
        message = f"no controller runs{last}. Start it: until then no drone is started or drained"
        yield _critical("controller-down", "controller", message)
    elif silent_s := _silent_s(facts):
        message = (
            f"no tick recorded for {formatting.age(silent_s)} although the controller runs: the clock of this host "
            "was set, the store cannot be written (disk full?) or the controller hangs. Check its log"
        )
        yield _critical("no-tick", "controller", message)
    if facts.free_bytes is not None and facts.free_bytes < MIN_FREE_BYTES:
        left = f"{facts.free_bytes >> 20} MiB"
        message = f"disk of the store nearly full: {left} free. Free space: the controller acts only if it can record"
        yield _critical("disk-full", "controller", message)


def _members(facts: TroubleContext) -> Troubles:
    """Yield that no member leads, that no other one could, and that the database has lost an epoch."""
    lease = facts.lease
    if lease is None:
        return
    if not lease.is_held:
        left = formatting.age(max(0.0, lease.now - lease.renewed_at))
        message = f"no member leads; the lease of epoch {lease.epoch} was renewed {left} ago"
        yield _critical("leader-missing", "controller", message)
    ready = [each for each in facts.members if each.name != lease.member and each.is_ready(lease)]
    if not ready:
        lacks = [
            f"{each.name} lacks {'; '.join(each.lacks) or 'a sign of life'}"
            for each in facts.members
            if each.name != lease.member
        ]
        why = formatting.excerpt("; ".join(lacks) or "no other member runs")
        yield _warning("standby-blind", "controller", f"no standby could lead at once: {why}")
    seen = max((each.epoch for each in facts.members), default=0)
    if seen > lease.epoch:
        message = f"the database is in epoch {lease.epoch}, a member has seen {seen}: it lost transactions"
        yield _critical("epoch-went-back", "controller", message)


def _silent_s(facts: TroubleContext) -> float:
    """Return for how long the running controller has not recorded a tick; 0 while that is no trouble."""
    if facts.holder is None:
        return 0.0
    limit_s, last = (
        (facts.views.policy.overlay_max_age_s, facts.views.at) if facts.views else (120.0, 0.0)
    )
    silent_s = facts.now - max(facts.holder.since, last)
    return silent_s if silent_s > limit_s else 0.0


class ViewRow(NamedTuple):
    """View of the overlay, of the services or of a site, with its age and its faults."""

    view: str
    age_s: float | None
    """None: there never was a good one."""
    limit_s: float
    fault: Fault | None
    notices: Sequence[str] = ()
    remarks: Sequence[str] = ()

    @property
    def message(self) -> str:
        return self.fault.message if self.fault else "; ".join([*self.notices, *self.remarks])

    @property
    def verdict(self) -> str:
        if self.fault is not None:
            return "failed"
        return "never" if self.age_s is None else "old" if self.age_s > self.limit_s else "fresh"


def view_rows(views: Views | None, now: float) -> list[ViewRow]:
    """Return a row for the overlay, the services if there are any, and each configured site."""
    if views is None:
        return []

    def row(
        name: str, polled: PolledOverlay | PolledServices | PolledSite | None, limit_s: float
    ) -> ViewRow:
        view, fault = (polled.view, polled.fault) if polled else (None, None)
        if view is None:
            return ViewRow(name, None, limit_s, fault)
        return ViewRow(
            name, max(0.0, now - view.taken_at), limit_s, fault, view.notices, view.remarks
        )

    sites = [
        row(f"site:{name}", views.sites.get(name), p.view_max_age_s)
        for name, p in views.policy.sites.items()
    ]
    limit_s = views.policy.overlay_max_age_s
    services = [row("services", views.services, limit_s)] if views.policy.services else []
    return [row("overlay", views.overlay, limit_s), *services, *sorted(sites)]


CREDENTIAL_COLUMNS = (
    ident("used_by", "overlay, site:NAME or web.", least=12),
    text("name", "Option of the configuration that names it.", level=0),
    words("identity", "User or subject; empty: unknown.", least=12),
    items("scopes", "Scopes of a token; empty: unlimited or unknown.", least=12),
    time_at("not_after", "Time at which it expires; null: never.", head="EXPIRES"),
    words("problem", "Why it cannot be used; empty: it can.", least=12),
    words("source", "File or variable that it is read from.", least=20),
)
VIEW_TINTS = {"failed": "red", "never": "red", "old": "yellow", "fresh": ""}
_VERDICT = "fresh; old: past its limit; failed: the newest poll failed; never: no poll succeeded."
VIEW_COLUMNS = (
    ident("view", "overlay, services, or site:<name>.", least=12),
    text("verdict", _VERDICT, head="STATE", choices=tuple(VIEW_TINTS), tint=VIEW_TINTS),
    span_s("age_s", "Age of the newest good view, seconds; null: none.", head="AGE"),
    span_s("limit_s", "Greatest age for decisions, seconds.", head="LIMIT"),
    text("fault", "Kind of fault of the newest poll; null: it succeeded.", "fault.kind", null=True),
    words(
        "message",
        "Error of the poll, or notices about a good view.",
        head="NOTE",
        least=20,
    ),
)


def _views(facts: TroubleContext) -> Troubles:
    """Yield the views that cannot be relied on, what is odd in the others, and the drone types that do not fit."""
    doubtful = facts.holder is not None and not _silent_s(facts)  # else every view is old
    banned = {f"site:{each.scope}": each for each in facts.breakers if each.until > facts.now}
    for row in view_rows(facts.views, facts.now):
        told = row.fault and row.view in banned and banned[row.view].tells_of(row.fault)
        if doubtful and not told and row.verdict != "fresh":
            yield _view_failed(row)
        for kind, trouble, lines in (
            ("balancer" if row.view == "services" else "notice", _warning, row.notices),
            ("remark", _note, row.remarks),
        ):
            for line in lines[:MAX_NOTICES]:
                yield trouble(kind, row.view, formatting.excerpt(line))
            if len(lines) > MAX_NOTICES:
                yield trouble(
                    kind,
                    row.view,
                    f"{len(lines) - MAX_NOTICES} more {kind}s: `provisioner status -o json`",
                )
    for name, polled in sorted(facts.views.sites.items()) if facts.views else ():
        for kind, lack in polled.view.unfit.items() if polled.view else ():
            message = f"can never start there: {formatting.excerpt(lack)}. Change the type in the site's file"
            yield _warning("unfit", f"type:{name}/{kind}", message)


def _view_failed(row: ViewRow) -> OperatorTrouble:
    what, trouble = {
        "overlay": ("pool not visible", _critical),
        "services": ("inference services not visible", _warning),
    }.get(row.view, ("site not listed", _warning))
    age = f", the newest view is {formatting.age(row.age_s)} old" if row.age_s is not None else ""
    why = formatting.excerpt(row.fault.message) if row.fault else "too old for decisions"
    return trouble("view-failed" if row.fault else "view-old", row.view, f"{what}{age}: {why}")


def _credentials(facts: TroubleContext) -> Troubles:
    """Yield the credentials that cannot be used, and those that end soon."""
    for each in facts.views.credentials if facts.views else ():
        dead = each.is_dead(facts.now)
        text_ = descriptions.credential_trouble(each, facts.now)
        if text_:
            kind, trouble = (
                ("credential-unusable", _critical) if dead else ("credential-expires", _warning)
            )
            yield trouble(kind, each.used_by, text_)


def _negotiator_silent(facts: TroubleContext) -> Troubles:
    view = facts.views.overlay.view if facts.views and facts.views.overlay.fault is None else None
    silent_s = view.silent_s(facts.waiting) if view is not None else 0.0
    if silent_s:
        count = sum(c.idle for c in facts.waiting if not c.invalid)
        wait = f"{formatting.count(count, 'job')} {'waits' if count == 1 else 'wait'}"
        advice = "Is the negotiator alive? See `condor_status -negotiator` and its NegotiatorLog"
        message = f"no negotiation cycle for {formatting.age(silent_s)} although {wait}. {advice}"
        yield _critical("no-negotiation", "overlay", message)


def _breakers_not_active(facts: TroubleContext) -> Troubles:
    for breaker in facts.breakers:
        if (
            breaker.scope == OVERLAY_SCOPE
            and breaker.state is BreakerState.ACTIVE
            and breaker.until > facts.now
        ):
            text_ = f"visible again: no drone is started until {formatting.iso(breaker.until)}"
            yield _note("settling", "overlay", text_)
        if breaker.state is BreakerState.ACTIVE or breaker.scope == OVERLAY_SCOPE:  # told as a view
            continue
        fault = breaker.fault
        banned = breaker.state is BreakerState.BANNED
        of_type = bool(breaker.scope.type)
        message = f": {formatting.excerpt(fault.message)}" if fault else ""
        until = f" until {formatting.iso(breaker.until)}" if banned else ""
        if breaker.scope.class_id:  # the type is open to all other jobs
            text_ = (
                f"no drone of {breaker.scope.type_key} is started for this class{until}{message}"
            )
            yield _note("class-backs-off", f"class:{breaker.scope.class_id}", text_)
        elif breaker.scope.user:
            text_ = (
                f"exclusive GPUs only{until}{message}"
                if banned
                else f"failures on shared GPUs{message}"
            )
            yield _note("shared-gpu-faults", str(breaker.scope), text_)
        elif breaker.scope.node:
            site = breaker.scope.site
            node = formatting.sanitize(breaker.scope.node, 80)
            state = f"node {node} {f'avoided{until}' if until else 'watched'}"
            failed = f"jobs failed in {formatting.count(breaker.failures, 'drone')} on it{message}"
            yield _warning(
                "black-hole-node",
                f"site:{site}",
                f"{state}, {failed}. {_after_repair(Scope(site))}",
            )
        elif not (of_type and fault is not None and fault.kind in _EXPECTED_FAULTS):
            why = f" ({fault.kind.value}){message}" if fault else ""
            advice = f". {_after_repair(breaker.scope)}" if banned else ""
            text_ = f"{descriptions.BREAKER_WORDS[breaker.state]}{until}{why.rstrip('.')}{advice}"
            yield _warning(
                breaker.state.value, f"{'type' if of_type else 'site'}:{breaker.scope}", text_
            )


def _after_repair(scope: Scope) -> str:
    site, kind = (formatting.sanitize(part, 80) for part in (scope.site, scope.type))
    return f"After the repair: `provisioner sites reset {site}{f' --type {kind}' if kind else ''}`"


def _stopped_elsewhere(facts: TroubleContext) -> Troubles:
    stopped = [
        e
        for e in facts.events
        if e.name == STOPPED_ELSEWHERE and facts.now - e.at <= RECENT_TROUBLE_S
    ]
    if len(stopped) >= MIN_FAILED_DRONES:
        last = formatting.ago(stopped[-1].at, facts.now)
        message = (
            f"another program stops drones of this controller: {len(stopped)} within an hour, the last {last} "
            "ago. Find a second controller of this name, or ask the site"
        )
        yield _warning("stopped-elsewhere", "controller", message)


def _events(facts: TroubleContext) -> Troubles:
    lasting: dict[str, Event] = {}
    recent: dict[tuple[str, str], Event] = {}
    for event in facts.events:
        lasting = {name: began for name, began in lasting.items() if EVENT_ENDS[name] != event.name}
        failed = (
            event.name.endswith((".rejected", ".failed", "_failed"))
            and event.name not in DRONE_EVENTS
        )
        if event.name in EVENT_ENDS:
            lasting[event.name] = event
        elif failed or event.name in _EVENT_WORDS:
            recent[event.name, str(event.fields.get("drone", ""))] = event
    for event in (*lasting.values(), *recent.values()):
        holds = facts.now - event.at <= RECENT_TROUBLE_S
        if event.name in EVENT_ENDS:  # the start of a controller counts only where clocks agree
            by_this = facts.holder is None or event.at >= facts.holder.since
            holds = by_this or (holds and event.name == "clock.doubted")
        if holds:
            drone = event.fields.get("drone", "")
            fields = "; ".join(str(value) for key, value in event.fields.items() if key != "drone")
            what = f"{_EVENT_WORDS.get(event.name, event.name)} ({formatting.ago(event.at, facts.now)} ago)"
            text_ = f"{what}: {formatting.sanitize(fields, formatting.SHORT_TEXT)}"
            yield _warning(event.name, f"drone:{drone}" if drone else "controller", text_)


def _drones(facts: TroubleContext) -> Troubles:
    for drone in facts.refusing:
        text_ = f"drain refused, jobs still start in it: {formatting.excerpt(drone.drain_refusal)}"
        yield _warning("drain.rejected", f"drone:{drone.id}", text_)
    failed: dict[str, list[Drone]] = {}
    told = {
        str(breaker.scope) for breaker in facts.breakers if breaker.state is not BreakerState.ACTIVE
    }
    for drone in facts.ended:
        if facts.now - drone.ended_at <= RECENT_TROUBLE_S and drone.type not in told:
            failed.setdefault(str(drone.type), []).append(drone)
    for kind, drones in sorted(failed.items()):
        if len(drones) >= MIN_FAILED_DRONES:
            last = max(drones, key=lambda d: d.ended_at)
            why = f", the last: {formatting.excerpt(last.site_reason)}" if last.site_reason else ""
            message = f"{len(drones)} drones failed within an hour{why}. See `provisioner drones show {last.id}`"
            yield _warning("drones-failed", f"type:{kind}", message)


def _refusals(facts: TroubleContext) -> Troubles:
    """Yield what stops the controller from acting, and the classes that can never start."""
    refused: list[Reason] = [r.reason for r in facts.plan.refusals] if facts.plan else []
    for reason in dict.fromkeys(
        r for r in refused if isinstance(r, TooManyUnhealthy | AllVanished)
    ):
        yield _warning(reason.kind, "controller", reason.describe())
    for doubt in dict.fromkeys(r for r in refused if isinstance(r, LiveTwin | OrphansKept)):
        yield _critical(doubt.kind, "controller", doubt.describe())
    for beside in list(dict.fromkeys(r for r in refused if isinstance(r, IdleDroneRefuses)))[
        :MAX_NOTICES
    ]:
        yield _note(
            beside.kind,
            f"drone:{beside.drone}",
            f"jobs wait although it is idle: {beside.describe()}",
        )
    reasons = reasons_by_class(facts.plan)
    hopeless = (Category.CONFIGURATION, Category.NOTHING_FITS)
    never = [
        c.id for c in facts.waiting if any(r.category in hopeless for r in reasons.get(c.id, ()))
    ]
    if never:
        subject = f"class:{never[0]}" if len(never) == 1 else "classes"
        which = named([facts.names.of(class_id) for class_id in never], "; ")
        text_ = f"classes that can never start: {which}. See `provisioner demand`"
        yield _note("hopeless", subject, text_)


def _low_use(facts: TroubleContext) -> Troubles:
    for use in facts.underused[:MAX_NOTICES]:
        yield _note(
            "low-use", "classes", f"{formatting.sanitize(use.name, 80)}: {describe_use(use)}"
        )


def _budgets(facts: TroubleContext) -> Troubles:
    today = datetime.fromtimestamp(facts.now, UTC).date().isoformat()
    for use in facts.budgets:
        budget = use.budget
        if budget.since <= today <= budget.until and use.left_h <= 0:
            message = (
                f"the budget of {budget.gpu_hours:,.0f} GPU-hours until {budget.until} is used up ({use.used_h:,.0f}). "
                f"Starts continue: `provisioner sites disable {budget.site}` ends them"
            )
            yield _warning("budget-used", f"site:{budget.site}", message)


TROUBLE_RULES: Sequence[TroubleRule] = (
    _controller,
    _members,
    _credentials,
    _negotiator_silent,
    _breakers_not_active,
    _stopped_elsewhere,
    _events,
    _drones,
    _refusals,
    _low_use,
    _budgets,
    _views,
)


def title(found: Sequence[OperatorTrouble]) -> str:
    """Return the title of a list of troubles; notes alone need nobody."""
    if not found:
        return "Troubles"
    return f"{'Notes' if all(t.severity is Severity.NOTE for t in found) else 'Troubles'}: {len(found)}"


def check_line(found: Sequence[OperatorTrouble], now_facts: str) -> tuple[int, str]:
    """Return the exit code and the one line of ``status --check``, as monitoring plugins give them."""
    alarms = [t for t in found if t.severity is not Severity.NOTE]
    code = 2 if any(t.severity is Severity.CRITICAL for t in alarms) else 1 if alarms else 0
    word = ("OK", "WARNING", "CRITICAL")[code]
    text_ = "; ".join(f"{t.subject}: {t.text}" for t in alarms) or now_facts
    return code, formatting.sanitize(f"PROVISIONER {word} - {text_}").replace("|", "/")
