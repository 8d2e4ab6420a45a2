-- Runs that ended before their job was done are on record as well, and the measured use of GPUs. Of older rows all are
-- of completed jobs, and nothing was measured.
ALTER TABLE completed_jobs ADD COLUMN unfinished BOOLEAN NOT NULL DEFAULT 0;
ALTER TABLE completed_jobs ADD COLUMN splits BOOLEAN NOT NULL DEFAULT 1;
ALTER TABLE completed_jobs ADD COLUMN used_milli INTEGER;
ALTER TABLE completed_jobs ADD COLUMN peak_vram_mib INTEGER;
ALTER TABLE completed_jobs ADD COLUMN energy_j INTEGER;
