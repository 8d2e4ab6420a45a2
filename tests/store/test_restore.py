"""Copies of a store, and a copy in the place of a store."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from provisioner.store import StoreHeldError, StoreUnusableError
from provisioner.store.file import copy_store
from provisioner.store.reader import Reader
from provisioner.store.restore import SERIALS_SKIPPED, restore_store
from tests.store.story import drone, record, starts, store_at


def remnants(copy: Path) -> list[str]:
    """Return the names beside a copy that begin as it does."""
    return [each.name for each in copy.parent.glob(f"{copy.name}?*")]


async def test_a_copy_of_a_running_record_is_whole_and_replaces_an_older_copy(
    file: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    copy.write_text("an older one")
    async with store_at(file) as store:
        await record(store, starts(1, drone(1), at=100.0))
        copy_store(file, copy)
        await record(store, starts(2, drone(2), at=101.0))
    assert [each.id for each in Reader(copy).drones()] == [drone(1).id]
    assert remnants(copy) == []


async def test_a_restored_record_skips_ids_and_moves_the_old_record_aside(
    file: Path, tmp_path: Path
) -> None:
    copy, old = tmp_path / "copy.db", file.parent
    async with store_at(file) as store:
        await record(store, starts(1, drone(1), at=100.0))
        copy_store(file, copy)
        given = store.next_serial
        await record(store, starts(2, drone(2), at=101.0))
        with pytest.raises(StoreHeldError):
            restore_store(copy, file)
    aside = restore_store(copy, file)
    assert aside is not None and aside.parent == old
    assert len(Reader(aside / file.name).drones()) == 2
    assert [each.id for each in Reader(file).drones()] == [drone(1).id]
    async with store_at(file) as store:
        assert store.next_serial == given + SERIALS_SKIPPED


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_what_root_restores_belongs_to_the_account_of_the_directory(
    file: Path, tmp_path: Path
) -> None:
    async with store_at(file) as store:
        await record(store, starts(1, drone(1), at=100.0))
    place = tmp_path / "other host"
    place.mkdir()
    os.chown(place, 1234, 2345)
    restore_store(file, place / "record.db")
    owners = {each.name: (each.stat().st_uid, each.stat().st_gid) for each in place.iterdir()}
    assert owners == {"record.db": (1234, 2345), "record.db.lock": (1234, 2345)}


async def test_what_is_no_record_is_neither_copied_nor_restored(file: Path, tmp_path: Path) -> None:
    async with store_at(file) as store:
        await record(store, starts(1, drone(1), at=100.0))
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as sql:
        sql.execute("CREATE TABLE notes (text TEXT)")
    with pytest.raises(StoreUnusableError, match="no provisioner store"):
        restore_store(other, file)
    assert [each.id for each in Reader(file).drones()] == [drone(1).id], "left as it was"
