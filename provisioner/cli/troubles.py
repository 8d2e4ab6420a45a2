"""Everything on record that a person should look at, one line each: a list of small rules over the facts of `status`.

A rule takes a :class:`TroubleContext` and yields :class:`OperatorTrouble` rows. To have another trouble shown, add a
rule to :data:`TROUBLE_RULES`, or record an event: a name in :data:`LASTING_EVENTS` holds until one of the events that
end it, and any other name that ends in ``.rejected`` or ``.failed`` or ``_failed``, or is in :data:`RECENT_EVENTS`, is
shown for an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from provisioner import formatting
from provisioner.cli import output as out
from provisioner.cli.jobs import reasons_by_class
from provisioner.cli.options import named
from provisioner.formatting import Category
from provisioner.model import Breaker, BreakerState, Drone, DroneState, FaultKind, JobClass, Plan
from provisioner.reasons import AllVanished, Reason, TooManyUnhealthy
from provisioner.store import Event, Holder, Views

NEGOTIATION_TIMEOUT_S = 300.0
"""HTCondor negotiates once a minute by default. Jobs that waited for five without a cycle wait for a person."""
RECENT_TROUBLE_S = 3600.0
"""Time for which the failure of a drone, and an event that nothing ends, counts as a trouble."""
MIN_FAILED_DRONES = 3
"""So many failed drones of one type within :data:`RECENT_TROUBLE_S` are a trouble: one alone may be a bad node."""
MIN_FREE_BYTES = 32 << 20
"""Below this much free space on the store's disk the next writes may fail."""
MAX_NOTICES = 5

LASTING_EVENTS: dict[str, frozenset[str]] = {
    "config.rejected": frozenset({"config.reloaded"}),
    "plan.rejected": frozenset({"plan.accepted"}),
    "clock.stepped": frozenset({"clock.caught_up"}),
    "clock.doubted": frozenset({"clock.trusted"}),
}
"""Events that begin a trouble, each with those that end it. The start of another controller ends them all."""

RECENT_EVENTS = frozenset({"store.outdated", "drone.black_hole", "slots.not_removed"})
DRONE_EVENTS = frozenset({"drain.rejected", "drain.failed"})
"""Events whose trouble the drone's own record shows, for as long as it lasts."""

_EVENT_WORDS = {
    "config.rejected": "the changed configuration was refused and the old one is in force; run `provisioner check`",
    "plan.rejected": "parts of a plan were refused as inconsistent and not carried out; report it with "
    "`provisioner snapshot`",
    "clock.stepped": "the clock of this host was set; times are adjusted slowly",
    "drain.failed": "a drain was not answered; if the drone goes on taking jobs it is asked again",
    "clock.doubted": "the clock of this host is doubted: no limit ends a drone and nothing is forgotten",
    "drone.black_hole": "drained, as jobs failed in it one after the other; look at its node",
    "slots.not_removed": "the pool keeps the slots of drones that died and may match jobs to them",
    "store.outdated": "the record is older than what runs, as after a restored backup",
}
_EXPECTED_FAULTS = frozenset({FaultKind.CAPACITY, FaultKind.QUOTA})
"""Faults of a drone type that need nobody: the site has no room."""


class Severity(StrEnum):
    """Weight of a trouble. ``note``: users or sites cause it and the service works; it does not alarm."""

    CRITICAL = "critical"
    WARNING = "warning"
    NOTE = "note"


SEVERITY_TINTS = {Severity.CRITICAL: "red", Severity.WARNING: "yellow"}


class OperatorTrouble(NamedTuple):
    """Problem that a person should look at."""

    severity: Severity
    kind: str
    """Stable name, for programs."""
    subject: str
    """``overlay``, ``site:<name>``, ``type:<site/name>``, ``class:<id>``, ``drone:<id>`` or ``controller``."""
    text: str


class TroubleContext(NamedTuple):
    """Facts that the rules need."""

    now: float
    holder: Holder | None
    views: Views | None
    plan: Plan | None
    breakers: Sequence[Breaker]
    waiting: Sequence[JobClass]
    events: Sequence[Event] = ()
    """Oldest first."""
    ended: Sequence[Drone] = ()
    """Drones that ended of late."""
    live: Sequence[Drone] = ()
    free_bytes: int | None = None
    """On the store's disk; None: not known."""


TroubleRule = Callable[[TroubleContext], Iterator[OperatorTrouble]]


def troubles(facts: TroubleContext) -> list[OperatorTrouble]:
    """Return all troubles, the most severe first."""
    order = list(Severity)
    found = [trouble for rule in TROUBLE_RULES for trouble in rule(facts)]
    return sorted(found, key=lambda t: order.index(t.severity))


def trouble_columns() -> tuple[out.Column, ...]:
    """Return the columns of troubles."""
    severity_doc = "critical: nothing is done; warning: something is not done; note: users or sites cause it."
    subject_doc = "overlay, controller, site:NAME, type:SITE/NAME, class:ID or drone:ID."
    return (
        out.text("severity", severity_doc, level=0, choices=tuple(Severity), tint=SEVERITY_TINTS),
        out.text("kind", "Stable name of the kind of trouble."),
        out.ident("subject", subject_doc, least=12),
        out.words("text", "What is wrong, and what to do.", head="TROUBLE", least=30),
    )


# --------------------------------------------------------------------------------------------------------------- rules


def _controller_down(facts: TroubleContext) -> Iterator[OperatorTrouble]:
    if facts.holder is None:
        last = f", the last tick was {formatting.ago(facts.views.at, facts.now)} ago" if facts.views else ""
        message = f"no controller runs{last}. Start it: nothing is started or drained meanwhile"
        yield _critical("controller-down", "controller", message)


def _no_tick(facts: TroubleContext) -> Iterator[OperatorTrouble]:
    if facts.holder is None:
        return
    limit_s = facts.views.policy.overlay_max_age_s if facts.views else 120.0
    last = max(facts.holder.since, facts.views.at if facts.views else 0.0)
    if facts.now - last > limit_s:
        message = (
            f"no tick recorded for {formatting.age(facts.now - last)} although the controller runs: the store cannot "
            "be written (disk full?) or the controller hangs. Look at its log"
        )
        yield _critical("no-tick", "controller", message)


def _disk_full(facts: TroubleContext) -> Iterator[OperatorTrouble]:
    if facts.free_bytes is not None and facts.free_bytes < MIN_FREE_BYTES:
        left = f"{facts.free_bytes >> 20} MiB"
        message = f"disk of the store nearly full: {left} left. Make room: nothing is done that cannot be recorded"
        yield _critical("disk-full", "controller", message)


def _views_in_doubt(facts: TroubleContext) -> Iterator[OperatorTrouble]:
    if facts.views is None or any(_no_tick(facts)) or facts.holder is None:
        return  # then every view is old
    overlay = facts.views.overlay
    age = f", the newest is {formatting.ago(overlay.view.taken_at, facts.now)} old" if overlay.view else ""
    if overlay.fault is not None:
        yield _critical("view-failed", "overlay", f"pool not visible{age}: {formatting.excerpt(overlay.fault.message)}")
    elif overlay.view is None or facts.now - overlay.view.taken_at > facts.views.policy.overlay_max_age_s:
        yield _critical("view-old", "overlay", f"pool not seen lately{age}: nothing is decided on so old a view")
    for name, policy in sorted(facts.views.policy.sites.items()):
        reading = facts.views.sites.get(name)
        view, fault = (reading.view, reading.fault) if reading else (None, None)
        age = f", the newest view is {formatting.ago(view.taken_at, facts.now)} old" if view else ""
        if fault is not None:
            message = f"site cannot be listed{age}: {formatting.excerpt(fault.message)}"
            yield _warning("view-failed", f"site:{name}", message)
        elif view is None or facts.now - view.taken_at > policy.view_max_age_s:
            yield _warning("view-old", f"site:{name}", f"site not seen lately{age}: nothing starts or stops there")


def _types_unfit(facts: TroubleContext) -> Iterator[OperatorTrouble]:
    for name, reading in sorted(facts.views.sites.items()) if facts.views else ():
        for kind, lack in reading.view.unfit.items() if reading.view else ():
            message = f"can never start there: {formatting.excerpt(lack)}. Change the type in the site's file"
            yield _warning("unfit", f"type:{name}/{kind}", message)


def _notices(facts: TroubleContext) -> Iterator[OperatorTrouble]:
    if facts.views is None:
        return
    sites = ((f"site:{name}", reading.view) for name, reading in sorted(facts.views.sites.items()))
    for subject, view in (("overlay", facts.views.overlay.view), *sites):
        notices, remarks = (view.notices, view.remarks) if view else ((), ())
        for kind, severity, lines in (("notice", Severity.WARNING, notices), ("remark", Severity.NOTE, remarks)):
            more = len(lines) - MAX_NOTICES
            shown = [formatting.excerpt(line) for line in lines[:MAX_NOTICES]]
            shown += [f"{more} more {kind}s: `provisioner status -o json`"] if more > 0 else []
            for line in shown:
                yield OperatorTrouble(severity, kind, subject, line)


def _negotiator_silent(facts: TroubleContext) -> Iterator[OperatorTrouble]:
    view = facts.views.overlay.view if facts.views else None
    jobs = [c for c in facts.waiting if not c.invalid]
    if view is None or not jobs or facts.views is None or facts.views.overlay.fault is not None:
        return
    count = sum(c.waiting + c.fresh for c in jobs)
    wait = f"{formatting.count(count, 'job')} {'waits' if count == 1 else 'wait'}"
    silent_s = view.taken_at - view.negotiated_at
    advice = "Is the negotiator alive? See `condor_status -negotiator` and its NegotiatorLog"
    if view.negotiated_at and silent_s > NEGOTIATION_TIMEOUT_S:
        silence = f"no negotiation cycle for {formatting.age(silent_s)} although {wait}"
        yield _critical("no-negotiation", "overlay", f"{silence}. {advice}")
    elif not view.negotiated_at and any(
        c.fresh and c.waits_since and view.taken_at - c.waits_since > NEGOTIATION_TIMEOUT_S for c in jobs
    ):
        yield _critical("no-negotiation", "overlay", f"no negotiation cycle known although {wait}. {advice}")


def _breakers_not_active(facts: TroubleContext) -> Iterator[OperatorTrouble]:
    for breaker in facts.breakers:
        if breaker.state is BreakerState.ACTIVE or breaker.scope == "overlay":  # told as a view
            continue
        fault, banned = breaker.fault, breaker.state is BreakerState.BANNED
        message = f": {formatting.excerpt(fault.message)}" if fault else ""
        until = f" until {formatting.iso(breaker.until)}" if banned else ""
        if breaker.class_id:  # the type is open to all other jobs
            text_ = f"no drone of {breaker.scope.partition('#')[0]} is started for it{until}{message}"
            yield OperatorTrouble(Severity.NOTE, "class-backs-off", f"class:{breaker.class_id}", text_)
        elif breaker.node:
            site, _, node = breaker.scope.partition("@")
            drones = formatting.count(breaker.failures, "drone")
            state = f"node {formatting.sanitize(node, 80)} {f'avoided{until}' if until else 'watched'}"
            text_ = f"{state}, {drones} on it ate jobs{message}. After the repair: `{_reset(site)}`"
            yield _warning("black-hole-node", f"site:{site}", text_)
        else:
            of_type = "/" in breaker.scope
            if of_type and fault is not None and fault.kind in _EXPECTED_FAULTS:
                continue
            why = f" ({fault.kind.value}){message}" if fault else ""
            advice = f". After the repair: `{_reset(breaker.scope)}`" if banned else ""
            subject = f"{'type' if of_type else 'site'}:{breaker.scope}"
            yield _warning(
                breaker.state.value, subject, f"{formatting.BREAKER_WORDS[breaker.state]}{until}{why}{advice}"
            )


def _reset(scope: str) -> str:
    site, _, kind = scope.partition("/")
    of_type = f" --type {formatting.sanitize(kind, 80)}" if kind else ""
    return f"provisioner sites reset {formatting.sanitize(site, 80)}{of_type}"


def _events_lasting(facts: TroubleContext) -> Iterator[OperatorTrouble]:
    began: dict[str, Event] = {}
    for event in facts.events:
        if event.name in LASTING_EVENTS:
            began[event.name] = event
        for name, ends in LASTING_EVENTS.items():
            if event.name in ends:
                began.pop(name, None)
    for event in began.values():
        recent = facts.now - event.at <= RECENT_TROUBLE_S  # the start of a controller counts only where clocks agree
        if facts.holder is None or event.at >= facts.holder.since or (recent and event.name == "clock.doubted"):
            yield _warning(event.name, "controller", _of_event(event, facts.now))


def _events_recent(facts: TroubleContext) -> Iterator[OperatorTrouble]:
    newest: dict[tuple[str, str], Event] = {}
    for event in facts.events:
        shown = event.name.endswith((".rejected", ".failed", "_failed")) or event.name in RECENT_EVENTS
        if shown and event.name not in LASTING_EVENTS and event.name not in DRONE_EVENTS:
            newest[event.name, str(event.fields.get("drone", ""))] = event
    for (name, drone), event in newest.items():
        if facts.now - event.at <= RECENT_TROUBLE_S:
            yield _warning(name, f"drone:{drone}" if drone else "controller", _of_event(event, facts.now))


def _of_event(event: Event, now: float) -> str:
    fields = "; ".join(str(v) for k, v in event.fields.items() if k != "drone")
    what = f"{_EVENT_WORDS.get(event.name, event.name)} ({formatting.ago(event.at, now)} ago)"
    return f"{what}: {formatting.sanitize(fields, formatting.SHORT_TEXT)}"


def _drains_refused(facts: TroubleContext) -> Iterator[OperatorTrouble]:
    for drone in facts.live:
        if drone.drain_refusal:
            text_ = f"drain refused, it goes on taking jobs: {formatting.excerpt(drone.drain_refusal)}"
            yield _warning("drain.rejected", f"drone:{drone.id}", text_)


def _drones_failed(facts: TroubleContext) -> Iterator[OperatorTrouble]:
    failed: dict[str, list[Drone]] = {}
    for drone in facts.ended:
        recent = facts.now - drone.ended_at <= RECENT_TROUBLE_S
        if recent and drone.state in (DroneState.FAILED, DroneState.JOIN_TIMEOUT):
            failed.setdefault(str(drone.type), []).append(drone)
    for kind, drones in sorted(failed.items()):
        if len(drones) >= MIN_FAILED_DRONES:
            last = max(drones, key=lambda d: d.ended_at)
            why = f", the last: {formatting.excerpt(last.site_reason)}" if last.site_reason else ""
            message = f"{len(drones)} drones failed within an hour{why}. See `provisioner drones show {last.id}`"
            yield _warning("drones-failed", f"type:{kind}", message)


def _brakes(facts: TroubleContext) -> Iterator[OperatorTrouble]:
    refused: list[Reason] = [r.reason for r in facts.plan.refusals] if facts.plan else []
    for reason in dict.fromkeys(r for r in refused if isinstance(r, TooManyUnhealthy | AllVanished)):
        yield _warning(reason.kind, "controller", formatting.describe(reason))


def _hopeless_classes(facts: TroubleContext) -> Iterator[OperatorTrouble]:
    reasons, hopeless = reasons_by_class(facts.plan), (Category.CONFIGURATION, Category.NOTHING_FITS)
    never = [c.id for c in facts.waiting if any(formatting.category(r) in hopeless for r in reasons.get(c.id, ()))]
    if never:
        message = f"classes that can never start: {named(never)}. See `provisioner demand`"
        subject = f"class:{never[0]}" if len(never) == 1 else "classes"
        yield OperatorTrouble(Severity.NOTE, "hopeless", subject, message)


def _critical(kind: str, subject: str, text_: str) -> OperatorTrouble:
    return OperatorTrouble(Severity.CRITICAL, kind, subject, text_)


def _warning(kind: str, subject: str, text_: str) -> OperatorTrouble:
    return OperatorTrouble(Severity.WARNING, kind, subject, text_)


TROUBLE_RULES: tuple[TroubleRule, ...] = (
    _controller_down,
    _no_tick,
    _disk_full,
    _views_in_doubt,
    _negotiator_silent,
    _breakers_not_active,
    _events_lasting,
    _events_recent,
    _drains_refused,
    _drones_failed,
    _types_unfit,
    _brakes,
    _notices,
    _hopeless_classes,
)


# ------------------------------------------------------------------------------------------------ for Nagios and Icinga


def check_line(found: Sequence[OperatorTrouble], now_facts: str) -> tuple[int, str]:
    """Return the exit code and the one line of ``status --check``, as monitoring plugins give them."""
    alarms = [t for t in found if t.severity is not Severity.NOTE]
    code = 2 if any(t.severity is Severity.CRITICAL for t in alarms) else 1 if alarms else 0
    word = ("OK", "WARNING", "CRITICAL")[code]
    text_ = "; ".join(f"{t.subject}: {t.text}" for t in alarms) or now_facts
    return code, formatting.sanitize(f"PROVISIONER {word} - {text_}").replace("|", "/")
