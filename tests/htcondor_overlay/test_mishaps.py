"""Jobs that fail in drones: what their ads tell of it, and what is believed of that."""

from __future__ import annotations

from dataclasses import replace

import classad2
import htcondor2  # noqa: F401 - makes ClassAds know HTCondor's own functions
import pytest

from adapters.htcondor.classads import Ad
from adapters.htcondor.overlay import history, work
from adapters.htcondor.overlay.slots import ours, slots_view
from adapters.htcondor.overlay.work import ClaimWitnesses, cause_of_end, confirmed_faults
from provisioner.model import Blame, CompletedJob, DroneId, DroneState, JobFailure
from provisioner.reasons import BlackHoleDrone
from tests.htcondor_overlay.jobs import AFFILIATION, ad_of, exprs
from tests.htcondor_overlay.test_slots import ad as slot_ad
from tests.planner.scenes import NOW, drone, plan_of, slot_of, snapshot, with_pool

HELD = exprs(
    """
    ClusterId = 7; ProcId = 3; JobStatus = 5; LastJobStatus = 2;
    LastRemoteHost = "slot1_1@kit-a-1@node7.example.org"; HoldReasonCode = 6; HoldReasonSubCode = 13;
    EnteredCurrentStatus = 1100; JobCurrentStartDate = 1095; LastVacateTime = 1100; Owner = "ann"
    """
)
A_1 = DroneId("kit-a-1")
ANNS = JobFailure(A_1, "7.3", 1100.0, "ann", "held with code 6, error 13")


def ad(**attributes: str) -> classad2.ClassAd:
    return ad_of(HELD, attributes)


def told(**attributes: str) -> tuple[JobFailure, ...]:
    return work.work([ad(**attributes)], "kit", 1200.0, lambda theirs: theirs, {}).failures


def test_a_job_that_is_held_for_a_reason_that_may_be_the_nodes_is_told() -> None:
    assert told() == (ANNS,)
    assert (
        told(HoldReasonCode="12", HoldReasonSubCode="28")[0].cause == "held with code 12, error 28"
    )


def test_other_holds_are_not_told() -> None:
    assert told(HoldReasonCode="1") == told(HoldReasonCode="34") == (), (
        "by its owner; over its memory"
    )
    assert told(LastRemoteHost='"slot1_1@other-a-1@node7"') == told(LastRemoteHost="error") == ()


def test_a_job_that_waits_again_after_a_run_of_seconds_is_told() -> None:
    (found,) = told(JobStatus="1")
    assert (found.cause, found.at) == ("broke off after 5 s", 1100.0)
    assert told(JobStatus="1", JobCurrentStartDate="1000") == (), (
        "it ran for long: an eviction like others"
    )
    assert told(JobStatus="2") == () and told(JobStatus="1", LastJobStatus="5") == (), (
        "it runs; it was released"
    )


@pytest.mark.parametrize(
    ("attributes", "cause"),
    [
        ({"ExitCode": "1"}, "ended after 4 s with exit code 1"),
        ({"ExitBySignal": "true"}, "ended after 4 s by a signal"),
        ({"ExitCode": "0", "ExitBySignal": "false"}, ""),
    ],
)
def test_a_job_that_left_the_queue_within_seconds_failed_if_it_says_so(
    attributes: dict[str, str], cause: str
) -> None:
    assert cause_of_end(ad(**attributes), 4.0) == cause
    assert cause_of_end(ad(**attributes), 11.0) == ""


def test_jobs_that_a_drone_makes_fail_are_no_good_jobs_of_it_in_the_plan() -> None:
    """The queue names each job twice: as a failure, without its schedd, and as a run that ended, with it."""
    ended, began = f"{NOW - 100}", f"{NOW - 105}"
    times = {"EnteredCurrentStatus": ended, "LastVacateTime": ended, "JobCurrentStartDate": began}
    ads = [ad(ClusterId=f"{n}", Owner=f'"user{n % 2}"', **times) for n in range(6)]
    failures = work.work(ads, "kit", NOW, lambda theirs: theirs, {}).failures
    runs = [
        history.ended_run(each, "submit.test", "kit", AFFILIATION, lambda theirs: theirs)
        for each in ads
    ]
    assert len(failures) == 6 and all(run is not None and run.drone_id == A_1 for run in runs)
    bad = drone(A_1, DroneState.IDLE, age_s=10)
    snap = snapshot(drones=[bad], slots=[slot_of(bad, jobs_started=50)])
    plan = plan_of(with_pool(snap, mishaps=failures, completions=tuple(runs)))
    (drain,) = plan.drains
    assert isinstance(drain.reason, BlackHoleDrone) and (
        drain.reason.failed,
        drain.reason.good,
    ) == (6, 0)


def test_only_holds_that_count_are_asked_for() -> None:
    asked = work.constraint("kit", 1000.0)
    for attributes, counts in (
        ({}, True),
        ({"EnteredCurrentStatus": "900"}, False),
        ({"HoldReasonCode": "1"}, False),
        ({"LastRemoteHost": '"slot1_1@other-a-1@node7"'}, False),
    ):
        assert (ad(**attributes, Asked=asked).eval("Asked") is True) is counts, attributes


def users_of(ad: Ad) -> frozenset[str]:
    (drone,) = slots_view([ad], "kit", lambda at: at).drones
    return drone.users


def test_a_slot_tells_whose_claims_it_has() -> None:
    children = slot_ad(ChildRemoteOwner='{"ann@uid.test", "bob@uid.test", undefined, 7, "@"}')
    assert users_of(children) == {"ann", "bob"}
    static = slot_ad(SlotType='"Static"', RemoteOwner='"eve@uid.test"')
    assert users_of(static) == {"eve"}
    assert users_of(slot_ad()) == frozenset()


def believed(witnesses: ClaimWitnesses, *mishaps: JobFailure) -> tuple[JobFailure, ...]:
    return witnesses.believed(mishaps, 1200.0)


def test_a_forged_last_host_is_not_believed() -> None:
    """A user holds own jobs and writes a drone in which none of theirs ever was into them."""
    witnesses = ClaimWitnesses()
    witnesses.note({A_1: frozenset({"bob"}), DroneId("kit-a-2"): frozenset({"ann"})}, 1000.0)
    assert believed(witnesses, ANNS) == ()
    witnesses.note({A_1: frozenset({"ann"})}, 1020.0)
    assert believed(witnesses, ANNS) == (ANNS,)
    witnesses.note({A_1: frozenset()}, 1900.0)
    later = JobFailure(A_1, "7.4", 1200.0, "ann")
    assert believed(witnesses, later) == (ANNS, later), "seen within a quarter of an hour"
    witnesses.note({A_1: frozenset()}, 1921.0)
    nobodys = JobFailure(A_1, "7.6", 1900.0, "")
    late = (JobFailure(A_1, "7.5", 1900.0, "ann"), nobodys)
    assert witnesses.believed(late, 1921.0) == (ANNS, later)


def test_a_job_that_fails_again_and_again_is_told_as_often_for_a_while() -> None:
    witnesses = ClaimWitnesses()
    witnesses.note({A_1: frozenset({"ann"})}, 1000.0)
    times = [JobFailure(A_1, "7.3", at, "ann") for at in (1000.0, 1010.0, 1020.0)]
    assert [len(believed(witnesses, each)) for each in times] == [1, 2, 3]
    assert believed(witnesses, times[2]) == tuple(times), "told again, it counts once"
    assert witnesses.believed((), 1911.0) == (times[2],)
    assert witnesses.believed((JobFailure(A_1, "7.3", 9e9, "ann"),), 1911.0) == (times[2],), (
        "no time from far ahead"
    )


def test_forged_slots_that_show_ever_other_users_and_ids_do_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "_MAX_WITNESSED_DRONES", 10)
    witnesses = ClaimWitnesses()
    witnesses.note({A_1: frozenset({"ann"})}, 1000.0)
    for poll in range(20):
        users = frozenset(f"u{poll}-{n}" for n in range(1000))
        witnesses.note(
            {DroneId(f"kit-a-{2 + poll}"): users, DroneId("kit-a-2"): users}, 1010.0 + poll
        )
    assert sum(map(len, witnesses._seen.values())) <= 10 * work.MAX_WITNESSED_USERS
    assert believed(witnesses, ANNS) == (ANNS,), "the first is still known"
    witnesses.note({A_1: frozenset({"ann"})}, 3000.0)
    assert list(witnesses._seen) == [A_1], "they are forgotten"


# --------------------------------------------------------------------------------------------
# faults on shared GPUs

FAULTED = "1750000000|schedd.example.org#7.3#1749999000|ann|faulted"
COLLATERAL = "1750000001|sub@schedd.example.org#8.0#1749999000|bob@uid.test|collateral"
ANNS_FAULT = JobFailure(
    A_1, "schedd.example.org#7.3", 1.75e9, "ann", "faulted on a shared GPU", Blame.JOB
)


def faults_in(text: str, **attributes: str) -> tuple[JobFailure, ...]:
    times = {"LastHeardFrom": "1750000100", "MyCurrentTime": "1750000099"}
    (drone,) = slots_view(
        [slot_ad(DroneFaults=f'"{text}"', **times | attributes)], "kit", lambda at: at
    ).drones
    return drone.faults


def test_a_slot_tells_who_faulted_and_whom_that_ended() -> None:
    found = faults_in(f"{FAULTED} {COLLATERAL}")
    assert found[0] == ANNS_FAULT
    assert (found[1].job_id, found[1].owner) == ("sub@schedd.example.org#8.0", "bob")
    assert (found[1].at, found[1].blame) == (1750000001.0, Blame.COLLATERAL)
    assert faults_in("") == ()


@pytest.mark.parametrize(
    "record",
    [
        "x",
        "|||",
        FAULTED.replace("faulted", "guilty"),
        FAULTED.replace("faulted", "faulted|more"),
        FAULTED.replace("1750000000", "-1750000000"),
        FAULTED.replace("1750000000", "1e9"),
        FAULTED.replace("1750000000", "1" * 30),
        FAULTED.replace("#7.3#", "#7#"),
        FAULTED.replace("#7.3#1749999000", "#7.3"),
        FAULTED.replace("schedd", "\\\\u202e"),
        FAULTED.replace("ann", ""),
        FAULTED.replace("ann", "a" * 200),
        FAULTED.replace("ann", "an\xf1"),
        FAULTED.replace("ann", "ann;rm"),
    ],
)
def test_a_malformed_record_is_ignored_and_the_others_count(record: str) -> None:
    assert faults_in(f"{record} {FAULTED}") == (ANNS_FAULT,)


def test_only_the_last_ten_records_are_read() -> None:
    many = [FAULTED.replace("7.3", f"7.{n}") for n in range(30)]
    assert [each.job_id[-4:] for each in faults_in(" ".join(many))] == [
        f"7.{n}" for n in range(20, 30)
    ]


def test_an_attribute_of_another_kind_and_a_huge_one_are_no_records() -> None:
    (drone,) = slots_view([slot_ad(DroneFaults="{1, 2}")], "kit", lambda at: at).drones
    assert drone.faults == ()
    huge = slot_ad(DroneFaults=f'"{FAULTED * 100}"', Asked=ours())
    assert (
        huge.eval("Asked") is False
        and slot_ad(DroneFaults=f'"{FAULTED}"', Asked=ours()).eval("Asked") is True
    )


def test_the_time_of_a_fault_is_on_our_clock_and_stays_the_same_from_ad_to_ad() -> None:
    ahead = [str(1750003600 + n) for n in range(80, 120)]
    found = {faults_in(FAULTED, MyCurrentTime=told)[0].at for told in ahead}
    assert found == {1.75e9 - 3600}, "the worker node's clock is an hour ahead"


def test_slots_of_one_drone_that_tell_the_same_fault_tell_one() -> None:
    slots = [slot_ad(SlotID=str(n), DroneFaults=f'"{FAULTED}"') for n in (1, 2)]
    (drone,) = slots_view(slots, "kit", lambda at: at).drones
    assert len(drone.faults) == 1


def test_a_drone_speaks_only_of_jobs_that_ran_in_it() -> None:
    ran = (A_1, "ann", "7.3")
    assert confirmed_faults([ANNS_FAULT], {ran}, None) == [ANNS_FAULT]
    for other in ((DroneId("kit-a-2"), "ann", "7.3"), (A_1, "bob", "7.3"), (A_1, "ann", "7.4")):
        assert confirmed_faults([ANNS_FAULT], {other}, None) == [], other
    at = (1.75e9, 1.74e9, 60.0, 1000, 1, 100)
    done = CompletedJob("schedd.example.org#7.3", *at, owner="ann", drone_id=A_1)
    assert confirmed_faults([ANNS_FAULT], set(), [done]) == [ANNS_FAULT], (
        "it ran and ended between two polls"
    )
    assert confirmed_faults([ANNS_FAULT], set(), [replace(done, drone_id=None)]) == []
    assert confirmed_faults([ANNS_FAULT], set(), [done], {done.job_id}) == [], (
        "it ended with exit code 0"
    )


def test_a_fault_in_a_drone_of_several_users_is_blamed_on_nobody() -> None:
    """Any job of the drone can write its report, and may leave a process there that does so later."""
    witnesses = ClaimWitnesses()
    for at in range(1000, 2100, 100):
        witnesses.note({A_1: frozenset({"ann"})}, at)
    assert witnesses.of_lone_users([ANNS_FAULT]) == [ANNS_FAULT]
    witnesses.note({A_1: frozenset({"ann", "eve"})}, 2100.0)
    for at in range(2200, 9000, 100):
        witnesses.note({A_1: frozenset({"ann"}) if at > 4000 else frozenset()}, at)
    elsewhere = replace(ANNS_FAULT, drone_id=DroneId("kit-a-2"))
    spared, blamed = witnesses.of_lone_users([ANNS_FAULT, elsewhere])
    assert (spared.blame, blamed) == (Blame.COLLATERAL, elsewhere)


def test_jobs_that_run_or_ran_in_drones_are_known_by_their_schedd() -> None:
    runs = exprs('JobStatus = 2; RemoteHost = "slot1_2@kit-a-2@node8"; ProcId = 4')
    found = work.work([ad(), ad_of(HELD, runs)], "kit", 1200.0, lambda theirs: theirs, {})
    assert found.ran == {(A_1, "ann", "7.3"), (A_1, "ann", "7.4"), ("kit-a-2", "ann", "7.4")}
    assert work.together([found, work.PoolWork()]).ran == found.ran
    strange = ad(LastRemoteHost='"slot1@other-a-1@node7"')
    assert work.work([strange], "kit", 1200.0, lambda theirs: theirs, {}).ran == frozenset()


@pytest.mark.parametrize("code", [21, 34])
def test_a_job_that_was_held_for_its_vram_is_told_with_the_reason(code: int) -> None:
    reason = '"9000 MiB of VRAM in use, share 8192 MiB"'
    held = {"HoldReasonCode": str(code), "HoldReasonSubCode": "105", "HoldReason": reason}
    (found,) = told(**held)
    assert found.blame is Blame.JOB
    assert found.cause == "held for its VRAM: 9000 MiB of VRAM in use, share 8192 MiB"
    assert ad(**held, Asked=work.constraint("kit", 1000.0)).eval("Asked") is True
    assert (
        told(**held | {"HoldReasonSubCode": "102"}) == told(**held | {"HoldReasonCode": "1"}) == ()
    )
