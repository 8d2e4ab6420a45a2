"""Free capacity, quotas and the owner's waiting pods, as counted from the objects of the API."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from adapters.kubernetes.capacity import (
    ClusterCapacity,
    ClusterNode,
    ClusterPod,
    cluster_node,
    cluster_pod,
)
from adapters.kubernetes.settings import KubernetesSiteConfig
from provisioner.model import DroneType

GPU, SLICE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"
A100 = DroneType(
    "cern", "a100", gpu_milli=1000, cpus=8, memory_mib=20480, disk_mib=10240, walltime_s=3600.0
)
MIG = replace(A100, name="mig", cpus=2)
TYPES = {"mig": {"resource": SLICE}}


def placement(*types: DroneType, **options: Any) -> ClusterCapacity:
    return ClusterCapacity(
        KubernetesSiteConfig.model_validate({"image": "x", "types": TYPES, **options}),
        types or (A100,),
    )


def node(
    name: str = "gpu01", *, ready: str = "True", cordoned: bool = False, **more: Any
) -> ClusterNode:
    allocatable = {
        "cpu": "64",
        "memory": "256Gi",
        "ephemeral-storage": "1Ti",
        GPU: "4",
        **more.get("resources", {}),
    }
    return cluster_node(
        {
            "metadata": {"name": name, "labels": more.get("labels", {})},
            "spec": {"unschedulable": cordoned, "taints": more.get("taints", [])},
            "status": {
                "allocatable": allocatable,
                "conditions": [{"type": "Ready", "status": ready}],
            },
        }
    )


def pod(
    node: str = "gpu01",
    *,
    gpus: int = 1,
    priority: int = 0,
    cpu: str = "8",
    phase: str = "",
    **more: Any,
) -> ClusterPod:
    conditions = (
        [] if node else [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    )
    resources = {"requests": {"cpu": cpu, "memory": "20Gi", GPU: str(gpus)}}
    return cluster_pod(
        {
            "metadata": {
                "name": "x",
                "namespace": "physics",
                "creationTimestamp": "1970-01-01T00:01:00Z",
            },
            "spec": {
                "nodeName": node,
                "priority": priority,
                "containers": [{"resources": resources}],
                **more,
            },
            "status": {
                "phase": phase or ("Running" if node else "Pending"),
                "conditions": conditions,
            },
        },
        is_ours=False,
    )


def test_free_is_what_is_allocatable_less_the_requests_of_all_pods() -> None:
    (found,) = placement().nodes([node()], [pod(), pod(cpu="500m"), pod("other"), pod("")])
    assert (found.name, found.types, found.gpu_milli) == ("gpu01", ("a100",), 4000)
    assert (found.free_gpu_milli, found.free_cpus, found.free_memory_mib) == (
        2000,
        55,
        (256 - 40) * 1024,
    )


def test_init_containers_and_overhead_count_as_the_scheduler_counts_them() -> None:
    init = [{"resources": {"requests": {"cpu": "10"}}}]
    assert pod(initContainers=init, overhead={"cpu": "250m"}).shape.requests[
        "cpu"
    ] == pytest.approx(10.25)


def container(cpu: str, **more: Any) -> dict[str, Any]:
    return {"resources": {"requests": {"cpu": cpu}}, **more}


@pytest.mark.parametrize(
    ("init", "cpus"),
    [
        ([container("2", restartPolicy="Always")], 10.0),
        ([container("2", restartPolicy="Always"), container("9")], 11.0),
        ([container("9"), container("2", restartPolicy="Always")], 10.0),
        (
            [
                container("3", restartPolicy="Always"),
                container("2", restartPolicy="Always"),
                container("4"),
            ],
            13.0,
        ),
    ],
)
def test_sidecars_run_beside_the_containers(init: list[dict[str, Any]], cpus: float) -> None:
    assert pod(cpu="8", initContainers=init).shape.requests["cpu"] == cpus


def test_requests_of_the_pod_as_a_whole_come_first() -> None:
    found = pod(cpu="8", resources={"requests": {"cpu": "3"}}, overhead={"cpu": "1"}).shape.requests
    assert (found["cpu"], found["memory"], found[GPU]) == (4.0, 20 * 1024**3, 1.0)


CORDON = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]


@pytest.mark.parametrize(
    "closed",
    [
        {"ready": "Unknown"},
        {"ready": "False"},
        {"cordoned": True},
        {"cordoned": True, "taints": CORDON},
    ],
)
def test_a_closed_node_has_nothing_free(closed: dict[str, Any]) -> None:
    (found,) = placement().nodes([node(**closed)], [])
    assert (found.gpu_milli, found.free_gpu_milli, found.free_cpus) == (4000, 0, 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("karpenter.sh/disrupted", ""),
        ("node.cloudprovider.kubernetes.io/uninitialized", "true"),
        ("ToBeDeletedByClusterAutoscaler", "1718000000"),
        ("startup-taint.cluster-autoscaler.kubernetes.io/gpu", ""),
        ("example.com/provisioning", ""),
        ("example.com/state", "draining"),
    ],
)
def test_a_node_with_a_passing_taint_stays_listed_without_room(key: str, value: str) -> None:
    tainted = node(taints=[{"key": key, "value": value, "effect": "NoSchedule"}])
    (found,) = placement().nodes([tainted], [])
    assert (found.gpu_milli, found.free_gpu_milli) == (4000, 0)
    assert placement().unfit([tainted], [found]) == {}


def test_a_taint_that_stays_excludes_a_node_whatever_its_prefix() -> None:
    tainted = node(
        taints=[{"key": "node.kubernetes.io/gpu-model", "value": "l4", "effect": "NoSchedule"}]
    )
    assert placement().nodes([tainted], []) == ()


def test_drones_tolerate_the_taint_of_their_own_resource() -> None:
    tainted = node(taints=[{"key": GPU, "value": "present", "effect": "NoSchedule"}])
    (found,) = placement().nodes([tainted], [])
    assert found.free_gpu_milli == 4000
    other = node(taints=[{"key": "amd.com/gpu", "value": "present", "effect": "NoSchedule"}])
    assert placement().nodes([other], []) == ()


def test_taints_selectors_and_products_exclude_nodes() -> None:
    tainted = node(taints=[{"key": "gpu", "value": "only", "effect": "NoSchedule"}])
    assert placement().nodes([tainted], []) == ()
    tolerating = {"pod": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}}
    assert placement(**tolerating).nodes([tainted], [])
    assert (
        placement(**{"pod": {"tolerations": [{"key": "gpu", "value": "other"}]}}).nodes(
            [tainted], []
        )
        == ()
    )
    assert placement(node_selector={"pool": "gpu"}).nodes([node()], []) == ()
    products = {"types": {"a100": {"products": ["A100", "H100"]}}}
    assert placement(**products).nodes([node()], []) == ()
    assert placement(**products).nodes([node(labels={"nvidia.com/gpu.product": "H100"})], [])


def affinity(*expressions: dict[str, Any], **more: Any) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions), **more}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


LABELS = {"pool": "h100", "gen": "9"}


@pytest.mark.parametrize(
    ("rules", "fits"),
    [
        (affinity({"key": "pool", "operator": "In", "values": ["h100", "h200"]}), True),
        (affinity({"key": "pool", "operator": "In", "values": ["a100"]}), False),
        (affinity({"key": "pool", "operator": "NotIn", "values": ["h100"]}), False),
        (affinity({"key": "none", "operator": "NotIn", "values": ["h100"]}), True),
        (affinity({"key": "pool", "operator": "Exists"}), True),
        (affinity({"key": "none", "operator": "Exists"}), False),
        (affinity({"key": "none", "operator": "DoesNotExist"}), True),
        (affinity({"key": "gen", "operator": "Gt", "values": ["8"]}), True),
        (affinity({"key": "gen", "operator": "Lt", "values": ["9"]}), False),
        (affinity({"key": "none", "operator": "Lt", "values": ["9"]}), False),
        (
            affinity({"key": "pool", "operator": "Exists"}, {"key": "none", "operator": "Exists"}),
            False,
        ),
        (
            affinity(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["gpu01"]}]),
            True,
        ),
        (affinity(), False),
    ],
)
def test_node_affinities_of_both_sides(rules: dict[str, Any], fits: bool) -> None:
    here = node(labels=LABELS)
    waiting = pod("", priority=100, **rules)
    assert bool(placement().claims([waiting], [here], placement().nodes([here], []), -10)) is fits
    assert bool(placement(pod=rules).nodes([here], [])) is fits


def test_a_node_with_two_gpu_resources_is_listed_for_each() -> None:
    both = placement(A100, MIG)
    whole, slices = both.nodes([node(resources={SLICE: "7"})], [pod()])
    assert (whole.name, whole.types, whole.free_gpu_milli) == ("gpu01", ("a100",), 3000)
    assert (slices.name, slices.types, slices.free_gpu_milli) == (
        "gpu01/mig-1g.10gb",
        ("mig",),
        7000,
    )
    assert both.node_name("gpu01", "mig") == "gpu01/mig-1g.10gb"
    assert both.node_name("gpu01", "a100") == "gpu01"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"types": {"a100": {"resource": "nvidia.com/gpus"}}},
            "no node has the resource `nvidia.com/gpus`, only ",
        ),
        (
            {"types": {"a100": {"resources": {SLICE: 8}}}},
            f"it requests 8 of `{SLICE}`, and no node has more than 7",
        ),
        (
            {"types": {"a100": {"products": ["A100"]}}},
            "no node meets its `products`, `node_selector`, affinity",
        ),
        ({}, None),
    ],
)
def test_a_type_that_no_node_can_run_is_told_with_what_is_missing(
    options: dict[str, Any], why: str | None
) -> None:
    here, made = node(resources={SLICE: "7"}, cordoned=True), placement(**options)
    found = made.unfit([here], made.nodes([here], [pod()]))
    assert list(found) == (["a100"] if why else [])
    assert found.get("a100", "").startswith(why or "")


def test_drones_with_and_without_gpus_share_a_node() -> None:
    """A node of a name is listed once, so that blocking keeps its CPUs for its GPUs."""
    cpu = replace(A100, name="cpu", gpu_milli=0)
    (found,) = placement(cpu, A100).nodes([node()], [])
    assert (found.name, found.types, found.gpu_milli) == ("gpu01", ("cpu", "a100"), 4000)


@pytest.mark.parametrize("options", [{"claim_template": "one"}, {"resource": "none"}])
def test_gpus_without_a_resource_make_the_capacity_unknown(options: dict[str, str]) -> None:
    assert placement(A100, MIG).unknown == ""
    found = placement(A100, MIG, types={**TYPES, "a100": options})
    why = "free capacity is not known: GPUs of `a100` come from a claim or an annotation. Move them to another site"
    assert found.unknown == why


def quota(hard: dict[str, str], used: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {"spec": spec, "status": {"hard": hard, "used": used}}


def test_a_quota_says_how_many_more() -> None:
    both = placement(A100, MIG)
    gpus = quota({f"requests.{GPU}": "8", "pods": "60"}, {f"requests.{GPU}": "5", "pods": "10"})
    assert both.quota([gpus]) == {"a100": 3, "mig": 50}
    assert both.quota([gpus, quota({"requests.cpu": "20"}, {"requests.cpu": "1500m"})]) == {
        "a100": 2,
        "mig": 9,
    }
    assert both.quota([]) is None
    assert both.quota([quota({"pods": "5"}, {"pods": "7"})]) == {"a100": 0, "mig": 0}


def selected(scope: str, **rule: Any) -> dict[str, Any]:
    return {"scopeSelector": {"matchExpressions": [{"scopeName": scope, **rule}]}}


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({"scopes": ["Terminating"]}, True),
        ({"scopes": ["NotTerminating"]}, False),
        ({"scopes": ["BestEffort"]}, False),
        ({"scopes": ["NotBestEffort"]}, True),
        ({"scopes": ["CrossNamespacePodAffinity"]}, False),
        (selected("NotTerminating", operator="Exists"), False),
        (selected("PriorityClass", operator="In", values=["low"]), True),
        (selected("PriorityClass", operator="In", values=["x"]), False),
        (selected("PriorityClass", operator="NotIn", values=["low"]), False),
        (selected("PriorityClass", operator="Exists"), True),
        (selected("PriorityClass", operator="DoesNotExist"), False),
    ],
)
def test_a_quota_counts_in_its_scope(spec: dict[str, Any], counts: bool) -> None:
    found = placement(priority_class="low").quota([quota({"pods": "5"}, {"pods": "5"}, **spec)])
    assert found == ({"a100": 0} if counts else None)


def test_waiting_pods_of_a_higher_priority_are_claims() -> None:
    nodes = [node(), node("gpu02", labels={"pool": "h100"})]
    here = placement()
    pods = [
        pod("", gpus=2, priority=100),
        pod("", gpus=2, priority=100),
        pod("", gpus=1, priority=100, nodeSelector={"pool": "h100"}),
        pod(
            "",
            gpus=1,
            priority=100,
            **affinity({"key": "pool", "operator": "In", "values": ["none"]}),
        ),
        pod("", gpus=1, priority=-20),  # after us
        pod("", gpus=0, priority=100),  # needs no GPU
        pod("", gpus=99, priority=100),  # fits no node
        pod("gpu01", priority=100),
    ]
    listed = here.nodes(nodes, pods)
    two, one = sorted(
        here.claims(pods, nodes, listed, -10), key=lambda each: each.count, reverse=True
    )
    assert (two.count, two.gpu_milli, two.cpus, two.memory_mib, two.nodes) == (
        2,
        2000,
        8,
        20480,
        (),
    )
    assert (two.who, two.since) == ("physics", 60.0)
    assert (one.count, one.nodes) == (1, ("gpu02",))
    load = here.owner_load(pods, listed, -10)
    assert (load.jobs, load.gpu_milli, load.cpus) == (1, 1000, 8)
