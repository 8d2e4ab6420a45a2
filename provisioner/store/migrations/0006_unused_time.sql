-- The drones whose runs left most GPU time unused are found in an index alone.
DROP INDEX completed_jobs_drone;
CREATE INDEX completed_jobs_drone ON completed_jobs (drone_id, ended_at, gpu_milli, run_s, used_milli);
