"""Drones as rows: the columns of ``drones``, and what to say of one drone in a few words."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from provisioner import formatting
from provisioner.cli.cells import span_s, text, time_at, whole, words
from provisioner.cli.listing import Column
from provisioner.model import WHOLE_GPU, Drone, DroneState
from provisioner.store import Transition

SCHEMA = "provisioner.drones/1"
HISTORY_SCHEMA = "provisioner.history/1"

ID_LEAST = 16
STATES = tuple(s.value for s in DroneState)


def tint(drone: Drone) -> str:
    """The colour of a drone's state on a terminal."""
    match drone.state:
        case DroneState.BUSY:
            return "green"
        case DroneState.DRAINING | DroneState.STOPPING:
            return "yellow"
        case DroneState.FAILED | DroneState.LOST | DroneState.JOIN_TIMEOUT:
            return "red"
        case DroneState.REQUESTED | DroneState.SUBMITTED | DroneState.QUEUED | DroneState.BOOTING:
            return "blue"
        case _:
            return ""


def in_brief(drone: Drone, now: float) -> str:
    """What is worth knowing of a drone beside its state, from its record alone: trouble first."""
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
            parts.append(f"told to leave {formatting.ago(drone.notice_at, now)} ago")
        if drone.asked > 1:
            parts.append(f"asked {drone.asked} times to stop")
    elif drone.lost_gpu_s or drone.lost_jobs:
        parts.append(f"lost {lost(drone)}")
    if drone.site_reason:
        parts.append(formatting.excerpt(drone.site_reason))
    return "; ".join(parts)


def short(node: str) -> str:
    """A node's name for a table: without its domain, and an address whole."""
    first = node.partition(".")[0]
    return node if first.isdecimal() else first


def at_risk_gpu_s(drone: Drone, now: float) -> float:
    """What would be lost if it ended now, as of its slot."""
    if drone.state.ended or not drone.work_at:
        return 0.0
    return drone.work_gpu_milli / WHOLE_GPU * max(0.0, now - drone.work_at)


def work(drone: Drone, gpu_s: float) -> str:
    """An amount of jobs' work, for people; ``-`` for none."""
    unit = "GPU" if drone.gpu_milli else "CPU"
    return f"{formatting.number(round(gpu_s, 1))} {unit}-seconds" if gpu_s else "-"


def lost(drone: Drone) -> str:
    """What its end has cost, for people; ``-`` where nothing was."""
    jobs = f"{formatting.count(drone.lost_jobs, 'job')}, " if drone.lost_jobs else ""
    return f"{jobs}{work(drone, drone.lost_gpu_s)}" if drone.lost_gpu_s else jobs.rstrip(", ") or "-"


def columns(now: float, reason: Callable[[Drone], str] | None = None) -> tuple[Column[Drone], ...]:
    """Of drones at ``now``. ``reason``: looks up why a drone is in its state, where that is asked for."""

    def grace_used_s(drone: Drone) -> float | None:
        return max(0.0, (drone.ended_at or now) - drone.notice_at) if drone.notice_at else None

    return (
        text("id", attrgetter("id"), "Our id of the drone.", level=0, least=ID_LEAST, tail=True),
        text("site", attrgetter("site"), "Site.", level=2),
        text("type", attrgetter("type"), "Drone type, as site/name.", level=0, least=10, tail=True),
        Column[Drone]("state", lambda x: x.state.value, "State.", level=0, tint=tint, choices=STATES),
        span_s("state_s", lambda x: max(0.0, now - x.since), "Time in this state, seconds.", level=0, head="FOR"),
        span_s(
            "age_s",
            lambda x: max(0.0, (x.ended_at or now) - x.requested_at),
            "Time since it was asked for, until its end if it has ended, seconds.",
            level=0,
            head="AGE",
        ),
        whole("jobs", attrgetter("jobs"), "Jobs that run in it now.", level=0, head="RUN"),
        whole(
            "jobs_started", attrgetter("jobs_started"), "Jobs started in it so far.", level=0, head="STARTED", spare=1
        ),
        whole(
            "gpu_milli", attrgetter("gpu_milli"), "Thousandths of a GPU.", level=1, head="GPUS", show=formatting.gpus
        ),
        text(
            "for_class", attrgetter("for_class"), "Job class that it was started for.", level=1, head="CLASS", least=6
        ),
        text("avoids", attrgetter("avoids"), "Users whose jobs it does not take.", level=2),
        text("remote_id", attrgetter("remote_id"), "The site's id.", level=0, head="REMOTE", least=8, tail=True),
        Column[Drone](
            "node",
            attrgetter("node"),
            "Node that it runs on, as the site names it; empty: not told.",
            level=0,
            least=8,
            tail=True,
            spare=1,
            show=lambda x: short(x.node),
        ),
        text(
            "site_slot",
            attrgetter("site_slot"),
            "The site's name of its place on the node; empty: not told.",
            level=0,
            head="SITE SLOT",
            least=8,
            tail=True,
            spare=3,
        ),
        text("slot", attrgetter("slot"), "The pool's name of its slot.", level=0, least=8, tail=True, spare=2),
        words("note", lambda x: in_brief(x, now), "What is worth knowing beside the state.", level=0, least=18),
        *([] if reason is None else [words("reason", reason, "Why it is in this state.", level=0, least=20)]),
        Column[Drone](
            "leaving",
            lambda x: x.leaving.value if x.leaving else None,
            "The end that it will have once it is confirmed gone; null: not asked to leave.",
            null=True,
        ),
        time_at("since_at", attrgetter("since"), "When it entered its state."),
        time_at("requested_at", attrgetter("requested_at"), "When it was recorded and asked for."),
        time_at("submitted_at", attrgetter("submitted_at"), "When the site took the order."),
        time_at("started_at", attrgetter("started_at"), "When it began to run."),
        time_at("joined_at", attrgetter("joined_at"), "When its slot came to the pool."),
        time_at("busy_at", attrgetter("busy_at"), "When it first had a job."),
        time_at("idle_at", attrgetter("idle_at"), "Since when it has no job."),
        time_at("heard_at", attrgetter("heard_at"), "Last sign of life in the pool."),
        time_at("missing_at", attrgetter("missing_at"), "Since when the site's listings lack it."),
        time_at("unslotted_at", attrgetter("unslotted_at"), "Since when the pool lacks its slot."),
        time_at("asked_at", attrgetter("asked_at"), "When it was last asked to drain or stop."),
        whole("asked", attrgetter("asked"), "How often it was asked to stop."),
        time_at("retires_at", attrgetter("retires_at"), "When it takes no new job any more."),
        time_at("ended_at", attrgetter("ended_at"), "When it ended."),
        time_at(
            "notice_at",
            attrgetter("notice_at"),
            "When the site's notice was first seen, or when it was asked to leave for the owner.",
        ),
        span_s(
            "grace_used_s",
            grace_used_s,
            "From that notice to its end, or until now; null: no notice.",
            head="GRACE USED",
        ),
        Column[Drone](
            "at_risk_gpu_s",
            lambda x: round(at_risk_gpu_s(x, now), 3),
            "Work of jobs that would be lost if it ended now: GPU-seconds, of a CPU drone CPU-seconds.",
            kind="number",
            show=lambda x: work(x, at_risk_gpu_s(x, now)),
        ),
        Column[Drone](
            "lost_gpu_s",
            lambda x: x.lost_gpu_s,
            "Work of jobs that its end has cost: GPU-seconds, of a CPU drone CPU-seconds.",
            kind="number",
            show=lambda x: lost(x),
        ),
        whole("lost_jobs", attrgetter("lost_jobs"), "Jobs that lost it."),
        text(
            "drain_refusal",
            attrgetter("drain_refusal"),
            "Why the overlay refused to drain it, or to take it back into service; empty: it did not.",
        ),
        text("site_reason", attrgetter("site_reason"), "The site's own word."),
    )


Step = tuple[Transition, float | None]
"""A step in a drone's life and how long it stayed in that state; None while it is in it."""


def steps(history: list[Transition]) -> list[Step]:
    """Transitions with the time spent in each state."""
    ends = [*(t.at for t in history[1:]), None]
    return [
        (t, None if end is None or t.state.ended else max(0.0, end - t.at))
        for t, end in zip(history, ends, strict=False)
    ]


def history_columns(now: float) -> tuple[Column[Step], ...]:
    """Of the steps of one drone."""
    from provisioner.reasons import Reason
    from provisioner.serialization import to_plain

    def lasted(step: Step) -> str:
        return (
            formatting.age(step[1])
            if step[1] is not None
            else "-"
            if step[0].state.ended
            else (formatting.age(max(0.0, now - step[0].at)) + "+")
        )

    return (
        time_at("at", lambda s: s[0].at, "When.", level=0),
        Column[Step]("was", lambda s: s[0].was.value if s[0].was else None, "State before; null: none.", null=True),
        Column[Step]("state", lambda s: s[0].state.value, "State from then on.", level=0, choices=STATES),
        Column[Step](
            "for_s",
            lambda s: s[1],
            "How long it lasted, seconds; null: it still does, or is an end.",
            kind="number",
            null=True,
            level=0,
            head="FOR",
            show=lasted,
            right=True,
        ),
        whole("tick", lambda s: s[0].tick, "Number of the tick.", level=1),
        words("text", lambda s: formatting.describe(s[0].reason), "Why, in words.", level=0, head="WHY", least=20),
        Column[Step]("reason", lambda s: to_plain(s[0].reason, Reason), "Why, as data.", kind="object"),
    )
