"""`check --live` names each fault of a cluster with its remedy."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from provisioner.interfaces import AuditFinding, AuthError, UnavailableError
from provisioner.model import SitePolicy
from tests.kubernetes.fake_kubernetes import PODS, Answer, FakeCluster, polled, refusal

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
ALLOCATABLE = {
    "cpu": "64",
    "memory": "256Gi",
    "ephemeral-storage": "1Ti",
    "nvidia.com/mig-1g.10gb": "7",
}


def may(*denied: str) -> Answer:
    """Return the answer to whether we have a right: all but these verbs on secrets."""

    async def answer(request: web.Request) -> web.Response:
        wanted = json.loads(await request.read())["spec"]["resourceAttributes"]
        allowed = wanted["resource"] != "secrets" or wanted["verb"] not in denied
        return web.json_response({"status": {"allowed": allowed}}, status=201)

    return answer


async def audited(cluster: FakeCluster) -> list[AuditFinding]:
    async with cluster.site() as site:
        return list(await site.audit(SitePolicy("cern")))


async def test_missing_rights_to_a_resource_are_one_finding(cluster: FakeCluster) -> None:
    cluster.answers["POST", REVIEWS] = may("get", "create")
    (finding,) = await audited(cluster)
    assert finding.message == (
        "the account may not get, create secrets in namespace drones:"
        " apply `provisioner render kubernetes`, or change `namespace`"
    )


async def test_a_misspelt_field_is_refused_by_the_dry_run(cluster: FakeCluster) -> None:
    def strict(request: web.Request) -> web.Response:
        assert request.query["dryRun"] == "All"
        if request.query.get("fieldValidation") == "Strict":
            return refusal(
                400, "BadRequest", 'strict decoding error: unknown field "spec.toleration"'
            )
        return web.json_response({}, status=201)

    cluster.answers |= {("POST", REVIEWS): may(), ("POST", PODS): strict}
    (finding,) = await audited(cluster)
    assert (finding.node, finding.dimension) == ("type a100", "pod")
    assert 'unknown field "spec.toleration"' in finding.message


async def test_a_poll_tells_the_types_that_no_node_can_run(cluster: FakeCluster) -> None:
    cluster.put(
        "/api/v1/nodes", {"metadata": {"name": "gpu01"}, "status": {"allocatable": ALLOCATABLE}}
    )
    async with cluster.site() as site:
        view = await polled(site, lambda view: bool(view.unfit))
        assert view.free == {}
        assert view.unfit == {
            "a100": "no node has the resource `nvidia.com/gpu`, only nvidia.com/mig-1g.10gb"
        }


async def test_refused_credentials_are_told_with_the_remedy(cluster: FakeCluster) -> None:
    cluster.answers["GET", PODS] = lambda _: refusal(401, "Unauthorized", "Unauthorized")
    async with cluster.site() as site:
        with pytest.raises(AuthError, match=r"^Unauthorized: renew the token of the kubeconfig$"):
            await site.poll()


async def test_a_server_that_is_not_there_is_told_in_words(cluster: FakeCluster) -> None:
    cluster.url = "http://127.0.0.1:1"
    async with cluster.site() as site:
        with pytest.raises(
            UnavailableError, match=r"^cannot connect to 127\.0\.0\.1:1: (?!.*SSLContext)"
        ):
            await site.poll()
