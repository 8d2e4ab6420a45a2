"""Doubts about the view of the pool: what users may have written themselves in ads of jobs and slots."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from provisioner.controller.clock import Clock
from provisioner.model import DroneId, JobClass, OverlayView
from provisioner.store import Store

UNKNOWN_SLOTS = 1000
"""Slots of drones that neither the record nor a site knows: more of them are left out of a view."""


@dataclass(slots=True)
class ViewDoubts:
    """The view as far as record and sites bear it out."""

    store: Store
    clock: Clock
    _shortened: dict[str, JobClass] = field(default_factory=dict)
    """Classes of the newest view that claim to have waited for longer than the record has seen, as planned."""

    def with_seen_waits(self, view: OverlayView) -> OverlayView:
        """Return a view whose jobs have waited no longer than the record has seen them wait.

        Users can write the times of their jobs themselves.
        """
        known, now = self.store.committed.waiting_since, self.clock.now()
        before, self._shortened = self._shortened, {}
        classes = []
        for job in view.classes:
            since = known.get(job.id, now)
            if 0 < job.oldest_at < since or 0 < job.idle_at < since:
                idle_at = max(job.idle_at, since) if job.idle_at else 0.0
                told = replace(job, oldest_at=max(job.oldest_at, since), idle_at=idle_at)
                last = before.get(job.id, told)
                # The same object as in the last tick: what is worked out of it is kept by that.
                job = last if last == told else told
                self._shortened[job.id] = job
            classes.append(job)
        return replace(view, classes=tuple(classes))

    def unrecorded_slots(self, view: OverlayView) -> list[DroneId]:
        """Return the drones that have a slot and are not on record."""
        known = self.store.drones
        return [slot.drone_id for slot in view.slots if slot.drone_id not in known]

    def without_forged_slots(self, view: OverlayView, listed: Collection[DroneId]) -> OverlayView:
        """Return a view with a limited number of slots of drones that neither the record nor a site knows.

        ``listed``: drones that sites list, and the record does not know.

        A user with a drone's token can advertise any number of them, and each tick would work on
        all.
        """
        if len(view.slots) <= UNKNOWN_SLOTS:
            return view
        unknown = [each for each in self.unrecorded_slots(view) if each not in listed]
        if len(unknown) <= UNKNOWN_SLOTS:
            return view
        left_out = frozenset(unknown[UNKNOWN_SLOTS:])
        notice = f"{len(left_out)} slots of unknown drones are left out: their ads may be forged with a drone's token."
        slots = tuple(slot for slot in view.slots if slot.drone_id not in left_out)
        return replace(view, slots=slots, notices=(*view.notices, notice))
