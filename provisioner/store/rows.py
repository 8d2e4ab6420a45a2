"""Drones as rows: column order is field order. Imports no database library, so that the reader starts quickly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from provisioner.model import CompletedJob, DrainMode, Drone, DroneState
from provisioner.store.changes import serial_of

FIELDS = tuple(each.name for each in fields(Drone))
"""Columns that make up a drone, in the order in which :func:`drones_of` wants them."""
COMPLETION_FIELDS = tuple(each.name for each in fields(CompletedJob))
"""The same of a job that was done, for :func:`completions_of`."""

_STATE = FIELDS.index("state")
_LEAVING = FIELDS.index("leaving")
_DRAIN_MODE = FIELDS.index("drain_mode")
_STATES: dict[str | None, DroneState | None] = {state.value: state for state in DroneState} | {None: None}

_KEPT = tuple(name for name in FIELDS if name != "heard_at")


def row_of(drone: Drone) -> dict[str, object]:
    """The row of ``drone`` in table ``drones``. ``heard_at``, which changes all the time, is in a table of its own."""
    row: dict[str, object] = {name: getattr(drone, name) for name in _KEPT}
    row["state"] = drone.state.value
    row["leaving"] = drone.leaving.value if drone.leaving else None
    row["drain_mode"] = drone.drain_mode.value
    row["site"] = drone.site
    row["serial"] = serial_of(drone.id)
    row["live"] = not drone.state.ended
    return row


def drones_of(rows: Iterable[Sequence[Any]]) -> list[Drone]:
    """Drones from rows with the columns :data:`FIELDS`."""
    drones = []
    for row in rows:
        values = list(row)
        values[_STATE] = _STATES[values[_STATE]]
        values[_LEAVING] = _STATES[values[_LEAVING]]
        values[_DRAIN_MODE] = DrainMode(values[_DRAIN_MODE])
        drones.append(Drone(*values))
    return drones


def completions_of(rows: Iterable[Sequence[Any]]) -> list[CompletedJob]:
    """Completions from rows with the columns :data:`COMPLETION_FIELDS`."""
    return [CompletedJob(*row) for row in rows]


def completion_row(done: CompletedJob) -> dict[str, object]:
    """A completion as its row."""
    return {name: getattr(done, name) for name in COMPLETION_FIELDS}
