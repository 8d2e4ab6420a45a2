"""Pods, Jobs and secrets are objects that the newest Kubernetes accepts, and hold what a drone needs.

The official models refuse unknown fields and wrong types; an API server ignores unknown ones.
"""

from __future__ import annotations

import base64
import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes.aio import client

from adapters.kubernetes.pods import PodNames, job_body, pod_body, requests, secret_body
from adapters.kubernetes.settings import KubernetesSiteConfig
from adapters.kubernetes.states import drone_pod, waiting_job
from adapters.shared.parcel import UnfitError
from provisioner.model import Bootstrap, DroneId, DroneType, StartOrder

NAMES = PodNames("kit", "cern")
A100 = DroneType(
    "cern",
    "a100",
    gpu_milli=2000,
    cpus=16,
    memory_mib=40960,
    disk_mib=10240,
    vram_mib=40960,
    walltime_s=3600.0,
)
SCRIPT = b"#!/bin/sh\necho drone=x exit=0 reason=idle >outcome\n"


def order(kind: DroneType = A100, **files: bytes) -> StartOrder:
    bootstrap = Bootstrap(SCRIPT, {"TOLD": 'it\'s $HOME, "quoted"'}, {"token": b"secret", **files})
    return StartOrder(
        DroneId("kit-a1-7"), kind, idle_timeout_s=60.0, grace_s=30.0, bootstrap=bootstrap
    )


def config(**options: Any) -> KubernetesSiteConfig:
    return KubernetesSiteConfig.model_validate({"image": "registry.example.org/drone:1", **options})


EVERYTHING = {
    "priority_class": "gpu-drones",
    "queue": "drones",
    "node_selector": {"pool": "gpu"},
    "labels": {"cost-centre": "wlcg"},
    "annotations": {"gpu-fraction": "0.25"},
    "pod": {
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "schedulerName": "kai-scheduler",
        "volumes": [{"name": "cvmfs", "hostPath": {"path": "/cvmfs"}}],
        "securityContext": {"supplementalGroups": [44]},
    },
    "container": {
        "volumeMounts": [{"name": "cvmfs", "mountPath": "/cvmfs"}],
        "imagePullPolicy": "Always",
    },
    "types": {
        "a100": {"products": ["NVIDIA-A100-SXM4-40GB"], "resources": {"nvidia.com/gpumem": 8000}}
    },
}


@pytest.mark.parametrize(
    "options",
    [{}, EVERYTHING, {"types": {"a100": {"claim_template": "one-slice"}}}],
    ids=["least", "everything", "dra"],
)
def test_the_official_models_accept_what_is_sent(options: dict[str, Any]) -> None:
    made = config(**options)
    pod = pod_body(order(), made, NAMES)
    client.V1Pod.model_validate(pod)
    client.V1Job.model_validate(job_body(pod))
    client.V1Secret.model_validate(secret_body(order(), made, NAMES, "u-1"))


def test_pods_jobs_and_secrets_carry_the_epoch_of_their_order_and_listings_have_it() -> None:
    third = replace(order(), epoch=3)
    pod = pod_body(third, config(), NAMES)
    found = drone_pod(pod, NAMES)
    waits = waiting_job(job_body(pod), NAMES)
    assert found is not None and waits is not None
    assert (found.drone.epoch, waits.drone.epoch) == (3, 3)
    del pod["metadata"]["labels"]["gpu-drone-provisioner/epoch"]  # as before there were epochs
    before = drone_pod(pod, NAMES)
    assert before is not None and before.drone.epoch == 0


def test_a_misspelt_field_is_refused_by_these_models() -> None:
    pod = pod_body(order(), config(), NAMES)
    with pytest.raises(ValueError, match="restartPolcy"):
        client.V1Pod.model_validate({**pod, "spec": {**pod["spec"], "restartPolcy": "Never"}})


def test_requests_are_limits_and_count_the_gpus() -> None:
    container = pod_body(order(), config(), NAMES)["spec"]["containers"][0]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    limits = {
        "cpu": "16",
        "memory": "40960Mi",
        "ephemeral-storage": "10240Mi",
        "nvidia.com/gpu": "2",
    }
    assert container["resources"]["limits"] == limits


@pytest.mark.parametrize(
    ("kind", "options", "resource"),
    [
        (A100, {}, "nvidia.com/gpu"),
        (replace(A100, vendor="amd"), {}, "amd.com/gpu"),
        (replace(A100, vendor="intel"), {}, "gpu.intel.com/i915"),
        (
            A100,
            {"types": {"a100": {"resource": "nvidia.com/mig-1g.10gb"}}},
            "nvidia.com/mig-1g.10gb",
        ),
        (A100, {"types": {"a100": {"claim_template": "one-slice"}}}, ""),
        (
            A100,
            {"types": {"a100": {"resource": "none"}}, "annotations": {"gpu-fraction": "0.25"}},
            "",
        ),
        (replace(A100, gpu_milli=0), {}, ""),
    ],
)
def test_the_resource_of_a_type(kind: DroneType, options: dict[str, Any], resource: str) -> None:
    asked = {name for name in requests(kind, config(**options)) if "/" in name}
    assert asked == ({resource} if resource else set())


def test_a_claim_of_dra_takes_the_place_of_the_resource() -> None:
    spec = pod_body(order(), config(types={"a100": {"claim_template": "one-slice"}}), NAMES)["spec"]
    assert spec["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "one-slice"}]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]


def test_the_life_of_a_pod_is_bounded_and_nothing_runs_as_root() -> None:
    spec = pod_body(order(), config(**EVERYTHING), NAMES)["spec"]
    assert spec["restartPolicy"] == "Never"
    assert spec["terminationGracePeriodSeconds"] == 40
    assert spec["activeDeadlineSeconds"] == 3630
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["supplementalGroups"] == [44]
    assert spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] is False
    assert [each["name"] for each in spec["volumes"]] == ["drone-files", "drone-work", "cvmfs"]


def test_fields_of_the_operator_are_added_and_replace_none_of_ours() -> None:
    security = {
        "capabilities": {"drop": []},
        "seccompProfile": None,
        "readOnlyRootFilesystem": True,
    }
    container = {"env": [{"name": "NCCL_DEBUG", "value": "INFO"}], "securityContext": security}
    spec = pod_body(order(), config(container=container, pod={"enableServiceLinks": None}), NAMES)[
        "spec"
    ]
    assert [each["name"] for each in spec["containers"][0]["env"]] == ["DRONE_NODE", "NCCL_DEBUG"]
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["enableServiceLinks"] is False


def test_several_products_are_one_affinity() -> None:
    wanted = {"types": {"a100": {"products": ["A100", "H100"]}}}
    affinity = pod_body(order(), config(**wanted), NAMES)["spec"]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms == [
        {
            "matchExpressions": [
                {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["A100", "H100"]}
            ]
        }
    ]


def test_a_job_makes_its_pod_once() -> None:
    job = job_body(pod_body(order(), config(), NAMES))
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert NAMES.drone_id({"metadata": job["spec"]["template"]["metadata"]}) == "kit-a1-7"


def unpacked(secret: dict[str, Any]) -> dict[str, bytes]:
    raw = base64.b64decode(secret["data"]["files.tar.gz"])
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archive:
        return {each.name: archive.extractfile(each).read() for each in archive}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "version", "owner"), [("pod", "v1", "Pod"), ("job", "batch/v1", "Job")]
)
def test_the_secret_belongs_to_the_pod_and_holds_the_files(
    kind: str, version: str, owner: str
) -> None:
    secret = secret_body(
        order(), config(kind=kind, env={"CONDOR_PREFIX": "/opt/condor"}), NAMES, "u-1"
    )
    assert secret["metadata"]["ownerReferences"] == [
        {"apiVersion": version, "kind": owner, "name": "kit-a1-7", "uid": "u-1"}
    ]
    files = unpacked(secret)
    assert files["token"] == b"secret"
    assert files[".site/script"] == SCRIPT
    assert b"export CONDOR_PREFIX=/opt/condor" in files[".site/step"]
    assert b"export DRONE_TYPE=a100" in files[".site/step"]


def test_files_that_exceed_a_secret_are_unfit() -> None:
    import os

    with pytest.raises(UnfitError, match="may be"):
        secret_body(order(big=os.urandom(1100_000)), config(), NAMES, "")


def test_the_container_runs_the_drone_and_reports_its_outcome(tmp_path: Path) -> None:
    made = config()
    command = pod_body(order(), made, NAMES)["spec"]["containers"][0]["command"]
    (tmp_path / "files.tar.gz").write_bytes(
        base64.b64decode(secret_body(order(), made, NAMES, "")["data"]["files.tar.gz"])
    )
    (tmp_path / "work").mkdir()
    end = tmp_path / "end"
    env = {
        "DRONE_FILES": str(tmp_path),
        "DRONE_WORK": str(tmp_path / "work"),
        "DRONE_TERMINATION_LOG": str(end),
    }
    done = subprocess.run(
        command,
        env={"PATH": "/usr/bin:/bin", **env},
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert end.read_text() == "drone=x exit=0 reason=idle\n"
