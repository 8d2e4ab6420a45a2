"""Counters and time series in the store.

A sample is taken once a minute and added to the sums of its minute, its ten minutes and its hour,
each of which is kept for longer than the one before. So no interval is ever computed from finer
ones, and the sums are the same at each step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from provisioner.store.database import StoreConnection
from provisioner.store.measures import MetricKey, MetricValues
from provisioner.values import frozen

STEPS_S = {60: 2 * 86400.0, 600: 30 * 86400.0, 3600: None}
"""Lengths of the intervals in seconds, with their retention; None: as the policy says."""
SERIES_KEEP_S = 400 * 86400.0
_SAMPLES = MetricKey("")


@frozen
class Series:
    """Values of one metric with one set of labels, oldest first, as ``(begin of the interval, value)``.

    The value is the mean of a gauge, and the increase of a counter in the interval. An interval in
    which no controller ran has no point.
    """

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]
    step_s: float
    """Length of the intervals."""


def add_counts(sql: StoreConnection, *counts: MetricValues) -> None:
    """Add to the counters."""
    rows = [
        (key.metric, labels_text(key), value)
        for each in counts
        for key, value in each.items()
        if value
    ]
    sql.executemany(
        "INSERT INTO counters (metric, labels, value) VALUES (?, ?, ?)"
        " ON CONFLICT (metric, labels) DO UPDATE SET value = counters.value + excluded.value",
        rows,
    )


def labels_text(key: MetricKey) -> str:
    return json.dumps(dict(key.labels))


def add_sample(sql: StoreConnection, at: float, gauges: MetricValues) -> None:
    """Add a sample of ``gauges``, and of what the counters have grown by since the last one."""
    found = [
        (key.metric, labels_text(key), float(value))
        for key, value in ({_SAMPLES: 1.0} | {**gauges}).items()
    ]
    grown = "FROM counters WHERE value != sampled"
    found += sql.execute(f"SELECT metric, labels, value - sampled {grown}").fetchall()
    rows = [row for row in found if row[2]]
    sql.execute("UPDATE counters SET sampled = value WHERE value != sampled")
    sql.executemany(
        "INSERT INTO series (metric, labels) VALUES (?, ?) ON CONFLICT DO NOTHING",
        [row[:2] for row in rows],
    )
    sql.executemany(
        "INSERT INTO samples (step_s, series, at, value) SELECT ?, id, ?, ? FROM series WHERE metric = ? AND labels = ?"
        " ON CONFLICT (step_s, series, at) DO UPDATE SET value = samples.value + excluded.value",
        [
            (step_s, int(at) // step_s * step_s, value, *key)
            for step_s in STEPS_S
            for *key, value in rows
        ],
    )


def old_samples(now: float, keep_s: float) -> Iterable[tuple[str, Sequence[float]]]:
    """Yield a condition on ``samples`` for each step, with its values: those that are past their retention."""
    for step_s, limit_s in STEPS_S.items():
        old = "step_s = ? AND series IN (SELECT id FROM series) AND at < ?"
        yield old, (step_s, now - min(keep_s, limit_s or keep_s) - step_s)


def forget(
    sql: StoreConnection, sites: Iterable[str], types: Iterable[str], services: Iterable[str]
) -> None:
    """Delete series without samples, and counters of sites, types and services neither configured nor on record.

    Overlay, controller and whatever else has no such label stay.
    """
    kept_s = ", ".join(map(str, STEPS_S))
    samples = f"SELECT 1 FROM samples WHERE step_s IN ({kept_s}) AND series = series.id"
    sql.execute(f"DELETE FROM series WHERE id != 0 AND NOT EXISTS ({samples})")
    known = {
        *(("site", each) for each in (*sites, "overlay")),
        *(("type", each) for each in types),
        *(("service", each) for each in services),
    }
    unknown = [
        row
        for row in sql.execute("SELECT metric, labels FROM counters").fetchall()
        if not _origins(row[1]) <= known
    ]
    if unknown:
        for site, kind, service in sql.execute("SELECT DISTINCT site, type, service FROM drones"):
            known |= {("site", site), ("type", kind), ("service", service)}
    gone = [row for row in unknown if not _origins(row[1]) <= known]
    sql.executemany("DELETE FROM counters WHERE metric = ? AND labels = ?", gone)


def _origins(text: str) -> set[tuple[str, str]]:
    """Return the site, the drone type and the service in labels, as far as they have some."""
    labels = json.loads(text)
    found = {("service", labels["service"])} if "service" in labels else set()
    site = labels.get("site", labels.get("scope"))
    if site is not None:
        found.add(("site", site))
        if "type" in labels:
            found.add(("type", f"{site}/{labels['type']}"))
    return found


def read_series(
    sql: StoreConnection, metric: str, since: float, until: float, step_s: float
) -> list[Series]:
    """Return the series of a metric from ``since`` on and before ``until``, by labels.

    ``step_s`` is the least length of the intervals. They are longer where the record goes so far
    back in longer ones only.
    """
    stored_s = _stored_step(sql, since, step_s)
    step = max(stored_s, int(step_s) // stored_s * stored_s)
    query = (
        "SELECT at / ?1 * ?1 AS start, sum(value) FROM samples"
        " WHERE step_s = ?2 AND series = ?3 AND at >= ?4 AND at < ?5 GROUP BY start ORDER BY start"
    )
    begin = int(since) // step * step
    found = list[Series]()
    taken = dict(sql.execute(query, (step, stored_s, 0, begin, until)))
    grows = metric.endswith(("_total", "_sum", "_count"))
    divisors = dict.fromkeys(taken, 1.0) if grows else taken
    rows = sql.execute(
        "SELECT id, labels FROM series WHERE metric = ? ORDER BY labels", (metric,)
    ).fetchall()
    for series, labels in rows:
        if values := dict(sql.execute(query, (step, stored_s, series, begin, until))):
            points = [(float(at), values.get(at, 0.0) / number) for at, number in divisors.items()]
            found.append(Series(json.loads(labels), points, float(step)))
    return found


def _stored_step(sql: StoreConnection, since: float, step_s: float) -> int:
    """Return the longest stored step up to ``step_s``, or a longer one if only that goes back to ``since``."""
    query = "SELECT min(at) FROM samples WHERE step_s = ? AND series = 0"
    longest = max(STEPS_S)
    begins = {step: sql.execute(query, (step,)).fetchone()[0] or 0 for step in STEPS_S}
    for step in STEPS_S:
        # the hour in which the samples of a step begin may have begun before them
        if step * 10 > step_s and begins[step] // longest * longest <= max(since, begins[longest]):
            return step
    return longest
