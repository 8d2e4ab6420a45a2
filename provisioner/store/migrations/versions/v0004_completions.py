"""Jobs that were done: what the pool's history told of them, for run times and for replays of recorded demand."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Kept in the order of their ends, without a second copy as an index: there may be millions.
    op.create_table(
        "completions",
        sa.Column("ended_at", sa.Float, primary_key=True),
        sa.Column("job_id", sa.Text, primary_key=True),
        sa.Column("submitted_at", sa.Float, nullable=False),
        sa.Column("run_s", sa.Float, nullable=False),
        sa.Column("gpu_milli", sa.Integer, nullable=False),
        sa.Column("cpus", sa.Integer, nullable=False),
        sa.Column("memory_mib", sa.Integer, nullable=False),
        sa.Column("disk_mib", sa.Integer, nullable=False),
        sa.Column("vram_mib", sa.Integer, nullable=False),
        sa.Column("capability", sa.Integer, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("group", sa.Text, nullable=False),
        sa.Column("walltime_s", sa.Float, nullable=False),
        sa.Column("drone_id", sa.Text),
        sqlite_with_rowid=False,
    )
