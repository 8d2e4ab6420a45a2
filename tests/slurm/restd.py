"""A fake slurmrestd that answers as the real one was recorded, and fails as a test requires."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from adapters.slurm.rest import SlurmRestClient
from adapters.slurm.settings import SlurmSiteConfig

ANSWERS = Path(__file__).with_name("rest_answers")


def recorded(name: str) -> Any:
    return json.loads((ANSWERS / f"{name}.json").read_text())


@dataclass
class Restd:
    """A server with some jobs."""

    versions: tuple[str, ...] = ("v0.0.42",)
    token: str = ""
    """Empty: everyone is let in."""
    jobs: dict[int, dict[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """Method and path of each call."""
    bodies: list[Any] = field(default_factory=list)
    reply: tuple[int, str | bytes] | None = None
    """Status and body of the answer to all but pings."""
    before: Callable[[web.Request], Any] | None = None
    """Awaited before each answer; what it returns is the answer, None for the usual one."""
    url: str = ""

    def add(self, number: int, user: str = "drone", state: str = "PENDING", **more: Any) -> None:
        record = recorded("array-24.11")["jobs"][0 if state == "PENDING" else 1]
        array = {"array_job_id": 0, "array_task_id": {"set": False}, "array_task_string": ""}
        self.jobs[number] = {
            **record,
            **array,
            "job_id": number,
            "user_name": user,
            "job_state": [state],
            **more,
        }

    def add_array(self, number: int, waiting: str, user: str = "drone") -> None:
        self.add(number, user, array_job_id=number, array_task_string=waiting)

    def add_task(
        self, number: int, array: int, task: int, state: str = "RUNNING", user: str = "drone"
    ) -> None:
        self.add(
            number, user, state, array_job_id=array, array_task_id={"set": True, "number": task}
        )

    def looked_at(self) -> list[int]:
        """Numbers whose details were requested since the last time this was asked."""
        found = [
            int(each.rpartition("/")[2])
            for each in self.asked
            if "/job/" in each and each.startswith("GET")
        ]
        self.asked.clear()
        return found

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.asked.append(f"{request.method} {path}")
        if request.can_read_body:
            self.bodies.append(await request.json())
        if self.before is not None and (special := await self.before(request)) is not None:
            return special if isinstance(special, web.StreamResponse) else _json(special)
        if self.reply is not None and "ping" not in path:
            status, body = self.reply
            return web.Response(status=status, body=body)
        if self.token and request.headers.get("X-SLURM-USER-TOKEN") != self.token:
            return web.Response(status=401, text="Authentication failure")
        if path.startswith("/slurm/") and path.split("/")[2] in self.versions:
            match request.method, *path.split("/")[3:]:
                case "GET", "ping", "":
                    return _json(
                        {"pings": [], "meta": recorded("states-24.11")["meta"], "errors": []}
                    )
                case "GET", "jobs", "state", "":
                    return _json(
                        {
                            "jobs": [line for job in self.jobs.values() for line in _lines(job)],
                            "errors": [],
                        }
                    )
                case "GET", "job", number:
                    return self._details(int(number))
                case "POST", "job", "submit":
                    return _json({"job_id": 7, "step_id": "batch", "errors": [], "warnings": []})
                case "DELETE", "jobs", "":
                    return _json(recorded("cancel-24.11"))
        return web.Response(
            status=404, text="Unable find requested URL. Please view /openapi/v3 for API reference."
        )

    def _details(self, number: int) -> web.Response:
        found = [
            each for each in self.jobs.values() if number in (each["job_id"], each["array_job_id"])
        ]
        return _json({"jobs": found, "errors": []}) if found else no_such_job()


def no_such_job() -> web.Response:
    return _json(
        {"jobs": [], "errors": [{"error_number": 2017, "error": "Invalid job id specified"}]},
        status=404,
    )


def _lines(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    task = job["array_task_id"]
    ends = (
        [f"_{each}" for each in job["array_task_string"].split(",")]
        if job["array_task_string"]
        else [""]
    )
    ends = [f"_{task['number']}"] if task["set"] else ends
    return [{"job_id": f"{job['job_id']}{end}", "state": job["job_state"]} for end in ends]


_json = web.json_response


@asynccontextmanager
async def running(restd: Restd) -> AsyncIterator[Restd]:
    """At a port of its own."""
    server = web.Server(restd.answer)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    restd.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield restd
    finally:
        await runner.cleanup()


def rest_client(url: str, deadline: str = "2s", **rest: Any) -> SlurmRestClient:
    """A client of the server there. Its token is REST_TOKEN, over the network."""
    settings = {"url": url, "user": "drone", "token": {"env": "REST_TOKEN"}, **rest}
    config = {"transport": "rest", "deadline": deadline, "submit_deadline": "2s", "rest": settings}
    return SlurmRestClient(SlurmSiteConfig.model_validate(config), "s")
