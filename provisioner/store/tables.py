"""The tables of the record, as the newest migration leaves them."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, Index, Integer, LargeBinary, MetaData, Table, Text, text

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
"""``controller``, ``birth``, ``tick``, ``at``, ``drift_s``, ``next_serial``, ``gpu_wanted_at``."""


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _number(name: str) -> Column[int]:
    return Column(name, Integer, nullable=False)


def _time(name: str) -> Column[float]:
    return Column(name, Float, nullable=False)


drones = Table(
    "drones",
    metadata,
    Column("id", Text, primary_key=True),
    Column("serial", Integer),
    Column("live", Boolean, nullable=False),
    _text("site"),
    _text("type"),
    _text("state"),
    _time("since"),
    _time("requested_at"),
    _number("gpu_milli"),
    _text("for_class"),
    _text("remote_id"),
    _time("submitted_at"),
    _time("started_at"),
    _time("joined_at"),
    _time("busy_at"),
    _time("idle_at"),
    _number("jobs"),
    _number("jobs_started"),
    _time("missing_at"),
    _time("unslotted_at"),
    Column("leaving", Text),
    _time("asked_at"),
    _number("asked"),
    _time("retires_at"),
    _time("ended_at"),
    _text("slot"),
    _text("site_reason"),
    # Of 0002: rows that were there before it hold the default.
    Column("node", Text, nullable=False, server_default=text("''")),
    Column("site_slot", Text, nullable=False, server_default=text("''")),
    Column("notice_at", Float, nullable=False, server_default=text("0")),
    Column("work_gpu_milli", Integer, nullable=False, server_default=text("0")),
    Column("work_at", Float, nullable=False, server_default=text("0")),
    Column("lost_gpu_s", Float, nullable=False, server_default=text("0")),
    Column("lost_jobs", Integer, nullable=False, server_default=text("0")),
    # Of 0006.
    Column("avoids", Text, nullable=False, server_default=text("''")),
    # Of 0010.
    Column("drain_mode", Text, nullable=False, server_default=text("'peaceful'")),
    Column("drain_refusal", Text, nullable=False, server_default=text("''")),
    Index("drones_live", "live", "requested_at"),
    Index("drones_serial", "serial"),
    Index("drones_remote_id", "remote_id"),
    Index("drones_slot", "slot"),
    Index("drones_ended", "live", "ended_at"),
    Index("drones_site_slot", "site_slot"),
)

heard = Table(
    "heard",
    metadata,
    Column("drone_id", Text, primary_key=True),
    _time("heard_at"),
    sqlite_with_rowid=False,
)
"""When each drone was last heard from: the one thing that changes for all of them all the time."""

last_words = Table(
    "last_words",
    metadata,
    Column("drone_id", Text, primary_key=True),
    _time("at"),
    Column("body", LargeBinary, nullable=False),
    Index("last_words_at", "at"),
)
"""What drones said last (a console, compressed), where their site tells."""

completions = Table(
    "completions",
    metadata,
    Column("ended_at", Float, primary_key=True),
    Column("job_id", Text, primary_key=True),
    _time("submitted_at"),
    _time("run_s"),
    _number("gpu_milli"),
    _number("cpus"),
    _number("memory_mib"),
    _number("disk_mib"),
    _number("vram_mib"),
    _number("capability"),
    _text("owner"),
    _text("group"),
    _time("walltime_s"),
    Column("drone_id", Text),
    sqlite_with_rowid=False,
)
"""Jobs that were done, in the order of their ends: one row each, however often the overlay told of it."""

experience = Table(
    "experience",
    metadata,
    Column("id", Integer, primary_key=True),
    _number("form"),
    _time("at"),
    Column("body", LargeBinary, nullable=False),
)
"""What was learned: one row, number 1, a document in the form that ``form`` says."""

forgets = Table(
    "forgets",
    metadata,
    Column("id", Integer, primary_key=True),
    _time("at"),
    _text("what"),
    _text("reason"),
    _text("by"),
    sqlite_autoincrement=True,
)
"""What operators want forgotten of it. A row goes when that is on record."""

transitions = Table(
    "transitions",
    metadata,
    Column("seq", Integer, primary_key=True),
    _text("drone_id"),
    _time("at"),
    Column("was", Text),
    _text("state"),
    _text("reason"),
    _number("tick"),
    Index("transitions_drone", "drone_id"),
    Index("transitions_at", "at"),
    sqlite_autoincrement=True,
)

plans = Table(
    "plans",
    metadata,
    Column("seq", Integer, primary_key=True),
    _number("tick"),
    _time("at"),
    _number("last_tick"),
    _time("last_at"),
    Column("acting", Boolean, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("plans_last", "last_at"),
    Index("plans_acting", "acting"),
    sqlite_autoincrement=True,
)
"""A plan that says what the one before said is not stored again: ``last_tick`` and ``last_at`` move on."""

views = Table(
    "views",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    _time("taken_at"),
    Column("body", LargeBinary, nullable=False),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("tick", Integer, primary_key=True),
    Column("body", LargeBinary, nullable=False),
)

breakers = Table(
    "breakers",
    metadata,
    Column("scope", Text, primary_key=True),
    _text("body"),
)

requests = Table(
    "requests",
    metadata,
    Column("id", Integer, primary_key=True),
    _time("at"),
    _text("kind"),
    _text("mode"),
    _text("drone_ids"),
    _text("reason"),
    _text("by"),
    Column("done_tick", Integer),
    Index("requests_done", "done_tick"),
    sqlite_autoincrement=True,
)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True),
    _time("at"),
    _text("name"),
    _text("fields"),
    Index("events_at", "at"),
    sqlite_autoincrement=True,
)
