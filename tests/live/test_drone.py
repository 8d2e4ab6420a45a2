"""The HTCondor drone against real daemons of both versions: it joins, serves, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from provisioner.drone import script
from tests.labs.htcondor import (
    QUICK_DRONE,
    Condor,
    DroneProcess,
    Pool,
    children_of,
    gpu_job,
    own,
    processes_with,
    start_drone,
    until,
)

StartDrone = Callable[..., DroneProcess]
SCRIPT = script("condor_drone.sh")
pytestmark = pytest.mark.timeout(600)
SHELLS = [shell for shell in (("dash",), ("bash", "--posix"), ("busybox", "sh")) if shutil.which(shell[0])]


@pytest.fixture
def drone_on(request: pytest.FixtureRequest) -> Iterator[StartDrone]:
    """Start a drone in a pool; whatever the test does to it, in the end no process of it may be left."""
    started: list[tuple[Pool, DroneProcess]] = []

    def start(pool: Pool, drone_id: str, **how: object) -> DroneProcess:
        drone = start_drone(pool, own(drone_id), SCRIPT, **how)  # type: ignore[arg-type]
        started.append((pool, drone))
        return drone

    yield start
    for _, drone in started:
        drone.stop()
    for pool, drone in started:
        assert not drone.leftovers(), drone.story()
        with suppress(subprocess.TimeoutExpired):  # a test may have stopped its collector
            pool.run("condor_status", "-limit", "1", timeout_s=5)
            pool.forget(f'DroneId == "{drone.id}"')


@pytest.fixture
def pool(overlay_pool: Pool) -> Iterator[Pool]:
    """The overlay pool, with an empty queue before and after."""
    yield overlay_pool
    for cluster in {int(str(ad["ClusterId"])) for ad in overlay_pool.jobs()}:
        overlay_pool.remove(cluster)
    until(lambda: not overlay_pool.jobs(), what="the queue is empty")


def joined(pool: Pool, drone: DroneProcess) -> dict[str, object]:
    """The ad of the drone's partitionable slot, once it is in the pool."""

    def slot() -> dict[str, object] | None:
        assert drone.process.poll() is None, drone.story()
        found = [ad for ad in pool.drone_slots(drone.id) if ad["SlotType"] == "Partitionable"]
        return found[0] if found else None

    return until(slot, 60, what=f"drone {drone.id} is in the pool")


def busy(pool: Pool, drone: DroneProcess, text: str) -> int:
    """Submit a job and wait until it runs in the drone."""
    cluster = pool.submit(text)
    until(lambda: pool.statuses(cluster) == [2], 60, what=f"job {cluster} runs")
    return cluster


def told_job(pool: Pool, name: str, needs_s: int) -> tuple[str, Path]:
    """A job that writes down that it began, that it got SIGTERM, each second after that, and that it left by itself."""
    diary = pool.file(f"{name}.diary")
    program = pool.file(f"{name}.sh")
    program.write_text(
        f"""#!/bin/sh
exec >>{diary}
leave() {{ echo TERM; for second in $(seq {needs_s}); do sleep 1 || exit; echo still; done; echo left; exit 0; }}
trap leave TERM
echo began
while :; do sleep 0.2; done
"""
    )
    program.chmod(0o755)
    pool.account.give(program)
    description = gpu_job().replace("/bin/sh", str(program)).splitlines()
    return "\n".join(line for line in description if not line.startswith("arguments")) + "\n", diary


# ---------------------------------------------------------------------------------------------------- a whole life


def test_a_drone_joins_runs_gpu_jobs_and_leaves_when_idle(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "life-1", env={"DRONE_IDLE_S": "4", "DRONE_CPUS": "3", "DRONE_GPUS": "2"}, files={})
    assert drone.wait() == 71, "one device is visible, two were promised"
    assert "finds 1 of 2 GPUs" in drone.said

    without_gpu = pool.submit(gpu_job().replace("request_gpus = 1\n", ""))
    gpu = pool.submit(gpu_job(1))
    two_gpus = {"DRONE_GPUS": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    drone = drone_on(pool, "life-2", env={"DRONE_IDLE_S": "4", "DRONE_CPUS": "3", **two_gpus})
    slot = joined(pool, drone)
    assert {key: slot[key] for key in ("DroneId", "SiteName", "DroneType", "TotalSlotCpus", "TotalSlotMemory")} == {
        "DroneId": drone.id,
        "SiteName": "lab",
        "DroneType": "a100",
        "TotalSlotCpus": 3,
        "TotalSlotMemory": 512,
    }
    assert (slot["TotalSlotGPUs"], slot["GPUs_Capability"], slot["GPUs_DeviceName"]) == (2, 8.0, "A100-SXM4-40GB")
    assert slot["TotalSlotDisk"] == 1024 * 1024
    assert slot["AuthenticatedIdentity"] == f"drone@{pool.domain}"
    tokens = drone.dir / "condor/etc/tokens"
    assert tokens.stat().st_mode & 0o777 == 0o700
    assert 3500 < int(str(slot["DroneEndsAt"])) - time.time() <= 3600

    until(lambda: not pool.jobs(gpu), what="the GPU job is done")
    printed = (pool.dir / "jobs" / f"out.{gpu}.0").read_text()
    assert f"PROVISIONER_DRONE_ID={drone.id}\n" in printed
    assert "CUDA_VISIBLE_DEVICES=GPU-" in printed
    assert until(lambda: joined(pool, drone)["JobStarts"] == 1, what="the slot tells how many jobs it started")
    assert pool.statuses(without_gpu) == [1], "a job that wants no GPU must not take a GPU's place"

    assert drone.wait() == 0, drone.story()
    outcome = drone.outcome
    assert (outcome["drone"], outcome["exit"], outcome["reason"]) == (drone.id, "0", "idle")
    assert (outcome["jobs_started"], outcome["jobs_ended"]) == ("1", "1")
    assert until(lambda: not pool.drone_slots(drone.id), what="the slot has left the pool")
    assert not drone.leftovers()
    assert {path.name for path in drone.dir.iterdir()} == {"outcome", "log", "drone.sh"}


def test_a_job_that_says_it_takes_longer_than_the_drone_lives_is_not_taken(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "fits-1", env={"DRONE_WALLTIME_S": "600", "DRONE_RETIRE_S": "60"})
    joined(pool, drone)
    long = [
        pool.submit(gpu_job(1, more=more))
        for more in ("allowed_job_duration = 3600", "allowed_execute_duration = 595", "+MaxWallTimeMins = 20")
    ]
    short = pool.submit(gpu_job(1, more="allowed_execute_duration = 300"))
    until(lambda: not pool.jobs(short), what="the short job is done")
    assert [pool.statuses(each) for each in long] == [[1], [1], [1]]


def test_at_first_it_takes_only_jobs_of_the_vram_that_it_was_started_for(pool: Pool, drone_on: StartDrone) -> None:
    plain = pool.submit(gpu_job(0.5))
    others = [
        pool.submit(gpu_job(0.5, more=more))
        for more in ("gpus_minimum_memory = 20000", "require_gpus = GlobalMemoryMb >= 20000 && Capability >= 7.0")
    ]
    drone = drone_on(pool, "kept-1", env={"DRONE_KEPT_VRAM_MIB": "30000", "DRONE_KEPT_S": "600"})
    joined(pool, drone)
    for more in ("gpus_minimum_memory = 30000", "require_gpus = GlobalMemoryMb >= 30000"):
        large = pool.submit(gpu_job(0.5, more=more))
        until(lambda large=large: not pool.jobs(large), what=f"a job with {more} is done")  # type: ignore[misc]
    until(lambda: drone.ended_jobs() == 2, what="the drone has noted both")
    assert [pool.statuses(each) for each in (plain, *others)] == [[1]] * 3, "older, but kept out"

    after = drone_on(pool, "kept-2", env={"DRONE_KEPT_VRAM_MIB": "30000", "DRONE_KEPT_S": "1"})
    joined(pool, after)
    until(lambda: not pool.jobs(), what="the others run as soon as a drone is no longer kept")
    assert drone.ended_jobs() == 2, "not in the drone that is"


def test_it_takes_no_jobs_of_users_whom_it_avoids(pool: Pool, drone_on: StartDrone) -> None:
    avoided, other = pool.submit(gpu_job(0.5)), pool.submit(gpu_job(0.5), identity="admin")
    (user,) = {str(ad["Owner"]) for ad in pool.jobs(avoided)}
    drone = drone_on(pool, "avoids-1", env={"DRONE_AVOIDS": f"somebody,{user}"})
    until(lambda: not pool.jobs(other), what="the job of another user is done")
    until(lambda: drone.ended_jobs() == 1, what="the drone has noted it")
    assert pool.statuses(avoided) == [1], "older, but kept out"

    after = drone_on(pool, "avoids-2", env={"DRONE_AVOIDS": f"somebody,{user[1:]},{user}s"})
    until(lambda: not pool.jobs(avoided), what="it runs in a drone that takes it")
    until(lambda: after.ended_jobs() == 1, what="that drone has noted it")
    assert drone.ended_jobs() == 1, "not in the one that avoids it"


def test_a_drone_without_gpus_takes_only_jobs_that_want_none(pool: Pool, drone_on: StartDrone) -> None:
    gpu = pool.submit(gpu_job(0.5))
    of_the_node = f"{QUICK_DRONE}\nGPU_DISCOVERY_EXTRA = -extra -simulate:4,2\n".encode()  # not for this drone
    no_gpus = {"DRONE_GPUS": "0", "DRONE_GPU_MILLI": "0", "DRONE_VRAM_MIB": "0", "DRONE_GPU_SIMULATE": ""}
    drone = drone_on(pool, "cpu-1", env={**no_gpus, "DRONE_IDLE_S": "4"}, files={"extra.conf": of_the_node})
    slot = joined(pool, drone)
    assert (slot["TotalSlotCpus"], slot["TotalSlotMemory"], slot.get("TotalGPUs", 0)) == (2, 512, 0)
    asks = [pool.submit(gpu_job(0.5).replace("request_gpus = 1\n", line)) for line in ("", "request_gpus = 0\n")]
    until(lambda: not any(pool.jobs(each) for each in asks), what="both jobs that want no GPU are done")
    assert "CUDA_VISIBLE_DEVICES=10000\n" in (pool.dir / "jobs" / f"out.{asks[0]}.0").read_text()
    assert pool.statuses(gpu) == [1]
    assert drone.wait() == 0, drone.story()
    assert (drone.outcome["reason"], drone.outcome["jobs_ended"]) == ("idle", "2")


def test_a_drone_keeps_a_share_of_its_rest_for_each_gpu_that_is_free(pool: Pool, drone_on: StartDrone) -> None:
    four = {"DRONE_GPUS": "4", "DRONE_GPU_MILLI": "4000", "CUDA_VISIBLE_DEVICES": "0,1,2,3", "DRONE_CPUS": "8"}
    kept = {"DRONE_KEPT_CPUS": "2", "DRONE_KEPT_MEMORY_MIB": "256", "DRONE_KEPT_DISK_MIB": "100"}
    drone = drone_on(pool, "blocks-1", env={**four, **kept, "DRONE_MEMORY_MIB": "1280"})
    joined(pool, drone)
    enough = pool.file("blocks-1.enough")
    # 5 CPUs would be left for 3 GPUs; the startd would give 640 MiB; 74 MiB of disk would be left
    asked = ({"cpus": 3}, {"memory_mib": 513}, {"more": "request_disk = 950MB"})
    greedy = [pool.submit(gpu_job(until_there=enough, **each)) for each in asked]  # type: ignore[arg-type]
    refused = [{1: "no match found"}] * 3

    def told() -> list[dict[object, str]]:
        ads = [ad for cluster in greedy for ad in pool.jobs(cluster)]
        return [{ad["JobStatus"]: str(ad.get("LastRejMatchReason", "")).strip()} for ad in ads]

    until(lambda: told() == refused, what="none of them gets into the empty drone")
    pool.remove(greedy.pop())  # as the last of its jobs it might
    shares = pool.submit(gpu_job(until_there=enough, cpus=2, memory_mib=256, n=3))
    until(lambda: pool.statuses(shares) == [2, 2, 2], what="who takes his share runs")
    large = pool.submit(gpu_job(until_there=enough, cpus=2, memory_mib=512))
    until(lambda: pool.statuses(large) == [2], what="the last GPU's job may have all that is left")
    enough.touch()
    until(lambda: not pool.jobs(shares) and not pool.jobs(large), what="they are done")
    assert [pool.statuses(each) for each in greedy] == [[1], [1]], "neither between them nor after them"


def test_a_job_that_fills_more_scratch_than_its_part_is_held_and_no_other(pool: Pool, drone_on: StartDrone) -> None:
    """Nothing stopped it: the scratch directory was full, and jobs of others were held."""
    two = {"DRONE_GPUS": "2", "DRONE_GPU_MILLI": "2000", "CUDA_VISIBLE_DEVICES": "0,1", "DRONE_DISK_MIB": "80"}
    joined(pool, drone_on(pool, "scratch-1", env=two))
    enough = pool.file("scratch-1.enough")

    def writes(mib: int) -> int:
        fill = f"dd if=/dev/zero of=fill bs=1048576 count={mib} 2>/dev/null; env"
        return pool.submit(gpu_job(until_there=enough).replace("env", fill))

    greedy, modest = writes(60), writes(20)  # each asks for 1 MiB, and its part is 40
    until(lambda: pool.statuses(greedy) == [5], 120, what="the one that writes more than its part is held")
    (held,) = pool.jobs(greedy)
    assert (held["HoldReasonCode"], held["HoldReasonSubCode"]) == (21, 104), held["HoldReason"]
    assert pool.statuses(modest) == [2], "more than it asked for, and less than its part"
    enough.touch()
    until(lambda: not pool.jobs(modest), what="the other is done")


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_any_posix_shell_a_long_path_and_a_dirty_environment(
    pool: Pool, drone_on: StartDrone, shell: tuple[str, ...]
) -> None:
    deep = pool.root / f"d-{shell[0]}" / ("x" * 100)
    dirty = {
        "_CONDOR_COLLECTOR_HOST": "192.0.2.1:9618",
        "_CONDOR_START": "False",
        "_CONDOR_STARTD.START": "False",
        "_condor_NUM_CPUS": "1",
        "CONDOR_CONFIG": "/nonexistent",
        "CONDOR_INHERIT": "1 <192.0.2.1:1>",
    }
    drone = drone_on(pool, f"shell-{shell[0]}", directory=deep, env=dirty, shell=shell)
    assert joined(pool, drone)["TotalSlotCpus"] == 2
    cluster = busy(pool, drone, gpu_job(0.5))
    until(lambda: not pool.jobs(cluster), what="the job is done")
    drone.send(signal.SIGTERM)
    assert drone.wait() == 0
    assert drone.outcome["jobs_ended"] == "1"


# ---------------------------------------------------------------------------------------------- leaving when told to


def test_sigterm_gives_a_job_the_time_that_it_needs(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "term-2s", env={"DRONE_GRACE_S": "40"})
    text, diary = told_job(pool, "term-2s", needs_s=2)
    cluster = busy(pool, drone, text)
    until(lambda: diary.exists(), what="the job has begun")
    drone.send(signal.SIGTERM)
    assert drone.wait(30) == 0, drone.story()
    assert diary.read_text().split() == ["began", "TERM", "still", "still", "left"]
    assert drone.outcome["reason"] == "stopped"
    assert until(lambda: pool.statuses(cluster) in ([1], []), what="the pool has the job back")
    assert not pool.drone_slots(drone.id) or pool.condor.version.startswith("25"), "25.14.1 may leave ads behind"


def test_sigterm_kills_a_job_that_takes_longer_than_the_sites_grace(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "term-30s", env={"DRONE_GRACE_S": "10"})
    text, diary = told_job(pool, "term-30s", needs_s=30)
    cluster = busy(pool, drone, text)
    until(lambda: diary.exists(), what="the job has begun")
    drone.send(signal.SIGTERM)
    assert drone.wait(10) == 0, "it must be gone before the site kills it"
    began, told, *still = diary.read_text().split()
    assert (began, told) == ("began", "TERM")
    assert len(still) >= 4, "most of the grace is the job's"
    assert "left" not in still
    assert not drone.leftovers()
    assert until(
        lambda: pool.statuses(cluster) == [1], 60, what="the pool has the job back, at the latest by its lease"
    )


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_an_idle_drone_leaves_at_once(pool: Pool, drone_on: StartDrone, sig: signal.Signals) -> None:
    drone = drone_on(pool, f"idle-{sig.name.lower()}", env={"DRONE_GRACE_S": "60"})
    joined(pool, drone)
    drone.send(sig)
    assert drone.wait(30) == 0, "long before its grace is over"
    assert drone.outcome["reason"] == "stopped"
    assert not drone.leftovers()


def test_sigquit_does_not_wait_for_the_job(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "quit-1", env={"DRONE_GRACE_S": "60"})
    text, diary = told_job(pool, "quit-1", needs_s=30)
    cluster = busy(pool, drone, text)
    until(lambda: diary.exists(), what="the job has begun")
    drone.send(signal.SIGQUIT)
    assert drone.wait(30) == 0
    assert until(lambda: pool.statuses(cluster) == [1], what="the pool has the job back")


def test_the_pools_administrator_can_let_it_go(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "drain-1")
    name = str(joined(pool, drone)["Name"])
    cluster = busy(pool, drone, gpu_job(3))
    pool.run("condor_drain", "-graceful", "-exit-on-completion", name)
    assert drone.wait() == 0, drone.story()
    assert (drone.outcome["reason"], drone.outcome["jobs_ended"]) == ("drained", "1")
    assert pool.history(cluster)[0]["JobStatus"] == 4, "the job ended by itself"


def test_it_is_gone_by_the_end_of_its_walltime(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "wall-1", env={"DRONE_WALLTIME_S": "26", "DRONE_GRACE_S": "8", "DRONE_RETIRE_S": "9"})
    text, diary = told_job(pool, "wall-1", needs_s=1)
    cluster = busy(pool, drone, text)
    left_s = 26 - (time.monotonic() - drone.started_at)
    assert drone.wait(left_s) == 0, "it must be gone before the site ends it"
    assert drone.outcome["reason"] == "walltime"
    assert diary.read_text().split() == ["began", "TERM", "still", "left"]
    assert until(lambda: pool.statuses(cluster) in ([1], []), what="the pool has the job back")


# -------------------------------------------------------------------------------------------------------- what breaks


def test_a_killed_master_leaves_nothing_behind(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "kill-1")
    busy(pool, drone, gpu_job(600))
    [master] = [pid for pid, name in children_of(drone.process.pid).items() if name == "condor_master"]
    os.kill(master, signal.SIGKILL)
    assert drone.wait() == 74
    assert drone.outcome["reason"] == "master-died"
    assert not drone.leftovers()


def test_a_killed_startd_ends_the_drone(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "kill-3")
    busy(pool, drone, gpu_job(600))
    [master] = [pid for pid, name in children_of(drone.process.pid).items() if name == "condor_master"]
    [startd] = [pid for pid, name in children_of(master).items() if name == "condor_startd"]
    os.kill(startd, signal.SIGKILL)
    assert drone.wait() == 74, drone.story()
    assert drone.outcome["reason"] == "startd-died"
    assert not drone.leftovers()


def test_a_killed_script_leaves_nothing_behind(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "kill-2")
    busy(pool, drone, gpu_job(600))
    os.killpg(drone.process.pid, signal.SIGKILL)
    assert drone.wait(5) == -signal.SIGKILL
    assert until(lambda: not drone.leftovers(), 60, what="HTCondor and the job have gone too")


def test_a_token_that_the_pool_does_not_know(pool: Pool, drone_on: StartDrone) -> None:
    token = pool.token("drone")
    head, body, signature = token.split(".")
    drone = drone_on(pool, "token-1", env={"DRONE_JOIN_S": "5"}, token=".".join((head, body, signature[::-1])))
    assert drone.wait() == 73, drone.story()
    assert drone.outcome["reason"] == "not-joined"
    assert not drone.leftovers()


def test_a_pool_that_denies_the_drone_is_named_in_its_last_words(pool: Pool, drone_on: StartDrone) -> None:
    """The tool that asks for its slot may READ and has nothing to say: the reason was empty."""
    drone = drone_on(pool, "denied-1", env={"DRONE_JOIN_S": "8"}, token=pool.token("drone", ["READ"]))
    assert drone.wait() == 73, drone.story()
    assert drone.outcome["reason"] == "not-joined"
    assert "DENIED" in drone.outcome["why"], drone.story()


def test_a_pool_that_is_lost(new_pool: Callable[[], Pool], drone_on: StartDrone) -> None:
    pool = new_pool()
    drone = drone_on(pool, "lost-1", env={"DRONE_POOL_LOST_S": "4"})
    joined(pool, drone)
    until(lambda: "joined the pool" in drone.said, what="the drone knows that it has joined")
    pool.signal("collector", signal.SIGSTOP)
    assert drone.wait() == 75, drone.story()
    assert drone.outcome["reason"] == "pool-lost"
    assert not drone.leftovers()


def test_a_startd_that_ends_at_once(pool: Pool, drone_on: StartDrone) -> None:
    """(What is wrong with a configuration differs by version: 25 overlooks what ends a startd of 23.)"""
    drone = drone_on(pool, "broken-1", files={"extra.conf": f"{QUICK_DRONE}\nSTARTD = /bin/false\n".encode()})
    assert drone.wait() == 74, drone.story()
    assert drone.outcome["reason"] == "startd-died"
    assert len(drone.outcome["why"]) > 20, "the logs' last words"


def test_no_htcondor_where_it_was_promised(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "nowhere-1", env={"CONDOR_PREFIX": "/nonexistent"})
    assert drone.wait() == 74
    assert "no condor_master below /nonexistent" in drone.said


# ------------------------------------------------------------------------------------------------------------- checks


def test_a_failing_check_keeps_jobs_away(pool: Pool, drone_on: StartDrone) -> None:
    cluster = pool.submit(gpu_job(1))
    check = b"#!/bin/sh\necho chatter\necho 'GPU 0 has fallen off the bus'\nexit 1\n"
    drone = drone_on(pool, "check-1", files={"checks/bus.sh": check})
    assert drone.wait() == 71
    assert "drone: check bus failed: GPU 0 has fallen off the bus\n" in drone.said
    assert drone.outcome["reason"] == "check-failed"
    assert drone.outcome["why"] == "check%20bus%20failed:%20GPU%200%20has%20fallen%20off%20the%20bus"
    assert (pool.statuses(cluster), drone.outcome["jobs_started"]) == ([1], "0")
    assert not pool.drone_slots(drone.id)


def test_a_check_that_hangs_is_a_verdict(pool: Pool, drone_on: StartDrone) -> None:
    check = b"#!/bin/sh\n# limit: 2\ntrap '' TERM\nsleep 600 & sleep 600\n"
    drone = drone_on(pool, "check-2", files={"checks/slow": check})
    assert drone.wait() == 72
    assert "drone: check slow hung: no answer within 2 s\n" in drone.said
    assert drone.outcome["reason"] == "check-hung"
    assert not drone.leftovers(), "the check is gone too"


def test_sigterm_while_the_checks_run(pool: Pool, drone_on: StartDrone) -> None:
    check = b"#!/bin/sh\n# limit: 300\necho begun >$DRONE_DIR/begun\nsleep 200\n"
    drone = drone_on(pool, "check-3", files={"checks/long": check})
    until(lambda: (drone.dir / "begun").exists(), what="the check has begun")
    drone.send(signal.SIGTERM)
    assert drone.wait(60) == 0, "long before the check has ended"
    assert drone.outcome["reason"] == "stopped"
    assert not drone.leftovers(), "the check is gone too"


def test_a_drone_whose_gpu_falls_ill_takes_no_more_jobs_and_leaves(pool: Pool, drone_on: StartDrone) -> None:
    check = b"#!/bin/sh\n[ ! -e $DRONE_DIR/ill ] || { echo fever; exit 1; }\n"
    drone = drone_on(pool, "ill-1", env={"DRONE_CHECK_S": "1"}, files={"checks/health": check})
    assert until(lambda: joined(pool, drone).get("DroneHealthy") is True, what="the slot says that it is well")
    enough = pool.file("ill-1.enough")
    first = busy(pool, drone, gpu_job(until_there=enough))
    (drone.dir / "ill").touch()
    assert until(lambda: joined(pool, drone).get("DroneHealthy") is False, what="the slot says that it is ill")
    second = pool.submit(gpu_job(1))
    enough.touch()
    assert drone.wait() == 71, drone.story()
    assert drone.outcome["why"] == "check%20health%20failed:%20fever"
    assert pool.history(first)[0]["JobStatus"] == 4, "the running job was left alone"
    assert drone.outcome["jobs_started"] == "1"
    assert until(lambda: pool.statuses(second) == [1], what="the second job waits for another drone")


# ------------------------------------------------------------------------------------------------------- wrong calls


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("DRONE_ID", 'x"; START = True', "DRONE_ID has a character"),
        ("DRONE_ID", "UPPER", "DRONE_ID has a character"),
        ("DRONE_ID", "", "DRONE_ID is not set"),
        ("DRONE_ID", "a\nb", "DRONE_ID has a character"),
        ("DRONE_SITE", "$(whoami)", "DRONE_SITE has a character"),
        ("DRONE_COLLECTOR", "host:1\nSTART = True", "DRONE_COLLECTOR has a character"),
        ("DRONE_KEPT_CPUS", "1 || True", "DRONE_KEPT_CPUS has a character"),
        ("DRONE_GPUS", "many", "DRONE_GPUS has a character"),
        ("DRONE_MEMORY_MIB", "", "DRONE_MEMORY_MIB is not set"),
        ("DRONE_TOKEN_FILE", "elsewhere", "no token file elsewhere"),
        ("DRONE_DIR", "/nonexistent", "no directory /nonexistent"),
    ],
)
def test_a_wrong_call_is_refused_in_words(
    pool: Pool, drone_on: StartDrone, name: str, value: str, complaint: str
) -> None:
    directory = pool.root / "refused" / f"{abs(hash((name, value)))}"
    drone = drone_on(pool, "refused-1", env={name: value}, directory=directory)
    assert drone.wait() == 64
    assert complaint in drone.said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a drone as root")
def test_root_goes_on_as_an_ordinary_account(pool: Pool) -> None:
    drone = start_drone(pool, own("root-1"), SCRIPT, as_root=True)
    try:
        joined(pool, drone)
        busy(pool, drone, gpu_job(600))
        uids = {os.stat(f"/proc/{pid}").st_uid for pid in processes_with(f"PROVISIONER_DRONE_ID={drone.id}\0")}
        assert uids == {pool.account.uid}
    finally:
        drone.stop()
    assert not drone.leftovers()


def test_the_script_as_it_lies_in_the_source_accepts_nothing(pool: Pool, condor: Condor) -> None:
    source = Path(__file__).parents[2] / "provisioner/drone/condor_drone.sh"
    drone = start_drone(pool, own("raw-1"), source.read_bytes())
    assert drone.wait() == 71
