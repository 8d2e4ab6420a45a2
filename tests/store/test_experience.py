"""The document of what was learned: how large it gets, and what comes of one that cannot be read."""

from __future__ import annotations

import random
import sqlite3
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.controller.estimation import KEYS_KEPT, RUNS_KEPT, USE_KEPT
from provisioner.estimates import EstimateSamples, SiteSamples, StartDelays
from provisioner.store import EstimatesUnreadableError, StoreUnusableError
from provisioner.store.documents import ESTIMATES_FORMAT, pack_estimates, unpack_estimates
from provisioner.store.reader import Reader
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
    assert len(pack_estimates(replace(full, runs={}, seen=frozenset()))) < 0.2 * MIB, "run lengths"
    assert unpack_estimates(Path("provisioner.db"), ESTIMATES_FORMAT, body) == full


def json_of(text: str) -> tuple[int, bytes]:
    return ESTIMATES_FORMAT, zlib.compress(text.encode())


SITE = '{"use":%s,"used_at":1,"gaps_s":[],"taken":0,"run_s":0}'

DAMAGED = {
    "not compressed": (ESTIMATES_FORMAT, b"{}"),
    "cut off": (ESTIMATES_FORMAT, pack_estimates(KNOWN)[:-20]),
    "no JSON": json_of("{"),
    "nothing in it": json_of("{}"),
    "a list": json_of("[]"),
    "a run time that is none": json_of('{"at":1,"runs":{"ann":["x"]}}'),
    "a negative one": json_of('{"at":1,"runs":{"ann":[-5]}}'),
    "one that is not a number": json_of('{"at":1,"runs":{"ann":[NaN]}}'),
    "one without end": json_of('{"at":1,"runs":{"ann":[Infinity]}}'),
    "a delay of one part": json_of('{"at":1,"delays":{"topas/a100":[1]}}'),
    "a use that is none": json_of('{"at":1,"sites":{"topas":%s}}' % (SITE % "[[-2,1]]")),
    "a run length beyond reason": json_of('{"at":1,"sites":{"topas":%s}}' % (SITE % "[[0,1000000000000]]")),
}


async def _put(file: Path, form: int, body: bytes) -> None:
    async with store_at(file) as store:
        await record(store, starts(1, drone(1)))
        await store.record_estimates(KNOWN)
    with sqlite3.connect(file) as sql:
        sql.execute("UPDATE estimates SET format = ?, body = ?", (form, body))
    sql.close()


@pytest.mark.parametrize("case", DAMAGED.values(), ids=DAMAGED)
async def test_what_is_damaged_is_said_with_its_repair_and_the_next_writing_mends_it(
    file: Path, case: tuple[int, bytes]
) -> None:
    await _put(file, *case)
    said = r"the estimates are damaged \(.+\): estimation starts again.*restore a backup"
    async with store_at(file) as store:
        for ask in (store.estimate_samples, store.estimate_samples):
            with pytest.raises(EstimatesUnreadableError, match=said):
                await ask()
        with pytest.raises(EstimatesUnreadableError, match=said):
            Reader(file).estimate_samples()
        assert set(store.drones) == {drone(1).id} and Reader(file).drones(), "nothing else is the worse for it"
        await store.record_estimates(KNOWN)
        assert await store.estimate_samples() == KNOWN


@pytest.mark.parametrize(("form", "other"), [(ESTIMATES_FORMAT + 1, "a newer"), (ESTIMATES_FORMAT - 1, "an older")])
async def test_a_document_of_another_program_is_told_apart_from_damage(file: Path, form: int, other: str) -> None:
    await _put(file, form, b"who knows")
    said = f"written by {other} provisioner .format {form}, this one reads {ESTIMATES_FORMAT}"
    async with store_at(file) as store:
        with pytest.raises(EstimatesUnreadableError, match=said):
            await store.estimate_samples()


UNFIT = {
    "text that is none": (replace(KNOWN, seen=frozenset({("\udcff", 1.0)})), ""),
    "a negative delay": (replace(KNOWN, delays={"topas/a100": StartDelays(-0.4, 61.0)}), r"delays\.topas/a100\.0: "),
    "a negative gap": (replace(KNOWN, sites={"topas": SiteSamples(gaps_s=(-1.0,))}), r"sites\.topas\.gaps_s\.0: "),
    "not a number": (replace(KNOWN, runs={"ann": (1.0, float("nan"))}), r"runs\.ann\.1: "),
    "without end": (replace(KNOWN, sites={"topas": SiteSamples(run_s=float("inf"))}), r"sites\.topas\.run_s: "),
}


@pytest.mark.parametrize(("experience", "where"), UNFIT.values(), ids=UNFIT)
async def test_what_could_not_be_read_is_not_written_and_leaves_what_was_there(
    file: Path, experience: EstimateSamples, where: str
) -> None:
    async with store_at(file) as store:
        await store.record_estimates(KNOWN)
        with pytest.raises(StoreUnusableError, match=f"a value cannot be recorded .*{where}"):
            await store.record_estimates(experience)
        assert await store.estimate_samples() == KNOWN
