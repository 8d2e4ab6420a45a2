"""Last month's demand out of the record, with a word on what is not in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from provisioner.model import CompletedJob, DroneId, JobClass, OverlayView, Plan, PolledOverlay
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.traces import recorded_jobs
from provisioner.store.writer import SqlStore
from tests.store.story import CONTROLLER, seen

DONE = CompletedJob(
    "submit#1.0",
    1600.0,
    1000.0,
    300.0,
    200,
    2,
    4096,
    1024,
    8192,
    70,
    "ann",
    "group_a",
    900.0,
    DroneId("kit-ab12-1"),
)
WANTS = JobRequirements.of(DONE)
ALIKE = JobClass(
    "c1",
    waiting=2,
    fresh=1,
    running=4,
    oldest_at=1900.0,
    **{"priority": 0, **WANTS.completed_fields},
)


async def written(path: Path, done: list[CompletedJob], *classes: JobClass) -> SqlStore:
    """A store with these jobs done and these classes in the newest view; open."""
    store = await SqlStore(path, CONTROLLER, 1e9, 3).__aenter__()
    await store.record_completed(done)
    plan = Plan(1, 2000.0)
    await store.record(plan, seen(store, plan, overlay=PolledOverlay(OverlayView(1998.0, classes))))
    return store


async def test_jobs_are_those_submitted_in_the_time_beside_a_running_controller(
    tmp_path: Path,
) -> None:
    path = tmp_path / "provisioner.db"
    before, after = (
        replace(DONE, job_id="2", submitted_at=999.0),
        replace(DONE, job_id="3", submitted_at=2000.0),
    )
    later = replace(DONE, job_id="4", ended_at=9000.0, submitted_at=1500.0, run_s=0.0)
    store = await written(path, [before, DONE, after, later])
    try:
        found, _ = recorded_jobs(path, since=1000.0, until=2000.0)
    finally:
        await store.__aexit__()
    assert (
        JobRequirements(
            200, 2, 4096, 1024, 8192, 70, walltime_s=900.0, owner="ann", group="group_a"
        )
        == WANTS
    )
    assert found == [SimulatedJob(0.0, 300.0, WANTS), SimulatedJob(500.0, 1.0, WANTS)], (
        "whenever they ended"
    )
    assert found == recorded_jobs(path, since=1000.0, until=2000.0)[0], "and without a controller"


async def test_jobs_that_still_wait_are_added_and_told(tmp_path: Path) -> None:
    path = tmp_path / "provisioner.db"
    longer = replace(DONE, job_id="2", run_s=500.0)
    others = replace(ALIKE, id="c2", owner="ben", waiting=1, fresh=0, running=0, walltime_s=0.0)
    old, broken = (
        replace(others, id="c3", oldest_at=10.0),
        replace(others, id="c4", invalid="never"),
    )
    store = await written(path, [DONE, longer], ALIKE, others, old, broken)
    await store.__aexit__()
    found, notes = recorded_jobs(path, since=1000.0, until=2000.0)
    waiting = [job for job in found if job.submit_s == 900.0]
    assert [(job.duration_s, job.wants.owner) for job in waiting] == [(400.0, "ann")] * 3 + [
        (400.0, "ben")
    ]
    assert waiting[0].wants == WANTS and len(found) == 6
    assert notes == [
        "jobs that were removed or held, priorities and GPU models asked for are not on record",
        "4 jobs that waited at the last poll are added as if submitted with the oldest of their class, with the median"
        " run time of jobs like them",
        "4 jobs that ran at the last poll are missing: they have no run time yet",
    ]
