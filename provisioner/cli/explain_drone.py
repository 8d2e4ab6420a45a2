"""A drone explained: why it is in its state, how long that may last by policy, and what happens then."""

from __future__ import annotations

from dataclasses import dataclass

from provisioner import formatting
from provisioner.cli.cells import span_s, text
from provisioner.cli.drone_rows import HISTORY_SCHEMA, history_columns, in_brief, steps
from provisioner.cli.exits import Failure
from provisioner.cli.listing import Column, Document, Listing
from provisioner.model import Drone, DroneId, SitePolicy
from provisioner.reasons import Reason
from provisioner.store import Reader, Transition, Views

SCHEMA = "provisioner.drone-explained/1"


@dataclass(frozen=True, slots=True)
class Explained:
    """A drone, its newest step, and the limit of its state."""

    drone: Drone
    newest: Transition | None
    limit: str
    """Name of the policy setting that limits the state; empty: ended."""
    limit_s: float | None
    """None: without limit, or not known."""
    then: str
    by: str = ""
    """Source of the limit of an idle drone, in words."""


def explained_drone(reader: Reader, drone_id: DroneId, now: float) -> Document:
    """The document of ``explain drone``."""
    drone = reader.drone(drone_id)
    if drone is None:
        raise Failure(f"drone {drone_id} is no longer on record")
    history = reader.history(drone.id)
    row = _explained(drone, history[-1] if history else None, reader.views())
    return Document(
        SCHEMA,
        Listing("", _facts(now), [row], lambda r: r.drone.id),
        {"history": Listing(HISTORY_SCHEMA, history_columns(now), steps(history), lambda s: s[0].drone_id)},
        {"history": "Life"},
    )


def _explained(drone: Drone, newest: Transition | None, views: Views | None) -> Explained:
    from provisioner.planner.lifecycle import STATE_RULES

    stage = STATE_RULES.get(drone.state)
    if stage is None:
        return Explained(drone, newest, "", None, "")
    limit_s, by = _limit_s(drone, stage.limit, views)
    then = f"{_THEN[stage.then.value]}; it would end as {(drone.leaving or stage.ends_as).value}"
    return Explained(drone, newest, stage.limit, limit_s, then if limit_s else "", by)


_THEN = {
    "forget": "the record of it ends",
    "stop": "the site is asked to end it",
    "drain": "the pool is asked to let it go",
    "insist": "the site is asked again, at last without notice",
}


def _limit_s(drone: Drone, limit: str, views: Views | None) -> tuple[float | None, str]:
    """Return the limit in force at the newest tick (None for none), and where it comes from if that is no setting."""
    if views is None:
        return None, ""
    match limit:
        case "walltime_s":
            return next((t.walltime_s or None for t in views.types if t.key == drone.type), None), ""
        case "idle_timeout_s":
            from provisioner.planner.retirement import idle_limit

            limit_s, by = idle_limit(drone, views.policy, views.estimates)
            return limit_s, formatting.idle_words(by)
        case _:
            policy = views.policy.sites.get(drone.site, SitePolicy(drone.site))
            return float(getattr(policy, limit)), ""


def _facts(now: float) -> tuple[Column[Explained], ...]:
    from provisioner.serialization import to_plain

    return (
        text("id", lambda e: e.drone.id, "Our id.", level=0, head="drone"),
        text("type", lambda e: e.drone.type, "Drone type, as site/name.", level=0, head="type"),
        text("state", lambda e: e.drone.state.value, "State.", level=0, head="state"),
        text(
            "meaning", lambda e: formatting.state_words(e.drone.state), "What the state means.", level=0, head="means"
        ),
        text(
            "text",
            lambda e: formatting.describe(e.newest.reason) if e.newest else "",
            "Why it is in its state, in words.",
            level=0,
            head="because",
        ),
        Column[Explained](
            "reason",
            lambda e: to_plain(e.newest.reason, Reason) if e.newest else None,
            "Why, as data.",
            kind="object",
            null=True,
        ),
        span_s("for_s", lambda e: max(0.0, now - e.drone.since), "Time in this state, seconds.", level=0, head="for"),
        text("limit", lambda e: e.limit, "Setting that limits the state; empty: it has ended."),
        Column[Explained](
            "limit_s",
            lambda e: e.limit_s,
            "Its value, seconds; null: no limit.",
            kind="number",
            null=True,
            level=0,
            head="may last",
            show=_limit,
        ),
        text("limit_by", lambda e: e.by, "Where the limit of an idle drone comes from, in words; empty: the setting."),
        text("then", lambda e: e.then, "What happens after that.", level=0, head="and then"),
        text(
            "for_class",
            lambda e: e.drone.for_class,
            "Job class that it was started for.",
            level=0,
            head="started for class",
        ),
        text("note", lambda e: in_brief(e.drone, now), "What else is worth knowing.", level=0, head="note"),
        text("remote_id", lambda e: e.drone.remote_id, "The site's id.", level=0, head="id at the site"),
        text("node", lambda e: e.drone.node, "Node that it runs on; empty: not told.", level=0, head="node"),
        text(
            "site_slot",
            lambda e: e.drone.site_slot,
            "The site's name of its place there; empty: not told.",
            level=0,
            head="slot at the site",
        ),
        text("slot", lambda e: e.drone.slot, "The pool's name of its slot.", level=0, head="slot in the pool"),
    )


def _limit(row: Explained) -> str:
    if not row.limit:
        return "-"
    return (
        f"{formatting.seconds(row.limit_s)} ({row.by or row.limit})" if row.limit_s else f"no limit known ({row.limit})"
    )
