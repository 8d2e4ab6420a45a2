"""``provisioner drones``: list them, show the life of one, ask some to leave."""

from __future__ import annotations

import getpass
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer

from provisioner import formatting
from provisioner.cli.options import (
    Exit,
    OptionGroup,
    Pick,
    Show,
    VerbError,
    VerbGroup,
    Where,
    complete_drones,
    complete_live_drones,
    complete_sites,
    complete_types,
    find_drone,
    named,
    open_record,
    refuse_options_before_verb,
    require_known_sites,
    shared,
)
from provisioner.cli.output import (
    Column,
    Document,
    Listing,
    age_s,
    as_facts,
    data,
    note,
    number,
    picked,
    present,
    reason_data,
    span_s,
    text,
    time_at,
    whole,
    words,
)
from provisioner.model import WHOLE_GPU, DrainMode, Drone, DroneId, DroneState, RequestKind
from provisioner.store import Transition
from provisioner.store.reader import Reader

if TYPE_CHECKING:
    from provisioner.planner.retirement import IdleLimit

DRONES_SCHEMA = "provisioner.drones/1"
HISTORY_SCHEMA = "provisioner.history/1"

DRONE_STATES = tuple(DroneState)
_STATE_TINTS = {
    DroneState.BUSY: "green",
    DroneState.DRAINING: "yellow",
    DroneState.STOPPING: "yellow",
    DroneState.FAILED: "red",
    DroneState.LOST: "red",
    DroneState.JOIN_TIMEOUT: "red",
    DroneState.REQUESTED: "blue",
    DroneState.SUBMITTED: "blue",
    DroneState.QUEUED: "blue",
    DroneState.BOOTING: "blue",
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
    jobs = f"{formatting.count(drone.lost_jobs, 'job')}, " if drone.lost_jobs else ""
    return f"{jobs}{_work(drone, drone.lost_gpu_s)}" if drone.lost_gpu_s else jobs.rstrip(", ") or "-"


def drone_columns(now: float, reason: Callable[[Drone], str] | None = None) -> tuple[Column, ...]:
    """Return the columns of drones at ``now``; ``reason`` looks up why a drone is in its state."""

    def grace_used_s(drone: Drone) -> float | None:
        return max(0.0, (drone.ended_at or now) - drone.notice_at) if drone.notice_at else None

    def at_risk_gpu_s(drone: Drone) -> float:
        if drone.state.ended or not drone.work_at:
            return 0.0
        return round(drone.work_gpu_milli / WHOLE_GPU * max(0.0, now - drone.work_at), 3)

    age_doc = "Time since it was asked for, until its end if it has ended, seconds."
    notice_doc = "When the site's notice was first seen, or when it was asked to leave for the owner."
    place_doc = "The site's name of its place on the node; empty: unknown."
    risk_doc = "Work of jobs that would be lost if it ended now: GPU-seconds, of a CPU drone CPU-seconds."
    lost_doc = "Work of jobs that its end has cost: GPU-seconds, of a CPU drone CPU-seconds."
    refusal_doc = "Why the overlay refused to drain it, or to take it back into service; empty: it did not."
    return (
        text("id", "Our id of the drone.", level=0, least=16, tail=True, fact="drone"),
        text("site", "Site."),
        text("type", "Drone type, as site/name.", level=0, least=10, tail=True, fact="type"),
        text("state", "State.", level=0, tint=_STATE_TINTS, choices=DRONE_STATES, fact="state"),
        age_s("state_s", "Time in this state, seconds.", "since", now, head="FOR"),
        span_s("age_s", age_doc, lambda x: max(0.0, (x.ended_at or now) - x.requested_at), head="AGE"),
        whole("jobs", "Jobs that run in it now.", head="RUN", fact="jobs now"),
        whole("jobs_started", "Jobs started in it so far.", head="STARTED", spare=1, fact="jobs so far"),
        whole("gpu_milli", "Thousandths of a GPU.", level=1, head="GPUS", unit=formatting.gpus, fact="gpus"),
        text(
            "for_class", "Job class that it was started for.", level=1, head="CLASS", least=6, fact="started for class"
        ),
        text("avoids", "Users whose jobs it does not take.", fact="takes no jobs of"),
        text("remote_id", "The site's id.", head="REMOTE", least=8, tail=True, fact="id at the site"),
        text(
            "node",
            "Node that it runs on, as the site names it; empty: unknown.",
            level=0,
            least=8,
            tail=True,
            spare=1,
            show=_node_without_domain,
            fact="node",
        ),
        text("site_slot", place_doc, head="SITE SLOT", least=8, tail=True, spare=3, fact="slot at the site"),
        text("slot", "The pool's name of its slot.", level=0, least=8, tail=True, spare=2, fact="slot in the pool"),
        words("note", "What is worth knowing beside the state.", lambda x: drone_note(x, now), least=18),
        *([] if reason is None else [words("reason", "Why it is in this state.", reason, least=20)]),
        text(
            "leaving",
            "The end that it will have once it is confirmed gone; null: not asked to leave.",
            null=True,
            fact="will end as",
        ),
        time_at("since_at", "When it entered its state.", "since"),
        time_at("requested_at", "When it was recorded and asked for.", fact="asked for"),
        time_at("submitted_at", "When the site took the order.", fact="taken by the site"),
        time_at("started_at", "When it began to run.", fact="started"),
        time_at("joined_at", "When its slot came to the pool.", fact="joined the pool"),
        time_at("busy_at", "When it first had a job.", fact="first job"),
        time_at("idle_at", "Since when it has no job.", fact="idle since"),
        time_at("heard_at", "Last sign of life in the pool.", fact="last heard of"),
        time_at("missing_at", "Since when the site's listings lack it.", fact="missing since"),
        time_at("unslotted_at", "Since when the pool lacks its slot.", fact="out of pool since"),
        time_at("asked_at", "When it was last asked to drain or stop.", fact="asked to leave"),
        whole("asked", "How often it was asked to stop."),
        time_at("retires_at", "When it takes no new job any more.", fact="retires"),
        time_at("ended_at", "When it ended.", fact="ended"),
        time_at("notice_at", notice_doc, fact="asked to leave"),
        span_s(
            "grace_used_s",
            "From that notice to its end, or until now; null: no notice.",
            grace_used_s,
            fact="grace used",
        ),
        number(
            "at_risk_gpu_s", risk_doc, at_risk_gpu_s, show=lambda x: _work(x, at_risk_gpu_s(x)), fact="work at risk"
        ),
        number("lost_gpu_s", lost_doc, show=_lost_work, fact="work lost"),
        whole("lost_jobs", "Jobs that lost it."),
        text("drain_refusal", refusal_doc, fact="drain refused"),
        text("site_reason", "The site's own word.", fact="the site says"),
    )


@dataclass(frozen=True, slots=True)
class LifeStep:
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


def history_columns(now: float) -> tuple[Column, ...]:
    """Return the columns of the steps of one drone."""

    def lasted(step: LifeStep) -> str:
        if step.spent_s is not None:
            return formatting.age(step.spent_s)
        transition = step.transition
        return "-" if transition.state.ended else formatting.age(max(0.0, now - transition.at)) + "+"

    for_doc = "How long it lasted, seconds; null: it still does, or is an end."
    return (
        time_at("at", "When.", "transition.at", level=0),
        text("was", "State before; null: none.", "transition.was", null=True),
        text("state", "State from then on.", "transition.state", level=0, choices=DRONE_STATES),
        number("for_s", for_doc, "spent_s", null=True, head="FOR", show=lasted),
        whole("tick", "Number of the tick.", "transition.tick", level=1),
        words("text", "Why, in words.", lambda s: formatting.describe(s.transition.reason), head="WHY", least=20),
        data("reason", "Why, as data.", "transition.reason", convert=reason_data),
    )


def _drone_facts(now: float, idle: IdleLimit | None) -> tuple[Column, ...]:
    """Return the facts of a drone: the columns of the list with titles for people, and the limit of its idle time."""
    shows: dict[str, Callable[[Drone], str]] = {
        "state": lambda d: _state_words(d, now),
        "grace_used_s": lambda d: _grace_words(d, now),
        "leaving": lambda d: "-" if d.leaving is None or d.state.ended else d.leaving.value,
        "node": lambda d: d.node,
        "site_reason": lambda d: formatting.excerpt(d.site_reason),
    }
    facts = [replace(c, show=shows.get(c.key, c.show)) for c in as_facts(drone_columns(now))]
    facts = [replace(c, unit=lambda at: _when(at, now)) if c.key.endswith("_at") else c for c in facts]
    limit_s, by = idle or (None, "")
    may_idle = f"{formatting.seconds(limit_s)}: {formatting.IDLE_LIMIT_WORDS.get(by)}" if limit_s is not None else "-"
    limit_doc = "How long it may be idle, seconds; null: it is not idle."
    by_doc = "Where that comes from: gaps, start-cost, time-out, slow-start or fixed; empty: it is not idle."
    return (
        *facts,
        number("idle_limit_s", limit_doc, lambda _: limit_s, null=True, head="may be idle", show=lambda _: may_idle),
        text("idle_limit_by", by_doc, lambda _: by),
    )


def _state_words(drone: Drone, now: float) -> str:
    lasting = "," if drone.state.ended else f" for {formatting.ago(drone.since, now)}:"
    return f"{drone.state.value}{lasting} {formatting.STATE_WORDS[drone.state]}"


def _grace_words(drone: Drone, now: float) -> str:
    if not drone.notice_at:
        return "-"
    used = formatting.seconds(max(0.0, (drone.ended_at or now) - drone.notice_at))
    return used if drone.state.ended else f"{used} so far"


def _when(at: float, now: float) -> str:
    if not at or not isfinite(at):
        return "-"
    relative = f"{formatting.age(now - at)} ago" if at <= now else f"in {formatting.age(at - now)}"
    return f"{formatting.iso(at)} ({relative})"


# ---------------------------------------------------------------------------------------------------------------- list

drones_app = typer.Typer(cls=VerbGroup, add_completion=False, rich_markup_mode=None)

Sites = Annotated[
    list[str] | None,
    typer.Option("--site", metavar="NAME", help="Only of this site; repeatable.", autocompletion=complete_sites),
]
_STATE_HELP = "Only in this state; repeatable. Ends imply --ended."
States = Annotated[
    list[DroneState] | None, typer.Option("--state", metavar="STATE", help=_STATE_HELP, case_sensitive=False)
]
_TYPE_HELP = "Only of this drone type; repeatable."
Types = Annotated[
    list[str] | None, typer.Option("--type", metavar="SITE/NAME", help=_TYPE_HELP, autocompletion=complete_types)
]
_NODE_HELP = "Only on this node, by its whole name or the part before the first dot; repeatable."
Nodes = Annotated[list[str] | None, typer.Option("--node", metavar="NAME", help=_NODE_HELP)]


@dataclass(frozen=True, slots=True)
class DroneFilter(OptionGroup):
    """Options: the drones that pass every filter given."""

    site: Sites = None
    state: States = None
    type_: Types = None
    node: Nodes = None

    @property
    def given(self) -> bool:
        return bool(self.site or self.state or self.type_ or self.node)

    def find(self, reader: Reader, *, ended: bool | None) -> list[Drone]:
        """Return the drones. Raises :class:`VerbError` for an unknown site."""
        require_known_sites(reader, self.site or ())
        return reader.drones(
            ended=ended, sites=self.site or (), states=self.state or (), types=self.type_ or (), nodes=self.node or ()
        )


@drones_app.callback(invoke_without_command=True)
@shared
def drones(
    ctx: typer.Context,
    drone_filter: DroneFilter,
    where: Where,
    show: Show,
    pick: Pick,
    ended: Annotated[bool, typer.Option("--ended", help="Only those that have ended.")] = False,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Live and ended ones.")] = False,
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
    if ctx.invoked_subcommand is not None:
        refuse_options_before_verb(ctx)
        return
    reader = open_record(where)
    shown = _shown_ends(drone_filter.state or (), ended, all_)
    reasons = "reason" in (show.columns or "").lower().split(",")
    present(show, lambda: picked(drone_listing(reader, drone_filter, shown, time.time(), reasons=reasons), pick))


def _shown_ends(states: Sequence[DroneState], ended: bool, all_: bool) -> bool | None:
    """Return True for only ended drones, False for only live ones, None for both, also as the states imply it."""
    kinds = {s.ended for s in states}
    if all_ or (ended and kinds == {False}) or kinds == {False, True}:
        return None
    return ended or kinds == {True}


def drone_listing(
    reader: Reader, drone_filter: DroneFilter, ended: bool | None, now: float, *, reasons: bool = False
) -> Listing:
    """Return the answer of ``drones``; with ``reasons`` why each is in its state, which takes a look-up per drone."""
    found = drone_filter.find(reader, ended=ended)
    columns = drone_columns(now, (lambda d: _newest_reason(reader, d)) if reasons else None)
    return Listing(DRONES_SCHEMA, columns, found, lambda d: d.id, _list_scope(reader, found, drone_filter, ended))


def _newest_reason(reader: Reader, drone: Drone) -> str:
    history = reader.history(drone.id)
    return formatting.describe(history[-1].reason) if history else ""


def _list_scope(reader: Reader, found: Sequence[Drone], drone_filter: DroneFilter, ended: bool | None) -> str:
    kind = {False: "live drone", True: "ended drone", None: "drone"}[ended]
    of = f" of controller {controller_of(found[0].id)}" if found else ""
    filters = {
        "site": drone_filter.site,
        "state": [s.value for s in drone_filter.state or ()],
        "type": drone_filter.type_,
        "node": drone_filter.node,
    }
    only = [f"{name} {', '.join(values)}" for name, values in filters.items() if values]
    more = {False: "--ended for past ones", True: "--all for live ones too", None: ""}[ended]
    runs = "" if reader.holder() else "no controller runs: as last recorded"
    return "; ".join(filter(None, (formatting.count(len(found), kind) + of, *only, more, runs)))


def controller_of(drone_id: str) -> str:
    """Return the name of the controller in a drone id (``<controller>-<store birth>-<serial>``)."""
    return drone_id.rsplit("-", 2)[0]


# ---------------------------------------------------------------------------------------------------------------- show


@drones_app.command("show")
@shared
def show_drone(
    where: Where,
    show: Show,
    any_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="Drone id, its number, the site's id, or a slot name.", autocompletion=complete_drones
        ),
    ],
) -> None:
    """Show the whole life of one drone: every step with time, duration and reason.

    \b
    Examples:
      provisioner drones show kit-x7q2-17
      provisioner drones show slot1@gpu07.example.org
      provisioner drones show 17 -o json
    """
    reader = open_record(where)
    present(show, lambda: drone_document(reader, find_drone(reader, any_id)))


def drone_document(reader: Reader, drone_id: str) -> Document:
    """Return the document of ``drones show``."""
    drone = reader.drone(DroneId(drone_id))
    if drone is None:
        raise VerbError(f"drone {drone_id} is no longer on record")
    idle = _idle_limit(drone, reader)
    return life_document(drone, life_steps(reader.history(drone.id)), time.time(), reader.last_output(drone.id), idle)


def _idle_limit(drone: Drone, reader: Reader) -> IdleLimit | None:
    """Return how long a drone that is idle may be so, by the newest tick."""
    from provisioner.planner.retirement import idle_limit

    views = reader.views() if drone.state is DroneState.IDLE else None
    return idle_limit(drone, views.policy, views.estimates) if views is not None else None


def life_document(
    drone: Drone, life_steps: list[LifeStep], now: float, last_words: str = "", idle: IdleLimit | None = None
) -> Document:
    """Return one drone and its steps as a document, with what it said last, and how long it may be idle."""
    line = words("line", "A line of what it said last, where its site tells: a console's end.", str, least=40)
    return Document(
        "provisioner.drone/1",
        Listing("", _drone_facts(now, idle), [drone], lambda d: d.id),
        {
            "history": Listing(HISTORY_SCHEMA, history_columns(now), life_steps, lambda s: s.transition.drone_id),
            "last_words": Listing("", (line,), last_words.splitlines(), str),
        },
        {"history": "Life"} | ({"last_words": "What it said last"} if last_words else {}),
        scope=f"{formatting.count(len(life_steps), 'step')} on record",
    )


# ------------------------------------------------------------------------------------------------------- drain and kill

WAIT_POLL_S = 0.5
CONFIRM_FROM = 2
"""From this many drones on a person is asked to confirm."""

_IDS_HELP = "Drone ids, their numbers, sites' ids or slot names."
Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help=_IDS_HELP, show_default=False, autocompletion=complete_live_drones),
]
Reason = Annotated[str, typer.Option("--reason", "-r", metavar="TEXT", help="Why; it is recorded with every step.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say which drones are meant.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when all of them have ended.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0, help="With --wait: give up after this; exit 124.")
]


_MODE_HELP = (
    "none: let it run out; peaceful: no new jobs; graceful: running ones are asked to leave; fast: running ones are "
    "killed; resume: back into service."
)


@dataclass(frozen=True, slots=True)
class LeaveOptions(OptionGroup):
    """Options of the verbs that make drones leave."""

    reason: Reason
    yes: Yes = False
    dry_run: DryRun = False
    wait: Wait = False
    timeout: Timeout = 600.0


@drones_app.command("drain")
@shared
def drain(
    options: LeaveOptions,
    drone_filter: DroneFilter,
    where: Where,
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
    _request_leave(open_record(where), RequestKind.DRAIN, mode, verb, ids or [], drone_filter, options)


@drones_app.command("kill")
@shared
def kill(options: LeaveOptions, drone_filter: DroneFilter, where: Where, ids: Ids = None) -> None:
    """End drones at their sites without waiting for their jobs. Carried out at the controller's next tick.

    \b
    Examples:
      provisioner drones kill kit-x7q2-17 --reason "GPU fell off the bus"
      provisioner drones kill --type horeka/h100 --reason "wrong image" --dry-run
      provisioner drones kill 17 18 --reason "runaway" --yes --wait
    """
    kind, mode = RequestKind.KILL, DrainMode.PEACEFUL
    _request_leave(open_record(where), kind, mode, "kill", ids or [], drone_filter, options)


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
        raise VerbError("--reason must not be empty: it is recorded with every step", code=Exit.USAGE)
    chosen, gone, complaints = _selected(reader, ids, drone_filter)
    if gone:
        note(f"already ended, nothing to do: {named(gone)}")
    note(*complaints)
    if not chosen:
        if complaints:
            raise VerbError("nothing was asked for")
        note("no live drone is meant: nothing was asked for")
        return
    what = f"{verb} {formatting.count(len(chosen), 'drone')}"
    if options.dry_run:
        note(f"would {what}:")
        print("\n".join(chosen))
    else:
        if not options.yes and len(chosen) >= CONFIRM_FROM:
            _confirm(f"{what}: {named(chosen)}?")
        serial = reader.ask(kind, chosen, reason=options.reason, by=operator(), at=time.time(), mode=mode)
        note(f"request {serial} recorded: {what}")
        note_without_controller(reader)
        if options.wait:
            _wait_for_ends(reader, chosen, options.timeout)
    if complaints:
        raise typer.Exit(Exit.PARTIAL)


def _selected(
    reader: Reader, ids: Sequence[str], drone_filter: DroneFilter
) -> tuple[list[DroneId], list[DroneId], list[str]]:
    """Return the live drones that are meant, the ended ones among those named, and complaints about unknown ids."""
    if not ids and not drone_filter.given:
        raise VerbError("which drones? Name them, or select with --site, --state, --type, --node", code=Exit.USAGE)
    if ids and drone_filter.given:
        raise VerbError("name drones or select them with filters, not both", code=Exit.USAGE)
    if not ids:
        return [d.id for d in drone_filter.find(reader, ended=False)], [], []
    chosen: dict[DroneId, bool] = {}
    complaints: list[str] = []
    for any_id in ids:
        try:
            drone_id = find_drone(reader, any_id)
        except VerbError as unknown:
            complaints += unknown.lines
            continue
        drone = reader.drone(drone_id)
        chosen[drone_id] = drone is not None and not drone.state.ended
    return [i for i, live in chosen.items() if live], [i for i, live in chosen.items() if not live], complaints


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise VerbError(question, "not a terminal to ask at: say --yes to do it", code=Exit.USAGE)
    if not typer.confirm(formatting.sanitize(question), err=True):
        raise VerbError("nothing was asked for")


def note_without_controller(reader: Reader) -> None:
    """Tell the person that nobody carries out a request now, if so."""
    if reader.holder() is None:
        note("no controller runs: it will be carried out when one does")


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
        still = []
        for drone_id in left:
            drone = reader.drone(drone_id)
            if drone is not None and not drone.state.ended:
                still.append(drone_id)
            else:
                note(f"{drone_id} {'is no longer on record' if drone is None else drone.state.value}")
        left = still
        if not left:
            return
        if time.monotonic() >= deadline:
            raise VerbError(f"after {formatting.age(timeout_s)} not ended: {named(left)}", code=Exit.TIMED_OUT)
        time.sleep(min(WAIT_POLL_S, max(0.0, deadline - time.monotonic())))
