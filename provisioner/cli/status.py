"""``provisioner status``: one screen: who runs, what it sees, how old that is, demand and supply, limits, trouble."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

import typer

from provisioner import formatting
from provisioner.cli import class_rows, events, sites
from provisioner.cli.cells import span_s, text, time_at, whole, words
from provisioner.cli.demand import newest_plan
from provisioner.cli.drone_list import controller
from provisioner.cli.exits import failure_of
from provisioner.cli.listing import Column, Document, Listing
from provisioner.cli.options import Show, Where, shared
from provisioner.cli.output import present
from provisioner.cli.site_rows import DAY_S
from provisioner.cli.troubles import Facts, Severity, Trouble, check_line, trouble_columns, troubles
from provisioner.cli.where import open_record
from provisioner.model import Breaker, Drone, DroneState, Fault, JobClass, OverlayView, Plan, SiteView
from provisioner.reasons import LimitReached
from provisioner.store import Holder, Reader, Views

app = typer.Typer(add_completion=False, rich_markup_mode=None)

SCHEMA = "provisioner.status/1"
LAST_EVENTS = 5
UNKNOWN = 3
"""Exit code of ``--check`` for what cannot be found out, as monitoring plugins give it."""
MOST_CLASSES = 10
_SITE_KEYS = ("site", "breaker", "drones", "max_drones", "gpu_milli", "owner", "taken_back", "note")
Row = TypeVar("Row")

LIVE = tuple(s for s in DroneState if not s.ended)


@dataclass(frozen=True, slots=True)
class Whole:
    """The facts of the whole."""

    holder: Holder | None
    controller: str
    views: Views | None
    plan: Plan | None
    live: Sequence[Drone]
    max_drones: int | None
    max_gpu_milli: int | None


@dataclass(frozen=True, slots=True)
class Seen:
    """One view: how old, and what is wrong with it."""

    view: str
    taken_at: float
    limit_s: float
    fault: Fault | None
    now: float
    notices: tuple[str, ...] = ()

    @property
    def said(self) -> str:
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


@app.command()
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
        raise typer.Exit(_check(where))
    reader = open_record(where)
    present(show, lambda: status_document(reader, time.time()))


def _check(where: Where) -> int:
    """Print the line of ``--check`` and return its exit code. A record that cannot be read is UNKNOWN."""
    try:
        reader, now = open_record(where), time.time()
        views, plan, live = reader.views(), newest_plan(reader), reader.drones()
        facts = facts_of(reader, views, plan, list(reader.breakers().values()), live, now)
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise
        print(formatting.sanitize(f"PROVISIONER UNKNOWN - {'; '.join(failure.lines)}").replace("|", "/"))
        return UNKNOWN
    idle = sum(c.waiting + c.fresh for c in facts.waiting)
    interval_s = formatting.ago(views.at, now) if views else "-"
    code, line = check_line(
        troubles(facts),
        f"{formatting.count(len(live), 'drone')}, {formatting.count(idle, 'idle job')}, last tick {interval_s} ago",
    )
    print(f"{line} | drones={len(live)} idle_jobs={idle}")
    return code


def status_document(reader: Reader, now: float) -> Document:
    """The document of ``provisioner status``."""
    views, plan, live, breakers = reader.views(), newest_plan(reader), reader.drones(), reader.breakers()
    site_rows = sites.site_rows(views, breakers, live, reader.hazards(now - DAY_S, now), DAY_S)
    waiting = _waiting(views)
    found = troubles(facts_of(reader, views, plan, list(breakers.values()), live, now))
    recent = [events.Happening(e.at, None, e) for e in events.all_events(reader)[-LAST_EVENTS:]]
    whole_ = Whole(
        reader.holder(),
        controller(live[0].id) if live else "",
        views,
        plan,
        live,
        views.policy.max_drones if views else None,
        views.policy.max_gpu_milli if views else None,
    )
    parts: dict[str, Listing[Any]] = {
        "troubles": Listing("", trouble_columns(), found, lambda t: t.kind),
        "views": Listing("", _view_columns(), _seen(views, now), lambda v: v.view),
        "sites": Listing("", _few(sites.columns(now), _SITE_KEYS), site_rows, lambda s: s.name),
        "drones": Listing("", _state_columns(live), _by_site(live), lambda s: s.site),
        "demand": Listing(
            "",
            _few(class_rows.columns(now), ("id", "waiting", "running", "drones", "oldest_s", "why")),
            class_rows.class_rows(views, plan, live, waiting[:MOST_CLASSES]),
            lambda c: c.job.id,
        ),
        "limits": Listing("", _limit_columns(), _limits(plan), lambda r: r.limit),
        "events": Listing("", _few(events.columns(), ("at", "name", "text")), recent, lambda h: h.name),
    }
    idle = sum(c.waiting + c.fresh for c in waiting)
    more = f", the largest {MOST_CLASSES} of {len(waiting)}" if len(waiting) > MOST_CLASSES else ""
    titles = {
        "troubles": f"Troubles: {len(found)}" if found else "Troubles",
        "views": "Views",
        "sites": "Sites",
        "drones": f"Live drones: {len(live)}",
        "demand": (
            f"Waiting: {formatting.count(idle, 'job')} in {formatting.count(len(waiting), 'class', 'classes')}{more}"
        ),
        "limits": "Limits reached",
        "events": "Last events of the controller",
    }
    return Document(SCHEMA, Listing("", _facts(now), [whole_], lambda _: ""), parts, titles, scope=_scope(found))


def _waiting(views: Views | None) -> list[JobClass]:
    """The classes with idle jobs, most jobs first."""
    classes = views.overlay.view.classes if views and views.overlay.view else ()
    return sorted((c for c in classes if c.waiting or c.fresh), key=lambda c: -(c.waiting + c.fresh))


def facts_of(
    reader: Reader,
    views: Views | None,
    plan: Plan | None,
    breakers: Sequence[Breaker],
    live: Sequence[Drone],
    now: float,
) -> Facts:
    """Gather what troubles are judged by."""
    return Facts(
        now,
        reader.holder(),
        views,
        plan,
        breakers,
        _waiting(views),
        events.all_events(reader),
        reader.drones(ended=True, states=[DroneState.FAILED, DroneState.JOIN_TIMEOUT], limit=50),
        live,
        _free_bytes(reader),
    )


def _free_bytes(reader: Reader) -> int | None:
    path = getattr(reader, "path", None)
    if path is None:
        return None
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def _scope(found: Sequence[Trouble]) -> str:
    """Return the line that says whether a person is needed."""
    if not found:
        return "no trouble on record"
    counts = Counter(t.severity for t in found)
    parts = [formatting.count(counts[s], *_SEVERITY_NOUNS[s]) for s in Severity if counts[s]]
    return f"{', '.join(parts)}: {found[0].subject}: {found[0].text}"


_SEVERITY_NOUNS = {
    Severity.CRITICAL: ("critical trouble", "critical troubles"),
    Severity.WARNING: ("warning", "warnings"),
    Severity.NOTE: ("note", "notes"),
}


# --------------------------------------------------------------------------------------------------------------- facts


def _facts(now: float) -> tuple[Column[Whole], ...]:
    return (
        text("controller", lambda x: x.controller, "Name; empty while no drone lives."),
        Column[Whole](
            "running",
            lambda x: x.holder is not None,
            "Does a controller hold the record?",
            kind="boolean",
            level=0,
            head="controller",
            show=lambda x: _holder(x, now),
        ),
        Column[Whole](
            "pid",
            lambda x: x.holder.pid if x.holder else None,
            "Its process; null: none runs.",
            kind="integer",
            null=True,
        ),
        Column[Whole]("host", lambda x: x.holder.host if x.holder else None, "Its host; null: none runs.", null=True),
        time_at("running_since_at", lambda x: x.holder.since if x.holder else 0.0, "Since when it runs."),
        Column[Whole](
            "tick",
            lambda x: x.views.tick if x.views else None,
            "Number of the newest tick; null: none yet.",
            kind="integer",
            null=True,
            level=0,
            head="newest tick",
            show=lambda x: _tick(x, now),
        ),
        time_at("tick_at", lambda x: x.views.at if x.views else 0.0, "When it was."),
        span_s("tick_age_s", lambda x: max(0.0, now - x.views.at) if x.views else None, "Its age, seconds."),
        whole(
            "live_drones",
            lambda x: len(x.live),
            "Drones asked for and not confirmed gone.",
            level=0,
            head="drones",
            show=str,
        ),
        Column[Whole](
            "max_drones",
            lambda x: x.max_drones,
            "Limit on them; null: not known.",
            kind="integer",
            null=True,
            level=0,
            head="of at most",
        ),
        whole(
            "gpu_milli",
            lambda x: sum(d.gpu_milli for d in x.live),
            "Thousandths of GPUs in them.",
            level=0,
            head="gpus",
            show=formatting.gpus,
        ),
        Column[Whole](
            "max_gpu_milli", lambda x: x.max_gpu_milli, "Limit on those; null: none.", kind="integer", null=True
        ),
    )


def _holder(row: Whole, now: float) -> str:
    name = f"{row.controller}: " if row.controller else ""
    if row.holder is None:
        return f"{name}not running; what follows is as last recorded"
    return f"{name}runs as process {row.holder.pid} on {row.holder.host} for {formatting.ago(row.holder.since, now)}"


def _tick(row: Whole, now: float) -> str:
    if row.views is None:
        return "none yet"
    from provisioner.cli.plan_rows import in_brief

    did = f"; last plan: {in_brief(row.plan)}" if row.plan else ""
    return f"{row.views.tick}, {formatting.ago(row.views.at, now)} ago{did}"


# --------------------------------------------------------------------------------------------------------------- parts


def _seen(views: Views | None, now: float) -> list[Seen]:
    if views is None:
        return []
    overlay = views.overlay
    taken = overlay.view.taken_at if overlay.view else 0.0
    rows = [Seen("overlay", taken, views.policy.overlay_max_age_s, overlay.fault, now, _oddities(overlay.view))]
    for name, policy in sorted(views.policy.sites.items()):
        reading = views.sites.get(name)
        view = reading.view if reading else None
        fault = reading.fault if reading else None
        taken = view.taken_at if view else 0.0
        rows.append(Seen(f"site:{name}", taken, policy.view_max_age_s, fault, now, _oddities(view)))
    return rows


def _oddities(view: OverlayView | SiteView | None) -> tuple[str, ...]:
    return (*view.notices, *view.remarks) if view else ()


def _view_columns() -> tuple[Column[Seen], ...]:
    tints = {"failed": "red", "never": "red", "old": "yellow"}
    return (
        text("view", lambda v: v.view, "overlay, or site:<name>.", level=0, least=12, tail=True),
        Column[Seen](
            "verdict",
            lambda v: v.verdict,
            "fresh; old: past its limit; failed: the newest look failed; never: none succeeded.",
            level=0,
            head="IS",
            choices=("fresh", "old", "failed", "never"),
            tint=lambda v: tints.get(v.verdict, ""),
        ),
        span_s(
            "age_s",
            lambda v: v.age_s,
            "Age of the newest good view, seconds; null: there is none.",
            level=0,
            head="AGE",
        ),
        span_s("limit_s", lambda v: v.limit_s, "Older than this it is not acted on, seconds.", level=0, head="LIMIT"),
        time_at("taken_at", lambda v: v.taken_at, "When it was taken."),
        Column[Seen](
            "fault",
            lambda v: v.fault.kind.value if v.fault else None,
            "Kind of fault of the newest look; null: it succeeded.",
            null=True,
        ),
        words(
            "message",
            lambda v: v.said,
            "What went wrong; of a view that is good, what is odd in it.",
            level=0,
            head="NOTE",
            least=20,
        ),
    )


def _by_site(live: Sequence[Drone]) -> list[SiteStates]:
    counts: dict[str, Counter[DroneState]] = {}
    for drone in live:
        counts.setdefault(drone.site, Counter())[drone.state] += 1
    return [SiteStates(site, counts[site]) for site in sorted(counts)]


def _state_columns(live: Sequence[Drone]) -> tuple[Column[SiteStates], ...]:
    present_ = {d.state for d in live}

    def column(state: DroneState) -> Column[SiteStates]:
        doc = f"Live drones in state {state.value}."
        return Column(
            state.value,
            lambda s: s.counts.get(state, 0),
            doc,
            kind="integer",
            right=True,
            level=0 if state in present_ else 2,
            show=lambda s: str(s.counts.get(state) or "-"),
        )

    return (
        text("site", lambda s: s.site, "Site.", level=0, least=12, tail=True),
        *map(column, LIVE),
        whole("total", lambda s: sum(s.counts.values()), "All live drones.", level=0),
    )


def _limits(plan: Plan | None) -> list[LimitReached]:
    """Each limit that kept something from being done, once."""
    found = [r.reason for r in plan.refusals if isinstance(r.reason, LimitReached)] if plan else []
    return list({(r.limit, r.scope): r for r in found}.values())


def _limit_columns() -> tuple[Column[LimitReached], ...]:
    return (
        text("limit", lambda r: r.limit, "Name of the setting.", level=0, least=12),
        text("scope", lambda r: r.scope, "What it limits.", level=0, least=12, tail=True),
        Column[LimitReached](
            "used",
            lambda r: r.used,
            "How much is used.",
            kind="number",
            level=0,
            right=True,
            show=lambda r: formatting.number(r.used),
        ),
        Column[LimitReached](
            "allowed",
            lambda r: r.allowed,
            "How much may be.",
            kind="number",
            level=0,
            right=True,
            show=lambda r: formatting.number(r.allowed),
        ),
    )


def _few(columns: Sequence[Column[Row]], keys: Sequence[str]) -> tuple[Column[Row], ...]:
    """Of a list's columns those for one screen; the rest stays for machines."""
    return tuple(replace(c, level=0 if c.key in keys else 2) for c in columns)
