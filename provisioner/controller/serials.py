"""Serial numbers of drones: none is ever given twice, even by a record that was restored from a backup."""

from __future__ import annotations

from collections.abc import Collection

from provisioner.controller.journal import EventWriter
from provisioner.model import DroneId
from provisioner.store import Store, serial_of
from provisioner.values import define

SERIAL_MARGIN = 1000
"""Serial numbers left out after a record that was older than what runs."""
SERIALS_MISSED = 1_000_000
"""A record misses fewer drones than that. A larger serial number is forged: a user who runs jobs
can send slot ads, and a user who shares our account at a site can have entries listed."""


@define
class Serials:
    """The next serial number by the record and the views."""

    name: str
    """The controller's."""
    store: Store
    event: EventWriter
    _first: int = 0
    """The first free serial number by the record at the start; 0 before the first tick."""
    _outdated: bool = False
    """The record was found to be older than what runs, and that was reported."""

    def skip(self) -> None:
        """Leave out some: the database may have lost the newest drones of the leader before, in a fail-over."""
        self._first = self.store.next_serial + SERIAL_MARGIN

    async def next(self, unrecorded: Collection[DroneId]) -> int:
        """Return the first serial number that neither the record nor any view knows: no id is ever given twice.

        ``unrecorded``: drones that a view shows and the record does not know.

        A view shows an id beyond those of the record only where the record was restored from a
        backup. Drones that no view shows yet may have later ids still: a margin is left for them.
        What slots or a listing show may be forged: it counts up to a limit that stays where it was
        at the start, when the record was read.
        """
        self._first = self._first or self.store.next_serial
        known = max(self._first, self.store.next_serial)
        ours = f"{self.name}-{self.store.birth}-"
        below = self._first + SERIALS_MISSED
        unknown = (serial_of(each) for each in unrecorded if each.startswith(ours))
        newest = max(
            (serial for serial in unknown if serial is not None and serial < below), default=0
        )
        if newest < known:
            return known
        if not self._outdated:
            self._outdated = True
            advice = "The record is older than what runs, as after a restored backup. Unknown drones are orphans."
            await self.event(
                "store.outdated", warn=True, newest_serial=newest, next_serial=known, advice=advice
            )
        return newest + 1 + SERIAL_MARGIN
