"""The pod and the secret of a drone, as they are sent to the API server.

The secret holds the drone's files and its token, as a volume in memory that only the pod can mount.
It belongs to the pod (``ownerReferences``), so the garbage collector of the cluster deletes it with
the pod.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, NamedTuple

from adapters.kubernetes.settings import OWN_PREFIX, KubernetesSiteConfig
from adapters.shared.json_records import Record, mapping, text
from adapters.shared.parcel import OURS, UnfitError, packed, step
from provisioner import drone
from provisioner.model import WHOLE_GPU, DroneId, DroneType, StartOrder

DRONE, CONTROLLER, SITE, TYPE, EPOCH = (
    OWN_PREFIX + key for key in ("drone", "controller", "site", "type", "epoch")
)
CONTAINER = "drone"
_FILES = "/drone/files"
_WORK = "/drone/work"
_ARCHIVE = "files.tar.gz"
_MAX_SECRET_BYTES = 1024**2 - 4096
"""An API server accepts 1 MiB of data in a secret."""
_SPARE_S = 10
"""A pod gets this much longer than the drone's grace, which the drone ends by itself."""


class PodNames(NamedTuple):
    """Labels of the pods of one controller at one site."""

    controller: str
    site: str

    @property
    def group(self) -> Mapping[str, str]:
        return {CONTROLLER: self.controller, SITE: self.site}

    def labels(self, drone_id: str, kind: str, epoch: int = 0) -> Mapping[str, str]:
        return {
            "app.kubernetes.io/managed-by": "gpu-drone-provisioner",
            **self.group,
            DRONE: drone_id,
            TYPE: kind,
            EPOCH: str(epoch),
        }

    def drone_id(self, found: Record) -> DroneId | None:
        """Return the drone that an object belongs to; None if it is not of this controller at this site."""
        labels = mapping(found, "metadata", "labels")
        ours = (labels.get(CONTROLLER), labels.get(SITE)) == (self.controller, self.site)
        return DroneId(text(labels, DRONE)) if ours and text(labels, DRONE) else None


def requests(kind: DroneType, config: KubernetesSiteConfig) -> dict[str, str]:
    """Return the resources that a pod of a drone type requests; its limits are the same."""
    found = {
        "cpu": str(kind.cpus),
        "memory": f"{kind.memory_mib}Mi",
        "ephemeral-storage": f"{kind.disk_mib}Mi",
    }
    if resource := config.resource(kind):
        found[resource] = str(kind.gpu_milli // WHOLE_GPU)
    return found | {
        name: str(amount) for name, amount in config.options(kind.name).resources.items()
    }


def pod_body(
    order: StartOrder, config: KubernetesSiteConfig, names: PodNames, avoided: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the pod of an order (PodSpec v1), which the scheduler places on an ``avoided`` node last.

    Requests equal limits, so the pod is of the class `Guaranteed`: nobody else gets its CPUs and
    memory.
    """
    kind = order.type
    options = config.options(order.type.name)
    amounts = requests(kind, config)
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": options.image,
        "command": ["/bin/sh", "-c", resources.files(__package__).joinpath("pod.sh").read_text()],
        "resources": {"requests": amounts, "limits": dict(amounts)},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [{"name": "DRONE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "drone-files", "mountPath": _FILES, "readOnly": True},
            {"name": "drone-work", "mountPath": _WORK},
        ],
    }
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in avoided]
    preferred = [{"weight": 100, "preference": {"matchFields": [each]}} for each in others]
    affinity: dict[str, Any] = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
    if options.products:
        wanted = {
            "key": "nvidia.com/gpu.product",
            "operator": "In",
            "values": list(options.products),
        }
        terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = terms
    spec: dict[str, Any] = {
        "affinity": {"nodeAffinity": affinity},
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": round(order.grace_s) + _SPARE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": options.priority_class,
        "nodeSelector": dict(options.node_selector),
        "securityContext": {
            "runAsNonRoot": True,
            **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), config.run_as),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [
            {"name": "drone-files", "secret": {"secretName": order.drone_id, "defaultMode": 0o440}},
            {"name": "drone-work", "emptyDir": {"sizeLimit": f"{kind.disk_mib}Mi"}},
        ],
    }
    # as the admission plugin ExtendedResourceToleration of many clusters does
    if resource := config.resource(kind):
        spec["tolerations"] = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    if kind.walltime_s:
        spec["activeDeadlineSeconds"] = int(kind.walltime_s) + round(order.grace_s)
    if options.claim_template:
        spec["resourceClaims"] = [
            {"name": "gpu", "resourceClaimTemplateName": options.claim_template}
        ]
        container["resources"]["claims"] = [{"name": "gpu"}]
    container = _merged(container, options.container)
    spec = _merged(spec, options.pod)
    labels = {**options.labels, **names.labels(order.drone_id, kind.name, order.epoch)}
    if options.queue:
        labels["kueue.x-k8s.io/queue-name"] = options.queue
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": order.drone_id,
            "labels": labels,
            "annotations": dict(options.annotations),
        },
        "spec": {**spec, "containers": [container]},
    }


def job_body(pod: Record) -> dict[str, Any]:
    """Return a Job that makes this pod once and never again (JobSpec, batch/v1)."""
    meta = pod["metadata"]
    template = {
        "metadata": {"labels": meta["labels"], "annotations": meta["annotations"]},
        "spec": pod["spec"],
    }
    once = {"backoffLimit": 0, "parallelism": 1, "completions": 1, "podReplacementPolicy": "Failed"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": meta["name"], "labels": meta["labels"]},
        "spec": {**once, "template": template},
    }


def secret_body(
    order: StartOrder, config: KubernetesSiteConfig, names: PodNames, uid: str
) -> dict[str, Any]:
    """Return the secret of an order, which belongs to its pod or Job ``uid``. Raises UnfitError if it is too large."""
    bootstrap = order.bootstrap
    name = order.drone_id
    assert bootstrap is not None
    enforced = config.options(order.type.name).enforced
    env = {
        **bootstrap.env,
        **config.env,
        **drone.environment(order),
        "PROVISIONER_DRONE_ID": name,
        **({"DRONE_VRAM_ENFORCED": enforced} if enforced else {}),
    }
    own = {f"{OURS}/script": bootstrap.script, f"{OURS}/step": step(env)}
    data = gzip.compress(packed({**bootstrap.files, **own}), mtime=0)
    if len(data) > _MAX_SECRET_BYTES:
        raise UnfitError(
            f"its files are {len(data)} bytes and may be {_MAX_SECRET_BYTES}, compressed"
        )
    version, kind = ("batch/v1", "Job") if config.kind == "job" else ("v1", "Pod")
    owner = {"apiVersion": version, "kind": kind, "name": name, "uid": uid}
    labels = names.labels(name, order.type.name)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": dict(labels), "ownerReferences": [owner]},
        "type": "Opaque",
        "immutable": True,
        "data": {_ARCHIVE: base64.b64encode(data).decode()},
    }


def _merged(own: Record, options: Record) -> dict[str, Any]:
    """Return both; mappings and lists of both are merged, of other values the operator's counts."""
    found = dict(own)
    for key, value in options.items():
        mine = found.get(key)
        if isinstance(mine, dict) and isinstance(value, dict):
            found[key] = _merged(mine, value)
        elif isinstance(mine, list) and isinstance(value, list):
            found[key] = [*mine, *value]
        elif value is not None:  # null is as good as no field
            found[key] = value
    return found
