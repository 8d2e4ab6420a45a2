"""A job's name says which drones it is: whose, of which type, of which site, and of an array from which number on.

``kit-a1b2-17.a100.horeka`` is one drone. ``kit-a1b2-17+.a100.horeka`` is an array: its task ``123_4`` is
``kit-a1b2-21``. The name is all that a listing needs, so a controller that starts anew knows each of its drones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from adapters.shared.printing import printable
from adapters.slurm.cluster import Job
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


def numbers(remote_id: str) -> tuple[int, int]:
    """``123_4`` as (123, 4), to sort by age; a job of its own is task -1. What is no id comes last."""
    found = _REMOTE_ID.fullmatch(remote_id)
    if found is None:
        return 10**18, 0
    return int(found["job"]), int(found["task"]) if found["task"] is not None else -1


def checked_ids(remote_ids: Collection[str]) -> list[str]:
    """Ids as they may be given to Slurm. ValueError for what is no job or task."""
    for remote_id in remote_ids:
        if not _REMOTE_ID.fullmatch(remote_id):
            raise ValueError(f"`{printable(remote_id, 40)}` is no job id")
    return list(remote_ids)


def folded(remote_ids: Sequence[str]) -> Iterator[str]:
    """The same jobs in fewer words: tasks of one array together, ``123_[0-5,7]``, as scancel takes them."""
    tasks: dict[str, list[int]] = {}
    for remote_id in dict.fromkeys(remote_ids):
        job, _, task = remote_id.partition("_")
        if task:
            tasks.setdefault(job, []).append(int(task))
        else:
            yield remote_id
    for job, found in tasks.items():
        yield f"{job}_{found[0]}" if len(found) == 1 else f"{job}_[{ranges(sorted(set(found)))}]"


def ranges(ascending: Sequence[int]) -> str:
    """``0-6,8`` of the numbers of an array's tasks."""
    parts: list[tuple[int, int]] = []
    for each in ascending:
        if parts and each == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], each)
        else:
            parts.append((each, each))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def named(job: Job, controller: str, site: str) -> Named | None:
    """Which drone of ``controller`` at ``site`` a job is; None if it is nothing of that."""
    name, remote = _NAME.fullmatch(job.name[:256]), _REMOTE_ID.fullmatch(job.remote_id)
    if name is None or remote is None or (name["controller"], name["site"]) != (controller, site):
        return None
    if bool(name["array"]) != (remote["task"] is not None):
        return None
    drone_id = f"{name['prefix']}-{int(name['serial']) + int(remote['task'] or 0)}"
    return Named(DroneId(drone_id), name["type"]) if len(drone_id) <= _LONGEST_ID else None


def is_drone(job: Job) -> bool:
    """Whether a job is a drone, ours or another controller's."""
    return _NAME.fullmatch(job.name[:256]) is not None
