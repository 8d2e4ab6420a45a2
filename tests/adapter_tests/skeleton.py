"""A skeleton of a site adapter, for a paged API in memory whose pods pretend to be drones."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Self

from provisioner import model
from provisioner.interfaces import (
    OBSERVING,
    AdapterError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)

LIVING, STUBBORN = b"runs until it is asked to leave", b"runs until it is killed"
"""Scripts of pods; any other is the exit code with which the pod ends at once."""


class NoReplyError(Exception):
    """The connection broke before the reply came."""


class RefusedError(Exception):
    """A reply with an HTTP status."""


@dataclass
class Pod:
    order: model.StartOrder
    controller: str
    uid: str
    started_at: float
    ends_at: float = math.inf
    deleted: bool = False

    @property
    def ended(self) -> bool:
        return time.time() >= self.ends_at

    def seen(self) -> model.RemoteDrone:
        assert self.order.bootstrap is not None
        script = self.order.bootstrap.script
        end = (
            model.RemoteEnd(model.EndKind.EXITED, self.ends_at, int(script)) if self.ended else None
        )
        state = model.RemoteState.ENDED if end else model.RemoteState.RUNNING
        return model.RemoteDrone(
            self.order.drone_id,
            state,
            self.uid,
            self.order.type.name,
            started_at=self.started_at,
            end=end,
            epoch=self.order.epoch,
        )


class PodApi:
    """The API, with the faults that the contract suite asks for. A pod that was deleted is gone when it has ended."""

    def __init__(self) -> None:
        self._pods: dict[model.DroneId, Pod] = {}
        self.page = 100
        self.down = self.cuts_listings = self.loses_replies = self.has_no_room = False
        self.stop_status = 0

    def pods(self) -> dict[model.DroneId, Pod]:
        self._pods = {
            name: pod for name, pod in sorted(self._pods.items()) if not (pod.deleted and pod.ended)
        }
        return self._pods

    async def list(self, controller: str, after: str) -> tuple[Sequence[model.RemoteDrone], str]:
        """A page of the listing, and the last name on it if there are more."""
        await self._arrive()
        rest = [
            pod
            for name, pod in self.pods().items()
            if pod.controller == controller and name > after
        ]
        if self.cuts_listings:
            raise NoReplyError
        page = [pod.seen() for pod in rest[: self.page]]
        return page, page[-1].drone_id if len(rest) > len(page) else ""

    async def create(self, controller: str, order: model.StartOrder, *, again: bool = False) -> str:
        """Create a pod. ``again``: also if there is one of this name."""
        await self._arrive()
        pods, now = self.pods(), time.time()
        if again and order.drone_id in pods:
            twin = model.DroneId(f"{order.drone_id}b")
            pods[twin] = Pod(order, controller, f"uid-{twin}", now)
        elif order.drone_id not in pods:
            if self.has_no_room or order.type.gpu_milli > 8000:
                raise RefusedError(403)
            assert order.bootstrap is not None
            pod = pods[order.drone_id] = Pod(order, controller, f"uid-{order.drone_id}", now)
            if order.bootstrap.script not in (LIVING, STUBBORN):
                pod.ends_at = now
        if self.loses_replies:
            raise NoReplyError
        return pods[order.drone_id].uid

    async def delete(self, name: model.DroneId, kill: bool) -> None:
        await self._arrive()
        if self.stop_status:
            raise RefusedError(self.stop_status)
        pod = self.pods().get(name)
        if pod is None:
            raise RefusedError(404)
        assert pod.order.bootstrap is not None
        waits = pod.order.bootstrap.script == STUBBORN and not kill
        pod.deleted = True
        pod.ends_at = min(pod.ends_at, time.time() + pod.order.grace_s * waits)

    async def _arrive(self) -> None:
        await asyncio.sleep(0.002)
        if self.down:
            raise NoReplyError


class PodSite:
    """Drones as pods, named by their drone id and labelled with the controller.

    A mutant of it makes a ``mistake``.
    """

    def __init__(
        self, api: PodApi, controller: str, *, keep_s: float = 3600.0, mistake: str = ""
    ) -> None:
        self._api, self._controller, self._keep_s, self._mistake = api, controller, keep_s, mistake
        self._views: list[model.SiteView] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def poll(self) -> model.SiteView:
        listed: list[model.RemoteDrone] = []
        after = ""
        while True:
            try:
                page, after = await self._api.list(self._controller, after)
            except NoReplyError:
                if self._mistake == "takes half a listing":
                    break
                raise UnavailableError("no answer") from None
            listed += page
            if not after or self._mistake == "reads one page":
                break
        listed.sort(key=lambda each: each.started_at)
        if self._mistake != "lists the newest":
            listed.reverse()
        drones = {drone.drone_id: drone for drone in listed}
        if not OBSERVING.get() and self._mistake != "keeps both":
            for each in listed:
                if each is not drones[each.drone_id]:
                    await self._api.delete(model.DroneId(each.remote_id[4:]), kill=True)
        view = model.SiteView("k8s", time.time(), drones)
        for drone_id, each in drones.items():
            old = each.end is not None and view.taken_at - each.end.at > self._keep_s
            if old and self._mistake != "leaves pods":
                await self._api.delete(drone_id, kill=True)
        self._views.append(view)
        return self._views[-2:][0] if self._mistake == "lists late" else view

    async def start(self, orders: Sequence[model.StartOrder]) -> Sequence[model.OrderResult]:
        return [
            await self._result(o.drone_id, self._api.create(self._controller, o), self._started)
            for o in orders
        ]

    async def stop(self, orders: Sequence[model.StopOrder]) -> Sequence[model.OrderResult]:
        return [
            await self._result(o.drone_id, self._api.delete(o.drone_id, o.kill), self._stopped)
            for o in orders
        ]

    async def _result(
        self, drone_id: model.DroneId, call: Awaitable[str | None], accepts: Callable[[int], bool]
    ) -> model.OrderResult:
        error: AdapterError
        try:
            return model.OrderResult(drone_id, model.OrderOutcome.OK, await call or "")
        except NoReplyError:
            error = OutcomeUnknownError("no answer")
        except RefusedError as refused:
            (status,) = refused.args
            if accepts(status):
                return model.OrderResult(drone_id, model.OrderOutcome.OK, "asked")
            error = (
                OutcomeUnknownError("it broke")
                if status == 500
                else RejectedError("quota", model.FaultKind.QUOTA)
            )
        unknown = isinstance(error, OutcomeUnknownError) and self._mistake != "loses drones"
        answer = model.OrderOutcome.UNKNOWN if unknown else model.OrderOutcome.REJECTED
        return model.OrderResult(
            drone_id, answer, "", model.Fault(error.kind, str(error), time.time())
        )

    def _started(self, status: int) -> bool:
        return self._mistake == "believes starts" and status == 403

    def _stopped(self, status: int) -> bool:
        return status == 404 or self._mistake == "believes stops"
