"""COBalD's LinearController with TARDIS' pools: demand follows utilisation, a step at a time.

Sources: MatterMiners/cobald @ 1b6ca11 (``controller/linear.py``, ``composite/weighted.py``, ``composite/factory.py``,
``decorator/standardiser.py``) and MatterMiners/tardis @ 1e0a746 (``plugins``, ``resources/drone.py``,
``resources/dronestates.py``, documentation of its configuration).

- Each second: utilisation below ``low``: demand falls by ``rate``; else allocation above ``high``: it rises by that.
  Demand counts CPU cores, of which a drone has 8, and is never below 1 (TARDIS' Limiter); there is **no maximum** but
  the sites' own (Standardiser).
- A drone counts as supply once it is Available: three further heartbeats of 60 s after it was in the pool. What is
  known of its load is up to a minute old. Here only its GPU counts (a CPU or memory ratio would call a GPU drone with
  a 1-CPU job idle, and shrink it while busy).
- A pool without an active drone reports utilisation and allocation of 1. The factory acts every 30 s: with more supply
  than demand it lets go whom costs least supply times utilisation, booting ones too, the busy drain; else it asks for
  what lacks.
- As documented, one controller drives a composite weighted by utilisation over sites, each of them one over its machine
  types. Or one controller for each machine type: then no empty pool holds up the utilisation of all.
- From the last job until the GPU is free three more heartbeats pass: 180 s.

Where this re-implementation stands for it: what the controller does each second is summed up over the 30 s between two
acts of the factory; heartbeats are counted from the tick at which a drone was first seen in the pool. A drone that does
its last job because it is old goes on to count as supply, as one that TARDIS did not drain itself. (Replacing it at
once instead lets 6 % less idle over four weeks of b436b2+, and 15 % less over its first.) Registry, failures and
plugins are left out. The two settings are those of the project's notes: .9/.9 with rate 1, which TARDIS documents, and
.5/.9 with rate .1, which wastes less (on all traces but KIT's bursts).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, NamedTuple

from benchmarks.deciding.rule import Herd, Rule, Sight
from provisioner.model import Drone, DroneId, TypeKey
from provisioner.reasons import Unneeded

CORES = 8
"""Of a drone: the unit of demand."""
HEARTBEAT_S = 60.0
HEARTBEATS_TO_AVAILABLE = 3
LEAST_DEMAND = 1.0


class Load(NamedTuple):
    """What a pool tells of itself."""

    utilisation: float
    allocation: float
    supply: float


class Pulse:
    """What TARDIS knows of one drone: nothing until it is Available, then its load at the last heartbeat."""

    def __init__(self, drone: Drone) -> None:
        late_s = Random(drone.id).uniform(0.0, HEARTBEAT_S)
        self.next_at = drone.joined_at + HEARTBEATS_TO_AVAILABLE * HEARTBEAT_S + late_s
        self.available = False
        self.utilisation = 0.0

    def feel(self, busy: bool, now: float) -> None:
        while now >= self.next_at:
            self.available = True
            self.utilisation = 1.0 if busy else 0.0
            self.next_at += HEARTBEAT_S


@dataclass(slots=True)
class Cobald(Rule):
    """``per_pool``: one controller for each machine type; else one for all."""

    low: float = 0.9
    high: float = 0.9
    rate: float = 1.0
    per_pool: bool = True
    _demand: dict[Hashable, float] = field(
        default_factory=lambda: defaultdict(lambda: LEAST_DEMAND)
    )
    _pulses: dict[DroneId, Pulse] = field(default_factory=dict)

    interval_s: ClassVar[float] = 30.0
    release_s: ClassVar[float] = 180.0

    def decide(self, sight: Sight) -> None:
        self._feel(sight)
        loads = {key: self._load(herd) for key, herd in sight.herds.items()}
        if self.per_pool:
            demands = {
                key: self._regulated(key, load, CORES * sight.herds[key].quota)
                for key, load in loads.items()
            }
        else:
            demands = self._shared_out(sight, loads)
        for key, herd in sight.herds.items():
            self._run_factory(sight, herd, demands[key], loads[key].supply)

    def demand(self, pool: Hashable = None) -> float:
        """In cores, of one pool or of all."""
        return self._demand[pool]

    def _feel(self, sight: Sight) -> None:
        known, self._pulses = self._pulses, {}
        for herd in sight.herds.values():
            for drones, busy in ((herd.idle, False), (herd.busy, True)):
                for drone in drones:
                    pulse = self._pulses[drone.id] = known.get(drone.id) or Pulse(drone)
                    pulse.feel(busy, sight.now)

    def _load(self, herd: Herd) -> Load:
        pulses = [self._pulses[d.id] for d in (*herd.idle, *herd.busy)]
        active = [p.utilisation for p in pulses if p.available]
        if not active:
            return Load(1.0, 1.0, 0.0)
        mean = sum(active) / len(active)
        return Load(mean, mean, CORES * len(active))

    def _regulated(self, pool: Hashable, load: Load, most: float = math.inf) -> float:
        demand = self._demand[pool]
        if load.utilisation < self.low:
            demand -= self.interval_s * self.rate
        elif load.allocation > self.high:
            demand += self.interval_s * self.rate
        self._demand[pool] = max(LEAST_DEMAND, min(most, demand))
        return self._demand[pool]

    def _shared_out(self, sight: Sight, loads: Mapping[TypeKey, Load]) -> dict[TypeKey, float]:
        """One demand, split over sites by utilisation, and at each site over its machine types."""
        sites: dict[str, list[TypeKey]] = {}
        for key, herd in sight.herds.items():
            sites.setdefault(herd.kind.site, []).append(key)
        of_site = {site: _composite([loads[key] for key in keys]) for site, keys in sites.items()}
        demand = self._regulated(None, _composite(list(of_site.values())))
        found: dict[TypeKey, float] = {}
        for site, share in zip(sites, _shares(demand, list(of_site.values())), strict=True):
            keys = sites[site]
            most = CORES * sum(sight.herds[key].quota for key in keys)
            split = _shares(min(share, most), [loads[key] for key in keys])
            found.update(zip(keys, split, strict=True))
        return found

    def _run_factory(self, sight: Sight, herd: Herd, demand: float, supply: float) -> None:
        """As FactoryPool: shrink while supply exceeds demand, else grow to it."""
        have = herd.wanted
        if supply > demand:
            excess = CORES * len(have) - demand
            for drone in sorted(have, key=lambda d: (self._worth(d), -d.requested_at)):
                if excess < CORES:
                    break
                excess -= CORES
                sight.release(drone, Unneeded(drone.state.value))
        else:
            sight.start(herd, max(0, math.ceil(demand / CORES - len(have))))

    def _worth(self, drone: Drone) -> float:
        pulse = self._pulses.get(drone.id)
        return CORES * pulse.utilisation if pulse is not None and pulse.available else 0.0


def _composite(children: Sequence[Load]) -> Load:
    """As WeightedComposite with the utilisation for weight. All weights 0: idle if there is supply, else full."""
    supply = sum(child.supply for child in children)
    total = sum(child.utilisation for child in children)
    if not total:
        return Load(0.0, 0.0, supply) if supply else Load(1.0, 1.0, supply)
    utilisation = sum(child.utilisation**2 for child in children) / total
    return Load(
        utilisation, sum(child.utilisation * child.allocation for child in children) / total, supply
    )


def _shares(demand: float, children: Sequence[Load]) -> list[float]:
    """Of the demand for each, by utilisation; evenly if all is idle."""
    total = sum(child.utilisation for child in children)
    if not total:
        return [demand / len(children)] * len(children)
    return [demand * child.utilisation / total for child in children]
