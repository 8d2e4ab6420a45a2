"""Objects for the administrator are such as the newest Kubernetes accepts, and name every right that is used."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from kubernetes.aio import client
from pydantic import BaseModel

from adapters.kubernetes.capacity import ClusterCapacity
from adapters.kubernetes.rendering import (
    CLUSTER_RIGHTS,
    NAMESPACE_RIGHTS,
    render_access,
    render_blocking,
)
from adapters.kubernetes.settings import KubernetesSiteConfig
from provisioner.model import DroneType, Reserve, SitePolicy

TYPES = [
    DroneType("cern", "a100", gpu_milli=1000, cpus=8, memory_mib=20480, disk_mib=10240),
    DroneType("cern", "mig", gpu_milli=1000, cpus=2, memory_mib=4096, disk_mib=10240),
]
OPTIONS = {
    "image": "x",
    "namespace": "drones",
    "priority_class": "gpu-drones",
    "types": {"mig": {"resource": "nvidia.com/mig-1g.10gb"}},
    "pod": {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
}
MODELS: dict[str, type[BaseModel]] = {
    "NetworkPolicy": client.V1NetworkPolicy,
    "Role": client.V1Role,
    "RoleBinding": client.V1RoleBinding,
    "ClusterRole": client.V1ClusterRole,
    "ClusterRoleBinding": client.V1ClusterRoleBinding,
    "Deployment": client.V1Deployment,
    "Namespace": client.V1Namespace,
    "PriorityClass": client.V1PriorityClass,
    "ResourceQuota": client.V1ResourceQuota,
    "ServiceAccount": client.V1ServiceAccount,
}


def objects(text: str) -> list[dict[str, Any]]:
    found = [each for each in yaml.safe_load_all(text) if each]
    for each in found:
        MODELS[each["kind"]].model_validate(each)
    return found


@pytest.mark.parametrize("kind", ["pod", "job"])
def test_access(kind: str) -> None:
    config = KubernetesSiteConfig.model_validate({**OPTIONS, "kind": kind})
    found = objects(
        render_access(config, TYPES, SitePolicy("cern", max_drones=40, max_gpu_milli=16000))
    )
    kinds = [each["kind"] for each in found]
    assert kinds[:2] == ["Namespace", "ServiceAccount"]
    (role,) = (each for each in found if each["kind"] == "Role")
    rights = {each["resources"][0]: tuple(each["verbs"]) for each in role["rules"]}
    assert {name: rights[name] for name in NAMESPACE_RIGHTS} == NAMESPACE_RIGHTS
    assert ("jobs" in rights) is (kind == "job")
    (wide,) = (each for each in found if each["kind"] == "ClusterRole")
    assert {each["resources"][0] for each in wide["rules"]} == set(CLUSTER_RIGHTS)
    (quota,) = (each for each in found if each["kind"] == "ResourceQuota")
    hard = {"pods": "40", "requests.nvidia.com/gpu": "16", "requests.nvidia.com/mig-1g.10gb": "16"}
    assert quota["spec"]["hard"] == hard


def test_the_quota_counts_drones_only() -> None:
    """Not pods that have ended, nor placeholders; the adapter counts with it in the same way."""

    def quota(**options: Any) -> tuple[dict[str, Any], ClusterCapacity]:
        config = KubernetesSiteConfig.model_validate({**OPTIONS, **options})
        found = objects(render_access(config, TYPES, SitePolicy("cern", max_drones=40)))
        return next(
            each["spec"] for each in found if each["kind"] == "ResourceQuota"
        ), ClusterCapacity(config, TYPES)

    spec, capacity = quota(
        types={"mig": {"resource": "nvidia.com/mig-1g.10gb", "priority_class": "low"}}
    )
    scope = {"scopeName": "PriorityClass", "operator": "In", "values": ["gpu-drones", "low"]}
    assert spec["scopeSelector"] == {"matchExpressions": [scope]}
    status = {"hard": spec["hard"], "used": {"pods": "38"}}
    assert capacity.quota([{"spec": spec, "status": status}]) == {"a100": 2, "mig": 2}
    spec, _ = quota(priority_class="", types={"mig": {"priority_class": "low"}})
    assert "scopeSelector" not in spec, "drones without a class count as well"


def test_drones_call_everything_but_the_metadata_of_a_cloud() -> None:
    text = render_access(KubernetesSiteConfig.model_validate(OPTIONS), TYPES, SitePolicy("cern"))
    assert "&id" not in text, "no aliases"
    (policy,) = (each for each in objects(text) if each["kind"] == "NetworkPolicy")
    (rule,) = policy["spec"]["egress"]
    assert [(each["ipBlock"]["cidr"], each["ipBlock"]["except"]) for each in rule["to"]] == [
        ("0.0.0.0/0", ["169.254.169.254/32"]),
        ("::/0", ["fd00:ec2::254/128"]),
    ]


def test_placeholders_keep_the_reserve_below_the_priority_of_drones() -> None:
    config = KubernetesSiteConfig.model_validate(OPTIONS)
    reserves = (
        Reserve(nodes=("gpu01",), cpus=8, memory_mib=20480, disk_mib=1024),
        Reserve(cpus=4, memory_mib=1024),
    )
    priority, one, rest = objects(
        render_blocking(config, TYPES, SitePolicy("cern", blocking=reserves))
    )
    assert priority["value"] < -10
    spec = one["spec"]["template"]["spec"]
    requests = {"cpu": "8", "memory": "20480Mi", "ephemeral-storage": "1024Mi"}
    assert spec["containers"][0]["resources"]["requests"] == requests
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["gpu01"]}
    ]
    assert spec["tolerations"] == OPTIONS["pod"]["tolerations"]  # type: ignore[index]
    assert rest["metadata"]["name"] == "gpu-placeholder-2"
    spec = rest["spec"]["template"]["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"] == [{"key": "nvidia.com/gpu.count", "operator": "Exists"}]
