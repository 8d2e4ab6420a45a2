"""The lab itself: a pool comes up, takes jobs by token alone, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.labs.htcondor import Condor, LabError, Pool, gpu_job, lab_directory, living_in, running_pool, until


def test_a_pool_takes_jobs_of_those_it_knows_and_of_nobody_else(overlay_pool: Pool) -> None:
    cluster = overlay_pool.submit(gpu_job(cpus=8, more="require_gpus = Capability >= 7.0"))
    [job] = overlay_pool.jobs(cluster)
    assert (job["Owner"], job["JobStatus"], job["RequestGPUs"], job["RequestCpus"]) == ("alice", 1, 1, 8)
    for stranger in ("reader", "drone"):
        with pytest.raises(LabError):
            overlay_pool.submit(gpu_job(), identity=stranger)
    overlay_pool.remove(cluster)
    until(lambda: not overlay_pool.jobs(cluster), what="the job has left the queue")


def test_a_daemon_can_be_stopped_and_brought_back(overlay_pool: Pool) -> None:
    overlay_pool.signal("collector", signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        overlay_pool.run("condor_status", timeout_s=1)
    overlay_pool.signal("collector", signal.SIGCONT)
    until(lambda: overlay_pool.run("condor_status", "-schedd", "-af", "Name"), what="the collector answers again")


def test_nothing_is_left_of_a_pool(condor: Condor) -> None:
    with running_pool(condor, "short") as pool:
        root = pool.root
        assert living_in(root)
        if os.geteuid() == 0:
            assert {os.stat(f"/proc/{pid}").st_uid for pid in living_in(root)} == {pool.account.uid} != {0}
    assert not living_in(root)
    assert not root.exists()


def test_a_process_that_stays_behind_fails_the_test_and_is_ended() -> None:
    with pytest.raises(AssertionError, match="left behind"), lab_directory("stays") as root:
        stays = subprocess.Popen(["sleep", "600"], cwd=root)
    assert stays.wait(5) == -signal.SIGKILL
