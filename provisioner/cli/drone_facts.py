"""One drone's facts for people and machines: the same keys as in the list, laid out to be read."""

from __future__ import annotations

from dataclasses import replace

from provisioner import formatting
from provisioner.cli import drone_rows
from provisioner.cli.cells import text
from provisioner.cli.listing import Column
from provisioner.model import Drone

_TITLES = {
    "id": "drone",
    "type": "type",
    "state": "state",
    "for_class": "started for class",
    "remote_id": "id at the site",
    "avoids": "takes no jobs of",
    "node": "node",
    "site_slot": "slot at the site",
    "slot": "slot in the pool",
    "gpu_milli": "gpus",
    "jobs": "jobs now",
    "jobs_started": "jobs so far",
    "leaving": "will end as",
    "requested_at": "asked for",
    "submitted_at": "taken by the site",
    "started_at": "started",
    "joined_at": "joined the pool",
    "busy_at": "first job",
    "idle_at": "idle since",
    "heard_at": "last heard of",
    "missing_at": "missing since",
    "unslotted_at": "out of pool since",
    "asked_at": "asked to leave",
    "retires_at": "retires",
    "ended_at": "ended",
    "notice_at": "told to leave",
    "grace_used_s": "grace used",
    "at_risk_gpu_s": "work at risk",
    "lost_gpu_s": "work lost",
    "site_reason": "the site says",
    "drain_refusal": "drain refused",
}


def facts(now: float, idle_s: float | None = None, idle_by: str = "") -> tuple[Column[Drone], ...]:
    """Return the columns of the list, titled as sentences begin; times with their age. ``idle_s`` and ``idle_by``: how
    long it may be idle, and where that comes from."""
    may_idle = f"{formatting.seconds(idle_s)}: {formatting.idle_words(idle_by)}" if idle_s is not None else "-"
    return (
        *(_fact(c, now) for c in drone_rows.columns(now)),
        Column[Drone](
            "idle_limit_s",
            lambda d: idle_s,
            "How long it may be idle, seconds; null: it is not idle.",
            kind="number",
            null=True,
            level=0,
            head="may be idle",
            show=lambda d: may_idle,
        ),
        text(
            "idle_limit_by",
            lambda d: idle_by,
            "Where that comes from: gaps, start-cost, time-out, slow-start or fixed; empty: it is not idle.",
        ),
    )


def _fact(column: Column[Drone], now: float) -> Column[Drone]:
    title = _TITLES.get(column.key)
    if title is None:
        return replace(column, level=2)
    if column.key.endswith("_at"):
        return replace(column, level=0, head=title, show=lambda d: _when(column.of(d), now))
    if column.key == "state":
        return replace(
            column,
            level=0,
            head=title,
            show=lambda d: (
                f"{d.state.value} for {formatting.ago(d.since, now)}: {formatting.state_words(d.state)}"
                if not d.state.ended
                else f"{d.state.value}, {formatting.state_words(d.state)}"
            ),
        )
    if column.key == "grace_used_s":
        return replace(column, level=0, head=title, show=lambda d: _grace(d, now))
    if column.key == "leaving":
        return replace(column, level=0, head=title, show=_end_to_come)
    if column.key == "node":
        return replace(column, level=0, head=title, show=None)
    if column.key == "site_reason":
        return replace(column, level=0, head=title, show=lambda d: formatting.excerpt(d.site_reason))
    return replace(column, level=0, head=title)


def _grace(drone: Drone, now: float) -> str:
    if not drone.notice_at:
        return "-"
    used = formatting.seconds(max(0.0, (drone.ended_at or now) - drone.notice_at))
    return used if drone.state.ended else f"{used} so far"


def _end_to_come(drone: Drone) -> str:
    return "-" if drone.leaving is None or drone.state.ended else drone.leaving.value


def _when(at: object, now: float) -> str:
    if not isinstance(at, float | int):
        return "-"
    return (
        f"{formatting.iso(at)} ({formatting.age(now - at)} ago)"
        if at <= now
        else f"{formatting.iso(at)} (in {formatting.age(at - now)})"
    )
