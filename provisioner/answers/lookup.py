"""Things on record by the names that people give them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from provisioner.answers.columns import ago
from provisioner.answers.errors import MAX_NAMED, VerbError, named, unknown
from provisioner.descriptions import SHORTEST_CLASS_ID, ClassNames
from provisioner.formatting import sanitize
from provisioner.model import DroneId, JobClass, Plan
from provisioner.store import PastClass, Views
from provisioner.store.reader import Reader

T = TypeVar("T")

SUGGESTED_FROM = 200
"""Newest drones among whose ids the nearest to an unknown one is sought."""


def find_drone(reader: Reader, any_id: str) -> DroneId:
    """Return the drone of an id, a remote id or a slot name. Raises :class:`VerbError` that names the candidates."""
    found = reader.find(any_id) if any_id.strip() else []
    if len(found) > 1:
        raise VerbError(f"{sanitize(any_id, 80)} means {len(found)} drones: {named(found)}")
    if not found:
        ids = [
            i
            for d in reader.drones(ended=None, limit=SUGGESTED_FROM)
            for i in (d.id, d.remote_id, d.slot, d.site_slot)
            if i
        ]
        raise unknown("drone", any_id, ids, " on record")
    return found[0]


def things_of_id(
    any_id: str, finders: Mapping[str, Callable[[str], T]]
) -> tuple[dict[str, T], list[str]]:
    """Return what an id means, by kind of thing, and the lines of the finders that find nothing."""
    found: dict[str, T] = {}
    lines: list[str] = []
    for kind, find in finders.items():
        try:
            found[kind] = find(any_id)
        except VerbError as missing:
            lines += missing.lines
    return found, list(dict.fromkeys(lines))


def require_known_sites(reader: Reader, sites: Sequence[str]) -> None:
    """Raise :class:`VerbError` for the first of ``sites`` that is neither configured nor has had a drone.

    Before the first tick the record does not tell what is configured.
    """
    views = reader.views() if sites else None
    if views is None:
        return
    for site in sites:
        if site not in views.policy.sites and not reader.drones(ended=None, sites=[site], limit=1):
            known = sorted({*views.policy.sites, *(each.site for each in reader.live_counts())})
            raise unknown("site", site, known, " on record")


def as_of(reader: Reader, views: Views | None) -> str:
    """Return how old what is shown is, and whether a controller renews it."""
    if views is None:
        return "no tick is on record yet"
    runs = "" if reader.holder() else "; no controller runs: as last recorded"
    return f"as of tick {views.tick}, {ago(views.at)} ago{runs}"


def controller_of(drone_id: str) -> str:
    """Return the name of the controller in a drone id (``<controller>-<store birth>-<serial>``)."""
    return drone_id.rsplit("-", 2)[0]


def class_names(reader: Reader, views: Views | None, past: Iterable[PastClass] = ()) -> ClassNames:
    """Return the names of the job classes in the newest view and of ``past``, with ids unique among all on record."""
    view = views.overlay.view if views is not None else None
    present = {job.id for job in (view.classes if view is not None else ())}
    gone = [each.job for each in past if each.id not in present]
    return ClassNames(view, gone, reader.past_class_ids())


def find_class(reader: Reader, classes: Sequence[JobClass], any_id: str) -> JobClass | PastClass:
    """Return the class of an id or of its begin: one of ``classes``, else one on record.

    Raises :class:`VerbError` that names the candidates.
    """
    past = reader.past_classes(any_id)
    found: dict[str, JobClass | PastClass] = {each.id: each for each in past}
    found |= {job.id: job for job in classes if job.id.startswith(any_id)}
    if any_id in found:
        return found[any_id]
    names = ClassNames(None, (*(each.job for each in past), *classes))
    if len(any_id) < SHORTEST_CLASS_ID or not found:
        known = [names.short_id(job.id) for job in classes]
        raise unknown("job class", any_id, known, " in the newest poll or on record")
    if len(found) > 1:
        some = sorted(found)[:MAX_NAMED]
        raise VerbError(
            f"`{sanitize(any_id, 80)}` means {len(found)} job classes. Type more of the id:",
            *map(names.of, some),
        )
    return found.popitem()[1]


def newest_plan(reader: Reader) -> Plan | None:
    plans = reader.plans(limit=1)
    return plans[-1] if plans else None
