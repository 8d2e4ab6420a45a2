"""The places of records: a file, and a schema of a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.store.database import Place
from tests.labs.postgresql import QUICK, STRICT, PostgresServer, postgres_or_skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "provisioner.db"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_or_skip(*QUICK, *STRICT) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, file: Path) -> Place:
    """The place of a record in each kind of database."""
    if request.param == "sqlite":
        return file
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_place()
