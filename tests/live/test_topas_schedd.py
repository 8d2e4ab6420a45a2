"""The site's schedd dies between a submit and its reply: nobody knows what came of the order, and all goes well."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.labs.controller import Sightings
from tests.labs.htcondor import Condor, gpu_job, meanwhile, until
from tests.labs.htcondor_sites import Event, Happened, SitePool, TopasLab, TopasSite, events, topas_lab

pytestmark = [pytest.mark.timeout(840), pytest.mark.xdist_group("topas")]

CAP = 3
SUBMIT_DEADLINE_S = 10
ALIVE = (1, 2, 5, 6)
"""JobStatus of a job that is, or may come to, something: idle, running, held, its files on the way back."""


def committed(site: SitePool) -> bool:
    """The jobs are in the schedd's queue for good: it writes them down before it answers."""
    return b" DroneId " in (site.dir / "spool/job_queue.log").read_bytes()


def files_come(site: SitePool) -> bool:
    """The files of the jobs are on the way, or have just come: the reply may or may not have gone out."""
    return any((site.dir / "spool").glob("*/*/*/begin.sh"))


def struck(site: SitePool, when: Callable[[SitePool], bool], within_s: float = 60) -> int:
    """Stop the schedd as soon as ``when``; its pid."""
    schedd = site.daemon("schedd")
    limit = time.monotonic() + within_s
    while not when(site):
        assert time.monotonic() < limit, "no submit came"
    os.kill(schedd, signal.SIGSTOP)
    return schedd


def alive(lab: TopasLab) -> Counter[str]:
    """Return the number of live entries of each of our drones in the site's queue."""
    return Counter(str(ad["DroneId"]) for ad in lab.drone_jobs() if ad["JobStatus"] in ALIVE)


def most_at_once(history: list[Event]) -> int:
    """Most jobs at one time that had been submitted and had neither ended nor been removed."""
    there: set[str] = set()
    counts = [0]
    for event in history:
        if event.what is Happened.SUBMITTED:
            there.add(event.job)
        elif event.what in (Happened.ENDED, Happened.REMOVED):
            there.discard(event.job)
        counts.append(len(there))
    return max(counts)


@pytest.mark.parametrize("when", [committed, pytest.param(files_come, marks=pytest.mark.matrix)])
def test_no_orphan_no_duplicate_and_the_cap_holds(newest_condor: Condor, when: Callable[[SitePool], bool]) -> None:
    with topas_lab(newest_condor) as lab, meanwhile(seen := Sightings(lab.controller, lambda: alive(lab))):
        lab.controller.sites = (TopasSite(lab.site, lab.etp, most=CAP),)
        lab.controller.start()
        jobs = lab.overlay.submit(gpu_job(5, n=2 * CAP))
        schedd = struck(lab.site, when)
        # Silent until the order's time is up, then dead: its master starts another.
        time.sleep(SUBMIT_DEADLINE_S + 2)
        assert lab.controller.states() == {"requested": CAP} or when is files_come, "no reply has come"
        os.kill(schedd, signal.SIGKILL)
        assert until(lambda: lab.site.daemon("schedd") != schedd, 60, what="another schedd")

        until(lambda: not lab.overlay.jobs(jobs), 240, what="all jobs done all the same", every_s=0.5)
        until(lambda: not lab.controller.live(), 120, what="all drones gone", every_s=0.5)
        until(lambda: not alive(lab), 60, what="no orphan at the site")
        seen.no_orphan_no_duplicate(CAP)
        assert most_at_once(events(lab.site)) == CAP
        site = lab.controller.site_row()
        assert site["breaker"] == "active", site
