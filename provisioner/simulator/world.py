"""A simulated world, scenarios, and the outcome of running the controller in one."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import structlog

from provisioner.controller.loop import Controller
from provisioner.interfaces import Overlay, Site
from provisioner.keys import Subject
from provisioner.model import (
    WHOLE_GPU,
    Breaker,
    Drone,
    DroneId,
    DroneState,
    Plan,
    Policy,
    Snapshot,
    StateChange,
)
from provisioner.planner import planner
from provisioner.planner.safeguards import PlanFunction, PlanValidator
from provisioner.planner.validation import Breach, validate_plan
from provisioner.simulator.drones import DroneStage, HardwareFault, SimulatedDrone
from provisioner.simulator.hedges import HedgeCount
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Draw, Network, VirtualClock, now_s, run_virtual
from provisioner.simulator.pool import PoolBehaviour, SimulatedOverlay
from provisioner.simulator.results import Metrics, Sample, ServiceTotals
from provisioner.simulator.services import RequestBurst, SimulatedServices
from provisioner.simulator.sites import Facility, SimulatedSite
from provisioner.store import EventFields, Store
from provisioner.values import factory, frozen

START_EPOCH = 1_750_000_000.0
"""Simulations begin on 15 June 2025."""
END_CHECK_INTERVAL_S = 5.0
"""Interval of the checks for the end after the last job came, in virtual seconds."""


@frozen
class Scenario:
    """A world, what goes wrong in it, and how the controller is set up. Times count from its start."""

    facilities: tuple[Facility, ...]
    jobs: tuple[SimulatedJob, ...]
    seed: int = 0
    policy: Policy = factory(Policy)
    """``sites`` is filled in from the facilities."""
    pool: PoolBehaviour = factory(PoolBehaviour)
    hardware_faults: tuple[HardwareFault, ...] = ()
    bursts: tuple[RequestBurst, ...] = ()
    least_s: float = 0.0
    """It continues for so long even if all is over before."""
    limit_s: float = 7 * 86400.0
    stall_s: float = math.inf
    """It breaks off, too, when no job has run for so long after the last one came and the last fault was over."""
    planner: Callable[[], PlanFunction] = planner
    """Makes what decides, anew for each life of the controller."""
    judge: PlanValidator = validate_plan
    samples_s: float | None = None
    """If set, the state of things is kept so often."""

    @property
    def full_policy(self) -> Policy:
        return replace(
            self.policy, sites={facility.name: facility.policy for facility in self.facilities}
        )

    def network(self, name: str, latency: Draw) -> Network:
        return Network(name, latency, self.seed)


class World:
    """Overlay and sites, made and begun inside a running virtual loop; they then live by their own timers."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.types = tuple(kind for facility in scenario.facilities for kind in facility.types)
        self.metrics = Metrics(scenario.full_policy, self.types)
        self.overlay = SimulatedOverlay(self)
        self.services = SimulatedServices(self)
        self.sites = {each.name: SimulatedSite(each, self) for each in scenario.facilities}
        self.jobs_impossible = sum(
            number
            for wants, number in Counter(job.wants for job in scenario.jobs).items()
            if all(wants.unmet_requirement(kind) for kind in self.types)
        )

    def begin(self) -> None:
        self.overlay.begin()
        self.services.begin()
        for site in self.sites.values():
            site.begin()

    @property
    def drones(self) -> list[SimulatedDrone]:
        return [drone for site in self.sites.values() for drone in site.alive]

    @property
    def jobs_left(self) -> int:
        """Jobs that could be done and are not."""
        return len(self.overlay.queued_jobs) - self.jobs_impossible - self.overlay.done

    def jobs_astray(self) -> int:
        """Count jobs that are neither to come, nor waiting, running or done: there is no such thing."""
        pool = self.overlay
        return len(pool.queued_jobs) - pool.to_come - pool.waiting - pool.running - pool.done

    def sample(self) -> Sample:
        by_site = {name: site.held_milli / WHOLE_GPU for name, site in self.sites.items()}
        return Sample(
            at_s=now_s(),
            jobs_waiting=self.overlay.waiting,
            jobs_running=self.overlay.running,
            gpus_held=sum(by_site.values()),
            gpus_busy=self.overlay.busy_milli / WHOLE_GPU,
            gpus_owner=sum(site.owner.held_milli for site in self.sites.values()) / WHOLE_GPU,
            by_site=by_site,
            queued=self._count(lambda drone: drone.stage is DroneStage.QUEUED),
            booting=self._count(
                lambda drone: drone.stage in (DroneStage.BOOTING, DroneStage.CHECKING)
            ),
        )

    def _count(self, wanted: Callable[[SimulatedDrone], bool]) -> Mapping[str, int]:
        return {name: sum(map(wanted, site.alive)) for name, site in self.sites.items()}

    def close(self) -> None:
        for site in self.sites.values():
            site.close()
        self.services.close()
        self.metrics.close()


@frozen
class SimulationOutcome:
    seed: int
    digest: str
    """Digest of every step of every drone on record with time and reason: same seed, same digest."""
    ticks: int
    hedges: HedgeCount
    ended_s: float
    jobs: int
    jobs_done: int
    jobs_impossible: int
    jobs_left: int
    """Other jobs that were not done at the end."""
    drones: int
    """Ids ever asked for."""
    samples: tuple[Sample, ...]
    metrics: Metrics
    services: Mapping[str, ServiceTotals]
    waits_why: Mapping[str, Mapping[str, float]]
    """Job-seconds of waiting by size of the jobs and kind of the reason that the planner gave."""
    violations: tuple[str, ...]
    """Every promise that was broken, a line each; the first to read after a failure."""


def simulate(scenario: Scenario) -> SimulationOutcome:
    """Run the controller in the scenario's world until all is over: jobs done, no drone alive, none on record."""
    with quiet():
        return run_virtual(Simulation(scenario).run(), start_epoch=START_EPOCH)


class RunRecord:
    """Record of one run's commits: ticks, births, rejected plans, and a digest of every step."""

    def __init__(self) -> None:
        self.ticks = 0
        self.births: Counter[DroneId] = Counter()
        self.refused_plans: list[str] = []
        self.live: Mapping[DroneId, Drone] = {}
        """On record and not ended, by the newest commit."""
        self.digest = hashlib.sha256()
        self.waits_why: defaultdict[str, defaultdict[str, float]] = defaultdict(
            lambda: defaultdict(float)
        )
        """By size of the jobs and kind of the reason: job-seconds of waiting."""
        self._refused: list[tuple[str, str, int]] = []
        self._refused_at = 0.0
        self._labels: dict[Subject, str] = {}

    def waited(self, plan: Plan, snapshot: Snapshot) -> None:
        """Add the time since the previous plan to the reasons that it gave for waiting jobs."""
        for label, kind, count in self._refused:
            self.waits_why[label][kind] += count * (plan.at - self._refused_at)
        for job in snapshot.overlay.view.classes if snapshot.overlay.view is not None else ():
            subject = Subject("class", job.id)
            if subject not in self._labels:
                self._labels[subject] = JobRequirements.of(job).label
        named = ((self._labels.get(each.subject), each) for each in plan.refusals)
        self._refused = [
            (label, each.reason.kind, each.count) for label, each in named if label is not None
        ]
        self._refused_at = plan.at

    def committed(self, plan: Plan, live: Mapping[DroneId, Drone]) -> None:
        self.ticks += 1
        for start in plan.starts:
            self.births[start.drone.id] += 1
            self._write(plan.at, start.drone, None, start.reason.kind)
        for drain in plan.drains:
            self._write(plan.at, drain.drone, drain.was, drain.reason.kind)
        for stop in plan.stops:
            self._write(plan.at, stop.drone, stop.was, stop.reason.kind)
        for orphan in plan.orphans:
            self.digest.update(f"{plan.at!r} {orphan.site} {orphan.drone_id}\n".encode())
        self.moved(plan.moves, live)

    def moved(self, moves: Sequence[StateChange], live: Mapping[DroneId, Drone]) -> None:
        for move in moves:
            if move.drone.state is not move.was:
                self._write(move.drone.since, move.drone, move.was, move.reason.kind)
        self.live = live

    def event(self, at: float, name: str, fields: EventFields) -> None:
        if name == "plan.rejected":
            self.refused_plans.append(f"{at:.1f}: {fields}")

    def _write(self, at: float, drone: Drone, was: DroneState | None, why: str) -> None:
        self.digest.update(f"{at!r} {drone.id} {drone.type} {was} {drone.state} {why}\n".encode())


class RecordedStore(Store):
    """A store in memory that enters in a :class:`RunRecord` what is committed to it."""

    def __init__(self, run: RunRecord) -> None:
        super().__init__()
        self._run = run

    async def record(self, plan: Plan, snapshot: Snapshot) -> None:
        await super().record(plan, snapshot)
        self._run.committed(plan, self.drones)
        self._run.waited(plan, snapshot)

    async def record_results(
        self,
        tick: int,
        moves: Sequence[StateChange],
        breakers: Sequence[Breaker],
        *,
        set_to: float | None = None,
    ) -> None:
        await super().record_results(tick, moves, breakers, set_to=set_to)
        self._run.moved(moves, self.drones)

    async def event(self, at: float, name: str, fields: EventFields) -> None:
        self._run.event(at, name, fields)
        await super().event(at, name, fields)


class Simulation:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.record = RunRecord()
        self.collapse = ""
        """The error that ended the controller."""
        self.samples: list[Sample] = []
        self.hedges = HedgeCount()
        self.stalled_s: float | None = None
        """Since when no job had run, if that is why it broke off."""

    async def run(self) -> SimulationOutcome:
        world = World(self.scenario)
        world.begin()
        over = asyncio.create_task(self._over(world), name="over")
        sampling = asyncio.create_task(self._sample(world), name="samples")
        await self.control(world, over)
        over.cancel()
        sampling.cancel()
        world.close()
        return SimulationOutcome(
            seed=self.scenario.seed,
            digest=self.record.digest.hexdigest(),
            ticks=self.record.ticks,
            hedges=self.hedges,
            ended_s=now_s(),
            jobs=len(world.overlay.queued_jobs),
            jobs_done=world.overlay.done,
            jobs_impossible=world.jobs_impossible,
            jobs_left=world.jobs_left,
            drones=len(self.record.births),
            samples=tuple(self.samples),
            metrics=world.metrics,
            services={name: each.totals for name, each in world.services.services.items()},
            waits_why={
                label: dict(kinds) for label, kinds in sorted(self.record.waits_why.items())
            },
            violations=tuple(self._violations(world)),
        )

    async def control(self, world: World, over: asyncio.Task[None]) -> None:
        """Run the controller until ``over`` is done."""
        stop = asyncio.Event()
        service = self.serve(world, stop, RecordedStore(self.record), world.overlay, world.sites)
        life = asyncio.create_task(service, name="controller")
        await asyncio.wait({life, over}, return_when=asyncio.FIRST_COMPLETED)
        await self.end(life, stop)

    async def end(self, life: asyncio.Task[None], stop: asyncio.Event) -> None:
        stop.set()
        await asyncio.wait({life})
        error = life.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is not None:
            self.collapse = f"{type(error).__name__}: {error}"

    async def serve(
        self,
        world: World,
        stop: asyncio.Event,
        store: Store,
        overlay: Overlay,
        sites: Mapping[str, Site],
    ) -> None:
        scenario = self.scenario
        async with store:
            controller = Controller(
                name="sim",
                policy=scenario.full_policy,
                types=world.types,
                overlay=overlay,
                sites=sites,
                store=store,
                clock=VirtualClock(),
                services=world.services if scenario.policy.services else None,
                planner=scenario.planner(),
                judge=self._judge,
            )
            async with controller:
                await controller.run(stop)

    def _judge(self, snapshot: Snapshot, plan: Plan) -> tuple[Breach, ...]:
        breaches = self.scenario.judge(snapshot, plan)
        if not breaches:
            self.hedges.note(snapshot, plan)
        return breaches

    async def _sample(self, world: World) -> None:
        while self.scenario.samples_s is not None:
            self.samples.append(world.sample())
            await asyncio.sleep(self.scenario.samples_s)

    async def _over(self, world: World) -> None:
        """Return when nothing is left to come, or at the scenario's limit."""
        scenario = self.scenario
        ends_s = [burst.end_s for burst in scenario.bursts]
        last_s = max([0.0, *(job.submit_s for job in scenario.jobs), *ends_s])
        begin_s = max(last_s, scenario.least_s)
        await asyncio.sleep(
            min(begin_s, scenario.limit_s) // END_CHECK_INTERVAL_S * END_CHECK_INTERVAL_S
        )
        ends_s = [fault.at_s + fault.for_s for fault in scenario.hardware_faults]
        ran_s = max([begin_s, *(end_s for end_s in ends_s if end_s < scenario.limit_s)])
        starts = world.overlay.starts
        while now_s() < scenario.limit_s:
            await asyncio.sleep(END_CHECK_INTERVAL_S)
            settled = not world.jobs_left and not self.record.live and not world.drones
            if settled and now_s() >= scenario.least_s:
                return
            if world.overlay.running or world.overlay.starts != starts:
                ran_s = max(ran_s, now_s())
                starts = world.overlay.starts
            elif world.jobs_left and now_s() - ran_s >= scenario.stall_s:
                self.stalled_s = ran_s
                return

    def _violations(self, world: World) -> Iterator[str]:
        if self.collapse:
            yield f"the controller collapsed: {self.collapse}"
        for line in self.record.refused_plans:
            yield f"the checker refused a plan at {line}"
        yield from world.metrics.caps_broken
        yield from world.metrics.overfull
        for drone_id in world.metrics.doubles:
            yield f"two drones lived under the id {drone_id}"
        for drone_id, births in self.record.births.items():
            if births > 1:
                yield f"{drone_id} was recorded as new {births} times"
        if world.jobs_astray():
            yield f"{world.jobs_astray()} jobs are nowhere"
        if world.jobs_left:
            stalled = (
                "" if self.stalled_s is None else f": none has run since {self.stalled_s:.0f} s"
            )
            jobs = f"{world.jobs_left} of {len(world.overlay.queued_jobs)} jobs"
            yield f"{jobs} were not done after {now_s():.0f} s{stalled}"
        elif world.drones:
            yield f"{len(world.drones)} drones still live {now_s():.0f} s after the start, and no job needs them"
        live = {drone.id for drone in world.drones}
        recorded = set(self.record.live)
        for drone_id in sorted(live - recorded):
            yield f"{drone_id} lives without a record"
        for drone_id in sorted(recorded - live):
            yield f"{drone_id} is on record and lives nowhere"


@contextmanager
def quiet() -> Iterator[None]:
    """Discard the controller's log lines: a simulated day has thousands of them."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
