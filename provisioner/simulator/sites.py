"""A simulated site: hardware, queue and owner behind the interface that every site has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING

from provisioner import model
from provisioner.interfaces import AlwaysOpen, UnavailableError
from provisioner.model import (
    DroneId,
    DroneType,
    EndKind,
    FaultKind,
    Node,
    OrderOutcome,
    OrderResult,
    OrderResults,
    SiteView,
    StartOrder,
    StopOrder,
)
from provisioner.planner.matching import count_fits
from provisioner.resources import NO_RESOURCES, Resources
from provisioner.simulator import drones
from provisioner.simulator.drones import (
    DroneStage,
    HardwareFault,
    HardwareFaultKind,
    SiteBehaviour,
)
from provisioner.simulator.loop import Draw, Fixed, after, at, now, now_s, start_epoch
from provisioner.simulator.owner import OwnerModel, SimulatedOwner, VictimRule
from provisioner.values import factory, frozen

if TYPE_CHECKING:
    from provisioner.simulator.world import World

UNCOUNTED = 1 << 40
"""Stands for CPUs, RAM or disk of a node where a scenario does not count them."""


@frozen
class GpuPool:
    """``nodes`` nodes of ``gpus_per_node`` GPUs."""

    name: str
    gpus_per_node: int
    nodes: int = 1
    cpus_per_node: int = 0
    memory_mib_per_node: int = 0
    """Like the CPUs, 0 if they are not counted."""

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def node(self) -> Resources:
        return Resources(
            self.gpus_per_node * 1000,
            self.cpus_per_node or UNCOUNTED,
            self.memory_mib_per_node or UNCOUNTED,
            UNCOUNTED,
        )


@frozen
class Facility:
    """A site to be simulated."""

    policy: model.SitePolicy
    types: tuple[DroneType, ...]
    pools: tuple[GpuPool, ...]
    serves: Mapping[str, str] = factory(dict)
    """Drone type by name to GPU pool; the first pool for types not named."""
    behaviour: SiteBehaviour = factory(SiteBehaviour)
    behaviour_of: Mapping[str, SiteBehaviour] = factory(dict)
    """Behaviour towards drone types by name, where it differs from the site's."""
    latency: Draw = field(default_factory=lambda: Fixed(0.2))
    quota: int | None = None
    """Drones that the site itself allows; more are refused one by one."""
    queues: bool = True
    """False: an order that does not fit now is refused."""
    reports_free: bool = True
    retain_finished_s: float = 3600.0
    """Time for which ended drones stay in the listing."""
    owner: OwnerModel | None = None
    reports_claims: bool = True
    """False: the owner's jobs are not listed, and the site alone makes room for them."""
    reports_nodes: bool = False
    blocks: Resources = NO_RESOURCES
    """Reserve that the site itself keeps for each free GPU of its nodes; ``policy.blocking`` is the planner's view."""

    @property
    def name(self) -> str:
        return self.policy.site

    def pool_of(self, kind: DroneType) -> str:
        return self.serves.get(kind.name, self.pools[0].name)

    def beyond_timeouts(self) -> Iterator[tuple[str, str, float, str, float]]:
        """Yield site or type, duration, median, timeout and its value where most drones would take too long."""
        timeouts = {
            "queue": ("queued", self.policy.queued_s),
            "boot": ("booting", self.policy.booting_s),
            "check": ("joining", self.policy.joining_s),
        }
        where = {self.name: self.behaviour}
        where |= {f"{self.name}/{name}": each for name, each in self.behaviour_of.items()}
        for name, behaviour in where.items():
            for key, (timeout, most_s) in timeouts.items():
                median_s = getattr(behaviour, key).median_s
                if self.policy.enabled and median_s > most_s:
                    yield name, key, median_s, timeout, most_s


class GpuPoolState:
    def __init__(self, pool: GpuPool, kept: Resources) -> None:
        self.wanted_milli = 0
        """GPUs that the owner has or wants without a node."""
        names = [f"{pool.name}-{n}" for n in range(pool.nodes)]
        self.machines = [drones.SimulatedNode(name, pool.name, pool.node, kept) for name in names]

    @property
    def room_milli(self) -> int:
        held_by_none = sum(
            m.free.gpu_milli if m.up else m.free.gpu_milli - m.total.gpu_milli
            for m in self.machines
        )
        return held_by_none - self.wanted_milli

    def machine_for(self, amount: Resources) -> drones.SimulatedNode | None:
        """Return the fullest node with room for a drone, if any; an owner's series takes room, but no certain node."""
        if self.room_milli < amount.gpu_milli:
            return None
        fitting = [m for m in self.machines if m.hosts(amount)]
        return min(fitting, key=lambda m: m.free.gpu_milli, default=None)

    def places(self, amount: Resources) -> int:
        """Return for how many drones of one size there is room, node by node."""
        return sum(count_fits(amount, m.free) for m in self.machines if m.up)


class SimulatedSite(AlwaysOpen):
    """Implements :class:`provisioner.interfaces.Site`; the other methods are the world's."""

    def __init__(self, facility: Facility, world: World) -> None:
        self.facility = facility
        self.name = facility.name
        self.drones: dict[DroneId, drones.SimulatedDrone] = {}
        """Alive, or ended and not yet forgotten."""
        self.metrics = world.metrics
        self.seed = world.scenario.seed
        self.pools = {pool.name: GpuPoolState(pool, facility.blocks) for pool in facility.pools}
        self.machines = [machine for pool in self.pools.values() for machine in pool.machines]
        self.overlay = world.overlay
        self.services = world.services
        self._network = world.scenario.network(facility.name, facility.latency)
        self._queue: dict[DroneId, drones.SimulatedDrone] = {}
        self._serial = 0
        self._downs = 0
        """Downtimes that go on: they may overlap, and the site is back when the last of them ends."""
        self._downtimes: list[HardwareFault] = []
        """Announced, or going on."""
        self._hardware_faults = [
            fault for fault in world.scenario.hardware_faults if fault.where == facility.name
        ]
        self.owner = SimulatedOwner(self) if facility.owner is None else facility.owner.at(self)

    @property
    def alive(self) -> list[drones.SimulatedDrone]:
        return [drone for drone in self.drones.values() if drone.alive]

    def begin(self) -> None:
        self.owner.begin()
        for fault in self._hardware_faults:
            if fault.kind is HardwareFaultKind.DOWNTIME:
                at(max(0.0, fault.at_s - fault.notice_s), self._downtimes.append, fault)
            at(fault.at_s, self._hardware_fails, fault)

    async def poll(self) -> SiteView:
        return await self._network.call("poll", self._listing)

    async def start(self, orders: Sequence[StartOrder]) -> OrderResults:
        return await self._network.call("start", lambda: [self._accept(order) for order in orders])

    async def stop(self, orders: Sequence[StopOrder]) -> OrderResults:
        return await self._network.call("stop", lambda: [self._stop(order) for order in orders])

    def _listing(self) -> SiteView:
        self._check_open()
        facility = self.facility
        for drone in list(self.drones.values()):
            if drone.end is not None and drone.end.at <= now() - facility.retain_finished_s:
                del self.drones[drone.id]
        knows_load = facility.reports_claims or not self.owner.places_drones
        free_milli = sum(max(0, pool.room_milli) for pool in self.pools.values())
        return SiteView(
            site=self.name,
            taken_at=now(),
            drones={drone_id: drone.listed() for drone_id, drone in self.drones.items()},
            free={kind.name: self._places(kind) for kind in facility.types}
            if facility.reports_free
            else None,
            nodes=self._nodes() if facility.reports_nodes else (),
            claims=self.owner.claims() if facility.reports_claims else (),
            owner_runs=self.owner.load() if knows_load else None,
            downtime_at=start_epoch() + min(b.at_s for b in self._downtimes)
            if self._downtimes
            else 0.0,
            free_gpu_milli=free_milli if facility.reports_free else None,
        )

    def _nodes(self) -> tuple[Node, ...]:
        kinds: dict[str, list[DroneType]] = {name: [] for name in self.pools}
        for kind in self.facility.types:
            kinds[self.facility.pool_of(kind)].append(kind)
        # An owner's series takes room, but no certain node: it is shown on the fullest ones, as
        # drones are placed.
        elsewhere = {name: pool.wanted_milli for name, pool in self.pools.items()}
        nodes = []
        for m in (
            sorted(self.machines, key=lambda m: m.free.gpu_milli)
            if any(elsewhere.values())
            else self.machines
        ):
            if m.up:
                types = tuple(
                    kind.name for kind in kinds[m.pool] if Resources.of(kind).within(m.total)
                )
                taken = min(m.free.gpu_milli, elsewhere[m.pool])
                elsewhere[m.pool] -= taken
                nodes.append(Node(m.name, types, *m.total, *m.free.plus(Resources(taken), -1)))
        return tuple(nodes)

    def pool_of(self, kind: DroneType) -> GpuPoolState:
        return self.pools[self.facility.pool_of(kind)]

    def _places(self, kind: DroneType, promised_milli: int = 0) -> int:
        """Return how many drones of a type could start right now, were it not for others that wait."""
        pool = self.pool_of(kind)
        by_gpus = max(0, pool.room_milli - promised_milli) // max(1, kind.gpu_milli)
        return max(0, min(by_gpus, pool.places(Resources.of(kind))))

    def _free(self, kind: DroneType) -> int:
        """Return the same less what queued drones take."""
        pool = self.pool_of(kind)
        queued = [b.type.gpu_milli for b in self._queue.values() if self.pool_of(b.type) is pool]
        return min(
            self._places(kind, sum(queued)),
            max(0, pool.places(Resources.of(kind)) - len(queued)),
        )

    def _check_open(self) -> None:
        if self._downs:
            raise UnavailableError(f"{self.name}: downtime")

    def _accept(self, order: StartOrder) -> OrderResult:
        self._check_open()
        if (known := self.drones.get(order.drone_id)) is not None:
            return OrderResult(order.drone_id, OrderOutcome.OK, known.remote_id)
        facility = self.facility
        if facility.quota is not None and len(self.alive) >= facility.quota:
            return self._refused(
                order.drone_id, FaultKind.QUOTA, f"quota of {facility.quota} drones is used up"
            )
        if not facility.queues and not self._free(order.type):
            return self._refused(order.drone_id, FaultKind.CAPACITY, "no valid host was found")
        self._serial += 1
        behaviour = facility.behaviour_of.get(order.type.name, facility.behaviour)
        script = drones.DroneScript.drawn(behaviour, self.seed, self.name, order.drone_id)
        drone = drones.SimulatedDrone(order, f"{self.name}-{self._serial}", script, self)
        self.drones[drone.id] = drone
        self.metrics.born(drone.id, drone.type)
        if self._free(drone.type) <= 0:
            self.metrics.accepted_without_room[self.name] += 1
        if script.queue_s > 0:
            after(script.queue_s, self._eligible, drone)
        else:
            self._eligible(drone)
        return OrderResult(drone.id, OrderOutcome.OK, drone.remote_id)

    def _refused(self, drone_id: DroneId, kind: FaultKind, message: str) -> OrderResult:
        fault = model.Fault(kind, f"{self.name}: {message}", now())
        return OrderResult(drone_id, OrderOutcome.REJECTED, fault=fault)

    def _stop(self, order: StopOrder) -> OrderResult:
        self._check_open()
        drone = self.drones.get(order.drone_id)
        if drone is not None and order.kill:
            drone.perish(EndKind.STOPPED, "killed on request")
        elif drone is not None:
            drone.leave(EndKind.STOPPED, "stopped on request", drone.order.grace_s)
        return OrderResult(order.drone_id, OrderOutcome.OK, order.remote_id)

    def _eligible(self, drone: drones.SimulatedDrone) -> None:
        if drone.stage is DroneStage.QUEUED:
            self._queue[drone.id] = drone
            self.place_waiting()

    def place_waiting(self) -> None:
        """Give room to those who wait for it, unless the owner's jobs come first, in the site's cycle."""
        if not self.owner.places_drones:
            self.place_queued()

    def place_queued(self) -> None:
        """Place queued drones, first come, first served; small ones may slip by."""
        if self._downs:
            return
        for drone in list(self._queue.values()):
            amount = Resources.of(drone.type)
            machine = self.pool_of(drone.type).machine_for(amount)
            if machine is not None:
                del self._queue[drone.id]
                machine.place(drone, amount)
                self.metrics.node_filled(machine)
                self.metrics.started += 1
                drone.grant(machine)

    def left(self, drone: drones.SimulatedDrone, end: model.RemoteEnd) -> None:
        self._queue.pop(drone.id, None)
        self.metrics.gone(drone.id, drone.type, end.kind)
        self.metrics.withdrawn += drone.granted_s is None
        if drone.machine is not None:
            drone.machine.left(drone)
            self.account(drone)
            self.owner.drone_left(drone)
        self.place_waiting()

    def account(self, drone: drones.SimulatedDrone) -> None:
        if drone.granted_s is None:
            return
        left_s = now_s() if drone.left_s is None else drone.left_s
        boot_end_s = left_s if drone.serving_s is None else drone.serving_s
        if drone.type.service:
            self.services.held(drone, now_s() - drone.granted_s)
        self.metrics.held(
            drone.type, now_s() - drone.granted_s, boot_end_s - drone.granted_s, now_s() - left_s
        )

    def victims(
        self, rule: VictimRule, pools: Sequence[GpuPoolState]
    ) -> list[drones.SimulatedDrone]:
        """Return the drones in some GPU pools, first victim first."""
        placed = [
            drone
            for drone in self.alive
            if drone.granted_s is not None and self.pool_of(drone.type) in pools
        ]
        return sorted(placed, key=rule.order(self.seed))

    def _hardware_fails(self, fault: HardwareFault) -> None:
        self._downs += fault.kind is HardwareFaultKind.DOWNTIME
        for machine in self._hit_by(fault):
            machine.outages += 1
        self.owner.nodes_failed()
        for drone in self.alive:
            if drone.machine is not None and not drone.machine.up:
                drone.perish(EndKind.FAULT, f"node failure: {fault.kind.value}")
        after(fault.for_s, self._recover, fault)

    def _hit_by(self, fault: HardwareFault) -> list[drones.SimulatedNode]:
        if fault.kind is HardwareFaultKind.DOWNTIME:
            return self.machines
        first = next(iter(self.pools.values())).machines
        return [first[fault.node % len(first)]]

    def _recover(self, fault: HardwareFault) -> None:
        for machine in self._hit_by(fault):
            machine.outages -= 1
        if fault.kind is HardwareFaultKind.DOWNTIME:
            self._downs -= 1
            self._downtimes.remove(fault)
        self.place_waiting()

    @property
    def held_milli(self) -> int:
        """GPUs that drones hold, in thousandths."""
        return sum(drone.type.gpu_milli for drone in self.alive if drone.machine is not None)

    def close(self) -> None:
        """Count what is still held, and who still waits."""
        for drone in self.alive:
            self.account(drone)
        self.owner.close()
