"""A stand-in for Kueue: it holds pods back by a scheduling gate until its quota has room, and preempts them.

The lab's API server is older than scheduling gates and drops them. So the front adds the gate to
what the adapter reads, and this controller binds a pod to its node in place of the scheduler once
the quota admits it. As Kueue does, it deletes the pods that it preempts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tests.labs.htcondor import LabError

if TYPE_CHECKING:
    from tests.labs.kubernetes import KubernetesLab

QUEUE = "kueue.x-k8s.io/queue-name"
GATE = "kueue.x-k8s.io/admission"
_NOBODY = "kueue"
"""Name of a scheduler that does not exist."""


class Kueue:
    """One LocalQueue of the namespace ``drones``."""

    def __init__(self, lab: KubernetesLab, quota: int, node: str) -> None:
        self._lab, self.quota, self._node = lab, quota, node
        self._over = threading.Event()

    def incoming(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Return a pod as it is stored: its scheduler does not exist."""
        if QUEUE in (pod.get("metadata") or {}).get("labels", {}):
            pod["spec"]["schedulerName"] = _NOBODY
        return pod

    def outgoing(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return an object as its reader sees it: a pod that is held back has a gate."""
        if found.get("kind") == "PodList":
            found["items"] = [self.outgoing({"kind": "Pod", **pod}) for pod in found["items"]]
        elif isinstance(found.get("object"), dict):
            found["object"] = self.outgoing(found["object"])
        elif found.get("kind") == "Pod" and _held(found):
            found["spec"]["schedulingGates"] = [{"name": GATE}]
            message = "Scheduling is blocked due to non-empty scheduling gates"
            gated = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": message,
            }
            found["status"]["conditions"] = [gated]
        return found

    def admit(self) -> None:
        """Bind the oldest pods that are held back, as many as the quota has room for."""
        queued = [pod for pod in self._lab.pods() if QUEUE in pod["metadata"].get("labels", {})]
        held = [pod for pod in queued if _held(pod) and "deletionTimestamp" not in pod["metadata"]]
        over = ("Succeeded", "Failed")
        room = self.quota - len(
            [pod for pod in queued if not _held(pod) and pod["status"]["phase"] not in over]
        )
        for pod in sorted(held, key=lambda pod: pod["metadata"]["creationTimestamp"])[
            : max(0, room)
        ]:
            name = pod["metadata"]["name"]
            body = {"metadata": {"name": name}, "target": {"kind": "Node", "name": self._node}}
            self._lab.post(f"{self._lab.ours}/pods/{name}/binding", body)

    def preempt(self, pod: Mapping[str, Any]) -> None:
        """Take one pod's quota away and delete it."""
        self.quota -= 1
        self._lab.call("DELETE", f"{self._lab.ours}/pods/{pod['metadata']['name']}")

    def run(self) -> None:
        while not self._over.wait(0.2):
            with suppress(LabError, OSError):
                self.admit()

    def end(self) -> None:
        self._over.set()


def _held(pod: Mapping[str, Any]) -> bool:
    return bool(pod["spec"].get("schedulerName") == _NOBODY and not pod["spec"].get("nodeName"))


@contextmanager
def kueue(lab: KubernetesLab, quota: int, node: str = "gpu01") -> Iterator[Kueue]:
    """Such a queue, while inside, for ``quota`` pods at a time on one node."""
    queue = Kueue(lab, quota, node)
    thread = threading.Thread(target=queue.run, name="kueue")
    thread.start()
    lab.front.queue = queue
    try:
        yield queue
    finally:
        lab.front.queue = None
        queue.end()
        thread.join()
