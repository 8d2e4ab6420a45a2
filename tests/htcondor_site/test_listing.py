"""Our jobs' ads become drones. The ads are such as HTCondor 23.9.6 and 25.14.1 gave for drones that ended so."""

from __future__ import annotations

from typing import Any

import classad2
import pytest

from adapters.htcondor.site.listing import DroneJobsView, leaves_until, list_drones, our_jobs
from provisioner.model import DroneId, EndKind, FaultKind, RemoteDrone, RemoteState
from provisioner.planner.breakers import BACKOFF_POLICIES
from tests.htcondor_site.orders import CONTROLLER

NOW = 1_795_262_650.0
OURS = "provisioner: asked to leave (by user alice)"
BY_POLICY = "The job attribute PeriodicRemove expression '(JobStatus == 1 ...' evaluated to TRUE"
RUNS = {
    "JobStatus": 2,
    "LastJobStatus": 1,
    "NumJobStarts": 1,
    "RemoteHost": "slot1_2@a1.example.org",
    "JobCurrentStartDate": NOW - 100,
    "JobCurrentStartExecutingDate": NOW - 99,
    "EnteredCurrentStatus": NOW - 100,
}
RAN = {
    **RUNS,
    "RemoteHost": None,
    "LastRemoteHost": "slot1_2@a1.example.org",
    "LastVacateTime": NOW - 20,
}


def ad(serial: int = 1, **values: object) -> classad2.ClassAd:
    """One of ours; None takes an attribute away."""
    ours = {
        "ClusterId": 7,
        "ProcId": serial,
        "DroneId": f"{CONTROLLER}-ab12-{serial}",
        "DroneType": "a100",
        "DroneGraceS": 10,
        "DroneInputs": "d1",
        "ServerTime": NOW,
        "QDate": NOW - 500,
        "NumJobStarts": 0,
        "EnteredCurrentStatus": NOW - 20,
        "LastHoldReasonCode": 16,
        "ExitBySignal": False,
        **values,
    }
    return classad2.ClassAd({name: value for name, value in ours.items() if value is not None})


def listed(*ads: classad2.ClassAd, **more: Any) -> DroneJobsView:
    return list_drones(ads, CONTROLLER, now=NOW, **more)


def drone(noticed: dict[str, float] | None = None, **values: object) -> RemoteDrone:
    found = listed(ad(**values), noticed=noticed or {})
    assert not found.notices
    return found.drones[DroneId(f"{CONTROLLER}-ab12-1")]


def test_an_idle_job_waits_and_says_why() -> None:
    waiting = drone(JobStatus=1)
    assert (waiting.state, waiting.remote_id, waiting.type) == (RemoteState.PENDING, "7.1", "a100")
    assert waiting.reason == "waits for the negotiator"
    assert (
        drone(JobStatus=1, LastRejMatchReason="no match found ").reason
        == "not matched: no match found"
    )
    again = drone(JobStatus=1, LastRemoteHost="slot1_2@a1.example.org")
    assert (again.state, again.node, again.slot) == (RemoteState.PENDING, "", ""), (
        "it could not be started there"
    )
    unknown = drone(**{**RUNS, "JobStatus": 7})
    assert (unknown.state, unknown.end) == (RemoteState.UNKNOWN, None), (
        "what we do not know is alive"
    )


def test_a_running_job_tells_its_node_and_slot() -> None:
    running, slot = drone(**RUNS), "slot1_2@a1.example.org"
    assert (running.state, running.node, running.slot) == (
        RemoteState.RUNNING,
        "a1.example.org",
        slot,
    )
    assert (running.started_at, running.notice_at, running.end) == (NOW - 100, 0.0, None)
    assert drone(**{**RUNS, "RemoteHost": "slot1_1@topas@a1.example.org"}).node == "a1.example.org"
    assert drone(**{**RUNS, "JobStatus": 6}).state is RemoteState.RUNNING
    matched = drone(JobStatus=2, JobCurrentStartDate=NOW - 1)
    assert (matched.state, matched.started_at) == (RemoteState.PENDING, 0.0), (
        "seen in 25.14: it has no slot yet"
    )
    assert drone({slot: NOW - 3, "slot1_3@a1.example.org": NOW - 9}, **RUNS).notice_at == NOW - 3, (
        "it is taken back"
    )


def test_a_removed_drone_lives_until_its_grace_is_over() -> None:
    leaving = {**RUNS, "JobStatus": 3, "LastJobStatus": 2, "RemoveReason": OURS}
    young = drone(
        {"slot1_2@a1.example.org": NOW - 4}, **{**leaving, "EnteredCurrentStatus": NOW - 4}
    )
    assert (young.state, young.reason) == (RemoteState.RUNNING, "removed; gone within 11 s")
    assert young.notice_at == 0.0, (
        "its slot is vacated because we asked: the site takes nothing back"
    )
    # The site was vacating it already: its job stays in the queue, removed and with its host, for
    # its lease.
    stuck = drone(**{**leaving, "EnteredCurrentStatus": NOW - 16})
    assert stuck.end is not None and stuck.end.kind is EndKind.STOPPED
    forged = ad(**{**leaving, "DroneGraceS": 10**11, "EnteredCurrentStatus": NOW})
    assert leaves_until(forged, NOW) <= NOW + 8 * 86400


REMOVED = {"JobStatus": 3, "RemoveReason": BY_POLICY}
BACK = {**RAN, "JobStatus": 1}  # evicted: idle again, and soon removed by its own policy
ENDS: list[tuple[dict[str, object], EndKind, int | FaultKind | None]] = [
    ({**RAN, "JobStatus": 3, "RemoveReason": OURS, "LastJobStatus": 2}, EndKind.STOPPED, None),
    ({"JobStatus": 3, "RemoveReason": OURS, "LastJobStatus": 1}, EndKind.STOPPED, None),
    ({**RAN, "JobStatus": 4, "ExitCode": 73, "CompletionDate": NOW - 20}, EndKind.EXITED, 73),
    ({**RAN, "JobStatus": 4, "ExitBySignal": True, "ExitSignal": 9}, EndKind.EXITED, 137),
    ({**BACK, "LastJobStatus": 2, "VacateReasonCode": 1005}, EndKind.PREEMPTED, None),
    ({**RAN, **REMOVED, "LastJobStatus": 1, "EnteredCurrentStatus": NOW}, EndKind.PREEMPTED, None),
    ({**RAN, "JobStatus": 3, "LastJobStatus": 1, "RemoveReason": OURS}, EndKind.PREEMPTED, None),
    ({**BACK, "NumJobStarts": 0}, EndKind.PREEMPTED, None),  # the count comes late
    ({**BACK, "VacateReasonCode": 1008}, EndKind.FAULT, FaultKind.NODE),  # its node was lost
    ({**BACK, "LastVacateTime": None, "NumShadowExceptions": 1}, EndKind.FAULT, FaultKind.NODE),
    # held, and soon removed by its own policy
    ({**REMOVED, "LastJobStatus": 5, "LastHoldReasonCode": 34}, EndKind.FAULT, FaultKind.DRONE),
    ({**REMOVED, "LastJobStatus": 5, "LastHoldReasonCode": 16}, EndKind.FAULT, FaultKind.UNKNOWN),
    # somebody else
    (
        {**RAN, **REMOVED, "LastJobStatus": 2, "RemoveReason": "via condor_rm (by root)"},
        EndKind.PREEMPTED,
        None,
    ),
    (
        {**REMOVED, "LastJobStatus": 1, "RemoveReason": "SYSTEM_PERIODIC_REMOVE"},
        EndKind.FAULT,
        FaultKind.CONFIG,
    ),
]


@pytest.mark.parametrize(("values", "kind", "detail"), ENDS)
def test_each_end_is_told_for_what_it_is(
    values: dict[str, object], kind: EndKind, detail: int | FaultKind | None
) -> None:
    ended = drone(**values)
    assert ended.end is not None and ended.state is RemoteState.ENDED
    assert (ended.end.kind, ended.end.exit_code if kind is EndKind.EXITED else ended.end.fault) == (
        kind,
        detail,
    )
    assert ended.end.at in (NOW - 20, NOW - 100), "when it was vacated, not when the policy saw it"


@pytest.mark.parametrize(
    ("code", "subcode", "kind"),
    [
        (13, 28, FaultKind.NODE),
        (13, 13, FaultKind.DENIED),
        (6, 13, FaultKind.NODE),
        (32, 0, FaultKind.QUOTA),
        (40, 0, FaultKind.CAPACITY),
        (999, 0, FaultKind.UNKNOWN),
        # over its memory: the jobs in the drone did that, and nothing is wrong with the type
        (21, 102, FaultKind.DRONE),
        (34, 0, FaultKind.DRONE),
        (21, 0, FaultKind.CONFIG),
    ],
)
def test_hold_reasons_are_told_apart(code: int, subcode: int, kind: FaultKind) -> None:
    held = drone(
        JobStatus=5,
        HoldReasonCode=code,
        HoldReasonSubCode=subcode,
        HoldReason="it\ndid\x1b not work",
    )
    assert held.end is not None
    assert held.end.fault is kind
    assert held.end.message == f"held ({code}/{subcode}): it did? not work"


def test_one_drone_held_by_hand_bans_neither_its_site_nor_its_type() -> None:
    """A `condor_hold` of one drone by an administrator banned the whole site."""
    held = drone(
        JobStatus=5,
        HoldReasonCode=1,
        HoldReasonSubCode=0,
        HoldReason="via condor_hold (by user admin)",
    )
    assert held.end is not None and held.end.fault is not None
    rule = BACKOFF_POLICIES[held.end.fault]
    assert (rule.per_type, rule.after) == (True, 3)


def test_the_schedds_times_are_told_by_our_clock() -> None:
    ahead = {
        name: value + 3600
        for name, value in RAN.items()
        if isinstance(value, float) and value > 10**9
    }
    evicted = drone(**{**RAN, **ahead, "JobStatus": 1, "ServerTime": NOW + 3600})
    assert evicted.end is not None
    assert (evicted.end.at, evicted.started_at) == (NOW - 20, NOW - 100)


def test_of_two_jobs_of_one_drone_the_living_counts() -> None:
    aborted = ad(
        1,
        ClusterId=6,
        JobStatus=3,
        LastJobStatus=5,
        RemoveReason="provisioner: its files never came",
    )
    once, twice = (
        listed(ad(1, **RUNS), aborted),
        listed(ad(1, **RUNS), ad(1, ClusterId=6, JobStatus=1, DroneEpoch=4)),
    )
    for found in (once, twice):
        assert [each.remote_id for each in found.drones.values()] == ["7.1"]
    assert not once.notices and "as 7.1 and 6.1 (epoch 4)" in twice.notices[0]
    assert (list(once.duplicates), list(twice.duplicates)) == ([], ["6.1"])


def test_files_are_in_use_while_a_job_has_not_ended() -> None:
    ads = [
        ad(1, **RUNS),
        ad(2, JobStatus=1, DroneInputs="d2"),
        ad(3, JobStatus=4, ExitCode=0, DroneInputs="d3"),
    ]
    found = listed(*ads, ad(4, JobStatus=1, User="grid@site.test"))
    assert (found.inputs, found.users) == ({"d1", "d2"}, {"grid@site.test"})


def test_a_stranger_with_our_tag_is_told_and_left_alone() -> None:
    found = listed(ad(1, DroneId="other-ab12-1", JobStatus=2), ad(2, DroneId=None, JobStatus=2))
    assert found.drones == {}
    assert len(found.notices) == 2


def test_the_tag_is_quoted() -> None:
    asked = classad2.ExprTree(our_jobs("main", 'a"b'))
    assert (
        asked.eval(classad2.ClassAd({"ProvisionerController": "main", "DroneSite": 'a"b'})) is True
    )
    assert (
        asked.eval(classad2.ClassAd({"ProvisionerController": "main-two", "DroneSite": 'a"b'}))
        is False
    )
    assert asked.eval(classad2.ClassAd({"DroneSite": 'a"b'})) is classad2.Value.Undefined
