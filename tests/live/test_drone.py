"""The HTCondor drone against real daemons: it joins, serves, and leaves nothing behind (``drone_on`` looks)."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from urllib.parse import unquote

import pytest

from tests.labs import htcondor
from tests.labs.htcondor import LOOPBACK, Diary, DroneProcess, Pool, StartDrone, gpu_job, until

SHELLS = [
    shell for shell in (("dash",), ("bash", "--posix"), ("busybox", "sh")) if shutil.which(shell[0])
]


def busy(pool: Pool, text: str) -> int:
    """Submit a job and wait until it runs."""
    cluster = pool.submit(text)
    until(lambda: pool.statuses(cluster) == [2], 60, what=f"job {cluster} runs")
    return cluster


def ends(drone: DroneProcess, code: int, reason: str) -> None:
    """The drone ends by itself, with all its processes."""
    assert drone.wait() == code, drone.story()
    assert drone.outcome["reason"] == reason
    assert not drone.leftovers()


# ----------------------------------------------------------------------------------------------------
# a whole life


def test_a_drone_joins_runs_gpu_jobs_and_leaves_when_idle(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(
        pool, "life-1", env={"DRONE_IDLE_S": "4", "DRONE_CPUS": "3", "DRONE_GPUS": "2"}, files={}
    )
    assert drone.wait() == 71, "one device is visible, two were promised"
    assert "finds 1 of 2 GPUs" in drone.said

    without_gpu = pool.submit(gpu_job().replace("request_gpus = 1\n", ""))
    gpu = pool.submit(gpu_job(1))
    two_gpus = {"DRONE_GPUS": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    drone = drone_on(pool, "life-2", env={"DRONE_IDLE_S": "4", "DRONE_CPUS": "3", **two_gpus})
    slot = drone.slot(pool)
    assert (slot["DroneId"], slot["SiteName"], slot["DroneType"]) == (drone.id, "lab", "a100")
    assert (slot["TotalSlotCpus"], slot["TotalSlotMemory"]) == (3, 512)
    assert (slot["TotalSlotGPUs"], slot["GPUs_Capability"], slot["GPUs_DeviceName"]) == (
        2,
        8.0,
        "A100-SXM4-40GB",
    )
    assert slot["TotalSlotDisk"] == 1024 * 1024
    assert slot["AuthenticatedIdentity"] == f"drone@{pool.domain}"
    tokens = drone.dir / "condor/etc/tokens"
    assert tokens.stat().st_mode & 0o777 == 0o700
    assert 3500 < int(str(slot["DroneEndsAt"])) - time.time() <= 3600

    until(lambda: not pool.jobs(gpu), what="the GPU job is done")
    printed = (pool.dir / "jobs" / f"out.{gpu}.0").read_text()
    assert f"PROVISIONER_DRONE_ID={drone.id}\n" in printed
    assert "CUDA_VISIBLE_DEVICES=GPU-" in printed
    assert until(
        lambda: drone.slot(pool)["JobStarts"] == 1, what="the slot tells how many jobs it started"
    )
    assert pool.statuses(without_gpu) == [1], "a job that wants no GPU must not take a GPU's place"

    assert drone.wait() == 0, drone.story()
    outcome = drone.outcome
    assert (outcome["drone"], outcome["exit"], outcome["reason"]) == (drone.id, "0", "idle")
    assert (outcome["jobs_started"], outcome["jobs_ended"]) == ("1", "1")
    assert until(lambda: not pool.drone_slots(drone.id), what="the slot has left the pool")
    assert not drone.leftovers()
    assert {path.name for path in drone.dir.iterdir()} == {"outcome", "log", "drone.sh"}


def test_a_job_that_says_it_takes_longer_than_the_drone_lives_is_not_taken(
    pool: Pool, drone_on: StartDrone
) -> None:
    drone = drone_on(pool, "fits-1", env={"DRONE_WALLTIME_S": "600", "DRONE_RETIRE_S": "60"})
    drone.slot(pool)
    long = [
        pool.submit(gpu_job(1, more=more))
        for more in (
            "allowed_job_duration = 3600",
            "allowed_execute_duration = 595",
            "+MaxWallTimeMins = 20",
        )
    ]
    short = pool.submit(gpu_job(1, more="allowed_execute_duration = 300"))
    until(lambda: not pool.jobs(short), what="the short job is done")
    assert [pool.statuses(each) for each in long] == [[1], [1], [1]]


@pytest.mark.parametrize(
    "more", ["gpus_minimum_memory = 30000", "require_gpus = GlobalMemoryMb >= 30000"]
)
def test_at_first_it_takes_only_jobs_of_the_vram_that_it_was_started_for(
    pool: Pool, drone_on: StartDrone, more: str
) -> None:
    others = [
        pool.submit(gpu_job(0.5, more=less))
        for less in (
            "",
            "gpus_minimum_memory = 20000",
            "require_gpus = GlobalMemoryMb >= 20000 && Capability >= 7.0",
        )
    ]
    drone = drone_on(pool, "kept-1", env={"DRONE_JOB_FILTER": "first_vram_mib=30000 first_s=600"})
    drone.slot(pool)
    large = pool.submit(gpu_job(0.5, more=more))
    until(
        lambda: drone.ended_jobs() == 4,
        what="the older ones run once its job is done, long before the time is over",
    )
    first, *rest = sorted(
        (large, *others), key=lambda each: int(pool.history(each)[0]["JobStartDate"])
    )
    assert (first, set(rest)) == (large, set(others)), "older, but kept out"


def test_it_takes_all_jobs_that_fit_once_a_first_job_has_ended(
    pool: Pool, drone_on: StartDrone
) -> None:
    enough = pool.file("kept-3.enough")
    small = pool.submit(gpu_job(until_there=enough, n=2))
    two = {"DRONE_GPUS": "2", "DRONE_GPU_MILLI": "2000", "CUDA_VISIBLE_DEVICES": "0,1"}
    drone = drone_on(pool, "kept-3", env={**two, "DRONE_JOB_FILTER": "first_gpus=2 first_s=600"})
    drone.slot(pool)
    large = pool.submit(gpu_job(0.5, gpus=2))
    until(lambda: not pool.jobs(large), what="the job that it is kept for is done")
    until(lambda: pool.statuses(small) == [2, 2], what="both GPUs have a small job at once")
    enough.touch()
    until(lambda: drone.ended_jobs() == 3, what="all jobs are done")


def test_it_takes_all_jobs_once_its_time_is_over(pool: Pool, drone_on: StartDrone) -> None:
    plain = pool.submit(gpu_job(0.5))
    drone = drone_on(pool, "kept-2", env={"DRONE_JOB_FILTER": "first_vram_mib=30000 first_s=1"})
    drone.slot(pool)
    until(lambda: not pool.jobs(plain), what="it runs although no larger one has come")


def test_it_takes_no_jobs_of_excluded_users(pool: Pool, drone_on: StartDrone) -> None:
    excluded, other = pool.submit(gpu_job(0.5)), pool.submit(gpu_job(0.5), identity="admin")
    (user,) = {str(ad["Owner"]) for ad in pool.jobs(excluded)}
    drone = drone_on(
        pool, "excludes-1", env={"DRONE_JOB_FILTER": f"excluded_users=somebody,{user}"}
    )
    until(lambda: not pool.jobs(other), what="the job of another user is done")
    until(lambda: drone.ended_jobs() == 1, what="the drone has noted it")
    assert pool.statuses(excluded) == [1], "older, but kept out"

    after = drone_on(
        pool, "excludes-2", env={"DRONE_JOB_FILTER": f"excluded_users=somebody,{user[1:]},{user}s"}
    )
    until(lambda: not pool.jobs(excluded), what="it runs in a drone that takes it")
    until(lambda: after.ended_jobs() == 1, what="that drone has noted it")
    assert drone.ended_jobs() == 1, "not in the one that excludes its user"


def test_a_drone_for_large_jobs_takes_no_small_ones(pool: Pool, drone_on: StartDrone) -> None:
    small, large = pool.submit(gpu_job(0.5)), pool.submit(gpu_job(0.5, gpus=2))
    two = {"DRONE_GPUS": "2", "DRONE_GPU_MILLI": "2000", "CUDA_VISIBLE_DEVICES": "0,1"}
    drone = drone_on(pool, "min-gpus-1", env={**two, "DRONE_JOB_FILTER": "min_gpus=2"})
    until(lambda: not pool.jobs(large), what="the job of two GPUs is done")
    until(lambda: drone.ended_jobs() == 1, what="the drone has noted it")
    assert pool.statuses(small) == [1], "older, but kept out"

    after = drone_on(pool, "min-gpus-2")
    until(lambda: not pool.jobs(small), what="it runs in a drone of one GPU")
    until(lambda: after.ended_jobs() == 1, what="that drone has noted it")
    assert drone.ended_jobs() == 1, "not in the one that refuses it"


def test_a_drone_keeps_a_share_of_its_rest_for_each_gpu_that_is_free(
    pool: Pool, drone_on: StartDrone
) -> None:
    four = {
        "DRONE_GPUS": "4",
        "DRONE_GPU_MILLI": "4000",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
        "DRONE_CPUS": "8",
    }
    kept = {"DRONE_KEPT_CPUS": "2", "DRONE_KEPT_MEMORY_MIB": "256", "DRONE_KEPT_DISK_MIB": "100"}
    drone = drone_on(pool, "blocks-1", env={**four, **kept, "DRONE_MEMORY_MIB": "1280"})
    drone.slot(pool)
    enough = pool.file("blocks-1.enough")
    # 5 CPUs would be left for 3 GPUs; the startd would give 640 MiB; 74 MiB of disk would be left
    asked = ({"cpus": 3}, {"memory_mib": 513}, {"more": "request_disk = 950MB"})
    greedy = [pool.submit(gpu_job(until_there=enough, **each)) for each in asked]
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
    assert [pool.statuses(each) for each in greedy] == [[1], [1]], (
        "neither between them nor after them"
    )


def test_a_job_that_fills_more_scratch_than_its_part_is_held_and_no_other(
    pool: Pool, drone_on: StartDrone
) -> None:
    """Nothing stopped it: the scratch directory was full, and jobs of others were held."""
    two = {
        "DRONE_GPUS": "2",
        "DRONE_GPU_MILLI": "2000",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "DRONE_DISK_MIB": "80",
    }
    drone_on(pool, "scratch-1", env=two).slot(pool)
    enough = pool.file("scratch-1.enough")

    def writes(mib: int) -> int:
        fill = f"dd if=/dev/zero of=fill bs=1048576 count={mib} 2>/dev/null; env"
        return pool.submit(gpu_job(until_there=enough).replace("env", fill))

    greedy, modest = writes(60), writes(20)  # each asks for 1 MiB, and its part is 40
    until(
        lambda: pool.statuses(greedy) == [5],
        120,
        what="the one that writes more than its part is held",
    )
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
    assert drone.slot(pool)["TotalSlotCpus"] == 2
    cluster = busy(pool, gpu_job(0.5))
    until(lambda: not pool.jobs(cluster), what="the job is done")
    drone.send(signal.SIGTERM)
    assert drone.wait() == 0
    assert drone.outcome["jobs_ended"] == "1"


# ----------------------------------------------------------------------------------------------
# leaving when told to


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_an_idle_drone_leaves_at_once(
    pool: Pool, drone_on: StartDrone, sig: signal.Signals
) -> None:
    drone = drone_on(pool, f"idle-{sig.name.lower()}", env={"DRONE_GRACE_S": "60"})
    drone.slot(pool)
    drone.send(sig)
    assert drone.wait(30) == 0, "long before its grace is over"
    ends(drone, 0, "stopped")


STAYS = "trap : TERM\nsay began\nwhile :; do sleep 0.2; done\n"


def test_sigquit_does_not_wait_for_the_job(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "quit-1", env={"DRONE_GRACE_S": "60"})
    diary = Diary(pool, "quit-1")
    cluster = busy(pool, gpu_job(program=diary.program(STAYS)))
    until(diary.lines, what="the job has begun")
    drone.send(signal.SIGQUIT)
    assert drone.wait(30) == 0
    until(lambda: pool.statuses(cluster) == [1], what="the pool has the job back")


def test_the_pools_administrator_can_let_it_go(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "drain-1")
    name = drone.slot(pool)["Name"]
    cluster = busy(pool, gpu_job(3))
    pool.run("condor_drain", "-graceful", "-exit-on-completion", name)
    ends(drone, 0, "drained")
    assert drone.outcome["why"].startswith("by%20condor_drain%20from%20<"), (
        "an address, nobody's name"
    )
    assert drone.outcome["jobs_ended"] == "1"
    assert pool.history(cluster)[0]["JobStatus"] == 4, "the job ended by itself"


QUIET = {"extra.conf": LOOPBACK.encode()}
"""The intervals of a drone in production, where a startd without a claim looks every two minutes whether it may go."""


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_drained_drone_leaves_as_soon_as_it_has_no_claim(
    pool: Pool, drone_on: StartDrone, jobs: int
) -> None:
    drone = drone_on(pool, f"drained-{jobs}", files=QUIET)
    name = drone.slot(pool)["Name"]
    until(lambda: drone.slot(pool)["DroneReady"], what="it takes jobs")
    clusters = [busy(pool, gpu_job(3)) for _ in range(jobs)]
    pool.run("condor_drain", "-graceful", "-exit-on-completion", name)
    until(lambda: not pool.jobs(), what="it has no claim")
    assert drone.wait(40) == 0, "long before the two minutes are over"
    ends(drone, 0, "drained")
    assert [pool.history(each)[0]["JobStatus"] for each in clusters] == [4] * jobs, (
        "the job ended by itself"
    )


def test_a_drone_that_nobody_drains_leaves_when_its_idle_time_is_over(
    pool: Pool, drone_on: StartDrone
) -> None:
    drone = drone_on(pool, "idle-1", files=QUIET, env={"DRONE_IDLE_S": "5"})
    until(lambda: drone.slot(pool)["DroneReady"], what="it takes jobs")
    assert drone.wait(50) == 0, "long before the two minutes are over"
    ends(drone, 0, "idle")


def test_a_drone_that_is_drained_to_stay_takes_jobs_again(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(pool, "stays-1", files=QUIET)
    name = drone.slot(pool)["Name"]
    until(lambda: drone.slot(pool)["DroneReady"], what="it takes jobs")
    pool.run("condor_drain", "-graceful", name)
    hurried = drone.dir / "condor/etc/config.d/91-leaving"
    until(hurried.exists, what="it looks whether it may leave")
    until(lambda: not hurried.exists(), what="it has its own interval again")
    pool.run("condor_drain", "-cancel", name)
    busy(pool, gpu_job(1))


def test_it_is_gone_by_the_end_of_its_walltime(pool: Pool, drone_on: StartDrone) -> None:
    drone = drone_on(
        pool, "wall-1", env={"DRONE_WALLTIME_S": "26", "DRONE_GRACE_S": "8", "DRONE_RETIRE_S": "9"}
    )
    diary = Diary(pool, "wall-1")
    program = diary.program(
        "trap 'say told; sleep 1; say left; exit 0' TERM\nsay began\nwhile :; do sleep 0.2; done\n"
    )
    cluster = busy(pool, gpu_job(program=program))
    assert drone.wait(26 - (time.monotonic() - drone.started_at)) == 0, (
        "it must be gone before the site ends it"
    )
    assert drone.outcome["reason"] == "walltime"
    assert diary.said() == ["began", "told", "left"]
    until(lambda: pool.statuses(cluster) in ([1], []), what="the pool has the job back")


# --------------------------------------------------------------------------------------------------------
# what breaks


@pytest.mark.parametrize(
    ("what", "reason"), [("master", "master-died"), ("startd", "startd-died"), ("script", "")]
)
def test_what_is_killed_leaves_nothing_behind(
    pool: Pool, drone_on: StartDrone, what: str, reason: str
) -> None:
    drone = drone_on(pool, f"kill-{what}")
    busy(pool, gpu_job(600))
    [master] = [
        pid
        for pid, name in htcondor.children_of(drone.process.pid).items()
        if name == "condor_master"
    ]
    if what == "script":
        os.killpg(drone.process.pid, signal.SIGKILL)
        assert drone.wait(5) == -signal.SIGKILL
        until(lambda: not drone.leftovers(), 60, what="HTCondor and the job have gone too")
    else:
        os.kill(master if what == "master" else drone.startd(), signal.SIGKILL)
        ends(drone, 74, reason)


def test_a_token_that_the_pool_does_not_know(pool: Pool, drone_on: StartDrone) -> None:
    head, body, signature = pool.token("drone").split(".")
    ends(
        drone_on(
            pool, "token-1", env={"DRONE_JOIN_S": "5"}, token=f"{head}.{body}.{signature[::-1]}"
        ),
        73,
        "not-joined",
    )


def test_a_pool_that_denies_the_drone_is_named_in_its_last_words(
    pool: Pool, drone_on: StartDrone
) -> None:
    """The tool that asks for its slot may READ and has nothing to say: the reason was empty."""
    drone = drone_on(
        pool, "denied-1", env={"DRONE_JOIN_S": "8"}, token=pool.token("drone", ["READ"])
    )
    ends(drone, 73, "not-joined")
    assert "DENIED" in drone.outcome["why"], drone.story()


def test_a_pool_that_is_lost(new_pool: Callable[[], Pool], drone_on: StartDrone) -> None:
    pool = new_pool()
    drone = drone_on(pool, "lost-1", env={"DRONE_POOL_LOST_S": "4"})
    until(lambda: "joined the pool" in drone.said, 60, what="the drone knows that it has joined")
    pool.signal("collector", signal.SIGSTOP)
    ends(drone, 75, "pool-lost")


def test_a_startd_that_ends_at_once(pool: Pool, drone_on: StartDrone) -> None:
    """(What is wrong with a configuration differs by version: 25 overlooks what ends a startd of 23.)"""
    drone = drone_on(
        pool,
        "broken-1",
        files={"extra.conf": f"{htcondor.QUICK_DRONE}\nSTARTD = /bin/false\n".encode()},
    )
    ends(drone, 74, "startd-died")
    assert len(drone.outcome["why"]) > 20, "the logs' last words"


# -------------------------------------------------------------------------------------------------------------
# checks


@pytest.mark.parametrize(
    ("check", "code", "verdict"),
    [
        (
            "echo chatter\necho 'GPU 0 has fallen off the bus'\nexit 1",
            71,
            "failed: GPU 0 has fallen off the bus",
        ),
        ("# limit: 2\ntrap '' TERM\nsleep 600 & sleep 600", 72, "hung: no answer within 2 s"),
    ],
    ids=["fails", "hangs"],
)
def test_a_check_that_is_not_passed_keeps_jobs_away(
    pool: Pool, drone_on: StartDrone, check: str, code: int, verdict: str
) -> None:
    cluster = pool.submit(gpu_job(1))
    drone = drone_on(
        pool, f"check-{code}", files={"checks/bus.sh": f"#!/bin/sh\n{check}\n".encode()}
    )
    ends(drone, code, f"check-{verdict.partition(':')[0]}")
    assert f"drone: check bus {verdict}\n" in drone.said
    assert drone.outcome["why"] == f"check bus {verdict}".replace(" ", "%20")
    assert (pool.statuses(cluster), drone.outcome["jobs_started"]) == ([1], "0")


def test_sigterm_while_the_checks_run(pool: Pool, drone_on: StartDrone) -> None:
    check = b"#!/bin/sh\n# limit: 300\necho begun >$DRONE_DIR/begun\nsleep 200\n"
    drone = drone_on(pool, "check-3", files={"checks/long": check})
    until((drone.dir / "begun").exists, what="the check has begun")
    drone.send(signal.SIGTERM)
    ends(drone, 0, "stopped")


def test_a_drone_whose_gpu_falls_ill_takes_no_more_jobs_and_leaves(
    pool: Pool, drone_on: StartDrone
) -> None:
    check = b"#!/bin/sh\n[ ! -e $DRONE_DIR/ill ] || { echo fever; exit 1; }\n"
    drone = drone_on(pool, "ill-1", env={"DRONE_CHECK_S": "1"}, files={"checks/health": check})
    until(
        lambda: drone.slot(pool).get("DroneHealthy") is True, what="the slot says that it is well"
    )
    enough = pool.file("ill-1.enough")
    first = busy(pool, gpu_job(until_there=enough))
    (drone.dir / "ill").touch()
    until(
        lambda: drone.slot(pool).get("DroneHealthy") is False, what="the slot says that it is ill"
    )
    second = pool.submit(gpu_job(1))
    enough.touch()
    assert drone.wait() == 71, drone.story()
    assert drone.outcome["why"] == "check%20health%20failed:%20fever"
    assert pool.history(first)[0]["JobStatus"] == 4, "the running job was left alone"
    assert drone.outcome["jobs_started"] == "1"
    until(lambda: pool.statuses(second) == [1], what="the second job waits for another drone")


# -------------------------------------------------------------------------------------------------------
# wrong calls


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("DRONE_ID", 'x"; START = True', "DRONE_ID has a character"),
        ("DRONE_ID", "", "DRONE_ID is not set"),
        ("DRONE_SITE", "$(whoami)", "DRONE_SITE has a character"),
        ("DRONE_COLLECTOR", "host:1\nSTART = True", "DRONE_COLLECTOR has a character"),
        ("DRONE_KEPT_CPUS", "1 || True", "DRONE_KEPT_CPUS has a character"),
        ("DRONE_JOB_FILTER", "min_gpus=2;START", "DRONE_JOB_FILTER has a character"),
        ("DRONE_JOB_FILTER", "min_gpus=two", "rule_min_gpus has a character"),
        ("DRONE_JOB_FILTER", "min_gpus", "DRONE_JOB_FILTER has a rule without a value: min_gpus"),
        ("DRONE_GPUS", "many", "DRONE_GPUS has a character"),
        ("DRONE_TOKEN_FILE", "elsewhere", "no token file elsewhere"),
        ("DRONE_DIR", "/nonexistent", "no directory /nonexistent"),
    ],
)
def test_a_wrong_call_is_refused_in_words(
    pool: Pool, drone_on: StartDrone, name: str, value: str, complaint: str
) -> None:
    drone = drone_on(pool, "refused-1", env={name: value})
    assert drone.wait() == 64
    assert complaint in drone.said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a drone as root")
def test_root_goes_on_as_an_ordinary_account(pool: Pool) -> None:
    drone = htcondor.start_drone(pool, htcondor.own("root-1"), as_root=True)
    try:
        drone.slot(pool)
        busy(pool, gpu_job(600))
        assert {os.stat(f"/proc/{pid}").st_uid for pid in htcondor.processes_of(drone.id)} == {
            pool.account.uid
        }
    finally:
        drone.stop()
    assert not drone.leftovers()


@pytest.mark.parametrize(
    ("authz", "lifetime_s", "words"),
    [(htcondor.IDENTITIES["drone"], 1, "its token expired at 20"), (["READ"], None, "DENIED")],
    ids=["expired", "denied"],
)
def test_a_drone_that_the_pool_refuses_says_so_long_before_the_join_limit(
    pool: Pool, drone_on: StartDrone, authz: list[str], lifetime_s: int | None, words: str
) -> None:
    """It held its GPU for five minutes, and its last words were cut before HTCondor's own reason."""
    token, issued_at = pool.token("drone", authz, lifetime_s), time.time()
    until(lambda: lifetime_s is None or time.time() > issued_at + 2, what="the token has expired")
    drone = drone_on(pool, f"refused-{lifetime_s or 0}", token=token)
    assert drone.wait(60) == 73, drone.story()
    why = unquote(drone.outcome["why"])
    assert why.startswith("refused by the pool ") and words in why[:200]
