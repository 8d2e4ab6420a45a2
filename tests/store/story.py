"""Drones, plans and snapshots for stories about the record."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from provisioner import model as m
from provisioner.estimates import (
    UNKNOWN,
    Estimates,
    EstimateSamples,
    OwnerGrowth,
    SiteSamples,
    StartDelays,
)
from provisioner.reasons import JobsWaiting, NothingFits, Reason, SeenInPool
from provisioner.store import Store
from provisioner.store.database import Database, Place, StoreConnection, database_of
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore

KEEP_S = 1000.0
SNAPSHOTS = 3
CONTROLLER = "kit"

WHY: Reason = JobsWaiting("class-1", "class-1", waiting=7, covered=2, starts=1)
SEEN: Reason = SeenInPool("idle", jobs=0, after_s=61.5)
NOTHING_FITS = m.Refusal(
    m.Subject("class", "class-9"), 40, NothingFits("horeka/h100", "vram_mib", "200000", "95830")
)

A100 = m.DroneType(
    "topas", "a100", 1000, 8, 20480, 51200, vram_mib=40960, capability=80, ad={"HasCVMFS": "true"}
)

NODES = (m.Node("w1", ("a100",), 8000, 192, 1 << 20, 1 << 21, 3000, 100, 500_000, 1 << 20),)
CLAIMS = (m.OwnerDemand(1, 6000, 6, 204_800, 40.0, nodes=("w1", "w2"), who="etp"),)
EVICTIONS = (m.Eviction(m.DroneId("kit-ab12-2"), "204.7", 90.0, 1000, 31.5),)
SIZE = (200, 2, 4096, 1024, 8192, 70)
DONE = m.CompletedJob(
    "submit.test#204.7", 90.5, 40.25, 31.5, *SIZE, "ann", "group_a", 600.0, m.DroneId("kit-ab12-2")
)
RISES = {"topas": OwnerGrowth(((0, 1000), (2000,)))}
LEARNED = Estimates(
    {"ann": (5.0, 31.5)}, {A100.key: StartDelays(3.5, 61.25)}, RISES, {}, {"topas": 60.0}
)
KNOWN = EstimateSamples(
    90.5,
    {"": (31.5, 86400.1), "ann": (31.5,), "ann/200/2/4096": (31.5,)},
    {A100.key: StartDelays(3.5, 61.25)},
    {
        "topas": SiteSamples((2000, 2000, UNKNOWN, UNKNOWN, 0), 88.0, (12.5, 3660.0), 0.0, 0.0),
        "horeka": SiteSamples((), 0.0, (), 1.5, 7200.25),
    },
    frozenset({("submit.test#204.7", 90.5), ("submit.test#9.0", 80.0)}),
)


def store_at(file: Place, controller: str = CONTROLLER, *, threaded: bool = True) -> SqlStore:
    return SqlStore(file, controller, KEEP_S, SNAPSHOTS, threaded)


@contextmanager
def rows(place: Place) -> Iterator[StoreConnection]:
    """Yield a connection to a record, and commit what was written with it."""
    database = database_of(place)
    sql = database.reading(write=True)
    try:
        yield sql
        sql.execute("COMMIT")
    finally:
        database.done(sql)


class TemporaryStore(SqlStore):
    """A store in a file that goes with it: open for all of its life, and used without a thread."""

    def __init__(
        self, controller: str = CONTROLLER, keep_s: float = 1e9, snapshots: int = 10
    ) -> None:
        directory = tempfile.mkdtemp(prefix="store-")
        super().__init__(
            Path(directory) / "record.db",
            controller,
            keep_s,
            snapshots,
            threaded=False,
            birth="mem0",
        )
        self._open()
        self._opened.execute("PRAGMA synchronous = OFF")
        weakref.finalize(self, _discard, directory, self._database)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    def reader(self) -> Reader:
        return Reader(self.path)


def _discard(directory: str, database: Database) -> None:
    database.release()
    shutil.rmtree(directory, ignore_errors=True)


def drone(
    serial: int, state: m.DroneState = m.DroneState.REQUESTED, *, at: float = 100.0, **known: object
) -> m.Drone:
    """Drone ``serial`` of a controller whose store was born as ``ab12``."""
    made = m.Drone(m.DroneId(f"kit-ab12-{serial}"), m.TypeKey("topas/a100"), state, at, at, 1000)
    return replace(made, **known)  # type: ignore[arg-type]


def starts(tick: int, *drones: m.Drone, at: float = 100.0) -> m.Plan:
    return m.Plan(tick, at, starts=tuple(m.Start(each, WHY) for each in drones))


def now_is(
    was: m.Drone, state: m.DroneState, *, at: float, reason: Reason = SEEN, **known: object
) -> m.StateChange:
    """What a look has shown of ``was``."""
    after = replace(was, state=state, since=at if state is not was.state else was.since)
    return m.StateChange(replace(after, **known), was.state, reason)  # type: ignore[arg-type]


def seen(store: Store, plan: m.Plan, **known: object) -> m.Snapshot:
    """A snapshot that ``plan`` may have been made of."""
    slot = m.Slot(m.DroneId("kit-ab12-1"), m.SlotState.BUSY, plan.at - 3, jobs=1, name="slot1@w1")
    refuses = {A100.key: m.UnmetRequirement("vram", "200000", "40960")}
    waiting = m.JobClass("class-9", 1000, 1, 2048, waiting=40, refuses=refuses)
    remote = m.RemoteDrone(
        m.DroneId("kit-ab12-1"),
        m.RemoteState.RUNNING,
        "4711",
        "a100",
        started_at=50.0,
        node="w1",
        slot="slot1_2@w1",
    )
    free, runs = {"a100": 3}, m.OwnerLoad(2, 2000, 2, 90)
    view = m.SiteView("topas", plan.at - 1, {remote.drone_id: remote}, free, NODES, CLAIMS, runs)
    pool = m.OverlayView(
        plan.at - 2, (waiting,), (slot,), plan.at - 20, evictions=EVICTIONS, completions=(DONE,)
    )
    made = m.Snapshot(
        now=plan.at,
        tick=plan.tick,
        id_prefix=f"{CONTROLLER}-{store.birth}",
        next_serial=store.next_serial,
        policy=m.Policy(
            sites={"topas": m.SitePolicy("topas", blocking=(m.Reserve(("w*",), 8, 20480),))}
        ),
        types=(A100,),
        overlay=m.PolledOverlay(pool),
        sites={"topas": m.PolledSite("topas", view)},
        drones=store.drones,
        breakers=store.breakers,
    )
    return replace(made, **known)  # type: ignore[arg-type]


async def record(store: Store, plan: m.Plan) -> m.Snapshot:
    """Record ``plan`` with a snapshot that fits it; the snapshot."""
    snapshot = seen(store, plan)
    await store.record(plan, snapshot)
    return snapshot
