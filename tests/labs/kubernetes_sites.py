"""A site on the lab's cluster, and a look at its drones past the adapter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from adapters.kubernetes import KubernetesSite
from adapters.kubernetes.pods import PodNames, pod_body
from adapters.kubernetes.settings import KubernetesSiteConfig
from provisioner.model import Bootstrap, DroneId, DroneType, StartOrder
from tests.labs.htcondor import processes_of, until
from tests.labs.kubernetes import GPU, ROBOT, SHARED, SLICE, KubernetesLab
from tests.labs.shell_drones import ShellDrones

HERE = "cern"
A100 = DroneType(
    HERE,
    "a100",
    gpu_milli=1000,
    cpus=8,
    memory_mib=20480,
    disk_mib=10240,
    vram_mib=40960,
    walltime_s=3600.0,
)
SHARE = replace(A100, name="share", vram_mib=20480, cpus=2, memory_mib=4096)
MIG = replace(A100, name="mig", vram_mib=9728, cpus=2, memory_mib=4096)
HUGE = replace(A100, name="huge", gpu_milli=9000)
KINDS = (A100, SHARE, MIG, HUGE)
TYPES: Mapping[str, Mapping[str, Any]] = {
    "a100": {"resource": GPU},
    "share": {"resource": SHARED, "enforced": "none"},
    "mig": {"resource": SLICE},
    "huge": {"resource": GPU},
}


def site_options(lab: KubernetesLab, **more: Any) -> dict[str, Any]:
    access = {
        "kubeconfig": str(lab.kubeconfig("robot", ROBOT)),
        "image": "registry.invalid/drone:1",
    }
    return {**access, "types": TYPES, "deadline": "10s", "priority_class": "gpu-drones", **more}


class KubernetesWorld(ShellDrones):
    """The contract's view of it."""

    kind: DroneType = A100
    impossible: DroneType = HUGE
    grace_s = 2.0
    longest_wait_s = 40.0
    reports_free = False
    reports_exit_codes = True

    def __init__(self, lab: KubernetesLab, controller: str, **options: Any) -> None:
        self.lab, self.controller = lab, controller
        self.options = site_options(lab, **options)

    def site(self, controller: str | None = None) -> KubernetesSite:
        return self._site(controller or self.controller)

    def _site(self, controller: str, **more: Any) -> KubernetesSite:
        config = KubernetesSiteConfig.model_validate({**self.options, **more})
        return KubernetesSite(HERE, config, KINDS, controller)

    async def alive(self, drone_id: DroneId) -> int:
        pods = await asyncio.to_thread(pods_of, self.lab, drone_id)
        return len(
            [each for each in pods if each["status"].get("phase") not in ("Succeeded", "Failed")]
        )

    async def anything_left(self, drone_id: DroneId) -> bool:
        return await self.alive(drone_id) > 0 or bool(
            await asyncio.to_thread(processes_of, drone_id)
        )

    @asynccontextmanager
    async def broken(self) -> AsyncIterator[None]:
        with self.lab.front.failing(cut="before"):
            yield

    @asynccontextmanager
    async def _failing(self, **fault: Any) -> AsyncIterator[None]:
        with self.lab.front.failing(**fault):
            yield

    def lost_replies(self) -> AbstractAsyncContextManager[None]:
        return self._failing(method="POST", path="/(pods|jobs)$", cut="after")

    def pages(self) -> AbstractAsyncContextManager[None]:
        return self._failing(method="GET", path="/pods\\?.*limit=", query={"limit": "1"})

    def cut_listings(self) -> AbstractAsyncContextManager[None]:
        return self._failing(method="GET", path="/(pods|jobs)", cut="half")

    def refused_starts(self) -> AbstractAsyncContextManager[None]:
        message = 'pods "x" is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=60, limited: pods=60'
        body = {"kind": "Status", "reason": "Forbidden", "message": message, "code": 403}
        return self._failing(method="POST", path="/(pods|jobs)$", status=403, body=body)

    def refused_stops(self, status: int) -> AbstractAsyncContextManager[None]:
        body = {"kind": "Status", "message": "not now", "code": status}
        return self._failing(method="DELETE", path="/(pods|jobs)/", status=status, body=body)

    def forgetful_site(self) -> KubernetesSite:
        return self._site(self.controller, retain_finished="1s")

    async def objects(self, drone_id: DroneId) -> Sequence[str]:
        return await asyncio.to_thread(left_of, self.lab, drone_id)


def pods_of(lab: KubernetesLab, drone_id: str) -> list[dict[str, Any]]:
    """All pods of a drone, as the administrator sees them."""
    found = lab.get(f"{lab.ours}/pods?labelSelector=gpu-drone-provisioner/drone={drone_id}")
    return list(found["items"])


@contextmanager
def many_pods(lab: KubernetesLab, controller: str, count: int) -> Iterator[None]:
    """So many pods of a controller's drones, which no scheduler places, while inside. The quota is off meanwhile."""
    names, config = (
        PodNames(controller, HERE),
        KubernetesSiteConfig.model_validate(site_options(lab)),
    )
    quota = lab.get(f"{lab.ours}/resourcequotas/gpus")
    lab.call("DELETE", f"{lab.ours}/resourcequotas/gpus")

    def create(number: int) -> None:
        order = StartOrder(
            DroneId(f"{controller}-{number}"), A100, 60.0, 30.0, Bootstrap(b"", {}, {})
        )
        body = pod_body(order, config, names)
        body["spec"]["schedulerName"] = "nobody"
        lab.post(f"{lab.ours}/pods", body)

    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(create, range(count)))
        yield
    finally:
        selector = f"labelSelector=gpu-drone-provisioner/controller={controller}"
        lab.call("DELETE", f"{lab.ours}/pods?{selector}", {"gracePeriodSeconds": 0})
        until(
            lambda: not lab.get(f"{lab.ours}/pods?{selector}&limit=1")["items"],
            120,
            what="the many pods are gone",
        )
        lab.post(
            f"{lab.ours}/resourcequotas", {"metadata": {"name": "gpus"}, "spec": quota["spec"]}
        )


def left_of(lab: KubernetesLab, drone_id: str) -> list[str]:
    """Everything of a drone that is left: pods, secrets, Jobs, processes."""
    query = f"?labelSelector=gpu-drone-provisioner/drone={drone_id}"
    paths = {
        "pod": f"{lab.ours}/pods",
        "secret": f"{lab.ours}/secrets",
        "job": "/apis/batch/v1/namespaces/drones/jobs",
    }
    found = [
        f"{kind} {each['metadata']['name']}"
        for kind, path in paths.items()
        for each in lab.get(path + query)["items"]
    ]
    return [*found, *(f"process {line}" for line in processes_of(drone_id).values())]
