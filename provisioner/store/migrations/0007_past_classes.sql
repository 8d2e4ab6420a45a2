-- Job classes that have left the queue, or of which no job waits: they can still be named and explained.
CREATE TABLE past_classes (
    id TEXT PRIMARY KEY,
    seen_at REAL NOT NULL,
    job BLOB NOT NULL,
    reason TEXT
) STRICT;
CREATE INDEX past_classes_seen ON past_classes (seen_at);
