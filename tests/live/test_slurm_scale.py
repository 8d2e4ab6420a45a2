"""Two thousand drones asked for at once and withdrawn again: in a handful of calls, never one for each drone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.labs.facilities import horeka
from tests.labs.htcondor import Condor, until
from tests.labs.slurm import CountedTools, SlurmLab

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.slow]

DRONES = 2000


@pytest.mark.matrix
def test_two_thousand_drones_are_asked_for_and_withdrawn(
    newest_condor: Condor, new_slurm: Callable[..., SlurmLab]
) -> None:
    cluster = new_slurm(a100=1, h100=0, rest=False, ssh=False)
    tools = CountedTools(cluster)
    # All GPUs are the owner's: drones wait for their turn.
    held = cluster.sbatch(
        "#!/bin/sh\nexec sleep 3600\n", "-p", "accelerated", "--gres=gpu:a100:4", user="owner"
    )
    cluster.reaches(held, "RUNNING")
    types = {"a100": {"partition": "accelerated"}}
    options = {"tools": {"bin": str(tools.directory)}, "types": types, "deadline": "18s"}
    site = {"most": DRONES + 500, "options": options, "more": {"queue_when_full": True}}
    with horeka(newest_condor, cluster, "tools", **site) as lab:
        controller = lab.controller
        # A look at so many jobs may take long on a busy host.
        controller.policy = {"overlay_max_age": "60s", "max_drones": DRONES + 500}
        controller.start()
        made: list[int] = []

        def calls() -> Counter[str]:
            """Count the calls since the last time by their tools."""
            found = Counter(call.tool for call in tools.calls(sum(made)))
            made.append(found.total())
            return found

        calls()
        tick, jobs = controller.tick, lab.submit(DRONES, large=True)
        until(
            lambda: sum(lab.alive().values()) >= DRONES, 60, what="all are at the site", every_s=0.5
        )
        controller.settles({"queued": DRONES})
        submits = [call for call in tools.calls() if call.tool == "sbatch"]
        assert sum(call.tasks for call in submits) == DRONES, "asked for once each"
        assert len(submits) <= 3, "in arrays as large as the cluster takes"
        assert calls()["squeue"] <= controller.tick - tick + 2, (
            "a listing per look, and one before the start"
        )

        tick = controller.tick
        controller.ticks(8)
        waiting = calls()
        assert waiting["sbatch"] == waiting["scancel"] == 0, (
            "nobody else is wanted, and nobody less"
        )
        assert waiting["squeue"] <= controller.tick - tick + 1, "one listing per look"
        assert lab.alive() == {d["id"]: 1 for d in controller.live()}
        assert len(controller.live()) == DRONES
        reasons = {d["site_reason"] for d in controller.live()}
        assert reasons - {""} and reasons <= {"Resources", "Priority", ""}, (
            "they wait for their turn, no more"
        )

        tick, _ = controller.tick, calls()
        lab.overlay.remove(jobs)
        until(lambda: not lab.alive(), 90, what="none is at the site", every_s=0.5)
        until(lambda: not controller.live(), 90, what="none on record lives", every_s=0.5)
        withdrawn = calls()
        assert withdrawn["sbatch"] == 0
        assert 1 <= withdrawn["scancel"] <= DRONES // 500 + 1
        assert withdrawn["squeue"] <= controller.tick - tick + 2, (
            "a listing per look, and one before the stop"
        )
        assert controller.states() == {"cancelled": DRONES}
        lab.nothing_left()
