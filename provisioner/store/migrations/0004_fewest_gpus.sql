-- A drone may refuse jobs of fewer GPUs for as long as it lives. Drones on record before refuse none.
ALTER TABLE drones ADD COLUMN min_gpus INTEGER NOT NULL DEFAULT 0;
