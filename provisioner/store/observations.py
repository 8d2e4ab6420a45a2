"""Observations of a shadow: drones of other systems in the pool and free GPUs of the sites, over time.

They are in a table that only the record of a shadow has. An observation that equals the one before
is not stored again: ``last_at`` of that one moves on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from provisioner.model import DroneType, OtherDrones, SiteView, Snapshot
from provisioner.store.database import StoreConnection
from provisioner.store.tables import insert, pack
from provisioner.values import frozen

SCHEMA = """
CREATE TABLE IF NOT EXISTS observations (
    seq INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    at FLOAT NOT NULL,
    last_at FLOAT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS observations_last ON observations (last_at);
"""


@frozen
class Observation:
    """State of pool and sites from ``at`` until ``last_at``."""

    at: float
    last_at: float
    others: tuple[OtherDrones, ...] | None = None
    """None: unknown."""
    free_milli: Mapping[str, Mapping[str, int]] | None = None
    """GPUs that drones of ours could get, by site and GPU model; without sites that do not report them."""


def observed(snapshot: Snapshot) -> Observation:
    """Return what the views of a snapshot show. A view that could not be renewed shows nothing."""
    overlay = snapshot.overlay
    free = {}
    for name, polled in snapshot.sites.items():
        types = [kind for kind in snapshot.types if kind.site == name and kind.gpu_milli]
        if (
            polled.view is not None
            and polled.fault is None
            and (found := free_by_model(polled.view, types))
        ):
            free[name] = found
    others = overlay.view.others if overlay.view is not None and overlay.fault is None else None
    return Observation(snapshot.now, snapshot.now, others, free)


def free_by_model(view: SiteView, types: Sequence[DroneType]) -> dict[str, int]:
    """Return the free GPUs by model, in thousandths: what the drone type gets that gets most. Empty: unknown."""
    from provisioner.planner.owner import FreeResources  # the reader of a record must start quickly

    found: dict[str, int] = {}
    room = FreeResources.of(view.nodes, ())
    for kind in types if view.nodes or view.free is not None else ():
        places = room.count(kind) if view.nodes else (view.free or {}).get(kind.name, 0)
        places = min(places, (view.quota or {}).get(kind.name, places))
        found[kind.gpu_model] = max(found.get(kind.gpu_model, 0), places * kind.gpu_milli)
    return found


def write_observation(sql: StoreConnection, new: Observation) -> None:
    """Store an observation, or extend the one before."""
    row = sql.execute("SELECT seq, body FROM observations ORDER BY seq DESC LIMIT 1").fetchone()
    body = pack(replace(new, at=0.0, last_at=0.0))
    if row is not None and row[1] == body:
        sql.execute("UPDATE observations SET last_at = ? WHERE seq = ?", (new.last_at, row[0]))
    else:
        insert(sql, "observations", {"at": new.at, "last_at": new.last_at, "body": body})
