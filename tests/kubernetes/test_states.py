"""Each state and reason of a pod means for a drone what the table says."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.kubernetes.pods import PodNames
from adapters.kubernetes.states import DronePod, drone_pod, end_of, obstacle, waiting_job
from provisioner.model import EndKind, FaultKind, RemoteEnd, RemoteState

NAMES = PodNames("kit", "cern")
LABELS = NAMES.labels("kit-a1-7", "a100")
T0 = "2026-11-20T10:00:00Z"
SECONDS = 1795168800.0
DELETED = {"deletionTimestamp": "2026-11-20T10:00:40Z", "deletionGracePeriodSeconds": 40}


def pod(status: dict[str, Any], spec: dict[str, Any] | None = None, **meta: Any) -> DronePod:
    found = drone_pod(
        {
            "metadata": {
                "name": "kit-a1-7",
                "uid": "u-1",
                "labels": LABELS,
                "creationTimestamp": T0,
                **meta,
            },
            "spec": {"nodeName": "gpu01", "priority": -10, **(spec or {})},
            "status": status,
        },
        NAMES,
    )
    assert found is not None
    return found


def container(**state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "drone", "state": state}]}


def ended(
    phase: str = "Failed", *, pod_reason: str = "", pod_message: str = "", **terminated: Any
) -> RemoteEnd:
    status = {"phase": phase, **container(terminated={"finishedAt": T0, **terminated})}
    found = pod({**status, "reason": pod_reason, "message": pod_message}).drone.end
    assert found is not None
    return found


def test_another_controllers_pod_is_none_of_ours() -> None:
    foreign = {"metadata": {"name": "x", "labels": PodNames("kit", "other").labels("x", "a100")}}
    assert drone_pod(foreign, NAMES) is None
    assert drone_pod({}, NAMES) is None


def test_a_running_pod() -> None:
    found = pod({"phase": "Running", **container(running={"startedAt": T0})}).remote()
    assert (found.state, found.type, found.node, found.remote_id) == (
        RemoteState.RUNNING,
        "a100",
        "gpu01",
        "u-1",
    )
    assert found.started_at == SECONDS


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", FaultKind.CAPACITY),
        (
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't match node selector.",
            FaultKind.CAPACITY,
        ),
        (
            "0/3 nodes are available: 1 node(s) were unschedulable, 2 node(s) had untolerated taint {a: b}.",
            FaultKind.CAPACITY,
        ),
        (
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
            FaultKind.CONFIG,
        ),
        (
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector. preemption: 0/2 nodes are"
            " available: 2 Preemption is not helpful for scheduling.",
            FaultKind.CONFIG,
        ),
        (
            "0/2 nodes are available: 2 node(s) had taint {gpu: only}, that the pod didn't tolerate.",
            FaultKind.CONFIG,
        ),
        ("something new", FaultKind.CAPACITY),
    ],
)
def test_what_the_scheduler_says(message: str, kind: FaultKind) -> None:
    assert obstacle(message) is kind
    conditions = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]
    found = pod({"phase": "Pending", "conditions": conditions}, {"nodeName": ""}).remote()
    assert (found.state, found.blocked, found.node) == (RemoteState.PENDING, kind, "")
    assert found.reason.startswith(message[:40])


@pytest.mark.parametrize(
    "obstacles",
    [
        "1 node(s) had untolerated taint {karpenter.sh/disrupted: }, 5 node(s) didn't match Pod's node"
        " affinity/selector",
        "2 node(s) had untolerated taint {node.cloudprovider.kubernetes.io/uninitialized: true}",
        "1 node(s) had untolerated taint {ToBeDeletedByClusterAutoscaler: 1718000000}, 1 node(s) had untolerated taint"
        " {node-role.kubernetes.io/control-plane: }",
        "1 node(s) had untolerated taint {startup-taint.cluster-autoscaler.kubernetes.io/gpu: }",
        "3 node(s) had taint {node.cilium.io/agent-not-ready: }, that the pod didn't tolerate",
        "1 node(s) had untolerated taint {example.com/provisioning: }",
        "2 node(s) had untolerated taint(s)",  # releases that do not say which
        'waiting for ephemeral volume controller to create the persistentvolumeclaim "drone-work"',
        "20 node(s) exceed max volume count",
        "5 CardInsufficientMemory(5)",
        "2 node(s) didn't match pod anti-affinity rules",
        "1 a plugin that nobody knows says no",
    ],
)
def test_obstacles_that_pass_keep_a_pod_waiting(obstacles: str) -> None:
    assert (
        obstacle(f"0/6 nodes are available: {obstacles}. preemption: 0/6 nodes are available.")
        is FaultKind.CAPACITY
    )


@pytest.mark.parametrize(
    "obstacles",
    [
        "1 node(s) had untolerated taint {dedicated: training}, 2 node(s) had untolerated taint"
        " {cloud.google.com/gke-preemptible: true}",
        'persistentvolumeclaim "software" not found',
        "2 CardTypeMismatch(8)",
    ],
)
def test_obstacles_that_stay_end_a_pod(obstacles: str) -> None:
    assert obstacle(f"0/3 nodes are available: {obstacles}.") is FaultKind.CONFIG


@pytest.mark.parametrize(
    ("said", "blocked"),
    [
        (
            "429 Too Many Requests - toomanyrequests: You have reached your pull rate limit",
            FaultKind.DOWN,
        ),
        ("dial tcp 10.0.0.1:443: i/o timeout", FaultKind.DOWN),
        ("unexpected status: 503 Service Unavailable", FaultKind.DOWN),
        ("manifest unknown", FaultKind.CONFIG),
    ],
)
def test_a_registry_that_cannot_be_reached_is_waited_for(said: str, blocked: FaultKind) -> None:
    waiting = {
        "reason": "ImagePullBackOff",
        "message": f'Back-off pulling image "x": ErrImagePull: {said}',
    }
    assert pod({"phase": "Pending", **container(waiting=waiting)}).remote().blocked is blocked


def test_a_gate_of_kueue_waits_for_quota() -> None:
    gated = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}], "nodeName": ""}
    conditions = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
    found = pod({"phase": "Pending", "conditions": conditions}, gated).remote()
    assert found.blocked is FaultKind.QUOTA
    assert "waits for quota" in found.reason
    assert not found.hopeless


@pytest.mark.parametrize(
    ("reason", "blocked"),
    [
        ("ContainerCreating", None),
        ("ErrImagePull", None),
        ("ImagePullBackOff", FaultKind.CONFIG),
        ("InvalidImageName", FaultKind.CONFIG),
        ("CreateContainerError", FaultKind.NODE),
        ("SomethingNew", None),
    ],
)
def test_what_a_container_waits_for(reason: str, blocked: FaultKind | None) -> None:
    found = pod(
        {"phase": "Pending", **container(waiting={"reason": reason, "message": "m"})}
    ).remote()
    assert (found.state, found.blocked, found.reason) == (
        RemoteState.PENDING,
        blocked,
        f"{reason}: m",
    )


def test_unknown_phases_and_lost_nodes_are_alive() -> None:
    assert pod({"phase": "Unknown"}).drone.state is RemoteState.UNKNOWN
    assert pod({"phase": "Paused"}).drone.state is RemoteState.UNKNOWN
    assert pod({}).drone.state is RemoteState.UNKNOWN


@pytest.mark.parametrize(
    ("status", "spec", "state"),
    [
        ({"reason": "NodeLost"}, {}, RemoteState.UNKNOWN),
        # As the node lifecycle controller of a lab wrote it when the kubelet had been silent for 40
        # s.
        ({"ready": "False", "containers": "True"}, {}, RemoteState.UNKNOWN),
        ({"ready": "False", "containers": "False"}, {}, RemoteState.RUNNING),
        (
            {"ready": "False", "containers": "True"},
            {"readinessGates": [{"conditionType": "x"}]},
            RemoteState.RUNNING,
        ),
        ({"ready": "True", "containers": "True"}, {}, RemoteState.RUNNING),
    ],
)
def test_a_pod_on_a_lost_node_is_unknown(
    status: dict[str, str], spec: dict[str, Any], state: RemoteState
) -> None:
    conditions = [
        {"type": "Ready", "status": status.get("ready", "True")},
        {"type": "ContainersReady", "status": status.get("containers", "True")},
    ]
    found = pod(
        {"phase": "Running", "conditions": conditions, "reason": status.get("reason", "")}, spec
    )
    assert found.remote().state is state
    assert (found.drone.reason == "its node does not answer") is (state is RemoteState.UNKNOWN)


def test_a_pod_that_others_delete_has_a_notice() -> None:
    found = pod({"phase": "Running", **container(running={"startedAt": T0})}, **DELETED)
    assert found.remote().notice_at == SECONDS
    assert found.remote().state is RemoteState.RUNNING
    assert found.remote(asked=True).notice_at == 0.0


def test_a_drone_reports_its_own_end() -> None:
    message = "drone=kit-a1-7 exit=73 reason=not-joined why=no%20collector jobs_started=0\n"
    end = ended(exitCode=73, reason="Error", message=f"--- log\n{message}")
    assert (end.kind, end.exit_code, end.message) == (
        EndKind.EXITED,
        73,
        "not-joined: no collector",
    )
    assert ended("Succeeded", exitCode=0, reason="Completed").kind is EndKind.EXITED


@pytest.mark.parametrize(
    ("reason", "message", "kind", "fault"),
    [
        ("UnexpectedAdmissionError", "Allocate failed", EndKind.FAULT, FaultKind.NODE),
        ("OutOfnvidia.com/gpu", "Node didn't have enough resource", EndKind.FAULT, FaultKind.NODE),
        ("Evicted", "The node was low on resource: memory.", EndKind.FAULT, FaultKind.NODE),
        (
            "Evicted",
            "The node was low on resource: memory. Container x was using 9Gi, which exceeds its request of 1Gi.",
            EndKind.FAULT,
            FaultKind.NODE,
        ),
        (
            "Evicted",
            'Usage of EmptyDir volume "x" exceeds the limit "1Gi".',
            EndKind.FAULT,
            FaultKind.DRONE,
        ),
        (
            "Evicted",
            'Container drone exceeded its local ephemeral storage limit "1Gi".',
            EndKind.FAULT,
            FaultKind.DRONE,
        ),
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to rpc error: code = Unknown desc = request for 'nvidia.com/gpu.shared: 2' too large:"
            " maximum request size for shared resources is 1, which is unexpected",
            EndKind.FAULT,
            FaultKind.CONFIG,
        ),
        ("DeadlineExceeded", "", EndKind.STOPPED, None),
        ("Preempting", "", EndKind.PREEMPTED, None),
        ("NodeShutdown", "", EndKind.FAULT, FaultKind.NODE),
        ("SomethingNew", "", EndKind.FAULT, FaultKind.UNKNOWN),
    ],
)
def test_reasons_of_pods_that_failed(
    reason: str, message: str, kind: EndKind, fault: FaultKind | None
) -> None:
    end = ended(pod_reason=reason, pod_message=message)
    assert (end.kind, end.fault) == (kind, fault)


def test_a_drone_that_used_too_much_memory() -> None:
    end = ended(exitCode=137, reason="OOMKilled")
    assert (end.kind, end.fault) == (EndKind.FAULT, FaultKind.DRONE)


# By hand, as no server of the tests writes this condition (Kubernetes 1.26 and newer).
@pytest.mark.parametrize(
    ("reason", "kind", "fault"),
    [
        ("PreemptionByScheduler", EndKind.PREEMPTED, None),
        ("EvictionByEvictionAPI", EndKind.PREEMPTED, None),
        ("DeletionByTaintManager", EndKind.FAULT, FaultKind.NODE),
        ("DeletionByPodGC", EndKind.FAULT, FaultKind.NODE),
        ("TerminationByKubelet", EndKind.FAULT, FaultKind.NODE),
        ("SomethingNew", EndKind.PREEMPTED, None),
    ],
)
def test_the_condition_tells_why_a_drone_was_lost(
    reason: str, kind: EndKind, fault: FaultKind | None
) -> None:
    conditions = [
        {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "by x"}
    ]
    status = {
        "phase": "Failed",
        "conditions": conditions,
        **container(terminated={"exitCode": 143, "finishedAt": T0}),
    }
    end = pod(status).drone.end
    assert end is not None
    assert (end.kind, end.fault, end.at) == (kind, fault, SECONDS)
    assert "by x" in end.message


@pytest.mark.parametrize(
    ("reason", "kind", "fault", "words"),
    [
        ("Preempting", EndKind.PREEMPTED, None, "by a critical pod: m"),
        ("Terminated", EndKind.FAULT, FaultKind.NODE, "its node was shut down: m"),
        ("", EndKind.FAULT, FaultKind.NODE, "ended by its node: by x"),
    ],
)
def test_the_reason_of_a_kubelet_says_more_than_its_condition(
    reason: str, kind: EndKind, fault: FaultKind | None, words: str
) -> None:
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "TerminationByKubelet",
        "message": "by x",
    }
    end = pod(
        {
            "phase": "Failed",
            "reason": reason,
            "message": "m" if reason else "",
            "conditions": [target],
        }
    ).drone.end
    assert end is not None
    assert (end.kind, end.fault) == (kind, fault)
    assert end.message.endswith(words)


@pytest.mark.parametrize(
    ("status", "reason", "kind", "fault", "words"),
    [
        (
            "True",
            "PreemptionByScheduler",
            EndKind.PREEMPTED,
            None,
            "preempted by a pod of a higher priority: by x",
        ),
        (
            "True",
            "EvictionByEvictionAPI",
            EndKind.PREEMPTED,
            None,
            "evicted, as when a node is drained: by x",
        ),
        (
            "True",
            "DeletionByTaintManager",
            EndKind.FAULT,
            FaultKind.NODE,
            "its node was lost or tainted: by x",
        ),
        (
            "False",
            "PreemptionByScheduler",
            EndKind.PREEMPTED,
            None,
            "its pod was deleted by somebody else",
        ),
    ],
)
def test_a_pod_that_is_deleted_before_its_end_tells_why(
    status: str, reason: str, kind: EndKind, fault: FaultKind | None, words: str
) -> None:
    target = {"type": "DisruptionTarget", "status": status, "reason": reason, "message": "by x"}
    leaving = pod({"phase": "Running", "conditions": [target]}, **DELETED)
    assert (leaving.drone.state, leaving.drone.end) == (RemoteState.RUNNING, None)
    assert leaving.remote().reason == (words if status == "True" else "it is being deleted")
    end = end_of(leaving, asked=False, now=5.0)
    assert (end.kind, end.fault, end.message, end.at) == (kind, fault, words, 5.0)
    assert end_of(leaving, asked=True, now=5.0).kind is EndKind.STOPPED


def test_the_end_of_a_deleted_pod() -> None:
    running = pod({"phase": "Running"})
    assert end_of(running, asked=True, now=5.0).message == "stopped by the controller"
    failed = pod(
        {"phase": "Failed", **container(terminated={"exitCode": 7, "message": "reason=idle"})}
    )
    stopped = end_of(failed, asked=True, now=5.0)
    assert (stopped.kind, stopped.exit_code) == (EndKind.STOPPED, 7)
    assert stopped.message == "stopped by the controller: idle"


def test_a_job_without_a_pod_waits() -> None:
    meta = {"name": "kit-a1-7", "uid": "u-1", "labels": LABELS, "creationTimestamp": T0}
    suspended = waiting_job({"metadata": meta, "spec": {"suspend": True}}, NAMES)
    assert suspended is not None
    assert suspended.remote().blocked is FaultKind.QUOTA
    failed = {"conditions": [{"type": "Failed", "status": "True"}]}
    over = waiting_job({"metadata": meta, "spec": {}, "status": failed}, NAMES)
    assert over is not None
    assert over.remote().state is RemoteState.ENDED
