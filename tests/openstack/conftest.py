"""A cloud in this process, and our access to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from adapters.openstack.nova import OpenStackCloud
from tests.openstack.fake_openstack import FakeCloud, connect, running


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_SECRET", "s3cret")


@pytest.fixture
async def fake() -> AsyncIterator[FakeCloud]:
    async with running(FakeCloud()) as found:
        yield found


@pytest.fixture
async def nova(fake: FakeCloud) -> AsyncIterator[OpenStackCloud]:
    async with connect(fake) as found:
        yield found
