"""What jobs in our drones have at stake and what evictions cost: as the overlay tells it, and as jobs wrote it down."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adapters.htcondor.overlay import HTCondorOverlay
from provisioner import drone
from provisioner.model import DroneId, Eviction, OverlayView
from tests.htcondor_overlay.live import A100, overlay_on
from tests.labs.htcondor import DroneProcess, Pool, gpu_job, own, start_drone, until

pytestmark = pytest.mark.timeout(600)
RUN_S = 42

BODIES: Mapping[str, tuple[str, str]] = {
    # what it does with `n`, which counts tenths of a second or so, and its lines of the submit description
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


@dataclass
class Job:
    """A job in a drone of its own, and the diary that it keeps."""

    pool: Pool
    name: str
    body: str
    other_drones: tuple[str, ...] = ()
    cluster: int = 0
    drone_id: DroneId = field(init=False)

    def __post_init__(self) -> None:
        self.drone_id = DroneId(own(f"kit-{self.name}"))

    @property
    def diary(self) -> Path:
        return self.pool.file(f"{self.name}.diary")

    def submit(self) -> None:
        program = self.pool.file(f"{self.name}.sh")
        does, more = BODIES[self.body]
        program.write_text(f'#!/bin/sh\nsay() {{ echo "$(date +%s.%N) $*" >>{self.diary}; }}\nsay began\n{does}\n')
        program.chmod(0o755)
        self.pool.account.give(program)
        where = " || ".join(f'TARGET.DroneId == "{each}"' for each in (self.drone_id, *self.other_drones))
        self.cluster = self.pool.submit(
            f"executable = {program}\nrequest_gpus = 1\nrequest_cpus = 2\nrequest_memory = 128MB\nrequest_disk = 1MB\n"
            f"requirements = {where}\nshould_transfer_files = YES\nwhen_to_transfer_output = ON_EXIT\n"
            f"job_lease_duration = 20\n{more}\nqueue\n"
        )

    def entries(self) -> list[tuple[float, str]]:
        lines = self.diary.read_text().splitlines() if self.diary.exists() else []
        return [(float(at), what) for at, _, what in (line.partition(" ") for line in lines)]

    def truth(self, until_at: float) -> tuple[float, float]:
        """Run time of its last run before then, and how much of that was not saved."""
        seen = [(at, what) for at, what in self.entries() if at <= until_at]
        first = next(at for at, what in seen if what == "began")
        saved = max([at for at, what in seen if what == "saved"], default=first)
        return seen[-1][0] - first, seen[-1][0] - saved


@contextlib.contextmanager
def drones(pool: Pool, ids: list[DroneId]) -> Iterator[dict[DroneId, DroneProcess]]:
    script, made = drone.script("condor_drone.sh"), dict[DroneId, DroneProcess]()
    try:
        for each in ids:
            made[each] = start_drone(pool, each, script, env={"DRONE_GRACE_S": "20"})
        yield made
    finally:
        for each in made.values():
            each.stop()


def kill(process: DroneProcess) -> None:
    """As when a node is lost: nobody says a last word."""
    for pid in (*process.leftovers(), process.process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def told(overlay: HTCondorOverlay) -> tuple[OverlayView, dict[DroneId, Eviction]]:
    view = await overlay.poll([A100])
    assert view.evictions is not None
    assert len({(e.drone_id, e.job_id, e.at) for e in view.evictions}) == len(view.evictions)
    return view, {e.drone_id: e for e in view.evictions}


async def test_what_is_told_is_what_the_jobs_wrote_down(new_pool: Callable[[str], Pool]) -> None:
    pool = new_pool("SHADOW_QUEUE_UPDATE_INTERVAL = 900\n")  # as it is by default
    plain = Job(pool, "plain", "plain")
    saves, checkpoints = Job(pool, "saves", "saves when told to leave"), Job(pool, "ckpt", "saves every ten seconds")
    lost, removed, held = (Job(pool, name, "plain") for name in ("lost", "removed", "held"))
    done, moved = Job(pool, "done", "ends by itself"), Job(pool, "moved", "plain", (own("kit-other"),))
    jobs = [plain, saves, checkpoints, lost, removed, held, done, moved]
    with drones(pool, [job.drone_id for job in jobs]) as processes:
        async with overlay_on(pool) as overlay:
            for job in jobs:
                job.submit()
            until(lambda: all(job.entries() for job in jobs), 100, what="all run")
            began = time.time()
            until(lambda: not pool.jobs(done.cluster), what="one has come to its end")
            view, evictions = await told(overlay)
            assert evictions == {}, "nobody had to leave"
            slots = {slot.drone_id: slot for slot in view.slots}
            for job in jobs:
                if job is not done:
                    slot, (_, at_stake_s) = slots[job.drone_id], job.truth(view.taken_at)
                    assert slot.work_gpu_milli == 1000
                    assert abs((view.taken_at - slot.work_at) - at_stake_s) < 3, job.name
            assert slots[done.drone_id].work_gpu_milli == 0
            assert view.taken_at - slots[checkpoints.drone_id].work_at < 13, "it has saved what it did before"

            with drones(pool, [DroneId(own("kit-other"))]):
                until(lambda: time.time() - began > RUN_S, RUN_S + 10, what="they have run for long enough")
                asked_at = time.time()
                for job in (plain, saves, checkpoints, moved):
                    processes[job.drone_id].send(signal.SIGTERM)
                kill(processes[lost.drone_id])
                pool.run("condor_rm", str(removed.cluster), identity="alice")
                pool.run("condor_hold", str(held.cluster), identity="alice")
                for job in (plain, saves, checkpoints):
                    until(lambda job=job: pool.statuses(job.cluster) == [1], 30, what=f"{job.name} waits")  # type: ignore[misc]
                until(lambda: len([1 for _, what in moved.entries() if what == "began"]) == 2, 60, what="one moved on")

                view, evictions = await told(overlay)
                [waits] = [each for each in view.classes if f"{plain.cluster}.0" in each.job_ids.split(", ")]
                assert waits.oldest_at < began < asked_at - 2 < waits.idle_at, "it was evicted, and began anew to wait"
                expected = {job.drone_id for job in (plain, saves, checkpoints, moved)}
                assert set(evictions) - {lost.drone_id} == expected, "not those that their owner took away"
                for job in (plain, saves, checkpoints, moved):
                    found = evictions[job.drone_id]
                    assert (found.job_id, found.gpu_milli) == (f"{job.cluster}.0", 1000)
                    assert asked_at - 2 < found.at < time.time() + 2
                    again = [at for at, what in job.entries() if what == "began"][-1]
                    ran_s, lost_s = job.truth(again - 0.001 if job is moved else time.time())
                    assert ran_s > 40
                    assert abs(found.lost_s - lost_s) <= 0.05 * ran_s, (job.name, found.lost_s, lost_s)
                pool.run("condor_release", str(held.cluster), identity="alice")

                # the schedd waits for a drone that has vanished until the job's lease is over
                until(lambda: pool.statuses(lost.cluster) == [1], 120, what="the lease of the lost one is over")
                _, later = await told(overlay)
                assert {key: each for key, each in later.items() if key in expected} == evictions, "told the same again"
                assert held.drone_id not in later and removed.drone_id not in later
                ran_s, lost_s = lost.truth(time.time())
                assert abs(later[lost.drone_id].lost_s - lost_s) <= 0.05 * ran_s, (later[lost.drone_id], lost_s)


async def test_jobs_that_want_no_gpu_count_by_their_cpus(overlay_pool: Pool) -> None:
    cpu = {"DRONE_GPUS": "0", "DRONE_GPU_MILLI": "0", "DRONE_CPUS": "4", "DRONE_GPU_SIMULATE": ""}
    name = DroneId(own("kit-cpus"))
    process = start_drone(overlay_pool, name, drone.script("condor_drone.sh"), env=cpu)
    enough = overlay_pool.file("cpus.enough")
    text = gpu_job(cpus=3, until_there=enough).replace("request_gpus = 1\n", "")
    cluster = overlay_pool.submit(text)
    try:
        until(lambda: overlay_pool.statuses(cluster) == [2], 60, what="the job runs")
        until(lambda: Path(f"{enough}.starts").exists(), 30, what="its program too")
        async with overlay_on(overlay_pool) as overlay:
            view = await overlay.poll([A100])
        (slot,) = [slot for slot in view.slots if slot.drone_id == name]
        assert slot.work_gpu_milli == 3000 and 0 <= time.time() - slot.work_at < 60
        assert (slot.free_gpu_milli, slot.vram_mib) == (0, 0)
        assert [each.gpu_milli for each in view.classes if each.owner == "alice"] == [], "no CPU type, no CPU demand"
    finally:
        enough.touch()
        overlay_pool.remove(cluster)
        process.stop()
        overlay_pool.forget(f'DroneId == "{name}"')
