"""Nodes of the cluster as capacity for drones, the namespace's quota, and the waiting pods of a higher priority.

Free is what a node can allocate less the requests of all pods on it, as the scheduler counts. So the pods of all
namespaces have to be seen; without that right, free capacity is not known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from adapters.kubernetes.pods import requests
from adapters.kubernetes.records import Record, mapping, mappings, mebibytes, moment, number, quantity, text
from adapters.kubernetes.settings import KubernetesSiteConfig
from adapters.shared.printing import printable
from provisioner.model import WHOLE_GPU, DroneType, Node, OwnerDemand, OwnerLoad

_MAX_CLAIMS = 500
_CLOSING_EFFECTS = ("NoSchedule", "NoExecute")
_CONDITION_TAINTS = "node.kubernetes.io/"
Amounts = Mapping[str, float]
"""Amounts by resource, in base units."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    name: str
    labels: Mapping[str, str]
    allocatable: Amounts
    taints: tuple[Record, ...]
    open: bool
    """It is ready and takes new pods."""


@dataclass(frozen=True, slots=True)
class ClusterPod:
    """A pod of any namespace."""

    node: str
    requests: Amounts
    priority: int
    waits: bool
    """The scheduler has found no node for it."""
    running: bool
    since: float
    selector: Mapping[str, str]
    tolerations: tuple[Record, ...]
    namespace: str
    ours: bool


def cluster_node(found: Record) -> ClusterNode:
    meta, spec, status = (mapping(found.get(key)) for key in ("metadata", "spec", "status"))
    ready = any(
        text(each, "type") == "Ready" and text(each, "status") == "True" for each in mappings(status.get("conditions"))
    )
    taints = [each for each in mappings(spec.get("taints")) if text(each, "effect") in _CLOSING_EFFECTS]
    # A condition, as of a cordoned or unreachable node, passes; other taints keep drones away for good.
    passing = [each for each in taints if text(each, "key").startswith(_CONDITION_TAINTS)]
    return ClusterNode(
        name=text(meta, "name"),
        labels=mapping(meta.get("labels")),
        allocatable={name: quantity(amount) for name, amount in mapping(status.get("allocatable")).items()},
        taints=tuple(each for each in taints if each not in passing),
        open=ready and not passing and spec.get("unschedulable") is not True,
    )


def cluster_pod(found: Record, is_ours: bool) -> ClusterPod:
    meta, spec, status = (mapping(found.get(key)) for key in ("metadata", "spec", "status"))
    phase = text(status, "phase")
    scheduled = [each for each in mappings(status.get("conditions")) if text(each, "type") == "PodScheduled"]
    waits = phase == "Pending" and any(text(each, "reason") == "Unschedulable" for each in scheduled)
    return ClusterPod(
        node=text(spec, "nodeName"),
        requests=pod_requests(spec),
        priority=int(number(spec, "priority")),
        waits=waits,
        running=phase in ("Pending", "Running", "Unknown") and bool(text(spec, "nodeName")),
        since=moment(meta, "creationTimestamp"),
        selector=mapping(spec.get("nodeSelector")),
        tolerations=tuple(mappings(spec.get("tolerations"))),
        namespace=text(meta, "namespace"),
        ours=is_ours,
    )


def pod_requests(spec: Record) -> Amounts:
    """Return what a pod holds of its node: its containers together, or its largest init container if that is more."""
    total: dict[str, float] = {}
    for container in mappings(spec.get("containers")):
        for name, amount in mapping(mapping(container.get("resources")).get("requests")).items():
            total[name] = total.get(name, 0.0) + quantity(amount)
    for container in mappings(spec.get("initContainers")):
        for name, amount in mapping(mapping(container.get("resources")).get("requests")).items():
            total[name] = max(total.get(name, 0.0), quantity(amount))
    for name, amount in mapping(spec.get("overhead")).items():
        total[name] = total.get(name, 0.0) + quantity(amount)
    return total


def tolerates(tolerations: Iterable[Record], taint: Record) -> bool:
    for each in tolerations:
        key_fits = text(each, "key") in ("", text(taint, "key"))
        value_fits = text(each, "operator") == "Exists" or text(each, "value") == text(taint, "value")
        if key_fits and value_fits and text(each, "effect") in ("", text(taint, "effect")):
            return True
    return False


class ClusterCapacity:
    """The drone types of a site with what their pods need of a node."""

    def __init__(self, config: KubernetesSiteConfig, types: Sequence[DroneType]) -> None:
        self._config, self._types = config, types
        self._needs = {kind.name: {n: quantity(a) for n, a in requests(kind, config).items()} for kind in types}
        self._resources = {kind.name: config.resource(kind) for kind in types}
        self.known = not any(config.options(kind.name).claim_template for kind in types)
        """False: GPUs come from claims, and what is free of them is not counted."""

    def nodes(self, nodes: Iterable[ClusterNode], pods: Iterable[ClusterPod]) -> tuple[Node, ...]:
        """Return the nodes that can run drones.

        A node with several GPU resources that drones use is listed once for each, as ``node`` and ``node/resource``,
        with the same CPUs and memory.
        """
        held: dict[str, dict[str, float]] = {}
        for pod in pods:
            if pod.running:
                of_node = held.setdefault(pod.node, {})
                for name, amount in pod.requests.items():
                    of_node[name] = of_node.get(name, 0.0) + amount
        found = []
        for node in nodes:
            hosted: dict[str, list[str]] = {}
            for kind in self._types:
                if self._fits(kind, node):
                    hosted.setdefault(self._resources[kind.name], []).append(kind.name)
            for resource, names in hosted.items():
                found.append(_node(node, self.node_name(node.name, names[0]), resource, names, held.get(node.name, {})))
        return tuple(found)

    def node_name(self, node: str, kind: str) -> str:
        """Return the name under which a node is listed for drones of a type."""
        resource = self._resources.get(kind, "")
        main = next((each for each in self._resources.values() if each), "")
        return node if not node or resource in ("", main) else f"{node}/{resource.rpartition('/')[2]}"

    def _fits(self, kind: DroneType, node: ClusterNode) -> bool:
        """Return whether the node, empty, could run a drone of the type."""
        options = self._config.options(kind.name)
        tolerations = mappings(options.pod.get("tolerations"))
        return (
            all(node.allocatable.get(name, 0.0) >= amount for name, amount in self._needs[kind.name].items())
            and options.node_selector.items() <= node.labels.items()
            and (not options.products or node.labels.get("nvidia.com/gpu.product") in options.products)
            and all(tolerates(tolerations, taint) for taint in node.taints)
        )

    def quota(self, quotas: Iterable[Record]) -> Mapping[str, int] | None:
        """Return how many more drones of each type the namespace's quotas allow; None without any."""
        found: dict[str, int] = {}
        for each in quotas:
            spec, status = mapping(each.get("spec")), mapping(each.get("status"))
            hard, used = mapping(status.get("hard")), mapping(status.get("used"))
            for kind in self._types:
                if not self._in_scope(kind, spec):
                    continue
                for name, need in self._quota_needs(kind).items():
                    if name in hard:
                        left = max(0, math.floor((quantity(hard[name]) - quantity(used.get(name, 0))) / need))
                        found[kind.name] = min(found.get(kind.name, left), left)
        return found or None

    def _quota_needs(self, kind: DroneType) -> Amounts:
        needs = {"pods": 1.0, "count/pods": 1.0, "count/secrets": 1.0, "secrets": 1.0}
        for name, amount in self._needs[kind.name].items():
            if amount:
                needs |= {f"requests.{name}": amount, f"limits.{name}": amount}
                if "/" not in name:
                    needs[name] = amount
        return needs

    def _in_scope(self, kind: DroneType, spec: Record) -> bool:
        """Return whether a quota counts pods of a type ("Quota scopes")."""
        priority = self._config.options(kind.name).priority_class
        for scope in spec.get("scopes") or []:
            if scope == "BestEffort" or scope == ("NotTerminating" if kind.walltime_s else "Terminating"):
                return False
        for each in mappings(mapping(spec.get("scopeSelector")).get("matchExpressions")):
            if text(each, "scopeName") == "PriorityClass":
                named, operator = each.get("values") or [], text(each, "operator")
                fits = {"In": priority in named, "NotIn": priority not in named, "Exists": bool(priority)}
                if not fits.get(operator, not priority):
                    return False
        return True

    def claims(
        self, pods: Iterable[ClusterPod], nodes: Sequence[ClusterNode], listed: Sequence[Node], priority: int
    ) -> tuple[OwnerDemand, ...]:
        """Return the demand of pods of a higher priority that wait for GPUs of the kinds that drones hold."""
        by_name = {node.name: node for node in nodes}
        used = {name for name in self._resources.values() if name}
        shapes: dict[tuple[object, ...], list[ClusterPod]] = {}
        for pod in pods:
            if pod.waits and not pod.ours and pod.priority > priority and any(pod.requests.get(name) for name in used):
                key = (pod.namespace, tuple(sorted(pod.requests.items())), tuple(sorted(pod.selector.items())))
                shapes.setdefault(key, []).append(pod)
        found = []
        for waiting in shapes.values():
            pod = waiting[0]
            hosts = [each.name for each in listed if _could_run(pod, by_name[each.name.partition("/")[0]])]
            if hosts:
                gpus = sum(amount for name, amount in pod.requests.items() if name in used)
                demand = OwnerDemand(
                    count=len(waiting),
                    gpu_milli=round(gpus) * WHOLE_GPU,
                    cpus=math.ceil(pod.requests.get("cpu", 0.0)),
                    memory_mib=math.ceil(pod.requests.get("memory", 0.0) / 1024**2),
                    since=min(each.since for each in waiting),
                    disk_mib=math.ceil(pod.requests.get("ephemeral-storage", 0.0) / 1024**2),
                    nodes=() if len(hosts) == len(listed) else tuple(hosts),
                    who=printable(pod.namespace),
                )
                found.append(demand)
        return tuple(sorted(found, key=lambda demand: demand.since)[:_MAX_CLAIMS])

    def owner_load(self, pods: Iterable[ClusterPod], listed: Sequence[Node], priority: int) -> OwnerLoad:
        """Return what running pods of a higher priority use of the nodes that can run drones."""
        names = {node.name.partition("/")[0] for node in listed}
        used = {name for name in self._resources.values() if name}
        total = OwnerLoad()
        for pod in pods:
            if pod.running and not pod.ours and pod.priority > priority and pod.node in names:
                gpus = sum(amount for name, amount in pod.requests.items() if name in used)
                total = OwnerLoad(
                    total.jobs + 1,
                    total.gpu_milli + round(gpus) * WHOLE_GPU,
                    total.cpus + math.ceil(pod.requests.get("cpu", 0.0)),
                    total.memory_mib + math.ceil(pod.requests.get("memory", 0.0) / 1024**2),
                )
        return total


def _could_run(pod: ClusterPod, node: ClusterNode) -> bool:
    return (
        all(node.allocatable.get(name, 0.0) >= amount for name, amount in pod.requests.items())
        and pod.selector.items() <= node.labels.items()
        and all(tolerates(pod.tolerations, taint) for taint in node.taints)
    )


def _node(node: ClusterNode, name: str, resource: str, types: Sequence[str], held: Amounts) -> Node:
    def free(key: str) -> float:
        return max(0.0, node.allocatable.get(key, 0.0) - held.get(key, 0.0)) if node.open else 0.0

    return Node(
        name=name,
        types=tuple(types),
        gpu_milli=int(node.allocatable.get(resource, 0.0)) * WHOLE_GPU,
        cpus=int(node.allocatable.get("cpu", 0.0)),
        memory_mib=mebibytes(node.allocatable.get("memory", 0.0)),
        disk_mib=mebibytes(node.allocatable.get("ephemeral-storage", 0.0)),
        free_gpu_milli=int(free(resource)) * WHOLE_GPU,
        free_cpus=int(free("cpu")),
        free_memory_mib=mebibytes(free("memory")),
        free_disk_mib=mebibytes(free("ephemeral-storage")),
    )
