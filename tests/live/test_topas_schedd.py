"""The site's schedd dies between a submit and its reply: nobody knows what came of the order, and all goes well."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.labs.controller import Sightings
from tests.labs.htcondor import Condor, gpu_job, meanwhile, until
from tests.labs.htcondor_sites import SitePool, TopasLab, TopasSite, topas_lab

pytestmark = [pytest.mark.timeout(840), pytest.mark.xdist_group("topas")]

CAP = 3
SUBMIT_DEADLINE_S = 10
SPOOLING = 16
"""HoldReasonCode of a job that waits for its files. One that is held for another reason never runs again."""


def queue_log(site: SitePool) -> str:
    """Return the transactions of the schedd since its start; they begin with the jobs that it found."""
    return (site.dir / "spool/job_queue.log").read_text(errors="replace")


def committed(site: SitePool) -> bool:
    """The jobs are in the schedd's queue for good: it writes all of the transaction before it answers."""
    return "\n106 " in queue_log(site).partition(" DroneId ")[2]


def files_begin(site: SitePool) -> bool:
    """Return True once the schedd has answered that it has the jobs, and waits for their files."""
    return " StageInStart " in queue_log(site)


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


def may_run(ad: Mapping[str, Any]) -> bool:
    """Return True if a job runs, or may run later: no drone has a second run."""
    match int(ad.get("JobStatus", 0)):
        case 1:
            return not int(ad.get("NumJobStarts", 0)) and "JobCurrentStartExecutingDate" not in ad
        case 5:
            return int(ad.get("HoldReasonCode", 0)) == SPOOLING
        case status:
            return status in (2, 6)


def alive(lab: TopasLab) -> Counter[str]:
    """Return the number of live entries of each of our drones in the site's queue."""
    return Counter(str(ad["DroneId"]) for ad in lab.drone_jobs() if may_run(ad))


def most_at_once(log: str) -> int:
    """Return the largest number of jobs that could run after a transaction of the schedd.

    Its event log cannot tell: the schedd answers a removal before it logs it, and may log the next
    submit first.
    """
    ads: defaultdict[str, dict[str, str]] = defaultdict(dict)
    most, within = 0, False
    for line in log.splitlines():
        operation, key, name, value = [*line.split(" ", 3), "", "", ""][:4]
        match operation:
            case "103":
                ads[key][name] = value
            case "104":
                ads[key].pop(name, None)
            case "102":
                ads.pop(key, None)
            case "105" | "106":
                within = operation == "105"
        if not within:
            jobs = {key: ad for key, ad in ads.items() if not key.startswith("0")}
            clusters = (ads.get(f"0{key.partition('.')[0]}.-1", {}) for key in jobs)
            most = max(
                most,
                sum(
                    may_run({**shared, **ad})
                    for shared, ad in zip(clusters, jobs.values(), strict=True)
                ),
            )
    return most


@pytest.mark.matrix
@pytest.mark.parametrize("when", [files_begin, committed, files_come])
def test_no_orphan_no_duplicate_and_the_cap_holds(
    newest_condor: Condor, when: Callable[[SitePool], bool]
) -> None:
    with (
        topas_lab(newest_condor) as lab,
        meanwhile(seen := Sightings(lab.controller, lambda: alive(lab))),
    ):
        lab.controller.sites = (TopasSite(lab.site, lab.etp, most=CAP),)
        lab.controller.start()
        jobs = lab.overlay.submit(gpu_job(5, n=2 * CAP))
        schedd = struck(lab.site, when)
        # Silent until the order's time is up, then dead: its master starts another.
        time.sleep(SUBMIT_DEADLINE_S + 2)
        assert lab.controller.states().total() == CAP, (
            "nothing is ordered anew while the outcome is unknown"
        )
        os.kill(schedd, signal.SIGKILL)
        assert until(lambda: lab.site.daemon("schedd") != schedd, 60, what="another schedd")

        until(
            lambda: not lab.overlay.jobs(jobs), 240, what="all jobs done all the same", every_s=0.5
        )
        until(lambda: not lab.controller.live(), 120, what="all drones gone", every_s=0.5)
        until(lambda: not alive(lab), 60, what="no orphan at the site")
        seen.no_orphan_no_duplicate(CAP)
        assert most_at_once(queue_log(lab.site)) == CAP
        site = lab.controller.site_row()
        assert site["breaker"] == "active", site


def test_a_restarted_schedd_takes_its_first_orders(newest_condor: Condor) -> None:
    with topas_lab(newest_condor) as lab:
        lab.controller.sites = (TopasSite(lab.site, lab.etp, most=CAP),)
        lab.controller.start()
        lab.overlay.submit(gpu_job(0, until_there=(over := lab.overlay.file("over"))))
        until(lambda: lab.drones_at().total() == 1, 240, what="the first drone runs")
        schedd = lab.site.daemon("schedd")
        os.kill(schedd, signal.SIGKILL)
        assert until(
            lambda: lab.site.daemon("schedd") != schedd and lab.site.jobs(),
            60,
            what="another schedd",
        )
        lab.controller.ticks(4)

        rejections = "attempt to open invalid session"
        before = lab.site.log("SchedLog", 10**6).count(rejections)
        jobs = lab.overlay.submit(gpu_job(5, n=CAP - 1))
        until(lambda: not lab.overlay.jobs(jobs), 240, what="all later jobs done", every_s=0.5)
        assert lab.site.log("SchedLog", 10**6).count(rejections) > before, (
            "the submit found the schedd restarted"
        )
        over.touch()
        until(lambda: not lab.overlay.jobs(), 120, what="the first job done", every_s=0.5)
        until(lambda: not lab.controller.live(), 120, what="all drones gone", every_s=0.5)
        assert not lab.controller.states()["failed"], lab.controller.drones()
        assert "session id" not in lab.controller.log()
