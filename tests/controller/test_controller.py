"""The service among adapters that misbehave, on a disk that is full, under a clock that is set."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from math import inf

import pytest
import structlog
from structlog.testing import capture_logs

from provisioner import model
from provisioner.controller.loop import SHUTDOWN_WAIT_S, TURN_LIMIT_S, Controller
from provisioner.controller.polling import TICK_WAIT_S
from provisioner.interfaces import AuthError
from provisioner.logs import LogFormat, LogLevel, log_to_stderr
from provisioner.planner import decide
from tests.controller.world import (
    EPOCH,
    JOB,
    FullDisk,
    Place,
    Pool,
    ahead_s,
    in_virtual_time,
    never,
    nothing,
    run_for,
    serving,
)
from tests.store.story import TemporaryStore

S = model.DroneState


async def leaks() -> None:
    raise asyncio.CancelledError


async def breaks() -> None:
    raise KeyError("an adapter's own mistake")


@pytest.mark.parametrize("call", FullDisk.CALLS)
@in_virtual_time
async def test_the_controller_outlives_a_full_disk_and_acts_on_nothing_unrecorded(
    call: str,
) -> None:
    here, store = Place(), FullDisk(call)
    async with serving(here, store=store) as controller:
        ahead_s.set(3600.0)  # somebody sets the clock: that is an event
        await run_for(controller, 100)
        assert set(store.refused) == {call}, "the story is about this call"
        assert here.told == ([] if call == "record" else ["start kit-mem0-1"])
        assert set(here.running) <= set(store.drones)
        store.full.clear()
        await run_for(controller, 30)
        (drone,) = store.drones.values()
        assert (drone.id, drone.remote_id) == ("kit-mem0-1", "r-kit-mem0-1")
        assert here.told == ["start kit-mem0-1"]


@in_virtual_time
async def test_answers_that_could_not_be_recorded_are_kept_and_their_site_is_left_alone_meanwhile() -> (
    None
):
    here, store = Place(), FullDisk("record_results")
    here.look_wire = never  # no listing will tell what came of the order
    async with serving(here, store=store, view_max_age_s=1e6) as controller:
        here.look_wire = Place().look_wire
        await controller.tick()
        assert [d.state for d in store.drones.values()] == [S.REQUESTED]
        controller.overlay.classes = (replace(controller.overlay.classes[0], waiting=5),)  # type: ignore[attr-defined]
        await controller.tick()
        assert len(here.told) == 1
        store.full.clear()
        await controller.tick()
        assert store.drones[next(iter(store.drones))].remote_id == "r-kit-mem0-1"
        assert len(here.told) == 5


@pytest.mark.parametrize("trouble", [leaks, breaks, never])
@pytest.mark.parametrize("wire", ["look_wire", "start_wire", "stop_wire"])
@in_virtual_time
async def test_whatever_an_adapter_raises_or_leaves_open_the_others_are_served(
    wire: str, trouble: object
) -> None:
    ill, well = Place("ill"), Place("well")
    setattr(ill, wire, trouble)
    jobs = (replace(Pool().classes[0], waiting=3),)
    async with serving(ill, well, pool=Pool(jobs), booting_s=30) as controller:
        await run_for(controller, 600)
        assert len(well.told) > 2
        assert "look_wire" not in wire or ill.told == []


@in_virtual_time
async def test_what_is_no_view_at_all_is_a_fault_of_that_adapter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nonsense(*_: object) -> object:
        return "soon"

    odd, well, pool = Place("odd"), Place("well"), Pool()
    monkeypatch.setattr(odd, "poll", nonsense)
    async with serving(odd, well) as controller:
        await run_for(controller, 60)
        assert well.told == ["start kit-mem0-1"]
    monkeypatch.setattr(pool, "poll", nonsense)
    async with serving(well, pool=pool) as controller:
        assert [r.reason.kind for r in (await controller.tick()).plan.refusals] == [
            "stale-view",
            "orphans-kept",
        ]


@in_virtual_time
async def test_when_asked_to_stop_it_waits_for_orders_under_way_but_not_for_ever() -> None:
    loop = asyncio.get_running_loop()
    slow, deaf = Place("slow"), Place("deaf")
    slow.start_wire = lambda: asyncio.sleep(20)
    deaf.start_wire = never
    jobs = (replace(Pool().classes[0], waiting=2),)
    store = TemporaryStore("kit", 1e9, 10)
    async with serving(
        slow, deaf, pool=Pool(jobs), store=store, max_drones=1, order_deadline_s=1e4
    ) as controller:
        await controller.tick()
        asked = loop.time()
    assert SHUTDOWN_WAIT_S <= loop.time() - asked < SHUTDOWN_WAIT_S + 1
    assert {d.site: d.state for d in store.drones.values()} == {
        "slow": S.SUBMITTED,
        "deaf": S.REQUESTED,
    }


async def ticks(controller: Controller, number: int) -> list[float]:
    """Tick so often, two seconds apart, and return how long each tick took, in virtual seconds."""
    loop, took = asyncio.get_running_loop(), []
    for _ in range(number):
        began = loop.time()
        await controller.tick()
        took.append(round(loop.time() - began, 1))
        await asyncio.sleep(2.0)
    return took


@in_virtual_time
async def test_a_site_that_hangs_delays_one_tick_and_not_each() -> None:
    """Neither its poll, nor those after it until one is quick again, nor its orders hold up the other sites."""
    hangs, well = Place("hangs"), Place("well")
    async with serving(hangs, well, poll_deadline_s=20.0) as controller:
        assert await ticks(controller, 2) == [0.0, 0.0]
        hangs.look_wire = lambda: asyncio.sleep(100)
        assert await ticks(controller, 20) == [TICK_WAIT_S] + [0.0] * 19, (
            "two polls and their deadlines"
        )
        hangs.look_wire = nothing
        assert await ticks(controller, 20) == [0.0] * 20
        hangs.look_wire = lambda: asyncio.sleep(100)
        assert await ticks(controller, 3) == [TICK_WAIT_S, 0.0, 0.0], (
            "it had answered in time again"
        )


@in_virtual_time
async def test_an_order_without_an_answer_delays_one_tick_and_not_each() -> None:
    deaf = Place("deaf", start_wire=never)
    async with serving(deaf, max_drones=1, order_deadline_s=100.0) as controller:
        assert await ticks(controller, 3) == [TICK_WAIT_S, 0.0, 0.0]


@in_virtual_time
async def test_the_first_tick_waits_shortly_for_a_slow_site_and_the_next_one_follows_soon() -> None:
    slow, store = (
        Place("slow", look_wire=lambda: asyncio.sleep(4.0)),
        TemporaryStore("kit", 1e9, 10),
    )
    async with serving(slow, store=store) as controller:
        await run_for(controller, 2.5)
        assert store.tick == 1, "an owner elsewhere does not wait for it"
    async with serving(slow, store=store) as controller:
        await run_for(controller, 8.0)
        assert [each.split()[0] for each in slow.told] == ["start"]


@in_virtual_time
async def test_a_kill_while_orders_are_under_way_loses_no_answer() -> None:
    here, store = Place(), TemporaryStore("kit", 1e9, 10)
    async with serving(here, store=store, max_drones=2) as controller:
        await controller.tick()
        here.start_wire = lambda: asyncio.sleep(30)
        controller.overlay.classes = (replace(controller.overlay.classes[0], waiting=2),)  # type: ignore[attr-defined]
        await controller.tick()
        store.reader().ask(
            model.RequestKind.KILL, list(store.drones)[:1], reason="hot", by="anna", at=EPOCH
        )
        await controller.tick()
        assert here.told == ["start kit-mem0-1", "start kit-mem0-2", "stop kit-mem0-1"]
        here.look_wire = never
        await asyncio.sleep(30)
        await controller.tick()
        second = next(d for d in store.drones.values() if d.id == "kit-mem0-2")
        assert (second.state, second.remote_id) == (S.SUBMITTED, "r-kit-mem0-2")


@in_virtual_time
async def test_a_class_that_the_planner_fails_on_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planner(snapshot: model.Snapshot) -> model.Plan:
        if snapshot.overlay.view and any(c.id == "odd" for c in snapshot.overlay.view.classes):
            raise ZeroDivisionError
        return decide(snapshot)

    here, store = Place(), TemporaryStore("kit", 1e9, 10)
    jobs = (Pool().classes[0], replace(Pool().classes[0], id="odd"))
    async with serving(here, store=store, pool=Pool(jobs)) as controller:
        monkeypatch.setattr(controller, "planner", planner)
        reports = [await controller.tick() for _ in range(3)]
        assert here.told == ["start kit-mem0-1"]
        assert all("ZeroDivisionError" in r.faults[0] for r in reports)
        (told,) = store.reader().events()
        assert (told.name, told.fields["left_out"]) == ("plan.rejected", "class 1 GPU (odd)"), (
            "told once"
        )
        controller.overlay.classes = jobs[:1]  # type: ignore[attr-defined]
        assert (await controller.tick()).faults == ()
        assert [e.name for e in store.reader().events()] == ["plan.rejected", "plan.accepted"]
        assert ("class:odd", "planner-failed") in [
            (str(r.subject), r.reason.kind) for r in reports[-1].plan.refusals
        ]


@in_virtual_time
async def test_an_overlay_that_admits_nobody_is_not_the_sites_fault() -> None:
    async def denied() -> None:
        raise AuthError("token for drones: no such file")

    here, store, pool = Place(), TemporaryStore("kit", 1e9, 10), Pool(admission_wire=denied)
    async with serving(here, store=store, pool=pool) as controller:
        await run_for(controller, 100)
        assert here.told == []
        assert list(map(str, store.breakers)) == ["overlay"]
        assert len(store.reader().drones(ended=None)) == 1, "tried once, then left in peace"
        pool.admission_wire = Pool().admission_wire
        await run_for(controller, 60)
        assert here.told == ["start kit-mem0-2"]


@pytest.mark.parametrize("set_by_s", [-3600.0, 3600.0, -1e7])
@in_virtual_time
async def test_a_clock_that_is_set_neither_blinds_the_controller_nor_goes_untold(
    set_by_s: float,
) -> None:
    """Adapters tell the host's time: a view taken now must not look an hour old."""
    here, store = Place(), TemporaryStore("kit", 1e9, 10)
    async with serving(here, store=store) as controller:
        ahead_s.set(set_by_s)
        await run_for(controller, 40)
        assert here.told == ["start kit-mem0-1"]
        ahead_s.set(0.0)
        await run_for(controller, 40)
        assert [e.name for e in store.reader().events()] == ["clock.stepped", "clock.caught_up"]


@in_virtual_time
async def test_pruning_goes_on_at_each_tick_until_nothing_is_left_to_forget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It forgot a fixed number of rows an hour, and a record with more jobs than that an hour grew for ever."""
    store, pruned = TemporaryStore("kit", 1e9, 10), []

    async def prune(now: float) -> bool:
        pruned.append(now)
        return len(pruned) < 4

    monkeypatch.setattr(store, "prune", prune)
    async with serving(Place(), store=store) as controller:
        await run_for(controller, 200)
        assert len(pruned) == 4
        await run_for(controller, 3700)
        assert len(pruned) == 5, "and again in an hour"


@in_virtual_time
async def test_an_operator_lifts_a_ban_and_the_site_is_used_at_the_next_tick() -> None:
    async def denied() -> None:
        raise AuthError("var/drones: Permission denied")

    here, store = Place(start_wire=denied), TemporaryStore("kit", 1e9, 10)
    async with serving(here, store=store) as controller:
        await run_for(controller, 20)
        assert store.breakers[model.Scope("here")].state is model.BreakerState.BANNED
        tried = len(here.told)
        here.start_wire = Place().start_wire
        store.reader().ask(
            model.RequestKind.RESET, [model.DroneId("here")], reason="repaired", by="anna", at=EPOCH
        )
        await run_for(controller, 20)
        assert len(here.told) == tried + 1 and here.running
        assert await store.requests() == ()
        (told,) = (e.fields for e in store.reader().events() if e.name == "breaker.reset")
        assert (told["scopes"], told["by"], told["reason"]) == ("here", "anna", "repaired")


# ------------------ Log lines: a failed decision costs one traceback without variables, lines carry
# reasons, levels fit


@pytest.fixture(autouse=True)
def _logging_as_before() -> object:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("form", list(LogFormat))
@in_virtual_time
async def test_a_decision_that_fails_at_each_tick_is_logged_once_and_without_variables(
    form: LogFormat, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Core 2: rich's traceback with all local variables took a minute per tick and named users."""
    log_to_stderr(LogLevel.INFO, form)

    def fails(snapshot: object) -> object:
        secret = "owner-of-the-jobs"  # noqa: F841 - a local variable must not get into the log
        return 1 / 0

    async with serving(Place()) as controller:
        monkeypatch.setattr(controller, "planner", fails)
        for _ in range(20):
            await controller.tick()
    text = capsys.readouterr().err
    assert text.count("ZeroDivisionError: division by zero") > 0
    assert text.count("Traceback") == 1
    assert "owner-of-the-jobs" not in text and "secret =" not in text.replace('secret = "owner', "")
    assert text.count("planner.failed") == 5, "the 1st, 2nd, 4th, 8th and 16th"
    assert "16" in text
    assert len(text) < 10_000


@in_virtual_time
async def test_a_decision_that_works_again_says_after_how_many_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(Place()) as controller:
        with monkeypatch.context() as patch, capture_logs() as told:
            patch.setattr(controller, "planner", lambda snapshot: 1 / 0)
            for _ in range(3):
                await controller.tick()
        with capture_logs() as after:
            await controller.tick()
        assert [e.get("in_a_row") for e in told if e["event"] == "planner.failed"] == [None, 2]
        assert [e["in_a_row"] for e in after if e["event"] == "planner.recovered"] == [3]
        assert [e["log_level"] for e in told if e["event"] == "plan.rejected"] == ["warning"]


@in_virtual_time
async def test_a_refused_order_and_the_ban_after_it_are_warnings_with_their_reasons() -> None:
    """BUG H: `move ... why=order-refused` at level info for "Permission denied", and no line for the ban."""

    async def denied() -> None:
        raise AuthError("/srv/drones: Permission denied")

    here = Place(start_wire=denied)
    with capture_logs() as told:
        async with serving(here) as controller:
            for _ in range(3):
                await controller.tick()
    (start,) = (e for e in told if e["event"] == "drone.start_ordered")
    assert start["reason"] == "jobs-waiting" and "wait" in start["why"]
    refused = [
        e for e in told if e["event"] == "drone.state_changed" and e["reason"] == "order-refused"
    ]
    assert refused and all(
        e["log_level"] == "warning" and "Permission denied" in e["why"] for e in refused
    )
    (ban,) = (e for e in told if e["event"] == "breaker.changed" and e["state"] == "banned")
    assert (ban["log_level"], ban["scope"], ban["fault"]) == ("warning", "here", "denied")
    assert "Permission denied" in ban["why"] and ban["until"].endswith("Z")


LINES = """
import structlog, sys
from provisioner.logs import log_to_stderr, LogLevel, LogFormat
log_to_stderr(LogLevel(sys.argv[1]), LogFormat(sys.argv[2]) if len(sys.argv) > 2 else None)
log = structlog.get_logger()
log.debug("fine"), log.info("controller.started", drones=2)
log.warning("site.poll_failed", view="site:x", message="no answer")
try: 1 / 0
except ZeroDivisionError: log.exception("planner.failed")
"""


def lines(
    *options: str, stderr: int = subprocess.PIPE, env: dict[str, str] | None = None
) -> list[str]:
    command = [sys.executable, "-c", LINES, *options]
    done = subprocess.run(
        command, env=os.environ | (env or {}), stderr=stderr, text=True, timeout=60, check=True
    )
    return (done.stderr or "").splitlines()


def test_lines_have_priorities_for_the_journal_and_are_objects_as_json() -> None:
    found = lines("info", "journal")
    assert found[0].startswith("<6>controller.started") and found[0].endswith("drones=2")
    assert found[1].startswith("<4>site.poll_failed") and "no answer" in found[1]
    assert len(found) > 4 and all(line.startswith("<3>") for line in found[2:]), (
        "each line of a traceback"
    )
    warning, error = (json.loads(line) for line in lines("warning", "json"))
    assert (warning["event"], warning["level"], warning["message"]) == (
        "site.poll_failed",
        "warning",
        "no answer",
    )
    assert warning["timestamp"].endswith("Z")
    assert (error["event"], error["level"]) == ("planner.failed", "error")
    assert "ZeroDivisionError" in error["exception"]


def test_stderr_that_leads_to_the_journal_is_found_out_by_itself() -> None:
    reader, writer = os.pipe()
    seen = os.fstat(writer)
    lines("info", stderr=writer, env={"JOURNAL_STREAM": f"{seen.st_dev}:{seen.st_ino}"})
    os.close(writer)
    with os.fdopen(reader, "rb") as journal:
        assert journal.readline().startswith(b"<6>controller.started")
    assert "<6>" not in lines("info", env={"JOURNAL_STREAM": "1:1"})[0]


@dataclass
class Talking(Place):
    """A site that has the console output of its drones, or fails to give it."""

    output: str = ""

    def console_output(self) -> dict[model.DroneId, str]:
        if not self.output:
            raise OSError("console server is down")
        return dict.fromkeys(self.running, self.output)


@in_virtual_time
async def test_console_output_is_recorded_even_if_another_site_fails_to_give_its_own() -> None:
    silent, here, store = (
        Talking("a-silent"),
        Talking("here", output="no GPU found"),
        TemporaryStore("kit", 1e9, 10),
    )
    known = model.DroneId("kit-mem0-1")
    async with serving(silent, here, store=store, max_drones=1) as controller:
        await run_for(controller, 30)
        assert known in store.drones
        here.running[known] = model.RemoteDrone(known, model.RemoteState.RUNNING, "r-1")
        with capture_logs() as logs:
            await run_for(controller, 30)
    assert store.reader().last_output(known) == "no GPU found"
    assert {log["site"] for log in logs if log["event"] == "console_output.read_failed"} == {
        "a-silent"
    }


@in_virtual_time
async def test_a_job_has_waited_for_no_longer_than_the_record_has_seen_it_wait() -> None:
    made_up = replace(JOB, id="made-up", oldest_at=1000.0, idle_at=1000.0)
    honest = replace(JOB, id="honest", oldest_at=EPOCH + 300.0, idle_at=EPOCH + 400.0)
    store, pool = TemporaryStore("kit", 1e9, 10), Pool(classes=(made_up,))

    def waits() -> dict[str, tuple[float, float]]:
        snapshot = store.reader().snapshot()
        assert snapshot is not None and snapshot.overlay.view is not None
        return {job.id: (job.oldest_at, job.idle_at) for job in snapshot.overlay.view.classes}

    async with serving(Place(), store=store, pool=pool) as controller:
        await run_for(controller, 60)
        first_seen = waits()["made-up"][0]
        assert EPOCH <= first_seen <= EPOCH + 60 and waits()["made-up"][1] == first_seen
        pool.classes = (made_up, honest)
        planned = list[model.JobClass]()

        def decide_and_note(snapshot: model.Snapshot) -> model.Plan:
            assert snapshot.overlay.view is not None
            planned.extend(job for job in snapshot.overlay.view.classes if job.id == "made-up")
            return decide(snapshot)

        controller.planner = decide_and_note
        await run_for(controller, 540)
        assert len({id(job) for job in planned}) == 1 < len(planned), "it is not worked out anew"
        assert waits() == {
            "made-up": (first_seen, first_seen),
            "honest": (EPOCH + 300.0, EPOCH + 400.0),
        }
    async with serving(Place(), store=store, pool=pool) as controller:
        await run_for(controller, 60)
        assert waits()["made-up"] == (first_seen, first_seen), "a restart forgets nothing"


class StuckStore(TemporaryStore):
    """A store whose disk no longer answers."""

    async def record(self, plan: model.Plan, snapshot: model.Snapshot) -> None:
        await asyncio.sleep(inf)


@in_virtual_time
async def test_a_turn_that_hangs_is_no_progress_and_a_long_pause_is() -> None:
    loop = asyncio.get_running_loop()
    for store, progresses in ((TemporaryStore(), True), (StuckStore(), False)):
        async with serving(Place(), store=store) as controller:
            controller.policy = replace(controller.policy, interval_s=10 * TURN_LIMIT_S)
            running = asyncio.create_task(controller.run(asyncio.Event()))
            ends = loop.time() + 2.5 * TURN_LIMIT_S
            while loop.time() < ends:
                assert controller.is_making_progress() or not progresses
                await asyncio.sleep(TURN_LIMIT_S / 4)
            assert controller.is_making_progress() == progresses
            running.cancel()
            await asyncio.wait([running])
