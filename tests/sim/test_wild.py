"""Everything at once, by seed.

``SIM_WILD_SEEDS`` sets how many (60 unless set), ``SIM_FIRST_SEED`` where they begin.
"""

from __future__ import annotations

import os

import pytest

from provisioner.sim.scenario import simulate
from tests.sim.wild import wild

SEEDS = int(os.environ.get("SIM_WILD_SEEDS", "60"))
FIRST = int(os.environ.get("SIM_FIRST_SEED", "0"))
PARTS = 4
ONCE_BROKEN = (11, 25, 529, 634, 698, 815, 953, 1042, 1149)
"""Seeds that showed faults, since repaired: an overlay that failed now and then kept bad drones alive for ever; planner
and checker disagreed on strays at a busy site."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_promise_is_broken_whatever_happens(part: int) -> None:
    failed, done, lost = {}, 0, 0
    for seed in range(FIRST + part, FIRST + SEEDS, PARTS):
        outcome = simulate(wild(seed))
        done += outcome.jobs_done
        lost += outcome.tally.attempts_lost
        if outcome.violations:
            failed[seed] = outcome.violations
    assert not failed, f"seeds {sorted(failed)}; first: {failed[min(failed)]}"
    if SEEDS >= 60:
        assert done > 100 and lost > 0, "too tame to prove anything"


@pytest.mark.parametrize("seed", ONCE_BROKEN)
def test_what_was_repaired_stays_so(seed: int) -> None:
    assert simulate(wild(seed)).violations == ()
