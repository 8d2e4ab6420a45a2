"""Time series: a sample a minute, kept at three lengths of intervals, whose sums are the same."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from provisioner.store.file import migrate
from provisioner.store.measures import MetricKey
from provisioner.store.series import (
    SERIES_KEEP_S,
    STEPS_S,
    add_counts,
    add_sample,
    old_samples,
    read_series,
)
from provisioner.store.writer import SqlStore
from tests.store.story import record, starts, store_at

GAUGE, COUNTER = MetricKey.of("waiting", site="kit"), MetricKey.of("ends_total", site="kit")
BEGIN = 1_750_000_200.0


def record_in_memory() -> sqlite3.Connection:
    sql = sqlite3.connect(":memory:", isolation_level=None)
    migrate(sql)
    return sql


SAMPLES = st.lists(
    st.tuples(st.integers(1, 12), st.integers(0, 50), st.integers(0, 9), st.booleans()),
    min_size=1,
    max_size=60,
)
"""Minutes since the sample before, a gauge, what a counter grows by; and True for a sample without a write before."""


@given(samples=SAMPLES, step_s=st.sampled_from([60, 120, 600, 1200, 3600, 7200, 86400]))
@settings(max_examples=60, deadline=None)
def test_sums_and_means_are_the_same_at_every_step(
    samples: list[tuple[int, int, int, bool]], step_s: int
) -> None:
    sql, at = record_in_memory(), BEGIN
    gauges, grown = dict[float, list[int]](), dict[float, int]()
    unseen = 0
    for minutes, gauge, count, skips in samples:
        at += minutes * 60.0
        add_counts(sql, {COUNTER: count})
        unseen += count
        if not skips:
            add_sample(sql, at, {GAUGE: gauge})
            begin = at // step_s * step_s
            gauges.setdefault(begin, []).append(gauge)
            grown[begin] = grown.get(begin, 0) + unseen
            unseen = 0
    found = {key: read_series(sql, key.metric, 0.0, at + 60.0, step_s) for key in (GAUGE, COUNTER)}
    if any(map(any, gauges.values())):
        assert found[GAUGE][0].labels == {"site": "kit"} and found[GAUGE][0].step_s == step_s
        assert dict(found[GAUGE][0].points) == {
            at: pytest.approx(sum(v) / len(v)) for at, v in gauges.items()
        }
    if any(grown.values()):
        assert dict(found[COUNTER][0].points) == grown


def test_a_value_of_zero_is_told_from_a_time_without_a_controller() -> None:
    sql = record_in_memory()
    for minute, value in ((0, 4), (1, 0), (5, 2)):
        add_sample(sql, BEGIN + 60 * minute, {GAUGE: value})
    (found,) = read_series(sql, "waiting", BEGIN, BEGIN + 600.0, 60.0)
    assert found.points == [(BEGIN, 4.0), (BEGIN + 60, 0.0), (BEGIN + 300, 2.0)]
    (sooner,) = read_series(sql, "waiting", BEGIN, BEGIN + 300.0, 60.0)
    assert sooner.points == found.points[:2], "until is exclusive"
    assert read_series(sql, "unknown", BEGIN, BEGIN + 600.0, 60.0) == []


def test_where_only_longer_intervals_go_so_far_back_they_are_used() -> None:
    sql = record_in_memory()
    for hour in range(72):
        add_sample(sql, BEGIN + 3600 * hour, {GAUGE: 1.0})
        add_sample(sql, BEGIN + 3600 * hour + 60, {GAUGE: 3.0})
    now = BEGIN + 72 * 3600
    for old, values in old_samples(now, SERIES_KEEP_S):
        sql.execute(f"DELETE FROM samples WHERE {old}", values)
    (young,) = read_series(sql, "waiting", now - 86400.0, now, 60.0)
    (all_,) = read_series(sql, "waiting", BEGIN, now, 60.0)
    assert young.step_s == 60.0 and len(young.points) == 48
    assert (
        all_.step_s == 600.0
        and len(all_.points) == 72
        and {value for _, value in all_.points} == {2.0}
    )


async def test_pruning_keeps_each_step_as_long_as_its_retention(tmp_path: Path) -> None:
    file, day = tmp_path / "record.db", 86400.0
    async with store_at(file, threaded=False) as store:
        await record(store, starts(1))
        for age in (500 * day, 100 * day, 10 * day, day):
            await store.record_sample(
                BEGIN - age, {MetricKey.of("waiting", age=f"{age / day:g}"): 1.0}
            )
        while await store.prune(BEGIN):
            pass
    with sqlite3.connect(file) as sql:
        kept = sql.execute(
            "SELECT step_s, count(*) FROM samples WHERE series = 0 GROUP BY 1"
        ).fetchall()
    assert kept == [(60, 1), (600, 2), (3600, 3)]


async def test_the_policy_shortens_the_retention(tmp_path: Path) -> None:
    async with SqlStore(tmp_path / "s.db", "kit", 1e9, 3, threaded=False, series_s=7200.0) as store:
        await store.record_sample(BEGIN - 3 * 3600.0, {GAUGE: 1.0})
        await store.record_sample(BEGIN, {GAUGE: 1.0})
        await store.prune(BEGIN)
    with sqlite3.connect(tmp_path / "s.db") as sql:
        assert sql.execute("SELECT count(*) FROM samples").fetchone()[0] == 2 * len(STEPS_S)
