"""Two controllers with one record and one lease in virtual time.

They are killed, paused and cut off, and the database fails over, each at a boundary: before or
after a call of the database, of a site or of the overlay. The lease is the product's SQL in a
database in memory, by the virtual clock; the record is kept in memory as in other simulations.
"""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import provisioner.store
from provisioner.controller.compute_thread import ComputeThread
from provisioner.controller.leadership import Membership, any_set
from provisioner.controller.loop import Controller
from provisioner.controller.polling import Poller
from provisioner.controller.standby import Standby
from provisioner.model import Breaker, DroneId, DroneState, Plan, Snapshot, StateChange
from provisioner.simulator.loop import VirtualClock, now, now_s, rng_for, run_virtual
from provisioner.simulator.world import (
    START_EPOCH,
    Simulation,
    SimulationOutcome,
    World,
    quiet,
)
from provisioner.store import CommittedState, Store, StoreError
from provisioner.store.lease import LeaseStore, Member, Term
from tests.simulator.crashing import OVERLAY_ACTS, SITE_ACTS
from tests.simulator.faults import FaultyScenario, ServiceFault, ServiceFaultKind
from tests.simulator.worlds import rough

LEASE_S = 10.0
LEADERLESS_S = 3 * LEASE_S
"""Two leases may run out one after the other, if a member dies that has just taken over."""
ACTS = frozenset({"plan", *SITE_ACTS, *OVERLAY_ACTS})
MIGRATIONS = Path(provisioner.store.__file__).parent / "migrations"
SCHEMA = [MIGRATIONS / f"{name}.sql" for name in ("0016_lease", "0017_configurations")]


class EventKind(StrEnum):
    KILL = "kill"
    """And started again ``for_s`` later."""
    PAUSE = "pause"
    """As by SIGSTOP and SIGCONT."""
    CUT = "cut"
    """No connection to the database."""
    REPLY_LOST = "reply-lost"
    """The next transaction is committed, and the member gets no reply."""
    FAIL_OVER = "fail-over"
    """The database loses what it committed in the last ``for_s`` seconds."""
    CLOCK = "clock"
    """The clock of the database steps by ``for_s`` seconds; if back, the member is killed as well."""


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """An event of the member that crosses the ``boundary``-th boundary (from 1) of all members together.

    ``acts_only`` counts the boundaries of orders alone, and of records of plans that give some.
    """

    kind: EventKind
    boundary: int
    for_s: float
    acts_only: bool = True


@dataclass(frozen=True, slots=True)
class MembersScenario(FaultyScenario):
    events: tuple[MemberEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersOutcome(SimulationOutcome):
    epochs: int
    happened: Counter[str]
    """Events, by kind and boundary."""


def member_events(seed: int, count: int) -> tuple[MemberEvent, ...]:
    """Return random events, in order."""
    rng = rng_for(seed, "members")
    spans = {
        EventKind.KILL: (0.5, 60.0),
        EventKind.PAUSE: (5.0, 400.0),
        EventKind.CUT: (2.0, 60.0),
        EventKind.REPLY_LOST: (0.0, 0.0),
        EventKind.FAIL_OVER: (0.1, 4.0),
        EventKind.CLOCK: (-3600.0, 3600.0),
    }
    found = []
    for _ in range(count):
        kind = rng.choice(list(spans))
        acts_only = rng.random() < 0.7
        boundary = rng.randint(1, 60 if acts_only else 1200)
        found.append(MemberEvent(kind, boundary, rng.uniform(*spans[kind]), acts_only))
    return tuple(sorted(found, key=lambda each: each.boundary))


def simulate(scenario: MembersScenario) -> MembersOutcome:
    simulation = MembersSimulation(scenario)
    with quiet():
        outcome = run_virtual(simulation.run(), start_epoch=START_EPOCH)
    return MembersOutcome(
        **{field.name: getattr(outcome, field.name) for field in fields(SimulationOutcome)},
        epochs=simulation.database.epoch,
        happened=simulation.happened,
    )


class Database:
    """The record and the lease, as their newest commits left them, and as they were before."""

    def __init__(self) -> None:
        self.state = CommittedState("mem0")
        self.ended: dict[DroneId, DroneState] = {}
        self.births: list[tuple[float, DroneId]] = []
        self.clock_off_s = 0.0
        self._past: list[
            tuple[float, CommittedState, dict[DroneId, DroneState], tuple[Any, ...]]
        ] = []
        self.sql = self.connect()
        for script in SCHEMA:
            self.sql.executescript(script.read_text())

    def connect(self) -> sqlite3.Connection:
        """Return the connection, which all share: one transaction at a time, each without a pause."""
        if not hasattr(self, "sql"):
            self.sql = sqlite3.connect(":memory:", isolation_level=None)
            self.sql.create_function("virtual_now", 0, lambda: now() + self.clock_off_s)
        return self.sql

    @property
    def epoch(self) -> int:
        (epoch,) = self.sql.execute("SELECT epoch FROM lease").fetchone()
        return int(epoch)

    @property
    def holds(self) -> tuple[int, str]:
        epoch, nonce = self.sql.execute("SELECT epoch, nonce FROM lease").fetchone()
        return int(epoch), str(nonce)

    def committed(self) -> None:
        row = self.sql.execute("SELECT * FROM lease").fetchone()
        self._past.append((now_s(), self.state, dict(self.ended), row))

    def fail_over(self, lost_s: float) -> set[DroneId]:
        """Go back to what was committed some time ago. Return the drones whose record was lost."""
        kept = [each for each in self._past if each[0] <= now_s() - lost_s]
        if not kept:
            return set()
        at_s, self.state, ended, row = kept[-1]
        self.ended = dict(ended)
        self._past = kept
        self.sql.execute("DELETE FROM lease")
        self.sql.execute(f"INSERT INTO lease VALUES ({', '.join('?' * len(row))})", row)
        lost = {drone_id for born_s, drone_id in self.births if born_s > at_s}
        self.births = [each for each in self.births if each[0] <= at_s]
        return lost


class Gate:
    """The way of one life of a member to everything outside it."""

    def __init__(self, cross: Callable[[Gate, str], None]) -> None:
        self.is_dead = False
        self.paused_until_s = 0.0
        self.cut_until_s = 0.0
        self.loses_reply = False
        self._cross = cross

    async def cross(self, boundary: str) -> None:
        if not self.is_dead:
            self._cross(self, boundary)
        while now_s() < self.paused_until_s and not self.is_dead:  # noqa: ASYNC110 - by a clock
            await asyncio.sleep(self.paused_until_s - now_s())
        if self.is_dead:
            raise asyncio.CancelledError

    @asynccontextmanager
    async def transaction(self, of: str = "database") -> AsyncIterator[None]:
        await self.cross(f"before {of}")
        if now_s() < self.cut_until_s:
            await asyncio.sleep(1.0)
            raise StoreError("the database does not answer")
        yield
        if self.loses_reply:
            self.loses_reply = False
            raise StoreError("the connection was lost")
        await self.cross(f"after {of}")


class Outside:
    """A site or the overlay as one life of a member sees it."""

    def __init__(
        self,
        behind: Any,
        gate: Gate,
        acts: frozenset[str],
        on_order: Callable[[str, Any], None],
        on_poll: Callable[[str, float], None],
    ) -> None:
        self._behind = behind
        self._gate = gate
        self._acts = acts
        self._on_order = on_order
        self._on_poll = on_poll

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._behind, name)
        if not inspect.iscoroutinefunction(value):
            return value

        async def call(*args: Any, **options: Any) -> Any:
            await self._gate.cross(f"before {name}")
            begun = now()
            if name in self._acts:
                self._on_order(name, args[0])
            answer = await value(*args, **options)
            if name == "poll" and hasattr(answer, "site"):
                self._on_poll(answer.site, begun)
            await self._gate.cross(f"after {name}")
            return answer

        self.__dict__[name] = call  # the same method at each poll
        return call


class MemberStore(Store):
    """The record as a leader has it; each commit proves its term."""

    def __init__(self, life: Life, term: Term) -> None:
        super().__init__()
        self._life = life
        self._term = term

    @asynccontextmanager
    async def _transaction(self, of: str = "database") -> AsyncIterator[None]:
        database = self._life.database
        before = self._state, dict(self._ended)
        try:
            async with self._life.gate.transaction(of):
                with suppress(sqlite3.OperationalError):
                    database.sql.execute("BEGIN")
                try:
                    self._term.prove(database.sql)
                    yield
                    database.sql.execute("COMMIT")
                except BaseException:
                    database.sql.execute("ROLLBACK")
                    raise
                assert self._state is not None
                database.state = self._state
                database.ended = dict(self._ended)
                database.committed()
            self._term.writes += 1
        except StoreError:
            self._state, self._ended = before
            raise

    async def __aenter__(self) -> MemberStore:
        async with self._transaction():
            self._state = self._life.database.state
            self._ended = dict(self._life.database.ended)
        return self

    async def record(self, plan: Plan, snapshot: Snapshot) -> None:
        async with self._transaction("plan" if plan.acts else "database"):
            await super().record(plan, snapshot)
            self._life.recorded(plan, self.drones)

    async def record_results(
        self,
        tick: int,
        moves: Sequence[StateChange],
        breakers: Sequence[Breaker],
        *,
        set_to: float | None = None,
    ) -> None:
        async with self._transaction():
            await super().record_results(tick, moves, breakers, set_to=set_to)
            self._life.simulation.record.moved(moves, self.drones)

    async def event(self, at: float, name: str, fields: Any) -> None:
        self._life.simulation.record.event(at, name, fields)


class GatedThread(ComputeThread):
    """Simulated connection of a member to the database, for its lease."""

    def __init__(self, gate: Gate, database: Database) -> None:
        super().__init__(threaded=False)
        self._gate = gate
        self._database = database

    async def run(self, work: Callable[..., Any], *args: Any) -> Any:
        async with self._gate.transaction():
            answer = work(*args)
            self._database.committed()
        return answer


class LeaseServer:
    """The database as a member of the lease connects to it."""

    clock = "virtual_now()"
    begin_brief = "BEGIN"
    errors = sqlite3.Error

    def __init__(self, database: Database) -> None:
        self._sql = database.sql

    def hold(self, *_: object, **__: object) -> tuple[LeaseServer, str]:
        return self, ""

    def execute(self, statement: str, values: Any = ()) -> sqlite3.Cursor:
        return self._sql.execute(statement, values)

    def close(self) -> None:
        """Give up the transaction. The connection is that of all members."""
        if self._sql.in_transaction:
            self._sql.execute("ROLLBACK")

    def unusable(self, error: BaseException) -> StoreError:
        return StoreError(str(error))


class Life:
    """One life of a member."""

    def __init__(self, name: str, simulation: MembersSimulation, world: World) -> None:
        self.name = name
        self.simulation = simulation
        self.world = world
        self.database = simulation.database
        self.gate = Gate(simulation.crossed)
        server: Any = LeaseServer(self.database)
        self.member = Membership(
            LeaseStore(server, "sim"),
            GatedThread(self.gate, self.database),
            Member(name, "{}"),
            LEASE_S,
        )
        wrapped = {
            key: Outside(site, self.gate, SITE_ACTS, self.orders, self.polled)
            for key, site in world.sites.items()
        }
        self.sites: Any = wrapped
        self.overlay: Any = Outside(
            world.overlay, self.gate, OVERLAY_ACTS, self.orders, self.polled
        )
        self.listings: Counter[str] = Counter()
        """Listings of sites that were begun in the term."""
        self.term_at = 0.0
        self.task: asyncio.Task[None] | None = None

    def orders(self, verb: str, orders: Any) -> None:
        """Note an order that is sent, and check that its sender may send it."""
        if verb == "start":
            for order in orders:
                self.simulation.senders[id(order)] = order, (self.name, self.term_at)
        term = self.member.term
        epoch, nonce = self.database.holds
        if term is None or (nonce != term.nonce and epoch > term.epoch):
            self.simulation.broken.append(
                f"{self.name} gave the order {verb} at {now_s():.1f} while epoch {epoch} was another's"
            )

    def polled(self, site: str, begun: float) -> None:
        self.listings[site] += begun >= self.term_at

    def recorded(self, plan: Plan, live: Any) -> None:
        simulation = self.simulation
        adopted = [each.drone.site for each in plan.moves if each.was is None]
        for site in [*adopted, *(each.site for each in plan.orphans)]:
            if self.listings[site] < 2:
                simulation.broken.append(
                    f"{self.name} stopped or adopted an orphan of {site} at {now_s():.1f} after one listing"
                )
        for orphan in plan.orphans:
            if orphan.drone_id in simulation.lost and orphan.drone_id not in self.database.ended:
                simulation.broken.append(
                    f"{self.name} stopped {orphan.drone_id}, whose start was lost"
                )
        self.database.births += [(now_s(), start.drone.id) for start in plan.starts]
        simulation.record.committed(plan, live)

    async def live(self, stop: asyncio.Event) -> None:
        beats = asyncio.create_task(self.member.run(), name=f"lease of {self.name}")
        warm: Poller | None = None
        try:
            while not stop.is_set():
                if self.member.leads:
                    with suppress(StoreError):
                        await self._lead(stop, warm)
                over = asyncio.Event()
                self.member.changed.clear()
                watch = asyncio.create_task(first(over, stop, self.member.changed))
                policy = self.simulation.scenario.full_policy
                standby = Standby(
                    policy, self.world.types, self.overlay, self.sites, VirtualClock(), warm, False
                )
                if not self.member.leads and not stop.is_set():
                    await standby.run(over)
                watch.cancel()
                warm = standby.poller
        finally:
            beats.cancel()
            if not self.gate.is_dead:
                await self.member.leave()

    async def _lead(self, stop: asyncio.Event, warm: Poller | None) -> None:
        over = asyncio.Event()
        self.member.changed.clear()
        watch = asyncio.create_task(first(over, stop, self.member.changed))
        assert self.member.term is not None
        self.term_at = now()
        self.listings.clear()
        store = MemberStore(self, self.member.term)
        scenario = self.simulation.scenario
        try:
            async with store:
                controller = Controller(
                    name="sim",
                    policy=scenario.full_policy,
                    types=self.world.types,
                    overlay=self.overlay,
                    sites=self.sites,
                    store=store,
                    clock=VirtualClock(),
                    planner=scenario.planner(),
                    judge=self.simulation._judge,
                    leadership=self.member,
                    warm=warm,
                )
                self.member.orderly = False
                async with controller:
                    await controller.run(over)
                self.member.orderly = not controller.awaits_orders
        finally:
            watch.cancel()


async def first(over: asyncio.Event, *events: asyncio.Event) -> None:
    """Set ``over`` when one of the events is set."""
    await any_set(*events)
    over.set()


class MembersSimulation(Simulation):
    """A run in which two members share the record."""

    scenario: MembersScenario

    def __init__(self, scenario: MembersScenario) -> None:
        super().__init__(scenario)
        self.database = Database()
        self.senders: dict[int, tuple[Any, tuple[str, float]]] = {}
        """Orders sent, by identity, with the member and its term."""
        self.accepted: defaultdict[DroneId, set[tuple[str, float]]] = defaultdict(set)
        self.broken: list[str] = []
        self.lost: set[DroneId] = set()
        """Drones whose start the database has lost."""
        self.happened: Counter[str] = Counter()
        self._crossed = {False: 0, True: 0}
        """Boundaries crossed: all, and those of acts."""
        self._events = {
            acts: [each for each in scenario.events if each.acts_only is acts]
            for acts in (False, True)
        }
        self._lives: dict[Gate, Life] = {}
        self._stop = asyncio.Event()
        self._number = 0
        self._restarts: set[asyncio.Task[None]] = set()

    def crossed(self, gate: Gate, boundary: str) -> None:
        """Let the event happen whose boundary this is."""
        for acts in (False, True) if boundary.partition(" ")[2] in ACTS else (False,):
            self._crossed[acts] += 1
            events = self._events[acts]
            while events and events[0].boundary <= self._crossed[acts]:
                self._happens(events.pop(0), gate, boundary)

    def _happens(self, event: MemberEvent, gate: Gate, boundary: str) -> None:
        self.happened[f"{event.kind} {boundary}"] += 1
        match event.kind:
            case EventKind.KILL:
                self._kill(self._lives[gate], event.for_s)
            case EventKind.PAUSE:
                gate.paused_until_s = now_s() + event.for_s
            case EventKind.CUT:
                gate.cut_until_s = now_s() + event.for_s
            case EventKind.REPLY_LOST:
                gate.loses_reply = True
            case EventKind.FAIL_OVER if not self.database.sql.in_transaction:
                self.lost |= self.database.fail_over(event.for_s)
                self.record.live = self.database.state.drones
            case EventKind.CLOCK:
                self.database.clock_off_s += event.for_s
                if event.for_s < 0:
                    self._kill(self._lives[gate], -event.for_s / 60.0)

    def _kill(self, life: Life, down_s: float) -> None:
        life.gate.is_dead = True
        assert life.task is not None
        life.task.cancel()
        restart = asyncio.create_task(self._restart(life.world, down_s), name="restart")
        self._restarts.add(restart)

    async def _restart(self, world: World, down_s: float) -> None:
        await asyncio.sleep(down_s)
        self._begin(world)

    def _begin(self, world: World) -> None:
        self._number += 1
        life = Life(f"m{self._number}", self, world)
        self._lives[life.gate] = life
        life.task = asyncio.create_task(life.live(self._stop), name=life.name)

    async def _watch_leaders(self) -> None:
        """Check that a member leads soon, while one can."""
        without_s = 0.0
        while True:
            await asyncio.sleep(1.0)
            able = [
                each.member
                for each in self._lives.values()
                if not each.gate.is_dead
                and max(each.gate.paused_until_s, each.gate.cut_until_s) < now_s()
            ]
            leaderless = able and not any(each.leads for each in able)
            without_s = without_s + 1.0 if leaderless else 0.0
            if without_s == LEADERLESS_S:
                self.broken.append(f"nobody led for {LEADERLESS_S:g} s until {now_s():.1f}")

    async def control(self, world: World, over: asyncio.Task[None]) -> None:
        watch = asyncio.create_task(self._watch_leaders(), name="watch of leaders")
        for site in world.sites.values():
            self._note_accepted(site)
        self._begin(world)
        self._begin(world)
        while not over.done():
            tasks = {each.task for each in self._lives.values() if not each.gate.is_dead}
            await asyncio.wait(
                {over, *filter(None, tasks)}, timeout=60.0, return_when=asyncio.FIRST_COMPLETED
            )
            if any(each is not None and each.done() and not each.cancelled() for each in tasks):
                break
        self._stop.set()
        watch.cancel()
        for restart in self._restarts:
            restart.cancel()
        for life in self._lives.values():
            assert life.task is not None
            life.gate.paused_until_s = 0.0
            await asyncio.wait({life.task})
            if not life.gate.is_dead and not life.task.cancelled():
                error = life.task.exception()
                while isinstance(error, BaseExceptionGroup):
                    error = error.exceptions[0]
                if error is not None:
                    self.collapse = f"{life.name}: {type(error).__name__}: {error}"

    def _note_accepted(self, site: Any) -> None:
        accept = site._accept

        def noted(order: Any) -> Any:
            self.accepted[order.drone_id].add(self.senders[id(order)][1])
            return accept(order)

        site._accept = noted

    def _violations(self, world: World) -> Iterator[str]:
        yield from super()._violations(world)
        yield from self.broken
        for drone_id, senders in self.accepted.items():
            if len(senders) > 1:
                yield f"{drone_id} was started by two leaders: {sorted(senders)}"


def shared(seed: int) -> MembersScenario:
    """A rough world whose sites carry out some starts late, and five events of members."""
    base = rough(seed)
    late = ServiceFault(ServiceFaultKind.LATE, verb="start", chance=0.25, amount=45.0)
    known = {
        field.name: getattr(base, field.name) for field in fields(FaultyScenario) if field.init
    }
    known |= {
        "service_faults": (late, *base.service_faults),
        "policy": replace(base.policy, orphan_grace_s=0.0),
    }
    return MembersScenario(**known, events=member_events(seed, 5))
