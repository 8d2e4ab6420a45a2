"""Drones on a supercomputer, by each way to it: the right GPUs for waiting jobs, and nothing left afterwards."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.labs.horeka import HorekaLab, horeka
from tests.labs.htcondor import Condor, until
from tests.labs.slurm import SlurmLab

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("slurm")]


ONLY_IN_THE_MATRIX = pytest.mark.matrix  # the contract suite goes these ways; the story the same two behind ssh


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("tools", marks=ONLY_IN_THE_MATRIX),
        "ssh",
        pytest.param("rest", marks=ONLY_IN_THE_MATRIX),
        pytest.param("socket", marks=ONLY_IN_THE_MATRIX),
    ],
)
def test_twenty_jobs_run_on_the_gpus_that_they_need(newest_condor: Condor, slurm: SlurmLab, way: str) -> None:
    if slurm.slurm.version < (23, 2) and way in ("rest", "socket"):
        pytest.skip("slurmrestd of 22.05 speaks another API")
    with horeka(newest_condor, slurm, way) as lab:
        twenty_jobs_run(lab)


def twenty_jobs_run(lab: HorekaLab) -> None:
    lab.controller.start()
    large = lab.submit(12, more="gpus_minimum_memory = 30000")
    small = lab.submit(8)

    def all_gpus_busy() -> bool:
        running = lab.overlay.statuses(large).count(2), lab.overlay.statuses(small).count(2)
        return running == (8, 4)

    until(all_gpus_busy, 120, what="eight A100 and four H100 have a job each", every_s=0.5)
    seen = lab.controller.live()
    assert Counter(d["type"] for d in seen) == {"horeka/a100": 8, "horeka/h100": 4}
    for drone in seen:
        node = lab.job_of(drone["id"]).node
        assert node.startswith({"horeka/a100": "hkn08", "horeka/h100": "hkn09"}[drone["type"]])
        assert drone["node"] == node
    assert len({job.id.partition("_")[0] for job in lab.jobs()}) < 12, "in arrays, not one by one"
    lab.let_go()
    until(lambda: not lab.overlay.jobs(large) and not lab.overlay.jobs(small), 120, what="all twenty are done")
    done = [*lab.overlay.history(large), *lab.overlay.history(small)]
    assert [ad["JobStatus"] for ad in done] == [4] * 20
    assert len(lab.controller.drones()) == 12, "no drone more than GPUs"
    lab.nothing_left()
