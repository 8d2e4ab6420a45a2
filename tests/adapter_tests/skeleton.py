"""A skeleton of a site adapter for a small paged HTTP API with pods, as an outsider would write it first."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Self

import aiohttp
from pydantic import BaseModel, ConfigDict, Field

from provisioner import drone
from provisioner.config.units import Duration
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import (
    DroneId,
    DroneType,
    EndKind,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    RemoteDrone,
    RemoteEnd,
    RemoteState,
    SiteView,
    StartOrder,
    StopOrder,
)

_PHASES = {"Pending": RemoteState.PENDING, "Running": RemoteState.RUNNING}


class Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    endpoint: str = Field(description="Address of the API.")
    deadline: Duration = Field(default=5.0, description="Longest wait for one answer.")
    retain_finished: Duration = Field(default=3600.0, description="How long the pod of an ended drone is kept.")


class PodSite:
    """Drones as pods, named by their drone id and labelled with the controller."""

    Config = Config

    def __init__(self, name: str, config: Config, types: Sequence[DroneType], controller: str) -> None:
        self._name, self._config, self._controller = name, config, controller
        self._polls = 0
        self._cleanup: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self._config.deadline)
        self._http = aiohttp.ClientSession(self._config.endpoint, timeout=timeout)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._cleanup is not None:
            self._cleanup.cancel()
            await asyncio.wait([self._cleanup])
        await self._http.close()

    # -------------------------------------------------------------------------------------------------------- looking

    async def poll(self) -> SiteView:
        pods = await self._pods()
        view = SiteView(self._name, time.time(), {DroneId(pod["name"]): _drone(pod) for pod in pods})
        self._polls += 1
        if self._polls > 1 and (self._cleanup is None or self._cleanup.done()):  # `check --live` polls once
            self._cleanup = asyncio.create_task(self._delete_old(view))
        return view

    async def _pods(self) -> list[Mapping[str, Any]]:
        """List the pods of this controller: all pages or an error."""
        found: list[Mapping[str, Any]] = []
        mark = ""
        while True:
            query = {"controller": self._controller, "continue": mark}
            page = await self._call("GET", "/pods", params=query, writes=False)
            found += page["items"]
            mark = page.get("continue", "")
            if not mark:
                return found

    async def _delete_old(self, view: SiteView) -> None:
        """Delete the pods of drones that ended long ago."""
        for drone_id, each in view.drones.items():
            if each.end is not None and view.taken_at - each.end.at > self._config.retain_finished:
                try:
                    await self._delete(drone_id, kill=True)
                except AdapterError:
                    return  # after the next poll

    # ------------------------------------------------------------------------------------------ starting and stopping

    async def start(self, orders: Sequence[StartOrder]) -> Sequence[OrderResult]:
        return [await self._start(order) for order in orders]

    async def _start(self, order: StartOrder) -> OrderResult:
        assert order.bootstrap is not None
        pod = {
            "name": order.drone_id,
            "controller": self._controller,
            "type": order.type.name,
            "gpus": order.type.gpu_milli // 1000,
            "grace_s": order.grace_s,
            "env": {**order.bootstrap.env, **drone.environment(order), "PROVISIONER_DRONE_ID": order.drone_id},
            "script": base64.b64encode(order.bootstrap.script).decode(),
            "files": {name: base64.b64encode(data).decode() for name, data in order.bootstrap.files.items()},
        }

        async def create() -> str:
            return str((await self._call("POST", "/pods", json=pod))["uid"])

        return await self._result(order.drone_id, create())

    async def _result(self, drone_id: DroneId, call: Awaitable[str]) -> OrderResult:
        """Return the result of an order: the remote id, or the error."""
        try:
            return OrderResult(drone_id, OrderOutcome.OK, await call)
        except OutcomeUnknownError as error:
            return self._lost_reply(drone_id, error)
        except AdapterError as error:
            return _refused(drone_id, error)

    def _lost_reply(self, drone_id: DroneId, error: AdapterError) -> OrderResult:
        return OrderResult(drone_id, OrderOutcome.UNKNOWN, "", Fault(FaultKind.UNKNOWN, str(error), time.time()))

    async def stop(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        return [await self._result(order.drone_id, self._delete(order.drone_id, order.kill)) for order in orders]

    async def _delete(self, drone_id: DroneId, kill: bool, accepted: Sequence[int] = (202, 404)) -> str:
        await self._call("DELETE", f"/pods/{drone_id}", params={"kill": str(int(kill))}, accepted=accepted)
        return ""

    # ---------------------------------------------------------------------------------------------------------- calls

    async def _call(
        self, method: str, path: str, accepted: Sequence[int] = (200, 201), *, writes: bool = True, **more: Any
    ) -> Mapping[str, Any]:
        """Call the API and translate what goes wrong into one of the four errors."""
        try:
            async with self._http.request(method, path, **more) as response:
                body: Mapping[str, Any] = await response.json()
        except aiohttp.ClientConnectorError as error:  # nothing was sent
            raise UnavailableError(f"no connection: {error}") from None
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            kind = OutcomeUnknownError if writes else UnavailableError
            raise kind(f"no answer: {error or type(error).__name__}") from None
        if response.status in accepted:
            return body
        message = str(body.get("message", response.reason))
        if response.status in (401, 403) and body.get("reason") != "quota":
            raise AuthError(message)
        if response.status >= 500:
            raise OutcomeUnknownError(message) if writes and response.status != 503 else UnavailableError(message)
        raise RejectedError(message, FaultKind.QUOTA if body.get("reason") == "quota" else FaultKind.CONFIG)


def _refused(drone_id: DroneId, error: AdapterError) -> OrderResult:
    return OrderResult(drone_id, OrderOutcome.REJECTED, "", Fault(error.kind, str(error), time.time()))


def _drone(pod: Mapping[str, Any]) -> RemoteDrone:
    end = None
    if pod["phase"] == "Ended":
        end = RemoteEnd(EndKind.EXITED, pod["ended_at"], pod["exit_code"])
    return RemoteDrone(
        drone_id=DroneId(pod["name"]),
        state=RemoteState.ENDED if end else _PHASES.get(pod["phase"], RemoteState.UNKNOWN),
        remote_id=pod["uid"],
        type=pod["type"],
        started_at=pod["started_at"],
        end=end,
    )


class LosesDrones(PodSite):
    """A mutant: takes a lost reply for a refusal."""

    def _lost_reply(self, drone_id: DroneId, error: AdapterError) -> OrderResult:
        return _refused(drone_id, error)


class ReadsOnePage(PodSite):
    """A mutant: reads the first page of a listing only."""

    async def _pods(self) -> list[Mapping[str, Any]]:
        page = await self._call("GET", "/pods", params={"controller": self._controller, "continue": ""}, writes=False)
        return list(page["items"])


class TakesHalf(PodSite):
    """A mutant: takes what it has when a listing breaks off."""

    async def _pods(self) -> list[Mapping[str, Any]]:
        try:
            return await super()._pods()
        except UnavailableError:
            return []


class BelievesStops(PodSite):
    """A mutant: takes any answer to a stop for done."""

    async def _delete(self, drone_id: DroneId, kill: bool, accepted: Sequence[int] = ()) -> str:
        return await super()._delete(drone_id, kill, (202, 403, 404, 500, 503))


class LeavesPods(PodSite):
    """A mutant: never deletes the pod of a drone that has ended."""

    async def _delete_old(self, view: SiteView) -> None:
        return None


class BelievesStarts(PodSite):
    """A mutant: takes a refused start for done."""

    async def _start(self, order: StartOrder) -> OrderResult:
        result = await super()._start(order)
        quota = result.fault is not None and result.fault.kind is FaultKind.QUOTA
        return OrderResult(order.drone_id, OrderOutcome.OK, "asked") if quota else result
