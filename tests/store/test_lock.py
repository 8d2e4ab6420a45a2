"""One controller per record, under any name of the record and without the lock's file."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from provisioner.store import StoreHeldError, StoreUnusableError
from provisioner.store.lock import lock_path
from provisioner.store.reader import Reader
from tests.store.story import drone, record, starts, store_at

HOLD = """
import asyncio, sys
from pathlib import Path
from provisioner.store.writer import SqlStore
async def hold():
    async with SqlStore(Path(sys.argv[1]), "kit", 1000.0, 3):
        print("held", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
asyncio.run(hold())
"""
LOCK = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_SH)
print("held", flush=True)
sys.stdin.readline()
"""


@contextmanager
def process(script: str, file: Path) -> Iterator[int]:
    """A process that runs ``script`` on ``file``, from its line ``held`` on; its pid."""
    command = [sys.executable, "-c", script, str(file)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None and running.stdout.readline() == "held\n"
            yield running.pid
        finally:
            running.kill()


async def test_a_second_controller_is_told_who_holds_the_store(file: Path) -> None:
    with process(HOLD, file) as pid:
        holder = Reader(file).holder()
        assert holder is not None and holder.pid == pid
        told = rf"held by the controller with pid {pid} on {holder.host}, since 20"
        with pytest.raises(StoreHeldError, match=told):
            async with store_at(file):
                pass
    assert Reader(file).holder() is None, "the kernel released what the dead one held"
    async with store_at(file):
        pass


async def test_a_symbolic_link_to_a_store_leads_to_its_lock(file: Path) -> None:
    """Both ran: the lock went by the name of the link."""
    link = file.with_name("other.db")
    link.symlink_to(file)
    with (
        process(HOLD, file) as pid,
        pytest.raises(StoreHeldError, match=f"held by the controller with pid {pid}"),
    ):
        async with store_at(link):
            pass
    async with store_at(link) as store:
        await record(store, starts(1, drone(1)))
        assert Reader(file).holder() == Reader(link).holder() != None  # noqa: E711
    assert link.is_symlink() and [each.id for each in Reader(file).drones()] == [drone(1).id]


async def test_a_store_with_two_names_is_refused(file: Path) -> None:
    async with store_at(file):
        os.link(file, file.with_name("other.db"))
        with pytest.raises(StoreUnusableError, match="hard link"):
            async with store_at(file.with_name("other.db")):
                pass
    file.with_name("other.db").unlink()
    async with store_at(file):
        pass


async def test_a_removed_lock_file_lets_no_second_controller_in(file: Path) -> None:
    """Both ran: the second locked a new file of that name. The store says who has it."""
    with process(HOLD, file) as pid:
        lock_path(file).unlink()
        with pytest.raises(StoreHeldError, match=f"held by the controller with pid {pid}"):
            async with store_at(file):
                pass
    async with store_at(file):
        pass  # dead, it holds nothing


async def test_a_controller_whose_store_was_taken_over_writes_nothing_any_more(file: Path) -> None:
    """As where a second one runs in another container, and cannot know that the first lives."""
    async with store_at(file) as first:
        await record(first, starts(1, drone(1)))
        lock_path(file).unlink()
        async with store_at(file) as second:
            for _ in range(2):
                with pytest.raises(
                    StoreHeldError, match=r"now held by the controller with pid .*acts on nothing"
                ):
                    await record(first, starts(2, drone(2)))
            with pytest.raises(StoreHeldError):
                await first.requests()
            assert set(first.drones) == {drone(1).id}
            await record(second, starts(2, drone(3)))
            assert [each.id for each in Reader(file).drones()] == [drone(1).id, drone(3).id]
            await first.__aexit__(None, None, None)
            await record(second, starts(3, drone(4)))


async def test_a_copy_of_a_store_is_held_by_nobody(file: Path) -> None:
    copy = file.with_name("copy.db")
    with (
        process(HOLD, file),
        closing(sqlite3.connect(file)) as there,
        closing(sqlite3.connect(copy)) as here,
    ):
        there.backup(here)
        async with store_at(copy) as store:
            await record(store, starts(1, drone(1)))


async def test_a_reader_cannot_lock_controllers_out(file: Path) -> None:
    """Anybody on the host could open the lock's file, and keep every controller from starting with a shared lock."""
    lock_path(file).touch(0o644)
    lock_path(file).chmod(0o644)
    async with store_at(file):
        assert stat.S_IMODE(lock_path(file).stat().st_mode) & stat.S_IRWXO == 0


async def test_whoever_holds_the_lock_is_named_also_if_it_is_no_controller(file: Path) -> None:
    """A pid was named that was long dead."""
    with process(HOLD, file):
        pass  # leaves its name in the lock's file
    assert '"pid"' in lock_path(file).read_text()
    with (
        process(LOCK, lock_path(file)) as pid,
        pytest.raises(StoreHeldError, match=f"locked by process {pid}, which is no"),
    ):
        async with store_at(file):
            pass


async def test_a_lock_file_removed_between_opening_and_locking_is_not_taken_for_the_lock(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[bool] = []
    really = fcntl.flock

    def flock(fd: int, kind: int) -> None:
        if not removed:
            lock_path(file).unlink()
            removed.append(True)
        really(fd, kind)

    monkeypatch.setattr(fcntl, "flock", flock)
    async with store_at(file):
        assert removed and lock_path(file).exists() and Reader(file).holder() is not None
