"""Making, checking, migrating and connecting to a store file."""

from __future__ import annotations

import os
import secrets
import string
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, exc, insert, select
from sqlalchemy.pool import NullPool

from provisioner.store import StoreBroken, StoreError
from provisioner.store.faults import broken, other_controller, twice_named
from provisioner.store.migrations import HEAD
from provisioner.store.schema import inspect
from provisioner.store.tables import meta

_BUSY_S = 10.0
"""How long a write waits for another writer: an operator's request takes milliseconds."""

_BIRTH_LETTERS = string.ascii_lowercase + string.digits


def open_store(path: Path, controller: str, birth: str | None) -> Connection:
    """A connection to the store at ``path``, made or migrated where needed. The caller holds the store's lock."""
    try:
        if path.exists():
            if path.stat().st_nlink > 1:
                raise twice_named(path)
            if inspect(path) != HEAD:
                with engine(path).connect() as connection:
                    _migrate(connection)
        else:
            _make(path, controller, birth or "".join(secrets.choice(_BIRTH_LETTERS) for _ in range(4)))
        connection = engine(path).connect()
        _use_wal(connection, path)
        theirs = connection.execute(select(meta.c.value).where(meta.c.key == "controller")).scalar_one()
        connection.rollback()
    except exc.DBAPIError as error:
        raise broken(path, error.orig) from error
    except OSError as error:
        raise StoreError(f"store {path}: {error}") from error
    if theirs != controller:
        connection.close()
        raise other_controller(path, theirs, controller)
    return connection


def engine(path: Path) -> Engine:
    """An engine whose transactions write from their first statement on: none can fail by a late lock upgrade."""
    made = create_engine(
        f"sqlite:///{path.absolute()}",
        poolclass=NullPool,
        connect_args={"timeout": _BUSY_S, "check_same_thread": False},
    )

    @event.listens_for(made, "connect")
    def _connected(dbapi: Any, _: Any) -> None:
        dbapi.isolation_level = None  # the driver begins nothing by itself, so that DDL is part of transactions too
        dbapi.execute("PRAGMA synchronous = FULL")

    @event.listens_for(made, "begin")
    def _begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return made


def _make(path: Path, controller: str, birth: str) -> None:
    """Make the store under another name first: at its own name it is whole or absent, whatever happens here."""
    unborn = path.with_name(path.name + ".new")
    for left in (unborn, unborn.with_name(unborn.name + "-journal")):
        left.unlink(missing_ok=True)
    # SQLite itself makes 0644 files, whatever the umask allows: a group of operators could never write its requests.
    os.close(os.open(unborn, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o660))
    with engine(unborn).connect() as connection:
        _migrate(connection)
        with connection.begin():
            known = {"controller": controller, "birth": birth, "tick": "0", "at": "0.0", "next_serial": "1"}
            connection.execute(insert(meta), [{"key": key, "value": value} for key, value in known.items()])
    _set_aside(path)
    os.replace(unborn, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _set_aside(path: Path) -> None:
    """A write-ahead log whose store was moved away must not be replayed into the new one."""
    for suffix in ("-wal", "-shm"):
        stale = path.with_name(path.name + suffix)
        if stale.exists():
            os.replace(stale, stale.with_name(stale.name + ".stale"))


def _migrate(connection: Connection) -> None:
    from alembic import command  # 0.3 s to import, and needed once in a store's life
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    with connection.begin():
        command.upgrade(config, HEAD)


def _use_wal(connection: Connection, path: Path) -> None:
    dbapi: Any = connection.connection.driver_connection
    (mode,) = dbapi.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreBroken(f"store {path}: {path.parent} cannot hold a write-ahead log: use a disk of this host")
    dbapi.execute("PRAGMA journal_size_limit = 67108864")
