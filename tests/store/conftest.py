"""A record that a test opens as often as it likes, with a worker thread and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.story import Ground


@pytest.fixture(params=[True, False], ids=["threaded", "inline"])
def ground(request: pytest.FixtureRequest, file: Path) -> Ground:
    return Ground(file, request.param)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "provisioner.db"
