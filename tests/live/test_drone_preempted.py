"""The site takes a drone's place back: what its job gets of the grace, what it saves, and where it goes on."""

from __future__ import annotations

import signal
import time

import pytest

from tests.labs.htcondor import Diary, Pool, StartDrone, gpu_job, own, until

COUNTS = """\
n=$(cat state 2>/dev/null || echo 0)
say "began at $n"
leave() {{
    say told
    sleep {needs_s} || exit 1
    dd if=/dev/zero of=large bs=1M count=20 2>/dev/null
    echo "$n" >state
    say "saved $n"
    exit 0
}}
trap leave TERM
touch large state
while :; do sleep 0.1; n=$((n + 1)); done
"""
"""Told to leave, it takes its time to save how far it has counted; started again it counts on from there."""


def counts(pool: Pool, diary: Diary, drones: list[str], needs_s: float) -> int:
    """Submit it, for some drones."""
    where = " || ".join(f'TARGET.DroneId == "{own(each)}"' for each in drones)
    files = "when_to_transfer_output = ON_EXIT_OR_EVICT\ntransfer_output_files = state, large\nrequest_disk = 100MB"
    program = diary.program(COUNTS.format(needs_s=needs_s))
    return pool.submit(gpu_job(program=program, more=f"requirements = {where}\n{files}"))


@pytest.mark.parametrize("grace_s", [10, pytest.param(30, marks=pytest.mark.matrix)])
def test_a_job_saves_its_work_in_nearly_all_of_the_grace_and_goes_on_elsewhere(
    pool: Pool, drone_on: StartDrone, grace_s: int
) -> None:
    names = [f"grace-{grace_s}-{n}" for n in (1, 2)]
    diary = Diary(pool, names[0])
    counts(pool, diary, names, needs_s=grace_s - 6)
    drone = drone_on(pool, names[0], env={"DRONE_GRACE_S": str(grace_s)})
    until(diary.lines, 60, what="the job counts")
    time.sleep(3)
    asked_at = time.time()
    drone.send(signal.SIGTERM)
    assert drone.wait(grace_s) == 0, "it must be gone before the site kills it"
    assert drone.outcome["reason"] == "stopped"
    assert diary.at("told") - asked_at < 4, "all but 4 s of the grace are left"
    saved = diary.said("saved")[0].split()[1]
    assert int(saved) > 10
    drone_on(pool, names[1])
    until(lambda: len(diary.said("began")) == 2, 60, what="it runs again")
    assert diary.said("began")[-1] == f"began at {saved}", "where it stopped"


def test_a_job_that_needs_longer_is_ended_and_its_pool_knows_at_once(
    pool: Pool, drone_on: StartDrone
) -> None:
    diary = Diary(pool, "grace-over")
    cluster = counts(pool, diary, ["grace-over"], needs_s=60)
    drone = drone_on(pool, "grace-over", env={"DRONE_GRACE_S": "12"})
    until(diary.lines, 60, what="the job counts")
    drone.send(signal.SIGTERM)
    assert drone.wait(12) == 0, "it must be gone before the site kills it"
    assert diary.said()[-1] == "told", "it had its notice, and did not get to the end of its work"
    assert drone.outcome["jobs_started"] == "1", drone.outcome
    assert not drone.leftovers()
    until(lambda: pool.statuses(cluster) == [1], 20, what="the pool has it back")
    (ad,) = pool.jobs(cluster)
    assert drone.id in str(ad["LastRemoteHost"]) and "JobDisconnectedDate" not in ad, (
        "told, not missed by a lease"
    )
