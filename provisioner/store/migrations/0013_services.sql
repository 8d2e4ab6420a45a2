-- Drones with an inference server have the name of its service. Older drones are for jobs.
ALTER TABLE drones ADD COLUMN service TEXT NOT NULL DEFAULT '';
