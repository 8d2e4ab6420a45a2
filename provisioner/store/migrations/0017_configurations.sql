-- Expands.
-- Generations of the configuration of members that share this record: the files of the newest one that was adopted are
-- in force. The files are a JSON object of texts by name, the controller file first. Times are by the database's clock.
CREATE TABLE configurations (
    generation INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    digest TEXT NOT NULL,
    files TEXT NOT NULL,
    proposed_by TEXT NOT NULL,
    at FLOAT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL
);
-- Why the files of a member are not in force.
ALTER TABLE members ADD COLUMN files TEXT NOT NULL DEFAULT '';
