-- The lease of several controllers that share this record: one row, number 1. Times are by the database's clock.
-- `writes` counts the leader's transactions; until_at is 0 when the leader has released the lease.
CREATE TABLE lease (
    id INTEGER PRIMARY KEY NOT NULL,
    epoch INTEGER NOT NULL,
    nonce TEXT NOT NULL,
    member TEXT NOT NULL,
    since_at FLOAT NOT NULL,
    renewed_at FLOAT NOT NULL,
    until_at FLOAT NOT NULL,
    writes INTEGER NOT NULL
);
INSERT INTO lease (id, epoch, nonce, member, since_at, renewed_at, until_at, writes) VALUES (1, 0, '', '', 0, 0, 0, 0);

-- Its members, each by its last sign of life: the largest epoch that it has seen, and the views that it lacks.
CREATE TABLE members (
    name TEXT PRIMARY KEY NOT NULL,
    seen_at FLOAT NOT NULL,
    epoch INTEGER NOT NULL,
    holder TEXT NOT NULL,
    lacks TEXT NOT NULL,
    unpolled TEXT NOT NULL
);
