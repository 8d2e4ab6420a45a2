"""The document of what was learned: how large it gets, and what comes of one that cannot be read."""

from __future__ import annotations

import random
import sqlite3
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.controller.estimation import KEYS_KEPT, RUNS_KEPT, USE_KEPT
from provisioner.estimates import EstimateSamples, SiteSamples
from provisioner.store import EstimatesUnreadableError, StoreUnusableError
from provisioner.store.reader import Reader
from provisioner.store.tables import pack_estimates, unpack
from tests.store.story import KNOWN, drone, record, starts, store_at

MIB = 1 << 20


def test_as_large_as_it_can_get_it_stays_within_four_mebibytes() -> None:
    """All keys full of run times to the tenth of a second, ten owners who change what they hold every six minutes."""
    chance = random.Random(1)

    def run_s(mean: float) -> float:
        return round(min(14 * 86400.0, chance.lognormvariate(mean, 1.0)) + 0.1, 1)

    def site() -> SiteSamples:
        held, use = 0, []
        for _ in range(USE_KEPT):
            held = max(0, held + chance.randint(-8, 8)) if chance.random() < 0.3 else held
            use.append(1000 * held)
        return SiteSamples(tuple(use), 1e9, tuple(chance.expovariate(1 / 60) for _ in range(200)))

    means = [chance.uniform(4, 9) for _ in range(KEYS_KEPT)]
    runs = {
        f"etp/user{n % 500}/1000/{n // 500}/20480": tuple(run_s(m) for _ in range(RUNS_KEPT))
        for n, m in enumerate(means)
    }
    seen = frozenset((f"submit{n % 5}.example.org#{100_000 + n}.0", 1.7e9 + n / 2) for n in range(13_000))
    full = EstimateSamples(1e9, runs, {}, {f"site{n}": site() for n in range(10)}, seen)
    body = pack_estimates(full)
    assert len(body) < 4 * MIB and len(zlib.decompress(body)) < 8 * MIB
    assert len(pack_estimates(replace(full, runs={}, seen=frozenset()))) < 0.2 * MIB
    assert unpack(EstimateSamples, body) == full


DAMAGED = {
    "not compressed": b"{}",
    "cut off": pack_estimates(KNOWN)[:-20],
    "no JSON": zlib.compress(b"{"),
    "nothing in it": zlib.compress(b"{}"),
    "a run time that is none": zlib.compress(b'{"at":1,"runs":{"ann":["x"]}}'),
    "a delay of one part": zlib.compress(b'{"at":1,"delays":{"topas/a100":{"queue_s":1}}}'),
}


@pytest.mark.parametrize("body", DAMAGED.values(), ids=DAMAGED)
async def test_what_is_damaged_is_said_with_its_repair_and_the_next_writing_mends_it(file: Path, body: bytes) -> None:
    async with store_at(file) as store:
        await record(store, starts(1, drone(1)))
        await store.record_estimates(KNOWN)
    with closing(sqlite3.connect(file)) as sql, sql:
        sql.execute("UPDATE estimates SET body = ?", (body,))
    said = r"the estimates are damaged \(.+\): estimation starts again.*restore a backup"
    async with store_at(file) as store:
        for _ in range(2):
            with pytest.raises(EstimatesUnreadableError, match=said):
                await store.estimate_samples()
        with pytest.raises(EstimatesUnreadableError, match=said):
            Reader(file).estimate_samples()
        assert set(store.drones) == {drone(1).id} and Reader(file).drones(), "nothing else is the worse for it"
        await store.record_estimates(KNOWN)
        assert await store.estimate_samples() == KNOWN


@pytest.mark.parametrize(
    ("samples", "where"),
    [
        (replace(KNOWN, seen=frozenset({("\udcff", 1.0)})), ""),
        (replace(KNOWN, runs={"ann": (1.0, float("nan"))}), r"runs\.ann\.1: "),
        (replace(KNOWN, sites={"topas": SiteSamples(run_s=float("inf"))}), r"sites\.topas\.run_s: "),
    ],
    ids=["text that is none", "not a number", "without end"],
)
async def test_what_could_not_be_read_is_not_written_and_leaves_what_was_there(
    file: Path, samples: EstimateSamples, where: str
) -> None:
    async with store_at(file) as store:
        await store.record_estimates(KNOWN)
        with pytest.raises(StoreUnusableError, match=f"a value cannot be recorded .*{where}"):
            await store.record_estimates(samples)
        assert await store.estimate_samples() == KNOWN
