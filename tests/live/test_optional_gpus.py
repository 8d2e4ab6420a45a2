"""Jobs with an optional GPU, with real daemons: idle GPUs and CPU drones are theirs until a job needs the GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tests.labs.controller import BIG, LabController
from tests.labs.htcondor import QUICK_DRONE, Pool, StartDrone, gpu_job, until

RECIPE = "(TARGET.GPUs ?: 0) > 0 ? 1 : 0"
BY_MEMORY = "(countMatches(MY.RequireGPUs, TARGET.AvailableGPUs) ?: 0) > 0 ? 1 : 0"
SOON = QUICK_DRONE + "DRONE_OPTIONAL_AFTER_S = 3\n"
CPU_DRONE = {"DRONE_GPUS": "0", "DRONE_GPU_MILLI": "0"}


def optional_job(asks: str = RECIPE, *, more: str = "", **how: Any) -> str:
    """The submit description of a job with an optional GPU, as docs/how-to/optional-gpus.md has it."""
    text = gpu_job(more=f'+RequiresGPU = "optional"\n{more}', **how)
    return text.replace("request_gpus = 1\n", f"request_gpus = {asks}\n")


def runs(pool: Pool, cluster: int) -> list[dict[str, Any]]:
    return [dict(ad) for ad in pool.jobs(cluster) if ad["JobStatus"] == 2]


@pytest.mark.parametrize("asks", [RECIPE, BY_MEMORY], ids=["any", "by-memory"])
def test_an_idle_gpu_is_lent_until_a_job_needs_it(
    pool: Pool, drone_on: StartDrone, asks: str
) -> None:
    enough = pool.file(f"lent-{len(asks)}.enough")
    more = "gpus_minimum_memory = 30000" if asks == BY_MEMORY else ""
    drone = drone_on(pool, "lent-1", files={"extra.conf": SOON.encode()})
    drone.slot(pool)
    lent = pool.submit(optional_job(asks, more=more, until_there=enough))
    until(
        lambda: [ad for ad in runs(pool, lent) if "GPUsProvisioned" in ad],
        60,
        what="it runs on the idle GPU",
    )
    (job,) = runs(pool, lent)
    assert (job["GPUsProvisioned"], job["CpusProvisioned"]) == (1, 2), (
        "the GPU, and its part of the drone"
    )

    needs = pool.submit(gpu_job(2, cpus=2, memory_mib=512))  # all of the drone
    until(
        lambda: pool.statuses(needs) == [2], 60, what="the job that needs the GPU is there at once"
    )
    assert pool.statuses(lent) == [1], "in its place"
    until(lambda: not pool.jobs(needs), 60, what="it is done")
    until(lambda: runs(pool, lent), 60, what="the GPU is lent again")

    name = str(drone.slot(pool)["Name"])
    pool.run("condor_drain", "-graceful", "-exit-on-completion", name)
    until(lambda: drone.slot(pool).get("Draining") is True, what="it drains")
    assert pool.statuses(lent) == [2], "and lets it end"
    enough.touch()
    enough.chmod(0o644)
    assert drone.wait() == 0, drone.story()
    assert not pool.jobs(lent)


def test_it_waits_for_an_idle_gpu_and_the_attribute_alone_asks_for_none(
    pool: Pool, drone_on: StartDrone
) -> None:
    patient = QUICK_DRONE + "DRONE_OPTIONAL_AFTER_S = 10000\n"
    drone = drone_on(pool, "waits-1", files={"extra.conf": patient.encode()})
    drone.slot(pool)
    lent, none, needs = (
        pool.submit(each) for each in (optional_job(), optional_job("0"), gpu_job())
    )
    until(lambda: not pool.jobs(needs), 60, what="a job that needs the GPU is served")
    assert [pool.statuses(each) for each in (lent, none)] == [[1], [1]], "they are not"

    drone_on(pool, "waits-2", env=CPU_DRONE).slot(pool)
    until(lambda: not pool.jobs(lent) and not pool.jobs(none), 60, what="a CPU drone runs both")
    for each in (lent, none):
        (environment,) = (pool.dir / "jobs").glob(f"out.{each}.*")
        assert "CUDA_VISIBLE_DEVICES=GPU-" not in environment.read_text()


@pytest.mark.matrix
def test_fifty_of_them_start_no_gpu_drone_and_use_one_that_others_have_started(
    lab: tuple[Pool, LabController],
) -> None:
    pool, controller = lab
    controller.sites, controller.idle_s, controller.options = (BIG,), 15, {"drone_config": SOON}
    enough = pool.file("enough")
    # the same user needs one later
    cluster = pool.submit(optional_job(n=50, until_there=enough, more="priority = -1"))
    controller.start()
    controller.ticks(8)
    assert controller.drones() == []
    told = controller.prints("explain", "job", f"{cluster}.0")
    assert "no GPU drone is started because a GPU is optional" in " ".join(told.split())

    needs = pool.submit(gpu_job(1))
    until(
        lambda: not pool.jobs(needs), 180, what="a job that needs a GPU brings a drone", every_s=0.5
    )
    until(lambda: len(runs(pool, cluster)) == 1, 60, what="which is lent then")

    def left() -> list[str]:
        return [each["id"] for each in controller.live() if each["state"] == "draining"]

    (drone,) = until(left, 120, what="but not kept for long", every_s=0.5)
    assert len(runs(pool, cluster)) == 1, "what it runs may end"
    assert "only jobs for which a GPU is optional" in " ".join(
        controller.prints("drones", "show", drone).split()
    )
    assert [each["id"] for each in controller.drones()] == [drone]
    enough.touch()
    enough.chmod(0o644)
    controller.all_gone()
    assert len(pool.jobs(cluster)) == 49, "the others wait for the next"
    pool.remove(cluster)
