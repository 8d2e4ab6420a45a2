"""Drones on a supercomputer, by each way to it, and in a cloud: the right GPUs for waiting jobs, and nothing left."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.labs.facilities import Facility, GridkaLab, HorekaLab, gridka, horeka
from tests.labs.htcondor import Condor, until
from tests.labs.openstack import OpenStackLab
from tests.labs.slurm import SlurmLab
from tests.labs.slurm_sites import speaks

# With the GPUs of all nodes; in `make test` with a quarter of them.
IN_THE_MATRIX = [
    pytest.param(way, 8, 4, marks=pytest.mark.matrix) for way in ("ssh", "tools", "rest", "socket")
]


@pytest.mark.xdist_group("slurm")
@pytest.mark.parametrize(("way", "whole", "small"), [("ssh", 2, 1), *IN_THE_MATRIX])
def test_jobs_run_on_nodes_with_the_gpus_that_they_need(
    newest_condor: Condor, slurm: SlurmLab, way: str, whole: int, small: int
) -> None:
    speaks(slurm, way)
    with horeka(newest_condor, slurm, way, most_by_type={"a100": whole, "h100": small}) as lab:
        jobs_run_at_slurm(lab, whole, small)


def jobs_run_at_slurm(lab: HorekaLab, whole: int, small: int) -> None:
    more_jobs_than_gpus_run(lab, whole, small)
    jobs = dict(lab.jobs())
    for drone in lab.controller.live():
        node = jobs[drone["id"]].node
        assert drone["node"] == node
        assert node.startswith({"horeka/a100": "hkn08", "horeka/h100": "hkn09"}[drone["type"]])
    assert len({job.id.partition("_")[0] for job in jobs.values()}) < whole + small, (
        "in arrays, not one by one"
    )
    jobs_end(lab)
    assert len(lab.controller.drones()) == whole + small, "no drone more than GPUs"


def more_jobs_than_gpus_run(lab: Facility, whole: int, small: int) -> None:
    """Run jobs that need the larger of the site's two GPUs, and others that any will do for: each GPU has its job."""
    lab.controller.start()
    clusters = lab.submit(whole + whole // 2, large=True), lab.submit(2 * small)

    def all_gpus_busy() -> bool:
        return [lab.overlay.statuses(each).count(2) for each in clusters] == [whole, small]

    until(
        all_gpus_busy,
        120,
        what=f"{whole} large and {small} other GPUs have a job each",
        every_s=0.5,
    )
    assert sorted(Counter(d["type"] for d in lab.controller.live()).values()) == sorted(
        (whole, small)
    )


def jobs_end(lab: HorekaLab | GridkaLab) -> None:
    jobs = lab.overlay.jobs()
    lab.let_go()
    until(lambda: not lab.overlay.jobs(), 120, what="all jobs are done", every_s=0.5)
    done = [ad for each in {ad["ClusterId"] for ad in jobs} for ad in lab.overlay.history(each)]
    assert [(ad["JobStatus"], ad["NumJobStarts"]) for ad in done] == [(4, 1)] * len(jobs)
    lab.nothing_left()


@pytest.mark.xdist_group("openstack")
@pytest.mark.parametrize(
    ("whole", "virtual"), [(2, 1), pytest.param(6, 4, marks=pytest.mark.matrix)]
)
def test_jobs_run_in_servers_with_the_gpus_that_they_need(
    newest_condor: Condor, openstack: OpenStackLab, whole: int, virtual: int
) -> None:
    with gridka(newest_condor, openstack, whole=whole, virtual=virtual) as lab:
        more_jobs_than_gpus_run(lab, whole, virtual)
        seen = lab.controller.live()
        servers = {each["name"]: each for each in openstack.servers()}
        assert servers.keys() == {d["id"] for d in seen}
        for drone in seen:
            server, kind = servers[drone["id"]], drone["type"].partition("/")[2]
            assert server["status"] == "ACTIVE"
            assert (
                server["flavor"]["original_name"]
                == {"h100": "gpu.h100.pci", "vgpu": "gpu.h100.vgpu"}[kind]
            )
            assert set(server["tags"]) == {
                "gpu-drone",
                f"{lab.controller.name}.gridka",
                drone["id"],
            }
            marks = {
                "drone": drone["id"],
                "controller": lab.controller.name,
                "site": "gridka",
                "type": kind,
                "epoch": "0",
            }
            assert server["metadata"] == {
                f"provisioner_{key}": value for key, value in marks.items()
            }
        assert Counter(port["device_id"] for port in openstack.ports()) == {
            s["id"]: 1 for s in servers.values()
        }
        from_volume = [[servers[d["id"]]["id"]] for d in seen if d["type"] == "gridka/vgpu"]
        attached = [
            [each["server_id"] for each in volume["attachments"]] for volume in openstack.disks()
        ]
        assert sorted(attached) == sorted(from_volume)

        jobs_end(lab)
        drones = lab.controller.drones()
        assert [d["state"] for d in drones if d["id"] in servers] == ["done"] * (whole + virtual), (
            "no drone more than GPUs"
        )
        # Nova's scheduler learns a moment later which host has a whole GPU left.
        assert all(
            "Claim pci failed" in lab.shown(d["id"]) for d in drones if d["id"] not in servers
        )
        assert (openstack.servers(), openstack.ports(), openstack.disks()) == ([], [], [])
        for drone_id in servers:
            told = lab.shown(drone_id)
            assert "gpu-drone: setting up" in told and f"=== drone {drone_id} exit=0 " in told, told
