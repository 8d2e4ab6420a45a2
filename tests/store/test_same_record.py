"""Whatever is written in whatever order, the file holds what the controller knows, and restarts change nothing."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from provisioner import model as m
from provisioner.store import Hazard, Store
from provisioner.store.database import Place
from provisioner.store.reader import DroneLifetime, Reader, hazards_of
from provisioner.store.writer import SqlStore
from tests.labs.postgresql import PostgresServer
from tests.store.story import (
    CONTROLLER,
    KEEP_S,
    KNOWN,
    LEARNED,
    NOTHING_FITS,
    SNAPSHOTS,
    WHY,
    drone,
    now_is,
    seen,
)

SERIALS = st.integers(1, 6)
STATES = st.sampled_from(m.DroneState)
REMOTE = st.sampled_from(["", "4711", "1", "2"])


@dataclass(frozen=True)
class Tick:
    """One turn of an arbitrary controller, sensible or not."""

    later_s: float
    starts: frozenset[int]
    moves: dict[int, tuple[m.DroneState, str, float]]
    settles: dict[int, tuple[m.DroneState, str, float]]
    breaker: m.BreakerState | None
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
        breaker=st.none() | st.sampled_from(m.BreakerState),
        done=st.lists(
            st.tuples(st.integers(1, 4), st.sampled_from([90.0, 100.0, 420.0, 800.0])), max_size=3
        ),
    ),
    max_size=8,
)


async def _opened(path: Place) -> SqlStore:
    store = await SqlStore(
        path, CONTROLLER, KEEP_S, SNAPSHOTS, threaded=False, birth="mem0"
    ).__aenter__()
    assert store._sql is not None
    if isinstance(path, Path):
        store._sql.execute("PRAGMA synchronous = OFF")
    return store


@given(ticks=TICKS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_file_holds_what_the_controller_knows_and_restarts_change_nothing(
    ticks: list[Tick],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        through, restarted = Path(directory) / "through.db", Path(directory) / "restarted.db"
        _compare_runs(through, restarted, ticks)


@given(ticks=TICKS)
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_a_server_holds_what_the_controller_knows_and_restarts_change_nothing(
    postgres: PostgresServer, ticks: list[Tick]
) -> None:
    _compare_runs(postgres.new_place(), postgres.new_place(), ticks)


def _compare_runs(through: Place, restarted: Place, ticks: list[Tick]) -> None:
    for path in (through, restarted):
        asyncio.run(_run(path, ticks, restarts=path is restarted))
    assert _shown(Reader(restarted)) == _shown(Reader(through))


async def _run(path: Place, ticks: list[Tick], *, restarts: bool) -> None:
    """Run through ``ticks``, and compare what the controller sees with a store in memory."""
    now, memory, reader = 100.0, Store(), Reader(path)
    store = await _opened(path)
    for number, tick in enumerate(ticks, 1):
        now += tick.later_s
        await _one(store, memory, reader, tick, number, now)
        if restarts and tick.restarts:
            await store.__aexit__(None, None, None)
            store = await _opened(path)
        assert store.committed == memory.committed
        assert await store.requests() == await memory.requests()
        assert await store.estimate_samples() == await memory.estimate_samples()
        ids = [drone(serial).id for serial in range(1, 7)]
        ended, of_memory = await store.ended(ids), await memory.ended(ids)
        assert ended.items() <= of_memory.items(), "and some are pruned"
    if ticks:
        _compare(store, reader)
    await store.__aexit__(None, None, None)


def _compare(store: SqlStore, reader: Reader) -> None:
    """Compare what operators see with what the controller knows, and queries with a search of all drones."""
    everything = reader.drones(ended=None)
    assert {each.id: each for each in reader.drones()} == store.drones
    assert [each for each in everything if not each.state.ended] == reader.drones()
    assert reader.breakers() == store.breakers
    following = reader.snapshot()
    assert following is not None and (following.tick, following.drones) == (
        store.tick + 1,
        store.drones,
    )
    for each in everything:
        assert reader.drone(each.id) == each and reader.history(each.id)[-1].state is each.state
        assert each.id in reader.find(each.id)
    for node in ("w1", "w1.example.org", "w2"):
        there = [each for each in everything if node in (each.node, each.node.partition(".")[0])]
        assert reader.drones(ended=None, nodes=[node]) == there
    for since in (0.0, 300.0):
        counted = [
            _life(each, since, 1000.0)
            for each in everything
            if not each.ended_at or each.ended_at >= since
        ]
        known = [each for each in counted if each.began or each.state == m.DroneState.PREEMPTED]
        assert _rounded(reader.hazards(since, 1000.0)) == _rounded(hazards_of(known))


def _life(of: m.Drone, since: float, until: float) -> DroneLifetime:
    began, lost = of.started_at or of.joined_at, (of.lost_gpu_s, of.lost_jobs)
    run_s = max(0.0, min(of.ended_at or until, until) - max(began, since)) if began else 0.0
    return DroneLifetime(
        of.type, of.state, began, of.ended_at, of.notice_at, of.gpu_milli, *lost, 1, run_s
    )


async def _one(
    store: SqlStore, memory: Store, reader: Reader, tick: Tick, number: int, now: float
) -> None:
    if tick.asks:
        ids = (m.DroneId("kit-ab12-1"),)
        asked = reader.ask(m.RequestKind.DRAIN, ids, reason="driver", by="mg", at=now)
        memory.waiting.append(
            m.OperatorRequest(asked, now, m.RequestKind.DRAIN, ids, "driver", "mg")
        )
    plan = m.Plan(
        number,
        now,
        moves=_moves(store, tick.moves, now),
        starts=tuple(m.Start(drone(serial, at=now), WHY) for serial in sorted(tick.starts)),
        refusals=(NOTHING_FITS,) if tick.refuses else (),
        breakers=(m.Breaker(m.Scope("topas"), tick.breaker, now),) if tick.breaker else (),
        requests_done=tuple(each.id for each in await store.requests()) if tick.takes_up else (),
    )
    for each in (store, memory):
        snapshot = seen(each, plan, estimates=LEARNED) if tick.knows else seen(each, plan)
        await each.record(plan, snapshot)
    moves = _moves(store, tick.settles, now)
    if tick.forgets:
        reader.ask_estimate_reset("site:topas", reason="new owner", by="mg", at=now)
    asked_to_forget = [each.id for each in await store.estimate_resets()][:1]
    for each in (store, memory):
        if tick.tells:
            await each.event(now, "told", {"tick": number})
        await each.record_results(
            number,
            moves,
            (m.Breaker(m.Scope("topas", "a100"), tick.breaker),) if tick.breaker else (),
        )
        await each.record_completed(
            [m.CompletedJob(f"s#{n}.0", at, 50.0, now, 1000, n, 2048) for n, at in tick.done]
        )
        if tick.learns:
            await each.record_estimates(replace(KNOWN, at=now), asked_to_forget)
        if tick.prunes:
            await each.prune(now)


def _moves(
    store: Store, wanted: dict[int, tuple[m.DroneState, str, float]], now: float
) -> tuple[m.StateChange, ...]:
    moves = []
    for serial, (state, remote_id, heard_at) in sorted(wanted.items()):
        if was := store.drones.get(drone(serial).id):
            known: dict[str, Any] = {"heard_at": heard_at, "ended_at": now if state.ended else 0.0}
            if remote_id == "1":
                known |= {"node": "w1.example.org", "site_slot": "slot1_2@w1"}
            if remote_id:
                known |= {"started_at": 50.0, "lost_gpu_s": heard_at, "lost_jobs": 1}
            moves.append(now_is(was, state, at=now, remote_id=remote_id, **known))
    return tuple(moves)


def _shown(reader: Reader) -> dict[str, object]:
    """All that an operator could read."""
    return {
        "drones": reader.drones(ended=None),
        "live": reader.drones(),
        "history": [reader.history(drone(serial).id) for serial in range(1, 7)],
        # a restarted controller records a plan that does nothing once more
        "plans": reader.plans(limit=100, acting=True),
        "acting": reader.plans(limit=2, acting=True, since=300.0),
        "events": reader.events(),
        "steps": reader.transitions(since=200.0),
        "views": reader.views(),
        "breakers": dict(reader.breakers()),
        "kept": [(tick, reader.snapshot(tick)) for tick in reader.kept_snapshots()],
        "next": reader.snapshot(),
        "found": [
            reader.find(any_id) for any_id in ("1", "4711", "kit", "kit-ab12-2", "02", "slot1_2@w1")
        ],
        "jobs done": [
            reader.completions(since, until) for since, until in ((0.0, 1e9), (100.0, 420.0))
        ],
        "estimates": (reader.estimate_samples(), reader.estimate_resets()),
    }


def _rounded(hazards: list[Hazard]) -> list[Hazard]:
    """Sums of the same numbers in another order may differ in the last digit."""
    return [
        replace(each, run_s=round(each.run_s, 3), lost_gpu_s=round(each.lost_gpu_s, 3))
        for each in hazards
    ]
