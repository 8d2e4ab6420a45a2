"""CPUs and memory are kept for free GPUs: at the site, by the text that we print for it, and by our own CPU drones."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.labs.htcondor import Condor, gpu_job, until
from tests.labs.htcondor_sites import (
    BLOCKING,
    CPU_TYPE,
    GPU_TYPE,
    GRID,
    OWNER,
    NodeShape,
    SitePool,
    TopasSite,
    owner_job,
    site_alone,
    topas_lab,
)

pytestmark = [pytest.mark.timeout(840), pytest.mark.xdist_group("topas")]

TOPAS = NodeShape("node1", gpus=8, cpus=192, memory_mib=1024 * 1024)
CPU_JOBS = owner_job(gpus=0, cpus=4, memory_mib=1024, n=60)
LARGE_MEMORY = owner_job(gpus=0, cpus=1, memory_mib=100 * 1024, n=12)


def settled(site: SitePool, *clusters: int) -> list[Counter[int]]:
    """JobStatus of the clusters' jobs, how many each, once three negotiations have changed nothing."""
    while True:
        before = [Counter(site.statuses(cluster)) for cluster in clusters]
        seen = site.negotiations()
        until(lambda seen=seen: site.negotiations() >= seen + 3, 60, what="three negotiations")  # type: ignore[misc]
        if before == [Counter(site.statuses(cluster)) for cluster in clusters]:
            return before


def test_without_blocking_cpu_jobs_keep_gpus_from_drones(newest_condor: Condor) -> None:
    with site_alone(newest_condor, (TOPAS,)) as site:
        cpu = site.submit(CPU_JOBS, OWNER)
        until(lambda: site.statuses(cpu).count(2) == 48, 90, what="192 CPUs are taken", every_s=0.3)
        drones = site.submit(owner_job(n=8, more="+IsBackfill = True"), GRID)
        assert settled(site, cpu, drones) == [Counter({2: 48, 1: 12}), Counter({1: 8})]
        assert site.room()["node1"][:2] == (8, 0), "eight GPUs are free, and no drone can use them"


def test_with_blocking_every_free_gpu_gets_its_drone(newest_condor: Condor) -> None:
    """The text that `provisioner render blocking` prints, as it is, on the node; then the owner's CPU work, then us."""
    with topas_lab(newest_condor, (TOPAS,), node_config=None) as lab:
        cpu, large = lab.site.submit(CPU_JOBS, OWNER), lab.site.submit(LARGE_MEMORY, OWNER)
        assert sum(settled(lab.site, cpu, large), Counter())[2] > 20, "they take what is not kept"
        gpus, cpus, memory_mib = lab.site.room()["node1"]
        assert gpus == 8 and cpus >= 64 and memory_mib >= 8 * 20 * 1024
        assert cpus < 64 + 4 or memory_mib < 8 * 20 * 1024 + 100 * 1024, "and all of that"

        lab.controller.start()
        jobs = lab.overlay.submit(gpu_job(n=8, until_there=lab.overlay.file("enough")))
        until(lambda: lab.overlay.statuses(jobs) == [2] * 8, 150, what="eight drones, eight jobs", every_s=0.5)
        assert lab.drones_at() == {"node1": 8}
        assert Counter(d["state"] for d in lab.controller.drones()).keys() <= {"idle", "busy"}, "none had to leave"


SMALL_NODE = NodeShape("node1", gpus=4, cpus=48, memory_mib=256 * 1024)
"""Of its 48 CPUs its four GPUs keep 32: the rest is for two CPU drones of 8."""


def test_cpu_drones_use_the_rest_and_never_the_reserve(newest_condor: Condor) -> None:
    with topas_lab(newest_condor, (SMALL_NODE,)) as lab:
        lab.controller.sites = (TopasSite(lab.site, lab.etp, types=GPU_TYPE + CPU_TYPE, blocking=BLOCKING),)
        lab.controller.idle_s = 120
        lab.controller.start()
        enough = lab.overlay.file("enough")
        cpu_job = gpu_job(n=30, cpus=1, until_there=enough).replace("request_gpus = 1\n", "")
        cpu = lab.overlay.submit(cpu_job)
        until(lambda: lab.overlay.statuses(cpu).count(2) == 16, 120, what="two CPU drones are full", every_s=0.5)
        lab.controller.ticks(5)
        assert Counter(d["type"] for d in lab.controller.drones()) == {"topas/cpu": 2}, "though 14 jobs more wait"
        assert lab.site.room()["node1"][:2] == (4, 32)

        gpu = lab.overlay.submit(gpu_job(n=4, until_there=enough))
        until(lambda: lab.overlay.statuses(gpu) == [2] * 4, 120, what="every GPU gets its drone", every_s=0.5)
        assert Counter(d["type"] for d in lab.controller.live()) == {"topas/cpu": 2, "topas/a100": 4}
        assert not [d for d in lab.controller.drones() if d["ended_at"]], "nobody had to leave"
