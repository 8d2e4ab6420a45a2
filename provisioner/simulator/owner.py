"""The owner of a site, to whom drones give way, and the series of GPUs that world files describe them by."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from provisioner.model import OwnerDemand, OwnerLoad
from provisioner.simulator.drones import SimulatedDrone
from provisioner.simulator.loop import at, now, now_s, rng_for
from provisioner.values import frozen

if TYPE_CHECKING:
    from provisioner.simulator.sites import GpuPoolState, SimulatedSite

ONE_GPU = 1000


class VictimRule(StrEnum):
    """Choice of the drone that the owner's jobs preempt."""

    YOUNGEST = "youngest"
    OLDEST = "oldest"
    RANDOM = "random"

    def order(self, seed: int) -> Callable[[SimulatedDrone], tuple[float, str]]:
        """Return a key that sorts drones, the first victim first."""
        if self is VictimRule.RANDOM:
            at_s = now_s()
            return lambda drone: (rng_for(seed, "victim", at_s, drone.id).random(), drone.id)
        sign = 1.0 if self is VictimRule.OLDEST else -1.0
        return lambda drone: (sign * (drone.granted_s or 0.0), drone.id)


class OwnerModel(Protocol):
    """Description of an owner; the tests have two more."""

    def at(self, site: SimulatedSite) -> SimulatedOwner: ...


class SimulatedOwner:
    """An owner at work. What they hold is a number of each pool's GPUs; by default it is none."""

    places_drones = False
    """True if waiting drones get their places in the owner's own cycle only, after the owner's jobs."""

    def __init__(self, site: SimulatedSite) -> None:
        self.site = site

    def begin(self) -> None:
        """Set the timers of the owner's load."""

    @property
    def held_milli(self) -> int:
        """GPUs that the owner has for themselves, in thousandths."""
        return sum(pool.wanted_milli for pool in self.site.pools.values())

    def claims(self) -> tuple[OwnerDemand, ...]:
        """Return what the owner waits for."""
        short = sum(max(0, -pool.room_milli) for pool in self.site.pools.values())
        return (OwnerDemand(-(-short // ONE_GPU), ONE_GPU, 1, 1024, now()),) if short else ()

    def load(self) -> OwnerLoad | None:
        return None

    def drone_left(self, drone: SimulatedDrone) -> None:
        """Use the room of a drone that left a node."""

    def nodes_failed(self) -> None:
        """Let the jobs of nodes that are down wait again."""

    def close(self) -> None:
        """Count who still waits."""


@frozen
class OwnerSeries:
    """``steps``: from when on the owner has how many GPUs, of several pools together."""

    steps: tuple[tuple[float, int], ...]
    pools: tuple[str, ...] = ()
    """Names of their GPU pools; empty: all of the site's."""
    victim: VictimRule = VictimRule.YOUNGEST
    notice_s: float = 0.0
    """Between the owner's wish and the drone's end; 0 is without notice."""

    def at(self, site: SimulatedSite) -> SimulatedOwner:
        return SeriesOwner(self, site)


class SeriesOwner(SimulatedOwner):
    """The owner of a series, who takes free GPUs by chance, and where none is free, those of drones."""

    def __init__(self, series: OwnerSeries, site: SimulatedSite) -> None:
        super().__init__(site)
        self._series = series
        self._pools = [
            pool for name, pool in site.pools.items() if name in (series.pools or site.pools)
        ]

    def begin(self) -> None:
        for at_s, gpus in self._series.steps:
            at(at_s, self._have, gpus)

    def load(self) -> OwnerLoad | None:
        return OwnerLoad(gpu_milli=self.held_milli)

    def _have(self, gpus: int) -> None:
        rng = rng_for(self.site.seed, "owner series", self.site.name, now_s())
        more = gpus - sum(pool.wanted_milli for pool in self._pools) // ONE_GPU
        for _ in range(more):
            free = [max(0, pool.room_milli) // ONE_GPU for pool in self._pools]
            if any(free):
                rng.choices(self._pools, free)[0].wanted_milli += ONE_GPU
            elif not self._take_from_drones():
                break
        for _ in range(-more):
            rng.choices(self._pools, [pool.wanted_milli for pool in self._pools])[
                0
            ].wanted_milli -= ONE_GPU
        self.site.place_waiting()

    def _take_from_drones(self) -> bool:
        """Take one GPU; return False where no drone has one to give."""
        for drone in self.site.victims(self._series.victim, self._pools):
            if drone.type.gpu_milli and not self._has_notice(drone):
                pool = self.site.pool_of(drone.type)
                pool.wanted_milli += ONE_GPU
                self._make_room(pool)
                return True
        return False

    def _make_room(self, pool: GpuPoolState) -> None:
        """Let drones of a pool go, first victim first, until nobody has more than there is."""
        drones = [
            drone
            for drone in self.site.victims(self._series.victim, [pool])
            if drone.type.gpu_milli
        ]
        coming_milli = sum(drone.type.gpu_milli for drone in drones if self._has_notice(drone))
        for drone in drones:
            if pool.room_milli + coming_milli < 0 and not self._has_notice(drone):
                coming_milli += drone.type.gpu_milli if self._series.notice_s > 0 else 0
                drone.preempt(self._series.notice_s)

    def _has_notice(self, drone: SimulatedDrone) -> bool:
        """Return whether the drone leaves anyway and the owner waits for that."""
        return self._series.notice_s > 0 and drone.is_leaving
