"""Counters and series of what is no longer configured go with the last drone of it on record."""

from __future__ import annotations

from provisioner.store.database import Place
from provisioner.store.measures import MetricKey
from provisioner.store.reader import Reader
from tests.store.story import A100, drone, record, rows, starts, store_at

KNOWN = MetricKey.of_type("provisioner_drones_ended_total", A100.key, outcome="done")
GONE = MetricKey.of_type("provisioner_drones_ended_total", "topas/k80", outcome="done")
GONE_SITE = MetricKey.of("provisioner_faults_total", scope="closed", kind="denied")
POOL = MetricKey.of("provisioner_faults_total", scope="overlay", kind="denied")


async def test_what_is_not_configured_is_forgotten_and_the_rest_kept(place: Place) -> None:
    async with store_at(place, threaded=False) as store:
        store.count(dict.fromkeys((KNOWN, GONE, GONE_SITE, POOL), 1.0))
        await record(store, starts(1, drone(1)))
        await store.record_sample(100.0, {GONE: 1.0, KNOWN: 1.0})
        await store.record_sample(1e9 - 100, {KNOWN: 1.0})
        for _ in range(20):
            if not await store.prune(1e9):
                break
        counters = Reader(place).counters()
        assert KNOWN in counters and POOL in counters
        assert GONE not in counters and GONE_SITE not in counters
        with rows(place) as sql:
            labels = [text for (text,) in sql.execute("SELECT labels FROM series")]
        assert not any("k80" in text for text in labels) and any("a100" in text for text in labels)
