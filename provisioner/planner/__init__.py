"""Planning: a snapshot goes in, a plan with its reasons comes out. No clock, no I/O, no randomness.

The steps are listed in :func:`decide`, each in a module of its own. An import contract checks the purity.
:mod:`validation` checks the result and shares no code with the planner. :mod:`safeguards` combines the two.
"""

from __future__ import annotations

from dataclasses import replace

from provisioner.model import Plan, Snapshot
from provisioner.planner.black_holes import BlackHoles
from provisioner.planner.breakers import update_breakers, update_class_breakers
from provisioner.planner.capacity import Supply
from provisioner.planner.context import PlanningContext, check_views
from provisioner.planner.lifecycle import observe_all
from provisioner.planner.owner import OwnerReservations, reclaim_reserve
from provisioner.planner.placement import place
from provisioner.planner.retirement import retire

__all__ = ["decide"]


def decide(snapshot: Snapshot) -> Plan:
    """Return the changes that a snapshot calls for, with their reasons. The same snapshot gives the same plan."""
    validity = check_views(snapshot)
    moves = observe_all(snapshot, validity)
    breakers = update_class_breakers(
        snapshot, moves, update_breakers(snapshot, moves, validity.split.changing.values())
    )
    context = PlanningContext.of(snapshot, validity, moves, breakers)
    black_holes = BlackHoles.of(context)
    breakers = {**breakers, **black_holes.breakers}
    plan = Plan(
        tick=snapshot.tick,
        at=snapshot.now,
        moves=tuple(moves),
        breakers=tuple(b for b in breakers.values() if snapshot.breakers.get(b.scope) != b),
    )
    reservations = OwnerReservations.of(context)
    placed = place(context, reservations, Supply.of(context))
    preemptions = [*reservations.preemptions, *reclaim_reserve(context, reservations, placed.lacking_room)]
    plan = replace(plan, patience=tuple(reservations.patience))
    return context.finished(plan, retire(context, preemptions, placed, black_holes), placed)
