"""Objects for the administrator of the cluster: rights of the drones, and placeholders that keep room for free GPUs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import yaml

from adapters.kubernetes.settings import KubernetesSiteConfig
from adapters.shared.json_records import Record
from provisioner.model import WHOLE_GPU, DroneType, SitePolicy

ROLE = "gpu-drone-provisioner"
DRONE_PRIORITY = -10
PLACEHOLDER_PRIORITY = -20
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


def render_access(
    config: KubernetesSiteConfig, types: Sequence[DroneType], policy: SitePolicy
) -> str:
    """Return the namespace, rights, quota, priority and network policy of a site's drones, as YAML."""
    namespace = config.namespace or "gpu-drones"
    classes = sorted({config.options(kind.name).priority_class for kind in types})
    resources = {config.resource(kind) for kind in types} - {""}
    most = (
        policy.max_gpu_milli // WHOLE_GPU if policy.max_gpu_milli is not None else policy.max_drones
    )
    hard = {
        "pods": str(policy.max_drones),
        **{f"requests.{name}": str(most) for name in sorted(resources)},
    }
    quota: dict[str, Any] = {"hard": hard}
    if classes and all(classes):  # then placeholders in the same namespace do not count
        scope = {"scopeName": "PriorityClass", "operator": "In", "values": classes}
        quota["scopeSelector"] = {"matchExpressions": [scope]}
    rules = _rules("", NAMESPACE_RIGHTS) + (
        _rules("batch", JOB_RIGHTS) if config.kind == "job" else []
    )
    wide = _rules("", CLUSTER_RIGHTS)
    own = {"name": ROLE, "namespace": namespace}
    subject = {"kind": "ServiceAccount", **own}
    # All but the servers of a cloud's metadata.
    blocks = (("0.0.0.0/0", "169.254.169.254/32"), ("::/0", "fd00:ec2::254/128"))
    calls = {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": [
            {"to": [{"ipBlock": {"cidr": every, "except": [but]}} for every, but in blocks]}
        ],
    }
    purpose = "Pilots that run when nobody else needs the GPUs."
    objects: list[Record] = [
        _object("v1", "Namespace", {"name": namespace}),
        _object("v1", "ServiceAccount", own),
        _object(f"{_RBAC}/v1", "Role", own, rules=rules),
        _binding("RoleBinding", own, "Role", subject),
        _object(f"{_RBAC}/v1", "ClusterRole", {"name": ROLE}, rules=wide),
        _binding("ClusterRoleBinding", {"name": ROLE}, "ClusterRole", subject),
        _object("v1", "ResourceQuota", own, spec=quota),
        *(_priority(name, DRONE_PRIORITY, purpose) for name in classes if name),
        _object("networking.k8s.io/v1", "NetworkPolicy", own, spec=calls),
    ]
    head = (
        "# Namespace and rights of the drones. Apply with `kubectl apply -f`, then make a token for the controller:\n"
        f"#   kubectl -n {namespace} create token {ROLE}\n"
        "# Drones call the overlay and are called by nobody. Without the ClusterRole free capacity is not known.\n"
    )
    return head + _dumped(objects)


def render_blocking(
    config: KubernetesSiteConfig, types: Sequence[DroneType], policy: SitePolicy
) -> str:
    """Return Deployments of placeholder pods that keep CPUs and memory for free GPUs, as YAML.

    A placeholder has a lower priority than drones: the scheduler removes one when a drone needs its
    room.
    """
    namespace = config.namespace or "gpu-drones"
    resources = sorted({config.resource(kind) for kind in types} - {""})
    objects: list[Record] = [
        _priority("gpu-placeholder", PLACEHOLDER_PRIORITY, "Keeps CPUs and memory for free GPUs.")
    ]
    for number, reserve in enumerate(policy.blocking, 1):
        name = f"gpu-placeholder-{number}"
        requests = {"cpu": str(reserve.cpus), "memory": f"{reserve.memory_mib}Mi"}
        if reserve.disk_mib:
            requests["ephemeral-storage"] = f"{reserve.disk_mib}Mi"
        sizes = {"requests": requests, "limits": requests}
        container = {
            "name": "placeholder",
            "image": "registry.k8s.io/pause:3.10",
            "resources": sizes,
        }
        term: dict[str, Any] = {"key": "nvidia.com/gpu.count", "operator": "Exists"}
        if not any(set(node) & set("*?[") for node in reserve.nodes):
            term = {
                "key": "kubernetes.io/hostname",
                "operator": "In",
                "values": list(reserve.nodes),
            }
        required = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
        labels = {"app": name}
        pod = {
            "priorityClassName": "gpu-placeholder",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "nodeSelector": dict(config.node_selector),
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
            },
            "containers": [container],
            **({"tolerations": config.pod["tolerations"]} if "tolerations" in config.pod else {}),
        }
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
        objects.append(
            _object("apps/v1", "Deployment", {"name": name, "namespace": namespace}, spec=spec)
        )
    head = (
        "# One placeholder for each GPU of the nodes: set `replicas` to the number of these GPUs\n"
        f"# ({', '.join(resources)}). Drones replace them, and so do pods of a priority above {PLACEHOLDER_PRIORITY}:\n"
        "# CPU pods that must not take the room need a lower one, or `preemptionPolicy: Never`.\n"
    )
    return head + _dumped(objects)


def _rules(group: str, rights: Mapping[str, Sequence[str]]) -> list[Record]:
    return [
        {"apiGroups": [group], "resources": [name], "verbs": list(verbs)}
        for name, verbs in rights.items()
    ]


def _binding(kind: str, meta: Mapping[str, str], role: str, subject: Mapping[str, str]) -> Record:
    reference = {"apiGroup": _RBAC, "kind": role, "name": ROLE}
    return _object(f"{_RBAC}/v1", kind, meta, roleRef=reference, subjects=[subject])


def _priority(name: str, value: int, description: str) -> Record:
    more = {"value": value, "preemptionPolicy": "PreemptLowerPriority", "description": description}
    return _object("scheduling.k8s.io/v1", "PriorityClass", {"name": name}, **more)


def _object(version: str, kind: str, meta: Mapping[str, str], **content: Any) -> Record:
    return {"apiVersion": version, "kind": kind, "metadata": dict(meta), **content}


def _dumped(objects: Iterable[Record]) -> str:
    # YAML would write what two have in common as an alias
    plain = json.loads(json.dumps(list(objects)))
    return "".join(
        f"---\n{yaml.safe_dump(each, sort_keys=False, default_flow_style=False)}" for each in plain
    )
