"""Trouble of all kinds: jobs that fail, breakers in each state with odd times, requests of operators."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from provisioner.model import (
    Blame,
    Breaker,
    BreakerState,
    CompletedJob,
    DrainMode,
    DroneId,
    DroneType,
    Eviction,
    Fault,
    FaultKind,
    JobClass,
    JobFailure,
    OperatorRequest,
    RequestKind,
    Scope,
)

T = TypeVar("T")

NOW = 1_770_000_000.0
PREFIX = "kit-ab12"
NODES = ("n1", "n2", "n3")
_OWNERS = ("u1", "u2", "mallory", "", "u,3", "g.u1", "x" * 300, "\u202eu")


def one(rng: Random, *values: T) -> T:
    """Return one of the values."""
    return rng.choice(values)


def past(rng: Random) -> float:
    """Return a time before now, or 0."""
    return one(
        rng, 0.0, NOW - rng.uniform(0, 100), NOW - rng.uniform(0, 10_000), NOW - rng.uniform(0, 2e5)
    )


def odd_time(rng: Random) -> float:
    """Return a time as a record has it after the clock was set, or as a forged ad tells it."""
    return one(
        rng, past(rng), past(rng), NOW + rng.uniform(0, 1000), NOW + 1e7, -1.0, 1e-9, float(1 << 53)
    )


def mishaps(rng: Random, drones: Sequence[DroneId], most: int) -> tuple[JobFailure, ...]:
    """Return up to ``most`` failed jobs. A few drones have nearly all of them; some come twice."""
    count = rng.randint(0, most) if drones else 0
    eaters = rng.sample(list(drones), min(len(drones), one(rng, 1, 3, 10, 200)))
    found = [
        JobFailure(
            rng.choice(eaters)
            if rng.random() < 0.9
            else rng.choice([*drones, DroneId("other-1"), DroneId("")]),
            f"{rng.randint(0, max(1, count))}.{rng.randint(0, 1)}",
            odd_time(rng),
            rng.choice(_OWNERS),
            one(rng, "held with code 12", "broke off after 2 s", "", "\n", "x" * 5000),
            one(rng, Blame.UNKNOWN, Blame.UNKNOWN, *Blame),
        )
        for _ in range(count)
    ]
    return (*found, *found[: one(rng, 0, 0, 5)])


def completions(rng: Random, drones: Sequence[DroneId], most: int) -> tuple[CompletedJob, ...]:
    """Return up to ``most`` jobs that are done, some of which failed before."""
    return tuple(
        CompletedJob(
            f"{rng.randint(0, max(1, most))}.{rng.randint(0, 1)}",
            odd_time(rng),
            odd_time(rng),
            one(rng, 0.0, 5.0, 3600.0, 1e9),
            one(rng, 0, 200, 1000),
            one(rng, 0, 1, 64),
            one(rng, 0, 1024),
            owner=rng.choice(_OWNERS),
            drone_id=rng.choice(drones) if drones and rng.random() < 0.9 else None,
        )
        for _ in range(rng.randint(0, most))
    )


def evictions(rng: Random, drones: Sequence[DroneId], most: int) -> tuple[Eviction, ...]:
    """Return up to ``most`` jobs that had to leave before they were done."""
    count = rng.randint(0, most) if drones else 0
    return tuple(
        Eviction(
            rng.choice(drones), f"{n}.0", odd_time(rng), one(rng, 0, 1000), one(rng, 0.0, 5.0, 1e6)
        )
        for n in range(count)
    )


def breaker(rng: Random, scope: Scope) -> Breaker:
    """Return a breaker in some state, with times and a fault that need not agree with it."""
    state = rng.choice(list(BreakerState))
    if scope == Scope("overlay"):
        state = one(rng, BreakerState.DEGRADED, BreakerState.ACTIVE)
    fault = Fault(
        rng.choice(list(FaultKind)), "x", odd_time(rng), rng.random() < 0.5, rng.random() < 0.5
    )
    until = one(rng, 0.0, NOW - 10, NOW, NOW + 50, NOW + 1e6, 1e12)
    known = fault if rng.random() < 0.8 else None
    return Breaker(
        scope, state, odd_time(rng), one(rng, 0, 1, 2, 5, 31, 1 << 40), until, known, odd_time(rng)
    )


def breakers(
    rng: Random,
    sites: Sequence[str],
    types: Sequence[DroneType],
    classes: Sequence[JobClass],
    share: float,
) -> dict[Scope, Breaker]:
    """Return breakers of a ``share`` of all that can have one: sites, types, classes on types, nodes."""
    scopes = ["overlay", *sites, "gone", "gone/type#c0", "a@", "a@odd node"]
    scopes += [str(kind.key) for kind in types]
    scopes += [f"{kind.key}#{job.id}" for kind in types for job in classes[:20]]
    scopes += [f"{site}@{node}" for site in sites for node in NODES]
    return {
        scope: breaker(rng, scope) for scope in map(Scope.parse, scopes) if rng.random() < share
    }


def requests(
    rng: Random, sites: Sequence[str], drones: Sequence[DroneId], most: int
) -> tuple[OperatorRequest, ...]:
    """Return up to ``most`` requests of every kind and mode, for drones known, unknown and named twice."""
    known = [
        *drones,
        *(DroneId(f"{PREFIX}-{n}") for n in range(12, 16)),
        DroneId("nobody-1"),
        DroneId(""),
    ]
    scopes = [DroneId(each) for each in (*sites, "a/x", "overlay", "")]
    found = []
    for number in range(rng.randint(0, most)):
        kind = rng.choice(list(RequestKind))
        named = scopes if kind is RequestKind.RESET else known
        ids = tuple(rng.choice(named) for _ in range(rng.randint(0, 4)))
        found.append(
            OperatorRequest(
                number, odd_time(rng), kind, ids, "why", "me", rng.choice(list(DrainMode))
            )
        )
    return tuple(found)
