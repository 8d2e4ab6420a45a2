"""``provisioner drones``: list them, show the life of one, ask some to leave."""

from __future__ import annotations

import getpass
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Annotated, NamedTuple

import typer

from provisioner import formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.model import WHOLE_GPU, DrainMode, Drone, DroneId, DroneState, RequestKind, SitePolicy
from provisioner.store import Transition, Views
from provisioner.store.reader import Reader

DRONES_SCHEMA = "provisioner.drones/1"
HISTORY_SCHEMA = "provisioner.history/1"

DRONE_STATES = tuple(DroneState)
STATE_TINTS = {
    DroneState.BUSY: "green",
    **dict.fromkeys((DroneState.DRAINING, DroneState.STOPPING), "yellow"),
    **dict.fromkeys((DroneState.FAILED, DroneState.LOST, DroneState.JOIN_TIMEOUT), "red"),
    **dict.fromkeys((DroneState.REQUESTED, DroneState.SUBMITTED, DroneState.QUEUED, DroneState.BOOTING), "blue"),
}


def drone_note(drone: Drone, now: float) -> str:
    """Return what else an operator should know of a drone, from its record alone: trouble first."""
    parts = []
    if not drone.state.ended:
        if drone.drain_refusal:
            parts.append(f"drain refused, takes jobs still: {formatting.excerpt(drone.drain_refusal)}")
        if drone.missing_at:
            parts.append(f"missing at the site for {formatting.ago(drone.missing_at, now)}")
        if drone.unslotted_at:
            parts.append(f"out of the pool for {formatting.ago(drone.unslotted_at, now)}")
        if drone.leaving is not None:
            parts.append(f"will end as {drone.leaving.value}")
        if drone.notice_at:
            parts.append(f"asked to leave {formatting.ago(drone.notice_at, now)} ago")
        if drone.asked > 1:
            parts.append(f"asked {drone.asked} times to stop")
    elif drone.lost_gpu_s or drone.lost_jobs:
        parts.append(f"lost {_lost_work(drone)}")
    if drone.site_reason:
        parts.append(formatting.excerpt(drone.site_reason))
    return "; ".join(parts)


def _node_without_domain(drone: Drone) -> str:
    first = drone.node.partition(".")[0]
    return drone.node if first.isdecimal() else first


def _work(drone: Drone, gpu_s: float) -> str:
    unit = "GPU" if drone.gpu_milli else "CPU"
    return f"{formatting.number(round(gpu_s, 1))} {unit}-seconds" if gpu_s else "-"


def _lost_work(drone: Drone) -> str:
    parts = [formatting.count(drone.lost_jobs, "job")] if drone.lost_jobs else []
    parts += [_work(drone, drone.lost_gpu_s)] if drone.lost_gpu_s else []
    return ", ".join(parts)


def drone_columns(now: float, reason: Callable[[Drone], str] | None = None) -> tuple[out.Column, ...]:
    """Return the columns of drones at ``now``; ``reason`` looks up why a drone is in its state."""

    def grace_used_s(drone: Drone) -> float | None:
        return max(0.0, (drone.ended_at or now) - drone.notice_at) if drone.notice_at else None

    def at_risk_gpu_s(drone: Drone) -> float:
        if drone.state.ended or not drone.work_at:
            return 0.0
        return round(drone.work_gpu_milli / WHOLE_GPU * max(0.0, now - drone.work_at), 3)

    def at_risk(drone: Drone) -> str:
        return _work(drone, at_risk_gpu_s(drone))

    age_doc = "Time since it was asked for, until its end if it has ended, seconds."
    node_doc = "Node that it runs on, as the site names it; empty: unknown."
    place_doc = "The site's name of its place on the node; empty: unknown."
    leaving_doc = "The end that it will have once it is confirmed gone; null: not asked to leave."
    notice_doc = "When the site's notice was first seen, or when it was asked to leave for the owner."
    grace_doc = "From that notice to its end, or until now; null: no notice."
    risk_doc = "Work of jobs that would be lost if it ended now: GPU-seconds, of a CPU drone CPU-seconds."
    lost_doc = "Work of jobs that its end has cost: GPU-seconds, of a CPU drone CPU-seconds."
    refusal_doc = "Why the overlay refused to drain it, or to take it back into service; empty: it did not."
    asked_doc = "When it was last asked to drain or stop."
    return (
        out.ident("id", "Our id of the drone.", least=16, fact="drone"),
        out.text("site", "Site."),
        out.ident("type", "Drone type, as site/name.", least=10, fact="type"),
        out.text("state", "State.", level=0, tint=STATE_TINTS, choices=DRONE_STATES, fact="state"),
        out.age_s("state_s", "Time in this state, seconds.", "since", now, head="FOR"),
        out.span_s("age_s", age_doc, lambda x: max(0.0, (x.ended_at or now) - x.requested_at), head="AGE"),
        out.whole("jobs", "Jobs that run in it now.", head="RUN", fact="jobs now"),
        out.whole("jobs_started", "Jobs started in it so far.", head="STARTED", spare=1, fact="jobs so far"),
        out.gpus("gpu_milli", "Thousandths of a GPU.", level=1, head="GPUS", fact="gpus"),
        out.text("for_class", "Job class that it was started for.", head="CLASS", level=1, least=6, fact="for class"),
        out.text("avoids", "Users whose jobs it does not take.", fact="takes no jobs of"),
        out.ident("remote_id", "The site's id.", head="REMOTE", fact="id at the site"),
        out.ident("node", node_doc, spare=1, show=_node_without_domain, fact="node"),
        out.ident("site_slot", place_doc, head="SITE SLOT", spare=3, fact="slot at the site"),
        out.ident("slot", "The pool's name of its slot.", spare=2, fact="slot in the pool"),
        out.words("note", "What is worth knowing beside the state.", lambda x: drone_note(x, now), least=18),
        *([] if reason is None else [out.words("reason", "Why it is in this state.", reason, least=20)]),
        out.text("leaving", leaving_doc, null=True, fact="will end as"),
        out.time_at("requested_at", "When it was recorded and asked for.", fact="asked for"),
        out.time_at("submitted_at", "When the site took the order.", fact="taken by the site"),
        out.time_at("started_at", "When it began to run.", fact="started"),
        out.time_at("joined_at", "When its slot came to the pool.", fact="joined the pool"),
        out.time_at("busy_at", "When it first had a job.", fact="first job"),
        out.time_at("idle_at", "Since when it has no job.", fact="idle since"),
        out.time_at("heard_at", "Last sign of life in the pool.", fact="last heard of"),
        out.time_at("missing_at", "Since when the site's listings lack it.", fact="missing since"),
        out.time_at("unslotted_at", "Since when the pool lacks its slot.", fact="out of pool since"),
        out.time_at("asked_at", asked_doc, fact="asked to drain or stop"),
        out.time_at("retires_at", "When it takes no new job any more.", fact="retires"),
        out.time_at("ended_at", "When it ended.", fact="ended"),
        out.time_at("notice_at", notice_doc, fact="asked to leave"),
        out.span_s("grace_used_s", grace_doc, grace_used_s, fact="grace used"),
        out.number("at_risk_gpu_s", risk_doc, at_risk_gpu_s, show=at_risk, fact="work at risk"),
        out.number("lost_gpu_s", lost_doc, show=_lost_work, fact="work lost"),
        out.whole("lost_jobs", "Jobs that lost it."),
        out.text("drain_refusal", refusal_doc, fact="drain refused"),
        out.text("site_reason", "The site's own word.", fact="the site says"),
    )


class LifeStep(NamedTuple):
    """Step in a drone's life."""

    transition: Transition
    spent_s: float | None
    """Time in that state; None while the drone is in it, and for an end."""


def life_steps(history: list[Transition]) -> list[LifeStep]:
    """Return transitions with the time spent in each state."""
    ends = [*(t.at for t in history[1:]), None]
    return [
        LifeStep(t, None if end is None or t.state.ended else max(0.0, end - t.at))
        for t, end in zip(history, ends, strict=False)
    ]


def history_columns(now: float) -> tuple[out.Column, ...]:
    """Return the columns of the steps of one drone."""

    def lasted(step: LifeStep) -> str:
        if step.spent_s is not None:
            return formatting.age(step.spent_s)
        return "-" if step.transition.state.ended else f"{formatting.ago(step.transition.at, now)}+"

    for_doc = "How long it lasted, seconds; null: it still does, or is an end."
    return (
        out.time_at("at", "When.", "transition.at", level=0),
        out.text("was", "State before; null: none.", "transition.was", null=True),
        out.text("state", "State from then on.", "transition.state", level=0, choices=DRONE_STATES),
        out.number("for_s", for_doc, "spent_s", null=True, head="FOR", show=lasted),
        out.whole("tick", "Number of the tick.", "transition.tick", level=1),
        out.words("text", "Why, in words.", lambda s: formatting.describe(s.transition.reason), head="WHY", least=20),
        out.data("reason", "Why, as data.", "transition.reason", convert=out.reason_data),
    )


class StateLimit(NamedTuple):
    """Limit of the state of a drone, at the newest tick."""

    setting: str = ""
    """Name of the policy setting; empty: the drone has ended."""
    limit_s: float | None = None
    """None: without limit, or not known."""
    by: str = ""
    """Source of the limit of an idle drone, in words."""
    then: str = ""

    @property
    def words(self) -> str:
        if not self.limit_s:
            return f"no limit known ({self.setting})" if self.setting else "-"
        return f"{formatting.seconds(self.limit_s)} ({self.by or self.setting})"


_ACTION_WORDS = {
    "forget": "the record of it ends",
    "stop": "the site is asked to end it",
    "drain": "the pool is asked to let it go",
    "insist": "the site is asked again, at last without notice",
}


def state_limit(drone: Drone, views: Views | None) -> StateLimit:
    """Return how long a drone may stay in its state, and what happens then."""
    from provisioner.planner.lifecycle import STATE_RULES
    from provisioner.planner.retirement import idle_limit

    rule = STATE_RULES.get(drone.state)
    if rule is None or views is None:
        return StateLimit(rule.limit if rule else "")
    limit_s, by = None, ""
    match rule.limit:
        case "walltime_s":
            limit_s = next((t.walltime_s or None for t in views.types if t.key == drone.type), None)
        case "idle_timeout_s":
            limit_s, source = idle_limit(drone, views.policy, views.estimates)
            by = formatting.IDLE_LIMIT_WORDS.get(source, "")
        case _:
            limit_s = float(getattr(views.policy.sites.get(drone.site, SitePolicy(drone.site)), rule.limit))
    then = f"{_ACTION_WORDS[rule.then.value]}; it would end as {(drone.leaving or rule.ends_as).value}"
    return StateLimit(rule.limit, limit_s, by, then if limit_s else "")


def _drone_facts(now: float, limit: StateLimit) -> tuple[out.Column, ...]:
    """Return the facts of a drone: the columns of the list with titles for people, and the limit of its state."""

    def when(at: float) -> str:
        if not at or not isfinite(at):
            return "-"
        relative = f"{formatting.age(now - at)} ago" if at <= now else f"in {formatting.age(at - now)}"
        return f"{formatting.iso(at)} ({relative})"

    def state_words(drone: Drone) -> str:
        lasting = "," if drone.state.ended else f" for {formatting.ago(drone.since, now)}:"
        return f"{drone.state.value}{lasting} {formatting.STATE_WORDS[drone.state]}"

    def grace_words(drone: Drone) -> str:
        if not drone.notice_at:
            return "-"
        used = formatting.seconds(max(0.0, (drone.ended_at or now) - drone.notice_at))
        return used if drone.state.ended else f"{used} so far"

    shows: dict[str, Callable[[Drone], str]] = {
        "state": state_words,
        "grace_used_s": grace_words,
        "leaving": lambda d: "-" if d.leaving is None or d.state.ended else d.leaving.value,
        "node": lambda d: d.node,
        "site_reason": lambda d: formatting.excerpt(d.site_reason),
    }
    facts = [replace(c, show=shows.get(c.key, c.show)) for c in out.as_facts(drone_columns(now))]
    facts = [replace(c, unit=when) if c.key.endswith("_at") else c for c in facts]
    limit_doc = "Setting that limits the state; empty: it has ended."
    by_doc = "Where the limit of an idle drone comes from, in words; empty: the setting."
    may_last = out.number("limit_s", "Its value, seconds; null: no limit.", lambda _: limit.limit_s, null=True)
    return (
        *facts,
        out.text("limit", limit_doc, lambda _: limit.setting),
        replace(may_last, level=0, head="may last", show=lambda _: limit.words),
        out.text("limit_by", by_doc, lambda _: limit.by),
        out.text("then", "What happens after that.", lambda _: limit.then, head="and then"),
    )


# ---------------------------------------------------------------------------------------------------------------- list

drones_app = typer.Typer(cls=opt.VerbGroup, add_completion=False, rich_markup_mode=None)

_NODE_HELP = "Only on this node, by its whole name or the part before the first dot; repeatable."
Sites = Annotated[
    list[str] | None, opt.option("NAME", "Only of this site; repeatable.", autocompletion=opt.complete_sites)
]
Types = Annotated[
    list[str] | None,
    opt.option("SITE/NAME", "Only of this drone type; repeatable.", "--type", autocompletion=opt.complete_types),
]
_STATE_HELP = "Only in this state; repeatable. Ends imply --ended."


@dataclass(frozen=True, slots=True)
class DroneFilter(opt.OptionGroup):
    """Options: the drones that pass every filter given."""

    site: Sites = None
    state: Annotated[list[DroneState] | None, opt.option("STATE", _STATE_HELP, case_sensitive=False)] = None
    type_: Types = None
    node: Annotated[list[str] | None, opt.option("NAME", _NODE_HELP)] = None

    @property
    def given(self) -> bool:
        return bool(self.site or self.state or self.type_ or self.node)

    def find(self, reader: Reader, *, ended: bool | None) -> list[Drone]:
        """Return the drones. Raises :class:`VerbError` for an unknown site."""
        opt.require_known_sites(reader, self.site or ())
        return reader.drones(
            ended=ended, sites=self.site or (), states=self.state or (), types=self.type_ or (), nodes=self.node or ()
        )


@drones_app.callback(invoke_without_command=True)
@opt.shared
def drones(
    ctx: typer.Context,
    drone_filter: DroneFilter,
    where: opt.Where,
    show: opt.Show,
    pick: opt.Pick,
    ended: Annotated[bool, opt.switch("Only those that have ended.", "--ended")] = False,
    all_: Annotated[bool, opt.switch("Live and ended ones.", "--all", "-a")] = False,
) -> None:
    """List drones; show, drain or kill some.

    Without options those that live, oldest first. The record is read, nobody is asked: it answers while the
    controller is down. Every id that another verb takes may be a drone's id, its last number, the site's id, the
    name of its slot in the pool or of its place at the site. Where a drone runs (node, and both slots) is in the table
    as far as that has room, and always in -o wide and -o json.

    \b
    Examples:
      provisioner drones
      provisioner drones --site local --state busy --sort -age_s
      provisioner drones --node topas-a100-1 -o wide
      provisioner drones --ended --columns id,state,reason --limit 20
      provisioner drones -o json | jq '.items[] | select(.state == "idle") | .id'
    """
    if opt.verb_follows(ctx):
        return
    reader = opt.open_record(where)
    shown = _shown_ends(drone_filter.state or (), ended, all_)
    reasons = "reason" in (show.columns or "").lower().split(",")

    def listing() -> out.Listing:
        return out.picked(drone_listing(reader, drone_filter, shown, time.time(), reasons=reasons), pick)

    out.present(show, listing)


def _shown_ends(states: Sequence[DroneState], ended: bool, all_: bool) -> bool | None:
    """Return True for only ended drones, False for only live ones, None for both, also as the states imply it."""
    kinds = {s.ended for s in states}
    if all_ or (ended and kinds == {False}) or kinds == {False, True}:
        return None
    return ended or kinds == {True}


def drone_listing(
    reader: Reader, drone_filter: DroneFilter, ended: bool | None, now: float, *, reasons: bool = False
) -> out.Listing:
    """Return the answer of ``drones``; with ``reasons`` why each is in its state, which takes a look-up per drone."""

    def newest_reason(drone: Drone) -> str:
        history = reader.history(drone.id)
        return formatting.describe(history[-1].reason) if history else ""

    found = drone_filter.find(reader, ended=ended)
    columns = drone_columns(now, newest_reason if reasons else None)
    return out.Listing(DRONES_SCHEMA, columns, found, lambda d: d.id, _list_scope(reader, found, drone_filter, ended))


def _list_scope(reader: Reader, found: Sequence[Drone], drone_filter: DroneFilter, ended: bool | None) -> str:
    kind = {False: "live drone", True: "ended drone", None: "drone"}[ended]
    of = f" of controller {controller_of(found[0].id)}" if found else ""
    only = [
        f"{name} {', '.join(values)}"
        for name in ("site", "state", "type", "node")
        if (values := getattr(drone_filter, {"type": "type_"}.get(name, name)))
    ]
    more = {False: "--ended for past ones", True: "--all for live ones too", None: ""}[ended]
    runs = "" if reader.holder() else "no controller runs: as last recorded"
    return "; ".join(filter(None, (formatting.count(len(found), kind) + of, *only, more, runs)))


def controller_of(drone_id: str) -> str:
    """Return the name of the controller in a drone id (``<controller>-<store birth>-<serial>``)."""
    return drone_id.rsplit("-", 2)[0]


# ---------------------------------------------------------------------------------------------------------------- show

_ID_HELP = "Drone id, its number, the site's id, or a slot name."


@drones_app.command("show")
@opt.shared
def show_drone(
    where: opt.Where,
    show: opt.Show,
    any_id: Annotated[str, opt.argument("ID", _ID_HELP, autocompletion=opt.complete_drones)],
) -> None:
    """Show the whole life of one drone: every step with time, duration and reason.

    \b
    Examples:
      provisioner drones show kit-x7q2-17
      provisioner drones show slot1@gpu07.example.org
      provisioner drones show 17 -o json
    """
    reader = opt.open_record(where)
    out.present(show, lambda: drone_document(reader, opt.find_drone(reader, any_id)))


def drone_document(reader: Reader, drone_id: DroneId) -> out.Document:
    """Return the document of ``drones show``. Raises :class:`VerbError` for a drone that has been deleted."""
    drone = reader.drone(drone_id)
    if drone is None:
        raise opt.VerbError(f"drone {drone_id} is no longer on record")
    steps, limit = life_steps(reader.history(drone.id)), state_limit(drone, reader.views())
    return life_document(drone, steps, time.time(), reader.last_output(drone.id), limit)


def life_document(
    drone: Drone, steps: list[LifeStep], now: float, last_words: str = "", limit: StateLimit | None = None
) -> out.Document:
    """Return one drone and its steps as a document, with what it said last, and how long its state may last."""
    line = out.words("line", "A line of what it said last, where its site tells: a console's end.", str, least=40)
    return out.Document(
        "provisioner.drone/1",
        out.Listing("", _drone_facts(now, limit or StateLimit()), [drone], lambda d: d.id),
        {
            "history": out.Listing(HISTORY_SCHEMA, history_columns(now), steps, lambda s: s.transition.drone_id),
            "last_words": out.Listing("", (line,), last_words.splitlines(), str),
        },
        {"history": "Life"} | ({"last_words": "What it said last"} if last_words else {}),
        scope=f"{formatting.count(len(steps), 'step')} on record",
    )


# ------------------------------------------------------------------------------------------------------- drain and kill

WAIT_POLL_S = 0.5
CONFIRM_FROM = 2
"""From this many drones on a person is asked to confirm."""

_IDS_HELP = "Drone ids, their numbers, sites' ids or slot names."
Ids = Annotated[list[str] | None, opt.argument("ID", _IDS_HELP, autocompletion=opt.complete_live_drones)]
_MODE_HELP = "; ".join(f"{mode.value}: {words}" for mode, words in formatting.DRAIN_MODE_WORDS.items()) + "."
_TIMEOUT_HELP = "With --wait: give up after this; exit 124."


@dataclass(frozen=True, slots=True)
class LeaveOptions(opt.OptionGroup):
    """Options of the verbs that make drones leave."""

    reason: Annotated[str, opt.option("TEXT", "Why; it is recorded with every step.", "--reason", "-r")]
    yes: Annotated[bool, opt.switch("Do not ask for confirmation.", "--yes", "-y")] = False
    dry_run: Annotated[bool, opt.switch("Only say which drones are meant.", "--dry-run")] = False
    wait: Annotated[bool, opt.switch("Return when all of them have ended.", "--wait")] = False
    timeout: Annotated[float, opt.option("SECONDS", _TIMEOUT_HELP, min=0)] = 600.0


@drones_app.command("drain")
@opt.shared
def drain(
    options: LeaveOptions,
    drone_filter: DroneFilter,
    where: opt.Where,
    ids: Ids = None,
    mode: Annotated[DrainMode, typer.Option("--mode", help=_MODE_HELP)] = DrainMode.PEACEFUL,
) -> None:
    """Ask drones to leave the pool. It is recorded now and carried out at the controller's next tick.

    \b
    Examples:
      provisioner drones drain kit-x7q2-17 --reason "node needs a new fan"
      provisioner drones drain --site local --state idle --reason "downtime" --yes
      provisioner drones drain --node topas-a100-1 --reason "kernel update" --yes --wait --timeout 3600
      provisioner drones drain 17 18 19 --mode fast --reason "hung jobs" --wait --timeout 120
    """
    verb = f"drain ({mode.value}: {formatting.DRAIN_MODE_WORDS[mode]})"
    _request_leave(opt.open_record(where), RequestKind.DRAIN, mode, verb, ids or [], drone_filter, options)


@drones_app.command("kill")
@opt.shared
def kill(options: LeaveOptions, drone_filter: DroneFilter, where: opt.Where, ids: Ids = None) -> None:
    """End drones at their sites without waiting for their jobs. Carried out at the controller's next tick.

    \b
    Examples:
      provisioner drones kill kit-x7q2-17 --reason "GPU fell off the bus"
      provisioner drones kill --type horeka/h100 --reason "wrong image" --dry-run
      provisioner drones kill 17 18 --reason "runaway" --yes --wait
    """
    kind, mode = RequestKind.KILL, DrainMode.PEACEFUL
    _request_leave(opt.open_record(where), kind, mode, "kill", ids or [], drone_filter, options)


def _request_leave(
    reader: Reader,
    kind: RequestKind,
    mode: DrainMode,
    verb: str,
    ids: Sequence[str],
    drone_filter: DroneFilter,
    options: LeaveOptions,
) -> None:
    """Record the request. Raises ``typer.Exit`` with :attr:`Exit.PARTIAL` if only some ids are known."""
    if not options.reason.strip():
        raise opt.VerbError("--reason must not be empty: it is recorded with every step", code=opt.Exit.USAGE)
    chosen, gone, complaints = _selected(reader, ids, drone_filter)
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
            _confirm(f"{what}: {opt.named(chosen)}?")
        serial = reader.ask(kind, chosen, reason=options.reason, by=operator(), at=time.time(), mode=mode)
        out.note(f"request {serial} recorded: {what}")
        note_without_controller(reader)
        if options.wait:
            _wait_for_ends(reader, chosen, options.timeout)
    if complaints:
        raise typer.Exit(opt.Exit.PARTIAL)


def _selected(
    reader: Reader, ids: Sequence[str], drone_filter: DroneFilter
) -> tuple[list[DroneId], list[DroneId], list[str]]:
    """Return the live drones that are meant, the ended ones among those named, and complaints about unknown ids."""
    if not ids and not drone_filter.given:
        which = "which drones? Name them, or select with --site, --state, --type, --node"
        raise opt.VerbError(which, code=opt.Exit.USAGE)
    if ids and drone_filter.given:
        raise opt.VerbError("name drones or select them with filters, not both", code=opt.Exit.USAGE)
    if not ids:
        return [d.id for d in drone_filter.find(reader, ended=False)], [], []
    live: dict[DroneId, bool] = {}
    complaints: list[str] = []
    for any_id in ids:
        try:
            drone_id = opt.find_drone(reader, any_id)
        except opt.VerbError as unknown:
            complaints += unknown.lines
            continue
        drone = reader.drone(drone_id)
        live[drone_id] = drone is not None and not drone.state.ended
    return [i for i in live if live[i]], [i for i in live if not live[i]], complaints


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise opt.VerbError(question, "not a terminal to ask at: say --yes to do it", code=opt.Exit.USAGE)
    if not typer.confirm(formatting.sanitize(question), err=True):
        raise opt.VerbError("nothing was asked for")


def note_without_controller(reader: Reader) -> None:
    """Tell the person that nobody carries out a request now, if so."""
    if reader.holder() is None:
        out.note("no controller runs: it will be carried out when one does")


def operator() -> str:
    """Return the name of the user, and behind `sudo` of the one who called it."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    behind = os.environ.get("SUDO_USER")
    return f"{behind} (as {name})" if behind and behind != name else name


def _wait_for_ends(reader: Reader, chosen: list[DroneId], timeout_s: float) -> None:
    """Wait until all have ended, and report each end. Raises :class:`VerbError` with :attr:`Exit.TIMED_OUT`."""
    deadline = time.monotonic() + timeout_s
    left = list(chosen)
    while True:
        for drone_id in list(left):
            drone = reader.drone(drone_id)
            if drone is None or drone.state.ended:
                out.note(f"{drone_id} {'is no longer on record' if drone is None else drone.state.value}")
                left.remove(drone_id)
        if not left:
            return
        if time.monotonic() >= deadline:
            late = f"after {formatting.age(timeout_s)} not ended: {opt.named(left)}"
            raise opt.VerbError(late, code=opt.Exit.TIMED_OUT)
        time.sleep(min(WAIT_POLL_S, max(0.0, deadline - time.monotonic())))
