-- A third of the ledger's recent entries was their indexes by day, which only pruning and `verify` used.
DROP INDEX ledger_drones_day;
DROP INDEX ledger_runs_day;
