"""Each trouble that once hid behind "no trouble on record" is one line, and alarms with the right exit code."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.cli.troubles import Severity, TroubleContext, check_line, troubles
from provisioner.model import (
    Breaker,
    BreakerState,
    Drone,
    DroneId,
    DroneState,
    Fault,
    FaultKind,
    JobClass,
    OverlayView,
    Plan,
    Policy,
    PolledOverlay,
    PolledSite,
    Refusal,
    RequestKind,
    SitePolicy,
    SiteView,
    TypeKey,
)
from provisioner.reasons import BadRequest, TooManyUnhealthy
from provisioner.store import Event, Holder, Views
from provisioner.store.reader import Reader
from tests.cli.conftest import Cli

NOW = 1.7e9
JOBS = JobClass("7", 1000, 1, 1024, waiting=2, fresh=1, oldest_at=NOW - 400)
OVERLAY = OverlayView(NOW - 2, (JOBS,), negotiated_at=NOW - 20)
SITE = SiteView("here", NOW - 1)
CALM = TroubleContext(
    NOW,
    Holder(1, "host", NOW - 5000),
    Views(
        9,
        NOW - 3,
        Policy(sites={"here": SitePolicy("here")}),
        (),
        PolledOverlay(OVERLAY),
        {"here": PolledSite("here", SITE)},
    ),
    None,
    (),
    (JOBS,),
    free_bytes=1 << 30,
)


def views(overlay: PolledOverlay | None = None, here: PolledSite | None = None, at: float = NOW - 3) -> Views:
    assert CALM.views is not None
    return replace(
        CALM.views, at=at, overlay=overlay or CALM.views.overlay, sites={"here": here or CALM.views.sites["here"]}
    )


def ended(number: int) -> Drone:
    words = f"drone=kit-{number} exit=74 reason=no-condor why=condor_master%20is%20missing"
    return Drone(
        DroneId(f"kit-{number}"),
        TypeKey("here/a100"),
        DroneState.FAILED,
        NOW - 50,
        NOW - 99,
        1000,
        ended_at=NOW - 50,
        site_reason=words,
    )


EATEN = Fault(FaultKind.BLACK_HOLE, "kit-7: job 7.3 held with code 12", NOW)
BANNED = Fault(FaultKind.DRONE, "kit-1 ended failed: drone=kit-1 exit=74 reason=no-condor why=is%20missing", NOW - 9)
CASES = {
    "controller down": (replace(CALM, holder=None), "critical", "controller", "no controller runs"),
    "disk full, no tick recorded": (
        replace(CALM, views=views(at=NOW - 145)),
        "critical",
        "controller",
        "no tick recorded for 2m25s",
    ),
    "no tick since the start": (replace(CALM, views=None), "critical", "controller", "no tick recorded"),
    "little room": (replace(CALM, free_bytes=1 << 20), "critical", "controller", "1 MiB left"),
    "pool lost": (
        replace(CALM, views=views(PolledOverlay(OVERLAY, Fault(FaultKind.DOWN, "Connection refused", NOW)))),
        "critical",
        "overlay",
        "Connection refused",
    ),
    "negotiator dead": (
        replace(CALM, views=views(PolledOverlay(replace(OVERLAY, negotiated_at=NOW - 410)))),
        "critical",
        "overlay",
        "no negotiation cycle for 6m48s although 3 jobs wait",
    ),
    "negotiator never seen": (
        replace(CALM, views=views(PolledOverlay(replace(OVERLAY, negotiated_at=0.0)))),
        "critical",
        "overlay",
        "no negotiation cycle known although 3 jobs wait",
    ),
    "type banned": (
        replace(CALM, breakers=(Breaker("here/a100", BreakerState.BANNED, until=NOW + 60, fault=BANNED),)),
        "warning",
        "type:here/a100",
        "is missing. After the repair: `provisioner sites reset here --type a100`",
    ),
    "site banned": (
        replace(CALM, breakers=(Breaker("here", BreakerState.BANNED, until=NOW + 60, fault=BANNED),)),
        "warning",
        "site:here",
        "`provisioner sites reset here`",
    ),
    "node avoided": (
        replace(CALM, breakers=(Breaker("here@n1", BreakerState.BANNED, failures=2, until=NOW + 60, fault=EATEN),)),
        "warning",
        "site:here",
        "2 drones on it ate jobs: kit-7: job 7.3 held with code 12. After the repair: `provisioner sites reset here`",
    ),
    "node watched": (
        replace(CALM, breakers=(Breaker("here@n1", BreakerState.DEGRADED, failures=1, fault=EATEN),)),
        "warning",
        "site:here",
        "node n1 watched, 1 drone on it ate jobs",
    ),
    "drone eats jobs": (
        replace(CALM, events=(Event(1, NOW - 60, "drone.black_hole", {"drone": "kit-7", "why": "eats jobs on n1"}),)),
        "warning",
        "drone:kit-7",
        "look at its node (1m ago): eats jobs on n1",
    ),
    "site lost": (
        replace(CALM, views=views(here=PolledSite("here", SITE, Fault(FaultKind.DENIED, "expired", NOW)))),
        "warning",
        "site:here",
        "expired",
    ),
    "view old": (
        replace(CALM, views=views(here=PolledSite("here", replace(SITE, taken_at=NOW - 300)))),
        "warning",
        "site:here",
        "5m old",
    ),
    "reload refused": (
        replace(CALM, events=(Event(1, NOW - 60, "config.rejected", {"problems": "site.yaml:3:1 unknown key"}),)),
        "warning",
        "controller",
        "unknown key",
    ),
    "plan refused": (
        replace(CALM, events=(Event(1, NOW - 60, "plan.rejected", {"faults": "decide failed: ZeroDivisionError"}),)),
        "warning",
        "controller",
        "ZeroDivisionError",
    ),
    "clock set": (
        replace(CALM, events=(Event(1, NOW - 60, "clock.stepped", {"drift_s": 600.0}),)),
        "warning",
        "controller",
        "600",
    ),
    "drain refused": (
        replace(
            CALM,
            live=(replace(ended(1), state=DroneState.BUSY, drain_refusal="not on PATH"),),
            events=(Event(1, NOW - 60, "drain.rejected", {"drone": "kit-1", "why": "not on PATH"}),),
        ),
        "warning",
        "drone:kit-1",
        "not on PATH",
    ),
    "clock doubted at start": (
        replace(CALM, events=(Event(1, NOW - 900, "clock.doubted", {"drift_s": 7200.0, "advice": "Set the clock"}),)),
        "warning",
        "controller",
        "Set the clock",
    ),
    "backup restored": (
        replace(CALM, events=(Event(1, NOW - 900, "store.outdated", {"newest_serial": 9}),)),
        "warning",
        "controller",
        "older than what runs",
    ),
    "drones fail": (
        replace(CALM, ended=tuple(map(ended, range(1, 4)))),
        "warning",
        "type:here/a100",
        "3 drones failed within an hour, the last: no-condor: condor_master is missing",
    ),
    "a schedd denies": (
        replace(CALM, views=views(PolledOverlay(replace(OVERLAY, notices=("schedd b denies",))))),
        "warning",
        "overlay",
        "schedd b denies",
    ),
    "an odd request": (
        replace(CALM, views=views(PolledOverlay(replace(OVERLAY, remarks=("class 7: GpuDuty = 7",))))),
        "note",
        "overlay",
        "class 7: GpuDuty = 7",
    ),
    "brake": (
        replace(CALM, plan=Plan(1, NOW, refusals=(Refusal("all", 9, TooManyUnhealthy(9, 20, 0.2)),))),
        "warning",
        "controller",
        "look unhealthy",
    ),
    "hopeless class": (
        replace(CALM, plan=Plan(1, NOW, refusals=(Refusal("class:7", 3, BadRequest("2000 of a GPU")),))),
        "note",
        "class:7",
        "classes that can never start: 7",
    ),
}


def test_a_calm_controller_has_no_trouble() -> None:
    assert troubles(CALM) == []
    assert check_line([], "4 drones") == (0, "PROVISIONER OK - 4 drones")


@pytest.mark.parametrize("case", CASES)
def test_a_trouble_is_one_line_with_its_subject_and_alarms(case: str) -> None:
    facts, severity, subject, words = CASES[case]
    (found,) = troubles(facts)
    assert (found.severity, found.subject) == (severity, subject)
    assert words in found.text and "%20" not in found.text
    code, line = check_line([found], "calm")
    assert code == {"critical": 2, "warning": 1, "note": 0}[severity]
    assert line.startswith(("PROVISIONER OK - calm", "PROVISIONER WARNING - ", "PROVISIONER CRITICAL - "))


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
    assert troubles(replace(CALM, events=events)) == []


def test_a_type_without_room_and_jobs_just_seen_are_no_trouble() -> None:
    full = Breaker("here/a100", BreakerState.BANNED, until=NOW + 60, fault=Fault(FaultKind.CAPACITY, "full", NOW))
    assert troubles(replace(CALM, breakers=(full,))) == []
    new = replace(JOBS, waiting=0, oldest_at=NOW - 30)
    quiet = views(PolledOverlay(replace(OVERLAY, negotiated_at=0.0)))
    assert troubles(replace(CALM, views=quiet, waiting=(new,))) == []


def test_status_check_is_one_line_with_the_exit_code_of_a_monitoring_plugin(on: Cli, cli: Cli, tmp_path: Path) -> None:
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
    assert ("warning", "site:horeka") in found and ("warning", "overlay") in found and ("note", "class:9") in found
    assert not any(severity == Severity.CRITICAL for severity, _ in found)
    assert cli("status", "--check", "--store", running).code == 1


def test_a_ban_is_lifted_through_the_record_and_a_misspelling_is_not_recorded(on: Cli, reader: Reader) -> None:
    ran = on("sites", "reset", "horeka", "--reason", "token renewed")
    assert ran.code == 0 and "request 1 recorded: use horeka again" in ran.err
    snapshot = reader.snapshot()
    assert snapshot is not None
    assert [(r.kind, r.drone_ids, r.reason) for r in snapshot.requests] == [
        (RequestKind.RESET, ("horeka",), "token renewed")
    ]
    calm = on("sites", "reset", "topas", "--type", "a100")
    assert calm.code == 0 and "topas/a100 is not banned" in calm.err
    for wrong in (("horka",), ("horeka", "--type", "h1000")):
        refused = on("sites", "reset", *wrong)
        assert refused.code == 1 and "horeka" in refused.err
    assert request_count(reader) == 1


def request_count(reader: Reader) -> int:
    snapshot = reader.snapshot()
    return len(snapshot.requests) if snapshot else 0


def test_a_class_that_backs_off_is_a_note_for_its_type_serves_the_others() -> None:
    fault = Fault(FaultKind.JOBS, "no job of the class was given to kit-3", NOW - 9)
    breaker = Breaker("here/a100#7", BreakerState.BANNED, until=NOW + 60, fault=fault)
    (found,) = troubles(replace(CALM, breakers=(breaker,)))
    assert (found.severity, found.subject) == ("note", "class:7")
    assert found.text.startswith("no drone of here/a100 is started for it until ")
