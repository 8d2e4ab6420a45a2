"""A record that an older program wrote is brought up when a controller opens it, and nothing in it is lost."""

from __future__ import annotations

import sqlite3
import zlib
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

import provisioner.store.migrations as migrations
from provisioner.estimates import Estimates
from provisioner.model import DroneId, DroneState, Plan, RequestKind
from provisioner.reasons import JobsWaiting, PreemptedForOwner
from provisioner.store import StoreBroken
from provisioner.store.opening import engine
from provisioner.store.sql import SqlReader, SqlStore
from tests.store.story import CONTROLLER, DONE, KEEP_S, KNOWN, SNAPSHOTS, now_is, record

WHY = '{"class_id":"class-1","waiting":7,"covered":2,"starts":1,"kind":"jobs-waiting"}'
POLICY = (
    '{"idle_timeout_s":600.0,"max_drones":1000,"max_gpu_milli":null,"overlay_max_age_s":120.0,"slot_max_age_s":900.0,'
    '"early_exit_window_s":60.0,"max_unhealthy_fraction":0.2,"min_unhealthy":5,"sites":{"topas":{"site":"topas","enabled":true,"max_drones":10,'
    '"max_gpu_milli":null,"max_pending":20,"max_starts_per_tick":10,"price":1.0,"queue_when_full":false,'
    '"view_max_age_s":120.0,"poll_deadline_s":20.0,"order_deadline_s":60.0,"order_confirm_s":120.0,"missing_s":30.0,'
    '"queued_s":86400.0,"booting_s":600.0,"joining_s":300.0,"slot_loss_s":300.0,'
    '"draining_s":86400.0,"stopping_s":60.0,"grace_s":30.0}}}'
)
VIEWS = {
    ("policy", "", 0.0): POLICY,
    ("types", "", 0.0): '[{"site":"topas","name":"a100","gpu_milli":1000,"cpus":8,"memory_mib":20480,"disk_mib":51200,'
    '"vram_mib":40960,"gpu_model":"","capability":80,"driver":0,"arch":"X86_64","walltime_s":0.0,'
    '"sharing":"exclusive","price":1.0,"max_drones":null,"ad":{"HasCVMFS":"true"}}]',
    ("overlay", "", 98.0): '{"view":{"taken_at":0.0,"classes":[],"slots":[],"negotiated_at":80.0,"notices":[]},'
    '"fault":null}',
    ("slots", "", 0.0): '[{"drone_id":"kit-ab12-1","state":"busy","heard_at":97.0,"free_gpu_milli":0,"free_cpus":0,'
    '"free_memory_mib":0,"free_disk_mib":0,"jobs":1,"jobs_started":0,"idle_since":0.0,"retires_at":0.0,'
    '"name":"slot1@w1","gpu_model":"","vram_mib":0,"capability":0}]',
    ("site", "topas", 99.0): '{"site":"topas","view":{"site":"topas","taken_at":0.0,"drones":{},"free":{"a100":3},'
    '"claims":[{"count":1,"gpu_milli":6000,"cpus":6,"memory_mib":100,"since":40.0,"node":""}],"downtime_at":0.0,'
    '"notices":[]},"fault":null,"busy":false}',
    ("remote", "topas", 0.0): '{"kit-ab12-1":{"drone_id":"kit-ab12-1","state":"running","remote_id":"4711",'
    '"type":"a100","started_at":50.0,"reason":"","expected_start_at":0.0,"end":null}}',
}
PLAN = (
    '{"tick":1,"at":100.0,"moves":[],"starts":[],"drains":[],"stops":[{"drone":{"id":"kit-ab12-2","type":"topas/a100",'
    '"state":"stopping","since":100.0,"requested_at":90.0,"gpu_milli":1000},"was":"busy","reason":{"waiting":3,'
    '"waited_s":95.0,"kind":"preempted-for-owner"},"kill":false}],"orphans":[],"refusals":[],"breakers":[],"requests_done":[]}'
)


@pytest.fixture
def old(file: Path) -> Path:
    """A store as the first schema's program left it: two drones, one of them ended, and all that belongs to them."""
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.set_main_option("path_separator", "os")
    with engine(file).connect() as connection:
        config.attributes["connection"] = connection
        with connection.begin():
            command.upgrade(config, "0001")
    with sqlite3.connect(file) as sql:
        known = {"controller": CONTROLLER, "birth": "ab12", "tick": "1", "at": "100.0", "next_serial": "3"}
        sql.executemany("INSERT INTO meta VALUES (?, ?)", known.items())
        columns = [row[1] for row in sql.execute("PRAGMA table_info(drones)")]
        assert len(columns) == 27, "this is the first schema"
        for row in (
            (1, True, "busy", 50.0, 0.0, "4711", "slot1@w1"),
            (2, False, "preempted", 50.0, 120.0, "4712", "slot1@w2"),
        ):
            serial, live, state, started_at, ended_at, remote_id, slot = row
            sql.execute(
                "INSERT INTO drones VALUES (?, ?, ?, 'topas', 'topas/a100', ?, 100.0, 40.0, 1000, 'class-1', ?, 41.0,"
                " ?, 55.0, 56.0, 0.0, 1, 4, 0.0, 0.0, NULL, 0.0, 0, 0.0, ?, ?, 'Resources')",
                (f"kit-ab12-{serial}", serial, live, state, remote_id, started_at, ended_at, slot),
            )
            sql.execute("INSERT INTO heard VALUES (?, 97.0)", (f"kit-ab12-{serial}",))
            step = (f"kit-ab12-{serial}", WHY)
            sql.execute("INSERT INTO transitions VALUES (NULL, ?, 40.0, NULL, 'requested', ?, 1)", step)
        sql.execute("INSERT INTO plans VALUES (NULL, 1, 100.0, 1, 100.0, 1, ?)", (zlib.compress(PLAN.encode()),))
        for (kind, name, taken_at), body in VIEWS.items():
            row = (kind, name, taken_at, zlib.compress(body.encode()))
            sql.execute("INSERT INTO views VALUES (?, ?, ?, ?)", row)
        sql.execute("INSERT INTO breakers VALUES ('topas', ?)", ('{"scope":"topas","failures":2}',))
        killed = ('["kit-ab12-1"]',)
        sql.execute("INSERT INTO requests VALUES (NULL, 99.0, 'kill', 'peaceful', ?, 'fan', 'mg', NULL)", killed)
        sql.execute("INSERT INTO events VALUES (NULL, 60.0, 'reloaded', '{}')")
    return file


def _bytes(file: Path) -> bytes:
    return file.read_bytes()


async def _opened(file: Path) -> None:
    async with SqlStore(file, CONTROLLER, KEEP_S, SNAPSHOTS):
        pass


async def test_a_reader_leaves_the_old_record_alone_and_says_who_brings_it_up(old: Path) -> None:
    before = _bytes(old)
    with pytest.raises(StoreBroken, match="older schema 0001: `provisioner run` brings it up to 0010"):
        SqlReader(old).drones()
    assert _bytes(old) == before


async def test_a_controller_takes_over_all_that_is_on_the_old_record(old: Path) -> None:
    async with SqlStore(old, CONTROLLER, KEEP_S, SNAPSHOTS) as store:
        assert (store.birth, store.tick, store.next_serial) == ("ab12", 1, 3)
        (one,) = store.drones.values()
        assert (one.id, one.state, one.remote_id, one.heard_at, one.jobs_started) == (
            "kit-ab12-1",
            DroneState.BUSY,
            "4711",
            97.0,
            4,
        )
        assert (one.slot, one.site_reason) == ("slot1@w1", "Resources")
        not_told = (one.node, one.site_slot, one.notice_at, one.work_gpu_milli, one.work_at, one.lost_gpu_s)
        assert (*not_told, one.lost_jobs) == ("", "", 0.0, 0, 0.0, 0.0, 0)
        assert [(r.kind, r.reason) for r in await store.requests()] == [(RequestKind.KILL, "fan")]
        assert store.breakers["topas"].failures == 2
        assert await store.ended([DroneId("kit-ab12-2")]) == {"kit-ab12-2": DroneState.PREEMPTED}


async def test_what_was_said_and_seen_before_is_still_told(old: Path) -> None:
    await _opened(old)
    reader = SqlReader(old)
    assert [d.id for d in reader.drones(ended=None)] == ["kit-ab12-1", "kit-ab12-2"]
    assert reader.history(DroneId("kit-ab12-2"))[0].reason == JobsWaiting("class-1", 7, 2, 1)
    assert [s.reason for plan in reader.plans() for s in plan.stops] == [PreemptedForOwner(3, 95.0)]
    assert [event.name for event in reader.events()] == ["config.reloaded"]
    views = reader.views()
    assert views is not None and views.overlay.view is not None
    assert views.policy.sites["topas"].blocking == () and views.types[0].kept_cpus == 0
    assert views.overlay.view.completions is None and reader.completions(0.0, 1e9) == []
    view = views.sites["topas"].view
    assert view is not None and view.free == {"a100": 3} and view.nodes == () and view.owner_runs is None
    assert (view.claims[0].gpu_milli, view.claims[0].nodes) == (6000, ())
    snapshot = reader.snapshot()
    assert snapshot is not None and snapshot.gpu_wanted_at == 100.0, "not known: as if a GPU job had waited just then"
    assert [(h.scope, h.preempted, h.run_s) for h in reader.hazards(0.0, 150.0)] == [
        ("topas", 1, 170.0),
        ("topas/a100", 1, 170.0),
    ]


async def test_the_new_columns_are_written_to_old_rows_too(old: Path) -> None:
    async with SqlStore(old, CONTROLLER, KEEP_S, SNAPSHOTS) as store:
        (one,) = store.drones.values()
        told = now_is(
            one,
            DroneState.BUSY,
            at=130.0,
            node="topas-a100-1",
            site_slot="slot1_2@topas-a100-1",
            notice_at=129.0,
            work_gpu_milli=1000,
            work_at=110.5,
        )
        await record(store, Plan(2, 130.0, moves=(told,)))
    assert SqlReader(old).drone(one.id) == told.drone
    async with SqlStore(old, CONTROLLER, KEEP_S, SNAPSHOTS) as store:
        assert store.drones[one.id] == told.drone


async def test_jobs_that_are_done_are_kept_from_then_on(old: Path) -> None:
    async with SqlStore(old, CONTROLLER, KEEP_S, SNAPSHOTS) as store:
        await store.completed([DONE])
    assert SqlReader(old).completions(0.0, 1e9) == [DONE]


async def test_an_old_record_has_nothing_learned_in_it_and_takes_it_from_then_on(old: Path) -> None:
    async with SqlStore(old, CONTROLLER, KEEP_S, SNAPSHOTS) as store:
        assert await store.experience() is None and await store.forgets() == ()
        views, snapshot = SqlReader(old).views(), SqlReader(old).snapshot()
        assert views is not None and snapshot is not None
        assert views.estimates == snapshot.estimates == Estimates()
        await store.learn(KNOWN)
    assert SqlReader(old).experience() == KNOWN


async def test_an_upgrade_that_is_cut_short_leaves_the_old_record_as_it_was(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle, it must be whole: old or new, and the next controller goes on from there."""
    from alembic.operations import Operations

    def no_more(*_: object, **__: object) -> None:
        raise OSError("pulled the plug")

    with monkeypatch.context() as broken:
        broken.setattr(Operations, "create_index", no_more)
        with pytest.raises(Exception, match="pulled the plug"):
            await _opened(old)
    with sqlite3.connect(old) as sql:
        assert sql.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
        assert len(list(sql.execute("PRAGMA table_info(drones)"))) == 27
    await _opened(old)
    assert len(SqlReader(old).drones(ended=None)) == 2
