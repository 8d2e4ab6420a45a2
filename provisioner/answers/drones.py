"""Drones: a list of them, and the life of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise, zip_longest
from math import isfinite
from typing import Annotated, Any, NamedTuple

from provisioner import descriptions, formatting
from provisioner.answers.columns import (
    Column,
    Document,
    Listing,
    age_s,
    ago,
    as_facts,
    data,
    gpus,
    ident,
    now,
    number,
    picked,
    reason_data,
    shown_as,
    span_s,
    text,
    time_at,
    whole,
    words,
)
from provisioner.answers.errors import VerbError
from provisioner.answers.lookup import class_names, controller_of, find_drone, require_known_sites
from provisioner.answers.query import (
    Format,
    ListQuery,
    Options,
    Query,
    option,
    question,
    subject,
    switch,
)
from provisioner.answers.usage import USE_COLUMN, RecordedUse, with_use
from provisioner.model import (
    WHOLE_GPU,
    Drone,
    DroneId,
    DroneState,
    SitePolicy,
    TypeKey,
)
from provisioner.reasons import IDLE_LIMIT_WORDS
from provisioner.store import Transition, Views
from provisioner.store.reader import Reader

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
                f"drain refused, jobs still start: {formatting.excerpt(drone.drain_refusal)}"
            )
        if drone.missing_at:
            parts.append(f"missing at the site for {ago(drone.missing_at)}")
        if drone.unslotted_at:
            parts.append(f"out of the pool for {ago(drone.unslotted_at)}")
        if drone.leaving is not None:
            parts.append(f"will end as {drone.leaving.value}")
        if drone.notice_at:
            parts.append(f"notice of preemption {ago(drone.notice_at)} ago")
        if drone.asked > 1:
            parts.append(f"{drone.asked} orders to drain or stop")
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
    return max(0.0, (drone.ended_at or now()) - drone.requested_at)


def _grace_used_s(drone: Drone) -> float | None:
    return max(0.0, (drone.ended_at or now()) - drone.notice_at) if drone.notice_at else None


def _at_risk_gpu_s(drone: Drone) -> float:
    if drone.state.ended or not drone.work_at:
        return 0.0
    return round(drone.work_gpu_milli / WHOLE_GPU * max(0.0, now() - drone.work_at), 3)


_WORK_UNIT = "GPU-seconds, of a CPU drone CPU-seconds."
_RISK = f"Work of jobs that would be lost if it ended now: {_WORK_UNIT}"

DRONE_COLUMNS = (
    ident("id", "Id of the drone.", least=16, fact="drone"),
    text("site", "Site."),
    ident("type", "Drone type, as site/name.", least=10, fact="type"),
    text("state", "State.", level=0, tint=STATE_TINTS, choices=DRONE_STATES, fact="state"),
    age_s("state_s", "Time in this state, seconds.", "since", head="FOR"),
    span_s(
        "age_s",
        "Time since the order (until the end, if it has ended), seconds.",
        _age_s,
        head="AGE",
    ),
    whole("jobs", "Jobs that run in it now.", head="RUN", fact="jobs now"),
    whole(
        "jobs_started", "Jobs started in it so far.", head="STARTED", spare=1, fact="jobs so far"
    ),
    gpus("gpu_milli", "Thousandths of a GPU.", level=1, head="GPUS", fact="gpus"),
    USE_COLUMN,
    text(
        "for_class",
        "Job class that it was started for.",
        head="CLASS",
        level=1,
        least=6,
        fact="for class",
    ),
    text("service", "Service that its server belongs to; empty: it takes jobs.", fact="service"),
    text(
        "job_filter",
        "Rules on the jobs that it accepts, such as `excluded_users=anna,ben min_gpus=2`.",
        lambda drone: str(drone.job_filter),
        fact="job filter",
    ),
    ident("remote_id", "The site's id.", head="REMOTE", fact="id at the site"),
    ident(
        "node",
        "Node, as the site names it; empty: unknown.",
        spare=1,
        show=_node_without_domain,
        fact="node",
    ),
    ident(
        "site_slot",
        "Name of its slot at the site.",
        head="SITE SLOT",
        spare=3,
        fact="slot at the site",
    ),
    ident("slot", "Name of its slot in the pool.", spare=2, fact="slot in the pool"),
    words("note", "Problems and facts in addition to the state.", drone_note, least=18),
    text(
        "leaving",
        "Final state after a drain or stop; null: neither is ordered.",
        null=True,
        fact="will end as",
    ),
    time_at("requested_at", "When it was recorded and ordered.", fact="asked for"),
    time_at("submitted_at", "When the site accepted the order.", fact="taken by the site"),
    time_at("started_at", "When it began to run.", fact="started"),
    time_at("joined_at", "When its slot joined the pool.", fact="joined the pool"),
    time_at("busy_at", "When it first had a job.", fact="first job"),
    time_at("idle_at", "Since when it has no job.", fact="idle since"),
    time_at(
        "heard_at",
        "Last sign of life in the pool, recorded at least every 15 minutes.",
        fact="last heard of",
    ),
    time_at(
        "missing_at", "Since when it is missing from the site's listings.", fact="missing since"
    ),
    time_at(
        "unslotted_at", "Since when its slot is missing from the pool.", fact="out of pool since"
    ),
    time_at("asked_at", "When it was last asked to drain or stop.", fact="asked to drain or stop"),
    time_at("retires_at", "When it stops accepting jobs.", fact="retires"),
    time_at("ended_at", "When it ended.", fact="ended"),
    time_at(
        "notice_at",
        "When it first got a notice of preemption or an order to leave for the owner.",
        fact="asked to leave",
    ),
    span_s(
        "grace_used_s",
        "Time from the notice to its end, or until now.",
        _grace_used_s,
        fact="grace used",
    ),
    number(
        "at_risk_gpu_s",
        _RISK,
        _at_risk_gpu_s,
        show=lambda d: _work(d, _at_risk_gpu_s(d)),
        fact="work at risk",
    ),
    number(
        "lost_gpu_s",
        f"Work of jobs that its end destroyed: {_WORK_UNIT}",
        show=_lost_work,
        fact="work lost",
    ),
    whole("lost_jobs", "Jobs that lost it."),
    text("drain_refusal", "Why the overlay refused to drain or resume it.", fact="drain refused"),
    text(
        "site_reason",
        "Reason as the site writes it.",
        unit=formatting.excerpt,
        fact="the site says",
    ),
)


class LifeStep(NamedTuple):
    transition: Transition
    spent_s: float | None


HISTORY_COLUMNS = (
    time_at("at", "When.", "transition.at", level=0),
    text("was", "State before; null: none.", "transition.was", null=True),
    text("state", "New state.", "transition.state", level=0, choices=DRONE_STATES),
    span_s(
        "for_s",
        "Duration of the state, seconds; null: it is the present or final state.",
        "spent_s",
        head="FOR",
    ),
    whole("tick", "Number of the tick.", "transition.tick", level=1),
    words(
        "text",
        "Why, in words.",
        lambda s: s.transition.reason.describe(),
        head="WHY",
        least=20,
    ),
    data("reason", "Why, as data.", "transition.reason", convert=reason_data),
)
LAST_OUTPUT_LINE = words(
    "line",
    "Line of the last output: the end of the console log, if the site has it.",
    str,
    least=40,
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
    "drain": "the pool is asked to release it",
    "insist": "the site is asked again, at last without notice",
}


def state_limit(drone: Drone, views: Views | None) -> StateLimit:
    """Return how long a drone may stay in its state, and what happens then."""
    from provisioner.planner.retirement import MATCHABLE_IDLE_FACTOR
    from provisioner.planner.states import STATE_RULES, idle_limit

    rule = STATE_RULES.get(drone.state)
    if rule is None or views is None:
        return StateLimit(rule.limit if rule else "")
    if drone.service and rule.limit == "idle_timeout_s":
        return StateLimit()  # it stays while its service needs it
    limit_s = None
    by = ""
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
    ago_s = now() - at
    relative = f"{formatting.age(ago_s)} ago" if ago_s >= 0 else f"in {formatting.age(-ago_s)}"
    return f"{formatting.iso(at)} ({relative})"


def _state_words(drone: Drone) -> str:
    lasting = "," if drone.state.ended else f" for {ago(drone.since)}:"
    return f"{drone.state.value}{lasting} {descriptions.STATE_WORDS[drone.state]}"


_SHOWN_IN_FULL: dict[str, Callable[[Drone], str]] = {
    "state": _state_words,
    "leaving": lambda d: "-" if d.leaving is None or d.state.ended else d.leaving.value,
    "node": lambda d: d.node,
}


def _drone_facts(
    limit: StateLimit, gpus_offline: int, columns: Sequence[Column]
) -> tuple[Column, ...]:
    facts = [replace(c, show=_SHOWN_IN_FULL.get(c.key, c.show)) for c in as_facts(columns)]
    facts = [replace(c, unit=_when) if c.key.endswith("_at") else c for c in facts]
    by_doc = "Source of the limit of an idle drone, in words; empty: the setting."
    may_last = number(
        "limit_s", "Its value, seconds; null: no limit.", lambda _: limit.limit_s, null=True
    )
    return (
        *facts,
        whole(
            "gpus_offline",
            "GPUs that its checks have taken offline.",
            lambda _: gpus_offline,
            level=0 if gpus_offline else 2,
            head="GPUs offline",
        ),
        text(
            "limit", "Setting that limits the state; empty: it has ended.", lambda _: limit.setting
        ),
        replace(may_last, level=0, head="limit", show=lambda _: limit.words),
        text("limit_by", by_doc, lambda _: limit.by),
        text("then", "Action at the limit.", lambda _: limit.then, head="and then"),
    )


_NODE_HELP = "Select drones on this node (with or without its domain); repeatable."


class DroneFilter(Options):
    """Drones that pass every filter given."""

    site: Annotated[list[str] | None, option("NAME", "Select drones of this site; repeatable.")] = (
        None
    )
    state: Annotated[
        list[DroneState] | None, option("STATE", "Select drones in this state; repeatable.")
    ] = None
    type_: Annotated[
        list[str] | None, option("SITE/NAME", "Select drones of this type; repeatable.")
    ] = None
    node: Annotated[list[str] | None, option("NAME", _NODE_HELP)] = None

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
        require_known_sites(reader, self.site or ())
        return reader.drones(**page, **self.chosen)


class DronesQuery(DroneFilter, ListQuery):
    """Drones: which of them."""

    ended: Annotated[bool, switch("List only ended drones.")] = False
    all_: Annotated[bool, switch("List live and ended drones.", "--all", "-a")] = False
    after: Annotated[str | None, option("ID", "List only drones ordered after this one.")] = None


@question("drones", "/drones", lambda: [Listing(DRONES_SCHEMA, DRONE_COLUMNS, ())])
def drones(reader: Reader, query: DronesQuery) -> Listing:
    """List drones; show, drain or kill some.

    Lists live drones by default, oldest first. All verbs accept as ID of a drone: its id, the number at the end of its
    id, the id at the site, or the name of its slot in the pool or at the site. A narrow table omits the node; use
    -o wide or -o json.

    \b
    Examples:
      provisioner drones --ended --columns id,state,note --limit 20
      provisioner drones -o json | jq '.items[] | select(.state == "idle") | .id'
    """
    kinds = {state.ended for state in query.state or ()}  # states imply what is listed
    ended = query.ended or kinds == {True}
    both = query.all_ or (query.ended and kinds == {False}) or kinds == {False, True}
    use = query.output is not Format.TABLE or bool(query.columns)
    behind = None if query.after is None else reader.drone(find_drone(reader, query.after))
    # one more: does it go on?
    first = None if query.sort or query.limit is None else query.limit + 1
    found = drone_listing(
        reader, query, None if both else ended, first=first, after=behind, use=use
    )
    return picked(found, query.sort, query.limit)


def drone_listing(
    reader: Reader,
    drone_filter: DroneFilter,
    ended: bool | None,
    *,
    first: int | None = None,
    after: Drone | None = None,
    use: bool = False,
) -> Listing:
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
    columns: Sequence[Column] = DRONE_COLUMNS
    if use:
        columns = with_use(
            columns,
            RecordedUse(reader, reader.views(), of=[d.id for d in found]).by("drone"),
            lambda d: d.id,
        )
    names = cache(lambda: class_names(reader, reader.views()))
    columns = shown_as(columns, "for_class", lambda d: names().short_id(d.for_class))
    return Listing(
        DRONES_SCHEMA, columns, found, lambda d: d.id, scope, cursor=lambda d: d.id, total=total
    )


class DroneQuery(Query):
    """Drone, by any of its ids."""

    id: Annotated[str, subject("ID", "Id of a drone (see `provisioner drones --help`).")]


@question("drones show", "/drones/{id}", lambda: [_sample_life()])
def show_drone(reader: Reader, query: DroneQuery) -> Document:
    """Show one drone: every step with time, duration and reason.

    \b
    Examples:
      provisioner drones show slot1@gpu07.example.org -o json
    """
    return drone_document(reader, find_drone(reader, query.id))


def drone_document(reader: Reader, drone_id: DroneId) -> Document:
    """Return the document of ``drones show``. Raises :class:`VerbError` for a drone that has been deleted."""
    drone = reader.drone(drone_id)
    if drone is None:
        raise VerbError(f"drone {drone_id} is no longer on record")
    views = reader.views()
    use = RecordedUse(reader, views, drone.requested_at, [drone.id])
    used = with_use(DRONE_COLUMNS, use.by("drone"), lambda d: d.id)
    names = class_names(reader, views, reader.past_classes(drone.for_class))
    columns = shown_as(used, "for_class", lambda d: names.of(d.for_class))
    words = reader.last_output(drone.id).splitlines()
    offline = 0 if drone.state.ended else reader.gpus_offline(drone.id)
    return _life(drone, views, offline, columns, reader.history(drone.id), words)


def _sample_life() -> Document:
    drone = Drone(DroneId("a-b-1"), TypeKey("s/t"), DroneState.IDLE, 1.0, 1.0, 1000)
    return _life(drone, None, 0, DRONE_COLUMNS, (), ())


def _life(
    drone: Drone,
    views: Views | None,
    gpus_offline: int,
    columns: Sequence[Column],
    history: Sequence[Transition],
    words: Sequence[str],
) -> Document:
    spent = [max(0.0, after.at - step.at) for step, after in pairwise(history)]
    steps = [LifeStep(step, spent_s) for step, spent_s in zip_longest(history, spent)]
    return Document(
        "provisioner.drone/1",
        _drone_facts(state_limit(drone, views), gpus_offline, columns),
        drone,
        {
            "history": Listing("", HISTORY_COLUMNS, steps, title="Life"),
            "console_output": Listing(
                "", (LAST_OUTPUT_LINE,), words, title="Last output" if words else ""
            ),
        },
        name=drone.id,
        scope=f"{formatting.count(len(history), 'step')} on record",
    )
