"""Watch over drones that carry our name and are not on record, and over a second controller of our name.

A record can be lost, restored from an older backup or copied, and a second controller can run under
the same name with a record of its own. Its drones look the same at the sites, but for the birth of
the record in their ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from provisioner.model import DroneId, DroneState, PolledSite, RemoteDrone, RemoteState
from provisioner.store import serial_of
from provisioner.values import define, factory

LISTINGS = 2
"""Listings of a site that a new leader needs before it stops orphans there."""
SETTLE_S = 60.0
"""Time after the first view of a site in which it may list late what was started before."""


def record_of(drone_id: str) -> str:
    """Return ``<controller>-<birth>`` of a drone id."""
    return drone_id.rpartition("-")[0]


@define
class OrphanWatch:
    """Orphans by the time at which they were first seen, and signs of life of other controllers of our name."""

    since: dict[DroneId, float] = factory(dict)
    _listings: dict[str, set[float]] = factory(dict)
    """By site: times of its first listings under a new leader, up to as many as it needs."""
    _looked_at: dict[str, float] = factory(dict)
    """By site: time of the first view."""
    _newest: dict[str, int] = factory(dict)
    """By record: largest serial number seen."""
    _grown_at: dict[str, float] = factory(dict)
    """By record: time at which a drone with a larger number was seen, which only a living controller starts."""

    def note(
        self,
        sites: Iterable[PolledSite],
        unrecorded: Mapping[str, Sequence[RemoteDrone]],
        ended: Mapping[DroneId, DroneState],
        now: float,
    ) -> None:
        """Take in the views of the sites.

        ``unrecorded``: by site, the listed drones that are no live ones of the record. ``ended``:
        final states of those that were.
        """
        listed: dict[DroneId, float] = {}
        for polled in sites:
            if polled.view is None or polled.fault is not None:
                listed |= {
                    each: at
                    for each, at in self.since.items()
                    if polled.view and each in polled.view.drones
                }
                continue
            settled = now - self._looked_at.setdefault(polled.site, now) > SETTLE_S
            for remote in unrecorded[polled.site]:
                drone_id = remote.drone_id
                if remote.state is RemoteState.ENDED or drone_id in ended:
                    continue
                record = record_of(drone_id)
                serial = serial_of(drone_id) or 0
                listed[drone_id] = self.since.get(drone_id, now)
                if settled and drone_id not in self.since and serial > self._newest.get(record, 0):
                    self._grown_at[record] = now
                self._newest[record] = max(serial, self._newest.get(record, 0))
                if record in self._grown_at:  # its controller lives, or did: the grace never passes
                    listed[drone_id] = now
        self.since = listed

    def unlisted(self, sites: Mapping[str, PolledSite], since: float) -> frozenset[str]:
        """Return the sites with fewer than :data:`LISTINGS` good listings taken after ``since``."""
        found = set()
        for name, polled in sites.items():
            times = self._listings.setdefault(name, set())
            if len(times) < LISTINGS and polled.view is not None and polled.fault is None:
                times |= {polled.view.taken_at} if polled.view.taken_at >= since else set()
            if len(times) < LISTINGS:
                found.add(name)
        return frozenset(found)

    def twins(self, within_s: float, now: float) -> dict[str, str]:
        """Return the records whose drones became more within the last seconds, each with its newest drone."""
        present = {record_of(drone_id) for drone_id in self.since}
        return {
            record: f"{record}-{self._newest[record]}"
            for record, at in self._grown_at.items()
            if record in present and now - at < within_s
        }
