"""Copies of a record between databases: rows in the order of their keys, compared by digests at the end.

Triggers of the target make nothing of the rows: runs are copied before their drones, and days of the
ledger before ``meta`` says which have settled. ``meta`` is last: with it the copy is complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from provisioner.store import StoreError, tables
from provisioner.store.database import SHADOW, Database, StoreConnection, marks
from provisioner.store.file import OLDEST_SCHEMA
from provisioner.store.lock import HOLDER, held
from provisioner.values import frozen

TABLE_KEYS = {
    "completed_jobs": ("ended_at", "job_id"),
    "drones": ("id",),
    "console_outputs": ("drone_id",),
    "estimates": ("id",),
    "estimate_resets": ("id",),
    "transitions": ("seq",),
    "plans": ("seq",),
    "snapshots": ("tick",),
    "view_log": ("seq",),
    "breakers": ("scope",),
    "configurations": ("generation",),
    "requests": ("id",),
    "events": ("id",),
    "past_classes": ("id",),
    "counters": ("metric", "labels"),
    "series": ("id",),
    "samples": ("step_s", "series", "at"),
    "run_drones": ("drone_id",),
    "run_kinds": ("kind",),
    "use_days": ("day", "kind", "use_step", "vram_step"),
    "ledger_kinds": ("kind",),
    "ledger_drones": ("drone_id", "day"),
    "ledger_runs": ("drone_id", "ended_at", "job_id", "day"),
    "ledger_days": ("day", "kind", "account"),
    "ledger_due": ("drone_id",),
}
"""Tables with their primary keys, in the order in which they are copied. A shadow has observations as well."""
_OWN_KEYS = (HOLDER, "schema", OLDEST_SCHEMA)
"""Keys of ``meta`` that stay those of each database."""
_BATCH = 2000


@frozen
class TableCopy:
    """A table that was copied and compared."""

    table: str
    rows: int
    digest: str


def copy_record(source: Database, target: Database, schema: str) -> Iterator[TableCopy]:
    """Copy a record to a new place, or go on with a copy that was interrupted. Yield each table once it is equal.

    ``schema``: definitions that only the record of a shadow has. Raises :class:`StoreError`: a
    controller holds one of both, the target has another record, or the copy differs.
    """
    with _reading(source) as rows, _filling(target, rows, source) as (sql, meta):
        keys = dict(TABLE_KEYS)
        if SHADOW in meta:
            target.run_script(sql, schema)
            keys["observations"] = ("seq",)
        for table, key in keys.items():
            columns = _columns(rows, table)
            _copy_table(rows, target, sql, table, columns, key)
            digests = [_digest(each, table, columns, key) for each in (rows, sql)]
            if digests[0] != digests[1]:
                raise StoreError(
                    f"table {table} of {target.place} differs from that of {source.place}: remove the copy, and "
                    "copy again"
                )
            yield TableCopy(table, *digests[0])
        target.begin(sql)
        target.count_on(sql)
        tables.write_meta(sql, **{k: v for k, v in meta.items() if k not in _OWN_KEYS})
        sql.execute("COMMIT")


@contextmanager
def _reading(source: Database) -> Iterator[StoreConnection]:
    if (holder := source.holder()) is not None:
        raise held(source.place, holder)
    try:
        sql = source.reading(write=False)
    except source.errors as error:
        raise source.unusable(error) from error
    try:
        source.version(sql)
        yield sql
    except source.errors as error:
        raise source.unusable(error) from error
    finally:
        source.done(sql)


@contextmanager
def _filling(
    target: Database, rows: StoreConnection, source: Database
) -> Iterator[tuple[StoreConnection, dict[str, str]]]:
    """Yield a connection to the target, which nobody else holds, and the ``meta`` of the source."""
    meta = tables.read_meta(rows)
    sql, _ = target.hold(meta["controller"], meta["birth"], shadow=SHADOW in meta)
    try:
        if source.version(rows) != target.version(sql):
            raise StoreError(
                f"store {source.place} has another schema: start its controller once with this version"
            )
        there = tables.read_meta(sql)
        if there["birth"] != meta["birth"] or there["tick"] != "0":
            raise StoreError(
                f"store {target.place} has a record already, of tick {there['tick']}: name another place"
            )
        yield sql, meta
    except target.errors as error:
        raise target.unusable(error) from error
    finally:
        sql.close()
        target.release()


def _columns(sql: StoreConnection, table: str) -> list[str]:
    return sorted(each[0] for each in sql.execute(f"SELECT * FROM {table} LIMIT 0").description)


def _copy_table(
    rows: StoreConnection,
    target: Database,
    sql: StoreConnection,
    table: str,
    columns: Sequence[str],
    key: Sequence[str],
) -> None:
    """Copy the rows behind the last one of the target, some in each transaction."""
    names = ", ".join(f'"{name}"' for name in columns)
    insert = f"INSERT INTO {table} ({names}) VALUES ({marks(columns)}) ON CONFLICT DO NOTHING"
    newest = ", ".join(f"{name} DESC" for name in key)
    last = sql.execute(f"SELECT {', '.join(key)} FROM {table} ORDER BY {newest} LIMIT 1").fetchone()
    if table == "series" and last == (0,):
        last = None  # which each new record has
    for batch in _batches(rows, table, columns, key, last):
        target.begin(sql)
        sql.executemany(insert, batch)
        sql.execute("COMMIT")


def _batches(
    sql: StoreConnection,
    table: str,
    columns: Sequence[str],
    key: Sequence[str],
    last: Sequence[object] | None = None,
) -> Iterator[list[tuple[object, ...]]]:
    """Yield the rows of a table in the order of its key, from behind a key on."""
    names = ", ".join(f'"{name}"' for name in columns)
    order = ", ".join(key)
    places = [columns.index(name) for name in key]
    while True:
        where = f"WHERE ({order}) > ({marks(key)})" if last is not None else ""
        query = f"SELECT {names} FROM {table} {where} ORDER BY {order} LIMIT ?"
        batch = sql.execute(query, (*(last or ()), _BATCH)).fetchall()
        if not batch:
            return
        yield batch
        last = tuple(batch[-1][place] for place in places)


def _digest(
    sql: StoreConnection, table: str, columns: Sequence[str], key: Sequence[str]
) -> tuple[int, str]:
    """Return the number of rows, and a digest of all of them."""
    digest = hashlib.sha256()
    count = 0
    for batch in _batches(sql, table, columns, key):
        count += len(batch)
        digest.update(repr(batch).encode())
    return count, digest.hexdigest()
