-- Sums of what runs of jobs held and used of GPUs, by the day (UTC) of their ends. Triggers keep them, so they agree with
-- the runs whoever writes those. A report of a month reads sums, and runs of its first day only.
DROP INDEX drones_ended;
CREATE INDEX drones_ended ON drones (live, ended_at, type, gpu_milli, started_at, joined_at);
CREATE INDEX completed_jobs_drone ON completed_jobs (drone_id);

-- Drones with ended runs: what these held in all, by what they asked for, and what the drone had up to the newest of
-- them, in milli-GPU-seconds. Where they held more, each counts less: its time is multiplied by the scale.
CREATE TABLE run_drones (
    drone_id TEXT PRIMARY KEY NOT NULL,
    held FLOAT NOT NULL,
    had FLOAT NOT NULL,
    scale FLOAT NOT NULL DEFAULT 1.0
) WITHOUT ROWID;

CREATE TRIGGER run_drone_deleted AFTER DELETE ON drones BEGIN
    DELETE FROM run_drones WHERE drone_id = old.id;
END;

-- Kinds of runs: in which drones, and what was asked for.
CREATE TABLE run_kinds (
    kind INTEGER PRIMARY KEY NOT NULL,
    type TEXT NOT NULL,
    drone_milli INTEGER NOT NULL,
    owner TEXT NOT NULL,
    gpu_milli INTEGER NOT NULL,
    cpus INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    vram_mib INTEGER NOT NULL,
    splits BOOLEAN NOT NULL,
    disk_mib INTEGER NOT NULL,
    capability INTEGER NOT NULL,
    walltime_s FLOAT NOT NULL,
    UNIQUE (owner, gpu_milli, cpus, memory_mib, type, drone_milli, vram_mib, splits, disk_mib, capability, walltime_s)
);

-- `used` is in milli-GPU-seconds. Quantiles tell steps of use (1 % of a GPU) and of VRAM (256 MiB) apart; -1: not
-- measured. `used_milli` and `peak_vram_mib` are the highest in a step.
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
    PRIMARY KEY (day, kind, use_step, vram_step)
) WITHOUT ROWID;

CREATE INDEX use_days_kind ON use_days (kind);
CREATE TRIGGER use_day_deleted AFTER DELETE ON use_days
WHEN NOT EXISTS (SELECT 1 FROM use_days WHERE kind = old.kind) BEGIN
    DELETE FROM run_kinds WHERE kind = old.kind;
END;

-- Runs in GPU drones on record, as far as they were in the life of the drone.
CREATE VIEW gpu_runs AS
SELECT *, until_at - begun_at AS ran_s, CAST(ended_at / 86400 AS INTEGER) AS day,
    coalesce((used_milli + 9) / 10, -1) AS use_step, coalesce((peak_vram_mib + 255) / 256, -1) AS vram_step
FROM (
    SELECT j.*, d.type, d.gpu_milli AS drone_milli, coalesce(nullif(d.started_at, 0), d.joined_at) AS began_at,
        max(j.ended_at - j.run_s, coalesce(nullif(d.started_at, 0), d.joined_at)) AS begun_at,
        min(j.ended_at, coalesce(nullif(d.ended_at, 0), j.ended_at)) AS until_at,
        coalesce(nullif(d.ended_at, 0), j.ended_at) AS drone_until_at
    FROM completed_jobs AS j CROSS JOIN drones AS d ON d.id = j.drone_id
    WHERE j.gpu_milli > 0 AND d.gpu_milli > 0 AND d.started_at + d.joined_at > 0
)
WHERE until_at > begun_at;

-- The same with their kinds and scales: all runs that are in the sums.
CREATE VIEW counted_runs AS
SELECT * FROM gpu_runs CROSS JOIN run_drones USING (drone_id) CROSS JOIN run_kinds
    USING (owner, gpu_milli, cpus, memory_mib, type, drone_milli, vram_mib, splits, disk_mib, capability, walltime_s);

CREATE TRIGGER run_recorded AFTER INSERT ON completed_jobs BEGIN
    INSERT INTO run_drones (drone_id, held, had)
    SELECT drone_id, min(gpu_milli, drone_milli) * ran_s, drone_milli * (drone_until_at - began_at) FROM gpu_runs
    WHERE ended_at = new.ended_at AND job_id = new.job_id
    ON CONFLICT DO UPDATE SET held = held + excluded.held, had = max(had, excluded.had);

    INSERT INTO run_kinds
    SELECT NULL, type, drone_milli, owner, gpu_milli, cpus, memory_mib, vram_mib, splits, disk_mib, capability, walltime_s
    FROM gpu_runs WHERE ended_at = new.ended_at AND job_id = new.job_id
    ON CONFLICT DO NOTHING;

    INSERT INTO use_days
    SELECT day, kind, use_step, vram_step, ended_at, ran_s, 1, ran_s * scale,
        ran_s * scale * coalesce(used_milli, 0), used_milli, peak_vram_mib, energy_j
    FROM counted_runs WHERE ended_at = new.ended_at AND job_id = new.job_id
    ON CONFLICT DO UPDATE SET
        ended_at = max(ended_at, excluded.ended_at), longest_s = max(longest_s, excluded.longest_s),
        jobs = jobs + 1, ran_s = ran_s + excluded.ran_s, used = used + excluded.used,
        used_milli = max(used_milli, excluded.used_milli), peak_vram_mib = max(peak_vram_mib, excluded.peak_vram_mib),
        energy_j = coalesce(energy_j + excluded.energy_j, energy_j, excluded.energy_j);

    -- All runs of a drone change with its scale. Differences up to 1/1000 wait, so that the work grows with the runs.
    INSERT INTO use_days
    SELECT day, kind, use_step, vram_step, ended_at, 0, 0, ran_s * more, ran_s * more * coalesce(used_milli, 0),
        NULL, NULL, NULL
    FROM (
        SELECT drone_id AS id, min(1.0, had / held) - scale AS more FROM run_drones
        WHERE drone_id = new.drone_id AND abs(min(1.0, had / held) - scale) > scale / 1000
    ) CROSS JOIN counted_runs WHERE drone_id = id
    ON CONFLICT DO UPDATE SET ran_s = ran_s + excluded.ran_s, used = used + excluded.used;

    UPDATE run_drones SET scale = min(1.0, had / held)
    WHERE drone_id = new.drone_id AND abs(min(1.0, had / held) - scale) > scale / 1000;
END;

-- Runs on record before.
INSERT INTO run_drones (drone_id, held, had)
SELECT drone_id, sum(min(gpu_milli, drone_milli) * ran_s), max(drone_milli * (drone_until_at - began_at))
FROM gpu_runs GROUP BY drone_id;
UPDATE run_drones SET scale = min(1.0, had / held);
INSERT INTO run_kinds
SELECT DISTINCT NULL, type, drone_milli, owner, gpu_milli, cpus, memory_mib, vram_mib, splits, disk_mib, capability,
    walltime_s
FROM gpu_runs;
INSERT INTO use_days
SELECT day, kind, use_step, vram_step, max(ended_at), max(ran_s), count(*), sum(ran_s * scale),
    total(ran_s * scale * used_milli), max(used_milli), max(peak_vram_mib), sum(energy_j)
FROM counted_runs GROUP BY day, kind, use_step, vram_step;
