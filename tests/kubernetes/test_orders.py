"""Starts and stops: an order is refused only if nothing can come of it, and done only if nothing is left."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from adapters.kubernetes.api import ApiReply, order_error
from provisioner.interfaces import OutcomeUnknownError, UnavailableError
from provisioner.model import EndKind, FaultKind, OrderOutcome, RemoteState, StopOrder
from tests.kubernetes.fake_kubernetes import (
    JOBS,
    PODS,
    SECRETS,
    Answer,
    FakeCluster,
    abort,
    order,
    polled,
    refusal,
)

ONE = order().drone_id
POD, SECRET, JOB = f"{PODS}/{ONE}", f"{SECRETS}/{ONE}", f"{JOBS}jobs/{ONE}"
OK, REJECTED, UNKNOWN = OrderOutcome.OK, OrderOutcome.REJECTED, OrderOutcome.UNKNOWN


def forbidden(_: web.Request) -> web.Response:
    return refusal(
        403, "Forbidden", 'secrets is forbidden: User "x" cannot create resource "secrets"'
    )


def bad_gateway(_: web.Request) -> web.Response:
    return web.Response(status=502, text="<html>Bad Gateway")


async def test_a_drone_gets_a_pod_and_a_secret_that_belongs_to_it(cluster: FakeCluster) -> None:
    async with cluster.site() as site:
        (result,) = await site.start([order()])
        assert (result.answer, result.remote_id) == (OK, cluster.objects[POD]["metadata"]["uid"])
        (owner,) = cluster.objects[SECRET]["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Pod", result.remote_id)
        assert (await site.poll()).drones[ONE].remote_id == result.remote_id


async def test_a_second_create_completes_the_first(cluster: FakeCluster) -> None:
    async with cluster.site() as site:
        cluster.late[PODS] = abort
        cluster.answers["GET", POD] = bad_gateway
        (first,) = await site.start([order()])
        assert first.answer is UNKNOWN
        cluster.answers.clear()
        (second,) = await site.start([order()])
        assert second.answer is OK
        assert SECRET in cluster.objects


@pytest.mark.parametrize("exists", [False, True], ids=["the reply is lost", "it exists"])
async def test_a_read_that_fails_after_a_create_leaves_it_unknown(
    cluster: FakeCluster, exists: bool
) -> None:
    async with cluster.site() as site:
        cluster.late[PODS] = abort
        if exists:
            await site.start([order()])
        cluster.answers["GET", POD] = bad_gateway
        (result,) = await site.start([order()])
        assert result.answer is UNKNOWN
        assert POD in cluster.objects


async def test_a_secret_that_is_refused_takes_its_pod_along(cluster: FakeCluster) -> None:
    async with cluster.site() as site:
        cluster.answers["POST", SECRETS] = forbidden
        (result,) = await site.start([order()])
        assert result.answer is REJECTED
        assert result.fault is not None and result.fault.kind is FaultKind.DENIED
        assert POD not in cluster.objects


@pytest.mark.parametrize("answer", [abort, bad_gateway, forbidden])
async def test_a_pod_that_cannot_be_deleted_again_leaves_the_create_unknown(
    cluster: FakeCluster, answer: Answer
) -> None:
    async with cluster.site() as site:
        cluster.answers = {("POST", SECRETS): forbidden, ("DELETE", POD): answer}
        (result,) = await site.start([order()])
        assert result.answer is UNKNOWN


async def test_a_conflict_of_another_kind_is_no_pod(cluster: FakeCluster) -> None:
    async with cluster.site() as site:
        message = (
            'Operation cannot be fulfilled on resourcequotas "gpus": the object has been modified'
        )
        cluster.answers["POST", PODS] = lambda _: refusal(409, "Conflict", message)
        (result,) = await site.start([order()])
        assert result.answer is REJECTED
        assert result.fault is not None and "modified" in result.fault.message
        assert not cluster.made("GET", POD)


async def test_another_object_of_the_name_is_not_ours(cluster: FakeCluster) -> None:
    cluster.put(PODS, {"metadata": {"name": ONE, "labels": {}}, "spec": {}})
    async with cluster.site() as site:
        (result,) = await site.start([order()])
        assert result.answer is REJECTED
        assert [each.answer for each in await site.stop([StopOrder(ONE, "")])] == [OK]
        assert POD in cluster.objects


def test_503_is_a_refusal_only_of_the_api_server_itself() -> None:
    status = {"kind": "Status", "message": "the server is shutting down"}
    assert isinstance(order_error(ApiReply(503, status)), UnavailableError)
    assert isinstance(
        order_error(ApiReply(503, {"message": "<html>no backend"})), OutcomeUnknownError
    )


async def test_a_refusal_says_when_to_try_again(cluster: FakeCluster) -> None:
    async with cluster.site() as site:
        cluster.answers["POST", PODS] = lambda _: refusal(
            429, "TooManyRequests", **{"Retry-After": "7"}
        )
        (result,) = await site.start([order()])
        assert result.fault is not None
        assert (result.answer, result.fault.kind) == (REJECTED, FaultKind.THROTTLED)
        assert "try again after 7 s" in result.fault.message


async def test_a_create_without_an_answer_cannot_be_stopped_yet(cluster: FakeCluster) -> None:
    async with cluster.site() as site:
        cluster.answers["POST", PODS] = abort  # it may still be on its way
        (started,) = await site.start([order()])
        (stopped,) = await site.stop([StopOrder(ONE, "")])
        assert (started.answer, stopped.answer) == (UNKNOWN, UNKNOWN)
        cluster.answers["POST", PODS] = forbidden
        (again,) = await site.start([order()])
        assert again.answer is UNKNOWN, "the first create may still succeed"
        cluster.answers.clear()
        cluster.put(PODS, {**cluster.made("POST", PODS)[-1], "status": {"phase": "Pending"}})
        await polled(site, lambda view: ONE in view.drones)
        cluster.drop(POD)
        (stopped,) = await site.stop([StopOrder(ONE, "")])
        assert stopped.answer is OK


async def test_a_stop_of_what_never_was_is_done(cluster: FakeCluster) -> None:
    async with cluster.site() as site:
        assert [each.answer for each in await site.stop([StopOrder(ONE, "")])] == [OK]
        cluster.answers["GET", POD] = lambda _: web.Response(status=404, text="404 page not found")
        assert [each.answer for each in await site.stop([StopOrder(ONE, "")])] == [REJECTED], (
            "not of the API server"
        )


async def test_a_stop_spares_a_pod_of_the_same_name_that_came_in_between(
    cluster: FakeCluster,
) -> None:
    """An administrator deletes the pod and somebody creates another: the one that was read is no more."""
    async with cluster.site() as site:
        await site.start([order()])
        read = json.loads(json.dumps(cluster.objects[POD]))
        cluster.drop(POD)
        cluster.put(PODS, {**read, "metadata": {**read["metadata"], "uid": "of-another"}})
        cluster.answers["GET", POD] = lambda _: web.json_response(read)
        assert [each.answer for each in await site.stop([StopOrder(ONE, "")])] == [OK], (
            "ours is gone"
        )
        assert cluster.objects[POD]["metadata"]["uid"] == "of-another"


async def test_a_second_stop_that_fails_does_not_undo_the_first(cluster: FakeCluster) -> None:
    async with cluster.site() as site:
        await site.start([order()])
        cluster.answers["DELETE", POD] = lambda _: web.json_response({})  # it takes its grace
        assert [each.answer for each in await site.stop([StopOrder(ONE, "")])] == [OK]
        cluster.answers["DELETE", POD] = forbidden
        assert [each.answer for each in await site.stop([StopOrder(ONE, "", kill=True)])] == [
            REJECTED
        ]
        cluster.drop(POD)
        view = await polled(site, lambda view: view.drones[ONE].state is RemoteState.ENDED)
        end = view.drones[ONE].end
        assert end is not None and end.kind is EndKind.STOPPED


async def test_a_kill_reaches_the_pod_of_a_job(cluster: FakeCluster) -> None:
    """With the Job alone the pod would have its full grace."""
    pod = f"{PODS}/{ONE}-x7k2p"
    async with cluster.site(kind="job") as site:
        assert [each.answer for each in await site.start([order()])] == [OK]
        template = cluster.objects[JOB]["spec"]["template"]
        meta = {
            **template["metadata"],
            "name": f"{ONE}-x7k2p",
            "ownerReferences": [{"kind": "Job", "uid": "uid-2"}],
        }
        cluster.put(
            PODS, {"metadata": meta, "spec": template["spec"], "status": {"phase": "Running"}}
        )
        await polled(
            site, lambda view: ONE in view.drones and view.drones[ONE].state is RemoteState.RUNNING
        )
        cluster.answers["DELETE", pod] = lambda _: web.json_response({})
        assert [each.answer for each in await site.stop([StopOrder(ONE, "")])] == [OK]
        assert JOB not in cluster.objects
        assert [each.answer for each in await site.stop([StopOrder(ONE, "", kill=True)])] == [OK]
        polite, kill = cluster.made("DELETE", pod)
        assert ("gracePeriodSeconds" in polite, kill["gracePeriodSeconds"]) == (False, 1)


@pytest.mark.parametrize("before", ["pod", "job"])
async def test_a_drone_from_before_the_kind_was_changed_is_stopped(
    cluster: FakeCluster, before: str
) -> None:
    async with cluster.site(kind=before) as site:
        assert [each.answer for each in await site.start([order()])] == [OK]
        if before == "job":
            template = cluster.objects[JOB]["spec"]["template"]
            owner = {"kind": "Job", "uid": "uid-2", "name": ONE}
            meta = {**template["metadata"], "name": f"{ONE}-x7k2p", "ownerReferences": [owner]}
            cluster.put(
                PODS, {"metadata": meta, "spec": template["spec"], "status": {"phase": "Running"}}
            )
    async with cluster.site(kind="job" if before == "pod" else "pod") as site:
        await polled(site, lambda view: ONE in view.drones)
        assert [each.answer for each in await site.stop([StopOrder(ONE, "")])] == [OK]
    assert not [path for path in cluster.objects if path.startswith((PODS, JOBS))]


async def test_a_pod_without_its_secret_is_found_after_a_restart(cluster: FakeCluster) -> None:
    async with cluster.site() as site:
        await site.start([order()])
    del cluster.objects[SECRET]
    long_ago = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    cluster.change(POD, metadata=long_ago, spec={"nodeName": "gpu01"})
    async with cluster.site() as site:
        view = await polled(site, lambda view: view.drones[ONE].final)
        assert view.drones[ONE].blocked is FaultKind.DRONE
        assert "its secret does not exist" in view.drones[ONE].reason


async def test_a_drone_that_leaves_by_itself_keeps_its_own_end(cluster: FakeCluster) -> None:
    terminated = {
        "exitCode": 3,
        "message": "reason=idle why=nothing%20to%20do",
        "finishedAt": "2026-01-01T00:00:00Z",
    }
    ended = {
        "phase": "Failed",
        "containerStatuses": [{"name": "drone", "state": {"terminated": terminated}}],
    }
    async with cluster.site() as site:
        await site.start([order()])
        cluster.change(POD, status=ended)
        view = await polled(
            site, lambda view: ONE in view.drones and view.drones[ONE].end is not None
        )
        end = view.drones[ONE].end
        assert end is not None
        assert (end.kind, end.exit_code, end.message) == (EndKind.EXITED, 3, "idle: nothing to do")
        cluster.drop(POD)
        assert (await polled(site, lambda view: ONE in view.drones)).drones[ONE].end == end


def fail_on(cluster: FakeCluster, name: str, node: str) -> None:
    """Let a drone's pod end as one whose device plugin has a broken GPU."""
    spec = {**cluster.objects[f"{PODS}/{name}"]["spec"], "nodeName": node}
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"}
    cluster.change(f"{PODS}/{name}", spec=spec, status=status)


async def test_a_node_that_fails_drones_is_avoided_and_shows_no_room(cluster: FakeCluster) -> None:
    allocatable = {
        "cpu": "64",
        "memory": "256Gi",
        "ephemeral-storage": "1Ti",
        "nvidia.com/gpu": "4",
    }
    ready = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    for name in ("gpu01", "gpu02"):
        cluster.put("/api/v1/nodes", {"metadata": {"name": name}, "status": ready})
    async with cluster.site() as site:
        for name, node in (("kit-a-1", "gpu01"), ("kit-a-2", "gpu01"), ("kit-a-3", "gpu02")):
            await site.start([order(name)])
            fail_on(cluster, name, node)
        view = await polled(site, lambda view: all(each.end for each in view.drones.values()))
        assert {each.name: each.free_gpu_milli for each in view.nodes} == {
            "gpu01": 0,
            "gpu02": 4000,
        }
        assert any("node gpu01 is avoided" in each for each in view.notices)
        await site.start([order("kit-a-4")])
        (preferred,) = _preferences(cluster, "kit-a-4")
        assert preferred["matchFields"] == [
            {"key": "metadata.name", "operator": "NotIn", "values": ["gpu01"]}
        ]
        assert not _preferences(cluster, "kit-a-1")


def _preferences(cluster: FakeCluster, name: str) -> list[Any]:
    rules = cluster.objects[f"{PODS}/{name}"]["spec"]["affinity"]["nodeAffinity"]
    return [each["preference"] for each in rules["preferredDuringSchedulingIgnoredDuringExecution"]]
