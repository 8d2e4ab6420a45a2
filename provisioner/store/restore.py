"""A copy of the record takes the place of the record, on this host or on another one."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

from provisioner.store.file import connect, copy_store, publish
from provisioner.store.lock import StoreLock, lock_path

SERIALS_SKIPPED = 100_000
"""Serial numbers that a restored record leaves out.

Drones that started and ended after the copy was made are in no view, and no id may be given twice.
"""


def restore_store(copy: Path, path: Path) -> Path | None:
    """Put a copy in the place of the store at ``path``. Return the directory to which an old store was moved.

    Raises :class:`~provisioner.store.StoreHeldError` while a controller holds the store at ``path``.
    """
    lock = StoreLock(path)
    lock.take()
    try:
        unfinished = path.with_name(f"{path.name}.restoring")
        copy_store(copy, unfinished)
        with closing(connect(unfinished)) as sql:
            sql.execute(
                "UPDATE meta SET value = value + ? WHERE key = 'next_serial'", (SERIALS_SKIPPED,)
            )
        aside = _move_away(path)
        publish(unfinished, path)
        _give_to_owner_of_directory(path, lock_path(path))
        return aside
    finally:
        lock.release()


def _give_to_owner_of_directory(*files: Path) -> None:
    """Let root leave files to the account of their directory: the controller has to write them."""
    if os.geteuid() == 0:
        for file in files:
            owner = file.parent.stat()
            os.chown(file, owner.st_uid, owner.st_gid)


def _move_away(path: Path) -> Path | None:
    """Move a store and its log to a directory beside it. The log of another store must not stay."""
    parts = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
    if not any(part.exists() for part in parts):
        return None
    aside = path.with_name(f"{path.name}.replaced-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    aside.mkdir(mode=0o770)
    for part in parts:
        if part.exists():
            part.rename(aside / part.name)
    return aside
