"""A root for drones, and the promise that no story leaves a process behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from adapters.local import LocalSite
from provisioner.model import Bootstrap, DroneId, DroneType, StartOrder
from tests.local.drones import HERE, LIVING, SMALL, config, end_all_tagged

MakeSite = Callable[..., LocalSite]


@pytest.fixture
def controller() -> str:
    """Of this test process alone: another may run beside it on the same host."""
    return f"loc{os.getpid()}"


@pytest.fixture
def root(tmp_path: Path, controller: str) -> Iterator[Path]:
    path = tmp_path / "drones"
    path.mkdir(mode=0o700)
    yield path
    left = end_all_tagged(controller)
    assert not left, "the story left processes behind"


@pytest.fixture
def make_site(root: Path, controller: str) -> MakeSite:
    def make(types: Sequence[DroneType] = (SMALL,), **options: object) -> LocalSite:
        return LocalSite(HERE, config(root, **options), types, controller)

    return make


@pytest.fixture
def order(controller: str) -> Callable[..., StartOrder]:
    def make(
        serial: int, bootstrap: Bootstrap = LIVING, kind: DroneType = SMALL, grace_s: float = 1.0
    ) -> StartOrder:
        return StartOrder(DroneId(f"{controller}-abcd-{serial}"), kind, 600.0, grace_s, bootstrap)

    return make
