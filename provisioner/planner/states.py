"""The rules of a live drone's states: their time limits, the actions on timeout and the final states.

An idle drone costs a GPU that does nothing; letting it go costs the next start. Keeping it for as
long as a start takes costs at most twice the optimum, whatever comes (the rent-or-buy problem:
Karlin, Manasse, Rudolph, Sleator, "Competitive snoopy caching", Algorithmica 3, 1988). How long a
start takes, each drone has shown itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from provisioner.estimates import NO_ESTIMATES, Estimates
from provisioner.model import Drone, DroneState, DroneType, Policy
from provisioner.values import frozen

S = DroneState

NO_END = float("inf")
MAX_IDLE_STRETCH = 3.0
"""A drone that took very long to start is kept for at most this many timeouts: it leaves by itself soon after."""
MIN_IDLE_GAPS = 20
"""Smallest number of gaps between two jobs of a drone for an estimate. With fewer, the start cost decides."""


class OnTimeout(StrEnum):
    """Action on a drone that stays in a state for too long."""

    FORGET = "forget"
    """The order never arrived: the record ends once a fresh listing lacks the drone."""
    STOP = "stop"
    """Ask the site to stop it."""
    DRAIN = "drain"
    """Ask the overlay to drain it."""
    INSIST = "insist"
    """Ask the site again, at last without notice."""


@frozen
class StateRule:
    """Rule of one live state: its time limit, the action on timeout, and the final state of a drone that leaves."""

    limit: str
    """A field of ``SitePolicy``, or ``walltime_s`` of the drone type."""
    then: OnTimeout
    ends_as: DroneState


STATE_RULES: Mapping[DroneState, StateRule] = {
    S.REQUESTED: StateRule("order_confirm_s", OnTimeout.FORGET, S.FAILED),
    S.SUBMITTED: StateRule("queued_s", OnTimeout.STOP, S.CANCELLED),
    S.QUEUED: StateRule("queued_s", OnTimeout.STOP, S.CANCELLED),
    S.BOOTING: StateRule("booting_s", OnTimeout.STOP, S.JOIN_TIMEOUT),
    S.JOINED: StateRule("joining_s", OnTimeout.STOP, S.FAILED),
    # Carried out by `retirement.idle`; `idle_limit` computes the limit.
    S.IDLE: StateRule("idle_timeout_s", OnTimeout.DRAIN, S.UNUSED),
    S.BUSY: StateRule("walltime_s", OnTimeout.STOP, S.DONE),
    S.DRAINING: StateRule("draining_s", OnTimeout.STOP, S.DONE),
    S.STOPPING: StateRule("stopping_s", OnTimeout.INSIST, S.CANCELLED),
}
"""The rules of all live states; :class:`provisioner.model.DroneState` documents these."""


def longest_busy_s(kind: DroneType, policy: Policy) -> float:
    """Return the longest life of a busy drone of a type, from its start at the site."""
    return kind.walltime_s + policy.of_site(kind.site).grace_s if kind.walltime_s else NO_END


class IdleLimit(NamedTuple):
    """Limit of a drone's idle time, and its source."""

    limit_s: float
    by: str
    """``gaps`` or ``start-cost`` (estimates), ``time-out`` or ``slow-start`` (bounds), ``fixed``
    (setting), ``refused-jobs`` (smaller jobs lack the room)."""


def idle_limit(drone: Drone, policy: Policy, estimates: Estimates = NO_ESTIMATES) -> IdleLimit:
    """Return the idle time that would have cost least so far at the drone's site.

    It is at most the idle timeout, or the time from the drone's start at the site to the pool, if
    that is longer.
    """
    site = drone.site
    timeout_s = policy.idle_timeout_at(site)
    if policy.idle_fixed_at(site):
        return IdleLimit(timeout_s, "fixed")
    came_s = drone.joined_at - drone.started_at if drone.joined_at and drone.started_at else 0.0
    most_s = max(timeout_s, min(came_s, MAX_IDLE_STRETCH * timeout_s))
    best_s = estimates.idle_s.get(site)
    if best_s is not None and best_s < most_s:
        return IdleLimit(
            best_s, "gaps" if estimates.gaps.get(site, 0) >= MIN_IDLE_GAPS else "start-cost"
        )
    return IdleLimit(most_s, "slow-start" if most_s > timeout_s else "time-out")
