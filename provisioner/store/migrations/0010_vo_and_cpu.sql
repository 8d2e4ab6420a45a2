-- Runs have the virtual organisation of their job, and sums are told apart by it. Of older rows it is unknown.
-- Runs have the CPU time and the peak of memory that they used; sums have the core-seconds that runs of known CPU time
-- used and asked for, and the highest peak. Of older rows these are unknown. They are of whole runs, without a scale.
ALTER TABLE completed_jobs ADD COLUMN vo TEXT NOT NULL DEFAULT '';
ALTER TABLE completed_jobs ADD COLUMN vo_member TEXT NOT NULL DEFAULT '';
ALTER TABLE completed_jobs ADD COLUMN used_cpu_s INTEGER;
ALTER TABLE completed_jobs ADD COLUMN peak_memory_mib INTEGER;
ALTER TABLE use_days ADD COLUMN used_cpu_s INTEGER;
ALTER TABLE use_days ADD COLUMN asked_cpu_s FLOAT NOT NULL DEFAULT 0.0;
ALTER TABLE use_days ADD COLUMN peak_memory_mib INTEGER;

DROP TRIGGER run_recorded;
DROP TRIGGER use_day_deleted;
DROP VIEW counted_runs;

CREATE TABLE new_kinds (
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

INSERT INTO new_kinds
SELECT kind, type, drone_milli, owner, '', gpu_milli, cpus, memory_mib, vram_mib, splits, disk_mib, capability, walltime_s
FROM run_kinds;
DROP TABLE run_kinds;
ALTER TABLE new_kinds RENAME TO run_kinds;

CREATE VIEW counted_runs AS
SELECT *, CASE WHEN used_cpu_s IS NULL THEN 0.0 ELSE run_s * cpus END AS asked_cpu_s FROM gpu_runs CROSS JOIN run_drones USING (drone_id) CROSS JOIN run_kinds
    USING (owner, vo, gpu_milli, cpus, memory_mib, type, drone_milli, vram_mib, splits, disk_mib, capability, walltime_s);

CREATE TRIGGER use_day_deleted AFTER DELETE ON use_days
WHEN NOT EXISTS (SELECT 1 FROM use_days WHERE kind = old.kind) BEGIN
    DELETE FROM run_kinds WHERE kind = old.kind;
END;

CREATE TRIGGER run_recorded AFTER INSERT ON completed_jobs BEGIN
    INSERT INTO run_drones (drone_id, held, had)
    SELECT drone_id, min(gpu_milli, drone_milli) * ran_s, drone_milli * (drone_until_at - began_at) FROM gpu_runs
    WHERE ended_at = new.ended_at AND job_id = new.job_id
    ON CONFLICT DO UPDATE SET held = held + excluded.held, had = max(had, excluded.had);

    INSERT INTO run_kinds
    SELECT NULL, type, drone_milli, owner, vo, gpu_milli, cpus, memory_mib, vram_mib, splits, disk_mib, capability,
        walltime_s
    FROM gpu_runs WHERE ended_at = new.ended_at AND job_id = new.job_id
    ON CONFLICT DO NOTHING;

    INSERT INTO use_days
    SELECT day, kind, use_step, vram_step, ended_at, ran_s, 1, ran_s * scale,
        ran_s * scale * coalesce(used_milli, 0), used_milli, peak_vram_mib, energy_j,
        used_cpu_s, asked_cpu_s, peak_memory_mib
    FROM counted_runs WHERE ended_at = new.ended_at AND job_id = new.job_id
    ON CONFLICT DO UPDATE SET
        ended_at = max(ended_at, excluded.ended_at), longest_s = max(longest_s, excluded.longest_s),
        jobs = jobs + 1, ran_s = ran_s + excluded.ran_s, used = used + excluded.used,
        used_milli = max(used_milli, excluded.used_milli), peak_vram_mib = max(peak_vram_mib, excluded.peak_vram_mib),
        energy_j = coalesce(energy_j + excluded.energy_j, energy_j, excluded.energy_j),
        used_cpu_s = coalesce(used_cpu_s + excluded.used_cpu_s, used_cpu_s, excluded.used_cpu_s),
        asked_cpu_s = asked_cpu_s + excluded.asked_cpu_s,
        peak_memory_mib = coalesce(max(peak_memory_mib, excluded.peak_memory_mib), peak_memory_mib, excluded.peak_memory_mib);

    -- All runs of a drone change with its scale. Differences up to 1/1000 wait, so that the work grows with the runs.
    INSERT INTO use_days
    SELECT day, kind, use_step, vram_step, ended_at, 0, 0, ran_s * more, ran_s * more * coalesce(used_milli, 0),
        NULL, NULL, NULL, NULL, 0.0, NULL
    FROM (
        SELECT drone_id AS id, min(1.0, had / held) - scale AS more FROM run_drones
        WHERE drone_id = new.drone_id AND abs(min(1.0, had / held) - scale) > scale / 1000
    ) CROSS JOIN counted_runs WHERE drone_id = id
    ON CONFLICT DO UPDATE SET ran_s = ran_s + excluded.ran_s, used = used + excluded.used;

    UPDATE run_drones SET scale = min(1.0, had / held)
    WHERE drone_id = new.drone_id AND abs(min(1.0, had / held) - scale) > scale / 1000;
END;
