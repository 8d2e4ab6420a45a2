"""``provisioner status`` and ``events``: one screen of the whole, and what happened."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

import typer

from provisioner import formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.drones import controller_of
from provisioner.cli.jobs import class_columns, class_rows, newest_plan
from provisioner.cli.options import Format
from provisioner.cli.plan import plan_summary
from provisioner.cli.sites import DAY_S, site_columns, site_rows
from provisioner.cli.troubles import OperatorTrouble, Severity, TroubleContext, check_line, trouble_columns, troubles
from provisioner.model import Drone, DroneState, Fault, PolledOverlay, PolledSite
from provisioner.reasons import LimitReached, Reason
from provisioner.store import Event, Transition, Views
from provisioner.store.reader import Reader

EVENTS_SCHEMA = "provisioner.events/1"
EVENTS_PER_READ = 1000


class Happening(NamedTuple):
    """Step of a drone, or event of the controller."""

    at: float
    kind: str
    name: str
    """State that was entered, or the event's name."""
    text: str
    drone: str = ""
    was: DroneState | None = None
    reason: Reason | None = None
    fields: Mapping[str, Any] | None = None
    tick: int | None = None


def _of_step(step: Transition) -> Happening:
    why = formatting.describe(step.reason)
    return Happening(step.at, "step", step.state.value, why, step.drone_id, step.was, step.reason, tick=step.tick)


def _of_event(event: Event) -> Happening:
    text = ", ".join(f"{key} {value}" for key, value in event.fields.items())
    return Happening(event.at, "event", event.name, text, fields=event.fields)


def event_columns() -> tuple[out.Column, ...]:
    """Return the columns of steps and events."""
    return (
        out.time_at("at", "When.", level=0),
        out.text("kind", "step of a drone, or event.", level=1, choices=("step", "event")),
        out.text("name", "The state that was entered, or the event's name.", level=0, least=20),
        out.ident("drone", "The drone; empty for events.", least=16),
        out.words("text", "Why or what, in words.", head="WHY", least=24),
        out.text("was", "State before.", null=True),
        out.data("reason", "Why, as data; null for events.", convert=out.reason_data, null=True),
        out.data("fields", "Of an event.", null=True),
        out.whole("tick", "Number of the tick; null for events.", null=True, level=1),
    )


_DRONE_HELP = "Only of this drone, by any id."


@opt.shared
def events(
    where: opt.Where,
    show: opt.Show,
    pick: opt.Pick,
    follow: Annotated[bool, opt.switch("Go on with what comes; jsonl for programs.", "--follow", "-f")] = False,
    since: Annotated[str, opt.option("AGE", "Go back this far: 30m, 4h, 2d; all for everything.")] = "1h",
    drone: Annotated[str | None, opt.option("ID", _DRONE_HELP, autocompletion=opt.complete_drones)] = None,
) -> None:
    """Tell what happened.

    Every step of every drone with its reason, and the events of the controller.

    \b
    Examples:
      provisioner events --since 4h
      provisioner events --follow
      provisioner events --follow -o jsonl | jq 'select(.name == "failed")'
    """
    reader = opt.open_record(where)
    start = 0.0 if since == "all" else time.time() - opt.parse_age(since)
    only = opt.find_drone(reader, drone) if drone else ""
    if not follow:
        out.present(show, lambda: out.picked(_event_listing(reader, start, since, only), pick))
        return
    if show.output not in (Format.TABLE, Format.WIDE, Format.JSONL, Format.JSON, Format.NAME):
        wrong = f"--follow gives table, wide, name or jsonl, not {show.output.value}"
        raise opt.VerbError(wrong, code=opt.Exit.USAGE)
    step = event = 0
    while True:
        found, step, event = _happenings(reader, start, only, step, event)
        _write_stream(found, show)
        time.sleep(show.interval)


def _event_listing(reader: Reader, start: float, since: str, only: str) -> out.Listing:
    found, _, _ = _happenings(reader, start, only)
    back = "everything on record" if since == "all" else f"of the last {since}; --since for more"
    whose = f" of drone {only}" if only else ""
    scope = f"{formatting.count(len(found), 'entry', 'entries')}{whose}, {back}"
    return out.Listing(EVENTS_SCHEMA, event_columns(), found, lambda h: h.name, scope)


def _happenings(
    reader: Reader, start: float, only: str, step: int = 0, event: int = 0
) -> tuple[list[Happening], int, int]:
    """Return steps and events by time after those of the numbers given, and the numbers of the newest.

    With ``only`` the steps of that drone.
    """
    steps, events = list(_transitions(reader, start, step)), all_events(reader, event)
    found = [_of_step(t) for _, t in steps if only in ("", t.drone_id)]
    found += [_of_event(e) for e in events if e.at >= start and not only]
    newest = steps[-1][0] if steps else step, events[-1].id if events else event
    return sorted(found, key=lambda h: h.at), *newest


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


def _write_stream(found: list[Happening], show: opt.Show) -> None:
    """Write one complete line per entry: a stream has no column widths."""
    width = out.Page.of(show).width
    for happening, row in zip(found, out.Listing("", event_columns(), found, str).plain(), strict=True):
        match show.output:
            case Format.TABLE | Format.WIDE:
                what = f"{happening.drone} {happening.name}: {happening.text}".lstrip()
                line = formatting.sanitize(f"{formatting.iso(happening.at)}  {what}")
                print(line if width is None else out.shorten(line, width))
            case Format.NAME:
                print(formatting.sanitize(happening.name))
            case _:
                print(out.dumps(row))
    sys.stdout.flush()


# --------------------------------------------------------------------------------------------------------------- status

STATUS_SCHEMA = "provisioner.status/1"
MAX_EVENTS_SHOWN = 5
CHECK_UNKNOWN = 3
"""Exit code of ``--check`` for what cannot be found out, as monitoring plugins give it."""
MAX_CLASSES_SHOWN = 10
_SITE_COLUMNS = ("site", "breaker", "drones", "max_drones", "gpu_milli", "owner", "taken_back", "note")
_DEMAND_COLUMNS = ("id", "waiting", "running", "drones", "oldest_s", "why")

LIVE_STATES = tuple(s for s in DroneState if not s.ended)


class ViewRow(NamedTuple):
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


class SiteStates(NamedTuple):
    """Live drones of one site by state."""

    site: str
    counts: Mapping[DroneState, int]


@opt.shared
def status(
    where: opt.Where,
    show: opt.Show,
    check: Annotated[
        bool, opt.switch("One line for Nagios or Icinga; exit 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.", "--check")
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
    reader = opt.open_record(where)
    out.present(show, lambda: status_document(reader, time.time()))


def _run_check(where: opt.Where) -> int:
    """Print the line of ``--check`` and return its exit code. A record that cannot be read is UNKNOWN."""
    try:
        facts = facts_of(opt.open_record(where), time.time())
    except Exception as error:
        failure = opt.verb_error(error)
        if failure is None:
            raise
        print(formatting.sanitize(f"PROVISIONER UNKNOWN - {'; '.join(failure.lines)}").replace("|", "/"))
        return CHECK_UNKNOWN
    drones, idle = len(facts.live), sum(c.waiting + c.fresh for c in facts.waiting)
    last_tick = formatting.ago(facts.views.at, facts.now) if facts.views else "-"
    counts = f"{formatting.count(drones, 'drone')}, {formatting.count(idle, 'idle job')}"
    code, line = check_line(troubles(facts), f"{counts}, last tick {last_tick} ago")
    print(f"{line} | drones={drones} idle_jobs={idle}")
    return code


def status_document(reader: Reader, now: float) -> out.Document:
    """Return the document of ``provisioner status``."""
    facts = facts_of(reader, now)
    views, plan, live, waiting = facts.views, facts.plan, facts.live, facts.waiting
    breakers = {breaker.scope: breaker for breaker in facts.breakers}
    found = troubles(facts)
    shown_sites = site_rows(views, breakers, live, reader.hazards(now - DAY_S, now), DAY_S)
    shown_classes = class_rows(views, plan, live, waiting[:MAX_CLASSES_SHOWN])
    recent = [_of_event(event) for event in facts.events[-MAX_EVENTS_SHOWN:]]
    reasons = [refusal.reason for refusal in plan.refusals] if plan else []
    limits = list({(r.limit, r.scope): r for r in reasons if isinstance(r, LimitReached)}.values())
    states: defaultdict[str, Counter[DroneState]] = defaultdict(Counter)
    for drone in live:
        states[drone.site][drone.state] += 1
    idle = formatting.count(sum(c.waiting + c.fresh for c in waiting), "job")
    more = f", the largest {MAX_CLASSES_SHOWN} of {len(waiting)}" if len(waiting) > MAX_CLASSES_SHOWN else ""
    classes = formatting.count(len(waiting), "class", "classes")
    parts: dict[str, tuple[str, Sequence[out.Column], Sequence[Any]]] = {
        "troubles": (f"Troubles: {len(found)}" if found else "Troubles", trouble_columns(), found),
        "views": ("Views", _view_columns(), _view_rows(views, now)),
        "sites": ("Sites", _only(site_columns(now), _SITE_COLUMNS), shown_sites),
        "drones": (f"Live drones: {len(live)}", state_columns(live), [SiteStates(*s) for s in sorted(states.items())]),
        "demand": (f"Waiting: {idle} in {classes}{more}", _only(class_columns(now), _DEMAND_COLUMNS), shown_classes),
        "limits": ("Limits reached", _limit_columns(), limits),
        "events": ("Last events of the controller", _only(event_columns(), ("at", "name", "text")), recent),
    }
    return out.Document(
        STATUS_SCHEMA,
        out.Listing("", _status_facts(now), [facts], lambda _: ""),
        {key: out.Listing("", tuple(columns), rows, str) for key, (_, columns, rows) in parts.items()},
        {key: title for key, (title, _, _) in parts.items()},
        scope=_status_scope(found),
    )


def facts_of(reader: Reader, now: float) -> TroubleContext:
    """Return the facts that the rules of troubles need, and the screen."""
    views = reader.views()
    classes = views.overlay.view.classes if views and views.overlay.view else ()
    return TroubleContext(
        now,
        reader.holder(),
        views,
        newest_plan(reader),
        list(reader.breakers().values()),
        sorted((c for c in classes if c.waiting or c.fresh), key=lambda c: -(c.waiting + c.fresh)),
        all_events(reader),
        reader.drones(ended=True, states=[DroneState.FAILED, DroneState.JOIN_TIMEOUT], limit=50),
        reader.drones(),
        _free_bytes(reader),
    )


def _free_bytes(reader: Reader) -> int | None:
    try:
        disk = os.statvfs(reader.path.parent)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def _status_scope(found: Sequence[OperatorTrouble]) -> str:
    """Return the line that says whether a person is needed."""
    if not found:
        return "no trouble on record"
    counts = Counter(t.severity for t in found)
    names = {s: "critical trouble" if s is Severity.CRITICAL else s.value for s in Severity if counts[s]}
    numbers = ", ".join(formatting.count(counts[severity], name) for severity, name in names.items())
    return f"{numbers}: {found[0].subject}: {found[0].text}"


def _status_facts(now: float) -> tuple[out.Column, ...]:
    def controller(facts: TroubleContext) -> str:
        return controller_of(facts.live[0].id) if facts.live else ""

    def holder_words(facts: TroubleContext) -> str:
        name = f"{controller(facts)}: " if facts.live else ""
        if (holder := facts.holder) is None:
            return f"{name}not running; what follows is as last recorded"
        return f"{name}runs as process {holder.pid} on {holder.host} for {formatting.ago(holder.since, now)}"

    def tick_words(row: TroubleContext) -> str:
        if row.views is None:
            return "none yet"
        did = f"; last plan: {plan_summary(row.plan)}" if row.plan else ""
        return f"{row.views.tick}, {formatting.ago(row.views.at, now)} ago{did}"

    def gpu_milli(row: TroubleContext) -> int:
        return sum(d.gpu_milli for d in row.live)

    running_doc, live_doc = "Does a controller hold the record?", "Drones asked for and not confirmed gone."
    tick_doc, most_doc = "Number of the newest tick; null: none yet.", "Limit on them; null: not known."
    return (
        out.text("controller", "Name; empty while no drone lives.", controller),
        out.flag("running", running_doc, lambda x: x.holder is not None, head="controller", show=holder_words),
        out.whole("pid", "Its process; null: none runs.", "holder.pid", null=True),
        out.text("host", "Its host; null: none runs.", "holder.host", null=True),
        out.time_at("running_since_at", "Since when it runs.", "holder.since"),
        out.whole("tick", tick_doc, "views.tick", null=True, head="newest tick", show=tick_words),
        out.time_at("tick_at", "When it was.", "views.at"),
        out.whole("live_drones", live_doc, lambda x: len(x.live), head="drones"),
        out.whole("max_drones", most_doc, "views.policy.max_drones", null=True, head="of at most"),
        out.gpus("gpu_milli", "Thousandths of GPUs in them.", gpu_milli, head="gpus"),
        out.whole("max_gpu_milli", "Limit on those; null: none.", "views.policy.max_gpu_milli", null=True),
    )


def _view_rows(views: Views | None, now: float) -> list[ViewRow]:
    if views is None:
        return []

    def row(name: str, polled: PolledOverlay | PolledSite | None, limit_s: float) -> ViewRow:
        view, fault = (polled.view, polled.fault) if polled else (None, None)
        messages = (*view.notices, *view.remarks) if view else ()
        return ViewRow(name, view.taken_at if view else 0.0, limit_s, fault, now, messages)

    policies = sorted(views.policy.sites.items())
    sites = [row(f"site:{name}", views.sites.get(name), policy.view_max_age_s) for name, policy in policies]
    return [row("overlay", views.overlay, views.policy.overlay_max_age_s), *sites]


def _view_columns() -> tuple[out.Column, ...]:
    tints = {"failed": "red", "never": "red", "old": "yellow"}
    verdict_doc = "fresh; old: past its limit; failed: the newest look failed; never: none succeeded."
    return (
        out.ident("view", "overlay, or site:<name>.", least=12),
        out.text("verdict", verdict_doc, head="IS", choices=("fresh", "old", "failed", "never"), tint=tints),
        out.span_s("age_s", "Age of the newest good view, seconds; null: there is none.", head="AGE"),
        out.span_s("limit_s", "Older than this it is not acted on, seconds.", head="LIMIT"),
        out.text("fault", "Kind of fault of the newest look; null: it succeeded.", "fault.kind", null=True),
        out.words("message", "What went wrong; of a view that is good, what is odd in it.", head="NOTE", least=20),
    )


def state_columns(live: Sequence[Drone]) -> tuple[out.Column, ...]:
    """Return a column for each state of live drones; people see those that occur."""
    shown = {d.state for d in live}

    def column(state: DroneState) -> out.Column:
        doc, level = f"Live drones in state {state.value}.", 0 if state in shown else 2
        return out.whole(state.value, doc, lambda s: s.counts.get(state, 0), level=level, unit=lambda n: str(n or "-"))

    return (
        out.ident("site", "Site.", least=12),
        *map(column, LIVE_STATES),
        out.whole("total", "All live drones.", lambda s: sum(s.counts.values()), level=0),
    )


def _limit_columns() -> tuple[out.Column, ...]:
    return (
        out.text("limit", "Name of the setting.", level=0, least=12),
        out.ident("scope", "What it limits.", least=12),
        out.number("used", "How much is used.", level=0, unit=formatting.number),
        out.number("allowed", "How much may be.", level=0, unit=formatting.number),
    )


def _only(columns: Sequence[out.Column], keys: Sequence[str]) -> tuple[out.Column, ...]:
    """Return the columns with only ``keys`` shown to people."""
    return tuple(replace(c, level=0 if c.key in keys else 2) for c in columns)
