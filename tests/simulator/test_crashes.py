"""The controller is killed, at every act boundary and by the thousand: no orphan, double, broken cap or lost job.

``SIM_SEEDS`` sets how many seeds are played (1,000 unless set), of which `make test` plays one
part of ten, and `make test-matrix` the others; ``SIM_FIRST_SEED`` sets where they begin.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.model import Plan, Snapshot
from provisioner.store import Store
from provisioner.store.writer import SqlStore
from tests.simulator.crashing import Crash, simulate
from tests.simulator.witness import watched
from tests.simulator.worlds import calm, rough

SEEDS = int(os.environ.get("SIM_SEEDS", "1000"))
FIRST = int(os.environ.get("SIM_FIRST_SEED", "0"))
PARTS = [0, *(pytest.param(part, marks=pytest.mark.matrix) for part in range(1, 10))]


@pytest.mark.parametrize("acts_only", [True, False], ids=["acts", "all calls"])
def test_a_crash_at_every_single_boundary_of_a_quiet_run(acts_only: bool) -> None:
    peaceful = simulate(calm())
    boundaries = peaceful.act_boundaries if acts_only else min(150, peaceful.boundaries)
    assert boundaries > 40
    died_at: Counter[str] = Counter()
    for boundary in range(1, boundaries + 1):
        outcome = simulate(
            replace(calm(), crashes=(Crash(boundary, down_s=7.0, acts_only=acts_only),))
        )
        assert outcome.violations == (), f"crash at boundary {boundary}: {outcome.lives[0]}"
        assert outcome.jobs_done == 12
        assert len(outcome.lives) == 2 or boundary > boundaries - 6, (
            "it died but for the very last boundaries"
        )
        died_at[outcome.lives[0]] += 1
    assert {
        "before store.record",
        "after store.record",
        "before site.start",
        "after site.start",
    } <= set(died_at)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_crashes_and_a_bad_wire_by_the_thousand(part: int) -> None:
    died_at: Counter[str] = Counter()
    troubles: Counter[str] = Counter()
    failed = {}
    seeds = range(FIRST + part, FIRST + SEEDS, len(PARTS))
    for seed in seeds:
        seen = watched(rough(seed))
        outcome = seen.outcome
        died_at.update(outcome.lives)
        troubles.update(trouble.value for trouble in outcome.faults_met.elements())
        if seen.violations or outcome.jobs_done != 12:
            failed[seed] = outcome.lives, seen.violations
    assert not failed, f"seeds {sorted(failed)}; first: {failed[min(failed)]}"
    if len(seeds) >= 100:  # enough to have met everything: else it proves less than it says
        acts = {"store.record", "store.record_results", "site.start", "overlay.bootstrap"}
        assert {"before overlay.drain", "after overlay.drain"} & set(died_at), (
            "few drones are drained here"
        )
        assert {f"{side} {act}" for side in ("before", "after") for act in acts} <= set(died_at)
        assert {
            "order-lost",
            "order-hangs",
            "reply-lost",
            "reply-hangs",
            "late",
            "twice",
            "down",
        } <= set(troubles)


def test_a_store_that_forgets_its_intents_would_be_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The proof that these tests can fail: without the intent on disk, the promises break."""
    honest = Store.record

    async def forgetful(store: Store, plan: Plan, snapshot: Snapshot) -> None:
        await honest(store, replace(plan, starts=()), snapshot)

    monkeypatch.setattr(Store, "record", forgetful)
    # later such drones have left by themselves: orphans are left alone
    soon = replace(calm(), limit_s=300.0)
    assert any("without a record" in each for each in simulate(soon).violations)
    monkeypatch.undo()
    assert not any("without a record" in each for each in simulate(soon).violations)


def test_the_store_in_a_file_keeps_the_promises_too(tmp_path: Path) -> None:
    """What production uses, opened anew after each crash."""
    for seed in range(FIRST, FIRST + min(SEEDS, 8)):
        path = tmp_path / f"{seed}.db"
        outcome = simulate(
            rough(seed),
            lambda path=path: SqlStore(path, "sim", 86400.0, 0, threaded=False, birth="mem0"),
        )
        assert outcome.violations == (), f"seed {seed}, {outcome.lives}"
        assert outcome.digest == simulate(rough(seed)).digest, f"seed {seed}: the two stores differ"


RECORDED = """
from tests.simulator.crashing import simulate
from tests.simulator.worlds import rough
print(simulate(rough(11)).digest)
"""


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_the_record_does_not_depend_on_the_process(hash_seed: str) -> None:
    env = {
        **os.environ,
        "PYTHONHASHSEED": hash_seed,
        "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]),
    }
    command = [sys.executable, "-c", RECORDED]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == simulate(rough(11)).digest
