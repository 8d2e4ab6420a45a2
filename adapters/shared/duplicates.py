"""Objects of a site with one drone id, as a start that is carried out twice makes them: one of them is the drone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import NamedTuple

from provisioner.model import DroneId, RemoteDrone

Seniority = tuple[bool, bool, float, float, int, str]
"""Sort key of objects: the smallest is the drone."""
_EPOCH = re.compile(r"(?:epoch=)?(\d{1,18})")


class DroneListing(NamedTuple):
    """Drones that a site lists, ids of live objects that are the same drone as another one, and notices."""

    drones: Mapping[DroneId, RemoteDrone]
    duplicates: Sequence[str]
    notices: Sequence[str]


def seniority(
    remote_id: str,
    created_at: float,
    started_at: float,
    *,
    is_ending: bool,
    has_ended: bool,
) -> Seniority:
    """Return the sort key of an object: the one that has run for longest is the drone, else the oldest.

    So an object that begins to run between the listings of two members changes the choice only if
    none ran before. Times are the site's own; 0 without a start.
    """
    return has_ended, is_ending, started_at or inf, created_at, len(remote_id), remote_id


def settled(objects: Iterable[tuple[Seniority, RemoteDrone]]) -> DroneListing:
    """Return each drone once."""
    drones: dict[DroneId, RemoteDrone] = {}
    duplicates = []
    notices = []
    for key, drone in sorted(objects, key=itemgetter(0)):
        kept = drones.setdefault(drone.drone_id, drone)
        if kept is not drone and not any(key[:2]):
            duplicates.append(drone.remote_id)
            both = (kept.remote_id, kept.epoch), (drone.remote_id, drone.epoch)
            notices.append(notice(drone.drone_id, *both))
    return DroneListing(drones, duplicates, notices)


def notice(drone_id: DroneId, *objects: tuple[str, int]) -> str:
    """Return a line for people. ``objects``: remote id and epoch of the one that is kept, and of the other."""
    kept, other = (f"{each} (epoch {epoch})" if epoch else each for each, epoch in objects)
    return f"{drone_id} exists twice, as {kept} and {other}: the first is kept"


def epoch_of(tag: str) -> int:
    """Return the epoch in a tag, ``7`` or ``epoch=7``; 0 in any other text."""
    found = _EPOCH.fullmatch(tag)
    return int(found[1]) if found else 0
