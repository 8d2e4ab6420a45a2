"""Doubts about the view of the pool: what users may have written themselves in ads of jobs and slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import filterfalse
from operator import attrgetter

from provisioner.controller.clock import Clock
from provisioner.model import DroneId, JobClass, OverlayView
from provisioner.store import Store
from provisioner.values import define, factory

_SLOT_DRONE = attrgetter("drone_id")
UNKNOWN_SLOTS = 1000
"""Slots of drones that neither the record nor a site knows: more of them are left out of a view."""


@define
class ViewDoubts:
    """The view as far as record and sites bear it out."""

    store: Store
    clock: Clock
    _shortened: dict[str, JobClass] = factory(dict)
    """Classes of the newest view that claim to have waited for longer than the record has seen, as planned."""

    def with_seen_waits(self, view: OverlayView) -> OverlayView:
        """Return a view whose jobs have waited no longer than the record has seen them wait.

        Users can write the times of their jobs themselves.
        """
        known = self.store.committed.waiting_since
        now = self.clock.now()
        before = self._shortened
        self._shortened = {}
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

    def unrecorded_slots(self, view: OverlayView | None) -> list[DroneId]:
        """Return the drones that have a slot and are not on record."""
        slots = view.slots if view is not None else ()
        return list(filterfalse(self.store.drones.__contains__, map(_SLOT_DRONE, slots)))

    def without_forged_slots(self, view: OverlayView, unknown: Sequence[DroneId]) -> OverlayView:
        """Return a view with a limited number of slots of drones that neither the record nor a site knows.

        A user with a drone's token can advertise any number of them, and each tick would work on
        all.
        """
        if len(unknown) <= UNKNOWN_SLOTS:
            return view
        left_out = frozenset(unknown[UNKNOWN_SLOTS:])
        notice = f"{len(left_out)} slots of unknown drones are left out: their ads may be forged with a drone's token."
        slots = tuple(slot for slot in view.slots if slot.drone_id not in left_out)
        return replace(view, slots=slots, notices=(*view.notices, notice))
