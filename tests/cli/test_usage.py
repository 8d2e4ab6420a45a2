"""The measured use as `usage`, `status`, `demand`, `sites` and `drones` show it."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import pytest

from provisioner.model import (
    CompletedJob,
    DroneState,
    JobClass,
    LowUseAction,
    LowUsePolicy,
    OverlayView,
    Policy,
    PolledOverlay,
)
from provisioner.web.pages import render
from tests.cli.conftest import Cli
from tests.store.story import A100, TemporaryStore, drone, seen, starts

NOW = time.time()
DRONE = drone(1, DroneState.BUSY, at=NOW - 7200, started_at=NOW - 7200)
RUN = CompletedJob(
    "s#1.0", NOW - 60, NOW - 9000, 3600.0, 1000, 2, 4096, owner="ann", drone_id=DRONE.id, vo="cms"
)
FORMULA = '=1+1"\n'
WAITING = JobClass("c1", 1000, 2, 4096, owner="ann", waiting=3, oldest_at=NOW - 60, vo="cms")
HOSTILE = replace(WAITING, id="c2", waiting=2, vo=FORMULA, vo_member="/C=DE\n/CN=x")


@pytest.fixture
async def measured() -> TemporaryStore:
    store = TemporaryStore()
    policy = Policy(low_use=LowUsePolicy(LowUseAction.WARN, jobs=1), sites={})
    view = PolledOverlay(OverlayView(NOW, (WAITING,)))
    plan = starts(1, DRONE, at=NOW)
    await store.record(plan, seen(store, plan, overlay=view, policy=policy, types=(A100,)))
    await store.record_completed([replace(RUN, used_milli=40, peak_vram_mib=2048)])
    return store


def test_each_list_shows_the_use_of_the_last_day(measured: TemporaryStore, cli: Cli) -> None:
    for verb in ("demand", "sites", "drones"):
        assert cli(verb, "-o", "json", "--store", measured.path).json["items"][0]["use"] == 0.04, (
            verb
        )
    assert (
        "USE" in cli("demand", "--store", measured.path).out
        and "4%" in cli("sites", "-o", "wide", "--store", measured.path).out
    )
    shown = cli("drones", "show", DRONE.id, "-o", "json", "--store", measured.path)
    assert shown.json["use"] == 0.04


def test_the_status_has_the_use_and_a_note_of_low_use(measured: TemporaryStore, cli: Cli) -> None:
    status = cli("status", "-o", "json", "--store", measured.path).json
    assert status["use"] == 0.04 and status["demand"][0]["use"] == 0.04
    (note,) = [each for each in status["troubles"] if each["kind"] == "low-use"]
    assert note["severity"] == "note" and note["text"].startswith(
        "ann: 1 GPU, 2 CPUs, 4 GiB RAM: 4% of 1.0 GPU-hours used"
    )
    assert (
        "4% of 1 GPU-hours of jobs in the last day" in cli("status", "--store", measured.path).out
    )


def test_the_table_names_the_class_and_the_parts(measured: TemporaryStore, cli: Cli) -> None:
    ran = cli("usage", "--store", measured.path)
    assert "ann: 1 GPU, 2 CPUs, 4 GiB RAM" in ran.out and "topas/a100" in ran.out
    found = cli("usage", "-o", "json", "--store", measured.path).json
    assert found["total_gpu_s"] == pytest.approx(7200, abs=600)
    assert (found["measured_gpu_s"], found["used_gpu_s"]) == (
        pytest.approx(3600, abs=1),
        pytest.approx(144, abs=1),
    )
    assert (
        cli("usage", "--since", "30s", "-o", "json", "--store", measured.path).json["items"] == []
    )
    assert cli("usage", "--since", "soon", "--store", measured.path).code == 2


async def test_small_amounts_are_hours_as_the_heads_say_and_a_missing_peak_is_marked(
    measured: TemporaryStore, cli: Cli
) -> None:
    runs = [
        replace(RUN, job_id=f"s#{n}.0", owner="ben", run_s=600.0, used_milli=900) for n in (2, 3)
    ]
    await measured.record_completed([replace(runs[0], peak_vram_mib=2048), runs[1]])
    await measured.record_completed([replace(runs[1], job_id="s#4.0", owner="cat")])
    out = cli("usage", "--store", measured.path).out
    assert {"GPU-H", "GPU-H SAVED"} <= set(
        re.split(r"  +", next(x for x in out.splitlines() if "JOBS" in x).strip())
    )
    rows = {line.split(":")[0]: line for line in out.splitlines() if ": 1 GPU, " in line}
    assert "2 GiB " in rows["ann"] and "2 GiB? " in rows["ben"] and " ? " in rows["cat"]
    assert (
        re.search(r"gpu-h used +0\.49\n", out)
        and " 0.17 " in rows["cat"]
        and "min" not in rows["cat"].partition(" ")[2]
    )
    page = re.sub(r"<[^>]*>|\s+", " ", render("/use", measured.reader(), {}))
    assert re.search(r"(?i)gpu-h used +0\.49 ", page) and not re.search(r"\d ?min\b", page)
    items = cli("usage", "-o", "json", "--store", measured.path).json["items"]
    assert {item["name"][:3]: item["without_vram"] for item in items} == {
        "ann": 0,
        "ben": 1,
        "cat": 1,
    }


async def test_rows_are_ordered_by_heads_and_by_keys(measured: TemporaryStore, cli: Cli) -> None:
    await measured.record_completed([replace(RUN, job_id="s#2.0", owner="ben", used_milli=900)])
    for order in ("-mean", "-used_gpu_s", "-gpu-h-used", "-GPU-H used"):
        items = cli("usage", f"--sort={order}", "-o", "json", "--store", measured.path).json[
            "items"
        ]
        assert [item["name"][:3] for item in items] == ["ben", "ann"], order
    wrong = cli("usage", "--sort", "meen", "--store", measured.path)
    assert wrong.code == 2 and "no column `meen`; did you mean `mean`?" in wrong.err


async def test_a_record_without_a_measured_run_says_where_to_look(
    measured: TemporaryStore, cli: Cli
) -> None:
    assert "no run was measured" not in cli("usage", "--store", measured.path).err
    ran = cli("usage", "--since", "30s", "--store", measured.path)
    assert "; no run was measured: see docs/how-to/gpu-use.md" in ran.err


async def test_cpu_and_ram_are_shown_beside_what_was_asked_for(
    measured: TemporaryStore, cli: Cli
) -> None:
    known = replace(RUN, job_id="s#2.0", owner="ben", used_cpu_s=1800, peak_memory_mib=3072)
    await measured.record_completed([known])
    items = cli("usage", "-o", "json", "--store", measured.path).json["items"]
    keys = "cpu_efficiency", "cpu_used_s", "cpu_asked_s", "memory_peak_mib", "memory_asked_mib"
    assert {item["name"][:3]: tuple(item[key] for key in keys) for item in items} == {
        "ann": (None, None, 0.0, None, 4096),
        "ben": (0.25, 1800, 7200.0, 3072, 4096),
    }
    head, *rows = cli("usage", "--by", "user", "--store", measured.path).out.splitlines()[-3:]
    assert re.search(r"CPU +RAM +RAM ASKED", head)
    ann, ben = sorted(rows)
    assert re.search(r" - +- +4 GiB ", ann) and re.search(r" 25% +3 GiB +4 GiB ", ben)
    chosen = ("--columns", "name,cpu_efficiency,memory_peak_mib", "--by", "user")
    table = cli("usage", "-o", "csv", *chosen, "--store", measured.path).out.splitlines()
    assert sorted(table[1:]) == ["ann,,", "ben,0.25,3072"]
    page = re.sub(r"<[^>]*>|\s+", " ", render("/use", measured.reader(), {}))
    assert re.search(r" 25% +3 GiB +4 GiB ", page)


def test_use_by_vo(measured: TemporaryStore, cli: Cli) -> None:
    found = cli("usage", "--by", "vo", "-o", "json", "--store", measured.path).json["items"]
    assert [(each["name"], each["jobs"]) for each in found] == [("cms", 1)]


async def test_a_done_job_is_found_by_the_id_of_its_source_job(cli: Cli) -> None:
    store = TemporaryStore()
    view = PolledOverlay(OverlayView(NOW, (WAITING,), routed={"3.1": "9.0"}))
    await store.record(starts(1), seen(store, starts(1), overlay=view))
    routed = (("s#1.0", ""), ("s#7.2", "3.1"), ("s#8.0", "1.0"), ("s#8.1", "3.3 or so"))
    await store.record_completed(
        [replace(RUN, job_id=job, routed_from=source) for job, source in routed]
    )

    def explained(job: str) -> str:
        ran = cli("explain", "job", job, "--store", store.path)
        return ran.out + ran.err

    copy = explained("3.3")
    assert "job 3.3 or so is routed, and its routed copy counts: job s#8.1" in copy
    assert f"it ran for 3600 s in drone {DRONE.id}" in copy
    own = explained("1.0")
    assert "is done since" in own and "routed" not in own, "its own run comes first"
    assert "job s#7.2" in explained("3.1"), "the copy in the queue is unknown"
    for unknown in ("3.0", "3.2", "17.2"):
        assert f"job {unknown} is unknown" in explained(unknown)


async def test_demand_by_vo(cli: Cli) -> None:
    store = TemporaryStore()
    view = PolledOverlay(OverlayView(NOW, (WAITING, HOSTILE, replace(WAITING, id="c3", vo=""))))
    await store.record(starts(1), seen(store, starts(1), overlay=view))
    rows = cli("demand", "-o", "json", "--store", store.path).json["items"]
    assert [(each["id"], each["vo"]) for each in rows] == [
        ("c1", "cms"),
        ("c2", FORMULA),
        ("c3", ""),
    ]
    for vo, ids in (("cms", "c1"), ("", "c3"), ("atlas", "")):
        ran = cli("demand", "--vo", vo, "-o", "name", "--store", store.path)
        assert ran.out.split() == ids.split()
    table = cli("demand", "-o", "wide", "--store", store.path).out
    assert "VO" in table.splitlines()[0] and len(table.splitlines()) == 4
    cells = cli("demand", "-o", "csv", "--columns", "vo", "--store", store.path).out.splitlines()
    assert len(cells) == 4 and cells[2].lstrip('"').startswith("'=1+1")
