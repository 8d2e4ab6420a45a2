"""Planning: a snapshot goes in, a plan with its reasons comes out. No clock, no I/O, no randomness.

The steps are listed in :func:`decide`, each in a module of its own. An import contract checks the
purity. :mod:`validation` checks the result and shares no code with the planner. :mod:`safeguards`
combines the two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from provisioner.model import Plan, Snapshot, StateChange
from provisioner.planner.black_holes import BlackHoles
from provisioner.planner.breakers import update_breakers
from provisioner.planner.capacity import Supply
from provisioner.planner.context import PlanningContext, check_views
from provisioner.planner.lifecycle import observe_all
from provisioner.planner.owner import OwnerReservations, reclaim_reserve
from provisioner.planner.placement import Allocation, place
from provisioner.planner.retirement import retire
from provisioner.planner.services import serve
from provisioner.planner.settled import SettledDrones

__all__ = ["decide", "planner"]


def decide(snapshot: Snapshot, settled: SettledDrones | None = None) -> Plan:
    """Return the changes that a snapshot calls for, with their reasons. The same snapshot gives the same plan.

    ``settled``: drones without news in the last plan, which only saves time.
    """
    validity = check_views(snapshot, settled)
    observed = observe_all(snapshot, validity)
    breakers = update_breakers(snapshot, observed)
    context = PlanningContext.of(snapshot, validity, observed, breakers)
    black_holes = BlackHoles.of(context)
    reservations = OwnerReservations.of(context)
    allocation = Allocation(context, reservations, Supply.of(context))
    served = serve(allocation)
    placed = place(allocation)
    preemptions = [
        *reservations.preemptions,
        *reclaim_reserve(context, reservations, placed.lacking_room),
    ]
    retired = retire(context, preemptions, placed, black_holes, served)
    moves = {move.drone.id: move for move in observed}
    for marked in retired.moves:
        earlier = moves.get(marked.drone.id)
        if earlier is not None:
            news = earlier if marked.drone.state is earlier.drone.state else marked
            marked = StateChange(marked.drone, earlier.was, news.reason)
        moves[marked.drone.id] = marked
    return Plan(
        tick=snapshot.tick,
        at=snapshot.now,
        moves=tuple(moves.values()),
        starts=tuple(placed.allocation.starts),
        # A drone is asked only once in a tick.
        drains=(
            *retired.drains,
            *(drain for drain in placed.undrained if drain.drone.id not in retired.asked),
        ),
        stops=tuple(retired.stops),
        orphans=tuple(retired.orphans),
        refusals=(*served.refusals, *placed.refusals, *retired.refusals),
        breakers=tuple(
            b
            for b in {**breakers, **black_holes.breakers}.values()
            if snapshot.breakers.get(b.scope) != b
        ),
        requests_done=tuple(retired.requests_done),
        patience=tuple(reservations.patience),
        services=tuple(served.states),
    )


def planner() -> Callable[[Snapshot], Plan]:
    """Return :func:`decide` for the snapshots of one controller, which skips drones without news."""
    return partial(decide, settled=SettledDrones())
