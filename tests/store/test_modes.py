"""A new store is open to the group as far as the umask allows: operators leave their requests in it."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

from provisioner.store.writer import SqlStore


@pytest.mark.parametrize(("mask", "mode"), [(0o007, 0o660), (0o077, 0o600)])
def test_a_group_that_the_umask_lets_in_can_write_the_store(tmp_path: Path, mask: int, mode: int) -> None:
    """SQLite makes 0644 files: under the shipped unit operators met "attempt to write a readonly database"."""
    modes: dict[str, int] = {}

    async def story() -> None:
        async with SqlStore(tmp_path / "record.db", "kit", keep_s=1e6, snapshots=1) as store:
            await store.event(1.7e9, "anything", {})
            modes.update(modes_in(tmp_path))

    before = os.umask(mask)
    try:
        asyncio.run(story())
    finally:
        os.umask(before)
    assert modes["record.db"] == mode
    assert {m for name, m in modes.items() if name in ("record.db-wal", "record.db-shm")} == {mode}


def modes_in(directory: Path) -> dict[str, int]:
    return {p.name: stat.S_IMODE(p.stat().st_mode) for p in directory.iterdir()}
