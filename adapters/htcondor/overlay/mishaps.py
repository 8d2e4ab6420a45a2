"""Jobs that fail in drones, as their ads tell, and how far that is believed.

Users can write nearly anything into the ads of their jobs, the slot of the last run and the reason of a hold included.
So a failure counts only if the drone's own slot has shown a claim of the job's owner within the last quarter of an
hour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from adapters.shared.htcondor.ads import Ad, value, whole
from provisioner.model import DroneId, JobFailure

SHORT_S = 10.0
"""A run that ends without success within this time may have been ended by the node."""
HOLD_CODES = (6, 12, 13)
"""Hold codes that a node can cause: the executable could not be started (FailedToCreateProcess), output or input could
not be transferred (a scratch directory that is full, or cannot be written to)."""
HELD = 5
_MEMORY_S = 900.0
_MOST = 1000
"""Failures told in one look, the newest."""
MOST_DRONES = 20_000
"""Drones whose users are remembered. More ids than that are forged."""
MOST_USERS = 200
"""Users remembered of one drone, those of the newest claims."""


def cause_of_hold(ad: Ad) -> str:
    """Return what a node may have done to a job that is held; empty if it is not held, or for another reason."""
    code, subcode = whole(ad, "HoldReasonCode"), whole(ad, "HoldReasonSubCode")
    if whole(ad, "JobStatus") != HELD or code not in HOLD_CODES:
        return ""
    return f"held with code {code}" + (f", error {subcode}" if subcode else "")


def cause_of_end(ad: Ad, run_s: float) -> str:
    """Return the failure of a job that has left the queue after a last run of ``run_s`` seconds; empty if it was none,
    or took too long for one of the node's."""
    by_signal, code = value(ad, "ExitBySignal") is True, value(ad, "ExitCode")
    failed = by_signal or (isinstance(code, int) and code != 0)
    if run_s > SHORT_S or not failed:
        return ""
    return f"ended after {run_s:.0f} s " + ("by a signal" if by_signal else f"with exit code {code}")


@dataclass(slots=True)
class Witnesses:
    """Users whose claims the slots of drones have shown, when each was shown last, and the failures that are believed.
    A job's ad tells its newest failure only: the others are remembered."""

    _seen: dict[DroneId, dict[str, float]] = field(default_factory=dict)
    _known: dict[JobFailure, None] = field(default_factory=dict)

    def note(self, users: Mapping[DroneId, frozenset[str]], now: float) -> None:
        """Record the owners of the claims that the slots show now. Older claims than reported mishaps are forgotten."""
        for drone_id, names in users.items():
            if names and (drone_id in self._seen or len(self._seen) < MOST_DRONES):
                self._seen.setdefault(drone_id, {}).update(dict.fromkeys(names, now))
        for drone_id in list(self._seen):
            kept = {user: at for user, at in self._seen[drone_id].items() if now - at <= _MEMORY_S}
            if len(kept) > MOST_USERS:
                kept = dict(sorted(kept.items(), key=lambda each: (-each[1], each[0]))[:MOST_USERS])
            if kept:
                self._seen[drone_id] = kept
            else:
                del self._seen[drone_id]

    def believed(self, mishaps: Iterable[JobFailure], now: float) -> tuple[JobFailure, ...]:
        """Return the failures of the last quarter of an hour, of users whose claims a slot of that drone has shown."""
        told = (each for each in mishaps if each.owner and each.owner in self._seen.get(each.drone_id, ()))
        since, until = now - _MEMORY_S, now + _MEMORY_S
        found = [each for each in {**self._known, **dict.fromkeys(told)} if since <= each.at <= until]
        newest = sorted(found, key=lambda each: (each.at, each.drone_id, each.job_id))[-_MOST:]
        self._known = dict.fromkeys(newest)
        return tuple(newest)
