"""How long an idle drone is kept.

To let it go and need another soon costs what a drone costs until it can work: on a cloud a GPU is held while a machine
boots. To keep it costs a GPU that does nothing. Who keeps it for just as long as another would take to come pays at
most twice of what would have been best, whatever comes (the rent-or-buy problem: Karlin, Manasse, Rudolph, Sleator,
"Competitive snoopy caching", Algorithmica 3, 1988). How long that is, each drone has shown itself.
"""

from __future__ import annotations

from typing import NamedTuple

from provisioner.estimates import NO_ESTIMATES, Estimates
from provisioner.model import Drone, Policy

STRETCH = 3.0
"""A drone that took very long to come is kept this many time-outs at most: it leaves by itself soon after."""


GAPS_NEEDED = 20
"""Least number of gaps between two jobs of a drone for learning. With fewer, the price of a start decides."""


class IdleLimit(NamedTuple):
    """Limit of a drone's idle time, and its source."""

    limit_s: float
    by: str
    """``gaps`` or ``start-cost`` (estimates), ``time-out`` or ``slow-start`` (the bounds), ``fixed`` (the setting)."""


def idle_limit(drone: Drone, policy: Policy, estimates: Estimates = NO_ESTIMATES) -> IdleLimit:
    """Return what would have cost least so far at its site (as soon as a drone of it was seen to come); at most its
    time-out, or what the drone took from its start at the site to the pool, if that is longer. A fixed time-out holds
    as it is."""
    site = drone.site
    timeout_s = policy.idle_timeout_at(site)
    if policy.idle_fixed_at(site):
        return IdleLimit(timeout_s, "fixed")
    came_s = drone.joined_at - drone.started_at if drone.joined_at and drone.started_at else 0.0
    most_s = max(timeout_s, min(came_s, STRETCH * timeout_s))
    best_s = estimates.idle_s.get(site)
    if best_s is not None and best_s < most_s:
        return IdleLimit(best_s, "gaps" if estimates.gaps.get(site, 0) >= GAPS_NEEDED else "start-cost")
    return IdleLimit(most_s, "slow-start" if most_s > timeout_s else "time-out")
