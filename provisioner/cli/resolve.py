"""From any id that a person pastes (drone, remote job, slot) to the drone."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from provisioner.cli.exits import Failure
from provisioner.model import DroneId
from provisioner.say import clean
from provisioner.store import Reader

MOST_NAMED = 8


def the_drone(reader: Reader, any_id: str) -> DroneId:
    """The one drone that ``any_id`` means. Raises :class:`Failure` that names the candidates."""
    found = reader.find(any_id) if any_id.strip() else []
    if len(found) == 1:
        return found[0]
    if found:
        raise Failure(f"{clean(any_id, 80)} means {len(found)} drones: {named(found)}")
    near = nearest(reader, any_id)
    candidates = f"; nearest: {named(near)}" if near else ""
    raise Failure(f"no drone is known by {clean(any_id, 80) or 'an empty id'}{candidates}")


def nearest(reader: Reader, any_id: str) -> list[str]:
    """Ids on record that resemble ``any_id``."""
    drones = reader.drones(ended=None)
    ids = [i for d in drones for i in (d.id, d.remote_id, d.slot) if i]
    containing = [i for i in ids if any_id and any_id in i][:3]
    return containing or get_close_matches(any_id[:200], ids, n=3, cutoff=0.5)


def named(ids: Sequence[str]) -> str:
    """A few of many ids, with how many more there are."""
    shown = ", ".join(clean(i, 80) for i in ids[:MOST_NAMED])
    return shown + (f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else "")
