"""Alembic's entry: migrates the connection that :mod:`provisioner.store.opening` hands in, in one transaction."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from provisioner.store.tables import metadata

connection = context.config.attributes["connection"]
assert isinstance(connection, Connection)
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
