-- Runs have the id of the job whose routed copy they are of, so that it is found after both have left the queue.
ALTER TABLE completed_jobs ADD COLUMN routed_from TEXT NOT NULL DEFAULT '';
