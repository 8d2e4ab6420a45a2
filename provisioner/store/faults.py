"""What is wrong with a store file, said with its repair."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from provisioner.store import StoreBroken

START_ANEW = (
    "restore a backup of it, or start anew: stop the controller and move {path} with {name}-wal and {name}-shm away. "
    "A new store knows no drones: those that still run are found at their sites by this controller's tag and stopped "
    "as orphans"
)


def broken(path: Path, error: BaseException | None) -> StoreBroken:
    """``error`` of SQLite, as what an operator can act on."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    match code:
        case sqlite3.SQLITE_FULL:
            return StoreBroken(
                f"store {path}: cannot write, {error}: make room in {path.parent}; nothing was recorded, and "
                "nothing is acted on until a write succeeds"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return damaged(path, str(error))
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBroken(f"store {path}: {error}: another program writes to it (a sqlite3 shell?): end it")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return StoreBroken(
                f"store {path}: {error}: this user needs to read and write the file and the directory {path.parent}"
            )
        case sqlite3.SQLITE_CONSTRAINT:
            return unfit(path, error)
        case sqlite3.SQLITE_IOERR:
            return StoreBroken(f"store {path}: {error}: look after the disk of {path.parent}; nothing was recorded")
        case _:
            return StoreBroken(f"store {path}: {error}; if it stays so, {_anew(path)}")


def damaged(path: Path, what: str) -> StoreBroken:
    """The file does not hold what it should."""
    return StoreBroken(f"store {path} is damaged ({what}): {_anew(path)}")


def unfit(path: Path, error: BaseException | None) -> StoreBroken:
    """A value that no store can hold (NaN, an integer beyond 64 bits, text that is none) came as far as here."""
    return StoreBroken(
        f"store {path}: a value cannot be recorded ({error}): an adapter let through what it should not have; "
        "nothing was recorded, and nothing is acted on until a write succeeds"
    )


def foreign(path: Path) -> StoreBroken:
    return StoreBroken(f"{path} is no provisioner store: set `store: path:` to another file, or move this one away")


def newer(path: Path, revision: str, newest: str) -> StoreBroken:
    return StoreBroken(
        f"store {path} has schema {revision}, this provisioner knows schemas up to {newest}: "
        f"install the newer provisioner that wrote it; or {_anew(path)}"
    )


def twice_named(path: Path) -> StoreBroken:
    return StoreBroken(
        f"store {path} has a second name (a hard link): SQLite's log and the lock go by name, so two controllers could "
        f"write it. Remove the other name (`find {path.parent} -samefile {path}`); a symbolic link does no harm"
    )


def other_controller(path: Path, theirs: str, ours: str) -> StoreBroken:
    return StoreBroken(
        f"store {path} belongs to controller {theirs!r}, not {ours!r}: "
        "set `controller:` back, or give this controller a `store: path:` of its own"
    )


def _anew(path: Path) -> str:
    return START_ANEW.format(path=path, name=path.name)
