-- Counts since the store was created, whatever is pruned. `labels` is a JSON object. The time series have `sampled` of
-- `value`.
CREATE TABLE counters (
    metric TEXT NOT NULL,
    labels TEXT NOT NULL,
    value FLOAT NOT NULL,
    sampled FLOAT NOT NULL DEFAULT 0,
    PRIMARY KEY (metric, labels)
) WITHOUT ROWID;

CREATE TABLE series (
    id INTEGER PRIMARY KEY NOT NULL,
    metric TEXT NOT NULL,
    labels TEXT NOT NULL,
    UNIQUE (metric, labels)
);
-- The number of samples themselves: tells a value of 0, which has no row, from a time without a controller.
INSERT INTO series (id, metric, labels) VALUES (0, '', '{}');

-- Sums of the samples from `at` on and before `at + step_s`: of a gauge its values, of a counter its increases.
CREATE TABLE samples (
    step_s INTEGER NOT NULL,
    series INTEGER NOT NULL,
    at INTEGER NOT NULL,
    value FLOAT NOT NULL,
    PRIMARY KEY (step_s, series, at)
) WITHOUT ROWID;
