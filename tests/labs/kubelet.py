"""Kubelets of a test cluster: they register nodes, keep their leases, and run the containers of drones as processes.

Only this part of the lab's Kubernetes is not real. It speaks the API as a kubelet does: pods go
through Pending, Running and Succeeded or Failed, a deleted pod gets SIGTERM, its grace and SIGKILL,
and is then confirmed. There is no container: the command of a pod runs on this host, with its
secret as files and a directory of its own.

A pod may have annotations: ``lab/waiting`` (a reason with which its container waits for ever, as
ImagePullBackOff), ``lab/refuse`` (a reason with which its node refuses it). Files in the directory:
``nodes.json`` (a list of nodes), ``dead-nodes`` (names, one per line, of nodes that do not answer).

usage: python -m tests.labs.kubelet DIRECTORY
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

Record = dict[str, Any]


def now(*, micro: bool = False) -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S" + (".%fZ" if micro else "Z"))


class Kubelets:
    def __init__(self, directory: Path, session: aiohttp.ClientSession, url: str) -> None:
        self.directory, self.session, self.url = directory, session, url
        self.nodes: list[Record] = json.loads((directory / "nodes.json").read_text())
        self.names = {node["name"] for node in self.nodes}
        self.lives: dict[str, asyncio.Task[None]] = {}
        self.deletions: dict[str, asyncio.Event] = {}
        self.graces: dict[str, float] = {}

    async def call(
        self, method: str, path: str, body: Record | None = None, kind: str = "json"
    ) -> tuple[int, Any]:
        content = {"json": "application/json", "merge": "application/merge-patch+json"}.get(
            kind, "application/strategic-merge-patch+json"
        )
        data = json.dumps(body) if body is not None else None
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with self.session.request(
                    method, self.url + path, data=data, headers={"Content-Type": content}
                ) as reply:
                    return reply.status, await reply.json(content_type=None)
            await asyncio.sleep(0.5)

    def dead(self, node: str) -> bool:
        with contextlib.suppress(OSError):
            return node in (self.directory / "dead-nodes").read_text().split()
        return False

    # ------------------------------------------------------------------------------------------------------------
    # nodes

    async def keep(self, node: Record) -> None:
        name = node["name"]
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/arch": "amd64",
            **node.get("labels", {}),
        }
        spec = {"taints": node.get("taints", [])}
        await self.call(
            "POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, "spec": spec}
        )
        lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        while True:
            if not self.dead(name):
                nodes = json.loads((self.directory / "nodes.json").read_text())
                has = next(each["resources"] for each in nodes if each["name"] == name)
                capacity = {
                    "cpu": "64",
                    "memory": "256Gi",
                    "pods": "110",
                    "ephemeral-storage": "1Ti",
                    **has,
                }
                states = (
                    ("Ready", "True"),
                    ("MemoryPressure", "False"),
                    ("DiskPressure", "False"),
                    ("PIDPressure", "False"),
                )
                conditions = [
                    {"type": kind, "status": status, "reason": "Lab", "lastHeartbeatTime": now()}
                    for kind, status in states
                ]
                status = {"capacity": capacity, "allocatable": capacity, "conditions": conditions}
                await self.call(
                    "PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, "strategic"
                )
                held = {
                    "holderIdentity": name,
                    "leaseDurationSeconds": 8,
                    "renewTime": now(micro=True),
                }
                code, _ = await self.call("PATCH", f"{lease}/{name}", {"spec": held}, "merge")
                if code == 404:
                    meta = {"name": name, "namespace": "kube-node-lease"}
                    await self.call("POST", lease, {"metadata": meta, "spec": held})
            await asyncio.sleep(2)

    # -------------------------------------------------------------------------------------------------------------
    # pods

    async def report(self, pod: Record, phase: str, state: Record, **more: Any) -> None:
        meta = pod["metadata"]
        container = pod["spec"]["containers"][0]
        running = "running" in state
        statuses = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": running,
                "restartCount": 0,
                "state": state,
            }
        ]
        conditions = [
            {"type": kind, "status": "True" if running or kind == "Initialized" else "False"}
            for kind in ("Initialized", "Ready", "ContainersReady")
        ]
        status = {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": statuses,
            "startTime": now(),
            **more,
        }
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
        await self.call("PATCH", path, {"status": status}, "strategic")

    async def life(self, pod: Record, deleted: asyncio.Event) -> None:
        meta, spec = pod["metadata"], pod["spec"]
        notes = meta.get("annotations") or {}
        if reason := notes.get("lab/refuse"):
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/status"
            status = {"phase": "Failed", "reason": reason, "message": "Pod was rejected: lab"}
            await self.call("PATCH", path, {"status": status}, "strategic")
            await deleted.wait()
        elif reason := notes.get("lab/waiting"):
            await self.report(
                pod, "Pending", {"waiting": {"reason": reason, "message": "as its annotation says"}}
            )
            await deleted.wait()
        elif notes.get("lab/idle"):
            await self.report(pod, "Running", {"running": {"startedAt": now()}})
            await deleted.wait()
        else:
            await self.run(pod, deleted)
        await deleted.wait()
        while self.dead(spec["nodeName"]):  # noqa: ASYNC110 (a lost node confirms nothing; it is a file)
            await asyncio.sleep(0.2)
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        options["preconditions"] = {"uid": meta["uid"]}
        await self.call(
            "DELETE", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", options
        )

    async def run(self, pod: Record, deleted: asyncio.Event) -> None:
        meta, spec = pod["metadata"], pod["spec"]
        home = self.directory / "pods" / meta["uid"]
        files, work = home / "files", home / "work"
        files.mkdir(parents=True)
        work.mkdir()
        container = spec["containers"][0]
        for volume in spec.get("volumes", []):
            if "secret" in volume:
                path = f"/api/v1/namespaces/{meta['namespace']}/secrets/{volume['secret']['secretName']}"
                while True:
                    code, secret = await self.call("GET", path)
                    if code == 200:
                        break
                    if deleted.is_set():
                        shutil.rmtree(home, ignore_errors=True)
                        return
                    await asyncio.sleep(0.2)
                for name, data in secret["data"].items():
                    (files / name).write_bytes(base64.b64decode(data))
        log, end = self.directory / "log" / f"{meta['name']}.log", home / "end"
        env = {
            "PATH": os.environ["PATH"],
            "DRONE_FILES": str(files),
            "DRONE_WORK": str(work),
            "DRONE_TERMINATION_LOG": str(end),
            "DRONE_NODE": spec["nodeName"],
            "LAB_POD": meta["uid"],
        }
        env |= {each["name"]: each["value"] for each in container.get("env", []) if "value" in each}
        gpus = [
            name
            for name in container["resources"].get("limits", {})
            if name.startswith("nvidia.com/")
        ]
        if gpus:  # the A100 and the V100 that HTCondor knows to simulate
            env["DRONE_GPU_SIMULATE"] = "4,1" if gpus == ["nvidia.com/gpu"] else "2,1"
        user = spec.get("securityContext", {}).get("runAsUser", 0)
        account = {}
        if os.geteuid() == 0:
            account = {"user": user, "group": user, "extra_groups": []}
            for path in (home, files, work, *files.iterdir()):
                os.chown(path, user, user)
        await self.report(pod, "Running", {"running": {"startedAt": now()}})
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                *container["command"], env=env, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True, cwd=work, **account,
            )  # fmt: skip
        ended = asyncio.create_task(process.wait())
        gone = asyncio.create_task(deleted.wait())
        limit = spec.get("activeDeadlineSeconds")
        await asyncio.wait([ended, gone], return_when=asyncio.FIRST_COMPLETED, timeout=limit)
        expired = not ended.done() and not gone.done()
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            deadline = asyncio.get_running_loop().time()
            while not ended.done():
                grace = self.graces.get(meta["uid"], spec.get("terminationGracePeriodSeconds", 30))
                if asyncio.get_running_loop().time() - deadline > grace:
                    break
                await asyncio.sleep(0.1)
        await asyncio.to_thread(self.sweep, meta)
        code = await ended
        gone.cancel()
        message = (
            end.read_text(errors="replace")
            if end.exists()
            else log.read_text(errors="replace")[-2048:]
        )
        code = code if code >= 0 else 128 - code
        state = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "finishedAt": now(),
            "message": message,
        }
        state["startedAt"] = now()
        more = (
            {"reason": "DeadlineExceeded", "message": "Pod was active longer than specified"}
            if expired
            else {}
        )
        await self.report(
            pod, "Failed" if code or expired else "Succeeded", {"terminated": state}, **more
        )
        shutil.rmtree(home, ignore_errors=True)

    @staticmethod
    def sweep(meta: Record) -> None:
        """Kill all processes of a pod, as the end of a container does."""
        drone = meta.get("labels", {}).get("gpu-drone-provisioner/drone", "")
        marks = (f"LAB_POD={meta['uid']}\0".encode(), f"PROVISIONER_DRONE_ID={drone}\0".encode())
        for _ in range(50):
            found = False
            for environ in Path("/proc").glob("[0-9]*/environ"):
                with contextlib.suppress(OSError):
                    content = environ.read_bytes()
                    if any(mark in content for mark in marks):
                        os.kill(int(environ.parent.name), signal.SIGKILL)
                        found = True
            if not found:
                return

    def seen(self, kind: str, pod: Record) -> None:
        meta, uid = pod["metadata"], pod["metadata"]["uid"]
        if pod["spec"].get("nodeName") not in self.names:
            return
        if kind == "DELETED":
            self.deletions.setdefault(uid, asyncio.Event()).set()
            return
        if meta.get("deletionTimestamp"):
            if "deletionGracePeriodSeconds" in meta:
                self.graces[uid] = meta["deletionGracePeriodSeconds"]
            self.deletions.setdefault(uid, asyncio.Event()).set()
        if uid not in self.lives:
            deleted = self.deletions.setdefault(uid, asyncio.Event())
            self.lives[uid] = asyncio.create_task(self.life(pod, deleted))

    async def follow(self) -> None:
        bound = "fieldSelector=spec.nodeName!="
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError, KeyError):
                _, listed = await self.call("GET", f"/api/v1/pods?{bound}")
                for pod in listed["items"]:
                    self.seen("ADDED", pod)
                version = listed["metadata"]["resourceVersion"]
                path = f"{self.url}/api/v1/pods?watch=1&{bound}&resourceVersion={version}"
                async with self.session.get(
                    path, timeout=aiohttp.ClientTimeout(total=None)
                ) as stream:
                    async for line in stream.content:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        self.seen(event["type"], event["object"])
            await asyncio.sleep(0.2)


async def main(directory: Path) -> None:
    access = json.loads((directory / "kubelet.json").read_text())
    trust = ssl.create_default_context(cafile=str(directory / "server.crt"))
    headers = {"Authorization": f"Bearer {access['token']}"}
    (directory / "pods").mkdir(exist_ok=True)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=trust), headers=headers, read_bufsize=2**22
    ) as session:
        kubelets = Kubelets(directory, session, access["server"])
        async with asyncio.TaskGroup() as group:
            for node in kubelets.nodes:
                group.create_task(kubelets.keep(node))
            group.create_task(kubelets.follow())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
