"""Log-in at a real OpenID provider through a real Apache with mod_auth_openidc; and headers forged beside it."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from provisioner.store.reader import Reader
from tests.labs.apache import Apache, running_apache
from tests.labs.htcondor import LabError
from tests.web.conftest import (
    API,
    Serve,
    _filled as _filled,
    free_port,
    record as record,
    serve as serve,
)

USERS = {"ann": ["staff", "gpu-operators"], "bob": ["gpu-users"], "eve": ["students"]}


@pytest.fixture(scope="session")
def apache() -> Apache:
    try:
        return Apache.fetched()
    except LabError as error:
        pytest.skip(str(error))


@pytest.fixture
def provider() -> Iterator[str]:
    from oidc_provider_mock import User, run_server_in_thread

    users = [
        User(sub=name, claims={"email": f"{name}@example.edu", "groups": groups})
        for name, groups in USERS.items()
    ]
    with run_server_in_thread(user_claims=users) as server:
        yield f"http://localhost:{server.server_port}"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that Apache's account can enter."""
    path = Path(tempfile.mkdtemp(prefix="provisioner-apache-", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


class Browser:
    """A browser with cookies, which fills in the form of the provider."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def log_in(self, name: str) -> None:
        async with self.session.get(f"{self.url}{API}/sites") as form:
            text = await form.text()
            assert "authorize" in str(form.url.path) and "<form" in text, (form.url, text[:500])
        async with self.session.post(form.url, data={"sub": name}) as answer:
            assert str(answer.url) == f"{self.url}{API}/sites", (
                answer.url,
                (await answer.text())[:500],
            )

    async def get(self, path: str, **more: Any) -> tuple[int, str]:
        async with self.session.get(self.url + path, **more) as answer:
            return answer.status, await answer.text()

    async def kill(self, drone: str, **headers: str) -> int:
        url = f"{self.url}{API}/drones/{drone}/kill"
        async with self.session.post(
            url, json={"reason": "hung"}, headers=headers, allow_redirects=False
        ) as answer:
            return answer.status


@pytest.fixture
async def site(
    apache: Apache, provider: str, place: Path, serve: Serve
) -> AsyncIterator[tuple[str, Any, Path]]:
    port, socket = free_port(), place / "proxy.sock"
    groups = {"gpu-users": "read", "gpu-operators": "operate"}
    proxy = {
        "socket": socket,
        "users": (apache.account,),
        "origin": f"http://localhost:{port}",
        "groups": groups,
    }
    served = await serve(proxy=proxy)
    context = running_apache(apache, place, port, provider, socket)
    url = await asyncio.to_thread(context.__enter__)
    yield url, served, socket
    await asyncio.to_thread(context.__exit__, None, None, None)


async def test_a_group_gives_a_role_and_the_name_is_on_record(
    site: tuple[str, Any, Path], record: Path
) -> None:
    url, _, _ = site
    for name, looks, changes in (("bob", 200, 403), ("eve", 403, 403), ("ann", 200, 202)):
        browser = Browser(url)
        await browser.log_in(name)
        assert (await browser.get(f"{API}/status"))[0] == looks
        assert await browser.kill("1", Origin=url) == changes
        assert await browser.kill("1", Origin="https://evil.example") == 403, "a page elsewhere"
        await browser.session.close()
    (request,) = Reader(record).requests()
    assert (request.by, request.reason) == ("ann@example.edu", "hung")


async def test_without_log_in_nothing_is_given_but_public_pages(
    site: tuple[str, Any, Path], record: Path
) -> None:
    url, _, _ = site
    stranger = Browser(url)
    forged = {
        "X-Remote-User": "ann@example.edu",
        "X-Remote-Groups": "gpu-operators",
        "OIDC_CLAIM_email": "ann",
    }
    assert (await stranger.get("/-/healthy")) == (200, "healthy\n")
    status, _ = await stranger.get(f"{API}/status", headers=forged, allow_redirects=False)
    assert status == 302, "to the provider"
    assert await stranger.kill("1", Origin=url, **forged) in (302, 401)
    await stranger.session.close()
    assert not Reader(record).requests()


async def test_one_who_is_logged_in_cannot_add_groups(
    site: tuple[str, Any, Path], record: Path
) -> None:
    url, _, _ = site
    browser = Browser(url)
    await browser.log_in("bob")
    forged = {"X-Remote-User": "ann@example.edu", "X-Remote-Groups": "gpu-operators"}
    assert await browser.kill("1", Origin=url, **forged) == 403
    assert (
        await browser.kill(
            "1", Origin=url, **{"x-remote-groups": "gpu-operators", "X_Remote_Groups": "x"}
        )
        == 403
    )
    await browser.session.close()
    assert not Reader(record).requests()


async def test_a_header_forged_beside_the_proxy_fails(
    site: tuple[str, Any, Path], record: Path
) -> None:
    url, served, socket = site
    forged = {"X-Remote-User": "ann@example.edu", "X-Remote-Groups": "gpu-operators", "Origin": url}
    at_loopback = await served.change("/drones/1/kill", loopback=True, headers=forged)
    assert at_loopback.status in (401, 403)
    # not Apache's account
    at_proxy = await served.change("/drones/1/kill", unix=socket, headers=forged)
    if os.geteuid() == 0:
        assert at_proxy.status == 403 and "reverse proxy alone" in at_proxy.json["detail"]
    assert not [request for request in Reader(record).requests() if request.by == "ann@example.edu"]
