"""One user's jobs, or one stranger's schedd, never stop what others get: with real daemons and the whole controller."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.model import OverlayView
from tests.htcondor_overlay.live import A100, classes_of, overlay_on, seen
from tests.labs.controller import BIG, LabController
from tests.labs.htcondor import Pool, children_of, gpu_job, lab_directory, running, until

ONLY_THE_TEMPLATE = 'requirements = TARGET.Name == "slot1@template"'
"""True for what the planner believes a slot to be, and for no slot."""


@pytest.mark.matrix
def test_jobs_that_match_no_drone_leave_the_type_to_all_others(
    lab: tuple[Pool, LabController],
) -> None:
    """A parallel job, a job of the scheduler universe as DAGMan is one, and a job that only the template takes."""
    pool, controller = lab
    controller.sites = [replace(BIG, most=3)]
    controller.idle_s = 4
    odd = [
        pool.submit("universe = parallel\nmachine_count = 2\n" + gpu_job(600)),
        pool.submit("universe = scheduler\n" + gpu_job(600)),
        pool.submit(gpu_job(600, more=ONLY_THE_TEMPLATE, n=2), identity="admin"),
    ]
    controller.start()

    def reasons() -> set[str]:
        rows = controller.json("demand")["items"]
        return {reason["kind"] for row in rows for reason in row["reasons"]}

    until(
        lambda: {"bad-request", "starts-unmatched"} <= reasons(),
        150,
        what="both reasons",
        every_s=1,
    )
    plain = [pool.submit(gpu_job(1, n=3)), pool.submit(gpu_job(1, n=2), identity="admin")]
    until(
        lambda: not any(map(pool.jobs, plain)), 180, what="plain jobs of two users done", every_s=1
    )
    site = controller.site_row()
    assert site["breaker"] == "active" and "banned" not in site["note"], site["note"]
    assert "backs off on big/a100" in site["note"], site["note"]
    assert not {"failed", "lost", "join-timeout"} & set(controller.states()), controller.states()
    for cluster, user in zip(odd, ("alice", "alice", "admin"), strict=True):
        pool.remove(cluster, user)


FLOCKS = """
NETWORK_HOSTNAME = login.etp.test
SCHEDD_NAME = login@etp.test
FLOCK_TO = {collector}
FLOCK_INCREMENT = 2
"""


async def test_a_schedd_of_others_that_flocks_here_and_denies_reading_is_left_out(
    new_pool: Callable[[], Pool],
) -> None:
    pool = new_pool()
    with lab_directory("etp") as root:
        other = Pool(root, pool.condor, "etp", config=FLOCKS.format(collector=pool.collector))
        other.write_token("own", other.dir / "etc/tokens", pool.token("condor"))
        pool.submit(gpu_job(n=2))
        with running(other):
            other.submit(gpu_job(n=5))
            names = ("condor_status", "-schedd", "-af", "Name")
            await asyncio.to_thread(
                until, lambda: "login@etp.test" in pool.run(*names), 120, what="the other schedd"
            )
            async with overlay_on(pool) as overlay:
                view = await overlay.poll([A100])
                assert idle(view) == 2
                (notice,) = [
                    each for each in view.notices if "login@etp.test" in each and "left out" in each
                ]
                assert "`schedds`" in notice


SECOND = """
DAEMON_LIST = $(DAEMON_LIST) SCHEDD2
DC_DAEMON_LIST = +SCHEDD2
SCHEDD2 = $(SCHEDD)
SCHEDD2_ARGS = -local-name schedd2
SCHEDD2.SCHEDD_NAME = second@own.test
SCHEDD2.SCHEDD_LOG = $(LOG)/SecondSchedLog
SCHEDD2.SPOOL = $(EXECUTE)
SCHEDD2.JOB_QUEUE_LOG = $(EXECUTE)/job_queue.log
SCHEDD2.HISTORY = $(EXECUTE)/history
SCHEDD2.SCHEDD_ADDRESS_FILE = $(EXECUTE)/.schedd_address
SCHEDD2.SCHEDD_DAEMON_AD_FILE = $(EXECUTE)/.schedd_ad
MASTER_BACKOFF_CONSTANT = 3600
"""
"""Another schedd of the pool. A daemon that was killed is not started again."""


def second_schedd(pool: Pool) -> int:
    """The pid of the other schedd."""
    assert pool.process is not None
    for pid, name in children_of(pool.process.pid).items():
        if name == "condor_schedd" and b"-local-name" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("no second schedd")


def idle(view: OverlayView) -> int:
    return sum(each.waiting + each.fresh for each in classes_of(view))


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize(
    "named", [pytest.param(False, marks=pytest.mark.matrix), True], ids=["any", "named"]
)
async def test_a_schedd_that_falls_silent_leaves_the_view_partial(
    new_pool: Callable[[str], Pool], how: signal.Signals, named: bool
) -> None:
    pool = new_pool(SECOND)

    def both() -> list[str] | None:
        names = pool.run("condor_status", "-schedd", "-af", "Name").split()
        return sorted(names) if len(names) == 2 else None

    listed = await asyncio.to_thread(until, both, 60, what="both schedds")
    pool.submit(gpu_job(n=2))
    pool.run("condor_submit", "-name", "second@own.test", "-", identity="alice", stdin=gpu_job(n=5))
    async with overlay_on(pool, **({"schedds": listed} if named else {})) as overlay:
        view = await seen(overlay, lambda view: idle(view) == 7)
        assert view.unheard == ()
        schedd = second_schedd(pool)
        os.kill(schedd, how)
        view = await seen(overlay, lambda view: view.unheard == ("second@own.test",), 90)
        assert idle(view) == 7, "its jobs count as they were"
        (notice,) = [
            each for each in view.notices if "second@own.test" in each and "done" not in each
        ]
        assert "its jobs count as they were less than a minute ago" in notice
        pool.submit(gpu_job(n=1))
        view = await seen(overlay, lambda view: idle(view) == 8)
        assert view.unheard == ("second@own.test",)
        if how is signal.SIGSTOP:
            os.kill(schedd, signal.SIGCONT)
            await seen(overlay, lambda view: not view.unheard and idle(view) == 8, 150)
