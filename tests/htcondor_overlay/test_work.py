"""Jobs of a schedd become work at stake in our drones and evictions; the ads are as 23.9.6 and 25.14.1 had them."""

from __future__ import annotations

import classad2
import pytest

from adapters.htcondor.overlay import work
from provisioner.model import DroneId, Eviction, Slot, SlotState
from tests.htcondor_overlay.jobs import ad_of, exprs

RUNS = exprs(
    """
    ClusterId = 7; ProcId = 3; JobStatus = 2; LastJobStatus = 1; RemoteHost = "slot1_1@kit-a-1@node7.example.org";
    JobCurrentStartDate = 1000; JobCurrentStartExecutingDate = 1010; RequestGPUs = 2; GPUsProvisioned = 2;
    RequestCpus = 4; CpusProvisioned = 4
    """
)
LEFT = {name: text for name, text in RUNS.items() if name != "RemoteHost"} | exprs(
    f"""
    JobStatus = 1; LastJobStatus = 2; LastRemoteHost = {RUNS["RemoteHost"]}; LastVacateTime = 1100;
    LastJobLeaseRenewal = 1100
    """
)
AGAIN = LEFT | exprs(
    """
    JobStatus = 2; LastJobStatus = 1; JobLastStartDate = 1000; JobCurrentStartDate = 1130;
    JobCurrentStartExecutingDate = 1140; RemoteHost = "slot1_1@kit-a-2@node8.example.org"; LastJobLeaseRenewal = 1190
    """
)
A_1, A_2 = DroneId("kit-a-1"), DroneId("kit-a-2")


def run(**attributes: str) -> classad2.ClassAd:
    """A job that runs again in one of our drones after it was evicted from another."""
    return ad_of({**AGAIN, **attributes})


def seen(*jobs: dict[str, str], now: float = 1200.0, **device_milli: int) -> work.PoolWork:
    """What jobs tell; ``a_1=250``: drone A_1 gives out quarters."""
    known = {{"a_1": A_1, "a_2": A_2}[name]: milli for name, milli in device_milli.items()}
    return work.work([ad_of(each) for each in jobs], "kit", now, lambda theirs: theirs, known)


def since(**attributes: str) -> float:
    (found,) = seen({**RUNS, **attributes}).runs
    return found.since


def lost(**attributes: str) -> float:
    (found,) = seen({**LEFT, **attributes}).evictions
    return found.lost_s


def test_a_slot_tells_what_its_jobs_would_lose() -> None:
    one = {**RUNS, "JobCurrentStartExecutingDate": "1060", "GPUsProvisioned": "1"}
    slots = (Slot(A_1, SlotState.BUSY, 1200.0), Slot(A_2, SlotState.IDLE, 1200.0))
    busy, idle = seen(RUNS, one).on(slots)
    assert (busy.work_gpu_milli, busy.work_at) == (3000, pytest.approx((2 * 1010 + 1060) / 3))
    assert idle == slots[1]
    at_stake = busy.work_gpu_milli / 1000 * (1200 - busy.work_at)
    assert at_stake == pytest.approx(2 * 190 + 140), "in GPU-seconds, both jobs together"


UNTOLD = "undefined"


@pytest.mark.parametrize(
    ("requested", "provisioned", "share", "device_milli", "counts"),
    [
        ("2", "1", UNTOLD, 0, 1000),  # what was given counts
        ("2", UNTOLD, UNTOLD, 0, 2000),
        (UNTOLD, UNTOLD, UNTOLD, 0, 4000),  # no GPU: by its CPUs
        ("2", "1", "200", 250, 250),  # its drone's share of a GPU
        ("2", "1", "200", 1000, 1000),  # all of an exclusive one
        ("2", "1", "200", 0, 200),  # of a drone that is not known: what it asked for
        ("2", "1", "5000", 0, 1000),
        ("2", "1", '"x"', 0, 1000),
    ],
)
def test_a_job_counts_by_what_it_holds_of_a_gpu(
    requested: str, provisioned: str, share: str, device_milli: int, counts: int
) -> None:
    known = {"a_1": device_milli} if device_milli else {}
    told = {"RequestGPUs": requested, "GPUsProvisioned": provisioned, "GpuMilli": share}
    found = seen({**RUNS, **told}, {**LEFT, **told}, **known)
    assert [each.gpu_milli for each in found.runs] == [counts]
    assert [each.gpu_milli for each in found.evictions] == [counts]


def test_a_slot_tells_whose_jobs_run_and_since_when() -> None:
    size = {"RequestCpus": "3", "RequestMemory": "2048", "RequestGPUs": "1"}
    ann = {**RUNS, **size, "Owner": '"ann"', "LastCkptTime": "1100"}
    ben = {**RUNS, "Owner": '"ben"', "JobCurrentStartExecutingDate": "1060"}
    slot = Slot(A_1, SlotState.BUSY, 1200.0)
    (hers,) = seen(ann, ann).on([slot])
    assert (hers.owner, hers.begun_at, hers.work_at) == ("ann", 1010, 1100)
    (theirs,) = seen(ben, ann).on([slot])
    assert (theirs.owner, theirs.begun_at, theirs.job_cpus) == ("", 1010, 0), (
        "of several it is nobody's"
    )
    (alone,) = seen(ann).on([slot])
    assert (alone.job_gpu_milli, alone.job_cpus, alone.job_memory_mib) == (1000, 3, 2048), (
        "as its class asks"
    )


def test_work_begins_with_the_program_and_a_checkpoint_saves_what_was_done_before_it() -> None:
    assert since() == 1010
    assert since(JobCurrentStartExecutingDate="undefined") == 1200, "its input is on the way"
    assert since(LastCkptTime="1100") == 1100
    assert since(TransferOutStarted="1100", TransferOutFinished="1105") == 1100, "by the job itself"
    assert since(TransferOutStarted="1150", TransferOutFinished="1105") == 1105, (
        "the next one is still under way"
    )
    assert since(TransferOutStarted="1150") == 1010, "and this one is the first"
    assert since(TransferOutStarted="1300", TransferOutFinished="1301") == 1200, (
        "not in the time to come"
    )


def test_the_schedds_clock_is_not_ours() -> None:
    found = work.work([ad_of(RUNS), ad_of(LEFT)], "kit", 1200.0, lambda theirs: theirs - 50, {})
    assert [each.since for each in found.runs] == [960]
    assert [(each.at, each.lost_s) for each in found.evictions] == [(1050, 90)]


def test_only_drones_of_this_controller() -> None:
    others = (
        '"slot1_1@desy-1@n"',
        '"slot1_1@kitchen-1@n"',
        '"slot1_1@kit-a_1@n"',
        "undefined",
        "error",
    )
    for host, expected in (*((host, []) for host in others), ('"a@kit-a-1@\\n"', [A_1])):
        assert [each.drone_id for each in seen({**RUNS, "RemoteHost": host}).runs] == expected
        assert [
            each.drone_id for each in seen({**LEFT, "LastRemoteHost": host}).evictions
        ] == expected


def test_an_evicted_job_has_lost_what_it_did_since_its_start_or_its_last_checkpoint() -> None:
    (found,) = seen(LEFT).evictions
    assert found == Eviction(A_1, "7.3", at=1100, gpu_milli=2000, lost_s=90)
    assert lost(JobCurrentStartExecutingDate="500") == 0, (
        "of the run before: this one had not begun"
    )
    assert lost(TransferOutStarted="1080", TransferOutFinished="1082") == 20, "one of its own"
    assert lost(TransferOutStarted="1100", TransferOutFinished="1100") == 0, (
        "its files went home when it left"
    )
    assert lost(TransferOutStarted="1098", TransferOutFinished="undefined") == 90, (
        "they set out and did not arrive"
    )
    assert lost(LastCkptTime="1060") == 40


def test_it_is_told_the_same_in_every_look_until_it_leaves_another_drone() -> None:
    (waits,) = seen(LEFT).evictions
    (runs,) = seen(AGAIN).evictions
    assert (runs.drone_id, runs.job_id, runs.at) == (waits.drone_id, waits.job_id, waits.at)
    assert runs.lost_s == 100, "when its program began is forgotten by then"
    (just,) = seen({**AGAIN, "JobCurrentStartExecutingDate": "1010"}).evictions
    assert just.lost_s == 90, "or not yet"
    assert [each.drone_id for each in seen(AGAIN).runs] == [A_2]


def test_a_drone_that_vanished_cost_no_more_than_until_then() -> None:
    """The schedd waits for it until the job's lease is over."""
    gone = {"JobDisconnectedDate": "1050", "LastJobLeaseRenewal": "1048", "LastVacateTime": "3450"}
    assert lost(**gone) == 40
    assert lost(**{**gone, "LastJobLeaseRenewal": "3440"}) == 3450 - 1010, (
        "it came back and worked on"
    )
    assert lost(**{**gone, "JobDisconnectedDate": "700"}) == 3450 - 1010, "of a run before"
    again = {
        "JobCurrentStartDate": "3460",
        "JobCurrentStartExecutingDate": "3470",
        "LastJobLeaseRenewal": "3500",
    }
    (found,) = seen({**AGAIN, **gone, **again}).evictions
    assert (found.at, found.lost_s) == (3450, 50)


def test_what_is_no_eviction() -> None:
    for why, attributes in (
        ("removed", {**LEFT, "JobStatus": "3"}),
        ("held", {**LEFT, "JobStatus": "5", "HoldReasonCode": "1"}),
        ("held and released", {**LEFT, "LastJobStatus": "5", "LastHoldReasonCode": "1"}),
        ("held, released and running", {**AGAIN, "LastHoldReasonCode": "1"}),
        ("done", {**LEFT, "JobStatus": "4", "LastVacateTime": "undefined"}),
    ):
        assert seen(attributes).evictions == (), why


def test_the_schedd_is_asked_for_few_jobs() -> None:
    tree = classad2.ExprTree(work.constraint("kit", 1090.5))
    assert (
        tree.eval(ad_of(RUNS)) is True
        and tree.eval(ad_of(LEFT)) is True
        and tree.eval(ad_of(AGAIN)) is True
    )
    for other in (
        {**LEFT, "LastVacateTime": "1089"},
        {**LEFT, "JobStatus": "5"},
        {**LEFT, "LastRemoteHost": '"slot1_1@kitchen-1@n"'},
        {**RUNS, "RemoteHost": '"slot1_1@desy-1@n"'},
        {"JobStatus": "1"},
    ):
        assert tree.eval(ad_of(other)) is not True


def test_a_slot_tells_how_many_of_its_jobs_have_an_optional_gpu() -> None:
    optional = {**RUNS, "RequiresGPU": '"optional"'}
    slot = Slot(A_1, SlotState.BUSY, 1200.0, jobs=2)
    for jobs, count in (((RUNS, optional), 1), ((optional, optional), 2), ((RUNS, RUNS), 0)):
        (found,) = seen(*jobs).on([slot])
        assert (found.optional_jobs, found.only_optional) == (count, count == 2)


def test_a_job_with_an_optional_gpu_that_is_evicted_at_once_is_no_failure_of_its_node() -> None:
    soon = {
        **LEFT,
        "JobCurrentStartDate": "1094",
        "JobCurrentStartExecutingDate": "1095",
        "Owner": '"alice"',
    }
    assert len(seen(soon).failures) == 1
    assert seen({**soon, "RequiresGPU": '"optional"'}).failures == ()
