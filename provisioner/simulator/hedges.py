"""Count of hedges: second drones that a planner starts for jobs whose first drone is delayed at its site."""

from __future__ import annotations

from collections import Counter

from provisioner.model import Plan, Snapshot
from provisioner.planner import context
from provisioner.planner.costs import StartCosts
from provisioner.reasons import Unneeded
from provisioner.values import define, factory


@define
class HedgeCount:
    """Hedges of one replay, plan by plan."""

    started: int = 0
    """Starts for a class of which drones are delayed, at most one for each of these and each plan."""
    withdrawn: int = 0
    """Drones of such a class that were cancelled because no job needed them, at most one for each hedge."""
    _open: Counter[str] = factory(Counter)
    """Hedges of which no drone was cancelled yet, by class id."""

    def note(self, snapshot: Snapshot, plan: Plan) -> None:
        """Count the hedges of a plan; drones that wait at their sites are judged as before the plan."""
        if plan.starts and any(drone.waits_at_site for drone in snapshot.drones.values()):
            costs = StartCosts(
                snapshot.policy, snapshot.estimates, {kind.key: kind for kind in snapshot.types}
            )
            validity = context.check_views(snapshot)
            late = context.delayed_drones(snapshot, validity, costs, snapshot.drones.values())
            delayed = Counter(snapshot.drones[drone_id].for_class for drone_id in late)
            hedges = delayed & Counter(start.drone.for_class for start in plan.starts)
            self.started += hedges.total()
            self._open += hedges
        for stop in plan.stops:
            if isinstance(stop.reason, Unneeded) and self._open[stop.drone.for_class]:
                self.withdrawn += 1
                self._open[stop.drone.for_class] -= 1
