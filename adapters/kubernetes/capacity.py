"""Nodes of the cluster as capacity for drones, the namespace's quota, and the waiting pods of a higher priority.

Free is what a node can allocate less the requests of all pods on it, as the scheduler counts. So
the pods of all namespaces have to be seen; without that right, free capacity is not known.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from adapters.kubernetes.pods import PodNames, pod_body
from adapters.kubernetes.quantities import quantity
from adapters.kubernetes.settings import KubernetesSiteConfig
from adapters.shared.json_records import Record, mapping, mappings, moment, number, parts, text
from adapters.shared.printing import printable
from provisioner.model import (
    WHOLE_GPU,
    DroneId,
    DroneType,
    Node,
    OwnerDemand,
    OwnerLoad,
    StartOrder,
)
from provisioner.values import frozen

_MAX_CLAIMS = 500
_MACHINE = ("cpu", "memory", "ephemeral-storage")
_CLOSING_EFFECTS = ("NoSchedule", "NoExecute")
PASSING = re.compile(
    r"not.?ready|unready|readiness|uninit|initiali[sz]ing|(provision|install|configur|prepar|register|join|load|sync|"
    r"start|warm|wait|migrat|recover)ing|pending|unregistered|start-?up|warm-?up|boot|un(reach|avail)able|pressure|"
    r"unschedulable|out-of-service|disrupt|delete|terminat|interruption|spot-itn|rebalanc|shut-?down|drain|cordon|"
    r"evict|quarantin|maintenance|upgrad|update|outdated|repair|remediat|unhealthy|degraded|problem|ignore-taint",
    re.IGNORECASE,
)
"""Words in key or value of a taint that a controller sets for a while. Other taints keep drones away for good.

A taint of the API has a key, a value, an effect and, for NoExecute alone, the time of its addition.
Nothing says whether it will be removed, so the names that controllers give their taints are all
there is.
"""
Amounts = Mapping[str, float]
"""Amounts by resource, in base units."""


@frozen
class ClusterNode:
    name: str
    labels: Mapping[str, str]
    allocatable: Amounts
    taints: tuple[Record, ...]
    open: bool
    """It is ready and takes new pods."""


class PodShape(NamedTuple):
    """Needs and rules of a pod for its node (PodSpec v1)."""

    requests: Amounts
    selector: Mapping[str, str]
    tolerations: Sequence[Record]
    terms: Sequence[Record]
    """Terms of its node affinity, of which one has to match."""

    def fits(self, node: ClusterNode) -> bool:
        """Return whether the node, empty, could run the pod."""
        return (
            all(node.allocatable.get(name, 0.0) >= amount for name, amount in self.requests.items())
            and self.selector.items() <= node.labels.items()
            and (not self.terms or any(_matches(term, node) for term in self.terms))
            and all(
                any(_tolerates(each, taint) for each in self.tolerations) for taint in node.taints
            )
        )


@frozen
class ClusterPod:
    """A pod of any namespace."""

    node: str
    shape: PodShape
    priority: int
    waits: bool
    """The scheduler has found no node for it."""
    running: bool
    since: float
    namespace: str
    ours: bool


def cluster_node(found: Record) -> ClusterNode:
    meta, spec, status = parts(found)
    conditions = {
        text(each, "type"): text(each, "status") for each in mappings(status, "conditions")
    }
    taints = [each for each in mappings(spec, "taints") if text(each, "effect") in _CLOSING_EFFECTS]
    passing = [
        each for each in taints if PASSING.search(f"{text(each, 'key')}: {text(each, 'value')}")
    ]
    return ClusterNode(
        name=text(meta, "name"),
        labels=mapping(meta, "labels"),
        allocatable={
            name: quantity(amount) for name, amount in mapping(status, "allocatable").items()
        },
        taints=tuple(each for each in taints if each not in passing),
        open=conditions.get("Ready") == "True"
        and not passing
        and spec.get("unschedulable") is not True,
    )


def cluster_pod(found: Record, is_ours: bool) -> ClusterPod:
    meta, spec, status = parts(found)
    phase = text(status, "phase")
    scheduled = [
        each for each in mappings(status, "conditions") if text(each, "type") == "PodScheduled"
    ]
    waits = phase == "Pending" and any(
        text(each, "reason") == "Unschedulable" for each in scheduled
    )
    return ClusterPod(
        node=text(spec, "nodeName"),
        shape=pod_shape(spec),
        priority=number(spec, "priority"),
        waits=waits,
        running=phase in ("Pending", "Running", "Unknown") and bool(text(spec, "nodeName")),
        since=moment(meta, "creationTimestamp"),
        namespace=text(meta, "namespace"),
        ours=is_ours,
    )


def pod_shape(spec: Record) -> PodShape:
    affinity = mapping(spec, "affinity", "nodeAffinity")
    terms = mappings(
        affinity, "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"
    )
    return PodShape(
        _held(spec), mapping(spec, "nodeSelector"), mappings(spec, "tolerations"), terms
    )


def _held(spec: Record) -> Amounts:
    """Return what a pod holds of its node: its containers together, or an init container if that is more.

    Sidecars, which are init containers that are always restarted, run beside the containers and
    beside the init containers after them (KEP-753). Requests of the pod as a whole come before
    those of its containers (KEP-2837).
    """
    first, main = (mappings(spec, key) for key in ("initContainers", "containers"))
    whole = _requests(spec)
    overhead = mapping(spec, "overhead")

    def of_containers(name: str) -> float:
        beside = most = 0.0
        for each in first:
            amount = quantity(_requests(each).get(name))
            most = max(most, beside + amount)
            beside += amount if text(each, "restartPolicy") == "Always" else 0.0
        return max(most, beside + sum(quantity(_requests(each).get(name)) for each in main))

    names = {name for each in (*map(_requests, (*first, *main)), whole, overhead) for name in each}
    own = {name: quantity(whole[name]) if name in whole else of_containers(name) for name in names}
    return {name: own[name] + quantity(overhead.get(name)) for name in sorted(names)}


def _requests(holder: Record) -> Record:
    return mapping(holder, "resources", "requests")


def _tolerates(toleration: Record, taint: Record) -> bool:
    fits = text(toleration, "operator") == "Exists" or text(toleration, "value") == text(
        taint, "value"
    )
    return fits and all(
        text(toleration, key) in ("", text(taint, key)) for key in ("key", "effect")
    )


def _matches(term: Record, node: ClusterNode) -> bool:
    """Return whether a term of a node affinity matches; an empty one matches no node."""
    values = {**node.labels, "metadata.name": node.name}  # the only field that may be matched
    found = mappings(term, "matchExpressions") + mappings(term, "matchFields")
    return bool(found) and all(_holds(each, values.get(text(each, "key"))) for each in found)


def _holds(expression: Record, value: str | None) -> bool:
    """Return whether an expression of a selector holds for the value of its key; None: there is none."""
    values = expression.get("values") or [""]
    known = value is not None
    found = {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": known,
        "DoesNotExist": not known,
        "Gt": known and quantity(value) > quantity(values[0]),
        "Lt": known and quantity(value) < quantity(values[0]),
    }
    return found.get(text(expression, "operator"), False)


class ClusterCapacity:
    """The drone types of a site with what their pods need of a node."""

    def __init__(self, config: KubernetesSiteConfig, types: Sequence[DroneType]) -> None:
        self._config = config
        self._types = types
        orders = [StartOrder(DroneId("x"), kind, 0.0, 0.0) for kind in types]
        specs = {
            order.type.name: pod_body(order, config, PodNames("", ""))["spec"] for order in orders
        }
        self._shapes = {name: pod_shape(spec) for name, spec in specs.items()}
        self._resources = {kind.name: config.resource(kind) for kind in types}
        self._used = set(self._resources.values()) - {""}
        uncounted = [
            f"`{kind.name}`" for kind in types if kind.gpu_milli and not self._resources[kind.name]
        ]
        known = "free capacity is not known: GPUs of {} come from a claim or an annotation. Move them to another site"
        self.unknown = known.format(", ".join(uncounted)) if uncounted else ""
        """Reason that free capacity is not known for any type; empty: it is. A view cannot leave out single types."""

    def nodes(self, nodes: Iterable[ClusterNode], pods: Iterable[ClusterPod]) -> tuple[Node, ...]:
        """Return the nodes that can run drones.

        A node with several GPU resources that drones use is listed once for each, as ``node`` and
        ``node/resource``, with the same CPUs and memory.
        """
        held: dict[tuple[str, str], float] = defaultdict(float)
        for pod in pods:
            if pod.running:
                for name, amount in pod.shape.requests.items():
                    held[pod.node, name] += amount
        found = []
        for node in nodes:
            hosted: dict[str, list[str]] = {}
            for kind in self._types:
                if self._shapes[kind.name].fits(node):
                    hosted.setdefault(self.node_name(node.name, kind.name), []).append(kind.name)
            for name, names in hosted.items():
                # CPU drones, whose resource is "", share a node with those of its GPUs.
                keys = (max(self._resources[each] for each in names), *_MACHINE)
                whole = [node.allocatable.get(key, 0.0) for key in keys]
                left = [
                    max(0.0, has - held[node.name, key])
                    for key, has in zip(keys, whole, strict=True)
                ]
                free = _rounded(left if node.open else [0.0] * len(keys), math.floor)
                found.append(Node(name, tuple(names), *_rounded(whole, math.floor), *free))
        return tuple(found)

    def unfit(self, nodes: Sequence[ClusterNode], listed: Iterable[Node]) -> Mapping[str, str]:
        """Return the drone types that no node could run, even if it was empty, with what is missing."""
        hosted = {name for node in listed for name in node.types}
        return {
            name: _lack(shape, nodes) for name, shape in self._shapes.items() if name not in hosted
        }

    def node_name(self, node: str, kind: str) -> str:
        """Return the name under which a node is listed for drones of a type."""
        resource = self._resources.get(kind, "")
        main = next((each for each in self._resources.values() if each), "")
        return (
            node if not node or resource in ("", main) else f"{node}/{resource.rpartition('/')[2]}"
        )

    def quota(self, quotas: Iterable[Record]) -> Mapping[str, int] | None:
        """Return how many more drones of each type the namespace's quotas allow; None without any."""
        found: dict[str, int] = {}
        for each in quotas:
            spec = mapping(each, "spec")
            status = mapping(each, "status")
            hard = mapping(status, "hard")
            used = mapping(status, "used")
            for kind in (each for each in self._types if self._in_scope(each, spec)):
                for name, need in self._quota_needs(kind).items():
                    if name in hard:
                        left = max(
                            0,
                            math.floor((quantity(hard[name]) - quantity(used.get(name, 0))) / need),
                        )
                        found[kind.name] = min(found.get(kind.name, left), left)
        return found or None

    def _quota_needs(self, kind: DroneType) -> Amounts:
        needs = {"pods": 1.0, "count/pods": 1.0, "count/secrets": 1.0, "secrets": 1.0}
        for name, amount in self._shapes[kind.name].requests.items():
            if amount:
                needs |= {f"requests.{name}": amount, f"limits.{name}": amount}
                if "/" not in name:
                    needs[name] = amount
        return needs

    def _in_scope(self, kind: DroneType, spec: Record) -> bool:
        """Return whether a quota counts pods of a type ("Quota scopes")."""
        selected = mappings(spec, "scopeSelector", "matchExpressions")
        scopes = {*(spec.get("scopes") or []), *(text(each, "scopeName") for each in selected)}
        if scopes & {
            "BestEffort",
            "CrossNamespacePodAffinity",
            "NotTerminating" if kind.walltime_s else "Terminating",
        }:
            return False
        priority = self._config.options(kind.name).priority_class or None
        return all(
            _holds(each, priority)
            for each in selected
            if text(each, "scopeName") == "PriorityClass"
        )

    def claims(
        self,
        pods: Iterable[ClusterPod],
        nodes: Sequence[ClusterNode],
        listed: Sequence[Node],
        priority: int,
    ) -> tuple[OwnerDemand, ...]:
        """Return the demand of pods of a higher priority that wait for GPUs of the kinds that drones hold."""
        by_name = {node.name: node for node in nodes}
        shapes: dict[str, list[ClusterPod]] = {}
        for pod in pods:
            if pod.waits and not pod.ours and pod.priority > priority:
                shapes.setdefault(repr((pod.namespace, pod.shape)), []).append(pod)
        found = []
        for waiting in shapes.values():
            who = waiting[0].namespace
            shape = waiting[0].shape
            gpu_milli, cpus, memory_mib, disk_mib = self._sizes(shape)
            hosts = [
                each.name for each in listed if shape.fits(by_name[each.name.partition("/")[0]])
            ]
            if hosts and gpu_milli:
                since = min(each.since for each in waiting)
                on = () if len(hosts) == len(listed) else tuple(hosts)
                found.append(
                    OwnerDemand(
                        len(waiting),
                        gpu_milli,
                        cpus,
                        memory_mib,
                        since,
                        disk_mib,
                        on,
                        printable(who),
                    )
                )
        return tuple(sorted(found, key=lambda demand: demand.since)[:_MAX_CLAIMS])

    def owner_load(
        self, pods: Iterable[ClusterPod], listed: Sequence[Node], priority: int
    ) -> OwnerLoad:
        """Return what running pods of a higher priority use of the nodes that can run drones."""
        names = {node.name.partition("/")[0] for node in listed}
        theirs = [
            pod
            for pod in pods
            if pod.running and not pod.ours and pod.priority > priority and pod.node in names
        ]
        sizes = [self._sizes(pod.shape)[:3] for pod in theirs]
        return OwnerLoad(len(sizes), *(sum(column) for column in zip(*sizes, strict=True)))

    def _sizes(self, shape: PodShape) -> tuple[int, int, int, int]:
        """Return GPUs (milli) of the resources that drones use, CPUs, memory and disk (MiB) that a pod requests."""
        gpus = sum(amount for name, amount in shape.requests.items() if name in self._used)
        return _rounded([gpus, *(shape.requests.get(name, 0.0) for name in _MACHINE)], math.ceil)


def _lack(shape: PodShape, nodes: Sequence[ClusterNode]) -> str:
    """Return what no node has of the needs of a pod."""
    for name, amount in shape.requests.items():
        most = max((node.allocatable.get(name, 0.0) for node in nodes), default=0.0)
        if not most:
            offered = {
                each
                for node in nodes
                for each, has in node.allocatable.items()
                if has and "/" in each
            }
            return f"no node has the resource `{name}`, only {', '.join(sorted(offered)) or 'CPUs and memory'}"
        if most < amount:
            return f"it requests {amount:g} of `{name}`, and no node has more than {most:g}"
    return "no node meets its `products`, `node_selector`, affinity and tolerations"


def _rounded(amounts: Iterable[float], how: Callable[[float], int]) -> tuple[int, int, int, int]:
    """Return GPUs (milli), CPUs, memory and disk (MiB) of amounts in base units."""
    gpus, cpus, memory, disk = amounts
    return how(gpus) * WHOLE_GPU, how(cpus), how(memory / 1024**2), how(disk / 1024**2)
