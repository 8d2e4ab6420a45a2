"""Removal of the ads of dead drones from the collector, through the HTCondor bindings.

It lives in a child process, because the bindings block.

A drone that ends in order withdraws its ads. Those of one that was killed stay for CLASSAD_LIFETIME, and the negotiator
matches jobs to its slot for as long.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import classad2
import htcondor2

from adapters.htcondor.classads import text
from adapters.htcondor.daemons import BindingsErrors, Collectors
from provisioner.interfaces import AuthError

INVALIDATE_TIMEOUT_S = 5.0
"""Longest wait until the collector no longer lists the ads."""
_ROUNDING_S = 1.0
"""The collector keeps whole seconds."""
_ADVICE = "allow the identity of the drones' tokens ADVERTISE_STARTD and ADVERTISE_MASTER at the collector"
_AD_KINDS = (
    ("Machine", "INVALIDATE_STARTD_ADS", htcondor2.AdType.Startd),
    ("DaemonMaster", "INVALIDATE_MASTER_ADS", htcondor2.AdType.Master),
)


def silent(drone_id: str, for_s: float) -> str:
    """Return the constraint for the ads of a drone that has not advertised itself for this long.

    The collector evaluates it by its own clock.
    """
    return f"(DroneId =?= {classad2.quote(drone_id)} && time() - LastHeardFrom >= {max(0, int(for_s - _ROUNDING_S))})"


class DeadAdRemover:
    """Ads of drones that ended. Drone ids were checked before."""

    def __init__(self, collector: str) -> None:
        self._address = collector
        self._errors = BindingsErrors()
        self._collector = Collectors(collector)

    def remove(self, ended_at: Mapping[str, float]) -> None:
        """Have the collectors drop the slot and master ads of drones that ended at these times (this host's clock).

        An ad that was sent after that time stays: its drone lives. AuthError if the collector keeps a slot.
        """
        try:
            with self._errors.translated(f"collector {self._address}"):
                for of, command, _ in _AD_KINDS:
                    query = classad2.ClassAd({"MyType": "Query", "TargetType": of})
                    query["Requirements"] = classad2.ExprTree(_silent_since(ended_at))
                    self._collector.advertise([query], command, True)
        except AuthError as error:
            raise AuthError(f"{_ADVICE}: {error}", error.kind) from None
        limit = time.monotonic() + INVALIDATE_TIMEOUT_S
        while left := self._listed(ended_at):
            if time.monotonic() > limit:
                raise AuthError(f"{_ADVICE}: collector {self._address} still lists {left}")
            time.sleep(0.2)

    def _listed(self, ended_at: Mapping[str, float]) -> str:
        """Return the name of one of the ads that should be gone; empty if there is none."""
        with self._errors.translated(f"collector {self._address}"):
            for _, _, kind in _AD_KINDS:
                for ad in self._collector.query(kind, constraint=_silent_since(ended_at), projection=["Name"]):
                    return text(ad, "Name", 200) or "an ad without a name"
        return ""


def _silent_since(ended_at: Mapping[str, float]) -> str:
    now = time.time()
    return " || ".join(silent(drone_id, now - at) for drone_id, at in ended_at.items())
