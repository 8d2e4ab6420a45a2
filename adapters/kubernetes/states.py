"""States of a drone's pod: phases, conditions and reasons of Kubernetes in terms of the model.

A word that no table knows means alive. Sources: "Pod Lifecycle", "Disruptions" (conditions of a
pod), the reasons in ``pkg/kubelet/events``, ``pkg/kubelet/lifecycle`` and ``pkg/scheduler``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from adapters.kubernetes.capacity import PASSING, ClusterPod, cluster_pod
from adapters.kubernetes.pods import CONTAINER, EPOCH, TYPE, PodNames
from adapters.shared.duplicates import epoch_of
from adapters.shared.json_records import Record, mapping, mappings, moment, number, parts, text
from adapters.shared.printing import drone_report, printable
from provisioner.model import EndKind, FaultKind, RemoteDrone, RemoteEnd, RemoteState
from provisioner.values import frozen

_LONGEST = 300
_OWN_LIMIT = re.compile("exceeds the |exceeded its ")
"""That of the drone, or of its emptyDir. A node that lacks disk itself says ``which exceeds its request``."""

DELETED_BY_OTHERS = "its pod was deleted by somebody else"
KUEUE_GATE = "kueue.x-k8s.io/"

_IMAGE = ("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed")
_WAITING: Mapping[str, FaultKind] = {
    # The first try of a pull (ErrImagePull) may fail by chance; the back-off says that it was tried
    # again.
    **dict.fromkeys((*_IMAGE, "CreateContainerConfigError"), FaultKind.CONFIG),
    **dict.fromkeys(
        ("ImageInspectError", "CreateContainerError", "RunContainerError"), FaultKind.NODE
    ),
    "RegistryUnavailable": FaultKind.DOWN,
}
"""Reasons of a container that does not run yet, if others of its type would meet the same obstacle."""
_REGISTRY = re.compile(
    r"too ?many ?requests|timeout|deadline exceeded|connection re|no such host|temporary|: EOF|status: 5\d\d",
    re.IGNORECASE,
)
"""Words about a registry that is overloaded or cannot be reached: the kubelet tries again."""


class EndMapping(NamedTuple):
    kind: EndKind
    fault: FaultKind | None
    words: str


def _preempted(words: str) -> EndMapping:
    return EndMapping(EndKind.PREEMPTED, None, words)


def _fault(kind: FaultKind, words: str) -> EndMapping:
    return EndMapping(EndKind.FAULT, kind, words)


_DISRUPTIONS: Mapping[str, EndMapping] = {
    "PreemptionByScheduler": _preempted("preempted by a pod of a higher priority"),
    "EvictionByEvictionAPI": _preempted("evicted, as when a node is drained"),
    "DeletionByTaintManager": _fault(FaultKind.NODE, "its node was lost or tainted"),
    "DeletionByPodGC": _fault(FaultKind.NODE, "its node is gone"),
    "TerminationByKubelet": _fault(FaultKind.NODE, "ended by its node"),
}
"""Reasons of the condition ``DisruptionTarget`` (Kubernetes 1.26 and newer)."""

_NODE_REFUSALS = ("UnexpectedAdmissionError", "NodeAffinity", "TopologyAffinityError", "OutOf")
_POD_REASONS: Mapping[str, EndMapping] = {
    "Evicted": _fault(FaultKind.NODE, "evicted by its node"),
    "Preempting": _preempted("preempted on its node by a critical pod"),
    "DeadlineExceeded": EndMapping(EndKind.STOPPED, None, "reached its time limit"),
    "NodeLost": _fault(FaultKind.NODE, "its node was lost"),
    **dict.fromkeys(
        ("NodeShutdown", "Shutdown", "Terminated"),
        _fault(FaultKind.NODE, "its node was shut down"),
    ),
    # Its node refused it after the scheduler had chosen the node. Another try may go elsewhere.
    **dict.fromkeys(_NODE_REFUSALS, _fault(FaultKind.NODE, "refused by its node")),
    "PodOSSelectorNodeLabelDoesNotMatch": _fault(FaultKind.CONFIG, "refused by its node"),
}
"""Reasons of a pod that failed. ``OutOf`` stands for ``OutOfcpu``, ``OutOfnvidia.com/gpu`` and the like."""


@frozen
class DronePod:
    """A drone's pod, or its Job as long as that has no pod."""

    drone: RemoteDrone
    """As a site that has not stopped it reports it. Its slot is the name, its remote id the uid of ``path``."""
    path: str
    """Object that the others of the drone belong to: the Job if there is one, else the pod."""
    created_at: float = 0.0
    disruption: EndMapping | None = None
    """Reason of the cluster to end it, if it gives one."""
    exit_code: int | None = None
    priority: int = 0
    in_cluster: ClusterPod | None = None
    """The same pod as one of all namespaces."""

    def remote(self, end: RemoteEnd | None = None, *, asked: bool = False) -> RemoteDrone:
        """Return its state for the controller. ``asked``: this controller has stopped it."""
        if end := end or self.drone.end:
            return replace(
                self.drone, state=RemoteState.ENDED, end=end, notice_at=0.0, blocked=None
            )
        return replace(self.drone, notice_at=0.0) if asked else self.drone


def drone_pod(found: Record, names: PodNames) -> DronePod | None:
    """Return a pod as a drone; None if it is none of ours."""
    drone_id = names.drone_id(found)
    if drone_id is None:
        return None
    meta, spec, status = parts(found)
    conditions = {text(each, "type"): each for each in mappings(status, "conditions")}
    containers = {text(each, "name"): each for each in mappings(status, "containerStatuses")}
    container = mapping(containers.get(CONTAINER, {}), "state")
    waiting, running, terminated = (
        mapping(container, key) for key in ("waiting", "running", "terminated")
    )
    deleted_at = moment(meta, "deletionTimestamp")
    if deleted_at:
        deleted_at = max(1.0, deleted_at - number(meta, "deletionGracePeriodSeconds"))
    state, reason, blocked = _state(spec, status, conditions, waiting)
    disruption = _disruption(conditions)
    if deleted_at and state is RemoteState.RUNNING:
        reason = disruption.words if disruption is not None else "it is being deleted"
    code = terminated.get("exitCode")
    jobs = [each for each in mappings(meta, "ownerReferences") if text(each, "kind") == "Job"]
    drone = RemoteDrone(
        drone_id,
        state,
        remote_id=text(jobs[0] if jobs else meta, "uid"),
        type=text(meta, "labels", TYPE),
        started_at=moment(running, "startedAt") or moment(terminated, "startedAt"),
        reason=printable(reason, _LONGEST),
        end=_end(status, disruption, terminated) if state is RemoteState.ENDED else None,
        node=text(spec, "nodeName"),
        slot=text(meta, "name"),
        notice_at=deleted_at,
        blocked=blocked,
        epoch=epoch_of(text(meta, "labels", EPOCH)),
    )
    return DronePod(
        drone,
        path=f"jobs/{drone_id}" if jobs else f"pods/{drone.slot}",
        created_at=moment(meta, "creationTimestamp"),
        disruption=disruption,
        exit_code=code if isinstance(code, int) else None,
        priority=number(spec, "priority"),
        in_cluster=cluster_pod(found, is_ours=True),
    )


def end_of(pod: DronePod, *, asked: bool, now: float) -> RemoteEnd:
    """Return the end of a drone whose pod has ended, or is gone from the API server."""
    own = pod.drone.end
    if asked:
        message = (
            f"stopped by the controller: {own.message}" if own is not None and own.message else ""
        )
        return RemoteEnd(
            EndKind.STOPPED, now, pod.exit_code, message or "stopped by the controller"
        )
    if own is not None:
        return own
    kind, fault, words = pod.disruption or _preempted(DELETED_BY_OTHERS)
    return RemoteEnd(kind, now, pod.exit_code, words, fault)


def _state(
    spec: Record, status: Record, conditions: Mapping[str, Record], waiting: Record
) -> tuple[RemoteState, str, FaultKind | None]:
    """Return state, reason and obstacle."""
    phase = text(status, "phase")
    if phase in ("Succeeded", "Failed"):
        return RemoteState.ENDED, "", None
    if phase == "Running":
        # If a kubelet does not answer, the cluster sets the condition Ready of its pods to False,
        # and no other.
        ready, works = (
            text(conditions.get(each, {}), "status") for each in ("Ready", "ContainersReady")
        )
        silent = (ready, works) == ("False", "True") and not spec.get("readinessGates")
        if silent or text(status, "reason") == "NodeLost":
            return RemoteState.UNKNOWN, "its node does not answer", None
        return RemoteState.RUNNING, "", None
    if phase != "Pending":
        return RemoteState.UNKNOWN, f"phase {phase or 'unknown'}", None
    if gates := [text(each, "name") for each in mappings(spec, "schedulingGates")]:
        what = "waits for quota" if any(gate.startswith(KUEUE_GATE) for gate in gates) else "waits"
        return RemoteState.PENDING, f"{what}: scheduling gate {', '.join(gates)}", FaultKind.QUOTA
    scheduled = conditions.get("PodScheduled", {})
    if text(scheduled, "status") == "False":
        message = text(scheduled, "message")
        return RemoteState.PENDING, message or text(scheduled, "reason"), obstacle(message)
    why = text(waiting, "reason")
    message = text(waiting, "message")
    passes = why == "ImagePullBackOff" and _REGISTRY.search(message)
    fault = FaultKind.DOWN if passes else _WAITING.get(why)
    return RemoteState.PENDING, f"{why}: {message}" if message else why, fault


_LASTING = re.compile(
    r"node affinity|node selector|requested node name|taint \{|missing required label|Card(Type|Uuid)Mismatch|not found"
)
"""Obstacles that stay until a person changes something. Whatever else a scheduler or its plugins say may pass."""


def obstacle(message: str) -> FaultKind:
    """Return why the scheduler found no node: CAPACITY if one may become free, CONFIG if no node is of the kind.

    The message counts nodes by their obstacle: ``0/3 nodes are available: 1 Insufficient
    nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity/selector.``
    """
    _, _, found = message.partition("nodes are available: ")
    counted = re.split(r", (?=\d+ )", found.split(" preemption: ")[0])
    lasts = all(_LASTING.search(each) and not PASSING.search(each) for each in counted)
    return FaultKind.CONFIG if lasts else FaultKind.CAPACITY


def _disruption(conditions: Mapping[str, Record]) -> EndMapping | None:
    """Return what the condition ``DisruptionTarget`` says; None without it."""
    target = conditions.get("DisruptionTarget", {})
    if text(target, "status") != "True":
        return None
    reason = text(target, "reason")
    message = text(target, "message")
    found = _DISRUPTIONS.get(reason) or _preempted(f"disrupted ({reason})")
    return found._replace(
        words=printable(f"{found.words}: {message}" if message else found.words, _LONGEST)
    )


def _end(status: Record, disruption: EndMapping | None, terminated: Record) -> RemoteEnd:
    """Return the end of a pod in a final phase. Its reason is more exact than the condition of a disruption."""
    reason = text(status, "reason")
    message = text(status, "message")
    why = text(terminated, "reason")
    found = _POD_REASONS.get("OutOf" if reason.startswith("OutOf") else reason)
    if reason == "Evicted" and _OWN_LIMIT.search(message):
        found = _fault(FaultKind.DRONE, "used more disk than it requested")
    elif reason == "UnexpectedAdmissionError" and "maximum request size" in message:
        # The device plugin of shared GPUs, with failRequestsGreaterThanOne.
        found = _fault(FaultKind.CONFIG, "requests several GPUs of a kind that gives one")
    elif found is None and disruption is not None:
        found = disruption
        message = ""
    elif found is None and reason:
        found = _fault(FaultKind.UNKNOWN, reason)
    elif found is None and why == "OOMKilled":
        found = _fault(FaultKind.DRONE, "used more memory than it requested")
    elif found is None and why in ("ContainerStatusUnknown", "StartError", "ContainerCannotRun"):
        found = _fault(FaultKind.NODE, why)
        message = text(terminated, "message")
    at = moment(terminated, "finishedAt")
    code = terminated.get("exitCode")
    exit_code = code if isinstance(code, int) else None
    if found is None:
        return RemoteEnd(EndKind.EXITED, at, exit_code, _outcome(text(terminated, "message")))
    words = f"{found.words}: {message}" if message else found.words
    return RemoteEnd(found.kind, at, exit_code, printable(words, _LONGEST), found.fault)


def _outcome(message: str) -> str:
    """Return the drone's own report from a termination message, or its last line."""
    lines = [line for line in message.splitlines() if line.strip()]
    return drone_report(lines[-1], _LONGEST) if lines else ""


def waiting_job(found: Record, names: PodNames) -> DronePod | None:
    """Return a Job without a pod as a drone that waits; None if it is none of ours or has ended."""
    drone_id = names.drone_id(found)
    meta, spec, status = parts(found)
    if drone_id is None:
        return None
    ended = [
        text(each, "type")
        for each in mappings(status, "conditions")
        if text(each, "status") == "True"
    ]
    end = None
    if "Failed" in ended or "Complete" in ended:
        end = RemoteEnd(
            EndKind.PREEMPTED, moment(status, "completionTime"), None, DELETED_BY_OTHERS
        )
    quota = spec.get("suspend") is True
    name = text(meta, "name")
    drone = RemoteDrone(
        drone_id,
        RemoteState.ENDED if end else RemoteState.PENDING,
        remote_id=text(meta, "uid"),
        type=text(meta, "labels", TYPE),
        reason="waits for quota: its Job is suspended" if quota else "its Job has no pod yet",
        end=end,
        slot=name,
        notice_at=moment(meta, "deletionTimestamp"),
        blocked=FaultKind.QUOTA if quota else None,
        epoch=epoch_of(text(meta, "labels", EPOCH)),
    )
    return DronePod(drone, f"jobs/{name}", created_at=moment(meta, "creationTimestamp"))
