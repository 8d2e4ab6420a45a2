"""Copies that watches keep: whatever fails, they are tried again, and nobody takes an old copy for a new one."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import pytest
from aiohttp import web

from adapters.kubernetes import cache
from provisioner.interfaces import AdapterError, UnavailableError
from provisioner.model import FaultKind, RemoteState
from tests.kubernetes.fake_kubernetes import (
    A100,
    JOBS,
    PODS,
    QUOTAS,
    FakeCluster,
    order,
    polled,
    refusal,
)

ONE = order().drone_id
ALL_PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
GPU = "nvidia.com/gpu"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_WATCH_PAUSE_S", 0.05)
    monkeypatch.setattr(cache, "_ERROR_PAUSE_S", (0.05, 0.2))


def node(name: str = "gpu01") -> dict[str, Any]:
    allocatable = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", GPU: "4"}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": {"name": name},
        "spec": {},
        "status": {"allocatable": allocatable, "conditions": ready},
    }


def owner_pod(priority: int) -> dict[str, Any]:
    """A pod that waits for a GPU."""
    unschedulable = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
    containers = [{"resources": {"requests": {GPU: "1"}}}]
    return {
        "metadata": {"name": f"owner{priority}"},
        "spec": {"priority": priority, "containers": containers},
        "status": {"phase": "Pending", "conditions": unschedulable},
    }


BREAKS = {
    "a certificate that is none": (
        "cluster",
        {"certificate-authority-data": base64.b64encode(b"no").decode()},
    ),
    "arguments of a plugin": (
        "user",
        {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "x"}},
    ),
    "a home that nobody has": ("cluster", {"certificate-authority": "~nobody-of-that-name/x"}),
}


@pytest.mark.parametrize("what", BREAKS)
async def test_credentials_that_break_are_read_again(cluster: FakeCluster, what: str) -> None:
    section, broken = BREAKS[what]
    site = cluster.site()
    path = cluster.directory / "kubeconfig"
    good = path.read_text()
    bad = json.loads(good)
    bad[f"{section}s"][0][section] = {"server": "https://127.0.0.1:1", **broken}
    if "exec" in broken:
        bad["users"][0]["user"]["exec"]["args"] = 5
    path.write_text(json.dumps(bad))
    async with site:
        with pytest.raises(AdapterError):
            await site.poll()
        path.write_text(good)
        await eventually_polled(site)


async def eventually_polled(site: Any) -> Any:
    async with asyncio.timeout(5):
        while True:
            try:
                return await site.poll()
            except AdapterError:
                await asyncio.sleep(0.02)


async def test_an_object_that_cannot_be_read_is_an_error_and_not_left_out(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(found: Any, names: Any) -> Any:
        raise KeyError("phase")

    async with cluster.site() as site:
        await polled(site, lambda _: bool(cluster.made("WATCH", PODS)))
        with monkeypatch.context() as patch:
            patch.setattr("adapters.kubernetes.site.drone_pod", broken)
            cluster.put(PODS, {"metadata": {"name": "x"}, "spec": {}})
            for _ in range(20):
                await asyncio.sleep(0.02)
            for _ in range(20):
                await asyncio.sleep(0.02)
                with pytest.raises(UnavailableError, match="phase"):
                    await site.poll()
        await eventually_polled(site)


async def test_the_first_poll_waits_for_the_first_list(cluster: FakeCluster) -> None:
    async def slow(_: web.Request) -> web.Response:
        await asyncio.sleep(0.3)
        return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})

    cluster.answers["GET", PODS] = slow
    async with cluster.site() as site:
        assert (await site.poll()).taken_at > 0


@pytest.mark.parametrize("kind", ["pod", "job"])
async def test_a_new_drone_is_listed_although_its_watch_lags(
    cluster: FakeCluster, kind: str
) -> None:
    path = PODS if kind == "pod" else f"{JOBS}jobs"
    old = {"items": [], "metadata": {"resourceVersion": "1"}}
    cluster.answers = {
        ("WATCH", ""): lambda _: refusal(410),
        ("GET", ""): lambda _: web.json_response(old),
    }
    async with cluster.site(kind=kind) as site:
        assert not (await site.poll()).drones
        (started,) = await site.start([order()])
        assert (await site.poll()).drones[ONE].remote_id == started.remote_id
        lists = len(cluster.made("GET", path))
        await polled(site, lambda _: len(cluster.made("GET", path)) > lists + 2)
        assert (await site.poll()).drones[ONE].end is None, (
            "an old list is no proof that it is gone"
        )
        cluster.drop(f"{path}/{ONE}")
        cluster.answers.clear()
        view = await polled(
            site, lambda view: all(each.end is not None for each in view.drones.values())
        )
        assert list(view.drones) == ([ONE] if kind == "pod" else []), "only pods are remembered"


async def test_an_old_reply_does_not_replace_a_newer_pod(cluster: FakeCluster) -> None:
    async with cluster.site() as site:
        await site.start([order()])
        old = cluster.objects[f"{PODS}/{ONE}"]
        cluster.change(f"{PODS}/{ONE}", status={"phase": "Running"})
        await polled(site, lambda view: view.drones[ONE].state is RemoteState.RUNNING)
        cluster.answers["GET", f"{PODS}/{ONE}"] = lambda _: web.json_response(old)
        await site.start([order()])
        assert (await site.poll()).drones[ONE].state is RemoteState.RUNNING


async def test_polls_do_not_shorten_the_pauses_of_an_outage(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_ERROR_PAUSE_S", (10.0, 30.0))
    cluster.answers["GET", PODS] = lambda _: refusal(500, "InternalError")
    async with cluster.site() as site:
        for _ in range(20):
            began = time.monotonic()
            with pytest.raises(UnavailableError):
                await site.poll()
            await asyncio.sleep(0.01)
        assert time.monotonic() - began < 1, "a poll does not wait for the next try"
        assert len(cluster.made("GET", PODS)) == 1


@pytest.mark.parametrize("kind", ["GET", "WATCH"])
async def test_the_api_server_says_how_long_to_wait(cluster: FakeCluster, kind: str) -> None:
    cluster.answers[kind, PODS] = lambda _: refusal(429, "TooManyRequests", **{"Retry-After": "1"})
    async with cluster.site() as site:
        with pytest.raises(UnavailableError, match=r"try again after 1 s") as raised:
            for _ in range(50):
                await site.poll()
                await asyncio.sleep(0.02)
        assert raised.value.kind is FaultKind.THROTTLED
        await asyncio.sleep(0.6)
        assert len(cluster.made(kind, PODS)) == 1
        await asyncio.sleep(0.8)
        assert len(cluster.made(kind, PODS)) == 2


async def test_watches_that_end_at_once_do_not_follow_at_once(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_WATCH_PAUSE_S", 1.0)
    cluster.answers["WATCH", PODS] = lambda _: web.Response(body=b"")
    async with cluster.site() as site:
        await site.poll()
        await asyncio.sleep(1)
        assert len(cluster.made("WATCH", PODS)) < 20


async def test_a_quota_that_cannot_be_read_any_more_is_not_known(cluster: FakeCluster) -> None:
    used = {
        "metadata": {"name": "gpus"},
        "spec": {},
        "status": {"hard": {"pods": "5"}, "used": {"pods": "3"}},
    }
    cluster.put(QUOTAS, used)
    async with cluster.site() as site:
        assert (await site.poll()).quota == {A100.name: 2}
        forbidden = lambda _: refusal(403, "Forbidden", "resourcequotas is forbidden")  # noqa: E731
        cluster.answers = {("GET", QUOTAS): forbidden, ("WATCH", QUOTAS): forbidden}
        cluster.cut_watches()
        view = await polled(site, lambda view: view.quota is None)
        assert view.notices == (
            "the quota is not known: resourcequotas is forbidden: apply `provisioner render kubernetes`",
        )


async def test_without_rights_free_capacity_is_not_known(cluster: FakeCluster) -> None:
    cluster.put(NODES, node())
    async with cluster.site() as site:
        assert [each.free_gpu_milli for each in (await site.poll()).nodes] == [4000]
    cluster.answers["GET", ALL_PODS] = lambda _: refusal(403, "Forbidden", "pods is forbidden")
    async with cluster.site() as site:
        view = await site.poll()
        assert (view.nodes, view.free, view.owner_runs) == ((), None, None)
        (notice,) = view.notices
        assert notice.startswith(
            "free capacity is not known: pods of all namespaces cannot be listed: pods is forbid"
        )


async def silent(_: web.Request) -> web.Response:
    await asyncio.sleep(60)
    raise AssertionError


@pytest.mark.parametrize("at_first", [False, True])
async def test_while_the_pods_of_all_namespaces_are_late_there_is_no_view(
    cluster: FakeCluster, at_first: bool
) -> None:
    """Without them starts were not limited, and no room was kept for the owner."""
    down = lambda _: refusal(503, "ServiceUnavailable", "apiserver is shutting down")  # noqa: E731
    cluster.put(NODES, node())
    if at_first:
        cluster.answers["GET", ALL_PODS] = silent
    async with cluster.site(deadline="4s") as site:
        if not at_first:
            assert [each.free_gpu_milli for each in (await site.poll()).nodes] == [4000]
            cluster.answers = {("GET", ALL_PODS): down, ("WATCH", ALL_PODS): down}
            cluster.cut_watches()
            await asyncio.sleep(0.5)
        with pytest.raises(UnavailableError, match="pods of all namespaces cannot be listed"):
            await site.poll()
        cluster.answers = {}


async def test_a_drone_holds_its_gpu_before_the_watch_of_all_pods_has_it(
    cluster: FakeCluster,
) -> None:
    cluster.put(NODES, node())
    cluster.answers["WATCH", ALL_PODS] = silent
    async with cluster.site() as site:
        await site.start([order()])
        assert [each.free_gpu_milli for each in (await site.poll()).nodes] == [4000]
        spec = cluster.objects[f"{PODS}/{ONE}"]["spec"]
        cluster.change(f"{PODS}/{ONE}", spec={**spec, "nodeName": "gpu01"})
        view = await polled(site, lambda view: view.drones[ONE].node == "gpu01")
        assert [each.free_gpu_milli for each in view.nodes] == [3000]


async def test_owners_pods_are_those_above_the_priority_that_ours_were_given(
    cluster: FakeCluster,
) -> None:
    """No class is read: one that cannot be read would hide pods of the priority 0 from drones of -10."""
    cluster.put(NODES, node())
    for priority in (0, -20):
        cluster.put(PODS, owner_pod(priority))
    async with cluster.site(priority_class="gpu-drones") as site:
        view = await site.poll()
        assert (len(view.nodes), view.claims, view.owner_runs) == (1, (), None), (
            "our priority is not known yet"
        )
        await site.start([order()])
        view = await polled(site, lambda view: ONE in view.drones)
        assert [each.count for each in view.claims] == [1]
        assert view.owner_runs is not None
        cluster.drop(f"{PODS}/{ONE}")
        view = await polled(site, lambda view: view.drones[ONE].end is not None)
        assert [each.count for each in view.claims] == [1], "the priority is remembered"
