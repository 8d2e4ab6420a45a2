-- The rules on the jobs that a drone takes are one text, empty for all jobs.
ALTER TABLE drones RENAME COLUMN avoids TO job_filter;
UPDATE drones SET job_filter = trim(
    CASE WHEN job_filter != '' THEN 'excluded_users=' || job_filter ELSE '' END
    || CASE WHEN min_gpus THEN ' min_gpus=' || min_gpus ELSE '' END
) WHERE job_filter != '' OR min_gpus;
ALTER TABLE drones DROP COLUMN min_gpus;
