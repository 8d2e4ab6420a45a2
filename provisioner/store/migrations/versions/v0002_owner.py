"""Where a drone runs, when it was told to leave, and what its end cost: for an owner's cluster."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Added one by one, in place: drones on record keep their rows, and what nobody noted of them is "not told".
    for column in (
        sa.Column("node", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("site_slot", sa.Text, nullable=False, server_default=sa.text("''")),
        sa.Column("notice_at", sa.Float, nullable=False, server_default=sa.text("0")),
        sa.Column("work_gpu_milli", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("work_at", sa.Float, nullable=False, server_default=sa.text("0")),
        sa.Column("lost_gpu_s", sa.Float, nullable=False, server_default=sa.text("0")),
        sa.Column("lost_jobs", sa.Integer, nullable=False, server_default=sa.text("0")),
    ):
        op.add_column("drones", column)
    op.create_index("drones_site_slot", "drones", ["site_slot"])
