"""One user's jobs, or one stranger's schedd, never stop what others get: with real daemons and the whole controller."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.htcondor.overlay import HTCondorOverlay
from provisioner.interfaces import UnavailableError
from provisioner.model import OverlayView
from tests.htcondor_overlay.live import A100, classes_of, overlay_on
from tests.labs.controller import BIG, LabController
from tests.labs.htcondor import PATIENCE, Condor, Pool, children_of, gpu_job, lab_directory, running_pool, until

pytestmark = pytest.mark.timeout(420)

ONLY_THE_TEMPLATE = 'requirements = TARGET.Name == "slot1@template"'
"""True for what the planner believes a slot to be, and for no slot."""


def test_jobs_that_match_no_drone_leave_the_type_to_all_others(lab: tuple[Pool, LabController]) -> None:
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

    until(lambda: {"bad-request", "starts-unmatched"} <= reasons(), 150, what="both reasons", every_s=1)
    plain = [pool.submit(gpu_job(1, n=3)), pool.submit(gpu_job(1, n=2), identity="admin")]
    until(lambda: not any(map(pool.jobs, plain)), 180, what="plain jobs of two users done", every_s=1)
    site = controller.json("sites")["items"][0]
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


async def test_a_schedd_of_others_that_flocks_here_and_denies_reading_is_left_out(condor: Condor) -> None:
    with running_pool(condor, "own") as pool, lab_directory("etp") as root:
        identities = {"condor": (), "admin": (), "alice": ()}
        other = Pool(root, condor, "etp", config=FLOCKS.format(collector=pool.collector), identities=identities)
        token = other.dir / "etc/tokens/own"
        token.touch(mode=0o600)
        token.write_text(pool.token("condor") + "\n")
        other.account.give(token.parent)
        pool.submit(gpu_job(n=2))
        other.start()
        try:
            other.submit(gpu_job(n=5))
            names = ("condor_status", "-schedd", "-af", "Name")
            await asyncio.to_thread(until, lambda: "login@etp.test" in pool.run(*names), 120, what="the other schedd")
            async with overlay_on(pool) as overlay:
                view: OverlayView = await overlay.poll([A100])
                assert sum(each.waiting + each.fresh for each in classes_of(view)) == 2
                (notice,) = [each for each in view.notices if "login@etp.test" in each and "left out" in each]
                assert "`schedds`" in notice
        finally:
            await asyncio.to_thread(other.stop, at_once=True)


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


async def seen(
    overlay: HTCondorOverlay, holds: Callable[[OverlayView], bool], within_s: float, what: str
) -> OverlayView:
    """Look until a view is as wanted. A look may fail only in the moment in which the schedd falls silent."""
    limit, last = time.monotonic() + PATIENCE * within_s, "no look"
    while time.monotonic() < limit:
        try:
            view: OverlayView = await overlay.poll([A100])
        except UnavailableError as error:
            assert "second@own.test" in str(error), "the error names who did not answer"
            last = str(error)
        else:
            if holds(view):
                return view
            last = f"{view.unheard}, {view.notices}, {[(c.waiting, c.fresh, c.running) for c in view.classes]}"
        await asyncio.sleep(0.5)
    raise AssertionError(f"{what}: {last}")


def idle(view: OverlayView) -> int:
    return sum(each.waiting + each.fresh for each in classes_of(view))


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("named", [pytest.param(False, marks=pytest.mark.matrix), True], ids=["any", "named"])
async def test_a_schedd_that_falls_silent_leaves_the_view_partial(condor: Condor, how: str, named: bool) -> None:
    with running_pool(condor, "own", SECOND) as pool:
        names = ("condor_status", "-schedd", "-af", "Name")
        listed = await asyncio.to_thread(until, lambda: _two(pool.run(*names).split()), 60, what="both schedds")
        pool.submit(gpu_job(n=2))
        description = gpu_job(n=5)
        pool.run("condor_submit", "-name", "second@own.test", "-", identity="alice", stdin=description)
        more = {"schedds": sorted(listed)} if named else {}
        async with overlay_on(pool, **more) as overlay:
            view = await seen(overlay, lambda view: idle(view) == 7, 60, "jobs of both")
            assert view.unheard == ()
            schedd = second_schedd(pool)
            os.kill(schedd, signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
            view = await seen(overlay, lambda view: view.unheard == ("second@own.test",), 90, "a partial view")
            assert idle(view) == 7, "its jobs count as they were"
            (notice,) = [each for each in view.notices if "second@own.test" in each and "done" not in each]
            assert "its jobs count as they were less than a minute ago" in notice
            pool.submit(gpu_job(n=1))
            view = await seen(overlay, lambda view: idle(view) == 8, 60, "the other schedd's new job")
            assert view.unheard == ("second@own.test",)
            if how == "stopped":
                os.kill(schedd, signal.SIGCONT)
                await seen(overlay, lambda view: not view.unheard and idle(view) == 8, 150, "all of it again")


def _two(names: list[str]) -> list[str]:
    return names if len(names) == 2 else []
