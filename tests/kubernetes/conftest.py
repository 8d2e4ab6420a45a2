"""A fake cluster for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kubernetes.fake_kubernetes import FakeCluster, running


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[FakeCluster]:
    async with running(tmp_path) as found:
        yield found
