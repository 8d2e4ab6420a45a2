"""The report of measured use: each figure, the types that would fit, and sums that add up whatever is on record."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import given, strategies as st

from provisioner.model import (
    CompletedJob,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    LowUsePolicy,
    Sharing,
    Slot,
    SlotState,
    TypeKey,
)
from provisioner.store import tables, view_log
from provisioner.store.file import MIGRATIONS, migrate
from provisioner.usage import (
    GROUPINGS,
    UsageReport,
    UseSum,
    class_name,
    describe_use,
    held_milli,
    low_use,
    quantile,
    smallest_types,
    usage_report,
)

HOUR = 3600.0
WHOLE = DroneType("kit", "whole", 1000, 8, 40960, 51200, 40960, capability=80)
EIGHT = DroneType("kit", "eight", 8000, 64, 327680, 409600, 40960, capability=80)
SLICED = DroneType(
    "kit", "sliced", 1000, 16, 81920, 51200, 40960, "", 80, sharing=Sharing.TIME_SLICED, shares=2
)
MPS = DroneType("far", "mps", 1000, 32, 163840, 51200, 40960, "", 80, sharing=Sharing.MPS, shares=8)
TYPES = (WHOLE, EIGHT, SLICED, MPS)


class GpuDrone(NamedTuple):
    id: DroneId
    type: TypeKey
    gpu_milli: int
    began_at: float
    ended_at: float
    """0 if it lives."""


def drone(
    number: int = 1, kind: DroneType = WHOLE, began_at: float = 0.0, ended_at: float = 0.0
) -> GpuDrone:
    return GpuDrone(DroneId(f"d-{number}"), kind.key, kind.gpu_milli, began_at, ended_at)


def ended(
    at_h: float, hours: float = 1.0, used: int | None = 100, peak: int | None = 2000, **more: Any
) -> CompletedJob:
    run = CompletedJob(
        "1.0",
        at_h * HOUR,
        0.0,
        hours * HOUR,
        1000,
        2,
        4096,
        capability=70,
        owner="ann",
        splits=False,
    )
    return replace(
        run, **{"drone_id": DroneId("d-1"), "used_milli": used, "peak_vram_mib": peak, **more}
    )


ANN = "ann: 1 GPU, 2 CPUs, 4 GiB RAM"
BEGIN = 100.5 * 24 * HOUR
"""Time on record of 0 here."""


@cache
def empty_record(schema: int) -> bytes:
    with (
        sqlite3.connect(":memory:", isolation_level=None) as sql,
        pytest.MonkeyPatch.context() as older,
    ):
        older.setattr("provisioner.store.file.MIGRATIONS", MIGRATIONS[:schema])
        migrate(sql)
        return sql.serialize()


def record_of(
    drones: Iterable[GpuDrone], runs: Iterable[CompletedJob], schema: int = len(MIGRATIONS)
) -> sqlite3.Connection:
    """Return a record with these drones and runs."""
    sql = sqlite3.connect(":memory:", isolation_level=None)
    sql.deserialize(empty_record(schema))
    columns, of_runs = (
        {name for _, name, *_ in sql.execute(f"PRAGMA table_info({table})")}
        for table in ("drones", "completed_jobs")
    )
    of_older = {"avoids": "", "min_gpus": 0}
    for each in drones:
        ended_at = each.ended_at and BEGIN + each.ended_at
        known = Drone(
            each.id,
            each.type,
            DroneState.DONE if ended_at else DroneState.BUSY,
            BEGIN,
            BEGIN,
            each.gpu_milli,
        )
        known = replace(known, started_at=BEGIN + each.began_at, ended_at=ended_at)
        tables.insert(
            sql,
            "drones",
            {
                key: row
                for key, row in (of_older | tables.drone_row(known)).items()
                if key in columns
            },
        )
    for number, run in enumerate(runs):
        moved = replace(
            run,
            job_id=f"{number}.0",
            ended_at=BEGIN + run.ended_at,
            submitted_at=BEGIN + run.submitted_at,
        )
        row = tables.COMPLETED_JOBS.row(moved)
        tables.insert(
            sql, "completed_jobs", {key: value for key, value in row.items() if key in of_runs}
        )
    return sql


def report_of(
    drones: Iterable[GpuDrone],
    runs: Iterable[CompletedJob],
    types: Sequence[DroneType],
    since: float,
    until: float,
    by: str = "class",
    slots: Iterable[Slot] = (),
) -> UsageReport:
    """Return the report of a record with these drones and runs."""
    slots = tuple(replace(each, begun_at=BEGIN + each.begun_at) for each in slots)
    sql = record_of(drones, runs)
    work = view_log.ViewLog()
    work.write(sql, {"slots": {each.drone_id: each for each in slots}})
    found = tables.read_use(
        sql,
        view_log.slot_work(sql),
        BEGIN + since,
        BEGIN + until,
        by_drone=by == "drone",
        running=True,
    )
    return usage_report(found, types, since, until, by)


def test_each_figure_of_a_class() -> None:
    runs = [
        ended(1, used=100, peak=1000, energy_j=50),
        ended(2, used=300, peak=3000),
        ended(4, 2.0, used=None, peak=None),
    ]
    report = report_of([drone()], runs, TYPES, 0.0, 5 * HOUR)
    (row,) = report.rows
    assert (row.name, row.jobs, row.measured, row.energy_j) == (ANN, 3, 2, 50)
    assert (row.held_s, row.measured_s) == (4 * HOUR, 2 * HOUR)
    assert row.used_s == pytest.approx(0.4 * HOUR) and row.mean == pytest.approx(0.2)
    assert (quantile(row.uses, 0.5), quantile(row.uses, 0.95)) == (0.1, 0.3)
    assert (quantile(row.vram_mib, 0.5), quantile(row.vram_mib, 0.95)) == (1000, 3000)
    assert list(row.fits) == ["kit/sliced"], (
        "a job of an HTCondor pool takes one share: 0.3 is more than an eighth"
    )
    assert row.saved_s == pytest.approx(2 * HOUR), (
        "half a GPU in place of one, over all runs of the class"
    )
    assert (report.total_s, report.measured_s, report.unmeasured_s) == (
        5 * HOUR,
        2 * HOUR,
        2 * HOUR,
    )
    assert (report.running_s, report.idle_s) == (0.0, HOUR)


def test_cpu_and_ram_of_whole_runs_beside_what_they_asked_for() -> None:
    runs = [
        ended(1, 2.0, used_cpu_s=1800, peak_memory_mib=1000),
        ended(2, used_cpu_s=9000, peak_memory_mib=3000, memory_mib=8192),
        ended(3, used_cpu_s=0),
        ended(4, 40.0),
        ended(5, owner="ben"),
    ]
    ann, ben = report_of([drone()], runs, TYPES, 0.0, 5 * HOUR, "user").rows
    assert (ann.used_cpu_s, ann.asked_cpu_s) == (10800, 2 * 4 * HOUR), "two CPUs, 4 h measured"
    assert ann.cpu_efficiency == pytest.approx(0.375)
    assert (ann.peak_memory_mib, ann.asked_memory_mib) == (3000, 8192)
    assert (ben.used_cpu_s, ben.cpu_efficiency, ben.peak_memory_mib) == (None, None, None)
    free = [ended(1, cpus=0, used_cpu_s=60)]
    (row,) = report_of([drone()], free, TYPES, 0.0, 5 * HOUR).rows
    assert (row.used_cpu_s, row.cpu_efficiency) == (60, None), "it asked for no CPU"


@pytest.mark.parametrize(
    ("runs", "fits", "share"),
    [
        pytest.param([ended(1)], "far/mps", 0.125, id="an eighth"),
        pytest.param(
            [ended(1, used=100), ended(2, used=125)], "far/mps", 0.125, id="exactly an eighth"
        ),
        pytest.param([ended(1, used=100), ended(2, used=126)], "kit/sliced", 0.5, id="a half"),
        pytest.param(
            [ended(1, used=300, splits=True)], "far/mps", 0.375, id="the queue joins shares"
        ),
        pytest.param([ended(1, peak=5120)], "far/mps", 0.125, id="its VRAM is just in the share"),
        pytest.param([ended(1, peak=5121)], "kit/sliced", 0.5, id="its VRAM is not"),
        pytest.param(
            [ended(1, peak=None)], "kit/whole", 1.0, id="VRAM was not measured: it may need all"
        ),
        pytest.param([ended(1, used=700)], "kit/whole", 1.0, id="no type is smaller"),
        pytest.param([ended(1, cpus=33)], "kit/eight", 1.0, id="CPUs"),
        pytest.param([ended(1, capability=90)], "", 1.0, id="none fits"),
        pytest.param([ended(1, used=None)], "", 1.0, id="nothing was measured"),
    ],
)
def test_the_smallest_type_that_a_class_would_fit(
    runs: list[CompletedJob], fits: str, share: float
) -> None:
    (row,) = report_of([drone()], runs, TYPES, 0.0, 5 * HOUR).rows
    assert "".join(row.fits) == fits
    assert row.saved_s == pytest.approx((1.0 - share) * row.held_s)


def test_a_job_that_needs_fewer_gpus_still_needs_the_vram_of_all() -> None:
    four = {"gpu_milli": 4000, "used": 900}
    (row,) = report_of([drone(1, EIGHT)], [ended(1, peak=10000, **four)], TYPES, 0.0, HOUR).rows
    assert row.saved_s == pytest.approx(3 * HOUR) and list(row.fits) == ["kit/whole"]
    (row,) = report_of([drone(1, EIGHT)], [ended(1, peak=10300, **four)], TYPES, 0.0, HOUR).rows
    assert row.saved_s == 0.0 and not row.fits


def test_the_largest_saving_comes_first_then_what_was_not_used() -> None:
    jobs = [
        ended(1, owner="low"),
        ended(3, 2.0, owner="longer"),
        ended(4, used=900, owner="high"),
        ended(5, used=800),
    ]
    report = report_of([drone()], jobs, TYPES, 0.0, 5 * HOUR, "user")
    assert [row.name for row in report.rows] == ["longer", "low", "ann", "high"]


def test_jobs_that_still_run_count_from_their_start() -> None:
    slot = Slot(
        DroneId("d-1"), SlotState.BUSY, 5 * HOUR, jobs=1, work_gpu_milli=1000, begun_at=2 * HOUR
    )
    report = report_of([drone()], [ended(1)], TYPES, 0.0, 5 * HOUR, slots=[slot])
    assert (report.measured_s, report.running_s, report.idle_s) == (HOUR, 3 * HOUR, HOUR)


def test_only_the_period_counts() -> None:
    report = report_of(
        [drone(began_at=-HOUR)], [ended(1, 2.0), ended(8, 2.0)], TYPES, 0.0, 7 * HOUR
    )
    assert report.total_s == 7 * HOUR and report.measured_s == 2 * HOUR


def test_low_use_needs_enough_measured_runs() -> None:
    report = report_of([drone()], [ended(1), ended(2), ended(3, used=None)], TYPES, 0.0, 5 * HOUR)
    assert [row.name for row in low_use(report, LowUsePolicy(below=0.101, jobs=2))] == [ANN]
    assert low_use(report, LowUsePolicy(below=0.1, jobs=2)) == [], "it is not below"
    assert low_use(report, LowUsePolicy(below=0.5, jobs=3)) == []
    words = describe_use(report.rows[0])
    assert (
        words
        == "10% of 2.0 GPU-hours used, runs measured: 2, VRAM up to 2.0 GiB in 95 of 100; far/mps would do"
    )


POOL = replace(MPS, site="pool", name="vram", vram_pool=True)
IN_POOL = [drone(1, POOL)]


@pytest.mark.parametrize(
    ("gpu_milli", "vram_mib", "splits", "kind", "held"),
    [
        (2000, 0, True, WHOLE, 2000),
        (200, 0, True, WHOLE, 200),
        (200, 0, False, WHOLE, 1000),
        (200, 0, False, MPS, 250),
        (200, 0, False, None, 1000),
        (200, 0, True, None, 200),
        (1000, 9000, False, POOL, 220),
        (1000, 5120, False, POOL, 125),
        (125, 0, False, POOL, 125),
        (1000, 9000, False, None, 1000),
    ],
)
def test_gpus_that_a_job_holds(
    gpu_milli: int, vram_mib: int, splits: bool, kind: DroneType | None, held: int
) -> None:
    assert held_milli(gpu_milli, vram_mib, splits, kind) == held


def test_a_job_of_a_pool_of_vram_holds_its_part_and_uses_enough_of_that() -> None:
    runs = [ended(1, used=100, peak=8000, vram_mib=9000)]
    report = report_of(IN_POOL, runs, (WHOLE, POOL), 0.0, HOUR)
    (row,) = report.rows
    assert (row.held_s, row.mean) == (pytest.approx(0.22 * HOUR), pytest.approx(100 / 220))
    assert low_use(report, LowUsePolicy(jobs=1, below=0.15)) == []
    assert (list(row.fits), row.saved_s) == (["pool/vram"], 0.0)


@pytest.mark.parametrize(
    ("run", "fits", "saved"),
    [
        pytest.param({"used": 100, "peak": 4000}, "pool/vram", 0.875, id="an equal part"),
        pytest.param({"used": 200, "peak": 9000}, "pool/vram", 0.78, id="the part of its peak"),
        pytest.param({"used": 300, "peak": 9000}, "kit/whole", 0.0, id="it uses more than that"),
        pytest.param({"used": 100, "peak": None}, "kit/whole", 0.0, id="its peak was not measured"),
    ],
)
def test_a_pool_of_vram_fits_by_the_peak(run: dict[str, Any], fits: str, saved: float) -> None:
    (row,) = report_of([drone()], [ended(1, **run)], (WHOLE, POOL), 0.0, HOUR).rows
    assert (list(row.fits), row.saved_s) == ([fits], pytest.approx(saved * HOUR))


@pytest.mark.parametrize(
    "runs", [[ended(1, peak=2000, vram_mib=20000)], [ended(1, peak=None, vram_mib=20000)]]
)
def test_a_class_that_runs_on_a_pool_of_vram_is_not_sent_there(runs: list[CompletedJob]) -> None:
    report = report_of(IN_POOL, runs, (WHOLE, POOL), 0.0, HOUR)
    assert [(list(row.fits), row.saved_s) for row in report.rows] == [(["pool/vram"], 0.0)]
    assert "would do" not in describe_use(report.rows[0])


def test_only_types_of_the_same_vendor_and_architecture_fit() -> None:
    amd, arm = (
        replace(MPS, name="amd", vendor="amd", capability=0),
        replace(MPS, name="arm", arch="aarch64"),
    )
    any_gpu = [ended(1, capability=0)]
    for types, fits in (((WHOLE, amd, arm), "kit/whole"), ((WHOLE, amd, arm, MPS), "far/mps")):
        (row,) = report_of([drone()], any_gpu, types, 0.0, HOUR).rows
        assert list(row.fits) == [fits]
    both = [*any_gpu, ended(1, capability=0, drone_id=DroneId("d-2"))]
    (row,) = report_of([drone(), drone(2, arm)], both, (WHOLE, arm, MPS), 0.0, HOUR).rows
    assert not row.fits, "which of the two a job needs is unknown"
    (row,) = report_of([drone(), drone(2, amd)], both, (WHOLE, MPS), 0.0, HOUR).rows
    assert list(row.fits) == ["far/mps"], "a type that is not configured any more tells nothing"


KINDS = {kind.key: kind for kind in TYPES}
_TIMES = st.floats(-50 * HOUR, 20 * HOUR)
_DRONES = st.builds(
    lambda number, kind, began, life: GpuDrone(
        DroneId(f"d-{number}"), kind.key, kind.gpu_milli, began, life and began + life
    ),
    st.integers(1, 4),
    st.sampled_from(TYPES),
    _TIMES,
    st.one_of(st.just(0.0), st.floats(1.0, 50 * HOUR)),
)
_RUNS = st.builds(
    lambda number, owner, gpu_milli, splits, at, run_s, used, peak: ended(
        at / HOUR,
        run_s / HOUR,
        used,
        peak,
        drone_id=DroneId(f"d-{number}"),
        owner=owner,
        gpu_milli=gpu_milli,
        splits=splits,
    ),
    st.integers(1, 5),
    st.sampled_from(["ann", "ben"]),
    st.sampled_from([0, 125, 300, 1000, 8000]),
    st.booleans(),
    _TIMES,
    st.floats(0.0, 20 * HOUR),
    st.one_of(st.none(), st.integers(0, 8000)),
    st.one_of(st.none(), st.integers(0, 40960)),
)


@given(
    st.lists(_DRONES, max_size=5), st.lists(_RUNS, max_size=12), st.sampled_from(sorted(GROUPINGS))
)
def test_the_parts_add_up_to_what_the_drones_held(
    drones: list[GpuDrone], runs: list[CompletedJob], by: str
) -> None:
    """Whatever is on record: more jobs than a drone can hold, jobs outside of its life, none at all."""
    drones = [*{each.id: each for each in drones}.values()]
    slots = [
        Slot(each.id, SlotState.BUSY, 0.0, jobs=1, work_gpu_milli=1000, begun_at=HOUR)
        for each in drones
    ]
    report = report_of(drones, runs, TYPES, 0.0, 20 * HOUR, by, slots)
    parts = (report.measured_s, report.unmeasured_s, report.running_s, report.idle_s)
    held = sum(
        each.gpu_milli
        / 1000
        * max(0.0, min(each.ended_at or 20 * HOUR, 20 * HOUR) - max(0.0, each.began_at))
        for each in drones
    )
    assert report.total_s == pytest.approx(held, abs=1e-3) and sum(parts) == pytest.approx(
        held, abs=1e-3
    )
    assert min(parts) >= 0.0
    assert sum(row.held_s for row in report.rows) == pytest.approx(
        report.measured_s + report.unmeasured_s, abs=1e-3
    )
    assert 0.0 <= report.saved_s <= report.measured_s + report.unmeasured_s + 1e-3


def slow_parts(
    drones: Sequence[GpuDrone],
    runs: Sequence[CompletedJob],
    since: float,
    until: float,
    name: Callable[[Any], str],
) -> dict[str, Any]:
    """Return totals and rows, one run at a time."""
    lives, kinds = {each.id: each for each in drones}, {kind.key: kind for kind in TYPES}
    rows, fits_of = dict[str, dict[str, Any]](), dict[str, list[tuple[Any, int]]]()
    counted = []
    for run in runs:
        of = lives.get(run.drone_id or DroneId(""))
        if of is None or run.ended_at < since:
            continue
        ran_s = min(run.ended_at, of.ended_at or until) - max(
            run.ended_at - run.run_s, of.began_at, since
        )
        if ran_s > 0 and run.gpu_milli:
            milli = min(
                held_milli(run.gpu_milli, run.vram_mib, run.splits, kinds.get(of.type)),
                of.gpu_milli,
            )
            counted.append((run, of, milli, milli / 1000 * ran_s))
            alike = (
                of.type,
                of.gpu_milli,
                *(getattr(run, key) for key in ("owner", "vo", "gpu_milli", "cpus", "memory_mib")),
            )
            asked = (
                run.vram_mib,
                run.splits,
                run.disk_mib,
                run.capability,
                run.walltime_s,
                run.ended_at,
            )
            one = UseSum(  # type: ignore[call-arg]
                of.id,
                *alike,
                *asked,
                1,
                ran_s,
                0.0,
                run.used_milli,
                run.peak_vram_mib,
                run.energy_j,
                run.used_cpu_s,
                0.0,
                run.peak_memory_mib,
            )
            fits_of.setdefault("", []).append((one, milli))
    fits = smallest_types(fits_of.get("", []), kinds)
    for run, of, milli, held_s in counted:
        row = rows.setdefault(name((run, of)), Counter({"p50": [], "vram": [], "fits": set()}))  # type: ignore[dict-item]
        row["jobs"] += 1
        row["held_s"] += held_s
        if run.used_milli is not None:
            row["measured"] += 1
            row["measured_s"] += held_s
            row["used_s"] += held_s * run.used_milli / milli
            row["p50"].append(run.used_milli / milli)
        if run.peak_vram_mib is not None:
            row["vram"].append(run.peak_vram_mib)
        if run.used_cpu_s is not None:
            row["used_cpu_s"] += run.used_cpu_s
            row["asked_cpu_s"] += run.run_s * run.cpus
        if run.peak_memory_mib is not None:
            row["peak_memory_mib"] = max(row["peak_memory_mib"], run.peak_memory_mib)
        row["asked_memory_mib"] = max(row["asked_memory_mib"], run.memory_mib)
        if fit := fits.get(class_name(run)):  # type: ignore[arg-type]
            row["fits"].add(fit[0])
            row["saved_s"] += held_s * max(0.0, 1.0 - fit[1] / milli)
    total_s = sum(
        d.gpu_milli / 1000 * max(0.0, min(d.ended_at or until, until) - max(d.began_at, since))
        for d in drones
    )
    return {"total_s": total_s, "rows": rows}


@st.composite
def _months(draw: st.DrawFn) -> tuple[list[GpuDrone], list[CompletedJob]]:
    """Drones of a month with runs one after the other, or as many at once as they have GPUs."""
    drones, runs = [], list[CompletedJob]()
    for number in range(draw(st.integers(1, 4))):
        kind, at_h = draw(st.sampled_from([WHOLE, EIGHT])), draw(st.integers(-600, 0))
        lanes, end_h = (
            draw(st.integers(1, kind.gpu_milli // 1000)),
            at_h + draw(st.integers(1, 200)),
        )
        drones.append(drone(number, kind, at_h * HOUR, end_h * HOUR if end_h < 0 else 0.0))
        for _ in range(lanes):
            begin_h = float(at_h)
            for hours in draw(st.lists(st.integers(1, 60), max_size=4)):
                if begin_h + hours > min(end_h, 0):
                    break
                begin_h += hours
                more = {
                    "owner": draw(st.sampled_from(["ann", "ben"])),
                    "vo": draw(st.sampled_from(["", "cms", "atlas"])),
                    "cpus": draw(st.integers(1, 2)),
                }
                more |= {
                    "splits": draw(st.booleans()),
                    "energy_j": draw(st.sampled_from([None, 7])),
                }
                more |= {
                    "vram_mib": draw(st.sampled_from([0, 9000])),
                    "drone_id": DroneId(f"d-{number}"),
                }
                more |= {
                    "used_cpu_s": draw(st.sampled_from([None, 0, 600, 9000])),
                    "peak_memory_mib": draw(st.sampled_from([None, 1, 3000, 9000])),
                    "memory_mib": draw(st.sampled_from([4096, 8192])),
                }
                used = draw(st.one_of(st.none(), st.integers(0, 100).map(lambda part: 10 * part)))
                peak = draw(st.one_of(st.none(), st.integers(0, 150).map(lambda step: 256 * step)))
                runs.append(ended(begin_h, hours, used, peak, **more))
    return drones, runs


@pytest.mark.parametrize(
    ("by", "schema"),
    [*((by, len(MIGRATIONS)) for by in GROUPINGS), ("class", 4), ("type", 4), ("user", 9)],
)
@given(_months(), st.floats(1.0, 620.0).map(lambda hours: round(hours, 3)))
def test_sums_of_days_are_those_of_single_runs(
    by: str, schema: int, month: Any, age_h: float
) -> None:
    """Whatever the begin of the period, and also of runs on record before there were sums."""
    drones, runs = month
    sql, since = record_of(drones, runs, schema), -age_h * HOUR
    migrate(sql)
    report = usage_report(
        tables.read_use(sql, (), BEGIN + since, BEGIN, by_drone=by == "drone"),
        TYPES,
        since,
        0.0,
        by,
    )
    names: dict[str, Callable[[Any], str]] = {
        "class": lambda pair: class_name(pair[0]),
        "user": lambda pair: pair[0].owner,
        "vo": lambda pair: pair[0].vo or "none",
        "site": lambda pair: pair[1].type.partition("/")[0],
        "type": lambda pair: pair[1].type,
        "drone": lambda pair: pair[1].id,
    }
    slow = slow_parts(drones, runs, since, 0.0, names[by])
    assert report.total_s == pytest.approx(slow["total_s"])
    assert {row.name for row in report.rows} == slow["rows"].keys()
    for row in report.rows:
        of = slow["rows"][row.name]
        assert (row.jobs, row.measured, set(row.fits)) == (of["jobs"], of["measured"], of["fits"])
        for sum_s in ("held_s", "measured_s", "used_s", "saved_s"):
            assert getattr(row, sum_s) == pytest.approx(of[sum_s], abs=1e-3), sum_s
        # the oldest schemas have no CPU time and no peak of RAM: these stay unknown
        known = of if schema == len(MIGRATIONS) else {}
        assert (row.used_cpu_s is None) == ("used_cpu_s" not in known)
        assert (row.used_cpu_s or 0) == known.get("used_cpu_s", 0)
        assert row.asked_cpu_s == pytest.approx(known.get("asked_cpu_s", 0.0))
        assert row.peak_memory_mib == known.get("peak_memory_mib")
        assert row.asked_memory_mib == of["asked_memory_mib"]
        assert quantile(row.uses, 0.5) == quantile(Counter(of["p50"]), 0.5)
        assert quantile(row.vram_mib, 0.95) == quantile(Counter(of["vram"]), 0.95)


def test_a_quantile_is_at_most_a_step_too_high() -> None:
    uses = [7, 13, 18, 18, 122, 129, 645]
    (row,) = report_of(
        [drone(began_at=-50 * HOUR)],
        [ended(-k, used=used) for k, used in enumerate(uses)],
        TYPES,
        -40 * HOUR,
        1.0,
    ).rows
    for share in (0.5, 0.75, 0.95):
        exact = quantile(Counter(uses), share) or 0
        assert exact <= 1000 * (quantile(row.uses, share) or 0.0) < exact + 10


def test_runs_that_hold_more_than_their_drone_all_count_less() -> None:
    """As each of them is reported, those before it as well; a migrated record has the same sums."""
    drones, hours = [drone(1, began_at=-50 * HOUR, ended_at=-20 * HOUR)], (30, 20, 40)
    runs = [ended(-20, each, owner=f"user{each}") for each in hours]
    for schema in (len(MIGRATIONS), 4):
        sql = record_of(drones, runs, schema)
        migrate(sql)
        report = usage_report(
            tables.read_use(sql, (), BEGIN - 60 * HOUR, BEGIN), TYPES, 0.0, 0.0, "user"
        )
        held = {row.name: row.held_s / HOUR for row in report.rows}
        # 40 hours are 30 in the life of the drone
        assert held == pytest.approx(
            {"user30": 30 * 30 / 80, "user20": 20 * 30 / 80, "user40": 30 * 30 / 80}, rel=1e-3
        )
        assert report.total_s == pytest.approx(30 * HOUR) and report.idle_s == pytest.approx(
            0.0, abs=120.0
        )
