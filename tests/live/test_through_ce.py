"""Drones through a computing element: they start, join, run jobs and leave, whatever dies or is cut off meanwhile."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from provisioner.model import FaultKind
from tests.labs import htcondor, network
from tests.labs.controller import LabController, Sightings
from tests.labs.grid_site import MANY_GPUS, ElementSite, through_element
from tests.labs.htcondor import Condor, Pool, gpu_job, meanwhile, running_pool, until
from tests.labs.network import Apart
from tests.live.conftest import programs

pytestmark = [pytest.mark.timeout(1500), pytest.mark.xdist_group("element")]

CUT_S = 300
AFTERWARDS_S = 20
"""The gridmanager asks for each job several times meanwhile."""
IN_POOL = {"joined", "idle", "busy"}


@dataclass
class States:
    """States of the drones on record at each look."""

    controller: LabController
    seen: list[dict[str, str]] = field(default_factory=list)

    def __call__(self) -> None:
        self.seen.append({str(d["id"]): str(d["state"]) for d in self.controller.drones()})

    def never_back_in_the_queue(self) -> None:
        assert len(self.seen) > 5
        joined: set[str] = set()
        for look in self.seen:
            queued = {drone for drone, state in look.items() if state == "queued"}
            assert not joined & queued, "a drone that runs is listed as waiting"
            joined |= {drone for drone, state in look.items() if state in IN_POOL}

    def most_waiting(self) -> int:
        waits = ("requested", "submitted", "queued", "booting")
        return max(sum(state in waits for state in look.values()) for look in self.seen)


@contextmanager
def behind(
    condor: Condor,
    most: int,
    max_pending: int,
    apart: Apart | None = None,
    ours: Condor | None = None,
) -> Iterator[tuple[Pool, LabController]]:
    with (
        running_pool(condor) as overlay,
        through_element(condor, MANY_GPUS, apart, ours) as (access, element),
        htcondor.lab_directory("controller") as directory,
    ):
        site = ElementSite(access, element, most, max_pending)
        controller = LabController(overlay, directory / "c", sites=(site,))
        try:
            yield overlay, controller
        except AssertionError:
            print(controller.story())
            print(access.log("GridmanagerLog.alice", 60))
            raise
        finally:
            controller.clean_up()
            for pool in (access, element):
                pool.empty("-all", force_after_s=20)


def site_of(controller: LabController) -> ElementSite:
    [site] = controller.sites
    assert isinstance(site, ElementSite)
    return site


def is_silent(controller: LabController) -> bool:
    return "the computing element has not answered for" in controller.site_row()["note"]


def all_done(controller: LabController, overlay: Pool, jobs: int, within_s: float) -> None:
    until(lambda: not overlay.jobs(jobs), within_s, what="all jobs are done", every_s=1.0)
    until(lambda: not controller.live(), within_s, what="all drones are gone", every_s=1.0)
    until(lambda: not site_of(controller).there(), 60, what="none is left at the element")
    assert controller.states().keys() <= {"done", "cancelled", "unused"}


RELEASES = {"25 through 25": ("forky", "forky")}
OLDER = {
    "23 through 23": ("trixie", "trixie"),
    "25 through 23": ("forky", "trixie"),
    "23 through 25": ("trixie", "forky"),
}
"""Debian releases whose HTCondor the access point and the element have."""


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        *(pytest.param(*both, id=name) for name, both in RELEASES.items()),
        *(pytest.param(*both, id=name, marks=pytest.mark.matrix) for name, both in OLDER.items()),
    ],
)
def test_drones_come_run_jobs_and_go_and_only_those_that_wait_are_pending(
    ours: str, theirs: str
) -> None:
    access, element = (programs(Condor.fetched, suite) for suite in (ours, theirs))
    with behind(element, most=4, max_pending=2, ours=access) as (overlay, controller):
        seen = Sightings(controller, site_of(controller).there)
        states = States(controller)
        controller.start()
        with meanwhile(seen), meanwhile(states):
            jobs = overlay.submit(gpu_job(0, n=4, until_there=(over := overlay.file("over"))))
            until(
                lambda: controller.states()["busy"] == 4,
                180,
                what="all run, though no more than two may wait",
                every_s=0.5,
            )
            over.touch()
            all_done(controller, overlay, jobs, 120)
        seen.no_orphan_no_duplicate(4)
        states.never_back_in_the_queue()
        assert states.most_waiting() <= 2


@pytest.mark.matrix
def test_thirty_drones_outlive_the_deaths_of_the_controller_and_of_the_elements_schedd(
    newest_condor: Condor,
) -> None:
    with behind(newest_condor, most=30, max_pending=30) as (overlay, controller):
        site = site_of(controller)
        seen = Sightings(controller, site.there)
        states = States(controller)
        controller.start()
        with meanwhile(seen, 2.0), meanwhile(states, 2.0):
            jobs = overlay.submit(gpu_job(20, n=60))
            steps = (
                controller.live,
                site.access.jobs,
                lambda: any("GridJobId" in ad for ad in site.access.jobs()),
                site.there,
                lambda: controller.states()["booting"] > 0,
                lambda: controller.states()["busy"] > 0,
            )
            for number, step in enumerate(steps):
                until(step, 180, what=f"step {number}", every_s=0.2)
                controller.kill()
                controller.begin()
            until(lambda: controller.states()["busy"] >= 10, 300, what="many run", every_s=1.0)
            schedd = site.element.daemon("schedd")
            os.kill(schedd, signal.SIGKILL)
            until(lambda: site.element.daemon("schedd") != schedd, 60, what="another schedd")
            until(lambda: not overlay.jobs(jobs), 400, what="all jobs are done", every_s=1.0)
            until(lambda: not controller.live(), 300, what="all drones are gone", every_s=1.0)
            until(lambda: not site.there(), 60, what="none is left at the element")
        seen.no_orphan_no_duplicate(30)
        states.never_back_in_the_queue()
        assert controller.states()["lost"] == 0


@pytest.mark.matrix
@pytest.mark.skipif(not network.available(), reason=network.WANTED)
def test_a_cut_network_costs_no_drone(newest_condor: Condor) -> None:
    """The element's address is silent for the access point alone; what runs behind it goes on."""
    with (
        Apart() as apart,
        behind(newest_condor, most=4, max_pending=4, apart=apart) as (overlay, controller),
    ):
        site = site_of(controller)
        seen = Sightings(controller, site.there)
        states = States(controller)
        controller.start()
        jobs = overlay.submit(gpu_job(0, n=4, until_there=(over := overlay.file("over"))))
        until(lambda: controller.states()["busy"] == 4, 180, what="all run", every_s=0.5)
        before = site.at_the_element()
        assert len(before) == 4
        with meanwhile(states, 2.0), meanwhile(seen, 5.0):
            with apart.cut():
                time.sleep(CUT_S / 2)
                controller.kill()
                controller.begin()
                time.sleep(CUT_S / 2)
                assert is_silent(controller)
                assert controller.states() == {"busy": 4}
                assert site.there().total() == 4
            until(lambda: not is_silent(controller), 180, what="the element answers", every_s=1.0)
            time.sleep(AFTERWARDS_S)
            assert site.at_the_element() == before, "the same jobs, known again"
            assert controller.states() == {"busy": 4}
            over.touch()
            all_done(controller, overlay, jobs, 180)
        seen.no_orphan_no_duplicate(4)
        states.never_back_in_the_queue()


@pytest.mark.matrix
def test_an_element_that_refuses_the_token_gets_no_further_drones(newest_condor: Condor) -> None:
    with behind(newest_condor, most=2, max_pending=2) as (overlay, controller):
        site = site_of(controller)
        site.access.let_in(site.element, "READ")
        controller.start()
        overlay.submit(gpu_job(20, n=2))
        # the gridmanager tries four times, and looks in between whether the element answers at all
        until(lambda: controller.states()["failed"] == 2, 180, what="both failed", every_s=1.0)
        faults = [each.fault for each in controller.record.breakers().values()]
        assert {fault.kind for fault in faults if fault} == {FaultKind.DENIED}
        told = controller.site_row()["note"]
        assert "the computing element refuses the credentials: " in told
        assert 'Received "DENIED" from server' in told
        controller.ticks(10)
        assert len(controller.drones()) == 2
        assert not site.there()
