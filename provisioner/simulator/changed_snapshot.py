"""A snapshot as it would be: what of a "what if" one moment can show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from provisioner.formatting import count
from provisioner.model import WHOLE_GPU, Fault, FaultKind, Policy, PolledSite, SitePolicy, Snapshot
from provisioner.simulator.what_if import Down, Number, Question, QuestionError, Times, Unowned


@dataclass(frozen=True, slots=True)
class Otherwise:
    """A snapshot as it would be, and what of the question its moment cannot show."""

    snapshot: Snapshot
    notes: tuple[str, ...] = ()


def on_snapshot(snapshot: Snapshot, questions: Sequence[Question]) -> Otherwise:
    """All of ``questions``, one after the other. Raises QuestionError for those that one moment has no answer to."""
    notes: list[str] = []
    for question in questions:
        match question:
            case Down(site, 0.0, None):
                snapshot = _without(snapshot, site, notes)
            case Down(site):
                raise QuestionError(f"a snapshot is one moment: write `{site} down`, or ask `provisioner simulate`")
            case Times(site, key):
                raise QuestionError(f"a snapshot is one moment, `{site} {key}` takes time: ask `provisioner simulate`")
            case Number(site):
                snapshot = _numbered(snapshot, question, notes)
            case Unowned(site):
                snapshot = _unowned(snapshot, site)
    return Otherwise(snapshot, tuple(notes))


def _without(snapshot: Snapshot, site: str, notes: list[str]) -> Snapshot:
    """As if ``site`` had been away for long: none of its drones is left, and it does not answer."""
    there = {drone_id for drone_id, drone in snapshot.drones.items() if drone.site == site}
    overlay = snapshot.overlay
    if overlay.view is not None:
        running = sum(slot.jobs for slot in overlay.view.slots if slot.drone_id in there)
        if running:
            notes.append(f"{count(running, 'job')} that run at {site} are not counted as waiting again")
        slots = tuple(slot for slot in overlay.view.slots if slot.drone_id not in there)
        overlay = replace(overlay, view=replace(overlay.view, slots=slots))
    away = PolledSite(site, None, Fault(FaultKind.DOWN, "away, as was asked", snapshot.now))
    return replace(
        snapshot,
        overlay=overlay,
        drones={drone_id: drone for drone_id, drone in snapshot.drones.items() if drone_id not in there},
        sites={**snapshot.sites, site: away},
        requests=tuple(r for r in snapshot.requests if not there.intersection(r.drone_ids)),
    )


def _numbered(snapshot: Snapshot, question: Number, notes: list[str]) -> Snapshot:
    site, value = question.site, question.value
    match question.key:
        case "price":
            return replace(snapshot, policy=_with(snapshot.policy, site, price=value))
        case "max_drones":
            return replace(snapshot, policy=_with(snapshot.policy, site, max_drones=int(value)))
        case key:
            if key == "gpus":
                notes.append(f"{site}: its limit is {value:g} GPUs; what it showed to be free stays as it was seen")
            milli = round(value * WHOLE_GPU)
            return replace(snapshot, policy=_with(snapshot.policy, site, max_gpu_milli=milli))


def _unowned(snapshot: Snapshot, site: str) -> Snapshot:
    reading = snapshot.sites.get(site)
    if reading is None or reading.view is None:
        return snapshot
    return replace(snapshot, sites={**snapshot.sites, site: replace(reading, view=replace(reading.view, claims=()))})


def _with(policy: Policy, site: str, **changes: object) -> Policy:
    was = policy.sites.get(site, SitePolicy(site))
    return replace(policy, sites={**policy.sites, site: replace(was, **changes)})  # type: ignore[arg-type]
