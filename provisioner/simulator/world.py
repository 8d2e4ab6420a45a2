"""The simulated world: sites, overlay, jobs, and the books of what really happened. No word of the controller."""

from __future__ import annotations

from collections.abc import Sequence

from provisioner.model import WHOLE_GPU, DroneId, DroneType, Policy
from provisioner.simulator.body import Body
from provisioner.simulator.faults import Blow, Spell
from provisioner.simulator.jobs import SimJob
from provisioner.simulator.overlay import PoolHabits, SimOverlay
from provisioner.simulator.results import Sample
from provisioner.simulator.site import Facility, SimSite
from provisioner.simulator.tally import Tally


class World:
    """To be made and begun inside a running virtual loop; it then lives by its own timers."""

    def __init__(
        self,
        facilities: Sequence[Facility],
        jobs: Sequence[SimJob],
        policy: Policy,
        *,
        seed: int,
        start_epoch: float,
        pool: PoolHabits | None = None,
        spells: Sequence[Spell] = (),
        blows: Sequence[Blow] = (),
    ) -> None:
        self.types: tuple[DroneType, ...] = tuple(t for facility in facilities for t in facility.types)
        self.tally = Tally(policy, self.types)
        self.overlay = SimOverlay(
            jobs,
            self.tally,
            habits=pool or PoolHabits(),
            seed=seed,
            start_epoch=start_epoch,
            spells=spells,
            blows=blows,
        )
        self._possible = sum(any(job.wants.misfit(t) is None for t in self.types) for job in jobs)
        self.sites = {
            facility.name: SimSite(
                facility, self.overlay, self.tally, seed=seed, start_epoch=start_epoch, spells=spells, blows=blows
            )
            for facility in facilities
        }

    def begin(self) -> None:
        """Let time work: arrivals, negotiation, owner load, blows."""
        self.overlay.begin()
        for site in self.sites.values():
            site.begin()

    @property
    def bodies(self) -> list[Body]:
        """Drones alive at any site."""
        return [body for site in self.sites.values() for body in site.alive]

    @property
    def live_ids(self) -> set[DroneId]:
        return {body.id for body in self.bodies}

    @property
    def jobs_done(self) -> bool:
        """All that can be done: not those that no drone type fits."""
        return self.jobs_left <= 0

    @property
    def jobs_left(self) -> int:
        """Those that could be done and are not."""
        return self._possible - self.overlay.done

    def jobs_astray(self) -> int:
        """Jobs that are neither to come, nor waiting, running or done: there is no such thing."""
        pool = self.overlay
        return len(pool.tickets) - pool.to_come - pool.waiting - pool.running - pool.done

    def sample(self, at_s: float) -> Sample:
        """The state of things now."""
        by_site = {name: site.held_milli / WHOLE_GPU for name, site in self.sites.items()}
        return Sample(
            at_s=at_s,
            jobs_waiting=self.overlay.waiting,
            jobs_running=self.overlay.running,
            gpus_held=sum(by_site.values()),
            gpus_busy=self.overlay.busy_milli / WHOLE_GPU,
            gpus_owner=sum(site.owner_milli for site in self.sites.values()) / WHOLE_GPU,
            by_site=by_site,
        )

    def close(self) -> None:
        """Enter what is still held in the books."""
        for site in self.sites.values():
            site.close()
