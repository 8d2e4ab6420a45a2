"""Somebody who watches a whole run: who was asked to end, which jobs were cut short by it, what became of each start.

He sits where the controller keeps its record, and so sees each plan that was committed and what the
overlay told then. Whose job was cut short is the overlay's own news (evictions), which no spell
touches; that none was missed, the world's tally shows.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from provisioner import model as m
from provisioner.reasons import HeadroomShort, Reason, StateTimeout
from provisioner.simulator.drones import DroneDefect, DroneScript
from provisioner.simulator.world import Scenario
from provisioner.store import RecordChange, Store
from tests.simulator.crashing import CrashOutcome, simulate

INSISTS = "state-timeout: stopping"
"""Asked again, on the ground of the order before."""
LAWFUL = {
    "preempted-for-owner": "the owner's claim",
    "operator-requested": "an operator",
    "state-timeout: busy": "a limit of its life",
}
"""The grounds on which we may ask a drone to end on which a job runs."""


class Course(StrEnum):
    """What became of a start."""

    WORKED = "worked"
    REFUSED = "refused"
    """No site has ever had it: a refusal, or an order or its admission that came to grief."""
    BAD = "bad"
    """Of its own nature it could not work: died young, never joined, hung in its check, matched nothing."""
    TAKEN = "taken"
    """It was gone, before it had a job, without a word of ours: owner, fault, end of its life."""
    CANCELLED = "cancelled"
    """It went, by our word, before it had a place at its site."""
    VAIN = "in vain"
    """It had a place and no job, and went: idle for too long, or given up."""


WORLDS_DOING = (Course.REFUSED, Course.BAD, Course.TAKEN)


@dataclass(frozen=True, slots=True)
class Order:
    """A drone was asked to end, whatever ran on it."""

    at: float
    ground: str
    seen_at: float
    """As of when the pool was known."""
    kill: bool = False


class Witness(Store):
    """The record of a run, and what it shows beside."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__()
        self.orders: defaultdict[m.DroneId, list[Order]] = defaultdict(list)
        self.drained: set[m.DroneId] = set()
        self.cuts: dict[tuple[m.DroneId, str, float], m.Eviction] = {}
        self.ends: dict[m.DroneId, m.RemoteEnd] = {}
        """As their sites told them, where that was seen."""
        self.latest: dict[m.DroneId, m.Drone] = {}
        """The newest record of each drone."""
        self.warm = 0
        """Starts for headroom."""
        self._scenario = scenario
        self._behaviour = {
            kind.key: facility.behaviour_of.get(kind.name, facility.behaviour)
            for facility in scenario.facilities
            for kind in facility.types
        }

    async def record(self, plan: m.Plan, snapshot: m.Snapshot) -> None:
        await super().record(plan, snapshot)
        self.latest |= RecordChange.by_plan(plan).drones
        view = snapshot.overlay.view
        seen_at = view.taken_at if view is not None else -math.inf
        for stop in plan.stops:
            self.orders[stop.drone.id].append(
                Order(plan.at, _ground(stop.reason), seen_at, stop.kill)
            )
        for orphan in plan.orphans:
            self.orders[orphan.drone_id].append(Order(plan.at, _ground(orphan.reason), seen_at))
        for drain in plan.drains:
            if drain.mode in (m.DrainMode.GRACEFUL, m.DrainMode.FAST):
                self.orders[drain.drone.id].append(Order(plan.at, _ground(drain.reason), seen_at))
            elif drain.mode is not m.DrainMode.RESUME:
                self.drained.add(drain.drone.id)
        self.warm += sum(isinstance(start.reason, HeadroomShort) for start in plan.starts)
        for cut in (view.evictions or ()) if view is not None else ():
            self.cuts[cut.drone_id, cut.job_id, cut.at] = cut
        for reading in snapshot.sites.values():
            for remote in reading.view.drones.values() if reading.view is not None else ():
                if remote.end is not None:
                    self.ends[remote.drone_id] = remote.end

    async def record_results(
        self,
        tick: int,
        moves: Sequence[m.StateChange],
        breakers: Sequence[m.Breaker],
        *,
        set_to: float | None = None,
    ) -> None:
        await super().record_results(tick, moves, breakers, set_to=set_to)
        self.latest |= {move.drone.id: move.drone for move in moves}

    # -------------------------------------------------------------------------------------------
    # jobs cut short

    def why(self, cut: m.Eviction) -> tuple[str, bool]:
        """Who ended the drone under a job, and whether he might."""
        ended_at = self._ended_at(cut)
        orders, begun_at = (
            [o for o in self.orders.get(cut.drone_id, ()) if o.at <= ended_at],
            ended_at - cut.lost_s,
        )
        # Who asked for it before the pool showed the job could not know of it: an order takes its
        # time on the wire.
        against = [n for n, order in enumerate(orders) if begun_at <= order.seen_at]
        if against:
            grounds = [self._first_ground(orders, n) for n in against]
            unlawful = [ground for ground in grounds if ground not in LAWFUL]
            return (unlawful[0], False) if unlawful else (LAWFUL[grounds[0]], True)
        if orders:
            return "an order given before the job began", True
        end = self.ends.get(cut.drone_id)
        if end is None:
            return "its site, which forgot it at once", True
        if end.kind is m.EndKind.EXITED and end.message == "end of walltime":
            return "a limit of its life", True
        by_site = {m.EndKind.PREEMPTED: "the owner's claim", m.EndKind.FAULT: "a fault of its site"}
        return by_site.get(end.kind, f"{end.kind.value}, {end.message}"), end.kind in by_site

    def _ended_at(self, cut: m.Eviction) -> float:
        """Of a drone that perished the pool hears when the lease of its jobs is over."""
        end = self.ends.get(cut.drone_id)
        if end is not None:
            return min(cut.at, end.at)
        killed = any(order.kill for order in self.orders.get(cut.drone_id, ()))
        return cut.at - self._scenario.pool.lease_s if killed else cut.at

    @staticmethod
    def _first_ground(orders: list[Order], n: int) -> str:
        while n and orders[n].ground == INSISTS:
            n -= 1
        return orders[n].ground

    # ---------------------------------------------------------------------------------------- what
    # starts came to

    def courses(self) -> Counter[Course]:
        return Counter(self._course(drone) for drone in self.latest.values())

    def _course(self, drone: m.Drone) -> Course:
        if drone.busy_at or drone.jobs_started:
            return Course.WORKED
        if not drone.submitted_at and not drone.started_at:
            return Course.REFUSED
        script = DroneScript.drawn(
            self._behaviour[drone.type], self._scenario.seed, drone.site, drone.id
        )
        if script.defect is not DroneDefect.NONE:
            return Course.BAD
        asked = drone.id in self.orders or drone.id in self.drained
        if not asked and drone.site_reason != "idle too long":  # nor by its own time-out
            return Course.TAKEN
        return Course.VAIN if drone.started_at else Course.CANCELLED


@dataclass(frozen=True, slots=True)
class Watched:
    """A run and what its witness has to say."""

    outcome: CrashOutcome
    courses: Counter[Course]
    warm: int
    causes: Counter[str]
    """Who cut jobs short."""
    violations: tuple[str, ...]
    """Those of the outcome, and the witness's own."""

    @property
    def asked(self) -> int:
        """Drones asked for."""
        return self.courses.total()

    @property
    def ours(self) -> int:
        """Of those, the ones that met no fault of the world."""
        return self.asked - sum(self.courses[course] for course in WORLDS_DOING)

    @property
    def most(self) -> int:
        """How many starts there may be beside those that a fault of the world has made useless.

        A start is made for a waiting job that no other start and no free slot is counted for.
        Either the new drone begins with some job: one attempt. Or it never has one, and that only
        because its own job has begun on a drone that had worked before: that attempt is no other
        start's. So there is an attempt of a job for each start; more starts than attempts are made
        for nothing. A start for headroom has no job.
        """
        return self.outcome.metrics.attempts + self.warm


def watched(scenario: Scenario) -> Watched:
    """Play a scenario before a witness. (Drones that eat jobs are not for him: no pool tells that as an eviction.)"""
    witness = Witness(scenario)
    outcome = simulate(scenario, lambda: witness)
    found, causes = list(outcome.violations), Counter[str]()
    for cut in witness.cuts.values():
        who, lawful = witness.why(cut)
        causes[who] += 1
        if not lawful:
            found.append(
                f"{cut.drone_id} was stopped at {cut.at:.1f} while job {cut.job_id} ran: {who}"
            )
    if len(witness.cuts) != outcome.metrics.attempts_lost:
        found.append(
            f"{outcome.metrics.attempts_lost} jobs were cut short, {len(witness.cuts)} told of"
        )
    seen = Watched(outcome, witness.courses(), witness.warm, causes, ())
    if seen.ours > seen.most:
        found.append(
            f"{seen.ours} starts that met no fault, {seen.most} can be explained: {dict(seen.courses)}"
        )
    return replace(seen, violations=tuple(found))


def _ground(reason: Reason) -> str:
    return f"{reason.kind}: {reason.state}" if isinstance(reason, StateTimeout) else reason.kind
