"""Order ads in the collector, through the HTCondor bindings. Lives in a child process, because the bindings block."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

import classad2
import htcondor2

from adapters.htcondor.overlay.slots import OUR_SLOTS
from adapters.shared.htcondor.ads import text, value
from adapters.shared.htcondor.blame import Reasons
from adapters.shared.htcondor.collectors import Collectors
from adapters.shared.printing import printable
from provisioner.interfaces import AuthError

LIFETIME_S = 900
"""An order that its drone has not read by then is forgotten by the collector; the planner asks again."""
_READ_BACK_S = 3.0
"""The collector may answer a query before it has taken in the ads that were sent just before."""


class OrderAds:
    """Orders as ads in the collector: advertised, read back, withdrawn. Drone ids were checked before."""

    def __init__(self, collector: str) -> None:
        self._address = collector
        self._reasons = Reasons()
        self._collector = Collectors(collector)

    def readers(self, drone_ids: Collection[str]) -> Mapping[str, bool]:
        """Return those of the drones that read order ads, each with whether it drains because of one."""
        with self._reasons.told(f"collector {self._address}"):
            ads = self._collector.query(
                htcondor2.AdType.Startd,
                constraint=f"{OUR_SLOTS} && DroneOrder isnt undefined",
                projection=["DroneId", "DroneDraining"],
            )
        wanted = set(drone_ids)
        return {i: value(ad, "DroneDraining") is True for ad in ads if (i := text(ad, "DroneId", 63)) in wanted}

    def place(self, orders: Mapping[str, tuple[int, str]], identities: Sequence[str]) -> Sequence[str]:
        """Advertise an order (serial number, mode) for each drone; return those that stand in the collector under one
        of our ``identities``. AuthError if none does."""
        ads = [
            classad2.ClassAd(
                {
                    "MyType": "Generic",
                    "Name": drone_id,
                    "DroneOrderFor": drone_id,
                    "DroneOrder": serial,
                    "DroneOrderMode": mode,
                    "ClassAdLifetime": LIFETIME_S,
                }
            )
            for drone_id, (serial, mode) in orders.items()
        ]
        whom = f"collector {self._address}"
        with self._reasons.told(whom):
            self._collector.advertise(ads, "UPDATE_AD_GENERIC", True)
        limit = time.monotonic() + _READ_BACK_S
        while True:
            found = self._standing(orders)
            ours = [drone_id for drone_id in orders if found.get(drone_id) in identities]
            if len(ours) == len(orders) or time.monotonic() > limit:
                break
            time.sleep(0.1)
        if ours:
            return ours
        others = sorted(set(found.values()))
        if others:
            seen, expected = printable(", ".join(others), 120), ", ".join(identities)
            raise AuthError(f"{whom} knows us as {seen}, drones obey {expected}: use a token of that identity")
        raise AuthError(f"{whom} does not list our order ads: allow our identity DAEMON there")

    def withdraw(self, drone_ids: Collection[str]) -> None:
        """Have the collector drop the orders of drones that are gone."""
        wanted = " || ".join(f'DroneOrderFor == "{drone_id}"' for drone_id in drone_ids)
        query = classad2.ClassAd({"MyType": "Query", "TargetType": "Generic"})
        query["Requirements"] = classad2.ExprTree(wanted)
        with self._reasons.told(f"collector {self._address}"):
            self._collector.advertise([query], "INVALIDATE_ADS_GENERIC", True)

    def _standing(self, orders: Mapping[str, tuple[int, str]]) -> Mapping[str, str]:
        """The identity under which each of these orders stands in the collector."""
        with self._reasons.told(f"collector {self._address}"):
            ads = self._collector.query(
                htcondor2.AdType.Generic,
                constraint="DroneOrderFor isnt undefined",
                projection=["DroneOrderFor", "DroneOrder", "AuthenticatedIdentity"],
            )
        return {
            drone_id: text(ad, "AuthenticatedIdentity", 200)
            for ad in ads
            if (drone_id := text(ad, "DroneOrderFor", 63)) in orders and value(ad, "DroneOrder") == orders[drone_id][0]
        }
