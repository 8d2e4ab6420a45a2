"""Actuation of a plan: one batch of orders per site, each with a deadline; every order gets a result.

Slots that the pool still lists of drones that died without leaving it are removed here too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf

import structlog

from provisioner import model
from provisioner.controller.clock import Clock
from provisioner.controller.leadership import Leadership
from provisioner.controller.polling import fault_of, within
from provisioner.controller.sanitize import sanitize_result
from provisioner.interfaces import (
    AuthError,
    Pool,
    RejectedError,
    ServicePool,
    Site,
    SupportsForget,
    UnavailableError,
)
from provisioner.model import (
    DroneId,
    DroneType,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    OrderResults,
    Policy,
    PolledOverlay,
    PolledSite,
    StartOrder,
    StopOrder,
)
from provisioner.reasons import EndedAtSite, Preempted
from provisioner.values import define, factory, frozen

log = structlog.get_logger()

DRAIN_DEADLINE_S = 30.0
ADMISSION_DEADLINE_S = 30.0
OWN_TIMEOUT_FACTOR, OWN_TIMEOUT_MORE_S = 4.0, 60.0
"""Factor and constant of the idle timeout of the drone itself: well after the controller would have drained it."""
OWN_TIMEOUT_WARM_S = 6 * 3600.0
"""Its smallest value where there is headroom: any idle drone may be one that is kept warm."""


@frozen
class OrderTerms:
    """The clock, the leadership that each call needs, and the deadline of a site's calls."""

    clock: Clock
    leadership: Leadership
    deadline_s: float = DRAIN_DEADLINE_S


@frozen
class OrderBatch:
    """All orders for one site, or for one of the pools (``site`` empty), in one tick."""

    site: str
    starts: tuple[StartOrder, ...] = ()
    stops: tuple[StopOrder, ...] = ()
    drains: tuple[model.Drain, ...] = ()


@frozen
class BatchResults:
    site: str
    starts: tuple[OrderResult, ...] = ()
    leaves: tuple[OrderResult, ...] = ()
    admissions: tuple[OrderResult, ...] = ()
    """Results of the pools, for the same drones as ``starts``: where one refused, the site was not asked."""


@frozen
class Pools:
    """The pools that drones join."""

    overlay: Pool
    services: ServicePool | None = None

    def of(self, service: str) -> Pool:
        """Return the pool of a drone or type by its service. Raises RejectedError where services have none."""
        if not service:
            return self.overlay
        if self.services is None:
            raise RejectedError("there is no pool for inference services", FaultKind.CONFIG)
        return self.services

    async def bootstrap(self, order: StartOrder) -> model.Bootstrap:
        """Return the bootstrap of a drone by its pool. Jobs find the inference services through it."""
        made = await self.of(order.type.service).bootstrap(order)
        if order.type.service or self.services is None:
            return made
        return replace(made, env={**made.env, **self.services.job_environment})


def batches(
    plan: model.Plan, types: dict[model.TypeKey, DroneType], policy: Policy
) -> list[OrderBatch]:
    """Return a plan's actions, grouped by the site or overlay that carries them out."""
    found = []
    for of_services in (False, True):
        drains = tuple(d for d in plan.drains if bool(d.drone.service) is of_services)
        found += [OrderBatch("", drains=drains)] if drains else []
    asked = (
        {s.drone.site for s in plan.starts}
        | {s.drone.site for s in plan.stops}
        | {o.site for o in plan.orphans}
    )
    for site in sorted(asked):
        starts = tuple(
            _start_order(s, types[s.drone.type], policy)
            for s in plan.starts
            if s.drone.site == site
        )
        stops = [
            StopOrder(s.drone.id, s.drone.remote_id, s.kill)
            for s in plan.stops
            if s.drone.site == site
        ]
        stops += [StopOrder(o.drone_id, o.remote_id) for o in plan.orphans if o.site == site]
        found.append(OrderBatch(site, starts, tuple(stops)))
    return found


def _start_order(start: model.Start, kind: DroneType, policy: Policy) -> StartOrder:
    limits = policy.of_site(kind.site)
    idle_timeout_s = policy.idle_timeout_at(kind.site) * OWN_TIMEOUT_FACTOR + OWN_TIMEOUT_MORE_S
    if any(headroom.site in ("", kind.site) for headroom in policy.headroom):
        idle_timeout_s = max(idle_timeout_s, OWN_TIMEOUT_WARM_S)
    return StartOrder(
        start.drone.id,
        replace(kind, walltime_s=start.walltime_s or kind.walltime_s),
        idle_timeout_s,
        limits.grace_s,
        job_filter=start.drone.job_filter,
        comes_within_s=limits.order_confirm_s
        + limits.queued_s
        + limits.booting_s
        + limits.joining_s,
    )


async def carry_out(
    batch: OrderBatch, site: Site | None, pools: Pools, terms: OrderTerms
) -> BatchResults:
    """Carry out a batch. Stops come first: they make room. Never raises."""
    if site is None:
        results: list[OrderResult] = []
        for mode, why in dict.fromkeys((d.mode, d.reason.kind) for d in batch.drains):
            ids = [d.drone.id for d in batch.drains if (d.mode, d.reason.kind) == (mode, why)]
            drained = partial(_drained, pools, batch.drains[0].drone.service, ids, mode, why)
            results += await _asked(ids, drained, terms)
        return BatchResults("", leaves=tuple(results))
    leaves: list[OrderResult] = []
    if batch.stops:
        stop_ids = [o.drone_id for o in batch.stops]
        leaves = await _asked(stop_ids, lambda: site.stop(batch.stops), terms)
    if not batch.starts:
        return BatchResults(batch.site, leaves=tuple(leaves))
    admitted, admissions = await _admit(batch.starts, pools, terms)
    starts: list[OrderResult] = []
    if admitted:
        start_ids = [o.drone_id for o in admitted]
        starts = await _asked(start_ids, lambda: site.start(admitted), terms)
    return BatchResults(batch.site, tuple(starts), tuple(leaves), tuple(admissions))


async def _drained(
    pools: Pools, service: str, ids: Sequence[DroneId], mode: model.DrainMode, why: str
) -> OrderResults:
    return await pools.of(service).drain(ids, mode, why)


async def _admit(
    orders: Sequence[StartOrder], pools: Pools, terms: OrderTerms
) -> tuple[list[StartOrder], list[OrderResult]]:
    """Request a bootstrap for every order, as late as possible; the site gets no order without one."""
    admitted: list[StartOrder] = []
    results: list[OrderResult] = []
    loop = asyncio.get_running_loop()
    term = terms.leadership.term
    epoch = term.epoch if term else 0
    # for all of them: a silent pool must not hold up a site for long
    until = loop.time() + ADMISSION_DEADLINE_S
    for order in orders:
        try:
            terms.leadership.require()
            bootstrap = await within(
                until - loop.time(), pools.bootstrap(order), terms.leadership.limit
            )
        except Exception as error:
            fault = fault_of(error, terms.clock.now())
            log.warning("bootstrap.failed", drone=order.drone_id, message=fault.message)
            results.append(OrderResult(order.drone_id, OrderOutcome.REJECTED, fault=fault))
        else:
            admitted.append(replace(order, bootstrap=bootstrap, epoch=epoch))
            results.append(OrderResult(order.drone_id, OrderOutcome.OK))
    return admitted, results


async def _asked(
    ids: Sequence[DroneId],
    ask: Callable[[], Awaitable[OrderResults]],
    terms: OrderTerms,
) -> list[OrderResult]:
    """Return one result per id. Writes are not retried; an order without an answer is unknown, never "not done"."""
    clock = terms.clock
    try:
        terms.leadership.require()
        answers = await within(terms.deadline_s, ask(), terms.leadership.limit)
        answered = {each.drone_id: sanitize_result(each) for each in answers}
    except (UnavailableError, RejectedError, AuthError) as error:
        fault = fault_of(error, clock.now())
        return [OrderResult(i, OrderOutcome.REJECTED, fault=fault) for i in ids]
    except Exception as error:
        fault = fault_of(error, clock.now())
        return [OrderResult(i, OrderOutcome.UNKNOWN, fault=fault) for i in ids]
    silence = Fault(FaultKind.UNKNOWN, "the adapter gave no result for it", clock.now())
    return [answered.get(i) or OrderResult(i, OrderOutcome.UNKNOWN, fault=silence) for i in ids]


# -------------------------------------------------------------------------------- slots of dead
# drones

FORGET_DEADLINE_S = 30.0
FORGET_ATTEMPTS = 3
FORGET_RETRY_S = 60.0
"""Pause after an attempt that failed."""
FORGET_BATCH = 50
"""Drones of one call."""
SLOT_LIFETIME_S = 3600.0
"""After that a pool has forgotten the slot by itself."""
POOL_CLOCK_TOLERANCE_S = 2.0
"""Times of a pool are whole seconds, and its clock is known as exactly."""


@frozen
class _Dead:
    """A drone that ended, by the controller's clock."""

    ended_at: float
    attempts: int = 0
    tried_at: float = 0.0


@define
class DeadSlots:
    """Removal of the slots of dead drones from the overlay, in the background.

    Only a site's own report counts as a death: a drone that is merely missing in listings may live.
    Drones of an earlier life of the controller are not known here: the pool forgets their slots in
    time.
    """

    overlay: object
    clock: Clock
    leadership: Leadership
    _dead: dict[DroneId, _Dead] = factory(dict)
    _task: asyncio.Task[list[OrderResult]] | None = None
    _failing: bool = False
    """The newest attempt failed, and that was reported."""

    def turn(
        self,
        group: asyncio.TaskGroup,
        moves: Iterable[model.StateChange],
        pool: PolledOverlay,
        sites: Iterable[PolledSite],
        live: Mapping[DroneId, object],
    ) -> None:
        """Note the drones that ended by a plan on record, and begin a removal of listed slots if none is under way."""
        if not isinstance(self.overlay, SupportsForget):
            return
        for move in moves:
            if move.drone.state.ended and isinstance(move.reason, EndedAtSite | Preempted):
                self._dead[move.drone.id] = _Dead(move.drone.ended_at)
        if self._task is None and (due := self._due(pool, sites, live)):
            drift_s = self.clock.drift_s()
            overlay = self.overlay
            wall = {drone_id: ended_at + drift_s for drone_id, ended_at in due.items()}
            terms = OrderTerms(self.clock, self.leadership, FORGET_DEADLINE_S)
            removal = _asked(list(due), lambda: overlay.forget(wall), terms)
            self._task = group.create_task(removal, name="forget-drones")

    def answered(self) -> Fault | None:
        """Return the fault of an attempt that failed, once until one succeeds."""
        if self._task is None or not self._task.done():
            return None
        results = self._task.result()
        self._task = None
        now = self.clock.now()
        fault = None
        for result in results:
            dead = self._dead.pop(result.drone_id, None)
            if result.answer is OrderOutcome.OK or dead is None:
                continue
            fault = result.fault or Fault(FaultKind.UNKNOWN, "no reason given", now)
            if dead.attempts + 1 < FORGET_ATTEMPTS:
                self._dead[result.drone_id] = replace(
                    dead, attempts=dead.attempts + 1, tried_at=now
                )
        done = [result.drone_id for result in results if result.answer is OrderOutcome.OK]
        if done:
            log.info("slots.removed", drones=", ".join(done))
        known = self._failing
        self._failing = fault is not None
        return None if known else fault

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _due(
        self,
        pool: PolledOverlay,
        sites: Iterable[PolledSite],
        live: Mapping[DroneId, object],
    ) -> Mapping[DroneId, float]:
        """Return the dead drones that a poll after their end still shows, each with its end."""
        view = pool.view
        now = self.clock.now()
        if not self._dead or view is None or pool.fault is not None:
            return {}
        heard_at = {
            slot.drone_id: slot.heard_at for slot in view.slots if slot.drone_id in self._dead
        }
        there = {
            drone.drone_id
            for reading in sites
            if reading.view is not None
            for drone in reading.view.drones.values()
            if drone.state is not model.RemoteState.ENDED
        }
        due: dict[DroneId, float] = {}
        for drone_id, dead in list(self._dead.items()):
            if view.taken_at <= dead.ended_at:
                continue
            heard = heard_at.get(drone_id, inf)  # a slot that is not listed any more is done with
            lives = (
                drone_id in live
                or drone_id in there
                or heard > dead.ended_at + POOL_CLOCK_TOLERANCE_S
            )
            if lives or now - dead.ended_at > SLOT_LIFETIME_S:
                del self._dead[drone_id]
            elif (not dead.attempts or now - dead.tried_at >= FORGET_RETRY_S) and len(
                due
            ) < FORGET_BATCH:
                due[drone_id] = dead.ended_at
        return due
