"""``provisioner status`` and ``events``: one screen of the whole, and what happened."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from provisioner import formatting
from provisioner.cli.drones import controller_of
from provisioner.cli.jobs import class_columns, class_rows, newest_plan
from provisioner.cli.options import (
    Exit,
    Format,
    Pick,
    Show,
    VerbError,
    Where,
    complete_drones,
    find_drone,
    open_record,
    parse_age,
    shared,
    verb_error,
)
from provisioner.cli.output import (
    Column,
    Document,
    Listing,
    Page,
    age_s,
    data,
    dumps,
    flag,
    number,
    picked,
    present,
    reason_data,
    shorten,
    span_s,
    text,
    time_at,
    whole,
    words,
)
from provisioner.cli.plan import plan_summary
from provisioner.cli.sites import DAY_S, site_columns, site_rows
from provisioner.cli.troubles import OperatorTrouble, Severity, TroubleContext, check_line, trouble_columns, troubles
from provisioner.model import Breaker, Drone, DroneState, Fault, JobClass, Plan, PolledOverlay, PolledSite
from provisioner.reasons import LimitReached
from provisioner.store import Event, Holder, Transition, Views
from provisioner.store.reader import Reader

EVENTS_SCHEMA = "provisioner.events/1"
EVENTS_PER_READ = 1000


@dataclass(frozen=True, slots=True)
class Happening:
    """Step of a drone, or event of the controller."""

    at: float
    step: Transition | None
    event: Event | None

    @property
    def kind(self) -> str:
        return "step" if self.step else "event"

    @property
    def name(self) -> str:
        return self.step.state.value if self.step else self.event.name if self.event else ""

    @property
    def text(self) -> str:
        if self.step is not None:
            return formatting.describe(self.step.reason)
        fields = self.event.fields if self.event else {}
        return ", ".join(f"{key} {value}" for key, value in fields.items())


def event_columns() -> tuple[Column, ...]:
    """Return the columns of steps and events."""
    return (
        time_at("at", "When.", level=0),
        text("kind", "step of a drone, or event.", level=1, choices=("step", "event")),
        text("name", "The state that was entered, or the event's name.", level=0, least=20),
        text("drone", "The drone; empty for events.", "step.drone_id", level=0, least=16, tail=True),
        words("text", "Why or what, in words.", head="WHY", least=24),
        text("was", "State before.", "step.was", null=True),
        data("reason", "Why, as data; null for events.", "step.reason", convert=reason_data, null=True),
        data("fields", "Of an event.", "event.fields", null=True),
        whole("tick", "Number of the tick; null for events.", "step.tick", null=True, level=1),
    )


@shared
def events(
    where: Where,
    show: Show,
    pick: Pick,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes; jsonl for programs.")] = False,
    since: Annotated[
        str, typer.Option("--since", metavar="AGE", help="Go back this far: 30m, 4h, 2d; all for everything.")
    ] = "1h",
    drone: Annotated[
        str | None,
        typer.Option("--drone", metavar="ID", help="Only of this drone, by any id.", autocompletion=complete_drones),
    ] = None,
) -> None:
    """Tell what happened.

    Every step of every drone with its reason, and the events of the controller.

    \b
    Examples:
      provisioner events --since 4h
      provisioner events --follow
      provisioner events --follow -o jsonl | jq 'select(.name == "failed")'
    """
    reader = open_record(where)
    start = 0.0 if since == "all" else time.time() - parse_age(since)
    only = find_drone(reader, drone) if drone else ""
    if not follow:
        present(show, lambda: picked(_event_listing(reader, start, since, only), pick))
        return
    if show.output not in (Format.TABLE, Format.WIDE, Format.JSONL, Format.JSON, Format.NAME):
        raise VerbError(f"--follow gives table, wide, name or jsonl, not {show.output.value}", code=Exit.USAGE)
    _follow_events(reader, show, start, only)


def _event_listing(reader: Reader, start: float, since: str, only: str) -> Listing:
    steps, events = list(_transitions(reader, start, 0)), all_events(reader)
    found = _happenings([t for _, t in steps], events, start, only)
    back = "everything on record" if since == "all" else f"of the last {since}; --since for more"
    whose = f" of drone {only}" if only else ""
    scope = f"{formatting.count(len(found), 'entry', 'entries')}{whose}, {back}"
    return Listing(EVENTS_SCHEMA, event_columns(), found, lambda h: h.name, scope)


def _happenings(steps: Sequence[Transition], events: Sequence[Event], start: float, only: str) -> list[Happening]:
    """Return steps and events by time; with ``only`` the steps of that drone."""
    found = [Happening(t.at, t, None) for t in steps if only in ("", t.drone_id)]
    found += [Happening(e.at, None, e) for e in events if e.at >= start and not only]
    return sorted(found, key=lambda h: h.at)


def _transitions(reader: Reader, since: float, after: int) -> Iterator[tuple[int, Transition]]:
    while True:
        page = reader.transitions(since=since, after=after, limit=EVENTS_PER_READ)
        yield from page
        if len(page) < EVENTS_PER_READ:
            return
        after = page[-1][0]


def all_events(reader: Reader, after: int = 0) -> list[Event]:
    """Return every event on record from ``after`` on, oldest first."""
    found: list[Event] = []
    while True:
        page = reader.events(after=found[-1].id if found else after, limit=EVENTS_PER_READ)
        found += page
        if len(page) < EVENTS_PER_READ:
            return found


def _follow_events(reader: Reader, show: Show, start: float, only: str) -> None:
    page = Page.of(show)
    step, event = 0, 0
    while True:
        steps, events = list(_transitions(reader, start, step)), all_events(reader, event)
        step, event = steps[-1][0] if steps else step, events[-1].id if events else event
        _write_stream(_happenings([t for _, t in steps], events, start, only), show, page)
        time.sleep(show.interval)


def _write_stream(found: list[Happening], show: Show, page: Page) -> None:
    """Write one complete line per entry: a stream has no column widths."""
    rows = Listing("", event_columns(), found, str).plain()
    for happening, row in zip(found, rows, strict=True):
        match show.output:
            case Format.TABLE | Format.WIDE:
                drone = f"{happening.step.drone_id} " if happening.step else ""
                line = formatting.sanitize(f"{formatting.iso(happening.at)}  {drone}{happening.name}: {happening.text}")
                print(line if page.width is None else shorten(line, page.width))
            case Format.NAME:
                print(formatting.sanitize(happening.name))
            case _:
                print(dumps(row))
    sys.stdout.flush()


STATUS_SCHEMA = "provisioner.status/1"
MAX_EVENTS_SHOWN = 5
CHECK_UNKNOWN = 3
"""Exit code of ``--check`` for what cannot be found out, as monitoring plugins give it."""
MAX_CLASSES_SHOWN = 10
_SITE_COLUMNS = ("site", "breaker", "drones", "max_drones", "gpu_milli", "owner", "taken_back", "note")
_DEMAND_COLUMNS = ("id", "waiting", "running", "drones", "oldest_s", "why")

LIVE_STATES = tuple(s for s in DroneState if not s.ended)


@dataclass(frozen=True, slots=True)
class StatusRow:
    """Facts of the whole."""

    holder: Holder | None
    controller: str
    views: Views | None
    plan: Plan | None
    live: Sequence[Drone]


@dataclass(frozen=True, slots=True)
class ViewRow:
    """View with its age and its faults."""

    view: str
    taken_at: float
    limit_s: float
    fault: Fault | None
    now: float
    notices: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        return self.fault.message if self.fault else "; ".join(self.notices)

    @property
    def age_s(self) -> float | None:
        return max(0.0, self.now - self.taken_at) if self.taken_at else None

    @property
    def verdict(self) -> str:
        if self.fault is not None:
            return "failed"
        if self.age_s is None:
            return "never"
        return "old" if self.age_s > self.limit_s else "fresh"


@dataclass(frozen=True, slots=True)
class SiteStates:
    """Live drones of one site (or of all) by state."""

    site: str
    counts: Mapping[DroneState, int]


@shared
def status(
    where: Where,
    show: Show,
    check: Annotated[
        bool,
        typer.Option("--check", help="One line for Nagios or Icinga; exit 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN."),
    ] = False,
) -> None:
    """Show the whole on one screen.

    Who runs, every trouble in one line, how old each view is, sites and breakers, drones by state, what waits and why,
    limits, last events of the controller. The exit code is 0 whatever is shown; with --check it tells the worst.

    \b
    Examples:
      provisioner status
      provisioner status --watch --interval 5
      provisioner status --check
      provisioner status -o json | jq '.views[] | select(.verdict != "fresh")'
    """
    if check:
        raise typer.Exit(_run_check(where))
    reader = open_record(where)
    present(show, lambda: status_document(reader, time.time()))


def _run_check(where: Where) -> int:
    """Print the line of ``--check`` and return its exit code. A record that cannot be read is UNKNOWN."""
    try:
        reader, now = open_record(where), time.time()
        views, plan, live = reader.views(), newest_plan(reader), reader.drones()
        facts = facts_of(reader, views, plan, list(reader.breakers().values()), live, now)
    except Exception as error:
        failure = verb_error(error)
        if failure is None:
            raise
        print(formatting.sanitize(f"PROVISIONER UNKNOWN - {'; '.join(failure.lines)}").replace("|", "/"))
        return CHECK_UNKNOWN
    idle = sum(c.waiting + c.fresh for c in facts.waiting)
    last_tick = formatting.ago(views.at, now) if views else "-"
    counts = f"{formatting.count(len(live), 'drone')}, {formatting.count(idle, 'idle job')}"
    code, line = check_line(troubles(facts), f"{counts}, last tick {last_tick} ago")
    print(f"{line} | drones={len(live)} idle_jobs={idle}")
    return code


def status_document(reader: Reader, now: float) -> Document:
    """Return the document of ``provisioner status``."""
    views, plan, live, breakers = reader.views(), newest_plan(reader), reader.drones(), reader.breakers()
    shown_sites = site_rows(views, breakers, live, reader.hazards(now - DAY_S, now), DAY_S)
    waiting = _waiting_classes(views)
    found = troubles(facts_of(reader, views, plan, list(breakers.values()), live, now))
    recent = [Happening(e.at, None, e) for e in all_events(reader)[-MAX_EVENTS_SHOWN:]]
    row = StatusRow(reader.holder(), controller_of(live[0].id) if live else "", views, plan, live)
    reasons = [refusal.reason for refusal in plan.refusals] if plan else []
    limits = list({(r.limit, r.scope): r for r in reasons if isinstance(r, LimitReached)}.values())
    shown_classes = class_rows(views, plan, live, waiting[:MAX_CLASSES_SHOWN])
    parts = {
        "troubles": Listing("", trouble_columns(), found, lambda t: t.kind),
        "views": Listing("", _view_columns(), _view_rows(views, now), lambda v: v.view),
        "sites": Listing("", _only(site_columns(now), _SITE_COLUMNS), shown_sites, lambda s: s.name),
        "drones": Listing("", _state_columns(live), _by_site(live), lambda s: s.site),
        "demand": Listing("", _only(class_columns(now), _DEMAND_COLUMNS), shown_classes, lambda c: c.job.id),
        "limits": Listing("", _limit_columns(), limits, lambda r: r.limit),
        "events": Listing("", _only(event_columns(), ("at", "name", "text")), recent, lambda h: h.name),
    }
    idle = formatting.count(sum(c.waiting + c.fresh for c in waiting), "job")
    more = f", the largest {MAX_CLASSES_SHOWN} of {len(waiting)}" if len(waiting) > MAX_CLASSES_SHOWN else ""
    titles = {
        "troubles": f"Troubles: {len(found)}" if found else "Troubles",
        "views": "Views",
        "sites": "Sites",
        "drones": f"Live drones: {len(live)}",
        "demand": f"Waiting: {idle} in {formatting.count(len(waiting), 'class', 'classes')}{more}",
        "limits": "Limits reached",
        "events": "Last events of the controller",
    }
    facts = Listing("", _status_facts(now), [row], lambda _: "")
    return Document(STATUS_SCHEMA, facts, parts, titles, scope=_status_scope(found))


def _waiting_classes(views: Views | None) -> list[JobClass]:
    """Return the classes with idle jobs, most jobs first."""
    classes = views.overlay.view.classes if views and views.overlay.view else ()
    return sorted((c for c in classes if c.waiting or c.fresh), key=lambda c: -(c.waiting + c.fresh))


def facts_of(
    reader: Reader,
    views: Views | None,
    plan: Plan | None,
    breakers: Sequence[Breaker],
    live: Sequence[Drone],
    now: float,
) -> TroubleContext:
    """Return the facts that the rules of troubles need."""
    ended = reader.drones(ended=True, states=[DroneState.FAILED, DroneState.JOIN_TIMEOUT], limit=50)
    waiting, events, free_bytes = _waiting_classes(views), all_events(reader), _free_bytes(reader)
    return TroubleContext(now, reader.holder(), views, plan, breakers, waiting, events, ended, live, free_bytes)


def _free_bytes(reader: Reader) -> int | None:
    path = getattr(reader, "path", None)
    if path is None:
        return None
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def _status_scope(found: Sequence[OperatorTrouble]) -> str:
    """Return the line that says whether a person is needed."""
    if not found:
        return "no trouble on record"
    counts = Counter(t.severity for t in found)
    parts = [
        formatting.count(counts[s], "critical trouble" if s is Severity.CRITICAL else s.value)
        for s in Severity
        if counts[s]
    ]
    return f"{', '.join(parts)}: {found[0].subject}: {found[0].text}"


def _status_facts(now: float) -> tuple[Column, ...]:
    def holder_words(row: StatusRow) -> str:
        name, holder = f"{row.controller}: " if row.controller else "", row.holder
        if holder is None:
            return f"{name}not running; what follows is as last recorded"
        return f"{name}runs as process {holder.pid} on {holder.host} for {formatting.ago(holder.since, now)}"

    def tick_words(row: StatusRow) -> str:
        if row.views is None:
            return "none yet"
        did = f"; last plan: {plan_summary(row.plan)}" if row.plan else ""
        return f"{row.views.tick}, {formatting.ago(row.views.at, now)} ago{did}"

    def gpu_milli(row: StatusRow) -> int:
        return sum(d.gpu_milli for d in row.live)

    running_doc = "Does a controller hold the record?"
    tick_doc = "Number of the newest tick; null: none yet."
    live_doc = "Drones asked for and not confirmed gone."
    return (
        text("controller", "Name; empty while no drone lives."),
        flag("running", running_doc, lambda x: x.holder is not None, head="controller", show=holder_words),
        whole("pid", "Its process; null: none runs.", "holder.pid", null=True),
        text("host", "Its host; null: none runs.", "holder.host", null=True),
        time_at("running_since_at", "Since when it runs.", "holder.since"),
        whole("tick", tick_doc, "views.tick", null=True, head="newest tick", show=tick_words),
        time_at("tick_at", "When it was.", "views.at"),
        age_s("tick_age_s", "Its age, seconds.", "views.at", now),
        whole("live_drones", live_doc, lambda x: len(x.live), head="drones", unit=str),
        whole("max_drones", "Limit on them; null: not known.", "views.policy.max_drones", null=True, head="of at most"),
        whole("gpu_milli", "Thousandths of GPUs in them.", gpu_milli, head="gpus", unit=formatting.gpus),
        whole("max_gpu_milli", "Limit on those; null: none.", "views.policy.max_gpu_milli", null=True),
    )


def _view_rows(views: Views | None, now: float) -> list[ViewRow]:
    if views is None:
        return []

    def row(name: str, polled: PolledOverlay | PolledSite | None, limit_s: float) -> ViewRow:
        view, fault = (polled.view, polled.fault) if polled else (None, None)
        messages = (*view.notices, *view.remarks) if view else ()
        return ViewRow(name, view.taken_at if view else 0.0, limit_s, fault, now, messages)

    return [
        row("overlay", views.overlay, views.policy.overlay_max_age_s),
        *(
            row(f"site:{name}", views.sites.get(name), policy.view_max_age_s)
            for name, policy in sorted(views.policy.sites.items())
        ),
    ]


def _view_columns() -> tuple[Column, ...]:
    tints = {"failed": "red", "never": "red", "old": "yellow"}
    verdict_doc = "fresh; old: past its limit; failed: the newest look failed; never: none succeeded."
    return (
        text("view", "overlay, or site:<name>.", level=0, least=12, tail=True),
        text("verdict", verdict_doc, head="IS", choices=("fresh", "old", "failed", "never"), tint=tints),
        span_s("age_s", "Age of the newest good view, seconds; null: there is none.", head="AGE"),
        span_s("limit_s", "Older than this it is not acted on, seconds.", head="LIMIT"),
        time_at("taken_at", "When it was taken."),
        text("fault", "Kind of fault of the newest look; null: it succeeded.", "fault.kind", null=True),
        words("message", "What went wrong; of a view that is good, what is odd in it.", head="NOTE", least=20),
    )


def _by_site(live: Sequence[Drone]) -> list[SiteStates]:
    counts: dict[str, Counter[DroneState]] = {}
    for drone in live:
        counts.setdefault(drone.site, Counter())[drone.state] += 1
    return [SiteStates(site, counts[site]) for site in sorted(counts)]


def _state_columns(live: Sequence[Drone]) -> tuple[Column, ...]:
    shown = {d.state for d in live}

    def column(state: DroneState) -> Column:
        doc, level = f"Live drones in state {state.value}.", 0 if state in shown else 2
        return whole(state.value, doc, lambda s: s.counts.get(state, 0), level=level, unit=lambda n: str(n or "-"))

    return (
        text("site", "Site.", level=0, least=12, tail=True),
        *map(column, LIVE_STATES),
        whole("total", "All live drones.", lambda s: sum(s.counts.values()), level=0),
    )


def _limit_columns() -> tuple[Column, ...]:
    return (
        text("limit", "Name of the setting.", level=0, least=12),
        text("scope", "What it limits.", level=0, least=12, tail=True),
        number("used", "How much is used.", level=0, unit=formatting.number),
        number("allowed", "How much may be.", level=0, unit=formatting.number),
    )


def _only(columns: Sequence[Column], keys: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns with only ``keys`` shown to people."""
    return tuple(replace(c, level=0 if c.key in keys else 2) for c in columns)
