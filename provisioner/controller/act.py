"""Carrying out a plan: one batch per site, each with a deadline; every order gets a receipt, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog

from provisioner.controller.border import receipt_taken_over
from provisioner.controller.calls import fault_of, within
from provisioner.controller.clock import Clock
from provisioner.interfaces import AuthError, Overlay, RejectedError, Site, UnavailableError
from provisioner.model import (
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    Plan,
    Policy,
    StartOrder,
    StopOrder,
    TypeKey,
)

log = structlog.get_logger()

DRAIN_DEADLINE_S = 30.0
ADMISSION_DEADLINE_S = 30.0
OWN_TIMEOUT_FACTOR, OWN_TIMEOUT_MORE_S = 4.0, 60.0
"""A drone leaves by itself, without us, only well after we would have asked it to."""
OWN_TIMEOUT_WARM_S = 6 * 3600.0
"""At least so long where there is headroom: any idle drone may be one that is kept warm."""
KEPT_S = 90.0
"""A negotiation cycle of HTCondor's default (60 s) and some: by then the jobs that a drone was started for have it."""


@dataclass(frozen=True, slots=True)
class DrainOrder:
    """Ask one drone to leave the overlay."""

    drone_id: DroneId
    mode: DrainMode
    why: str


@dataclass(frozen=True, slots=True)
class Batch:
    """All that one site, or the overlay (``site`` empty), is asked for in one tick."""

    site: str
    starts: tuple[StartOrder, ...] = ()
    stops: tuple[StopOrder, ...] = ()
    drains: tuple[DrainOrder, ...] = ()


@dataclass(frozen=True, slots=True)
class Answers:
    """What came of a batch."""

    site: str
    starts: tuple[OrderResult, ...] = ()
    leaves: tuple[OrderResult, ...] = ()
    admissions: tuple[OrderResult, ...] = ()
    """The overlay's, for the same drones as ``starts``: where it refused one, the site was not asked."""


def batches(plan: Plan, types: dict[TypeKey, DroneType], policy: Policy) -> list[Batch]:
    """A plan's actions, put together by whom they are asked of."""
    found: list[Batch] = []
    if plan.drains:
        found.append(Batch("", drains=tuple(DrainOrder(d.drone.id, d.mode, d.reason.kind) for d in plan.drains)))
    asked = {s.drone.site for s in plan.starts} | {s.drone.site for s in plan.stops} | {o.site for o in plan.orphans}
    for site in sorted(asked):
        grace_s = policy.sites[site].grace_s if site in policy.sites else 0.0
        comes_within_s = _comes_within_s(policy, site)
        own_timeout = _own_timeout_s(policy, site)
        found.append(
            Batch(
                site,
                tuple(
                    StartOrder(
                        s.drone.id,
                        _for_its_life(types[s.drone.type], s.walltime_s),
                        own_timeout,
                        grace_s,
                        kept_vram_mib=s.vram_mib,
                        kept_s=KEPT_S,
                        uses_reserve=s.uses_reserve,
                        avoids=s.drone.avoids,
                        comes_within_s=comes_within_s,
                    )
                    for s in plan.starts
                    if s.drone.site == site
                ),
                tuple(StopOrder(s.drone.id, s.drone.remote_id, s.kill) for s in plan.stops if s.drone.site == site)
                + tuple(StopOrder(o.drone_id, o.remote_id) for o in plan.orphans if o.site == site),
            )
        )
    return found


def _comes_within_s(policy: Policy, site: str) -> float:
    """Return the longest time from an order to a drone that accepts jobs, by the site's limits."""
    limits = policy.sites.get(site)
    return limits.order_confirm_s + limits.queued_s + limits.booting_s + limits.joining_s if limits else 0.0


def _own_timeout_s(policy: Policy, site: str) -> float:
    usual_s = policy.idle_timeout_at(site) * OWN_TIMEOUT_FACTOR + OWN_TIMEOUT_MORE_S
    warm = any(headroom.site in ("", site) for headroom in policy.headroom)
    return max(usual_s, OWN_TIMEOUT_WARM_S) if warm else usual_s


def _for_its_life(kind: DroneType, walltime_s: float) -> DroneType:
    return replace(kind, walltime_s=walltime_s) if walltime_s else kind


async def carry_out(batch: Batch, site: Site | None, overlay: Overlay, clock: Clock, deadline_s: float) -> Answers:
    """Do what a batch says. Stops come first: they make room. Never raises."""
    if site is None:
        receipts: list[OrderResult] = []
        for mode, why in dict.fromkeys((d.mode, d.why) for d in batch.drains):
            ids = [d.drone_id for d in batch.drains if (d.mode, d.why) == (mode, why)]
            receipts += await _asked(ids, partial(overlay.drain, ids, mode, why), clock, DRAIN_DEADLINE_S)
        return Answers("", leaves=tuple(receipts))
    leaves: list[OrderResult] = []
    if batch.stops:
        stop_ids = [o.drone_id for o in batch.stops]
        leaves = await _asked(stop_ids, lambda: site.stop(batch.stops), clock, deadline_s)
    if not batch.starts:
        return Answers(batch.site, leaves=tuple(leaves))
    admitted, admissions = await _admit(batch.starts, overlay, clock)
    starts: list[OrderResult] = []
    if admitted:
        start_ids = [o.drone_id for o in admitted]
        starts = await _asked(start_ids, lambda: site.start(admitted), clock, deadline_s)
    return Answers(batch.site, tuple(starts), tuple(leaves), tuple(admissions))


async def _admit(
    orders: Sequence[StartOrder], overlay: Overlay, clock: Clock
) -> tuple[list[StartOrder], list[OrderResult]]:
    """Give every order what its drone needs to join, as late as possible; the site is not asked without it."""
    admitted: list[StartOrder] = []
    receipts: list[OrderResult] = []
    loop = asyncio.get_running_loop()
    until = loop.time() + ADMISSION_DEADLINE_S  # for all of them: a silent overlay must not hold up a site for long
    for order in orders:
        try:
            bootstrap = await within(until - loop.time(), overlay.bootstrap(order))
        except Exception as error:
            fault = fault_of(error, clock.now())
            log.warning("bootstrap.failed", drone=order.drone_id, message=fault.message)
            receipts.append(OrderResult(order.drone_id, OrderOutcome.REJECTED, fault=fault))
        else:
            admitted.append(replace(order, bootstrap=bootstrap))
            receipts.append(OrderResult(order.drone_id, OrderOutcome.OK))
    return admitted, receipts


async def _asked(
    ids: Sequence[DroneId], ask: Callable[[], Awaitable[Sequence[OrderResult]]], clock: Clock, deadline_s: float
) -> list[OrderResult]:
    """One receipt per id. Writes are not retried; what was not answered is unknown, never "not done"."""
    try:
        answered = {r.drone_id: receipt_taken_over(r) for r in await within(deadline_s, ask())}
    except (UnavailableError, RejectedError, AuthError) as error:
        fault = fault_of(error, clock.now())
        return [OrderResult(i, OrderOutcome.REJECTED, fault=fault) for i in ids]
    except Exception as error:
        fault = fault_of(error, clock.now())
        return [OrderResult(i, OrderOutcome.UNKNOWN, fault=fault) for i in ids]
    silence = Fault(FaultKind.UNKNOWN, "the adapter gave no receipt for it", clock.now())
    return [answered.get(i) or OrderResult(i, OrderOutcome.UNKNOWN, fault=silence) for i in ids]


def still_waits(drone: Drone) -> bool:
    """Whether a start's receipt still is news: a listing may have settled it first."""
    return drone.state is DroneState.REQUESTED
