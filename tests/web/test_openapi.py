"""The API against its own description: schemathesis finds neither a failure nor an answer that is not described."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest
import schemathesis
from aiohttp import web
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks

from provisioner.config.models import WebSection
from provisioner.store.reader import Reader
from provisioner.web import openapi
from provisioner.web.serve import listen
from provisioner.web.server import WebService
from tests.cli.conftest import _story
from tests.web.conftest import API, Serve, free_port
from tests.web.test_identity import Issuer

DOCUMENT = openapi.document()
OPERATIONS = [
    (method, path)
    for path, item in DOCUMENT["paths"].items()
    for method in item
    if "stream" not in path
]
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.unsupported_method,
    openapi_checks.negative_data_rejection,
]
"""All but that valid data is accepted: the schema of a text does not tell that a column or a site must be known."""


@dataclass
class Target:
    url: str
    headers: dict[str, str]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A service in a thread of its own, and a token that may change everything."""
    directory = tmp_path_factory.mktemp("openapi")
    asyncio.run(_story(directory / "record.db"))
    issuer, loop = Issuer(), asyncio.new_event_loop()
    section = WebSection.model_validate({"listen": f"127.0.0.1:{free_port()}", **issuer.section()})

    async def start() -> list[web.AppRunner]:
        service = WebService(Reader(directory / "record.db"), section)
        runner = web.AppRunner(
            service.app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0
        )
        await runner.setup()
        await listen(runner, section, directory / "web.sock")
        return [runner, await issuer.start()]

    async def stop(runners: list[web.AppRunner]) -> None:
        for runner in runners:
            await runner.cleanup()

    runners = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    token = issuer.token(scope="compute.modify", exp=4e9)
    yield Target(f"http://{section.listen}", {"Authorization": f"Bearer {token}"})
    asyncio.run_coroutine_threadsafe(stop(runners), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=[f"{m} {p}" for m, p in OPERATIONS])
def test_what_schemathesis_sends_is_answered_as_described(
    target: Target, method: str, path: str
) -> None:
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.config.update(base_url=target.url)
    seen: set[int] = set()

    @settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=schema[path][method].as_strategy())
    def send(case: schemathesis.Case) -> None:
        response = case.call(headers=target.headers, timeout=30)
        seen.add(response.status_code)
        assert response.status_code < 500, response.text
        case.validate_response(response, headers=target.headers, checks=CHECKS)

    send()
    assert seen - {400}, "not all of it is refused at once"


async def test_the_description_is_served_and_is_valid(serve: Serve) -> None:
    answer = await (await serve()).ask(f"{API}/openapi.json")
    assert answer.json == json.loads(json.dumps(DOCUMENT))
    for schema in DOCUMENT["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_route_is_described() -> None:
    service = WebService(Reader(Path(__file__)), WebSection())
    routes = {
        (r.method.lower(), r.resource.canonical) for r in service.app.router.routes() if r.resource
    }
    ours = {(method, path) for method, path in routes if path.startswith(API) and method != "head"}
    assert ours - {("get", f"{API}/openapi.json")} == {
        (m, p) for p, item in DOCUMENT["paths"].items() for m in item
    }
