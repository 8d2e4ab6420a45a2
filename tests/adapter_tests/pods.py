"""A fake of a site: a small paged HTTP API whose pods are processes of this host."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.local.drones import kill_all, tagged

MOST_GPUS = 8


@dataclass
class Pod:
    name: str
    controller: str
    type: str
    uid: str
    grace_s: float
    process: subprocess.Popen[bytes]
    started_at: float
    ended_at: float = 0.0
    kill_at: float = 0.0
    """Time of its kill after a delete; 0 without a delete."""

    @property
    def document(self) -> dict[str, Any]:
        code = self.process.poll()
        if code is not None and not self.ended_at:
            self.ended_at = time.time()
        return {
            "name": self.name,
            "type": self.type,
            "uid": self.uid,
            "phase": "Running" if code is None else "Ended",
            "exit_code": code,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
        }


class PodServer:
    """The API, on loopback, with the faults that the contract suite asks for."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._pods: dict[str, Pod] = {}
        self._serial = 0
        self.page = 100
        self.down = self.cuts_listings = self.loses_replies = self.has_no_room = False
        self.stop_status = 0

    async def start(self) -> str:
        app = web.Application()
        app.router.add_get("/pods", self._list)
        app.router.add_post("/pods", self._create)
        app.router.add_delete("/pods/{name}", self._delete)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def stop(self) -> None:
        await self._runner.cleanup()
        for pod in self._pods.values():
            self._kill(pod)

    def pod(self, name: str) -> Pod | None:
        """A pod by its name, seen past the API."""
        self._pass_time()
        return self._pods.get(name)

    # ---------------------------------------------------------------------------------------------------------- calls

    async def _list(self, request: web.Request) -> web.StreamResponse:
        self._arrive(request)
        ours = sorted(
            (pod for pod in self._pods.values() if pod.controller == request.query["controller"]),
            key=lambda pod: pod.name,
        )
        rest = [pod for pod in ours if pod.name > request.query["continue"]]
        answer: dict[str, Any] = {"items": [pod.document for pod in rest[: self.page]]}
        if len(rest) > self.page:
            answer["continue"] = rest[self.page - 1].name
        if self.cuts_listings:
            response = web.StreamResponse(headers={"Content-Length": "100000", "Content-Type": "application/json"})
            await response.prepare(request)
            await response.write(b'{"items": [')
            self._hang_up(request)
        return web.json_response(answer)

    async def _create(self, request: web.Request) -> web.Response:
        self._arrive(request)
        asked = await request.json()
        if (there := self._pods.get(asked["name"])) is None:
            if self.has_no_room or asked["gpus"] > MOST_GPUS:
                return web.json_response({"reason": "quota", "message": "exceeded quota"}, status=403)
            there = self._pods[asked["name"]] = self._run(asked)
        elif there.controller != asked["controller"]:
            return web.json_response({"message": "the name is taken"}, status=409)
        if self.loses_replies:
            self._hang_up(request)
        return web.json_response({"uid": there.uid}, status=201)

    async def _delete(self, request: web.Request) -> web.Response:
        self._arrive(request)
        if self.stop_status:
            return web.json_response({"message": "not now"}, status=self.stop_status)
        pod = self._pods.get(request.match_info["name"])
        if pod is None:
            return web.json_response({"message": "not found"}, status=404)
        pod.kill_at = time.time() + (0 if request.query["kill"] == "1" else pod.grace_s)
        with suppress(ProcessLookupError):
            os.killpg(pod.process.pid, signal.SIGTERM)
        self._pass_time()
        return web.json_response({}, status=202)

    def _arrive(self, request: web.Request) -> None:
        self._pass_time()
        if self.down:
            self._hang_up(request)

    def _hang_up(self, request: web.Request) -> None:
        assert request.transport is not None
        request.transport.abort()
        raise ConnectionResetError

    # ----------------------------------------------------------------------------------------------------------- pods

    def _run(self, asked: dict[str, Any]) -> Pod:
        directory = self._root / asked["name"]
        directory.mkdir(parents=True)
        for name, data in {**asked["files"], "script": asked["script"]}.items():
            (directory / name).write_bytes(base64.b64decode(data))
        env = {"PATH": os.defpath, "DRONE_DIR": str(directory), **asked["env"]}
        process = subprocess.Popen(
            ["/bin/sh", "script"],
            cwd=directory,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._serial += 1
        uid = f"uid-{self._serial}"
        return Pod(asked["name"], asked["controller"], asked["type"], uid, asked["grace_s"], process, time.time())

    def _pass_time(self) -> None:
        """A pod that was deleted goes when its process has ended, or its grace."""
        for pod in [pod for pod in self._pods.values() if pod.kill_at]:
            if pod.process.poll() is not None or time.time() >= pod.kill_at:
                self._kill(pod)
                del self._pods[pod.name]
                shutil.rmtree(self._root / pod.name)

    def _kill(self, pod: Pod) -> None:
        while left := [pid for pid in tagged(pod.name) if pid != pod.process.pid or pod.process.poll() is None]:
            kill_all(left)
            time.sleep(0.005)
        pod.process.wait()
