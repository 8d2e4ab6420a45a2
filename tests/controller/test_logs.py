"""Log lines: a failed decision costs one traceback without variables, lines carry reasons, levels fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from structlog.testing import capture_logs

from provisioner.interfaces import AuthError
from provisioner.logs import LogFormat, LogLevel, log_to_stderr
from provisioner.simulator.loop import run_virtual
from tests.controller.world import Place, serving
from tests.store.story import TemporaryStore

EPOCH = 1.7e9


@pytest.fixture(autouse=True)
def _logging_as_before() -> object:
    import structlog

    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("form", list(LogFormat))
def test_a_decision_that_fails_at_each_tick_is_logged_once_and_without_variables(
    form: LogFormat, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Core 2: rich's traceback with all local variables took a minute per tick and named users."""
    log_to_stderr(LogLevel.INFO, form)

    def fails(snapshot: object) -> object:
        secret = "owner-of-the-jobs"  # noqa: F841 - a local variable must not get into the log
        return 1 / 0

    async def story() -> float:
        async with serving(Place(), store=TemporaryStore("kit", 1e9, 10)) as controller:
            monkeypatch.setattr(controller, "planner", fails)
            began = time.process_time()
            for _ in range(20):
                await controller.tick()
            return time.process_time() - began

    run_virtual(story(), start_epoch=EPOCH)
    text = capsys.readouterr().err
    assert text.count("ZeroDivisionError: division by zero") > 0
    assert text.count("Traceback") == 1
    assert "owner-of-the-jobs" not in text and "secret =" not in text.replace('secret = "owner', "")
    assert text.count("planner.failed") == 5, "the 1st, 2nd, 4th, 8th and 16th"
    assert "16" in text
    assert len(text) < 10_000


def test_a_decision_that_works_again_says_after_how_many_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
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

    run_virtual(story(), start_epoch=EPOCH)


def test_a_refused_order_and_the_ban_after_it_are_warnings_with_their_reasons() -> None:
    """BUG H: `move ... why=order-refused` at level info for "Permission denied", and no line for the ban."""

    async def denied() -> None:
        raise AuthError("/srv/drones: Permission denied")

    async def story() -> None:
        here = Place(start_wire=denied)
        with capture_logs() as told:
            async with serving(here) as controller:
                for _ in range(3):
                    await controller.tick()
        (start,) = (e for e in told if e["event"] == "drone.start_ordered")
        assert start["reason"] == "jobs-waiting" and "wait" in start["why"]
        refused = [e for e in told if e["event"] == "drone.state_changed" and e["reason"] == "order-refused"]
        assert refused and all(e["log_level"] == "warning" and "Permission denied" in e["why"] for e in refused)
        (ban,) = (e for e in told if e["event"] == "breaker.changed" and e["state"] == "banned")
        assert (ban["log_level"], ban["scope"], ban["fault"]) == ("warning", "here", "denied")
        assert "Permission denied" in ban["why"] and ban["until"].endswith("Z")

    run_virtual(story(), start_epoch=EPOCH)


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


def lines(*options: str, env: dict[str, str] | None = None) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", LINES, *options],
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr.splitlines()


def test_lines_for_the_journal_have_priorities_and_no_time_of_their_own() -> None:
    found = lines("info", "journal")
    assert found[0].startswith("<6>controller.started") and found[0].endswith("drones=2")
    assert found[1].startswith("<4>site.poll_failed") and "no answer" in found[1]
    assert len(found) > 4 and all(line.startswith("<3>") for line in found[2:]), "each line of a traceback"


def test_stderr_that_leads_to_the_journal_is_found_out_by_itself() -> None:
    reader, writer = os.pipe()
    seen = os.fstat(writer)
    env = os.environ | {"JOURNAL_STREAM": f"{seen.st_dev}:{seen.st_ino}"}
    with os.fdopen(reader, "rb") as journal:
        subprocess.run([sys.executable, "-c", LINES, "info"], env=env, stderr=writer, timeout=60, check=True)
        os.close(writer)
        assert journal.readline().startswith(b"<6>controller.started")
    assert "<6>" not in lines("info", env={"JOURNAL_STREAM": "1:1"})[0]


def test_json_lines_are_objects_and_the_level_cuts_off() -> None:
    found = [json.loads(line) for line in lines("warning", "json")]
    assert [(e["event"], e["level"]) for e in found] == [("site.poll_failed", "warning"), ("planner.failed", "error")]
    assert found[0]["message"] == "no answer" and found[0]["timestamp"].endswith("Z")
    assert "ZeroDivisionError" in found[1]["exception"]
