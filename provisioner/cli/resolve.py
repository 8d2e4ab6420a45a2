"""From any id that a person pastes (drone, remote job, slot in the pool, place at the site) to the drone."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from provisioner.cli.exits import Failure
from provisioner.formatting import sanitize
from provisioner.model import DroneId
from provisioner.store import Reader

MOST_NAMED = 8


def the_drone(reader: Reader, any_id: str) -> DroneId:
    """The one drone that ``any_id`` means. Raises :class:`Failure` that names the candidates."""
    found = reader.find(any_id) if any_id.strip() else []
    if len(found) == 1:
        return found[0]
    if found:
        raise Failure(f"{sanitize(any_id, 80)} means {len(found)} drones: {named(found)}")
    near = nearest(reader, any_id)
    candidates = f"; nearest: {named(near)}" if near else ""
    raise Failure(f"no drone is known by {sanitize(any_id, 80) or 'an empty id'}{candidates}")


def nearest(reader: Reader, any_id: str) -> list[str]:
    """Ids on record that resemble ``any_id``."""
    drones = reader.drones(ended=None)
    ids = [i for d in drones for i in (d.id, d.remote_id, d.slot, d.site_slot) if i]
    containing = [i for i in ids if any_id and any_id in i][:3]
    return containing or get_close_matches(any_id[:200], ids, n=3, cutoff=0.5)


def known_sites(reader: Reader, sites: Sequence[str]) -> None:
    """Raises :class:`Failure` for the first of ``sites`` that is neither configured nor has had a drone. Before the
    first tick nobody knows what is configured."""
    views = reader.views() if sites else None
    if views is None:
        return
    for site in sites:
        if site not in views.policy.sites and not reader.drones(ended=None, sites=[site], limit=1):
            raise no_site(site, sorted({*views.policy.sites, *(drone.site for drone in reader.drones())}))


def no_site(name: str, known: Sequence[str]) -> Failure:
    """What to say of a site that is not on record."""
    near = get_close_matches(name[:200], known, n=1)
    instead = f"did you mean `{near[0]}`?" if near else f"known: {named(known) or 'none'}"
    return Failure(f"no site `{sanitize(name, 80)}` on record; {instead}")


def named(ids: Sequence[str]) -> str:
    """A few of many ids, with how many more there are."""
    shown = ", ".join(sanitize(i, 80) for i in ids[:MOST_NAMED])
    return shown + (f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else "")
