-- The schema of PostgreSQL at number 12: what the scripts up to that number make of a SQLite file, with the same tables
-- and columns. Later scripts run on both. Types are written as for SQLite (provisioner/store/postgresql.py).
-- Truth values are numbers.

CREATE FUNCTION min(float, float) RETURNS float LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT least($1, $2)';
CREATE FUNCTION max(float, float) RETURNS float LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT greatest($1, $2)';
CREATE FUNCTION instr(text, text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT strpos($1, $2)';

CREATE TABLE meta (
    key TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
);

CREATE TABLE drones (
    id TEXT PRIMARY KEY NOT NULL,
    serial INTEGER,
    live BOOLEAN NOT NULL,
    site TEXT NOT NULL,
    type TEXT NOT NULL,
    state TEXT NOT NULL,
    since FLOAT NOT NULL,
    requested_at FLOAT NOT NULL,
    gpu_milli INTEGER NOT NULL,
    for_class TEXT NOT NULL,
    remote_id TEXT NOT NULL,
    submitted_at FLOAT NOT NULL,
    started_at FLOAT NOT NULL,
    joined_at FLOAT NOT NULL,
    busy_at FLOAT NOT NULL,
    idle_at FLOAT NOT NULL,
    heard_at FLOAT NOT NULL,
    jobs INTEGER NOT NULL,
    jobs_started INTEGER NOT NULL,
    missing_at FLOAT NOT NULL,
    unslotted_at FLOAT NOT NULL,
    leaving TEXT,
    asked_at FLOAT NOT NULL,
    asked INTEGER NOT NULL,
    retires_at FLOAT NOT NULL,
    ended_at FLOAT NOT NULL,
    slot TEXT NOT NULL,
    site_reason TEXT NOT NULL,
    node TEXT NOT NULL,
    site_slot TEXT NOT NULL,
    notice_at FLOAT NOT NULL,
    work_gpu_milli INTEGER NOT NULL,
    work_at FLOAT NOT NULL,
    lost_gpu_s FLOAT NOT NULL,
    lost_jobs INTEGER NOT NULL,
    job_filter TEXT NOT NULL,
    drain_mode TEXT NOT NULL,
    drain_refusal TEXT NOT NULL
);
CREATE INDEX drones_live ON drones (live, requested_at);
CREATE INDEX drones_serial ON drones (serial);
CREATE INDEX drones_remote_id ON drones (remote_id);
CREATE INDEX drones_slot ON drones (slot);
CREATE INDEX drones_site_slot ON drones (site_slot);
CREATE INDEX drones_ended ON drones (live, ended_at, type, gpu_milli, started_at, joined_at);

CREATE TABLE console_outputs (
    drone_id TEXT PRIMARY KEY NOT NULL,
    at FLOAT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX console_outputs_at ON console_outputs (at);

CREATE TABLE completed_jobs (
    ended_at FLOAT NOT NULL,
    job_id TEXT NOT NULL,
    submitted_at FLOAT NOT NULL,
    run_s FLOAT NOT NULL,
    gpu_milli INTEGER NOT NULL,
    cpus INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    disk_mib INTEGER NOT NULL,
    vram_mib INTEGER NOT NULL,
    capability INTEGER NOT NULL,
    owner TEXT NOT NULL,
    "group" TEXT NOT NULL,
    walltime_s FLOAT NOT NULL,
    drone_id TEXT,
    unfinished BOOLEAN NOT NULL DEFAULT 0,
    splits BOOLEAN NOT NULL DEFAULT 1,
    used_milli INTEGER,
    peak_vram_mib INTEGER,
    energy_j INTEGER,
    vo TEXT NOT NULL DEFAULT '',
    vo_member TEXT NOT NULL DEFAULT '',
    used_cpu_s INTEGER,
    peak_memory_mib INTEGER,
    routed_from TEXT NOT NULL DEFAULT '',
    held_milli INTEGER,
    failed BOOLEAN NOT NULL DEFAULT 0,
    PRIMARY KEY (ended_at, job_id)
);
CREATE INDEX completed_jobs_drone ON completed_jobs (drone_id, ended_at, gpu_milli, run_s, used_milli);

CREATE TABLE estimates (
    id INTEGER PRIMARY KEY NOT NULL,
    at FLOAT NOT NULL,
    body BLOB NOT NULL
);

CREATE TABLE estimate_resets (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    at FLOAT NOT NULL,
    what TEXT NOT NULL,
    reason TEXT NOT NULL,
    by TEXT NOT NULL
);

CREATE TABLE transitions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    drone_id TEXT NOT NULL,
    at FLOAT NOT NULL,
    was TEXT,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    tick INTEGER NOT NULL
);
CREATE INDEX transitions_drone ON transitions (drone_id);
CREATE INDEX transitions_at ON transitions (at);

CREATE TABLE plans (
    seq INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    tick INTEGER NOT NULL,
    at FLOAT NOT NULL,
    last_tick INTEGER NOT NULL,
    last_at FLOAT NOT NULL,
    acting BOOLEAN NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX plans_last ON plans (last_at);
CREATE INDEX plans_acting ON plans (acting);

CREATE TABLE snapshots (
    tick INTEGER PRIMARY KEY NOT NULL,
    body BLOB NOT NULL,
    parts INTEGER
);
CREATE INDEX snapshots_parts ON snapshots (parts);

CREATE TABLE breakers (
    scope TEXT PRIMARY KEY NOT NULL,
    body BLOB NOT NULL
);

CREATE TABLE requests (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    at FLOAT NOT NULL,
    kind TEXT NOT NULL,
    mode TEXT NOT NULL,
    drone_ids TEXT NOT NULL,
    reason TEXT NOT NULL,
    by TEXT NOT NULL,
    done_tick INTEGER
);
CREATE INDEX requests_done ON requests (done_tick);

CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    at FLOAT NOT NULL,
    name TEXT NOT NULL,
    fields TEXT NOT NULL
);
CREATE INDEX events_at ON events (at);

CREATE TABLE counters (
    metric TEXT NOT NULL,
    labels TEXT NOT NULL,
    value FLOAT NOT NULL,
    sampled FLOAT NOT NULL DEFAULT 0,
    PRIMARY KEY (metric, labels)
);

CREATE TABLE series (
    id INTEGER PRIMARY KEY NOT NULL,
    metric TEXT NOT NULL,
    labels TEXT NOT NULL,
    UNIQUE (metric, labels)
);

CREATE TABLE samples (
    step_s INTEGER NOT NULL,
    series INTEGER NOT NULL,
    at INTEGER NOT NULL,
    value FLOAT NOT NULL,
    PRIMARY KEY (step_s, series, at)
);

CREATE TABLE run_drones (
    drone_id TEXT PRIMARY KEY NOT NULL,
    held FLOAT NOT NULL,
    had FLOAT NOT NULL,
    scale FLOAT NOT NULL DEFAULT 1.0
);

CREATE TABLE use_days (
    day INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    use_step INTEGER NOT NULL,
    vram_step INTEGER NOT NULL,
    ended_at FLOAT NOT NULL,
    longest_s FLOAT NOT NULL,
    jobs INTEGER NOT NULL,
    ran_s FLOAT NOT NULL,
    used FLOAT NOT NULL,
    used_milli INTEGER,
    peak_vram_mib INTEGER,
    energy_j INTEGER,
    used_cpu_s INTEGER,
    asked_cpu_s FLOAT NOT NULL DEFAULT 0.0,
    peak_memory_mib INTEGER,
    PRIMARY KEY (day, kind, use_step, vram_step)
);
CREATE INDEX use_days_kind ON use_days (kind);

CREATE TABLE past_classes (
    id TEXT PRIMARY KEY,
    seen_at REAL NOT NULL,
    job BLOB NOT NULL,
    reason TEXT
);
CREATE INDEX past_classes_seen ON past_classes (seen_at);

CREATE TABLE view_log (
    seq INTEGER PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    cycle INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX view_log_cycle ON view_log (name, cycle);

CREATE TABLE run_kinds (
    kind INTEGER PRIMARY KEY NOT NULL,
    type TEXT NOT NULL,
    drone_milli INTEGER NOT NULL,
    owner TEXT NOT NULL,
    vo TEXT NOT NULL,
    gpu_milli INTEGER NOT NULL,
    cpus INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    vram_mib INTEGER NOT NULL,
    splits BOOLEAN NOT NULL,
    disk_mib INTEGER NOT NULL,
    capability INTEGER NOT NULL,
    walltime_s FLOAT NOT NULL,
    UNIQUE (owner, gpu_milli, cpus, memory_mib, type, drone_milli, vram_mib, splits, disk_mib, capability, walltime_s,
        vo)
);

CREATE TABLE ledger_kinds (
    kind INTEGER PRIMARY KEY NOT NULL,
    site TEXT NOT NULL,
    type TEXT NOT NULL,
    model TEXT NOT NULL,
    sharing TEXT NOT NULL,
    accounting_group TEXT NOT NULL,
    vo TEXT NOT NULL,
    UNIQUE (site, type, model, sharing, accounting_group, vo)
);

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
);
CREATE INDEX ledger_drones_day ON ledger_drones (day);

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
);
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
);

CREATE TABLE ledger_due (
    drone_id TEXT PRIMARY KEY NOT NULL,
    after FLOAT NOT NULL
);
CREATE INDEX ledger_due_after ON ledger_due (after);

INSERT INTO series (id, metric, labels) VALUES (0, '', '{}');

-- Runs in GPU drones on record, as far as they were in the life of the drone.
CREATE VIEW gpu_runs AS
SELECT *, until_at - begun_at AS ran_s, floor(ended_at / 86400)::integer AS day,
    coalesce((used_milli + 9) / 10, -1) AS use_step, coalesce((peak_vram_mib + 255) / 256, -1) AS vram_step
FROM (
    SELECT j.*, d.type, d.gpu_milli AS drone_milli, coalesce(nullif(d.started_at, 0), d.joined_at) AS began_at,
        greatest(j.ended_at - j.run_s, coalesce(nullif(d.started_at, 0), d.joined_at)) AS begun_at,
        least(j.ended_at, coalesce(nullif(d.ended_at, 0), j.ended_at)) AS until_at,
        coalesce(nullif(d.ended_at, 0), j.ended_at) AS drone_until_at
    FROM completed_jobs AS j JOIN drones AS d ON d.id = j.drone_id
    WHERE j.gpu_milli > 0 AND d.gpu_milli > 0 AND d.started_at + d.joined_at > 0
) AS runs
WHERE until_at > begun_at;

-- The same with their kinds and scales: all runs that are in the sums.
CREATE VIEW counted_runs AS
SELECT *, CASE WHEN used_cpu_s IS NULL THEN 0.0 ELSE run_s * cpus END AS asked_cpu_s
FROM gpu_runs JOIN run_drones USING (drone_id) JOIN run_kinds
    USING (owner, vo, gpu_milli, cpus, memory_mib, type, drone_milli, vram_mib, splits, disk_mib, capability, walltime_s);

CREATE FUNCTION drone_deleted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM transitions WHERE drone_id = old.id;
    DELETE FROM console_outputs WHERE drone_id = old.id;
    DELETE FROM run_drones WHERE drone_id = old.id;
    RETURN NULL;
END $$;
CREATE TRIGGER drone_deleted AFTER DELETE ON drones FOR EACH ROW EXECUTE FUNCTION drone_deleted();

CREATE FUNCTION use_day_deleted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    DELETE FROM run_kinds
    WHERE kind = old.kind AND NOT EXISTS (SELECT 1 FROM use_days WHERE use_days.kind = old.kind);
    RETURN NULL;
END $$;
CREATE TRIGGER use_day_deleted AFTER DELETE ON use_days FOR EACH ROW EXECUTE FUNCTION use_day_deleted();

CREATE FUNCTION run_recorded() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO run_drones (drone_id, held, had)
    SELECT drone_id, least(gpu_milli, drone_milli) * ran_s, drone_milli * (drone_until_at - began_at) FROM gpu_runs
    WHERE ended_at = new.ended_at AND job_id = new.job_id
    ON CONFLICT (drone_id) DO UPDATE
    SET held = run_drones.held + excluded.held, had = greatest(run_drones.had, excluded.had);

    INSERT INTO run_kinds (type, drone_milli, owner, vo, gpu_milli, cpus, memory_mib, vram_mib, splits, disk_mib,
        capability, walltime_s)
    SELECT type, drone_milli, owner, vo, gpu_milli, cpus, memory_mib, vram_mib, splits, disk_mib, capability, walltime_s
    FROM gpu_runs WHERE ended_at = new.ended_at AND job_id = new.job_id
    ON CONFLICT DO NOTHING;

    INSERT INTO use_days AS u (day, kind, use_step, vram_step, ended_at, longest_s, jobs, ran_s, used, used_milli,
        peak_vram_mib, energy_j, used_cpu_s, asked_cpu_s, peak_memory_mib)
    SELECT day, kind, use_step, vram_step, ended_at, ran_s, 1, ran_s * scale,
        ran_s * scale * coalesce(used_milli, 0), used_milli, peak_vram_mib, energy_j,
        used_cpu_s, asked_cpu_s, peak_memory_mib
    FROM counted_runs WHERE ended_at = new.ended_at AND job_id = new.job_id
    ON CONFLICT (day, kind, use_step, vram_step) DO UPDATE SET
        ended_at = greatest(u.ended_at, excluded.ended_at), longest_s = greatest(u.longest_s, excluded.longest_s),
        jobs = u.jobs + 1, ran_s = u.ran_s + excluded.ran_s, used = u.used + excluded.used,
        used_milli = greatest(u.used_milli, excluded.used_milli),
        peak_vram_mib = greatest(u.peak_vram_mib, excluded.peak_vram_mib),
        energy_j = coalesce(u.energy_j + excluded.energy_j, u.energy_j, excluded.energy_j),
        used_cpu_s = coalesce(u.used_cpu_s + excluded.used_cpu_s, u.used_cpu_s, excluded.used_cpu_s),
        asked_cpu_s = u.asked_cpu_s + excluded.asked_cpu_s,
        peak_memory_mib = greatest(u.peak_memory_mib, excluded.peak_memory_mib);

    -- All runs of a drone change with its scale. Differences up to 1/1000 wait, so that the work grows with the runs.
    INSERT INTO use_days AS u (day, kind, use_step, vram_step, ended_at, longest_s, jobs, ran_s, used, used_milli,
        peak_vram_mib, energy_j, used_cpu_s, asked_cpu_s, peak_memory_mib)
    SELECT day, kind, use_step, vram_step, max(ended_at), 0, 0, sum(ran_s * more),
        sum(ran_s * more * coalesce(used_milli, 0)), NULL, NULL, NULL, NULL, 0.0, NULL
    FROM (
        SELECT drone_id AS id, least(1.0, had / nullif(held, 0)) - scale AS more FROM run_drones
        WHERE drone_id = new.drone_id AND abs(least(1.0, had / nullif(held, 0)) - scale) > scale / 1000
    ) AS rescaled JOIN counted_runs ON drone_id = id
    GROUP BY day, kind, use_step, vram_step
    ON CONFLICT (day, kind, use_step, vram_step) DO UPDATE
    SET ran_s = u.ran_s + excluded.ran_s, used = u.used + excluded.used;

    UPDATE run_drones SET scale = least(1.0, had / nullif(held, 0))
    WHERE drone_id = new.drone_id AND abs(least(1.0, had / nullif(held, 0)) - scale) > scale / 1000;
    RETURN NULL;
END $$;
CREATE TRIGGER run_recorded AFTER INSERT ON completed_jobs FOR EACH ROW EXECUTE FUNCTION run_recorded();

-- Days before that of `ledger_open` in `meta` have settled.
CREATE FUNCTION ledger_day_changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF new.day < (SELECT value::integer FROM meta WHERE key = 'ledger_open') THEN
        RAISE EXCEPTION 'a settled day of the ledger cannot change' USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN new;
END $$;
CREATE TRIGGER ledger_day_changed BEFORE INSERT OR UPDATE ON ledger_days
FOR EACH ROW EXECUTE FUNCTION ledger_day_changed();

CREATE FUNCTION ledger_drone_ended() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO ledger_due VALUES (new.id, new.ended_at + 600.0)
    ON CONFLICT (drone_id) DO UPDATE SET after = excluded.after;
    RETURN NULL;
END $$;
CREATE TRIGGER ledger_drone_ended AFTER UPDATE OF live ON drones
FOR EACH ROW WHEN (old.live = 1 AND new.live = 0) EXECUTE FUNCTION ledger_drone_ended();

CREATE FUNCTION ledger_run_recorded() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO ledger_due SELECT id, new.ended_at + 600.0 FROM drones WHERE id = new.drone_id AND live = 0
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER ledger_run_recorded AFTER INSERT ON completed_jobs
FOR EACH ROW EXECUTE FUNCTION ledger_run_recorded();
