"""Ablation: our planner with one of its rules switched off, to measure what each rule earns.

A rule is switched off by replacing one name of the product in the process of the run. The product
has no settings for this, and a user cannot do it. ``benchmarks.deciding.run --without NAME ...``
plays each of them beside the whole planner. ``tests/test_deciding.py`` checks that each replaced
name still exists and that its loss changes a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from provisioner.controller.estimation import UnfinishedJobs
from provisioner.planner import context, placement, retirement, risk
from provisioner.planner.capacity import TypeRanking
from provisioner.planner.placement import Placement
from provisioner.planner.reservations import JobReservations


@dataclass(frozen=True, slots=True)
class Ablation:
    """One rule of the planner, and the replacement that switches it off."""

    what: str
    """Plan without it."""
    holder: object
    """Module or class in which a name is replaced."""
    name: str
    instead: Callable[[Any], object]
    """Return the replacement of the original."""


def _less(rule: object) -> Callable[[Sequence[object]], tuple[object, ...]]:
    """Return a function that takes a rule out of a list; it raises ValueError if the rule is not in there."""

    def shortened(rules: Sequence[object]) -> tuple[object, ...]:
        at = rules.index(rule)
        return (*rules[:at], *rules[at + 1 :])

    return shortened


ABLATIONS: Mapping[str, Ablation] = {
    "owner-risk": Ablation(
        "jobs start in front of an owner, whatever they may lose",
        placement,
        "START_RULES",
        _less(placement.owner_risk),
    ),
    "excluded-users": Ablation(
        "no drone refuses users for the owner's sake",
        risk,
        "MAX_EXCLUSION_CLASSES",
        lambda number: 0,
    ),
    "drain-at-risk": Ablation(
        "drones take jobs until the owner takes their place",
        retirement,
        "PLAN_RULES",
        _less(retirement.drain_at_risk),
    ),
    "hedging": Ablation(
        "no drone counts as delayed: its jobs get no second one",
        context,
        "delayed_drones",
        lambda found: _none_delayed,
    ),
    "sharing": Ablation(
        "each job that has no drone is worth a start, however short it is",
        Placement,
        "_worthwhile",
        lambda worthwhile: lambda self, job, compatible, runs, cost, lacking: (lacking, None),
    ),
    "learned-idle-timeouts": Ablation(
        "idle timeouts as configured",
        retirement,
        "idle_limit",
        lambda idle_limit: lambda drone, policy, estimates: idle_limit(drone, policy),
    ),
    "ranking-by-cost": Ablation(
        "types by price alone, among those that can start now",
        TypeRanking,
        "for_jobs",
        lambda for_jobs: (
            lambda self, compatible, cost: sorted(compatible.cheapest, key=self.wait_h.__getitem__)
        ),
    ),
    "reservations": Ablation(
        "jobs of several GPUs get no node reserved",
        JobReservations,
        "reserve",
        lambda reserve: lambda *_: None,
    ),
    "unfinished-jobs": Ablation(
        "run times from completed jobs alone",
        UnfinishedJobs,
        "note",
        lambda note: lambda self, view: None,
    ),
}
"""By name, as on the command line."""


def _none_delayed(*_: object) -> frozenset[str]:
    return frozenset()


@contextmanager
def switched_off(rule: str) -> Iterator[None]:
    """Plan without a rule, in this process; with all of them if the name is empty."""
    if not rule:
        yield
        return
    each = ABLATIONS[rule]
    before = getattr(each.holder, each.name)
    setattr(each.holder, each.name, each.instead(before))
    try:
        yield
    finally:
        setattr(each.holder, each.name, before)
