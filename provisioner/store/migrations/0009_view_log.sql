-- Views are logs of changed entries, and a snapshot refers to them: its `parts` is the newest row of its tick. Of older
-- snapshots it is null, and the body has all. The views themselves are those of the next tick.
DROP TABLE views;
CREATE TABLE view_log (
    seq INTEGER PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    cycle INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX view_log_cycle ON view_log (name, cycle);
ALTER TABLE snapshots ADD COLUMN parts INTEGER;
CREATE INDEX snapshots_parts ON snapshots (parts);
