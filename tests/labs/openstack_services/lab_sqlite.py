"""Makes oslo.db usable on SQLite files with native threads.

oslo.db opens every transaction with a plain BEGIN. One that reads and then writes fails at once
with "database is locked" when another thread wrote in between; oslo.db does not try that again on
SQLite, and nova-compute then leaves a server in BUILD for ever. So writers say BEGIN IMMEDIATE and
wait their turn; readers stay as they are.
"""

from __future__ import annotations

import contextlib
import threading

from oslo_db.sqlalchemy import enginefacade
from sqlalchemy import event
from sqlalchemy.engine import Engine

_local = threading.local()
_produce = enginefacade._TransactionContext._produce_block


@contextlib.contextmanager
def _produce_block(self, mode, *args, **kwargs):
    before = getattr(_local, "transaction", None)
    # a reader inside a writer shares its transaction, whose mode stays "writer"
    _local.transaction = self
    try:
        with _produce(self, mode, *args, **kwargs) as resource:
            yield resource
    finally:
        _local.transaction = before


def install() -> None:
    enginefacade._TransactionContext._produce_block = _produce_block

    @event.listens_for(Engine, "connect")
    def connect(dbapi, record):
        dbapi.execute("PRAGMA synchronous = OFF")

    @event.listens_for(Engine, "begin")  # a class's listeners run before oslo.db's own
    def begin(connection):
        mode = getattr(getattr(_local, "transaction", None), "mode", None)
        if mode is enginefacade._WRITER and "in_transaction" not in connection.info:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            connection.info["in_transaction"] = True
