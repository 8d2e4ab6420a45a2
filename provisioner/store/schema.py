"""Which schema a store file has, asked without alembic, so that opening and reading stay quick."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from provisioner.store.faults import broken, foreign, newer
from provisioner.store.migrations import HEAD, REVISIONS

_CHECKED_MIB = 256
"""Files up to this size are checked from end to end when a controller opens them."""


def revision_of(connection: sqlite3.Connection, path: Path) -> str:
    """The schema revision of a store. Raises :class:`StoreBroken` if it is none, or of a newer program."""
    try:
        rows = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            raise foreign(path) from error
        raise
    revision = rows[0][0] if rows else ""
    if revision not in REVISIONS:
        raise newer(path, revision or "none", HEAD)
    return str(revision)


def inspect(path: Path) -> str:
    """Check an existing file before a controller uses it; its schema revision. Raises :class:`StoreBroken`."""
    if path.stat().st_size == 0:
        raise broken(path, _empty())
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=10.0)) as connection:
            revision = revision_of(connection, path)
            if path.stat().st_size <= _CHECKED_MIB << 20:
                (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
                if verdict != "ok":
                    raise _corrupt(verdict)
            return revision
    except sqlite3.Error as error:
        raise broken(path, error) from error


def _empty() -> sqlite3.DatabaseError:
    return _corrupt("file is empty: stores are made whole, so it was cut off")


def _corrupt(what: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(what)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
