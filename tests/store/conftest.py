"""The kinds of store that the contract is told for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.story import Ground


@pytest.fixture(params=["memory", "sql", "sql-inline"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(request.param, tmp_path / "provisioner.db")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "provisioner.db"
