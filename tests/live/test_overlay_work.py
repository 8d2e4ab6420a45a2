"""What jobs in our drones have at stake and what evictions cost: as the overlay tells it, and as jobs wrote it down."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from adapters.htcondor.overlay import HTCondorOverlay
from provisioner.model import Eviction, OverlayView
from tests.htcondor_overlay.live import A100, overlay_on, slot_of
from tests.labs.htcondor import QUICK_DRONE, Diary, Pool, StartDrone, gpu_job, own, until

RUN_S = 14
CLOCK_S = 2.1
"""The whole seconds of HTCondor's clock, at both ends of a run."""

BODIES: Mapping[str, tuple[str, str]] = {
    # what it does with `n`, which counts tenths of a second or so, and its lines of the submit
    # description
    "plain": ("while :; do sleep 0.1; say on; done", ""),
    "saves when told to leave": (
        "trap 'sleep 2; echo $n >state; say saved; exit 0' TERM\ntouch state\nwhile :; do sleep 0.1; say on; done",
        "when_to_transfer_output = ON_EXIT_OR_EVICT\ntransfer_output_files = state",
    ),
    "saves every ten seconds": (
        "n=0; while [ $n -lt 100 ]; do sleep 0.1; n=$((n + 1)); say on; done; echo >state; say saved; exit 85",
        "checkpoint_exit_code = 85\ntransfer_checkpoint_files = state",
    ),
    "ends by itself": ("sleep 20", ""),
}


class Job:
    """A job for a drone of its own, and the diary that it keeps."""

    def __init__(self, pool: Pool, name: str, body: str = "plain", *other_drones: str) -> None:
        self.name, self.drone_id = name, own(f"kit-{name}")
        self.diary = Diary(pool, name)
        does, more = BODIES[body]
        where = " || ".join(
            f'TARGET.DroneId == "{each}"' for each in (self.drone_id, *other_drones)
        )
        more = f"requirements = {where}\njob_lease_duration = 10\n{more}"
        self.cluster = pool.submit(
            gpu_job(cpus=2, program=self.diary.program(f"say began\n{does}\n"), more=more)
        )

    def truth(self, until_at: float) -> tuple[float, float]:
        """Run time of its last run before then, and how much of that was not saved."""
        seen = [(at, what) for at, what in self.diary.lines() if at <= until_at]
        first = next(at for at, what in seen if what == "began")
        saved = max([at for at, what in seen if what == "saved"], default=first)
        return seen[-1][0] - first, seen[-1][0] - saved


async def told(overlay: HTCondorOverlay) -> tuple[OverlayView, dict[str, Eviction]]:
    view = await overlay.poll([A100])
    assert view.evictions is not None
    assert len({(e.drone_id, e.job_id, e.at) for e in view.evictions}) == len(view.evictions)
    return view, {e.drone_id: e for e in view.evictions}


async def test_what_is_told_is_what_the_jobs_wrote_down(
    new_pool: Callable[[str], Pool], drone_on: StartDrone
) -> None:
    pool = new_pool("SHADOW_QUEUE_UPDATE_INTERVAL = 900\n")  # as it is by default
    plain, lost, removed, held = (Job(pool, name) for name in ("plain", "lost", "removed", "held"))
    saves, checkpoints = (
        Job(pool, "saves", "saves when told to leave"),
        Job(pool, "ckpt", "saves every ten seconds"),
    )
    done, moved = Job(pool, "done", "ends by itself"), Job(pool, "moved", "plain", own("kit-other"))
    jobs = [plain, saves, checkpoints, lost, removed, held, done, moved]
    leaving = (plain, saves, checkpoints, moved)
    drones = {job: drone_on(pool, f"kit-{job.name}", env={"DRONE_GRACE_S": "20"}) for job in jobs}
    async with overlay_on(pool) as overlay:
        until(lambda: all(job.diary.lines() for job in jobs), 100, what="all run")
        began = time.time()
        until(lambda: not pool.jobs(done.cluster), what="one has come to its end")
        view, evictions = await told(overlay)
        assert evictions == {}, "nobody had to leave"
        for job in jobs:
            slot = slot_of(view, job.drone_id)
            if job is done:
                assert slot.work_gpu_milli == 0
            else:
                assert slot.work_gpu_milli == 1000
                assert abs((view.taken_at - slot.work_at) - job.truth(view.taken_at)[1]) < 3, (
                    job.name
                )
            if job is checkpoints:
                assert view.taken_at - slot.work_at < 13, "it has saved what it did before"

        drone_on(pool, "kit-other")
        until(lambda: time.time() - began > RUN_S, RUN_S + 10, what="they have run for long enough")
        asked_at = time.time()
        for job in leaving:
            drones[job].send(signal.SIGTERM)
        drones[lost].kill()
        pool.run("condor_rm", str(removed.cluster), identity="alice")
        pool.run("condor_hold", str(held.cluster), identity="alice")
        for job in (plain, saves, checkpoints):
            until(lambda job=job: pool.statuses(job.cluster) == [1], 30, what=f"{job.name} waits")
        until(lambda: len(moved.diary.said("began")) == 2, 60, what="one moved on")

        view, evictions = await told(overlay)
        [waits] = [
            each for each in view.classes if f"{plain.cluster}.0" in each.job_ids.split(", ")
        ]
        assert waits.oldest_at < began < asked_at - 2 < waits.idle_at, (
            "it was evicted, and began anew to wait"
        )
        expected = {job.drone_id for job in leaving}
        assert set(evictions) - {lost.drone_id} == expected, "not those that their owner took away"
        for job in leaving:
            found = evictions[job.drone_id]
            assert (found.job_id, found.gpu_milli) == (f"{job.cluster}.0", 1000)
            assert asked_at - 2 < found.at < time.time() + 2
            again = [at for at, what in job.diary.lines() if what == "began"][-1]
            ran_s, lost_s = job.truth(again - 0.001 if job is moved else time.time())
            assert ran_s > RUN_S - 2
            assert abs(found.lost_s - lost_s) <= CLOCK_S, (job.name, found.lost_s, lost_s)
        pool.run("condor_release", str(held.cluster), identity="alice")

        # the schedd waits for a drone that has vanished until the job's lease is over
        until(
            lambda: pool.statuses(lost.cluster) == [1],
            120,
            what="the lease of the lost one is over",
        )
        _, later = await told(overlay)
        assert {key: each for key, each in later.items() if key in expected} == evictions, (
            "told the same again"
        )
        assert held.drone_id not in later and removed.drone_id not in later
        _, lost_s = lost.truth(time.time())
        assert abs(later[lost.drone_id].lost_s - lost_s) <= CLOCK_S, (
            later[lost.drone_id],
            lost_s,
        )


async def test_jobs_that_want_no_gpu_count_by_their_cpus(pool: Pool, drone_on: StartDrone) -> None:
    # of the node, not for this drone
    extra = f"{QUICK_DRONE}\nGPU_DISCOVERY_EXTRA = -extra -simulate:4,2\n".encode()
    no_gpus = {
        "DRONE_GPUS": "0",
        "DRONE_GPU_MILLI": "0",
        "DRONE_VRAM_MIB": "0",
        "DRONE_GPU_SIMULATE": "",
    }
    drone = drone_on(
        pool, "kit-cpus", env={**no_gpus, "DRONE_CPUS": "4"}, files={"extra.conf": extra}
    )
    gpu, enough = pool.submit(gpu_job(1)), pool.file("cpus.enough")
    cluster = pool.submit(gpu_job(cpus=3, until_there=enough).replace("request_gpus = 1\n", ""))
    until(lambda: Path(f"{enough}.starts").exists(), 60, what="its program runs")
    async with overlay_on(pool) as overlay:
        view = await overlay.poll([A100])
    slot = slot_of(view, drone.id)
    assert slot.work_gpu_milli == 3000 and 0 <= time.time() - slot.work_at < 60
    assert (slot.free_gpu_milli, slot.vram_mib) == (0, 0)
    assert [each.gpu_milli for each in view.classes if each.owner == "alice"] == [1000], (
        "no CPU type, no CPU demand"
    )
    enough.touch()
    until(lambda: not pool.jobs(cluster), 60, what="the job is done")
    assert "CUDA_VISIBLE_DEVICES=10000\n" in (pool.dir / "jobs" / f"out.{cluster}.0").read_text()
    assert pool.statuses(gpu) == [1], "a drone without GPUs takes no job that wants one"
