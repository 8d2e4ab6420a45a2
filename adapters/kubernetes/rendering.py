"""Objects for the administrator of the cluster: rights of the drones, and placeholders that keep room for free GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from adapters.kubernetes.settings import KubernetesSiteConfig
from provisioner.model import WHOLE_GPU, DroneType, SitePolicy

ROLE = "gpu-drone-provisioner"
DRONE_PRIORITY, PLACEHOLDER_PRIORITY = -10, -20
NAMESPACE_RIGHTS = {
    "pods": ("get", "list", "watch", "create", "delete"),
    "secrets": ("get", "create"),
    "resourcequotas": ("list", "watch"),
}
"""Rights that the adapter uses in its namespace, of the core API group."""
CLUSTER_RIGHTS = {"pods": ("list", "watch"), "nodes": ("list", "watch")}
"""Rights without which free capacity and the owner's waiting pods are not known."""
JOB_RIGHTS = {"jobs": ("get", "list", "watch", "create", "delete")}
_RBAC = "rbac.authorization.k8s.io"


def render_access(config: KubernetesSiteConfig, types: Sequence[DroneType], policy: SitePolicy) -> str:
    """Return the namespace, rights, quota, priority and network policy of a site's drones, as YAML."""
    namespace = config.namespace or "gpu-drones"
    classes = {config.options(kind.name).priority_class for kind in types} - {""}
    resources = {config.resource(kind) for kind in types} - {""}
    most = policy.max_gpu_milli // WHOLE_GPU if policy.max_gpu_milli is not None else policy.max_drones
    hard = {"count/pods": str(policy.max_drones), **{f"requests.{name}": str(most) for name in sorted(resources)}}
    rules = [_rule("", resource, verbs) for resource, verbs in NAMESPACE_RIGHTS.items()]
    if config.kind == "job":
        rules += [_rule("batch", resource, verbs) for resource, verbs in JOB_RIGHTS.items()]
    wide = [_rule("", resource, verbs) for resource, verbs in CLUSTER_RIGHTS.items()]
    inside = {"namespace": namespace}
    subject = {"kind": "ServiceAccount", "name": ROLE, "namespace": namespace}
    metadata = "169.254.169.254/32"
    objects: list[Mapping[str, Any]] = [
        _object("v1", "Namespace", {"name": namespace}),
        _object("v1", "ServiceAccount", {"name": ROLE, **inside}),
        _object(f"{_RBAC}/v1", "Role", {"name": ROLE, **inside}, rules=rules),
        _binding("RoleBinding", {"name": ROLE, **inside}, "Role", subject),
        _object(f"{_RBAC}/v1", "ClusterRole", {"name": ROLE}, rules=wide),
        _binding("ClusterRoleBinding", {"name": ROLE}, "ClusterRole", subject),
        _object("v1", "ResourceQuota", {"name": ROLE, **inside}, spec={"hard": hard}),
        *(
            _priority(name, DRONE_PRIORITY, "Pilots that run when nobody else needs the GPUs.")
            for name in sorted(classes)
        ),
        _object(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            {"name": ROLE, **inside},
            spec={
                "podSelector": {},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [],
                "egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": [metadata]}}]}],
            },
        ),
    ]
    head = (
        "# Namespace and rights of the drones. Apply with `kubectl apply -f`, then make a token for the controller:\n"
        f"#   kubectl -n {namespace} create token {ROLE}\n"
        "# Drones call the overlay and are called by nobody. Without the ClusterRole free capacity is not known.\n"
    )
    return head + _dumped(objects)


def render_blocking(config: KubernetesSiteConfig, types: Sequence[DroneType], policy: SitePolicy) -> str:
    """Return Deployments of placeholder pods that keep CPUs and memory for free GPUs, as YAML.

    A placeholder has a lower priority than drones: the scheduler removes one when a drone needs its room.
    """
    namespace = config.namespace or "gpu-drones"
    resources = sorted({config.resource(kind) for kind in types} - {""})
    objects: list[Mapping[str, Any]] = [
        _priority("gpu-placeholder", PLACEHOLDER_PRIORITY, "Keeps CPUs and memory for free GPUs.")
    ]
    for number, reserve in enumerate(policy.blocking, 1):
        name = f"gpu-placeholder-{number}"
        requests = {"cpu": str(reserve.cpus), "memory": f"{reserve.memory_mib}Mi"}
        if reserve.disk_mib:
            requests["ephemeral-storage"] = f"{reserve.disk_mib}Mi"
        container = {
            "name": "placeholder",
            "image": "registry.k8s.io/pause:3.10",
            "resources": {"requests": requests, "limits": dict(requests)},
        }
        term = {"key": "nvidia.com/gpu.count", "operator": "Exists"}
        exact = [node for node in reserve.nodes if not set(node) & set("*?[")]
        terms = [term] if len(exact) < len(reserve.nodes) else [_in("kubernetes.io/hostname", exact)]
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        labels = {"app": name}
        pod = {
            "priorityClassName": "gpu-placeholder",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "nodeSelector": dict(config.node_selector),
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            "containers": [container],
            **({"tolerations": config.pod["tolerations"]} if "tolerations" in config.pod else {}),
        }
        spec = {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
        objects.append(_object("apps/v1", "Deployment", {"name": name, "namespace": namespace}, spec=spec))
    head = (
        "# One placeholder for each GPU of the nodes: set `replicas` to the number of these GPUs\n"
        f"# ({', '.join(resources)}). Drones replace them, and so do pods of a priority above {PLACEHOLDER_PRIORITY}:\n"
        "# CPU pods that must not take the room need a lower one, or `preemptionPolicy: Never`.\n"
    )
    return head + _dumped(objects)


def _in(key: str, values: Sequence[str]) -> Mapping[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def _rule(group: str, resource: str, verbs: Sequence[str]) -> Mapping[str, Any]:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


def _binding(kind: str, meta: Mapping[str, str], role: str, subject: Mapping[str, str]) -> Mapping[str, Any]:
    reference = {"apiGroup": _RBAC, "kind": role, "name": ROLE}
    return _object(f"{_RBAC}/v1", kind, meta, roleRef=reference, subjects=[subject])


def _priority(name: str, value: int, description: str) -> Mapping[str, Any]:
    more = {"value": value, "preemptionPolicy": "PreemptLowerPriority", "description": description}
    return _object("scheduling.k8s.io/v1", "PriorityClass", {"name": name}, **more)


def _object(version: str, kind: str, meta: Mapping[str, str], **content: Any) -> Mapping[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": dict(meta), **content}


def _dumped(objects: Iterable[Mapping[str, Any]]) -> str:
    return "".join(f"---\n{yaml.safe_dump(each, sort_keys=False, default_flow_style=False)}" for each in objects)
