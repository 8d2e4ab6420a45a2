"""``provisioner render deployment`` at a real API server: it is accepted, and its controller starts drones.

The kubelets are a stand-in, which runs the command of the first container on this host. So neither the image, the
volumes nor the token of the account are tried here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.labs.facilities import cern
from tests.labs.htcondor import Condor, until
from tests.labs.kubernetes import NAMESPACE, KubernetesLab

pytestmark = pytest.mark.matrix

NAME = "gpu-drone-provisioner"
PATHS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "PersistentVolumeClaim": "/api/v1/namespaces/{}/persistentvolumeclaims",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
}
SECRET = {"metadata": {"name": NAME}, "data": {"controller": "eA=="}}
VOLUME = {
    "metadata": {"name": NAME},
    "spec": {
        "capacity": {"storage": "20Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/nonexistent"},
    },
}


class Deployed:
    """The objects of a manifest in the cluster, to be removed again."""

    def __init__(self, cluster: KubernetesLab) -> None:
        self.cluster = cluster
        self.paths: list[str] = []

    def post(self, path: str, each: Mapping[str, Any]) -> None:
        self.cluster.post(f"{path}?dryRun=All", each)
        self.cluster.post(path, each)
        self.paths.append(f"{path}/{each['metadata']['name']}")

    def remove(self) -> None:
        for path in reversed(self.paths):
            self.cluster.call("DELETE", path, {"propagationPolicy": "Foreground"})
        until(
            lambda: (
                not self.cluster.get(f"{self.cluster.ours}/pods?labelSelector=app={NAME}")["items"]
            ),
            60,
            what="the controller's pod is gone",
        )


@contextmanager
def deployed(cluster: KubernetesLab) -> Iterator[Deployed]:
    made = Deployed(cluster)
    try:
        yield made
    finally:
        made.remove()


def test_the_deployed_controller_starts_a_drone_pod(
    newest_condor: Condor, kubernetes: KubernetesLab
) -> None:
    with cern(newest_condor, kubernetes) as lab, deployed(kubernetes) as manifest:
        lab.controller.write()
        words = ("--image", "registry.invalid/controller:1", "--namespace", NAMESPACE)
        text = lab.controller.prints("render", "deployment", *words)
        manifest.post("/api/v1/persistentvolumes", VOLUME)
        manifest.post(f"{kubernetes.ours}/secrets", SECRET)
        for each in yaml.safe_load_all(text):
            if each["kind"] == "Deployment":
                runs_here(each, lab.controller.config)
            manifest.post(PATHS[each["kind"]].format(NAMESPACE), each)
        job = lab.submit(1)
        until(lab.pods, 120, what="a pod of a drone", every_s=1)
        until(lambda: lab.overlay.statuses(job) == [2], 120, what="its job runs", every_s=1)
        lab.let_go()
        until(lambda: not lab.overlay.jobs(), 120, what="the job is done", every_s=0.5)
        lab.nothing_left()
        [pod] = kubernetes.get(f"{kubernetes.ours}/pods?labelSelector=app={NAME}")["items"]
        assert pod["status"]["phase"] == "Running", json.dumps(pod["status"])


def runs_here(deployment: dict[str, Any], config: Path) -> None:
    """Replace what the stand-in for the kubelets has not: image, volumes, an account that may read the lab's tokens."""
    pod = deployment["spec"]["template"]["spec"]
    pod["securityContext"].update(runAsUser=os.geteuid(), runAsNonRoot=False)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    values = {"PROVISIONER_CONFIG": str(config), "PATH": path}
    for container in pod["containers"]:
        container["env"] = [{"name": name, "value": value} for name, value in values.items()]
