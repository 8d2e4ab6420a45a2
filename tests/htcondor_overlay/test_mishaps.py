"""Jobs that fail in drones: what their ads tell of it, and what is believed of that."""

from __future__ import annotations

import classad2
import htcondor2  # noqa: F401 - makes ClassAds know HTCondor's own functions
import pytest

from adapters.htcondor.classads import Ad
from adapters.htcondor.overlay import work
from adapters.htcondor.overlay.slots import slots_view
from adapters.htcondor.overlay.work import ClaimWitnesses, cause_of_end
from provisioner.model import DroneId, JobFailure
from tests.htcondor_overlay.jobs import ad_of, exprs
from tests.htcondor_overlay.test_slots import ad as slot_ad

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
    assert told(HoldReasonCode="12", HoldReasonSubCode="28")[0].cause == "held with code 12, error 28"


def test_other_holds_are_not_told() -> None:
    assert told(HoldReasonCode="1") == told(HoldReasonCode="34") == (), "by its owner; over its memory"
    assert told(LastRemoteHost='"slot1_1@other-a-1@node7"') == told(LastRemoteHost="error") == ()


def test_a_job_that_waits_again_after_a_run_of_seconds_is_told() -> None:
    (found,) = told(JobStatus="1")
    assert (found.cause, found.at) == ("broke off after 5 s", 1100.0)
    assert told(JobStatus="1", JobCurrentStartDate="1000") == (), "it ran for long: an eviction like others"
    assert told(JobStatus="2") == () and told(JobStatus="1", LastJobStatus="5") == (), "it runs; it was released"


@pytest.mark.parametrize(
    ("attributes", "cause"),
    [
        ({"ExitCode": "1"}, "ended after 4 s with exit code 1"),
        ({"ExitBySignal": "true"}, "ended after 4 s by a signal"),
        ({"ExitCode": "0", "ExitBySignal": "false"}, ""),
    ],
)
def test_a_job_that_left_the_queue_within_seconds_failed_if_it_says_so(attributes: dict[str, str], cause: str) -> None:
    assert cause_of_end(ad(**attributes), 4.0) == cause
    assert cause_of_end(ad(**attributes), 11.0) == ""


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
    nobodys = JobFailure(A_1, "7.6", 1200.0, "")
    assert believed(witnesses, JobFailure(A_1, "7.5", 1200.0, "ann"), nobodys) == (ANNS, later)


def test_a_job_that_fails_again_and_again_is_told_as_often_for_a_while() -> None:
    witnesses = ClaimWitnesses()
    witnesses.note({A_1: frozenset({"ann"})}, 1000.0)
    times = [JobFailure(A_1, "7.3", at, "ann") for at in (1000.0, 1010.0, 1020.0)]
    assert [len(believed(witnesses, each)) for each in times] == [1, 2, 3]
    assert believed(witnesses, times[2]) == tuple(times), "told again, it counts once"
    assert witnesses.believed((), 1911.0) == (times[2],)
    assert witnesses.believed((JobFailure(A_1, "7.3", 9e9, "ann"),), 1911.0) == (times[2],), "no time from far ahead"


def test_forged_slots_that_show_ever_other_users_and_ids_do_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work, "_MAX_WITNESSED_DRONES", 10)
    witnesses = ClaimWitnesses()
    witnesses.note({A_1: frozenset({"ann"})}, 1000.0)
    for poll in range(20):
        users = frozenset(f"u{poll}-{n}" for n in range(1000))
        witnesses.note({DroneId(f"kit-a-{2 + poll}"): users, DroneId("kit-a-2"): users}, 1010.0 + poll)
    assert sum(map(len, witnesses._seen.values())) <= 10 * work.MAX_WITNESSED_USERS
    assert believed(witnesses, ANNS) == (ANNS,), "the first is still known"
    witnesses.note({A_1: frozenset({"ann"})}, 3000.0)
    assert list(witnesses._seen) == [A_1], "they are forgotten"
