"""Each trouble that once hid behind "no trouble on record" is one line, and alarms with the right exit code."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner import model as m
from provisioner.accounting.reports import GPU_HOUR, budget_use
from provisioner.answers import troubles as trouble_lists
from provisioner.answers.troubles import (
    OperatorTrouble,
    Severity,
    TroubleContext,
    check_line,
    troubles,
)
from provisioner.reasons import BadRequest, IdleDroneRefuses, Reason
from provisioner.store import Event, Holder, Views
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.cli.conftest import CONTROLLER, Cli

NOW = 1.7e9
JOBS = m.JobClass("7", 1000, 1, 1024, waiting=2, fresh=1, oldest_at=NOW - 400)
OVERLAY = m.OverlayView(NOW - 2, (JOBS,), negotiated_at=NOW - 20)
SITE = m.SiteView("here", NOW - 1)
CALM = TroubleContext(
    NOW,
    Holder(1, "host", NOW - 5000),
    Views(
        9,
        NOW - 3,
        m.Policy(sites={"here": m.SitePolicy("here")}),
        (),
        m.PolledOverlay(OVERLAY),
        {"here": m.PolledSite("here", SITE)},
    ),
    None,
    (),
    (JOBS,),
    free_bytes=1 << 30,
)


def views(
    overlay: m.PolledOverlay | None = None, here: m.PolledSite | None = None, at: float = NOW - 3
) -> Views:
    assert CALM.views is not None
    return replace(
        CALM.views,
        at=at,
        overlay=overlay or CALM.views.overlay,
        sites={"here": here or CALM.views.sites["here"]},
    )


def ended(number: int) -> m.Drone:
    words = f"drone=kit-{number} exit=74 reason=no-condor why=condor_master%20is%20missing"
    key, at = m.TypeKey("here/a100"), NOW - 50
    return m.Drone(
        m.DroneId(f"kit-{number}"),
        key,
        m.DroneState.FAILED,
        at,
        NOW - 99,
        1000,
        ended_at=at,
        site_reason=words,
    )


def overlay(fault: m.Fault | None = None, **changed: Any) -> dict[str, Any]:
    """Return the facts with another view of the pool."""
    return {"views": views(m.PolledOverlay(replace(OVERLAY, **changed), fault))}


def breaker(
    scope: str, fault: m.Fault, state: m.BreakerState = m.BreakerState.BANNED, failures: int = 0
) -> dict[str, Any]:
    until = NOW + 60 if state is m.BreakerState.BANNED else 0.0
    return {
        "breakers": (
            m.Breaker(m.Scope.parse(scope), state, failures=failures, until=until, fault=fault),
        )
    }


def event(name: str, ago_s: float = 60, **fields: str | float) -> dict[str, Any]:
    return {"events": (Event(1, NOW - ago_s, name, fields),)}


def refused(subject: str, count: int, reason: Reason) -> dict[str, Any]:
    return {"plan": m.Plan(1, NOW, refusals=(m.Refusal(m.Subject.parse(subject), count, reason),))}


EATEN = m.Fault(m.FaultKind.BLACK_HOLE, "kit-7: job 7.3 held with code 12", NOW)
BANNED = m.Fault(
    m.FaultKind.DRONE,
    "kit-1 ended failed: drone=kit-1 exit=74 reason=lost why=is%20missing",
    NOW - 9,
)
SHARED = m.Fault(m.FaultKind.JOBS, "job 7.3 in kit-3: faulted on a shared GPU", NOW - 9)
UNPLACED = m.Fault(m.FaultKind.CONFIG, "2 node(s) didn't match Pod's node affinity.", NOW - 9)
MISFIT = m.Fault(m.FaultKind.JOBS, "no job of the class was given to kit-3", NOW - 9)
THREE_ENDED = {"ended": tuple(map(ended, range(1, 4)))}
REFUSED = replace(ended(1), state=m.DroneState.BUSY, drain_refusal="not on PATH")
UNWELCOME = IdleDroneRefuses("kit-1", "here/a100", "excluded_users", 2, NOW + 60)
CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"holder": None}, "critical controller", "no controller runs"),
    ({"views": views(at=NOW - 145)}, "critical controller", "no tick recorded for 2m25s"),
    ({"views": None}, "critical controller", "no tick recorded"),
    ({"free_bytes": 1 << 20}, "critical controller", "1 MiB free"),
    (
        overlay(m.Fault(m.FaultKind.DOWN, "Connection refused", NOW)),
        "critical overlay",
        "Connection refused",
    ),
    (
        overlay(negotiated_at=NOW - 410),
        "critical overlay",
        "no negotiation cycle for 6m48s although 3 jobs wait",
    ),
    (
        breaker("here/a100", BANNED),
        "warning type:here/a100",
        "`provisioner sites reset here --type a100`",
    ),
    (breaker("here/a100", UNPLACED), "warning type:here/a100", "node affinity. After the repair"),
    (breaker("here", BANNED), "warning site:here", "`provisioner sites reset here`"),
    (breaker("user:ann", SHARED), "note user:ann", "exclusive GPUs only until 2"),
    (
        breaker("user:ann", SHARED, m.BreakerState.DEGRADED),
        "note user:ann",
        "failures on shared GPUs: job 7.3 in",
    ),
    (
        breaker("here@n1", EATEN, failures=2),
        "warning site:here",
        "jobs failed in 2 drones on it: kit-7: job 7.3 held with",
    ),
    (
        event("drone.black_hole", drone="kit-7", why="jobs fail in it"),
        "warning drone:kit-7",
        "its node (1m ago): jobs fail in it",
    ),
    (
        breaker("here/a100#7", MISFIT),
        "note class:7",
        "no drone of here/a100 is started for this class until ",
    ),
    (
        event("config.rejected", problems="site.yaml:3:1 unknown key"),
        "warning controller",
        "unknown key",
    ),
    (event("clock.stepped", drift_s=600.0), "warning controller", "600"),
    (
        {"refusing": (REFUSED,)} | event("drain.rejected", drone="kit-1", why="off"),
        "warning drone:kit-1",
        "not on PATH",
    ),
    (
        event("clock.doubted", 900, drift_s=7200.0, advice="Set the clock"),
        "warning controller",
        "Set the clock",
    ),
    (event("store.outdated", 900, newest_serial=9), "warning controller", "older than the drones"),
    (
        THREE_ENDED,
        "warning type:here/a100",
        "3 drones failed within an hour, the last: no-condor: condor_master is",
    ),
    (overlay(notices=("schedd b denies",)), "warning overlay", "schedd b denies"),
    (
        refused("class:7", 3, BadRequest("2000 of a GPU")),
        "note class:7",
        "classes that can never start: 7",
    ),
    (
        refused("class:7", 0, UNWELCOME),
        "note drone:kit-1",
        "jobs wait although it is idle: refused by 2 idle drones",
    ),
]


def test_a_calm_controller_has_no_trouble() -> None:
    assert troubles(CALM) == []
    assert check_line([], "4 drones") == (0, "PROVISIONER OK - 4 drones")


@pytest.mark.parametrize(("facts", "about", "words"), CASES)
def test_a_trouble_is_one_line_with_its_subject_and_alarms(
    facts: dict[str, Any], about: str, words: str
) -> None:
    severity, _, subject = about.partition(" ")
    (found,) = troubles(CALM._replace(**facts))
    assert (found.severity, found.subject) == (severity, subject)
    assert words in found.text and "%20" not in found.text
    code, line = check_line([found], "calm")
    assert code == {"critical": 2, "warning": 1, "note": 0}[severity]
    assert line.startswith(
        ("PROVISIONER OK - calm", "PROVISIONER WARNING - ", "PROVISIONER CRITICAL - ")
    )


@pytest.mark.parametrize(
    "events",
    [
        (Event(1, NOW - 60, "config.rejected", {}), Event(2, NOW - 50, "config.reloaded", {})),
        (Event(1, NOW - 60, "plan.rejected", {}), Event(2, NOW - 50, "plan.accepted", {})),
        (Event(1, NOW - 9000, "config.rejected", {}),),  # before this controller started
        (Event(1, NOW - 60, "drain.rejected", {"drone": "kit-9"}),),  # the drone has left
        (Event(1, NOW - 4000, "keep-failed", {}),),
    ],
)
def test_what_is_over_is_no_trouble(events: tuple[Event, ...]) -> None:
    assert troubles(CALM._replace(events=events)) == []


def test_a_type_without_room_and_jobs_just_seen_are_no_trouble() -> None:
    full = breaker("here/a100", m.Fault(m.FaultKind.CAPACITY, "full", NOW))
    assert troubles(CALM._replace(**full)) == []
    new = replace(JOBS, waiting=0, oldest_at=NOW - 30)
    assert troubles(CALM._replace(**overlay(negotiated_at=0.0), waiting=(new,))) == []


def test_status_check_is_one_line_with_the_exit_code_of_a_monitoring_plugin(
    on: Cli, cli: Cli, tmp_path: Path
) -> None:
    down = on("status", "--check")
    assert down.code == 2 and down.err == ""
    (line,) = down.lines
    assert line.startswith("PROVISIONER CRITICAL - controller: no controller runs")
    assert line.split(" | ")[1].startswith("drones=3 idle_jobs=50")
    gone = cli("status", "--check", "--store", tmp_path / "none.db")
    assert gone.code == 3 and gone.lines[0].startswith("PROVISIONER UNKNOWN - no record")
    (tmp_path / "bad.db").write_text("no database")
    assert cli("status", "--check", "--store", tmp_path / "bad.db").code == 3


def test_status_shows_troubles_and_ends_with_0_whatever_they_are(cli: Cli, running: Path) -> None:
    ran = cli("status", "--store", running, "-o", "json")
    assert ran.code == 0 and ran.json["pid"] == os.getpid()
    found = {(t["severity"], t["subject"]) for t in ran.json["troubles"]}
    assert (
        ("warning", "site:horeka") in found
        and ("warning", "overlay") in found
        and ("note", "class:9") in found
    )
    assert not any(severity == Severity.CRITICAL for severity, _ in found)
    assert cli("status", "--check", "--store", running).code == 1


def test_a_ban_is_lifted_through_the_record_and_a_misspelling_is_not_recorded(
    on: Cli, reader: Reader
) -> None:
    ran = on("sites", "reset", "horeka", "--reason", "token renewed")
    assert ran.code == 0 and "request 1 recorded: use horeka again" in ran.err
    snapshot = reader.snapshot()
    assert snapshot is not None
    assert [(r.kind, r.drone_ids, r.reason) for r in snapshot.requests] == [
        (m.RequestKind.RESET, ("horeka",), "token renewed")
    ]
    calm = on("sites", "reset", "topas", "--type", "a100")
    assert calm.code == 0 and "topas/a100 is not banned" in calm.err
    for wrong in (("horka",), ("horeka", "--type", "h1000")):
        refused = on("sites", "reset", *wrong)
        assert refused.code == 1 and "horeka" in refused.err
    after = reader.snapshot()
    assert after is not None and len(after.requests) == 1


async def test_a_ban_of_a_node_alone_is_lifted_with_its_site(on: Cli, record: Path) -> None:
    async with SqlStore(record, CONTROLLER, 1e9, 10) as store:
        fault = m.Fault(m.FaultKind.BLACK_HOLE, "3 drones on it failed jobs", NOW)
        banned = m.Breaker(
            m.Scope("topas", node="n1"), m.BreakerState.BANNED, failures=3, until=NOW, fault=fault
        )
        await store.record_results(store.tick, (), [banned])
    ran = on("sites", "reset", "topas", "--reason", "disk repaired")
    assert ran.code == 0 and "recorded: use topas@n1 again" in ran.err


async def test_the_faults_of_a_user_are_told_with_the_job_and_forgotten_on_request(
    on: Cli, record: Path
) -> None:
    reset = on("sites", "reset", "user:ann")
    assert reset.code == 0 and "user:ann is not banned" in reset.err
    async with SqlStore(record, CONTROLLER, 1e9, 10) as store:
        cause = ("ann", "ended by the fault of a neighbour on a shared GPU", m.Blame.COLLATERAL)
        told = m.JobFailure(m.DroneId("kit-3"), "submit.test#204.2", NOW, *cause)
        known = m.Breaker(m.Scope(user="ann"), m.BreakerState.DEGRADED, faults=(told,))
        await store.record_results(store.tick, (), [known])
    assert "neighbour on a shared GPU in kit-3" in on("explain", "job", "204.2").err
    assert "neighbour" not in on("explain", "job", "204.3").err
    reset = on("sites", "reset", "user:ann", "--reason", "fixed")
    assert reset.code == 0 and "recorded: forget the faults of user:ann" in reset.err


def test_a_type_that_fails_has_one_line() -> None:
    facts = CALM._replace(**THREE_ENDED, **breaker("here/a100", BANNED, failures=3))
    assert [t.subject for t in troubles(facts)] == ["type:here/a100"]
    assert [t.kind for t in troubles(CALM._replace(**THREE_ENDED))] == ["drones-failed"]


def test_notes_alone_are_no_troubles() -> None:
    note = OperatorTrouble(Severity.NOTE, "hopeless", "classes", "x")
    bad = OperatorTrouble(Severity.WARNING, "unfit", "type:a/b", "x")
    titles = [trouble_lists.title(found) for found in ([], [note], [note, bad])]
    assert titles == ["Troubles", "Notes: 1", "Troubles: 2"]


def test_what_settles_after_an_outage_is_said_and_does_not_alarm() -> None:
    """Nothing was started for a minute, and only `demand` said why."""
    settles = m.Breaker(m.Scope("overlay"), m.BreakerState.ACTIVE, until=NOW + 30)
    (found,) = troubles(CALM._replace(breakers=(settles,)))
    assert (found.kind, found.subject, found.severity) == ("settling", "overlay", Severity.NOTE)
    assert troubles(CALM._replace(breakers=(replace(settles, until=NOW - 1),))) == []


async def test_status_names_its_controller_while_no_drone_lives(cli: Cli, tmp_path: Path) -> None:
    async with SqlStore(tmp_path / "record.db", CONTROLLER, 1e9, 0):
        told = cli("status", "--store", tmp_path / "record.db", "-o", "json").json
    assert (told["running"], told["live_drones"], told["controller"]) == (True, 0, CONTROLLER)


@pytest.mark.parametrize(
    ("used_h", "until", "found"),
    [(99.0, "2023-11-30", 0), (100.0, "2023-11-30", 1), (120.0, "2023-11-13", 0)],
)
def test_a_budget_that_is_used_up_is_a_trouble_until_its_last_day(
    used_h: float, until: str, found: int
) -> None:
    budget = m.GpuBudget("here", 100.0, "2023-11-01", until)  # NOW is on 14 November
    use = budget_use(budget, round(used_h * GPU_HOUR), 0)
    shown = [each for each in troubles(CALM._replace(budgets=[use])) if each.kind == "budget-used"]
    assert [each.subject for each in shown] == ["site:here"] * found
    assert check_line(shown, "")[0] == found
