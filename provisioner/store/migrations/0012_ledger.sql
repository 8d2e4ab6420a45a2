-- The ledger of docs/decisions/0013-accounting.md. Amounts are GPU-milliseconds, days are counted from the epoch (UTC).
-- Runs have the thousandths of GPUs that they held, and if their job failed.
ALTER TABLE completed_jobs ADD COLUMN held_milli INTEGER;
ALTER TABLE completed_jobs ADD COLUMN failed BOOLEAN NOT NULL DEFAULT 0;

CREATE TABLE ledger_kinds (
    kind INTEGER PRIMARY KEY NOT NULL,
    site TEXT NOT NULL,
    type TEXT NOT NULL,
    model TEXT NOT NULL,
    sharing TEXT NOT NULL,
    accounting_group TEXT NOT NULL,
    vo TEXT NOT NULL,
    UNIQUE (site, type, model, sharing, accounting_group, vo)
) STRICT;

CREATE TABLE ledger_drones (
    drone_id TEXT NOT NULL,
    day INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    life INTEGER NOT NULL,
    boot INTEGER NOT NULL,
    jobs INTEGER NOT NULL,
    draining INTEGER NOT NULL,
    idle INTEGER NOT NULL,
    PRIMARY KEY (drone_id, day)
) STRICT, WITHOUT ROWID;
CREATE INDEX ledger_drones_day ON ledger_drones (day);

-- The part of a run on a day. The run counts (`runs`) on its last one.
CREATE TABLE ledger_runs (
    drone_id TEXT NOT NULL,
    ended_at INTEGER NOT NULL,
    job_id TEXT NOT NULL,
    day INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    owner TEXT NOT NULL,
    begun_at INTEGER NOT NULL,
    milli INTEGER NOT NULL,
    runs INTEGER NOT NULL,
    seconds INTEGER NOT NULL,
    held INTEGER NOT NULL,
    late INTEGER NOT NULL,
    used INTEGER,
    energy_j INTEGER,
    cpu_s INTEGER,
    memory_mib INTEGER,
    PRIMARY KEY (drone_id, ended_at, job_id, day)
) STRICT, WITHOUT ROWID;
CREATE INDEX ledger_runs_day ON ledger_runs (day);

CREATE TABLE ledger_days (
    day INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    account TEXT NOT NULL,
    runs INTEGER NOT NULL,
    held INTEGER NOT NULL,
    used INTEGER NOT NULL,
    used_of INTEGER NOT NULL,
    energy_j INTEGER NOT NULL,
    energy_of INTEGER NOT NULL,
    cpu_s INTEGER NOT NULL,
    PRIMARY KEY (day, kind, account)
) STRICT, WITHOUT ROWID;

-- Days before that of `ledger_open` in `meta` have settled.
CREATE TRIGGER ledger_day_added BEFORE INSERT ON ledger_days
WHEN new.day < (SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'ledger_open') BEGIN
    SELECT RAISE(ABORT, 'a settled day of the ledger cannot change');
END;
CREATE TRIGGER ledger_day_changed BEFORE UPDATE ON ledger_days
WHEN new.day < (SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'ledger_open') BEGIN
    SELECT RAISE(ABORT, 'a settled day of the ledger cannot change');
END;

-- Drones to be booked once it is `after`: a queue may report a run minutes after its end.
CREATE TABLE ledger_due (
    drone_id TEXT PRIMARY KEY NOT NULL,
    after FLOAT NOT NULL
);
CREATE INDEX ledger_due_after ON ledger_due (after);
INSERT INTO ledger_due SELECT id, 0.0 FROM drones WHERE coalesce(nullif(started_at, 0), joined_at) > 0;

CREATE TRIGGER ledger_drone_ended AFTER UPDATE OF live ON drones WHEN old.live = 1 AND new.live = 0 BEGIN
    INSERT INTO ledger_due VALUES (new.id, new.ended_at + 600.0)
    ON CONFLICT DO UPDATE SET after = excluded.after;
END;
CREATE TRIGGER ledger_run_recorded AFTER INSERT ON completed_jobs BEGIN
    INSERT INTO ledger_due
    SELECT id, new.ended_at + 600.0 FROM drones WHERE id = new.drone_id AND live = 0
    ON CONFLICT DO NOTHING;
END;
