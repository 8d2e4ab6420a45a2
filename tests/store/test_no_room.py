"""The record can be read where nothing can be written: on a full disk, in a directory that is not ours."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import provisioner.store.file as store_file
from provisioner.store import StoreUnusableError
from provisioner.store.reader import Reader
from tests.cli.conftest import _filled as _filled, record as record


def _asked(ask: Callable[[Reader], Any], path: Path, answers: Any, room: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))  # no file can grow, as on a full disk
    try:
        answers.put(ask(Reader(path)))
    except StoreUnusableError as error:
        answers.put(error)


def without_room(ask: Callable[[Reader], Any], path: Path, room: int = 0) -> Any:
    """Return what a process gets that can write no byte beyond ``room`` in a file."""
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=_asked, args=(ask, path, answers, room))
    child.start()
    child.join(60)
    return answers.get() if not answers.empty() else None


def _killed(path: Path) -> None:
    sql = sqlite3.connect(path, isolation_level=None)
    sql.execute("PRAGMA wal_autocheckpoint = 0")
    sql.execute("UPDATE meta SET value = '4711' WHERE key = 'tick'")
    os._exit(9)  # the log stays


def drones(reader: Reader) -> int:
    return len(reader.drones(ended=None))


def newest(reader: Reader) -> int:
    return reader.position().tick


def asked(reader: Reader) -> int:
    from provisioner.model import RequestKind

    return reader.ask(RequestKind.RELOAD, [], reason="x", by="ann", at=1.0)


def test_the_record_is_read_on_a_full_disk(record: Path) -> None:
    known = drones(Reader(record))
    assert known and not record.with_name(record.name + "-wal").exists()
    assert without_room(drones, record) == known
    refused = without_room(asked, record)
    assert isinstance(refused, StoreUnusableError) and "the room on it" in str(refused)


def migrated(reader: Reader) -> None:
    store_file.open_store(reader.path, "kit", None).close()


def test_a_store_that_cannot_be_copied_is_not_migrated(
    record: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = drones(Reader(record))
    (tmp_path / "9999_next.sql").write_text("CREATE TABLE next (x INTEGER);")
    with monkeypatch.context() as newer:
        newer.setattr(
            store_file, "MIGRATIONS", (*store_file.MIGRATIONS, tmp_path / "9999_next.sql")
        )
        refused = without_room(migrated, record, 64 << 10)  # enough for the index of the log
    assert isinstance(refused, StoreUnusableError) and record.name in str(refused)
    assert drones(Reader(record)) == known, "the schema has changed"
    assert not list(record.parent.glob("*.copying")), "the disk stays full"


def test_the_log_of_a_controller_that_was_killed_is_read_on_a_full_disk(record: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=_killed, args=(record,))
    child.start()
    child.join(60)
    assert record.with_name(record.name + "-wal").stat().st_size
    record.with_name(record.name + "-shm").unlink()
    assert without_room(newest, record) == 4711
    assert newest(Reader(record)) == 4711


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_that_cannot_be_written_is_read(record: Path) -> None:
    known = drones(Reader(record))
    record.parent.chmod(0o555)
    try:
        assert drones(Reader(record)) == known
    finally:
        record.parent.chmod(0o755)
