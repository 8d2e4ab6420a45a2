"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "meta",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    _drones()
    _history()
    _newest()
    _asked_and_told()


def _drones() -> None:
    op.create_table(
        "drones",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("serial", sa.Integer),
        sa.Column("live", sa.Boolean, nullable=False),
        sa.Column("site", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("since", sa.Float, nullable=False),
        sa.Column("requested_at", sa.Float, nullable=False),
        sa.Column("gpu_milli", sa.Integer, nullable=False),
        sa.Column("for_class", sa.Text, nullable=False),
        sa.Column("remote_id", sa.Text, nullable=False),
        sa.Column("submitted_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("joined_at", sa.Float, nullable=False),
        sa.Column("busy_at", sa.Float, nullable=False),
        sa.Column("idle_at", sa.Float, nullable=False),
        sa.Column("jobs", sa.Integer, nullable=False),
        sa.Column("jobs_started", sa.Integer, nullable=False),
        sa.Column("missing_at", sa.Float, nullable=False),
        sa.Column("unslotted_at", sa.Float, nullable=False),
        sa.Column("leaving", sa.Text),
        sa.Column("asked_at", sa.Float, nullable=False),
        sa.Column("asked", sa.Integer, nullable=False),
        sa.Column("retires_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float, nullable=False),
        sa.Column("slot", sa.Text, nullable=False),
        sa.Column("site_reason", sa.Text, nullable=False),
    )
    op.create_index("drones_live", "drones", ["live", "requested_at"])
    op.create_index("drones_serial", "drones", ["serial"])
    op.create_index("drones_remote_id", "drones", ["remote_id"])
    op.create_index("drones_slot", "drones", ["slot"])
    op.create_index("drones_ended", "drones", ["live", "ended_at"])
    op.create_table(
        "heard",
        sa.Column("drone_id", sa.Text, primary_key=True),
        sa.Column("heard_at", sa.Float, nullable=False),
        sqlite_with_rowid=False,
    )


def _history() -> None:
    op.create_table(
        "transitions",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("drone_id", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("was", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("tick", sa.Integer, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("transitions_drone", "transitions", ["drone_id"])
    op.create_index("transitions_at", "transitions", ["at"])
    op.create_table(
        "plans",
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("tick", sa.Integer, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("last_tick", sa.Integer, nullable=False),
        sa.Column("last_at", sa.Float, nullable=False),
        sa.Column("acting", sa.Boolean, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("plans_last", "plans", ["last_at"])
    op.create_index("plans_acting", "plans", ["acting"])


def _newest() -> None:
    op.create_table(
        "views",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("taken_at", sa.Float, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "snapshots",
        sa.Column("tick", sa.Integer, primary_key=True),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "breakers",
        sa.Column("scope", sa.Text, primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )


def _asked_and_told() -> None:
    op.create_table(
        "requests",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("drone_ids", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("by", sa.Text, nullable=False),
        sa.Column("done_tick", sa.Integer),
        sqlite_autoincrement=True,
    )
    op.create_index("requests_done", "requests", ["done_tick"])
    op.create_table(
        "events",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("fields", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("events_at", "events", ["at"])
