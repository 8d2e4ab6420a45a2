"""A record of three days: ended drones with their steps, jobs and events, copied from those of a record."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

DAYS = 3.0
DRONES_PER_DAY = 700
JOBS_PER_DRONE = 3
EVENTS_PER_DAY = 900
DRONES = int(DAYS * DRONES_PER_DAY)
STEPS = ("requested", "submitted", "booting", "joined", "busy", "idle", "done")


def add_days(path: Path, now: float) -> None:
    """Add the days before ``now`` to a record that has an ended drone and a step with a reason."""
    with closing(sqlite3.connect(path)) as sql, sql:
        columns = [row[1] for row in sql.execute("PRAGMA table_info(drones)")]
        known = dict(
            zip(columns, sql.execute("SELECT * FROM drones WHERE NOT live").fetchone(), strict=True)
        )
        reason = sql.execute("SELECT reason FROM transitions WHERE was IS NOT NULL").fetchone()[0]
        for n in range(DRONES):
            end = now - 60.0 - DAYS * 86400 * (DRONES - n) / DRONES
            drone = known | {
                "id": f"kit-ab12-{1000 + n}",
                "serial": 1000 + n,
                "state": "done",
                "site_reason": "",
            }
            drone |= {
                "since": end,
                "ended_at": end,
                "requested_at": end - 7200,
                "submitted_at": end - 7199,
            }
            drone |= {
                "started_at": end - 7100,
                "joined_at": end - 7000,
                "busy_at": end - 6900,
                "remote_id": f"r{n}",
            }
            marks = ", ".join("?" * len(columns))
            sql.execute(f"INSERT INTO drones VALUES ({marks})", [drone[name] for name in columns])
            sql.executemany(
                "INSERT INTO transitions (drone_id, at, was, state, reason, tick) VALUES (?, ?, ?, ?, ?, 1)",
                [
                    (
                        drone["id"],
                        end - 1000 * (len(STEPS) - 1 - k),
                        STEPS[k - 1] if k else None,
                        state,
                        reason,
                    )
                    for k, state in enumerate(STEPS)
                ],
            )
            sql.executemany(
                "INSERT INTO completed_jobs (ended_at, job_id, submitted_at, run_s, gpu_milli, cpus, memory_mib,"
                ' disk_mib, vram_mib, capability, owner, "group", walltime_s, drone_id, used_milli)'
                " VALUES (?, ?, ?, 1800, 1000, 1, 1024, 0, 0, 0, ?, '', 0, ?, 400)",
                [
                    (end - 1900 * k, f"{n}.{k}", end - 9000, f"user{n % 5}", drone["id"])
                    for k in range(JOBS_PER_DRONE)
                ],
            )
        events = int(DAYS * EVENTS_PER_DAY)
        sql.executemany(
            "INSERT INTO events (at, name, fields) VALUES (?, 'job.collateral', ?)",
            [
                (now - DAYS * 86400 * (events - n) / events, json.dumps({"job": f"{n}.0"}))
                for n in range(events)
            ],
        )
