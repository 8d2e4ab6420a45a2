"""The main job, end to end: drones start for waiting GPU jobs in a real pool, run them and leave."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.labs.controller import SMALL, LabController
from tests.labs.htcondor import Pool, gpu_job, processes_of, until

pytestmark = pytest.mark.timeout(840)

DEAD_FOR_15_S = "MASTER_BACKOFF_CONSTANT = 15\nJOB_DEFAULT_LEASE_DURATION = 600\n"
"""So long the pool's master waits before it starts a killed daemon anew; the jobs outlive that."""


def test_idle_jobs_become_drones_run_and_the_drones_go_again(
    lab: tuple[Pool, LabController],
) -> None:
    pool, controller = lab
    controller.start()
    plain = pool.submit(gpu_job(12, n=6))
    big = pool.submit(gpu_job(12, more="gpus_minimum_memory = 30000", n=6))
    never = pool.submit(gpu_job(12, more="require_gpus = Capability >= 9.5", n=6))
    until(lambda: len(controller.drones()) >= 12, what="all the drones that the jobs need")
    until(
        lambda: not pool.jobs(plain) and not pool.jobs(big),
        240,
        what="all matchable jobs done",
        every_s=1,
    )
    assert len(pool.history(plain)) == len(pool.history(big)) == 6

    assert set(pool.statuses(never)) == {1}
    told = controller.prints("explain", "job", f"{never}.0")
    assert "capability" in told.lower() and "9.5" in told, told

    controller.all_gone(pool.slots)
    kinds = Counter(d["type"] for d in controller.drones())
    assert kinds == {"big/a100": 6, "small/v100": 6}, (
        "exactly the drones needed, none for the third class"
    )
    assert set(controller.states()) <= {"done", "unused"}, controller.states()


def test_without_idle_jobs_no_drone_is_ever_started(lab: tuple[Pool, LabController]) -> None:
    pool, controller = lab
    controller.start()
    controller.ticks(10)
    assert controller.drones() == [] and not pool.slots()
    assert not controller.processes()


@pytest.mark.matrix
@pytest.mark.parametrize("daemon", ["collector", "schedd"])
@pytest.mark.parametrize("lab", [DEAD_FOR_15_S], indirect=True, ids=["30s"])
def test_a_silent_then_dead_daemon_changes_nothing_but_the_age_of_the_view(
    lab: tuple[Pool, LabController], daemon: str
) -> None:
    """Half of the time stopped, then killed: no drone is started or stopped because of it."""
    pool, controller = lab
    controller.idle_s = 600
    controller.start()
    flag = pool.file("enough")
    job = pool.submit(gpu_job(n=2, until_there=flag))
    until(lambda: pool.statuses(job) == [2, 2], 120, what="two jobs running")
    controller.settles({"busy": 2})
    before = {d["id"] for d in controller.live()}

    def nothing_changes(for_s: float) -> None:
        limit = time.monotonic() + for_s
        while time.monotonic() < limit:
            assert {d["id"] for d in controller.drones()} == before, "nothing started"
            assert {d["id"] for d in controller.live()} == before, "nothing stopped"
            time.sleep(1)

    def overlay_failed() -> bool:
        overlay = controller.overlay()
        return bool(overlay["fault"]) and overlay["age_s"] >= 5

    first = pool.daemon(daemon)
    pool.submit(gpu_job(1, more="requirements = false"))  # waits, and asks for nothing
    logged = len(controller.log())
    pool.signal(daemon, signal.SIGSTOP)
    nothing_changes(15)
    until(overlay_failed, 30, what="status says that the view failed, and how old it is")
    pool.signal(daemon, signal.SIGKILL)
    nothing_changes(15)
    # The pool's master starts the daemon anew; the controller goes on.
    until(lambda: pool.daemon(daemon) != first, 60, what=f"another {daemon}")
    until(lambda: not controller.overlay()["fault"], 90, what="a fresh view again", every_s=0.5)
    lag_ms = controller.lag_ms(logged)
    more = pool.submit(gpu_job(1))
    until(lambda: not pool.jobs(more), 150, what="a job submitted after the return", every_s=0.5)
    until(lambda: pool.statuses(job) == [2, 2], 60, what="the old jobs going on")
    assert before <= {d["id"] for d in controller.live()}
    assert len(controller.drones()) == 3, "one more, for the new job"
    flag.touch()
    flag.chmod(0o644)
    until(lambda: not pool.jobs(job), 60, what="the old jobs are done")
    assert [ad["JobStatus"] for ad in pool.history(job)] == [4, 4]
    # whether jobs outlive a schedd that was killed is between HTCondor and its leases
    if daemon == "collector":
        assert len(Path(f"{flag}.starts").read_text().split()) == 2, "not started anew"
    # A busy host holds up every process for a moment, ours too; a blocking call would do it for the
    # deadline of 5 s.
    assert lag_ms < 4000


def test_a_drone_that_never_joins_frees_its_gpu_and_says_why(
    lab: tuple[Pool, LabController],
) -> None:
    pool, controller = lab
    controller.sites = (SMALL,)
    controller.write()
    # A signature that check cannot judge, and that the pool refuses.
    token = controller.directory / "drone.token"
    token.write_text(f"{token.read_text().rpartition('.')[0]}.{'A' * 43}\n")
    controller.start(write=False)
    job = pool.submit(gpu_job(1))
    [drone] = until(controller.live, what="the drone is asked for")
    until(lambda: processes_of(drone["id"]), what="the drone runs")
    ended = {
        d["id"]: d["state"]
        for d in until(lambda: controller.drones(ended=True), 120, what="the drone given up")
    }
    assert ended == {drone["id"]: "join-timeout"}
    assert not processes_of(drone["id"]), "its GPU is free"
    assert not pool.slots()
    life = controller.json("drones", "show", drone["id"])["history"]
    [why] = [step["reason"] for step in life if step["reason"]["kind"] == "ended-at-site"]
    assert "refused by the pool" in unquote(why["message"]), why
    assert pool.statuses(job) == [1]
