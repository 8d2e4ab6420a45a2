"""Jobs that are done, put on record once each: the overlay tells of every one in many looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from provisioner.model import CompletedJob, OverlayView
from provisioner.store import Store, StoreError

log = structlog.get_logger()


@dataclass(slots=True)
class History:
    """What of the overlay's newest completions is on record already.

    After a restart all that are told are offered to the store again: it knows those that it has.
    """

    _recorded: Mapping[tuple[str, float], CompletedJob] = field(default_factory=dict)
    """By job and end. What is told no more needs no remembering: that bounds it."""
    _seen: tuple[CompletedJob, ...] = ()

    async def keep(self, store: Store, view: OverlayView | None) -> None:
        """To be called once a tick. What cannot be written is tried again at the next: it decides nothing."""
        told = view.completions if view is not None else None
        if told is None or told == self._seen:
            return
        known = {(each.job_id, each.ended_at): each for each in told}
        new = [each for key, each in known.items() if key not in self._recorded]
        if new:
            try:
                await store.completed(new)
            except StoreError as error:
                log.error("completed_jobs.write_failed", message=str(error), jobs=len(new))
                return
        self._recorded, self._seen = known, told
