"""Columns for the mode of a drone's drain and the overlay's refusal."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    mode = sa.Column("drain_mode", sa.Text, nullable=False, server_default=sa.text("'peaceful'"))
    op.add_column("drones", mode)
    op.add_column("drones", sa.Column("drain_refusal", sa.Text, nullable=False, server_default=sa.text("''")))
