"""CPUs and memory are kept for free GPUs: at the site, by the text that we print for it, and by our own CPU drones."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.labs.htcondor import Condor, gpu_job, until
from tests.labs.htcondor_sites import (
    CPU_TYPE,
    GPU_TYPE,
    OWNER,
    NodeShape,
    SitePool,
    TopasSite,
    carriers,
    drone_of,
    owner_job,
    topas_lab,
)

# In `make test` test_site_blocking.py plays what the printed text does to startds.
pytestmark = [pytest.mark.matrix, pytest.mark.timeout(840), pytest.mark.xdist_group("topas")]

TOPAS = NodeShape("node1", gpus=8, cpus=192, memory_mib=1024 * 1024)
CPU_JOBS = owner_job(gpus=0, cpus=4, memory_mib=1024, n=60)
LARGE_MEMORY = owner_job(gpus=0, cpus=1, memory_mib=100 * 1024, n=12)


def settled(site: SitePool, *clusters: int) -> list[Counter[int]]:
    """JobStatus of the clusters' jobs, how many each, once three negotiations have changed nothing."""
    while True:
        before = [Counter(site.statuses(cluster)) for cluster in clusters]
        seen = site.negotiations()
        until(lambda seen=seen: site.negotiations() >= seen + 3, 60, what="three negotiations")
        if before == [Counter(site.statuses(cluster)) for cluster in clusters]:
            return before


def test_with_blocking_every_free_gpu_gets_its_drone(newest_condor: Condor) -> None:
    """The text that `provisioner render blocking` prints, as it is, on the node; then the owner's
    CPU work, then us: as many drones as there are free GPUs, each told where it is."""
    with topas_lab(newest_condor, (TOPAS,), node_config=None) as lab:
        cpu, large = lab.site.submit(CPU_JOBS, OWNER), lab.site.submit(LARGE_MEMORY, OWNER)
        assert sum(settled(lab.site, cpu, large), Counter())[2] > 20, "they take what is not kept"
        gpus, cpus, memory_mib = lab.site.room()["node1"]
        assert gpus == 8 and cpus >= 64 and memory_mib >= 8 * 20 * 1024
        assert cpus < 64 + 4 or memory_mib < 8 * 20 * 1024 + 100 * 1024, "and all of that"

        lab.controller.idle_s = 60
        lab.controller.start()
        enough = lab.overlay.file("enough")
        jobs = lab.overlay.submit(gpu_job(n=12, until_there=enough))
        until(
            lambda: sorted(lab.overlay.statuses(jobs)) == [1] * 4 + [2] * 8,
            150,
            what="eight jobs run, four wait",
        )
        lab.controller.settles({"busy": 8})
        lab.controller.ticks(5)
        assert lab.controller.states() == {"busy": 8}, "the four that wait bring no further drone"
        assert lab.drones_at() == {"node1": 8}

        at_site = {str(ad["DroneId"]): str(ad["RemoteHost"]) for ad in lab.drone_jobs()}
        in_pool = {
            str(ad["DroneId"]): str(ad["Name"])
            for ad in lab.overlay.slots('SlotType == "Partitionable" && DroneId isnt undefined')
        }
        shown = lab.controller.live()
        assert {d["id"]: d["node"] for d in shown} == dict.fromkeys(
            at_site, lab.site.nodes[0].machine
        )
        assert {d["id"]: d["site_slot"] for d in shown} == at_site
        assert {d["id"]: d["slot"] for d in shown} == in_pool
        assert carriers(lab.overlay, jobs) == set(at_site)
        for drone in shown:
            told = lab.controller.prints("drones", "show", drone["id"])
            assert at_site[drone["id"]] in told and in_pool[drone["id"]] in told, told

        enough.touch()
        enough.chmod(0o644)
        until(lambda: not lab.overlay.jobs(jobs), 90, what="all twelve are done", every_s=0.5)
        done = lab.overlay.history(jobs)
        assert [(ad["JobStatus"], ad["NumJobStarts"]) for ad in done] == [(4, 1)] * 12
        assert {drone_of({"RemoteHost": ad["LastRemoteHost"]}) for ad in done} <= set(at_site)
        drones = [ad for ad in lab.drone_jobs() if ad["DroneId"] not in at_site]
        assert not drones and len(lab.controller.drones()) == 8, (
            "at no time more than there were GPUs"
        )


SMALL_NODE = NodeShape("node1", gpus=4, cpus=48, memory_mib=256 * 1024)
"""Of its 48 CPUs its four GPUs keep 32: the rest is for two CPU drones of 8."""


def test_cpu_drones_use_the_rest_and_never_the_reserve(newest_condor: Condor) -> None:
    with topas_lab(newest_condor, (SMALL_NODE,)) as lab:
        lab.controller.sites = (TopasSite(lab.site, lab.etp, types=GPU_TYPE | CPU_TYPE),)
        lab.controller.idle_s = 120
        lab.controller.start()
        enough = lab.overlay.file("enough")
        cpu_job = gpu_job(n=30, cpus=1, until_there=enough).replace("request_gpus = 1\n", "")
        cpu = lab.overlay.submit(cpu_job)
        until(
            lambda: lab.overlay.statuses(cpu).count(2) == 16,
            120,
            what="two CPU drones are full",
            every_s=0.5,
        )
        lab.controller.ticks(5)
        assert Counter(d["type"] for d in lab.controller.drones()) == {"topas/cpu": 2}, (
            "though 14 jobs more wait"
        )
        assert lab.site.room()["node1"][:2] == (4, 32)

        gpu = lab.overlay.submit(gpu_job(n=4, until_there=enough))
        until(
            lambda: lab.overlay.statuses(gpu) == [2] * 4,
            120,
            what="every GPU gets its drone",
            every_s=0.5,
        )
        assert Counter(d["type"] for d in lab.controller.live()) == {
            "topas/cpu": 2,
            "topas/a100": 4,
        }
        assert not [d for d in lab.controller.drones() if d["ended_at"]], "nobody had to leave"
