"""Ads that the controller places in the collector or has it drop, in a worker process, because the bindings block.

Order ads tell drones to drain. A drone that ends in order withdraws its own ads. Those of one that was killed stay for
CLASSAD_LIFETIME, and the negotiator matches jobs to its slot for as long.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

import classad2
import htcondor2

from adapters.htcondor.classads import text, value
from adapters.htcondor.daemons import Collectors
from adapters.htcondor.overlay.slots import OUR_SLOTS
from adapters.shared.printing import printable
from provisioner.interfaces import AuthError

ORDER_LIFETIME_S = 900
"""An order that its drone has not read by then is forgotten by the collector; the planner asks again."""
_ORDER_READ_BACK_S = 3.0
"""The collector may answer a query before it has taken in the ads that were sent just before."""
INVALIDATE_TIMEOUT_S = 5.0
"""Longest wait until the collector no longer lists the ads of dead drones."""
_ROUNDING_S = 1.0
"""The collector keeps whole seconds."""
_ADVICE = "allow the identity of the drones' tokens ADVERTISE_STARTD and ADVERTISE_MASTER at the collector"


class CollectorAds:
    """The worker's calls. Drone ids were checked before."""

    def __init__(self, collector: str) -> None:
        self._collector = Collectors(collector)

    def readers(self, drone_ids: Collection[str]) -> Mapping[str, bool]:
        """Return those of the drones that read order ads, each with True if it drains because of one."""
        constraint = f"{OUR_SLOTS} && DroneOrder isnt undefined"
        ads = self._collector.query(htcondor2.AdType.Startd, constraint, ["DroneId", "DroneDraining"])
        wanted = set(drone_ids)
        return {i: value(ad, "DroneDraining") is True for ad in ads if (i := text(ad, "DroneId", 63)) in wanted}

    def place(self, orders: Mapping[str, tuple[int, str]], identities: Sequence[str]) -> Sequence[str]:
        """Advertise an order (serial number, mode) for each drone.

        Return those that the collector lists under one of our ``identities``. AuthError if there is none.
        """
        ads = [
            classad2.ClassAd(
                {
                    "MyType": "Generic",
                    "Name": drone_id,
                    "DroneOrderFor": drone_id,
                    "DroneOrder": serial,
                    "DroneOrderMode": mode,
                    "ClassAdLifetime": ORDER_LIFETIME_S,
                }
            )
            for drone_id, (serial, mode) in orders.items()
        ]
        self._collector.advertise(ads, "UPDATE_AD_GENERIC")
        limit = time.monotonic() + _ORDER_READ_BACK_S
        while True:
            found = self._senders(orders)
            ours = [drone_id for drone_id in orders if found.get(drone_id) in identities]
            if len(ours) == len(orders) or time.monotonic() > limit:
                break
            time.sleep(0.1)
        if ours:
            return ours
        whom = f"collector {self._collector.addresses}"
        if others := sorted(set(found.values())):
            seen, expected = printable(", ".join(others), 120), ", ".join(identities)
            raise AuthError(f"{whom} knows us as {seen}, drones obey {expected}: use a token of that identity")
        raise AuthError(f"{whom} does not list our order ads: allow our identity DAEMON there")

    def _senders(self, orders: Mapping[str, tuple[int, str]]) -> Mapping[str, str]:
        """Return the identity under which the collector lists each of these orders."""
        projection = ["DroneOrderFor", "DroneOrder", "AuthenticatedIdentity"]
        return {
            drone_id: text(ad, "AuthenticatedIdentity", 200)
            for ad in self._collector.query(htcondor2.AdType.Generic, "DroneOrderFor isnt undefined", projection)
            if (drone_id := text(ad, "DroneOrderFor", 63)) in orders and value(ad, "DroneOrder") == orders[drone_id][0]
        }

    def withdraw(self, drone_ids: Collection[str]) -> None:
        """Have the collectors drop the orders of drones that are gone."""
        wanted = " || ".join(f'DroneOrderFor == "{drone_id}"' for drone_id in drone_ids)
        self._collector.invalidate("Generic", "INVALIDATE_ADS_GENERIC", wanted)

    def remove(self, ended_at: Mapping[str, float]) -> None:
        """Have the collectors drop the slot and master ads of drones that ended at these times (this host's clock).

        An ad that was sent after that time stays: its drone lives. AuthError if the collector keeps a slot.
        """
        try:
            self._collector.invalidate("Machine", "INVALIDATE_STARTD_ADS", _silent_since(ended_at))
            self._collector.invalidate("DaemonMaster", "INVALIDATE_MASTER_ADS", _silent_since(ended_at))
        except AuthError as error:
            raise AuthError(f"{_ADVICE}: {error}", error.kind) from None
        limit = time.monotonic() + INVALIDATE_TIMEOUT_S
        while left := self._listed(_silent_since(ended_at)):
            if time.monotonic() > limit:
                raise AuthError(f"{_ADVICE}: collector {self._collector.addresses} still lists {left}")
            time.sleep(0.2)

    def _listed(self, constraint: str) -> str:
        """Return the name of one of the ads that should be gone; empty if there is none."""
        for kind in (htcondor2.AdType.Startd, htcondor2.AdType.Master):
            for ad in self._collector.query(kind, constraint, ["Name"]):
                return text(ad, "Name", 200) or "an ad without a name"
        return ""


def _silent_since(ended_at: Mapping[str, float]) -> str:
    now = time.time()
    return " || ".join(silent(drone_id, now - at) for drone_id, at in ended_at.items())


def silent(drone_id: str, for_s: float) -> str:
    """Return the constraint for the ads of a drone that has not advertised itself for this long.

    The collector evaluates it by its own clock.
    """
    return f"(DroneId =?= {classad2.quote(drone_id)} && time() - LastHeardFrom >= {max(0, int(for_s - _ROUNDING_S))})"
