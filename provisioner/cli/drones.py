"""``provisioner drones``: list them, show the life of one, ask some to leave."""

from __future__ import annotations

import getpass
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from math import isfinite
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

import typer

from provisioner import descriptions, formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli.options import Format
from provisioner.cli.usage import USE_COLUMN, RecordedUse, with_use
from provisioner.model import (
    WHOLE_GPU,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    RequestKind,
    SitePolicy,
)
from provisioner.reasons import IDLE_LIMIT_WORDS
from provisioner.store import Transition, Views
from provisioner.store.reader import Reader
from provisioner.values import frozen

DRONES_SCHEMA = "provisioner.drones/1"

DRONE_STATES = tuple(DroneState)
STATE_TINTS = {
    DroneState.BUSY: "green",
    **dict.fromkeys((DroneState.DRAINING, DroneState.STOPPING), "yellow"),
    **dict.fromkeys((DroneState.FAILED, DroneState.LOST, DroneState.JOIN_TIMEOUT), "red"),
    **dict.fromkeys(
        (DroneState.REQUESTED, DroneState.SUBMITTED, DroneState.QUEUED, DroneState.BOOTING), "blue"
    ),
}


def drone_note(drone: Drone) -> str:
    """Return what else an operator should know of a drone, from its record alone: trouble first."""
    parts = []
    if not drone.state.ended:
        if drone.drain_refusal:
            parts.append(
                f"drain refused, takes jobs still: {formatting.excerpt(drone.drain_refusal)}"
            )
        if drone.missing_at:
            parts.append(f"missing at the site for {out.ago(drone.missing_at)}")
        if drone.unslotted_at:
            parts.append(f"out of the pool for {out.ago(drone.unslotted_at)}")
        if drone.leaving is not None:
            parts.append(f"will end as {drone.leaving.value}")
        if drone.notice_at:
            parts.append(f"asked to leave {out.ago(drone.notice_at)} ago")
        if drone.asked > 1:
            parts.append(f"asked {drone.asked} times to stop")
    elif drone.lost_gpu_s or drone.lost_jobs:
        parts.append(f"lost {_lost_work(drone)}")
    if drone.site_reason:
        parts.append(formatting.excerpt(drone.site_reason))
    return "; ".join(parts)


def _node_without_domain(drone: Drone) -> str:
    first = drone.node.partition("/")[0].partition(".")[0]
    # `gpu1/gpu.shared`
    return drone.node if first.isdecimal() else first + "".join(drone.node.partition("/")[1:])


def _work(drone: Drone, gpu_s: float) -> str:
    unit = "GPU" if drone.gpu_milli else "CPU"
    return f"{formatting.number(round(gpu_s, 1))} {unit}-seconds" if gpu_s else "-"


def _lost_work(drone: Drone) -> str:
    parts = [formatting.count(drone.lost_jobs, "job")] if drone.lost_jobs else []
    parts += [_work(drone, drone.lost_gpu_s)] if drone.lost_gpu_s else []
    return ", ".join(parts)


def _age_s(drone: Drone) -> float:
    return max(0.0, (drone.ended_at or out.now()) - drone.requested_at)


def _grace_used_s(drone: Drone) -> float | None:
    return max(0.0, (drone.ended_at or out.now()) - drone.notice_at) if drone.notice_at else None


def _at_risk_gpu_s(drone: Drone) -> float:
    if drone.state.ended or not drone.work_at:
        return 0.0
    return round(drone.work_gpu_milli / WHOLE_GPU * max(0.0, out.now() - drone.work_at), 3)


_WORK_UNIT = "GPU-seconds, of a CPU drone CPU-seconds."
_RISK = f"Work of jobs that would be lost if it ended now: {_WORK_UNIT}"

DRONE_COLUMNS = (
    out.ident("id", "Our id of the drone.", least=16, fact="drone"),
    out.text("site", "Site."),
    out.ident("type", "Drone type, as site/name.", least=10, fact="type"),
    out.text("state", "State.", level=0, tint=STATE_TINTS, choices=DRONE_STATES, fact="state"),
    out.age_s("state_s", "Time in this state, seconds.", "since", head="FOR"),
    out.span_s(
        "age_s",
        "Time since it was asked for, until its end if it has ended, seconds.",
        _age_s,
        head="AGE",
    ),
    out.whole("jobs", "Jobs that run in it now.", head="RUN", fact="jobs now"),
    out.whole(
        "jobs_started", "Jobs started in it so far.", head="STARTED", spare=1, fact="jobs so far"
    ),
    out.gpus("gpu_milli", "Thousandths of a GPU.", level=1, head="GPUS", fact="gpus"),
    USE_COLUMN,
    out.text(
        "for_class",
        "Job class that it was started for.",
        head="CLASS",
        level=1,
        least=6,
        fact="for class",
    ),
    out.text("avoids", "Users whose jobs it does not take.", fact="takes no jobs of"),
    out.whole(
        "min_gpus",
        "GPUs that a job requests at least for the drone to take it; 0: any.",
        fact="fewest gpus",
    ),
    out.ident("remote_id", "The site's id.", head="REMOTE", fact="id at the site"),
    out.ident(
        "node",
        "Node, as the site names it; empty: unknown.",
        spare=1,
        show=_node_without_domain,
        fact="node",
    ),
    out.ident(
        "site_slot",
        "The site's name of its place.",
        head="SITE SLOT",
        spare=3,
        fact="slot at the site",
    ),
    out.ident("slot", "The pool's name of its slot.", spare=2, fact="slot in the pool"),
    out.words("note", "What is worth knowing beside the state.", drone_note, least=18),
    out.text(
        "leaving",
        "The end that it will have; null: not asked to leave.",
        null=True,
        fact="will end as",
    ),
    out.time_at("requested_at", "When it was recorded and asked for.", fact="asked for"),
    out.time_at("submitted_at", "When the site took the order.", fact="taken by the site"),
    out.time_at("started_at", "When it began to run.", fact="started"),
    out.time_at("joined_at", "When its slot came to the pool.", fact="joined the pool"),
    out.time_at("busy_at", "When it first had a job.", fact="first job"),
    out.time_at("idle_at", "Since when it has no job.", fact="idle since"),
    out.time_at("heard_at", "Last sign of life in the pool.", fact="last heard of"),
    out.time_at("missing_at", "Since when the site's listings lack it.", fact="missing since"),
    out.time_at("unslotted_at", "Since when the pool lacks its slot.", fact="out of pool since"),
    out.time_at(
        "asked_at", "When it was last asked to drain or stop.", fact="asked to drain or stop"
    ),
    out.time_at("retires_at", "When it takes no new job any more.", fact="retires"),
    out.time_at("ended_at", "When it ended.", fact="ended"),
    out.time_at(
        "notice_at",
        "When it was first told or asked to leave for the owner.",
        fact="asked to leave",
    ),
    out.span_s(
        "grace_used_s", "From that to its end, or until now.", _grace_used_s, fact="grace used"
    ),
    out.number(
        "at_risk_gpu_s",
        _RISK,
        _at_risk_gpu_s,
        show=lambda d: _work(d, _at_risk_gpu_s(d)),
        fact="work at risk",
    ),
    out.number(
        "lost_gpu_s",
        f"Work of jobs that its end has cost: {_WORK_UNIT}",
        show=_lost_work,
        fact="work lost",
    ),
    out.whole("lost_jobs", "Jobs that lost it."),
    out.text(
        "drain_refusal", "Why the overlay refused to drain or resume it.", fact="drain refused"
    ),
    out.text("site_reason", "The site's own word.", unit=formatting.excerpt, fact="the site says"),
)


class LifeStep(NamedTuple):
    transition: Transition
    spent_s: float | None


HISTORY_COLUMNS = (
    out.time_at("at", "When.", "transition.at", level=0),
    out.text("was", "State before; null: none.", "transition.was", null=True),
    out.text("state", "State from then on.", "transition.state", level=0, choices=DRONE_STATES),
    out.span_s(
        "for_s",
        "How long it lasted, seconds; null: it still does, or is an end.",
        "spent_s",
        head="FOR",
    ),
    out.whole("tick", "Number of the tick.", "transition.tick", level=1),
    out.words(
        "text",
        "Why, in words.",
        lambda s: s.transition.reason.describe(),
        head="WHY",
        least=20,
    ),
    out.data("reason", "Why, as data.", "transition.reason", convert=out.reason_data),
)
LAST_OUTPUT_LINE = out.words(
    "line", "A line of what it said last, where its site tells: a console's end.", str, least=40
)


class StateLimit(NamedTuple):
    """Limit of the state of a drone, at the newest tick."""

    setting: str = ""
    """Name of the policy setting; empty: the drone has ended."""
    limit_s: float | None = None
    """None: without limit, or not known."""
    by: str = ""
    then: str = ""

    @property
    def words(self) -> str:
        if not self.limit_s:
            return f"no limit known ({self.setting})" if self.setting else "-"
        return f"{formatting.age(self.limit_s)} ({self.by or self.setting})"


_ACTION_WORDS = {
    "forget": "the record of it ends",
    "stop": "the site is asked to end it",
    "drain": "the pool is asked to let it go",
    "insist": "the site is asked again, at last without notice",
}


def state_limit(drone: Drone, views: Views | None) -> StateLimit:
    """Return how long a drone may stay in its state, and what happens then."""
    from provisioner.planner.retirement import MATCHABLE_IDLE_FACTOR
    from provisioner.planner.states import STATE_RULES, idle_limit

    rule = STATE_RULES.get(drone.state)
    if rule is None or views is None:
        return StateLimit(rule.limit if rule else "")
    limit_s, by = None, ""
    match rule.limit:
        case "walltime_s":
            limit_s = next((t.walltime_s or None for t in views.types if t.key == drone.type), None)
        case "idle_timeout_s":
            limit_s, source = idle_limit(drone, views.policy, views.estimates)
            by = IDLE_LIMIT_WORDS.get(source, "")
            # the planner has kept it all the same
            if views.at - (drone.idle_at or drone.since) > limit_s:
                limit_s = max(
                    limit_s, MATCHABLE_IDLE_FACTOR * views.policy.idle_timeout_at(drone.site)
                )
                by = "it is kept for waiting jobs or for headroom"
        case _:
            limit_s = float(
                getattr(views.policy.sites.get(drone.site, SitePolicy(drone.site)), rule.limit)
            )
    then = (
        f"{_ACTION_WORDS[rule.then.value]}; it would end as {(drone.leaving or rule.ends_as).value}"
    )
    return StateLimit(rule.limit, limit_s, by, then if limit_s else "")


def _when(at: float) -> str:
    if not at or not isfinite(at):
        return "-"
    ago_s = out.now() - at
    relative = f"{formatting.age(ago_s)} ago" if ago_s >= 0 else f"in {formatting.age(-ago_s)}"
    return f"{formatting.iso(at)} ({relative})"


def _state_words(drone: Drone) -> str:
    lasting = "," if drone.state.ended else f" for {out.ago(drone.since)}:"
    return f"{drone.state.value}{lasting} {descriptions.STATE_WORDS[drone.state]}"


_SHOWN_IN_FULL: dict[str, Callable[[Drone], str]] = {
    "state": _state_words,
    "leaving": lambda d: "-" if d.leaving is None or d.state.ended else d.leaving.value,
    "node": lambda d: d.node,
}


def _gpus_offline(drone: Drone, views: Views | None) -> int:
    """Return how many GPUs of a drone its checks have taken offline, by the newest view of the pool."""
    slots = views.overlay.view.slots if views is not None and views.overlay.view is not None else ()
    return next(
        (
            slot.gpus_offline
            for slot in slots
            if slot.drone_id == drone.id and not drone.state.ended
        ),
        0,
    )


def _drone_facts(
    limit: StateLimit, gpus_offline: int, columns: Sequence[out.Column]
) -> tuple[out.Column, ...]:
    facts = [replace(c, show=_SHOWN_IN_FULL.get(c.key, c.show)) for c in out.as_facts(columns)]
    facts = [replace(c, unit=_when) if c.key.endswith("_at") else c for c in facts]
    by_doc = "Where the limit of an idle drone comes from, in words; empty: the setting."
    may_last = out.number(
        "limit_s", "Its value, seconds; null: no limit.", lambda _: limit.limit_s, null=True
    )
    return (
        *facts,
        out.whole(
            "gpus_offline",
            "GPUs that its checks have taken offline.",
            lambda _: gpus_offline,
            level=0 if gpus_offline else 2,
            head="GPUs offline",
        ),
        out.text(
            "limit", "Setting that limits the state; empty: it has ended.", lambda _: limit.setting
        ),
        replace(may_last, level=0, head="may last", show=lambda _: limit.words),
        out.text("limit_by", by_doc, lambda _: limit.by),
        out.text("then", "What happens after that.", lambda _: limit.then, head="and then"),
    )


drones_app = typer.Typer(add_completion=False, rich_markup_mode=None)

_NODE_HELP = "Only on this node, by its name with or without the domain; repeatable."


@frozen
class DroneFilter(opt.OptionGroup):
    """Options: the drones that pass every filter given."""

    site: Annotated[list[str] | None, opt.option("NAME", "Only of this site; repeatable.")] = None
    state: Annotated[
        list[DroneState] | None,
        opt.option("STATE", "In this state; repeatable.", case_sensitive=False),
    ] = None
    type_: Annotated[
        list[str] | None, opt.option("SITE/NAME", "Only of this type; repeatable.", "--type")
    ] = None
    node: Annotated[list[str] | None, opt.option("NAME", _NODE_HELP)] = None

    @property
    def given(self) -> dict[str, list[str]]:
        """The filters that are given, by name."""
        values: tuple[Sequence[str] | None, ...] = (self.site, self.state, self.type_, self.node)
        return {
            name: [*v]
            for name, v in zip(("site", "state", "type", "node"), values, strict=True)
            if v
        }

    @property
    def chosen(self) -> dict[str, Any]:
        """The filters that are given, as :meth:`Reader.drones` takes them."""
        return {f"{name}s": values for name, values in self.given.items()}

    def find(self, reader: Reader, **page: Any) -> list[Drone]:
        """Return the drones; ``page`` as for :meth:`Reader.drones`. Raises :class:`VerbError` for an unknown site."""
        opt.require_known_sites(reader, self.site or ())
        return reader.drones(**page, **self.chosen)


@drones_app.callback(invoke_without_command=True)
@out.answering
def drones(
    reader: Reader,
    *,
    drone_filter: DroneFilter,
    query: opt.ListQuery,
    ended: Annotated[bool, opt.switch("Only those that have ended.", "--ended")] = False,
    all_: Annotated[bool, opt.switch("Live and ended ones.", "--all", "-a")] = False,
    after: Annotated[str | None, opt.option("ID", "Only those asked for after this drone.")] = None,
) -> out.Listing:
    """List drones; show, drain or kill some.

    Without options those that live, oldest first. Any id of a drone, where a verb takes one, is its id, its last
    number, the site's id, or the name of its slot in the pool or of its place at the site. Where a drone runs is in the
    table as far as that has room, and always in -o wide and -o json.

    \b
    Examples:
      provisioner drones --ended --columns id,state,note --limit 20
      provisioner drones -o json | jq '.items[] | select(.state == "idle") | .id'
    """
    kinds = {state.ended for state in drone_filter.state or ()}  # states imply what is listed
    shown = ended or kinds == {True}
    both = all_ or (ended and kinds == {False}) or kinds == {False, True}
    which, use = None if both else shown, query.output is not Format.TABLE or bool(query.columns)
    behind = None if after is None else reader.drone(opt.find_drone(reader, after))
    # one more: does it go on?
    first = None if query.sort or query.limit is None else query.limit + 1
    return out.picked(
        drone_listing(reader, drone_filter, which, first=first, after=behind, use=use), query
    )


def drone_listing(
    reader: Reader,
    drone_filter: DroneFilter,
    ended: bool | None,
    *,
    first: int | None = None,
    after: Drone | None = None,
    use: bool = False,
) -> out.Listing:
    """Return the answer of ``drones``: only ended ones, only live ones, or with None both.

    ``first`` and ``after`` as for :meth:`Reader.drones`. ``use`` takes a while.
    """
    found = drone_filter.find(reader, ended=ended, first=first, after=after)
    total = (
        len(found)
        if first is None or len(found) < first
        else reader.count_drones(ended=ended, **drone_filter.chosen)
    )
    kind = {False: "live drone", True: "ended drone", None: "drone"}[ended]
    of = f" of controller {controller_of(found[0].id)}" if found else ""
    only = [f"{name} {', '.join(values)}" for name, values in drone_filter.given.items()]
    more = {False: "--ended for past ones", True: "--all for live ones too", None: ""}[ended]
    runs = "" if reader.holder() else "no controller runs: as last recorded"
    scope = "; ".join(filter(None, (formatting.count(total, kind) + of, *only, more, runs)))
    columns: Sequence[out.Column] = DRONE_COLUMNS
    if use:
        columns = with_use(
            columns,
            RecordedUse(reader, reader.views(), of=[d.id for d in found]).by("drone"),
            lambda d: d.id,
        )
    return out.Listing(
        DRONES_SCHEMA, columns, found, lambda d: d.id, scope, cursor=lambda d: d.id, total=total
    )


def as_of(reader: Reader, views: Views | None) -> str:
    """Return how old what is shown is, and whether a controller renews it."""
    if views is None:
        return "no tick is on record yet"
    runs = "" if reader.holder() else "; no controller runs: as last recorded"
    return f"as of tick {views.tick}, {out.ago(views.at)} ago{runs}"


def controller_of(drone_id: str) -> str:
    """Return the name of the controller in a drone id (``<controller>-<store birth>-<serial>``)."""
    return drone_id.rsplit("-", 2)[0]


@drones_app.command("show")
@out.answering
def show_drone(reader: Reader, *, query: opt.Query, any_id: opt.DroneArgument) -> out.Document:
    """Show the whole life of one drone: every step with time, duration and reason.

    \b
    Examples:
      provisioner drones show slot1@gpu07.example.org -o json
    """
    return drone_document(reader, opt.find_drone(reader, any_id))


def drone_document(reader: Reader, drone_id: DroneId) -> out.Document:
    """Return the document of ``drones show``. Raises :class:`VerbError` for a drone that has been deleted."""
    drone = reader.drone(drone_id)
    if drone is None:
        raise opt.VerbError(f"drone {drone_id} is no longer on record")
    views = reader.views()
    use = RecordedUse(reader, views, drone.requested_at, [drone.id])
    columns = with_use(DRONE_COLUMNS, use.by("drone"), lambda d: d.id)
    history, words = reader.history(drone.id), reader.last_output(drone.id).splitlines()
    spent = [max(0.0, after.at - step.at) for step, after in pairwise(history)]
    steps = [LifeStep(step, spent_s) for step, spent_s in zip_longest(history, spent)]
    return out.Document(
        "provisioner.drone/1",
        _drone_facts(state_limit(drone, views), _gpus_offline(drone, views), columns),
        drone,
        {
            "history": out.Listing("", HISTORY_COLUMNS, steps, title="Life"),
            "last_words": out.Listing(
                "", (LAST_OUTPUT_LINE,), words, title="What it said last" if words else ""
            ),
        },
        name=drone.id,
        scope=f"{formatting.count(len(history), 'step')} on record",
    )


WAIT_POLL_S = 0.5
CONFIRM_FROM = 2

_MODE_HELP = (
    "; ".join(f"{mode.value}: {words}" for mode, words in descriptions.DRAIN_MODE_WORDS.items())
    + "."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOptions(DroneFilter):
    """Options of the verbs that make drones leave."""

    ids: Annotated[list[str] | None, opt.argument("ID", "Any ids of drones.")] = None
    reason: Annotated[
        str, opt.option("TEXT", "Why; it is recorded with every step.", "--reason", "-r")
    ]
    yes: Annotated[bool, opt.switch("Do not ask for confirmation.", "--yes", "-y")] = False
    dry_run: Annotated[bool, opt.switch("Only say which drones are meant.", "--dry-run")] = False
    wait: Annotated[bool, opt.switch("Return when all of them have ended.", "--wait")] = False
    timeout: Annotated[
        float, opt.option("SECONDS", "With --wait: give up after this; exit 124.", min=0)
    ] = 600.0


@drones_app.command("drain")
@opt.shared
def drain(
    options: LeaveOptions,
    where: opt.Where,
    mode: Annotated[DrainMode, typer.Option("--mode", help=_MODE_HELP)] = DrainMode.PEACEFUL,
) -> None:
    """Ask drones to leave the pool. It is recorded now and carried out at the controller's next tick.

    \b
    Examples:
      provisioner drones drain --node topas-a100-1 --reason "kernel update" --yes --wait --timeout 3600
      provisioner drones drain 17 18 19 --mode fast --reason "hung jobs" --wait --timeout 120
    """
    verb = f"drain ({mode.value}: {descriptions.DRAIN_MODE_WORDS[mode]})"
    _request_leave(where, RequestKind.DRAIN, mode, verb, options)


@drones_app.command("kill")
@opt.shared
def kill(options: LeaveOptions, where: opt.Where) -> None:
    """End drones at their sites without waiting for their jobs. Carried out at the controller's next tick.

    \b
    Examples:
      provisioner drones kill kit-x7q2-17 --reason "GPU fell off the bus"
    """
    _request_leave(where, RequestKind.KILL, DrainMode.PEACEFUL, "kill", options)


def _request_leave(
    where: opt.Where, kind: RequestKind, mode: DrainMode, verb: str, options: LeaveOptions
) -> None:
    """Record the request. Raises ``typer.Exit`` with :attr:`Exit.PARTIAL` if only some ids are known."""
    if not options.reason.strip():
        raise opt.VerbError(
            "--reason must not be empty: it is recorded with every step", code=opt.Exit.USAGE
        )
    if bool(options.ids) == bool(options.given):
        which = "which drones? Name them, or select with --site, --state, --type, --node, not both"
        raise opt.VerbError(which, code=opt.Exit.USAGE)
    reader: Reader | None = None
    if where.url is None:
        reader = opt.open_record(where)
        chosen, gone, complaints = _selected(reader, options)
    elif options.wait:
        raise opt.VerbError(
            "--wait needs the record itself: leave it out, or leave out --url", code=opt.Exit.USAGE
        )
    else:
        from provisioner.cli import remote

        chosen = [
            DroneId(name) for name in options.ids or remote.names(where, "/drones", options.given)
        ]
        gone, complaints = [], []
    if gone:
        out.note(f"already ended, nothing to do: {opt.named(gone)}")
    out.note(*complaints)
    if not chosen:
        if complaints:
            raise opt.VerbError("nothing was asked for")
        out.note("no live drone is meant: nothing was asked for")
        return
    what = f"{verb} {formatting.count(len(chosen), 'drone')}"
    if options.dry_run:
        out.note(f"would {what}:")
        print("\n".join(chosen))
    else:
        if not options.yes and len(chosen) >= CONFIRM_FROM:
            question = f"{what}: {opt.named(chosen)}?"
            if not sys.stdin.isatty():
                raise opt.VerbError(
                    question, "not a terminal to ask at: say --yes to do it", code=opt.Exit.USAGE
                )
            typer.confirm(formatting.sanitize(question), err=True, abort=True)
        if reader is None:
            complaints = _ask_service(where, kind, mode, chosen, options.reason)
        else:
            record_request(reader, kind, chosen, options.reason, what, mode)
            if options.wait:
                _wait_for_ends(reader, chosen, options.timeout)
    if complaints:
        raise typer.Exit(opt.Exit.PARTIAL)


def _ask_service(
    where: opt.Where, kind: RequestKind, mode: DrainMode, chosen: Sequence[str], reason: str
) -> list[str]:
    """Request it at the web service, one drone after the other, and return the complaints if some are refused."""
    from provisioner.cli import remote

    refusals: list[opt.VerbError] = []
    for each in chosen:
        body = {"reason": reason, "mode": mode.value if kind is RequestKind.DRAIN else None}
        try:
            remote.post(where, f"/drones/{quote(each, safe='')}/{kind.value}", **body)
        except opt.VerbError as refusal:
            refusals.append(refusal)
    complaints = [line for refusal in refusals for line in refusal.lines]
    if len(refusals) == len(chosen):
        raise opt.VerbError(*complaints, code=refusals[0].code)
    out.note(*complaints)
    return complaints


def record_request(
    reader: Reader,
    kind: RequestKind,
    ids: Sequence[DroneId],
    reason: str,
    what: str,
    mode: DrainMode = DrainMode.PEACEFUL,
) -> None:
    """Record a request for the next tick, and tell the person if nobody carries it out now."""
    serial = reader.ask(kind, ids, reason=reason, by=operator(), at=reader.now(), mode=mode)
    out.note(f"request {serial} recorded: {what}")
    if reader.holder() is None:
        out.note("no controller runs: it will be carried out when one does")


def _selected(
    reader: Reader, options: LeaveOptions
) -> tuple[list[DroneId], list[DroneId], list[str]]:
    """Return the live drones that are meant, the ended ones among those named, and complaints about unknown ids."""
    if not options.ids:
        return [d.id for d in options.find(reader, ended=False)], [], []
    live: dict[DroneId, bool] = {}
    complaints: list[str] = []
    for any_id in options.ids:
        try:
            drone_id = opt.find_drone(reader, any_id)
        except opt.VerbError as unknown:
            complaints += unknown.lines
            continue
        drone = reader.drone(drone_id)
        live[drone_id] = drone is not None and not drone.state.ended
    return [i for i in live if live[i]], [i for i in live if not live[i]], complaints


def operator() -> str:
    """Return the name of the user, and behind `sudo` of the one who called it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    behind = os.environ.get("SUDO_USER")
    return f"{behind} (as {name})" if behind and behind != name else name


def _wait_for_ends(reader: Reader, left: list[DroneId], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        for drone_id in list(left):
            drone = reader.drone(drone_id)
            if drone is None or drone.state.ended:
                out.note(
                    f"{drone_id} {'is no longer on record' if drone is None else drone.state.value}"
                )
                left.remove(drone_id)
        if not left:
            return
        if time.monotonic() >= deadline:
            late = f"after {formatting.age(timeout_s)} not ended: {opt.named(left)}"
            raise opt.VerbError(late, code=opt.Exit.TIMED_OUT)
        time.sleep(min(WAIT_POLL_S, max(0.0, deadline - time.monotonic())))
