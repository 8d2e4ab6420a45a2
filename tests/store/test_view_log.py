"""Views and snapshots on record are what was recorded, whatever has changed from tick to tick."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from provisioner import model as m
from provisioner.estimates import Estimates, OwnerGrowth
from provisioner.store import StoreError, file as store_file, tables, view_log
from provisioner.store.file import MIGRATIONS
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.store.story import CONTROLLER, TemporaryStore, drone, record, seen, starts, store_at

TYPES = [m.TypeKey(f"topas/{name}") for name in "abc"]
REFUSALS = [{key: m.UnmetRequirement("vram", "9", "1") for key in TYPES[:n]} for n in range(4)]
NUMBERS = st.lists(st.integers(1, 12), unique=True, max_size=12)
"""In any order: a pool lists its slots as it likes."""


@dataclass(frozen=True)
class Poll:
    """The world as one tick sees it."""

    slots: list[int]
    listed: list[int]
    recorded: list[int]
    classes: dict[int, int]
    """Refusals by class."""
    heard_at: float
    waiting: int
    blind: bool
    without_site: bool
    completions: int
    learned: dict[str, int]
    """Run times by user, and growth of the owner, in any order."""
    acts: bool
    fails: bool
    restarts: bool

    def snapshot(self, store: SqlStore, plan: m.Plan) -> m.Snapshot:
        heard = {n: self.heard_at if n % 3 == 0 else 5.0 for n in self.slots}
        slots = tuple(
            m.Slot(drone(n).id, m.SlotState.BUSY, at, begun_at=at - 2.0 if n % 2 else 3.0)
            for n, at in heard.items()
        )
        classes = tuple(
            m.JobClass(f"c{n}", 1000, n, 2048, waiting=self.waiting * n, refuses=dict(REFUSALS[of]))
            if n % 2
            else m.JobClass(f"c{n}", 1000, n, 2048, waiting=n, refuses=REFUSALS[of])
            for n, of in self.classes.items()
        )
        done = m.CompletedJob("1.0", 90.0, 40.0, 31.5, 1000, 1, 2048)
        completions = (done,) * self.completions if self.completions else None
        view = m.OverlayView(plan.at - 2, classes, slots, completions=completions)
        listed = {
            drone(n).id: m.RemoteDrone(drone(n).id, m.RemoteState.RUNNING, str(n), "a100")
            for n in self.listed
        }
        sites = {"topas": m.PolledSite("topas", m.SiteView("topas", plan.at - 1, listed))}
        if self.without_site:
            sites = {"horeka": m.PolledSite("horeka")}
        runs = {user: (60.0 * n, 90.0 * n) for user, n in self.learned.items()}
        rises = {user: OwnerGrowth(((0, n),)) for user, n in self.learned.items() if n > 1}
        return replace(
            seen(store, plan),
            estimates=Estimates(runs, rises=rises),
            overlay=m.PolledOverlay(None if self.blind else view),
            sites=sites,
            drones={drone(n).id: drone(n, jobs=self.waiting % 2) for n in self.recorded},
        )


POLLS = st.lists(
    st.builds(
        Poll,
        slots=NUMBERS,
        listed=NUMBERS,
        recorded=NUMBERS,
        classes=st.dictionaries(st.integers(1, 8), st.integers(0, 3), max_size=8),
        heard_at=st.sampled_from([5.0, 20.0, 35.0]),
        waiting=st.integers(0, 3),
        blind=st.sampled_from([False, False, False, True]),
        without_site=st.sampled_from([False, False, False, True]),
        completions=st.integers(0, 2),
        learned=st.dictionaries(st.sampled_from("abc"), st.integers(1, 3)),
        acts=st.booleans(),
        fails=st.sampled_from([False, False, False, True]),
        restarts=st.sampled_from([False, False, False, True]),
    ),
    min_size=1,
    max_size=12,
)


def in_order(snapshot: m.Snapshot) -> tuple[object, ...]:
    """Return a snapshot with the order of its mappings."""
    listed = [(name, [*site.view.drones]) for name, site in snapshot.sites.items() if site.view]
    return snapshot, [*snapshot.drones], listed


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(polls=POLLS, batch=st.integers(1, 5), whole=st.integers(1, 20))
async def test_each_kept_snapshot_is_what_was_recorded(
    monkeypatch: pytest.MonkeyPatch, polls: list[Poll], batch: int, whole: int
) -> None:
    """Between restarts and failed writes, with rows and wholes of any size."""
    monkeypatch.setattr(view_log, "BATCH_ENTRIES", batch)
    monkeypatch.setattr(view_log, "WHOLE_ENTRIES", whole)
    store, kept = TemporaryStore(snapshots=3), list[m.Snapshot]()
    reader = store.reader()
    for tick, poll in enumerate(polls, 1):
        plan = starts(tick, drone(100 + tick), at=100.0 + tick)
        plan = plan if poll.acts else m.Plan(tick, 100.0 + tick)
        snapshot = poll.snapshot(store, plan)
        if poll.fails:
            store._opened.execute(
                "CREATE TEMP TRIGGER no_room BEFORE INSERT ON main.meta"
                " WHEN new.key = 'next_serial' BEGIN SELECT raise(ABORT, 'no room'); END"
            )
            with pytest.raises(StoreError):
                await store.record(plan, snapshot)
            store._opened.execute("DROP TRIGGER no_room")
        if poll.restarts:
            store._close()
            store._database.release()
            store._open()
        await store.record(plan, snapshot)
        kept = [*kept, snapshot][-3:] if poll.acts else kept
        views, slots = reader.snapshot(), reader.slots()
        assert views is not None
        assert (views.overlay, views.sites) == (snapshot.overlay, snapshot.sites)
        assert views.estimates == snapshot.estimates
        assert slots == (snapshot.overlay.view.slots if snapshot.overlay.view else ())
        with reader._open() as sql:
            begun = {each.drone_id: each.begun_at for each in view_log.slot_work(sql)}
        assert begun == {slot.drone_id: slot.begun_at for slot in slots}
    assert reader.kept_snapshots() == [each.tick for each in kept]
    for each in kept:
        found = reader.snapshot(each.tick)
        assert found is not None and in_order(found) == in_order(each)


async def test_what_does_not_change_is_not_written_again(file: Path) -> None:
    slots = tuple(m.Slot(drone(n).id, m.SlotState.BUSY, 5.0) for n in range(1000))
    refuses = REFUSALS[3]
    async with store_at(file) as store:
        for tick in range(1, 30):
            waiting = [m.JobClass(f"c{n}", 1000, 1, 1, tick, refuses=refuses) for n in range(50)]
            heard = replace(slots[tick], heard_at=100.0)
            now = (*slots[:tick], heard, *slots[tick + 1 :])
            plan = starts(tick, drone(tick), at=100.0 + tick)
            view = m.OverlayView(98.0 + tick, tuple(waiting), now)
            runs = {f"user{n}": (60.0,) for n in range(500)} | {"ann": (60.0 + tick,)}
            overlay, learned = m.PolledOverlay(view), Estimates(runs)
            await store.record(plan, seen(store, plan, overlay=overlay, estimates=learned))
    with sqlite3.connect(file) as sql:
        rows = dict(sql.execute("SELECT name, count(*) FROM view_log GROUP BY name"))
        cycles = dict(sql.execute("SELECT name, count(DISTINCT cycle) FROM view_log GROUP BY name"))
    assert rows["slots"] == 2 + 28, "a thousand of them once, then those with news"
    assert rows["types"] == rows["policy"] == rows["refusals"] == rows["refusing"] == 1
    assert cycles["runs"] == 1 and rows["runs"] > 2, "of one user alone in each tick"
    assert cycles["classes"] == 2, "those of kept snapshots; all of them change in each tick"


async def test_snapshots_of_an_older_schema_are_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have all parts in their bodies."""
    with monkeypatch.context() as older:
        older.setattr(store_file, "MIGRATIONS", MIGRATIONS[:8])
        store_file.open_store(file, CONTROLLER, "ab12").close()
    before = seen(TemporaryStore(), starts(3, drone(1)))
    with sqlite3.connect(file) as sql:
        sql.execute("INSERT INTO snapshots VALUES (3, ?)", (tables.pack(before),))
    async with store_at(file) as store:
        after = await record(store, starts(4, drone(2)))
    assert Reader(file).kept_snapshots() == [3, 4]
    assert (Reader(file).snapshot(3), Reader(file).snapshot(4)) == (before, after)
