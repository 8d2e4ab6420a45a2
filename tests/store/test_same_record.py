"""Whatever is written in whatever order, a SQLite file and plain memory hold the same record."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioner.model import (
    Breaker,
    BreakerState,
    CompletedJob,
    Drone,
    DroneId,
    DroneState,
    Plan,
    RequestKind,
    Start,
    StateChange,
)
from provisioner.store import Hazard, Store
from provisioner.store.memory import MemoryStore
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.store.story import (
    CONTROLLER,
    KEEP_S,
    KNOWN,
    LEARNED,
    NOTHING_FITS,
    SEEN,
    SNAPSHOTS,
    WHY,
    drone,
    record,
    seen,
)

SERIALS = st.integers(1, 6)
STATES = st.sampled_from(DroneState)
REMOTE = st.sampled_from(["", "4711", "1", "2"])


@dataclass(frozen=True)
class Tick:
    """One turn of an arbitrary controller, sensible or not."""

    later_s: float
    starts: frozenset[int]
    moves: dict[int, tuple[DroneState, str, float]]
    settles: dict[int, tuple[DroneState, str, float]]
    breaker: BreakerState | None
    refuses: bool
    takes_up: bool
    asks: bool
    tells: bool
    done: list[tuple[int, float]]
    knows: bool
    learns: bool
    forgets: bool
    prunes: bool
    restarts: bool


MOVES = st.dictionaries(SERIALS, st.tuples(STATES, REMOTE, st.floats(0, 1e6)), max_size=4)
TICKS = st.lists(
    st.builds(
        Tick,
        later_s=st.sampled_from([0.0, 15.0, 400.0]),
        starts=st.frozensets(SERIALS, max_size=3),
        moves=MOVES,
        settles=MOVES,
        breaker=st.none() | st.sampled_from(BreakerState),
        refuses=st.booleans(),
        takes_up=st.booleans(),
        asks=st.booleans(),
        tells=st.booleans(),
        done=st.lists(st.tuples(st.integers(1, 4), st.sampled_from([90.0, 100.0, 420.0, 800.0])), max_size=3),
        knows=st.booleans(),
        learns=st.booleans(),
        forgets=st.booleans(),
        prunes=st.booleans(),
        restarts=st.booleans(),
    ),
    max_size=8,
)


@pytest.fixture(scope="module")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store, made once: every example starts from a copy."""
    path = tmp_path_factory.mktemp("blank") / "provisioner.db"

    async def make() -> None:
        async with SqlStore(path, CONTROLLER, KEEP_S, SNAPSHOTS, threaded=False, birth="mem0"):
            pass

    asyncio.run(make())
    return path


@given(ticks=TICKS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_sqlite_and_memory_hold_the_same_record(blank: Path, ticks: list[Tick]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "provisioner.db"
        shutil.copy(blank, path)
        memory = MemoryStore(CONTROLLER, KEEP_S, SNAPSHOTS, birth="mem0")

        def reopened() -> SqlStore:
            return SqlStore(path, CONTROLLER, KEEP_S, SNAPSHOTS, threaded=False)

        in_memory = asyncio.run(_run(lambda: memory, memory.reader(), ticks))
        in_file = asyncio.run(_run(reopened, Reader(path), ticks))
        assert in_file == in_memory
        assert _told(Reader(path)) == _told(memory.reader())


async def _run(opened: Callable[[], Store], reader: Reader, ticks: list[Tick]) -> list[object]:
    """Live through ``ticks``; everything that the controller could see on the way."""
    seen_on_the_way: list[object] = []
    now, number = 100.0, 0
    store = await opened().__aenter__()
    for tick in ticks:
        now, number = now + tick.later_s, number + 1
        await _one(store, reader, tick, number, now)
        if tick.restarts:
            await store.__aexit__(None, None, None)
            store = await opened().__aenter__()
        ids = [drone(serial).id for serial in range(1, 7)]
        seen_on_the_way.append((store.tick, store.next_serial, dict(store.drones), dict(store.breakers)))
        seen_on_the_way.append((await store.requests(), dict(await store.ended(ids))))
        seen_on_the_way.append((await store.experience(), await store.forgets()))
    await store.__aexit__(None, None, None)
    return seen_on_the_way


async def _one(store: Store, reader: Reader, tick: Tick, number: int, now: float) -> None:
    if tick.asks:
        reader.ask(RequestKind.DRAIN, [DroneId("kit-ab12-1")], reason="driver", by="mg", at=now)
    if tick.tells:
        await store.event(now, "told", {"tick": number})
    plan = Plan(
        number,
        now,
        moves=_moves(store, tick.moves, now),
        starts=tuple(Start(drone(serial, at=now), WHY) for serial in sorted(tick.starts)),
        refusals=(NOTHING_FITS,) if tick.refuses else (),
        breakers=(Breaker("topas", tick.breaker, now),) if tick.breaker else (),
        requests_done=tuple(each.id for each in await store.requests()) if tick.takes_up else (),
    )
    await store.record(plan, seen(store, plan, estimates=LEARNED) if tick.knows else seen(store, plan))
    changed = (Breaker("topas/a100", tick.breaker),) if tick.breaker else ()
    await store.settle(number, _moves(store, tick.settles, now), changed)
    await store.completed([CompletedJob(f"s#{n}.0", at, 50.0, now, 1000, n, 2048) for n, at in tick.done])
    if tick.forgets:
        reader.forget("site:topas", reason="new owner", by="mg", at=now)
    if tick.learns:
        asked = await store.forgets()
        await store.learn(replace(KNOWN, at=now), [each.id for each in asked[:1]])
    if tick.prunes:
        await store.prune(now)


def _moves(store: Store, wanted: dict[int, tuple[DroneState, str, float]], now: float) -> tuple[StateChange, ...]:
    moves = []
    for serial, (state, remote_id, heard_at) in sorted(wanted.items()):
        was = store.drones.get(drone(serial).id)
        if was is not None:
            moves.append(StateChange(_moved(was, state, now, remote_id, heard_at), was.state, SEEN))
    return tuple(moves)


def _moved(was: Drone, state: DroneState, now: float, remote_id: str, heard_at: float) -> Drone:
    since = was.since if was.state is state else now
    ended_at = now if state.ended else 0.0
    placed: dict[str, Any] = {"node": "w1.example.org", "site_slot": "slot1_2@w1"} if remote_id == "1" else {}
    told: dict[str, Any] = {"started_at": 50.0, "lost_gpu_s": heard_at, "lost_jobs": 1} if remote_id else {}
    return replace(
        was, state=state, since=since, remote_id=remote_id, heard_at=heard_at, ended_at=ended_at, **placed, **told
    )


def _told(reader: Reader) -> dict[str, object]:
    """All that an operator could read."""
    views = reader.views()
    return {
        "drones": reader.drones(ended=None),
        "live": reader.drones(),
        "history": [reader.history(drone(serial).id) for serial in range(1, 7)],
        "plans": reader.plans(limit=100),
        "acting": reader.plans(limit=2, acting=True, since=300.0),
        "events": reader.events(),
        "steps": reader.transitions(since=200.0),
        "views": views,
        "breakers": dict(reader.breakers()),
        "kept": [(tick, reader.snapshot(tick)) for tick in reader.kept_snapshots()],
        "next": reader.snapshot(),
        "hazards": [_rounded(reader.hazards(since, 1000.0)) for since in (0.0, 300.0)],
        "on w1": [reader.drones(ended=None, nodes=[node]) for node in ("w1", "w1.example.org", "w2")],
        "found": [reader.find(any_id) for any_id in ("1", "4711", "kit", "kit-ab12-2", "02", "slot1_2@w1")],
        "jobs done": [reader.completions(since, until) for since, until in ((0.0, 1e9), (100.0, 420.0))],
        "estimates": (reader.experience(), reader.forgets()),
        "done": [reader.request_done(number) for number in range(10)],
    }


def _rounded(hazards: list[Hazard]) -> list[Hazard]:
    """Sums of the same numbers in another order may differ in the last digit."""
    return [replace(each, run_s=round(each.run_s, 3), lost_gpu_s=round(each.lost_gpu_s, 3)) for each in hazards]


async def test_the_comparison_would_notice_a_difference(blank: Path, tmp_path: Path) -> None:
    memory = MemoryStore(CONTROLLER, KEEP_S, SNAPSHOTS, birth="mem0")
    async with memory:
        await record(memory, Plan(1, 100.0, starts=(Start(drone(1), WHY),)))
    assert _told(memory.reader()) != _told(Reader(blank))
