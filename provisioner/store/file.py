"""The SQLite file of the store: creation, schema, migrations, and errors with their repair.

The schema's version is ``PRAGMA user_version``: the number of the scripts in ``migrations/`` that
were run. To change the schema, add a script with the next number. It runs once on each store, in a
transaction of its own, when a controller opens the store.

The first line of a script says which older code may go on with the record: ``-- Expands.``, all
that could before, or ``-- Contracts: code of schema N goes on.`` Without such a line none does.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from threading import get_native_id
from typing import Any

from provisioner.store import Holder, StoreError, StoreHeldError, StoreUnusableError, lock
from provisioner.store.database import (
    BUSY_TIMEOUT_S,
    NOTHING_RECORDED,
    Database,
    StoreConnection,
    new_meta,
)

MIGRATIONS = tuple(sorted((Path(__file__).parent / "migrations").glob("*.sql")))
APPLICATION_ID = 0x64726F6E
"""``PRAGMA application_id`` of a store, as the first migration sets it."""
OLDEST_SCHEMA = "oldest_schema"
"""Key of ``meta``: number of the oldest schema whose code may use the record."""
_SCOPE_MARK = re.compile(r"-- (Expands\.|Contracts: code of schema (?P<oldest>\d+) goes on\.)")
_QUICK_CHECK_LIMIT_MIB = 256
"""Files up to this size are checked from end to end when a controller opens them."""
_NO_LOG = (
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
)
"""Errors where the log or its index cannot be created: a full disk, a directory that this user may not write."""


class SqliteDatabase(Database):
    """The record in a file."""

    clock = "(julianday('now') - 2440587.5) * 86400.0"
    begin_brief = "BEGIN IMMEDIATE"
    errors = sqlite3.Error
    place: Path

    def __init__(self, place: Path) -> None:
        self.place = place
        self._lock = lock.StoreLock(place)

    def hold(
        self, controller: str, birth: str | None, *, shadow: bool = False, shared: bool = False
    ) -> tuple[StoreConnection, str]:
        try:
            self.place.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"store {self.place}: cannot create its directory: {error}") from error
        if shared and not self.place.exists():  # one of them creates it
            with suppress(StoreHeldError):
                self._lock.take()
                open_store(self.place, controller, birth).close()
                self._lock.release()
        holder = self._lock.take(shared=shared)
        path = Path(os.path.realpath(self.place))  # the lock's file and SQLite's own lie beside it
        connection = open_store(path, controller, birth, shadow=shadow)
        return connection, lock.claim_of(holder, path)

    def release(self) -> None:
        self._lock.release()

    def refuse_claim(self, claim: str) -> None:
        claimed, other = lock.read_claim(claim)
        path = Path(os.path.realpath(self.place))
        if claimed == lock.file_id(path) and other.pid != os.getpid() and lock.is_alive(other):
            raise lock.held(path, other)  # somebody removed its lock file

    def is_lost(self, sql: Any) -> bool:
        return False

    def begin(self, sql: Any) -> None:
        sql.execute("BEGIN IMMEDIATE")

    def end_writer(self, sql: Any, epoch: int, nonce: str) -> None:
        """Do nothing: a transaction of this file lasts for milliseconds."""

    def limit_wait(self, sql: Any, wait_s: float) -> None:
        sql.execute(f"PRAGMA busy_timeout = {int(wait_s * 1000)}")

    def run_script(self, sql: Any, script: str) -> None:
        sql.executescript(script)

    def count_on(self, sql: Any) -> None:
        """Do nothing: SQLite looks at the rows."""

    def reading(self, *, write: bool) -> sqlite3.Connection:
        """Return a connection. One that reads needs no room on the disk for the log and its index."""
        uri = self._uri()
        try:
            return _begun(uri, write)
        except sqlite3.Error as error:
            if write or error.sqlite_errorcode & 0xFF not in _NO_LOG:
                raise
        log = _log_of(self.place)
        if log.exists() and log.stat().st_size:  # of a controller that was killed
            # the index is in memory then
            return _begun(uri, write, "PRAGMA locking_mode = EXCLUSIVE")
        return _begun(f"{self.place.absolute().as_uri()}?mode=ro&immutable=1", write)

    def _uri(self) -> str:
        """Return the URI for this user: a store at rest has no log, and one who may only read could not create it."""
        mode = "rw"
        if not os.access(self.place, os.W_OK):
            mode = "ro" if _log_of(self.place).exists() else "ro&immutable=1"
        return f"{self.place.absolute().as_uri()}?mode={mode}"

    def done(self, sql: Any) -> None:
        sql.close()

    def disconnect(self) -> None:
        """Do nothing: each connection is closed when it is taken back."""

    def exists(self) -> bool:
        return self.place.exists()

    def probe(self) -> str:
        above = self.place.parent
        while not above.exists() and above != above.parent:
            above = above.parent
        try:
            with tempfile.TemporaryFile(dir=above):
                pass
            if not self.place.exists() or os.access(self.place, os.W_OK):
                return ""
            why = f"{self.place}: {os.strerror(errno.EACCES)}"
        except OSError as error:
            why = f"{above}: {error.strerror}"
        return f"{why}. Make the directory and the file writable for the account of the controller"

    def version(self, sql: Any) -> int:
        return schema_version(sql, self.place)

    def holder(self) -> Holder | None:
        return lock.holder_of(self.place)

    def size(self) -> tuple[int, int | None]:
        files = (self.place, _log_of(self.place))
        used = sum(each.stat().st_size for each in files if each.exists())
        return used, shutil.disk_usage(self.place.parent).free

    def unusable(self, error: BaseException) -> StoreError:
        return unusable(self.place, error)


def _log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _begun(uri: str, write: bool, *settings: str) -> sqlite3.Connection:
    """Return a connection in a transaction that has read, so that its log is open. Raises ``sqlite3.Error``."""
    sql = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    begin = (
        ("PRAGMA synchronous = FULL", "BEGIN IMMEDIATE")
        if write
        else ("PRAGMA query_only = ON", "BEGIN")
    )
    try:
        for statement in (*settings, *begin, "PRAGMA user_version"):
            sql.execute(statement).fetchall()
    except sqlite3.Error:
        sql.close()
        raise
    return sql


def open_store(
    path: Path, controller: str, birth: str | None, *, shadow: bool = False
) -> sqlite3.Connection:
    """Return a connection to the store at ``path``, created or migrated where needed. ``shadow``: it is a shadow's.

    The caller holds the store's lock. Raises :class:`StoreError`.
    """
    try:
        if path.exists():
            _check_file(path)
            _copy_before_migration(path)
        else:
            _create(path, new_meta(controller, birth, shadow))
        connection = connect(path)
        migrate(connection)
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreUnusableError(
                f"store {path}: {path.parent} cannot hold a write-ahead log: use a disk of this host"
            )
        connection.execute("PRAGMA journal_size_limit = 67108864")
        meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    except OSError as error:
        raise StoreError(f"store {path}: {error}") from error
    try:
        SqliteDatabase(path).refuse_other(meta, controller, shadow)
    except StoreError:
        connection.close()
        raise
    return connection


def connect(path: Path) -> sqlite3.Connection:
    """Return a durable connection that begins no transaction by itself. It may be used in any thread."""
    connection = sqlite3.connect(
        path.absolute(), timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def migrate(connection: sqlite3.Connection) -> None:
    """Run the migrations that the store has not seen, each in one transaction."""
    while (version := _version(connection)) < len(MIGRATIONS):
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _version(connection) == version:  # else another member has run it
                for statement in _statements(MIGRATIONS[version].read_text()):
                    connection.execute(statement)
                note_oldest(connection, version + 1)
                connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _statements(script: str) -> Iterator[str]:
    """Yield the statements of a script, of which each begins on a line of its own."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def note_oldest(sql: StoreConnection, version: int) -> None:
    """Record the oldest schema whose code may use a record that has now this one."""
    oldest = 0
    for number, script in enumerate(MIGRATIONS[:version], 1):
        found = _SCOPE_MARK.match(script.read_text())
        oldest = max(oldest, int(found["oldest"] or 0) if found else number)
    sql.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?)"
        " ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        (OLDEST_SCHEMA, str(oldest)),
    )


def is_too_new(sql: StoreConnection, version: int) -> bool:
    """Return True if this code may not use a record of a schema, since it contracted."""
    if version <= len(MIGRATIONS):
        return False
    row = sql.execute("SELECT value FROM meta WHERE key = ?", (OLDEST_SCHEMA,)).fetchone()
    return row is None or int(row[0]) > len(MIGRATIONS)


def schema_version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of a store's schema. Raises :class:`StoreUnusableError` if it is no store, or too new."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise StoreUnusableError(
            f"{path} is no provisioner store: set `store: path:` to another file, or move this one away"
        )
    version = _version(connection)
    if is_too_new(connection, version):
        raise StoreUnusableError(
            f"store {path} has schema {version}, this provisioner knows schemas up to {len(MIGRATIONS)}: "
            f"install the newer provisioner that wrote it; or {_go_back(path)}"
        )
    return version


def copy_store(path: Path, copy: Path) -> None:
    """Copy a store, whole or not at all, also while a controller writes it. An older copy is replaced.

    Raises :class:`StoreUnusableError` if ``path`` is no store.
    """
    # members that start together may copy it both
    unfinished = copy.with_name(f"{copy.name}.{get_native_id()}.copying")
    try:
        with closing(connect(path)) as store:
            schema_version(store, path)
            _make_empty(unfinished)
            with closing(connect(unfinished)) as target:
                store.backup(target)
        publish(unfinished, copy)
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _make_empty(path: Path) -> None:
    """Make an empty file for a store.

    SQLite itself makes 0644 files, whatever the umask allows: a group of operators could never write its requests.
    """
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o660))


def _copy_before_migration(path: Path) -> None:
    """Copy a store of an older schema beside it, for a downgrade."""
    with closing(connect(path)) as store:
        version = schema_version(store, path)
    if version < len(MIGRATIONS):
        copy_store(path, _copy_of(path, version))


def _copy_of(path: Path, version: int) -> Path:
    """Return the place of the copy that a migration from a schema makes."""
    return path.with_name(f"{path.name}.schema-{version}")


def _go_back(path: Path) -> str:
    """Return how to continue with the newest copy of a store that this version can read."""
    copies = (_copy_of(path, version) for version in range(len(MIGRATIONS), 0, -1))
    copy = next((each for each in copies if each.exists()), None)
    if copy is None:
        return _start_anew(path)
    directory, name, old = (shlex.quote(str(each)) for each in (path.parent, path.name, copy.name))
    aside = shlex.quote(f"newer-{path.name}")
    command = f"cd {directory} && mkdir {aside} && mv {name}* {aside} && cp -p {aside}/{old} {name}"
    return (
        f"stop the controller and restore the copy from before the migration: `{command}`. Drones that were started "
        "since are found at their sites by this controller's name and left running as orphans, until you adopt or "
        "stop them"
    )


def _check_file(path: Path) -> None:
    if path.stat().st_nlink > 1:
        raise StoreUnusableError(
            f"store {path} has a second name (a hard link): SQLite's log and the lock go by name, so two controllers "
            f"could write it. Remove the other name (`find {path.parent} -samefile {path}`); a symbolic link does no "
            f"harm"
        )
    if path.stat().st_size == 0:
        raise _damaged(path, "file is empty: stores are created whole, so it was cut off")
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=BUSY_TIMEOUT_S)
    ) as connection:
        schema_version(connection, path)
        if path.stat().st_size <= _QUICK_CHECK_LIMIT_MIB << 20:
            (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if result != "ok":
                raise _damaged(path, result)


def _create(path: Path, meta: Mapping[str, str]) -> None:
    """Create the store under another name first: at its own name it is whole or absent, whatever happens here."""
    unfinished = path.with_name(path.name + ".new")
    unfinished.with_name(unfinished.name + "-journal").unlink(missing_ok=True)
    _make_empty(unfinished)
    with closing(connect(unfinished)) as connection:
        migrate(connection)
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO meta (key, value) VALUES (?, ?)", meta.items())
        connection.execute("COMMIT")
    # the log of a store that was moved away must not be replayed into the new one
    for suffix in ("-wal", "-shm"):
        stale = path.with_name(path.name + suffix)
        if stale.exists():
            os.replace(stale, stale.with_name(stale.name + ".stale"))
    publish(unfinished, path)


def publish(unfinished: Path, path: Path) -> None:
    """Give a finished file its name, durably."""
    os.replace(unfinished, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def unusable(path: Path, error: BaseException) -> StoreUnusableError:
    """Return ``error`` of SQLite as an error that names the repair."""
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:
        case sqlite3.SQLITE_FULL:
            repair = f"make room in {path.parent}; {NOTHING_RECORDED}"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return _damaged(path, str(error))
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            repair = "another program writes to it (a sqlite3 shell?): end it"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            repair = f"this user needs to read and write the file and the directory {path.parent}"
        case sqlite3.SQLITE_CONSTRAINT:
            return SqliteDatabase(path).unrecordable(error)
        case sqlite3.SQLITE_IOERR:
            repair = f"check the disk of {path.parent} and the room on it; nothing was recorded"
        case _:
            repair = f"if this persists, {_start_anew(path)}"
    return StoreUnusableError(f"store {path}: {error}: {repair}")


def _damaged(path: Path, what: str) -> StoreUnusableError:
    return StoreUnusableError(f"store {path} is damaged ({what}): {_start_anew(path)}")


def _start_anew(path: Path) -> str:
    return (
        f"restore a backup of it, or start anew: stop the controller and move {path} with {path.name}-wal and "
        f"{path.name}-shm away. A new store knows no drones: those that still run are found at their sites by this "
        "controller's name and left running as orphans, until you adopt or stop them"
    )
