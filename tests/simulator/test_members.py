"""Two members in virtual time: no id twice, no cap exceeded, no order of a former leader, no orphan left, no job lost.

``SIM_SEEDS`` and ``SIM_FIRST_SEED`` as in :mod:`tests.simulator.test_crashes`. Each rule of the
lease has a mutant: without it, seeds that are known to need it break a promise.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter

import pytest

from provisioner.controller import loop, orphans
from provisioner.controller.leadership import Membership
from provisioner.controller.serials import Serials
from provisioner.model import Snapshot
from provisioner.store.lease import Term
from tests.simulator.members import EventKind, shared, simulate

SEEDS = int(os.environ.get("SIM_SEEDS", "1000"))
FIRST = int(os.environ.get("SIM_FIRST_SEED", "0"))
PARTS = [0, *(pytest.param(part, marks=pytest.mark.matrix) for part in range(1, 25))]


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_members_keep_their_promises(part: int) -> None:
    failed = {}
    happened: Counter[str] = Counter()
    epochs = 0
    seeds = range(FIRST + part, FIRST + SEEDS, len(PARTS))
    for seed in seeds:
        outcome = simulate(shared(seed))
        happened.update(outcome.happened)
        epochs += outcome.epochs
        if outcome.violations or outcome.jobs_done != 12:
            failed[seed] = dict(outcome.happened), outcome.violations
    assert not failed, f"seeds {sorted(failed)}; first: {failed[min(failed)]}"
    if len(seeds) >= 40:  # else it proves less than it says
        assert epochs > 2 * len(seeds)
        assert {each.partition(" ")[0] for each in happened} == set(EventKind)
        assert {"before plan", "after plan", "before start", "before bootstrap"} <= {
            each.partition(" ")[2] for each in happened
        }


def no_proof(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Term, "prove", lambda self, sql: None)


def no_look_at_the_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "require", lambda self: None)
    patch.setattr(Membership, "limit", lambda self, deadline_s: asyncio.timeout(deadline_s))


def no_wait(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Membership, "takes_over", property(lambda self: False, lambda self, to: None))


def one_listing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(orphans, "LISTINGS", 1)


def leases_by_the_clock(patch: pytest.MonkeyPatch) -> None:
    """Take a lease when it has run out by the database's clock."""
    patch.setattr(Membership, "_takes", lambda self, at, lease: not lease.is_held)


def no_adoption(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "Snapshot", lambda **values: Snapshot(**{**values, "adopts": False}))


def no_serials_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Serials, "skip", lambda self: None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "seeds", "breaks"),
    [
        (leases_by_the_clock, (1, 5), "nobody led"),
        (no_adoption, (14, 15), "whose start was lost"),
        (no_serials_left_out, (8, 69), "recorded as new"),
        (no_proof, (28, 29), "on record"),
        (no_look_at_the_lease, (45, 46), "was another's"),
        (no_wait, (48, 63), "started by two leaders|cap broken"),
        (one_listing, (14, 36), "after one listing"),
    ],
)
def test_without_a_rule_a_promise_is_broken(
    mutant: object, seeds: tuple[int, ...], breaks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in seeds:
        assert simulate(shared(seed)).violations == ()
    mutant(monkeypatch)  # type: ignore[operator]
    broken = [each for seed in seeds for each in simulate(shared(seed)).violations]
    assert any(word in each for each in broken for word in breaks.split("|")), broken
