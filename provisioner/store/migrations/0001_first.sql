PRAGMA application_id = 1685221230;  -- 'dron', which tells a store from the files of other programs

-- controller, birth, tick, at, drift_s, next_serial, gpu_wanted_at, holder
CREATE TABLE meta (
    key TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
);

CREATE TABLE drones (
    id TEXT PRIMARY KEY NOT NULL,
    serial INTEGER,
    live BOOLEAN NOT NULL,
    site TEXT NOT NULL,
    type TEXT NOT NULL,
    state TEXT NOT NULL,
    since FLOAT NOT NULL,
    requested_at FLOAT NOT NULL,
    gpu_milli INTEGER NOT NULL,
    for_class TEXT NOT NULL,
    remote_id TEXT NOT NULL,
    submitted_at FLOAT NOT NULL,
    started_at FLOAT NOT NULL,
    joined_at FLOAT NOT NULL,
    busy_at FLOAT NOT NULL,
    idle_at FLOAT NOT NULL,
    heard_at FLOAT NOT NULL,
    jobs INTEGER NOT NULL,
    jobs_started INTEGER NOT NULL,
    missing_at FLOAT NOT NULL,
    unslotted_at FLOAT NOT NULL,
    leaving TEXT,
    asked_at FLOAT NOT NULL,
    asked INTEGER NOT NULL,
    retires_at FLOAT NOT NULL,
    ended_at FLOAT NOT NULL,
    slot TEXT NOT NULL,
    site_reason TEXT NOT NULL,
    node TEXT NOT NULL,
    site_slot TEXT NOT NULL,
    notice_at FLOAT NOT NULL,
    work_gpu_milli INTEGER NOT NULL,
    work_at FLOAT NOT NULL,
    lost_gpu_s FLOAT NOT NULL,
    lost_jobs INTEGER NOT NULL,
    avoids TEXT NOT NULL,
    drain_mode TEXT NOT NULL,
    drain_refusal TEXT NOT NULL
);
CREATE INDEX drones_live ON drones (live, requested_at);
CREATE INDEX drones_serial ON drones (serial);
CREATE INDEX drones_remote_id ON drones (remote_id);
CREATE INDEX drones_slot ON drones (slot);
CREATE INDEX drones_ended ON drones (live, ended_at);
CREATE INDEX drones_site_slot ON drones (site_slot);

-- The last output of drones (a console, compressed), where their site reports it.
CREATE TABLE console_outputs (
    drone_id TEXT PRIMARY KEY NOT NULL,
    at FLOAT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX console_outputs_at ON console_outputs (at);

CREATE TRIGGER drone_deleted AFTER DELETE ON drones BEGIN
    DELETE FROM transitions WHERE drone_id = old.id;
    DELETE FROM console_outputs WHERE drone_id = old.id;
END;

-- In the order of their ends, without a second copy as an index: there may be millions.
CREATE TABLE completed_jobs (
    ended_at FLOAT NOT NULL,
    job_id TEXT NOT NULL,
    submitted_at FLOAT NOT NULL,
    run_s FLOAT NOT NULL,
    gpu_milli INTEGER NOT NULL,
    cpus INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    disk_mib INTEGER NOT NULL,
    vram_mib INTEGER NOT NULL,
    capability INTEGER NOT NULL,
    owner TEXT NOT NULL,
    "group" TEXT NOT NULL,
    walltime_s FLOAT NOT NULL,
    drone_id TEXT,
    PRIMARY KEY (ended_at, job_id)
) WITHOUT ROWID;

-- One row, number 1: a compressed JSON document.
CREATE TABLE estimates (
    id INTEGER PRIMARY KEY NOT NULL,
    at FLOAT NOT NULL,
    body BLOB NOT NULL
);

-- Requests of operators to forget estimates. A row is deleted with the commit of the reduced estimates.
CREATE TABLE estimate_resets (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    at FLOAT NOT NULL,
    what TEXT NOT NULL,
    reason TEXT NOT NULL,
    by TEXT NOT NULL
);

CREATE TABLE transitions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    drone_id TEXT NOT NULL,
    at FLOAT NOT NULL,
    was TEXT,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    tick INTEGER NOT NULL
);
CREATE INDEX transitions_drone ON transitions (drone_id);
CREATE INDEX transitions_at ON transitions (at);

-- A plan that repeats the one before is not stored again: last_tick and last_at of that one move on.
CREATE TABLE plans (
    seq INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    tick INTEGER NOT NULL,
    at FLOAT NOT NULL,
    last_tick INTEGER NOT NULL,
    last_at FLOAT NOT NULL,
    acting BOOLEAN NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX plans_last ON plans (last_at);
CREATE INDEX plans_acting ON plans (acting);

CREATE TABLE views (
    name TEXT PRIMARY KEY NOT NULL,
    body BLOB NOT NULL
);

CREATE TABLE snapshots (
    tick INTEGER PRIMARY KEY NOT NULL,
    body BLOB NOT NULL
);

CREATE TABLE breakers (
    scope TEXT PRIMARY KEY NOT NULL,
    body BLOB NOT NULL
);

CREATE TABLE requests (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    at FLOAT NOT NULL,
    kind TEXT NOT NULL,
    mode TEXT NOT NULL,
    drone_ids TEXT NOT NULL,
    reason TEXT NOT NULL,
    by TEXT NOT NULL,
    done_tick INTEGER
);
CREATE INDEX requests_done ON requests (done_tick);

CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    at FLOAT NOT NULL,
    name TEXT NOT NULL,
    fields TEXT NOT NULL
);
CREATE INDEX events_at ON events (at);
