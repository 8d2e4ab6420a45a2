"""A shadow polls and decides like a controller, and no order reaches an adapter, whatever its planner wants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from provisioner import interfaces, model
from provisioner.controller.loop import Controller
from provisioner.controller.shadow import decide_without_orders, observed_overlay, observed_site
from provisioner.interfaces import RejectedError
from provisioner.model import DrainMode, DroneId, DroneState, Plan, RequestKind, Snapshot
from provisioner.planner import decide
from provisioner.reasons import OperatorRequested, Orphan, ShadowOnly
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.controller.world import GPU, JOB, in_virtual_time, wall
from tests.store.story import SEEN, TemporaryStore

OTHERS = (model.OtherDrones("here", "A100", 2, 2000, 1000, joined=5),)
CALLS = {"poll", "other_drones"}
"""All that a shadow may call."""


class Recorder:
    """An adapter with every method that any protocol knows, each of which records its call."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def __aenter__(self) -> Recorder:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


def _method(name: str) -> Callable[..., Coroutine[Any, Any, object]]:
    async def method(self: Recorder, *args: Any, **options: Any) -> object:
        self.calls.append(name)
        return []

    return method


PROTOCOLS = [
    each for name, each in vars(interfaces).items() if getattr(each, "_is_protocol", False)
]
ORDERS = sorted(
    {
        name
        for each in PROTOCOLS
        for name in vars(each)
        if not name.startswith("_") and callable(getattr(each, name))
    }
    - {"poll", "other_drones"}
)
for _name in ORDERS:
    setattr(Recorder, _name, _method(_name))


class RecordingSite(Recorder):
    async def poll(self) -> model.SiteView:
        self.calls.append("poll")
        stray = model.RemoteDrone(DroneId("kit-mem0-99"), model.RemoteState.RUNNING, "r99", "gpu")
        return model.SiteView("here", wall(), {stray.drone_id: stray}, free={"gpu": 3})


class RecordingOverlay(Recorder):
    async def poll(self, types: Sequence[model.DroneType]) -> model.OverlayView:
        self.calls.append("poll")
        return model.OverlayView(
            wall(), (replace(JOB, waiting=2, oldest_at=wall() - 3600, idle_at=wall() - 3600),)
        )

    async def other_drones(self) -> Sequence[model.OtherDrones]:
        self.calls.append("other_drones")
        return OTHERS


def a_shadow(
    site: Any,
    overlay: Any,
    store: SqlStore,
    planner: Callable[[Snapshot], Plan] = decide_without_orders,
) -> Controller:
    from provisioner.simulator.loop import VirtualClock

    policy = model.Policy(sites={"here": model.SitePolicy("here", grace_s=1.0)})
    sites = {"here": observed_site(site)}
    return Controller(
        "kit",
        policy,
        [GPU],
        observed_overlay(overlay),
        sites,
        store,
        VirtualClock(),
        planner=planner,
    )


@in_virtual_time
async def test_it_decides_and_orders_nothing() -> None:
    site, overlay = RecordingSite(), RecordingOverlay()
    async with TemporaryStore("kit") as store, a_shadow(site, overlay, store) as shadow:
        Reader(store.path).ask(
            RequestKind.KILL, [DroneId("kit-mem0-99")], reason="test", by="root", at=1.0
        )
        for _ in range(3):
            report = await shadow.tick()
        assert not report.plan.acts and report.recorded and not report.faults
        assert (
            model.Refusal(model.Subject("class", "jobs"), 2, ShadowOnly(GPU.key, 2))
            in report.plan.refusals
        )
        assert not store.drones and not await store.requests()
    assert set(site.calls) | set(overlay.calls) == CALLS


@in_virtual_time
async def test_no_order_gets_out_even_if_the_planner_gives_every_kind() -> None:
    """The adapters' other methods are out of reach: this planner starts, drains, stops, kills and ends strays."""

    def rash(snapshot: Snapshot) -> Plan:
        plan, why = decide(snapshot), OperatorRequested("root", "test")
        there = [replace(d, leaving=DroneState.DONE, asked=1) for d in snapshot.drones.values()]
        orphan = model.StopOrphan("here", DroneId("kit-mem0-99"), "r99", Orphan(""))
        return replace(
            plan,
            drains=tuple(model.Drain(d, d.state, DrainMode.FAST, why) for d in there[:1]),
            stops=tuple(model.Stop(d, d.state, why, kill=True) for d in there[1:]),
            orphans=(orphan,),
        )

    site, overlay, asked = RecordingSite(), RecordingOverlay(), Counter[str]()
    async with TemporaryStore("kit") as store:
        known = [
            model.Drone(DroneId(f"kit-mem0-{n}"), GPU.key, DroneState.IDLE, wall(), wall(), 1000)
            for n in (1, 2)
        ]
        await store.record_results(1, [model.StateChange(each, None, SEEN) for each in known], [])
        async with a_shadow(site, overlay, store, rash) as shadow:
            shadow.judge = lambda snapshot, plan: ()
            for _ in range(3):
                plan = (await shadow.tick()).plan
                asked += Counter(
                    drains=len(plan.drains), stops=len(plan.stops), orphans=len(plan.orphans)
                )
                asked["starts"] += len(plan.starts)
    assert min(asked[kind] for kind in ("starts", "drains", "stops", "orphans")) >= 1, asked
    assert set(site.calls) | set(overlay.calls) == CALLS


@pytest.mark.parametrize("name", ORDERS)
async def test_each_method_but_the_polls_is_out_of_reach(name: str) -> None:
    site, overlay = RecordingSite(), RecordingOverlay()
    for observed in (observed_site(site), observed_overlay(overlay)):  # type: ignore[arg-type]
        if hasattr(observed, name):
            with pytest.raises(RejectedError, match="this controller is a shadow"):
                await getattr(observed, name)([])
        for protocol in PROTOCOLS:
            if protocol.__name__.startswith("Supports") and getattr(
                protocol, "_is_runtime_protocol", False
            ):
                assert not isinstance(observed, protocol), (
                    f"the controller would take it for {protocol.__name__}"
                )
    assert not site.calls and not overlay.calls


def test_the_protocols_are_all_here() -> None:
    assert {"start", "stop", "drain", "bootstrap", "forget", "audit", "probe"} <= set(ORDERS)
