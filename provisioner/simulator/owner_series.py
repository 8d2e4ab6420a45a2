"""An owner of several GPU pools of whom only a series is known: how many GPUs he has in all of them together.

What he takes more, he takes where GPUs are free, by chance, in proportion to how many are; where none are, from
drones. What he gives back is from any of the pools, in proportion to what he has there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from provisioner.model import EndKind
from provisioner.simulator.body import Body
from provisioner.simulator.draws import keyed
from provisioner.simulator.owner import Victim

ONE_GPU = 1000


@dataclass(frozen=True, slots=True)
class OwnerSeries:
    """``steps``: from when on the owner has how many GPUs."""

    steps: tuple[tuple[float, int], ...]
    pools: tuple[str, ...] = ()
    """Names of his GPU pools; empty: all of the site's."""
    victim: Victim = Victim.YOUNGEST
    notice_s: float = 0.0
    """Between the owner's wish and the drone's end; 0 is without notice."""


class Held(Protocol):
    """A GPU pool, as far as its owner is concerned."""

    wanted_milli: int

    @property
    def room_milli(self) -> int: ...


class SeriesOwner:
    """The owner at work. ``victims``: drones in some pools, first victim first; ``place``: give out what is free."""

    def __init__(
        self,
        series: OwnerSeries,
        pools: Sequence[Held],
        victims: Callable[[Sequence[Held]], Sequence[tuple[Body, Held]]],
        place: Callable[[], None],
        *,
        seed: int,
        site: str,
    ) -> None:
        self._series = series
        self._pools = pools
        self._victims = victims
        self._place = place
        self._seed = seed
        self._site = site

    def begin(self) -> None:
        """Set the timers of the steps."""
        loop = asyncio.get_running_loop()
        for at_s, gpus in self._series.steps:
            loop.call_at(at_s, self.wants, gpus)

    def wants(self, gpus: int) -> None:
        """From now on the owner has so many GPUs, or as many as there are."""
        rng = keyed(self._seed, "owner series", self._site, asyncio.get_running_loop().time())
        more = gpus - sum(pool.wanted_milli for pool in self._pools) // ONE_GPU
        for _ in range(more):
            free = [max(0, pool.room_milli) // ONE_GPU for pool in self._pools]
            if any(free):
                rng.choices(self._pools, free)[0].wanted_milli += ONE_GPU
            elif not self._take_from_drones():
                break
        for _ in range(-more):
            rng.choices(self._pools, [pool.wanted_milli for pool in self._pools])[0].wanted_milli -= ONE_GPU
        self._place()

    def _take_from_drones(self) -> bool:
        """One GPU; False where no drone has one to give."""
        for body, pool in self._victims(self._pools):
            if body.type.gpu_milli and not self._has_notice(body):
                pool.wanted_milli += ONE_GPU
                self._make_room(pool)
                return True
        return False

    def _make_room(self, pool: Held) -> None:
        """Drones of a pool go, first victim first, until nobody has more than there is."""
        bodies = [body for body, _ in self._victims([pool]) if body.type.gpu_milli]
        coming_milli = sum(body.type.gpu_milli for body in bodies if self._has_notice(body))
        for body in bodies:
            if pool.room_milli + coming_milli >= 0:
                return
            if self._has_notice(body):
                continue
            if self._series.notice_s > 0:
                coming_milli += body.type.gpu_milli
                body.leave(EndKind.PREEMPTED, None, "preempted by the owner", self._series.notice_s)
            else:
                body.perish(EndKind.PREEMPTED, "preempted by the owner")

    def _has_notice(self, body: Body) -> bool:
        """It leaves anyway, and the owner waits for that; one who gives no notice waits for nobody."""
        return self._series.notice_s > 0 and body.told_to_leave
