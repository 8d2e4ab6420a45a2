"""How long an idle drone is kept.

To let it go and need another soon costs what a drone costs until it can work: on a cloud a GPU is held while a machine
boots. To keep it costs a GPU that does nothing. Who keeps it for just as long as another would take to come pays at
most twice of what would have been best, whatever comes (the rent-or-buy problem: Karlin, Manasse, Rudolph, Sleator,
"Competitive snoopy caching", Algorithmica 3, 1988). How long that is, each drone has shown itself.
"""

from __future__ import annotations

from provisioner.learned import NOTHING_LEARNED, Learned
from provisioner.model import Drone, Policy

STRETCH = 3.0
"""A drone that took very long to come is kept this many time-outs at most: it leaves by itself soon after."""


def idle_limit_s(drone: Drone, policy: Policy, learned: Learned = NOTHING_LEARNED) -> float:
    """What would have cost least so far at its site (as soon as a drone of it was seen to come); at most its time-out,
    or what the drone took from its start at the site to the pool, if that is longer."""
    timeout_s = policy.idle_timeout_at(drone.site)
    came_s = drone.joined_at - drone.started_at if drone.joined_at and drone.started_at else 0.0
    most_s = max(timeout_s, min(came_s, STRETCH * timeout_s))
    return min(most_s, learned.idle_s.get(drone.site, most_s))
