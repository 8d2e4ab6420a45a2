"""The site takes a drone's place back: what its job gets of the grace, what it saves, and where it goes on."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioner.drone import script
from tests.labs.htcondor import DroneProcess, Pool, own, start_drone, until

pytestmark = pytest.mark.timeout(600)
StartDrone = Callable[..., DroneProcess]


@pytest.fixture
def drone_on(overlay_pool: Pool) -> Iterator[StartDrone]:
    """Start a drone; none is left in the end, and no word of it in the pool."""
    started: list[DroneProcess] = []

    def start(drone_id: str, **env: str) -> DroneProcess:
        started.append(start_drone(overlay_pool, own(drone_id), script("condor_drone.sh"), env=env))
        return started[-1]

    yield start
    for drone in started:
        drone.stop()
        overlay_pool.forget(f'DroneId == "{drone.id}"')


@dataclass(frozen=True, slots=True)
class Payload:
    """A job that counts, and keeps a diary of ``<seconds since the epoch> <what>``."""

    pool: Pool
    cluster: int
    diary: Path

    def wrote(self, what: str) -> float:
        """When it first wrote something."""
        for at, _, text in (line.partition(" ") for line in self.lines()):
            if text.startswith(what):
                return float(at)
        raise AssertionError(f"no {what!r} in {self.lines()}")

    def lines(self) -> list[str]:
        return self.diary.read_text().splitlines() if self.diary.exists() else []


def payload(pool: Pool, name: str, drones: list[str], needs_s: float, file_mib: int = 0) -> Payload:
    """Submit a job for some drones. When told to leave it takes ``needs_s`` to save how far it has counted in a file
    that goes home, with ``file_mib`` beside it; started again it counts on from there."""
    diary, program = (pool.file(f"{name}.{kind}") for kind in ("diary", "sh"))
    program.write_text(
        f"""#!/bin/sh
say() {{ echo "$(date +%s.%N) $*" >>{diary}; }}
n=$(cat state 2>/dev/null || echo 0)
say "began at $n"
leave() {{
    say told
    sleep {needs_s} || exit 1
    [ {file_mib} -eq 0 ] || dd if=/dev/zero of=large bs=1M count={file_mib} 2>/dev/null
    echo "$n" >state
    say "saved $n"
    exit 0
}}
trap leave TERM
touch large state
while :; do sleep 0.1; n=$((n + 1)); done
"""
    )
    program.chmod(0o755)
    pool.account.give(program)
    where = " || ".join(f'TARGET.DroneId == "{own(each)}"' for each in drones)
    cluster = pool.submit(
        f"""executable = {program}
request_gpus = 1
request_cpus = 1
request_memory = 128MB
request_disk = 100MB
requirements = {where}
should_transfer_files = YES
when_to_transfer_output = ON_EXIT_OR_EVICT
transfer_output_files = state, large
queue
"""
    )
    return Payload(pool, cluster, diary)


@pytest.mark.parametrize("grace_s", [10, pytest.param(30, marks=pytest.mark.matrix)])
def test_a_job_saves_its_work_in_nearly_all_of_the_grace_and_goes_on_elsewhere(
    overlay_pool: Pool, drone_on: StartDrone, grace_s: int
) -> None:
    names = [f"grace-{grace_s}-{n}" for n in (1, 2)]
    job = payload(overlay_pool, f"grace-{grace_s}", names, needs_s=grace_s - 6, file_mib=20)
    try:
        drone = drone_on(names[0], DRONE_GRACE_S=str(grace_s))
        until(job.lines, 60, what="the job counts")
        time.sleep(3)
        asked_at = time.time()
        drone.send(signal.SIGTERM)
        assert drone.wait(grace_s) == 0, "it must be gone before the site kills it"
        took_s = time.time() - asked_at
        assert job.wrote("told") - asked_at < 4, "all but 4 s of the grace are left"
        saved = next(line for line in job.lines() if " saved " in line).rpartition(" ")[2]
        assert int(saved) > 10 and took_s < grace_s
        again = drone_on(names[1], DRONE_GRACE_S=str(grace_s))
        until(lambda: len([line for line in job.lines() if " began at " in line]) == 2, 60, what="it runs again")
        assert job.lines()[-1].endswith(f" began at {saved}"), "where it stopped"
        again.stop()
    finally:
        overlay_pool.remove(job.cluster)


def test_a_job_that_needs_longer_is_ended_and_its_pool_knows_at_once(overlay_pool: Pool, drone_on: StartDrone) -> None:
    job = payload(overlay_pool, "grace-over", ["grace-over"], needs_s=60)
    try:
        drone = drone_on("grace-over", DRONE_GRACE_S="12")
        until(job.lines, 60, what="the job counts")
        drone.send(signal.SIGTERM)
        assert drone.wait(12) == 0, "it must be gone before the site kills it"
        assert " told" in job.lines()[-1], "it had its notice, and did not get to the end of its work"
        assert drone.outcome["jobs_started"] == "1", drone.outcome
        assert until(lambda: overlay_pool.statuses(job.cluster) == [1], 20, what="the pool has it back")
        (ad,) = overlay_pool.jobs(job.cluster)
        assert drone.id in str(ad["LastRemoteHost"]) and "JobDisconnectedDate" not in ad, "told, not missed by a lease"
    finally:
        overlay_pool.remove(job.cluster)
