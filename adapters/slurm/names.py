"""A job's name says which drones it is: whose, of which type, of which site, and of an array from which number on.

``kit-a1b2-17.a100.horeka`` is one drone. ``kit-a1b2-17+.a100.horeka`` is an array: its task ``123_4`` is
``kit-a1b2-21``. The name is all that a listing needs, so a controller that starts anew knows each of its drones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from adapters.slurm.records import SlurmJob
from provisioner.model import DroneId

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_ID = re.compile(rf"(?P<prefix>(?P<controller>{_LABEL})-[a-z0-9]{{1,32}})-(?P<serial>0|[1-9][0-9]{{0,17}})")
_NAME = re.compile(rf"{_ID.pattern}(?P<array>\+?)\.(?P<type>{_LABEL})\.(?P<site>{_LABEL})")
_REMOTE_ID = re.compile(r"(?P<job>[1-9][0-9]{0,17})(?:_(?P<task>[0-9]{1,9}))?")
_LONGEST_ID = 63


@dataclass(frozen=True, slots=True)
class Named:
    """What a job's name tells."""

    drone_id: DroneId
    type: str


def job_name(drone_ids: Sequence[DroneId], kind: str, site: str) -> str:
    """Name of the job that is these drones, of one prefix, the first of them having the lowest serial."""
    array = "+" if len(drone_ids) > 1 else ""
    return f"{drone_ids[0]}{array}.{kind}.{site}"


def serial(drone_id: DroneId, controller: str) -> tuple[str, int] | None:
    """Prefix and serial of a drone id of this controller; None if it is none."""
    found = _ID.fullmatch(drone_id)
    if found is None or found["controller"] != controller or len(drone_id) > _LONGEST_ID:
        return None
    return found["prefix"], int(found["serial"])


def named(job: SlurmJob, controller: str, site: str) -> Named | None:
    """Which drone of ``controller`` at ``site`` a job is; None if it is nothing of that."""
    name, remote = _NAME.fullmatch(job.name[:256]), _REMOTE_ID.fullmatch(job.remote_id)
    if name is None or remote is None or (name["controller"], name["site"]) != (controller, site):
        return None
    if bool(name["array"]) != (remote["task"] is not None):
        return None
    drone_id = f"{name['prefix']}-{int(name['serial']) + int(remote['task'] or 0)}"
    return Named(DroneId(drone_id), name["type"]) if len(drone_id) <= _LONGEST_ID else None


def is_drone(job: SlurmJob) -> bool:
    """Whether a job is a drone, ours or another controller's."""
    return _NAME.fullmatch(job.name[:256]) is not None
