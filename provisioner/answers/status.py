"""Status of the controller: one screen of the whole."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from provisioner import formatting
from provisioner.answers import troubles
from provisioner.answers.accounting import budget_uses
from provisioner.answers.columns import (
    Column,
    Document,
    Listing,
    ago,
    flag,
    gpus,
    ident,
    now,
    shown_as,
    span_s,
    text,
    time_at,
    whole,
    words,
)
from provisioner.answers.demand import CLASS_COLUMNS, ClassRow, class_rows
from provisioner.answers.errors import UnmetError
from provisioner.answers.events import EVENT_COLUMNS, of_event
from provisioner.answers.lookup import class_names, newest_plan
from provisioner.answers.plan import plan_summary
from provisioner.answers.query import Query, question
from provisioner.answers.sites import SITE_COLUMNS, SiteRow, site_rows
from provisioner.answers.usage import RecordedUse, underused, use_fact, with_use
from provisioner.model import DroneState
from provisioner.store.lease import Member
from provisioner.store.measures import reasons_by_class
from provisioner.store.reader import Reader
from provisioner.usage import UsageReport, class_name

STATUS_SCHEMA = "provisioner.status/1"
MAX_EVENTS_SHOWN = 5
MAX_SHOWN = 10
_SITE_COLUMNS = ("site", "breaker", "drones", "max_drones", "gpu_milli", "states", "owner", "note")
_DEMAND_KEYS = ("id", "waiting", "running", "drones", "oldest_s", "why")


@question("status", "/status", lambda: [_sample_screen()])
def status(reader: Reader, query: Query) -> Document:
    """Show a summary: views, drones, demand, troubles.

    Shows the controller, each trouble in one line, the age of each view, sites with breakers and drones, waiting jobs
    with the reason, and the last events. The exit code is 0; with --check it is that of the worst trouble.

    \b
    Examples:
      provisioner status --watch --interval 5
      provisioner status -o json | jq '.views[] | select(.verdict != "fresh")'
    """
    facts = facts_of(reader)
    use = RecordedUse(reader, facts.views)
    sites = site_rows(reader, facts.views, facts.live)
    largest = facts.waiting[:MAX_SHOWN]
    if not query.output.for_people:
        largest = reader.with_refusals(largest)
    started = reader.live_by_class([job.id for job in largest])
    reasons = reasons_by_class(facts.plan)
    classes = class_rows(facts.views, reasons, started, facts.names, largest)
    return _screen(facts, sites, classes, use.by("site"), use.by("class"))


def _sample_screen() -> Document:
    no_use = UsageReport(0.0, 0.0)
    return _screen(troubles.TroubleContext(0.0, None, None, None, (), ()), (), (), no_use, no_use)


def _screen(
    facts: troubles.TroubleContext,
    sites: Sequence[SiteRow],
    shown_classes: Sequence[ClassRow],
    site_use: UsageReport,
    class_use: UsageReport,
) -> Document:
    views = facts.views
    waiting = facts.waiting
    found = troubles.troubles(facts)
    recent = [of_event(event) for event in facts.events[-MAX_EVENTS_SHOWN:]]
    idle = formatting.count(sum(c.idle for c in waiting), "job")
    scope = "no trouble on record"
    if found:
        nouns = {troubles.Severity.CRITICAL: "critical trouble"}
        severities = Counter(trouble.severity for trouble in found)
        numbers = ", ".join(
            formatting.count(number, nouns.get(each, each.value))
            for each, number in severities.items()
        )
        scope = f"{numbers}: {facts.names.in_key(found[0].subject)}: {found[0].text}"
    trouble_columns = shown_as(
        troubles.TROUBLE_COLUMNS, "subject", lambda trouble: facts.names.in_key(trouble.subject)
    )
    more = f", the largest {MAX_SHOWN} of {len(waiting)}" if len(waiting) > MAX_SHOWN else ""
    classes = formatting.count(len(waiting), "class", "classes")

    site_columns = with_use(SITE_COLUMNS, site_use, lambda row: row.name)
    class_columns = with_use(CLASS_COLUMNS, class_use, lambda row: class_name(row.job))

    def part(title: str, columns: Sequence[Column], rows: Sequence[Any], *keys: str) -> Listing:
        """Return a part; with ``keys`` people see only these columns."""
        shown = [replace(c, level=0 if c.key in keys else 2) for c in columns] if keys else columns
        return Listing("", shown, rows, title=title)

    return Document(
        STATUS_SCHEMA,
        (*STATUS_FACTS, use_fact(site_use)),
        facts,
        {
            "troubles": part(troubles.title(found), trouble_columns, found),
            "members": part("Members", MEMBER_COLUMNS, member_rows(facts)),
            "views": part("Views", troubles.VIEW_COLUMNS, troubles.view_rows(views, now())),
            "credentials": part(
                "Credentials", troubles.CREDENTIAL_COLUMNS, views.credentials if views else ()
            ),
            "sites": part("Sites", site_columns, sites, *_SITE_COLUMNS),
            "demand": part(
                f"Waiting: {idle} in {classes}{more}", class_columns, shown_classes, *_DEMAND_KEYS
            ),
            "events": part(
                "Last events of the controller", EVENT_COLUMNS, recent, "at", "name", "text"
            ),
        },
        scope=scope,
    )


def trouble_kinds(reader: Reader) -> list[tuple[str, str]]:
    """Return severity and kind of each trouble on record."""
    return [(each.severity.value, each.kind) for each in troubles.troubles(facts_of(reader))]


def facts_of(reader: Reader) -> troubles.TroubleContext:
    """Return the facts that the rules of troubles need, and the screen."""
    views = reader.views()
    holder = reader.holder()
    at = now()
    # since then by this host's clock, which may have been set before or after that
    if holder is not None:
        holder = replace(holder, since=min(holder.since, holder.since - (time.time() - at)))
    classes = views.overlay.view.classes if views and views.overlay.view else ()
    live = reader.live_counts()
    plan = newest_plan(reader)
    refusing = any(each.refusing for each in live)
    lease, members = reader.lease()
    return troubles.TroubleContext(
        at,
        holder,
        views,
        plan,
        list(reader.breakers().values()),
        sorted((c for c in classes if c.idle), key=lambda c: -c.idle),
        reader.recent_events(
            at - troubles.RECENT_TROUBLE_S, troubles.LASTING_EVENTS, MAX_EVENTS_SHOWN
        ),
        reader.drones(ended=True, states=[DroneState.FAILED, DroneState.JOIN_TIMEOUT], limit=50),
        live,
        reader.drones(having="drain_refusal") if refusing else (),
        reader.database.size()[1],
        underused(reader, views),
        budget_uses(reader, views.policy.accounting) if views else (),
        reader.is_shadow(),
        controller=reader.controller(),
        lease=lease if members else None,
        members=members,
        generation=reader.generation() if members else None,
        names=class_names(reader, views),
    )


def _holder_words(facts: troubles.TroubleContext) -> str:
    name = f"{facts.controller}: " if facts.live else ""
    if (holder := facts.holder) is None:
        return f"{name}not running; what follows is as last recorded"
    shadow = "; a shadow, it starts nothing" if facts.shadow else ""
    return f"{name}runs as process {holder.pid} on {holder.host} for {ago(holder.since)}{shadow}"


def _leader_words(facts: troubles.TroubleContext) -> str:
    if facts.lease is None:
        return ""
    renewed = formatting.age(max(0.0, facts.lease.now - facts.lease.renewed_at))
    who = facts.lease.member if facts.lease.is_held else "none"
    return f"{who}, epoch {facts.lease.epoch}, lease renewed {renewed} ago"


def _generation_words(facts: troubles.TroubleContext) -> str:
    if (found := facts.generation) is None or facts.lease is None:
        return ""
    age = formatting.age(max(0.0, facts.lease.now - found.at))
    return f"generation {found.generation}, proposed by {found.proposed_by} {age} ago"


class MemberRow(NamedTuple):
    """Member that shares the record, with its state."""

    name: str
    state: str
    age_s: float
    lacks: str


def member_rows(facts: troubles.TroubleContext) -> list[MemberRow]:
    """Return a row for each member."""
    lease = facts.lease
    if lease is None:
        return []

    def state(member: Member) -> str:
        if member.name == lease.member and lease.is_held:
            return "leads"
        if not member.is_alive(lease):
            return "silent"
        return "ready" if member.is_ready(lease) else "blind"

    return [
        MemberRow(each.name, state(each), lease.now - each.seen_at, _lacks(each))
        for each in facts.members
    ]


_STATE = "leads; ready: it could lead at once; blind: it lacks views; silent: no sign of life for a minute."
MEMBER_COLUMNS = (
    ident("name", "Host and process.", head="MEMBER", least=12),
    text("state", _STATE, choices=("leads", "ready", "blind", "silent")),
    span_s("age_s", "Time since its last sign of life, seconds.", head="SEEN"),
    words("lacks", "What it lacks, with the reason: views, files in force.", least=20),
)


def resignation(reader: Reader) -> str:
    """Return the request that the leader hands over, in words. Raises :class:`UnmetError` without a ready standby."""
    lease, members = reader.lease()
    if not lease.is_held:
        raise UnmetError("no member leads: `ha` is not configured, or all members are down")
    ready = [each.name for each in members if each.name != lease.member and each.is_ready(lease)]
    if not ready:
        raise UnmetError("no standby is ready to lead: see `provisioner status`")
    return f"hand over from {lease.member} to {' or '.join(ready)}"


def _lacks(member: Member) -> str:
    unpolled = [f"{site}: only the leader polls it" for site in member.unpolled]
    return "; ".join(filter(None, [*member.lacks, *unpolled, member.files]))


def _tick_words(facts: troubles.TroubleContext) -> str:
    if facts.views is None:
        return "none yet"
    did = f"; last plan: {plan_summary(facts.plan)}" if facts.plan else ""
    return f"{facts.views.tick}, {ago(facts.views.at)} ago{did}"


STATUS_FACTS = (
    text("controller", "Name.", "controller"),
    text(
        "leader",
        "Member that leads; null: none, or a controller on its own.",
        lambda facts: facts.lease.member if facts.lease and facts.lease.is_held else None,
        null=True,
        head="leader",
        show=_leader_words,
    ),
    whole("epoch", "Epoch of the lease; null: a controller on its own.", "lease.epoch", null=True),
    span_s(
        "lease_age_s",
        "Time since the lease was renewed, seconds; null: a controller on its own.",
        lambda facts: facts.lease.now - facts.lease.renewed_at if facts.lease else None,
    ),
    whole(
        "generation",
        "Generation of the configuration in force; null: a controller on its own.",
        "generation.generation",
        null=True,
        head="configuration",
        show=_generation_words,
    ),
    flag(
        "running",
        "Whether a controller runs.",
        lambda facts: facts.holder is not None,
        head="controller",
        show=_holder_words,
    ),
    flag("shadow", "Whether it runs in shadow mode."),
    whole("pid", "Its process; null: none runs.", "holder.pid", null=True),
    text("host", "Its host; null: none runs.", "holder.host", null=True),
    time_at("running_since_at", "Since when it runs.", "holder.since"),
    whole(
        "tick",
        "The newest; null: none yet.",
        "views.tick",
        null=True,
        head="newest tick",
        show=_tick_words,
    ),
    time_at("tick_at", "When it was.", "views.at"),
    whole(
        "live_drones",
        "Drones not confirmed gone.",
        lambda facts: sum(each.drones for each in facts.live),
        head="drones",
    ),
    whole(
        "max_drones",
        "Limit on them; null: unknown.",
        "views.policy.max_drones",
        null=True,
        head="limit of drones",
    ),
    gpus(
        "gpu_milli",
        "Thousandths of GPUs in them.",
        lambda facts: sum(each.gpu_milli for each in facts.live),
        head="gpus",
    ),
    whole("max_gpu_milli", "Limit on those; null: none.", "views.policy.max_gpu_milli", null=True),
)
