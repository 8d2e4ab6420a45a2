"""The owner comes first: his flocked jobs run in time, the drones that lose least make room, and no more of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.labs.htcondor import Condor, Pool, gpu_job, negotiation_s, until
from tests.labs.htcondor_sites import (
    GRACE_S,
    PREEMPTS,
    PREEMPTS_LATE,
    STUDENT,
    Happened,
    NodeShape,
    TopasLab,
    TopasSite,
    carriers,
    events,
    interval_s,
    node_of,
    owner_job,
    topas_lab,
)

pytestmark = [pytest.mark.timeout(840), pytest.mark.xdist_group("topas")]


def touch(file: Path) -> None:
    file.touch()
    file.chmod(0o644)


def in_pool(overlay: Pool) -> set[str]:
    """Drones that have a slot there."""
    return {str(ad["DroneId"]) for ad in overlay.slots("DroneId isnt undefined")}


def states_are(lab: TopasLab, **wanted: int) -> bool:
    """Whether the drones' states are those, but for drones that were taken back before they began."""
    return lab.controller.states() - Counter(cancelled=99) == Counter(wanted)


def flocking_s(lab: TopasLab) -> float:
    """How long a flocked job needs to start where a GPU is free: what it waits for without us."""
    first = lab.etp.submit(owner_job(0), STUDENT)
    until(lambda: not lab.etp.jobs(first), 90, what="a flocked job on the empty cluster")
    return waits_s(lab, first)[0]


def waits_s(lab: TopasLab, cluster: int) -> list[float]:
    """How long each of the owner's jobs has waited, shortest first."""
    told = events(lab.etp, cluster)
    submitted = {event.job: event.at for event in told if event.what is Happened.SUBMITTED}
    return sorted(
        event.at - submitted[event.job] for event in told if event.what is Happened.STARTED
    )


@pytest.mark.parametrize(
    "ask",
    [True, pytest.param(False, marks=pytest.mark.matrix)],
    ids=["drones-are-asked", "the-site-preempts"],
)
def test_three_flocked_jobs_cost_three_drones(newest_condor: Condor, ask: bool) -> None:
    """Three drones have just begun new jobs: they have least to lose, though all are of the same age.

    Where the drones are asked, the site gives them a minute before it preempts by itself: a
    negotiator that preempts at once takes places of its own choice, beside those that are being
    freed.
    """
    with topas_lab(newest_condor, rank=PREEMPTS_LATE if ask else PREEMPTS) as lab:
        lab.controller.sites = (TopasSite(lab.site, lab.etp, preempt_proactively=ask),)
        lab.controller.idle_s = 60
        lab.controller.start()
        long_done, short_done = lab.overlay.file("long"), lab.overlay.file("short")
        alone_s = flocking_s(lab)
        long = lab.overlay.submit(gpu_job(n=5, until_there=long_done))
        short = lab.overlay.submit(gpu_job(n=3, until_there=short_done))

        def all_run() -> bool:
            return [len(carriers(lab.overlay, each)) for each in (long, short)] == [5, 3]

        until(all_run, 150, what="eight jobs in eight drones", every_s=0.3)
        least = carriers(lab.overlay, short)
        touch(short_done)
        until(lambda: not lab.overlay.jobs(short), 60, what="three jobs done", every_s=0.3)
        late = lab.overlay.submit(gpu_job(n=3, until_there=long_done))
        until(
            lambda: carriers(lab.overlay, late) == least,
            60,
            what="others in their place",
            every_s=0.3,
        )
        lab.controller.settles({"busy": 8})
        lab.controller.ticks(2)

        owners = lab.etp.submit(owner_job(n=3), STUDENT)
        until(lambda: len(waits_s(lab, owners)) == 3, 120, what="the owner's jobs run")
        waited_s = waits_s(lab, owners)[-1]
        may_s = GRACE_S + 2 * interval_s(lab.controller) + alone_s + negotiation_s(lab.site)
        assert waited_s < may_s, f"{alone_s:.1f} s with free GPUs"

        # A GPU may look free between a drone's end and the owner's claim: a drone asked for then is
        # taken back at once.
        until(
            lambda: states_are(lab, busy=5, preempted=3), 60, what="three drones gone", every_s=0.5
        )
        left = {d["id"] for d in lab.controller.drones() if d["state"] == "preempted"}
        if ask:
            assert left == least, "those with least to lose"
        assert carriers(lab.overlay, long) | carriers(lab.overlay, late) == {
            d["id"] for d in lab.controller.live()
        }
        # a drone that its site ends without mercy tells nobody: its slot stays until its ad grows
        # old
        if ask:
            until(lambda: not left & in_pool(lab.overlay), 20, what="their slots are gone")
        site = lab.controller.site_row()
        assert (site["breaker"], site["failures"]) == ("active", 0), site

        touch(long_done)
        until(
            lambda: not lab.overlay.jobs(long) and not lab.overlay.jobs(late),
            120,
            what="all done",
            every_s=0.5,
        )
        ended = [*lab.overlay.history(long), *lab.overlay.history(late)]
        assert sorted(int(str(ad["NumJobStarts"])) for ad in ended) == [1] * 5 + [2] * 3, (
            "three began anew, elsewhere"
        )
        started_again = [ad for ad in ended if ad["NumJobStarts"] == 2]
        assert not {str(ad["LastRemoteHost"]).split("@")[1] for ad in started_again} & left
        ran = {event.job for event in events(lab.site) if event.what is Happened.STARTED}
        gone = {
            event.job
            for event in events(lab.site)
            if event.what in (Happened.EVICTED, Happened.REMOVED)
        }
        assert len(gone & ran) == 3, "no fourth drone was taken from the site"
        assert lab.etp.statuses(owners) == [2, 2, 2]


TWO = (NodeShape("node1", memory_mib=300 * 1024), NodeShape("node2", memory_mib=300 * 1024))
LARGE = owner_job(5, gpus=6, cpus=48, memory_mib=200 * 1024)
"""Beside eight drones (160 GB of 300 GB, 64 of 128 CPUs) there is neither GPU nor memory for it on any node."""


@pytest.mark.matrix
def test_a_large_job_gets_its_hole_on_one_node(newest_condor: Condor) -> None:
    with topas_lab(newest_condor, TWO) as lab:
        lab.controller.idle_s = 60
        lab.controller.start()
        jobs = lab.overlay.submit(gpu_job(n=16, until_there=lab.overlay.file("enough")))
        until(
            lambda: lab.overlay.statuses(jobs) == [2] * 16,
            240,
            what="sixteen jobs run",
            every_s=0.5,
        )
        lab.controller.settles({"busy": 16})
        assert lab.drones_at() == {"node1": 8, "node2": 8}
        nodes = {d["id"]: d["node"] for d in lab.controller.live()}

        large = lab.etp.submit(LARGE, STUDENT)
        until(lambda: waits_s(lab, large), 120, what="the large job runs")
        until(lambda: states_are(lab, busy=10, preempted=6), 60, what="six gone", every_s=0.5)
        left = [nodes[d["id"]] for d in lab.controller.drones() if d["state"] == "preempted"]
        host = {node_of(ad) for ad in lab.etp.jobs(large)} or {left[0].partition(".")[0]}
        assert {node.partition(".")[0] for node in left} == host, "all on the node where it runs"
        touch(lab.overlay.file("enough"))
        until(lambda: not lab.overlay.jobs(jobs), 120, what="all done", every_s=0.5)
