"""The site's schedd dies between a submit and its reply: nobody knows what came of the order, and all goes well."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.labs.htcondor import Condor, LabError, gpu_job, until
from tests.labs.htcondor_sites import Happened, SitePool, TopasLab, TopasSite, events, most_at_once, topas_lab

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


@contextmanager
def watched(lab: TopasLab) -> Iterator[list[Counter[str]]]:
    """Look again and again which of our drones the site's queue holds alive, how often each."""
    seen: list[Counter[str]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            try:
                ads = lab.drone_jobs()
            except (LabError, OSError):
                continue  # nobody there to ask
            seen.append(Counter(str(ad["DroneId"]) for ad in ads if ad["JobStatus"] in ALIVE))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


@pytest.mark.parametrize("when", [committed, pytest.param(files_come, marks=pytest.mark.matrix)])
def test_no_orphan_no_duplicate_and_the_cap_holds(newest_condor: Condor, when: Callable[[SitePool], bool]) -> None:
    with topas_lab(newest_condor) as lab, watched(lab) as seen:
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
        until(lambda: not [ad for ad in lab.drone_jobs() if ad["JobStatus"] in ALIVE], 60, what="no orphan at the site")
        assert max(sum(each.values()) for each in seen) <= CAP
        assert most_at_once(events(lab.site), Happened.SUBMITTED, Happened.ENDED, Happened.REMOVED) == CAP
        assert max(max(each.values(), default=0) for each in seen) == 1, "no drone twice"
        assert set().union(*seen) <= {d["id"] for d in lab.controller.drones()}, "none that is not on record"
        [site] = lab.controller.json("sites")["items"]
        assert site["breaker"] == "active", site
