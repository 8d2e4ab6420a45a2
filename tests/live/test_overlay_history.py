"""Jobs that are done, whose jobs run where, and shares of a GPU: as a real pool tells them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.model import CompletedJob, OverlayView
from tests.htcondor_overlay.live import A100, classes_of, overlay_on, seen
from tests.labs.htcondor import QUICK_DRONE, Pool, StartDrone, gpu_job, until
from tests.live.test_optional_gpus import CPU_DRONE, SOON, optional_job


def told(view: OverlayView, cluster: int) -> list[CompletedJob]:
    return [each for each in view.completions or () if each.job_id.endswith(f"#{cluster}.0")]


ASKS = "require_gpus = Capability >= 7.5 && GlobalMemoryMb >= 20000\n+GpuMilli = 250\nallowed_execute_duration = 900\n"


async def test_what_is_done_is_told_as_the_queue_has_it(
    new_pool: Callable[[], Pool], drone_on: StartDrone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adapters.htcondor.overlay.history.HISTORY_INTERVAL_S", 20.0)
    pool = new_pool()
    drone = drone_on(pool, "kit-1")
    begun = time.time()
    done = pool.submit(gpu_job(4, more=f"{ASKS}accounting_group = group_a"))
    stays = pool.submit(gpu_job(1, cpus=2, more="leave_in_queue = true"))
    removed = pool.submit(gpu_job(600))
    until(lambda: not pool.jobs(done), 120, what="the first has left the queue")
    until(
        lambda: pool.statuses(stays) == [4], 60, what="the second is done, and stays in the queue"
    )
    until(lambda: pool.statuses(removed) == [2], 60, what="the third runs")
    pool.run("condor_rm", str(removed), identity="alice")
    until(lambda: not pool.jobs(removed), 120, what="its owner took it away")
    async with overlay_on(pool) as overlay:
        view = await overlay.poll([A100])
        (one,), (two,) = told(view, done), told(view, stays)
        assert begun < one.submitted_at + 2 and one.submitted_at <= one.ended_at <= time.time() + 2
        assert 4 <= one.run_s < 60 and one.drone_id == two.drone_id == drone.id
        assert (one.gpu_milli, one.cpus, one.memory_mib, one.disk_mib) == (250, 1, 128, 1)
        assert (one.vram_mib, one.capability, one.walltime_s) == (20000, 75, 900.0)
        assert (one.owner, one.group, two.owner, two.group) == ("alice", "group_a", "alice", "")
        assert (two.gpu_milli, two.cpus) == (1000, 2)
        (gone,) = told(view, removed)
        assert gone.unfinished and gone.drone_id == drone.id and gone.run_s < 120, (
            "its owner took it away"
        )
        assert not one.unfinished and (one.used_milli, one.energy_j) == (None, None), (
            "nothing measured is unknown"
        )

        again = await overlay.poll([A100])
        assert again.completions == view.completions, "not asked again within the interval"
        later = pool.submit(gpu_job(1))
        until(lambda: not pool.jobs(later), 60, what="another is done")
        view = await seen(overlay, lambda v: told(v, later), 90)
        assert told(view, done) == [one] and told(view, stays) == [two], (
            "told the same in each look"
        )
        runs, notices = await overlay.past_runs(begun)
        assert ({run.job_id: run for run in runs}, notices) == (
            {run.job_id: run for run in view.completions or ()},
            (),
        ), "the same, from before the window of polls as well"
        [newest] = told(view, later)
        assert await overlay.past_runs(newest.ended_at) == ((newest,), ())
    async with overlay_on(pool, "reader") as overlay:
        anew = await overlay.poll([A100])
        assert anew.completions == view.completions, "and to one that may do nothing but READ"


EACH_SECOND = f"{QUICK_DRONE}PROCD_MAX_SNAPSHOT_INTERVAL = 1\n".encode()
NEVER = (
    f"{QUICK_DRONE}STARTER_INITIAL_UPDATE_INTERVAL = 600\nSTARTER_UPDATE_INTERVAL = 600\n".encode()
)


@pytest.mark.matrix
async def test_a_run_that_reports_nothing_has_no_cpu_time_and_not_that_of_the_run_before(
    new_pool: Callable[[], Pool], drone_on: StartDrone
) -> None:
    pool = new_pool()
    began = pool.file("began")
    again = f"[ $(wc -l <{began}) = 1 ] || exec sleep 600"
    busy = f"echo >>{began}\n{again}\nexec timeout 600 awk 'BEGIN {{ while (1) {{}} }}'\n"
    job = pool.submit(gpu_job(program=pool.program("busy", busy)))
    first = drone_on(pool, "kit-1", files={"extra.conf": EACH_SECOND})
    until(lambda: pool.jobs(job)[0]["RemoteUserCpu"] >= 2, 120, what="a report came")
    pool.run("condor_vacate_job", str(job), identity="alice")
    until(lambda: pool.statuses(job) == [1], 60, what="it waits again")
    first.stop()
    second = drone_on(pool, "kit-2", files={"extra.conf": NEVER})
    until(lambda: len(began.read_text().splitlines()) == 2, 120, what="its second run")
    async with overlay_on(pool) as overlay:
        view = await overlay.poll([A100])
        assert [run.used_cpu_s for run in told(view, job)] == [None], "of a run that goes on"
        pool.remove(job)
    async with overlay_on(pool) as overlay:
        view = await seen(overlay, lambda v: len(told(v, job)) == 1 and not v.classes)
    (run,) = told(view, job)
    assert (run.drone_id, run.used_cpu_s) == (second.id, None)


async def test_a_job_with_an_optional_gpu_is_told_with_the_gpu_that_it_got(
    new_pool: Callable[[], Pool], drone_on: StartDrone
) -> None:
    pool = new_pool()
    with_gpu = drone_on(pool, "kit-1", files={"extra.conf": SOON.encode()})
    first = pool.submit(optional_job(seconds=3))
    until(lambda: not pool.jobs(first), 120, what="it has run on the GPU")
    with_gpu.stop()
    without = drone_on(pool, "kit-2", env=CPU_DRONE)
    second = pool.submit(optional_job(seconds=3))
    until(lambda: not pool.jobs(second), 120, what="another has run without one")
    async with overlay_on(pool) as overlay:
        view = await overlay.poll([A100])  # no CPU type
        (one,), (two,) = told(view, first), told(view, second)
    assert (one.drone_id, one.gpu_milli) == (with_gpu.id, 1000)
    assert (two.drone_id, two.gpu_milli) == (without.id, 0)


async def test_whose_jobs_run_and_what_share_they_want(pool: Pool, drone_on: StartDrone) -> None:
    enough = pool.file("enough")
    small = "+GpuMilli = 200\n+GpuDuty = 0.12\n+GpuWidth = 0.5\naccounting_group = group_a"
    drone_on(pool, "kit-1")
    pool.submit(gpu_job(until_there=enough, more=small))
    until(lambda: Path(f"{enough}.starts").exists(), 120, what="the job's program runs")
    began = time.time()
    waits = pool.submit(gpu_job(more=small, n=3))
    pool.submit(gpu_job(more="+GpuMilli = 1500"))
    pool.submit(gpu_job(more="+GpuDuty = 12"))
    async with overlay_on(pool) as overlay:
        view = await seen(overlay, lambda v: sum(c.running for c in v.classes) == 1)
    (slot,) = view.slots
    # it has the whole of a GPU that is not shared
    assert (slot.owner, slot.work_gpu_milli) == ("alice", 1000)
    assert abs(slot.begun_at - began) < 10
    (shared,) = [each for each in classes_of(view) if not each.invalid and each.duty_milli]
    assert (shared.owner, shared.group, shared.gpu_milli) == ("alice", "group_a", 200)
    assert (shared.duty_milli, shared.width_milli) == (120, 500)
    assert (shared.waiting + shared.fresh, shared.running) == (3, 1), shared
    assert pool.statuses(waits) == [1, 1, 1]
    (broken,) = [each.invalid for each in classes_of(view) if each.invalid]
    assert broken.startswith("GpuMilli = 1500: ") and "write +GpuMilli = 200" in broken
    (doubtful,) = [each for each in classes_of(view) if each.gpu_milli == 1000 and not each.invalid]
    assert doubtful.duty_milli == 0, "a duty outside 0 to 1 counts as unknown"


@pytest.mark.parametrize("trouble", ["none is kept", "it never ends"])
async def test_without_a_history_everything_else_goes_on(
    new_pool: Callable[[str], Pool], trouble: str
) -> None:
    pool = new_pool(
        "HISTORY =\n" if trouble == "none is kept" else "HISTORY_HELPER = $(LOCAL_DIR)/jobs/slow\n"
    )
    pool.program("slow", "exec sleep 300\n").rename(pool.dir / "jobs/slow")
    pool.submit(gpu_job(n=2))
    async with overlay_on(pool, deadline="8s") as overlay:
        view = await seen(overlay, classes_of)
        assert view.completions is None, view
        (notice,) = [line for line in view.notices if "completed jobs are unknown" in line]
        assert ("no answer within 8 s" in notice) is (trouble == "it never ends")
        again = await overlay.poll([A100])
        assert again.completions is None and notice in again.notices, "not asked at once again"
