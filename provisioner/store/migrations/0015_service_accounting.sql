-- The account of drones with an inference server in the ledger.
ALTER TABLE ledger_drones ADD COLUMN service INTEGER NOT NULL DEFAULT 0;
