"""Drones as pods of a real control plane: jobs run in them, and whatever the cluster does has the right outcome."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter

from tests.labs.facilities import CernLab, cern
from tests.labs.htcondor import Condor, until
from tests.labs.kubernetes import KubernetesLab


def test_twenty_jobs_run_in_pods_of_three_types(
    newest_condor: Condor, kubernetes: KubernetesLab
) -> None:
    with cern(newest_condor, kubernetes) as lab:
        lab.controller.start()
        clusters = lab.submit(6, large=True), lab.submit(14)
        until(
            lambda: sum(lab.overlay.statuses(each).count(2) for each in clusters) == 20,
            240,
            what="all run",
            every_s=1,
        )
        kinds = Counter(each["type"] for each in lab.controller.live())
        assert kinds == {"cern/a100": 8, "cern/share": 6, "cern/mig": 6}, kinds
        pods = {each["metadata"]["name"]: each for each in lab.pods()}
        for drone in lab.controller.live():
            pod = pods[drone["id"]]
            assert pod["status"]["phase"] == "Running"
            assert drone["node"].partition("/")[0] == pod["spec"]["nodeName"]
        told = {
            ad["DroneType"]: ad["VramEnforced"] for ad in lab.overlay.slots() if "DroneType" in ad
        }
        assert told["share"] == "mps" and "mps" not in (told["a100"], told["mig"]), told
        second_opinion(kubernetes, lab, set(pods))
        lab.let_go()
        until(lambda: not lab.overlay.jobs(), 120, what="all twenty are done", every_s=0.5)
        done = [ad for each in clusters for ad in lab.overlay.history(each)]
        assert [(ad["JobStatus"], ad["NumJobStarts"]) for ad in done] == [(4, 1)] * 20
        lab.nothing_left()
        assert len(lab.controller.drones()) == 20
        assert not kubernetes.get(
            f"{kubernetes.ours}/secrets?labelSelector=gpu-drone-provisioner/drone"
        )["items"]


def second_opinion(kubernetes: KubernetesLab, lab: CernLab, names: set[str]) -> None:
    """kubectl, where the host has it, lists the same pods by their labels."""
    if (kubectl := shutil.which("kubectl")) is None:
        return
    config = f"--kubeconfig={kubernetes.directory}/admin.kubeconfig"
    labels = (
        f"gpu-drone-provisioner/controller={lab.controller.name},gpu-drone-provisioner/site=cern"
    )
    told = subprocess.check_output(
        [kubectl, config, "get", "pods", "-l", labels, "-o", "name"], text=True, timeout=60
    )
    assert {line.removeprefix("pod/") for line in told.split()} == names
