"""Jobs as drones: states, reasons, notices, ends, duplicates and names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from adapters.shared.drone_ids import is_drone_id
from adapters.shared.duplicates import DroneListing
from adapters.slurm.drones import (
    SlurmDrones,
    drone_of,
    is_drone,
    job_name,
)
from adapters.slurm.records import SlurmJob
from provisioner.model import DroneId, EndKind, FaultKind, RemoteDrone, RemoteState

NOW = 1_800_000_000.0
ENTERED = NOW - 3600
TIMES: Any = {
    "submitted_at": NOW - 900,
    "started_at": NOW - 600,
    "ends_at": NOW + 3000,
    "limit_s": 3600.0,
}
RUNNING = SlurmJob(
    "123", "kit-a1b2-7.a100.horeka", "RUNNING", user="drone", nodes=("hkn0801",), **TIMES
)
PENDING = replace(
    RUNNING, state="PENDING", reason="Priority", started_at=0.0, ends_at=0.0, nodes=()
)
ENDED = replace(RUNNING, state="COMPLETED", ends_at=NOW - 60, exit_code=0)
SEVEN = DroneId("kit-a1b2-7")


def listed(
    *jobs: SlurmJob, cancelled: Collection[DroneId] = (), retain_s: float = 600.0
) -> DroneListing:
    drones = SlurmDrones("kit", "horeka", retain_s, since=ENTERED)
    drones.cancelled = dict.fromkeys(cancelled, NOW)
    return drones.listing(jobs, NOW)


def one(job: SlurmJob) -> RemoteDrone:
    [drone] = listed(job).drones.values()
    return drone


def test_a_waiting_job_has_a_reason_and_an_expected_start() -> None:
    drone = one(replace(PENDING, started_at=NOW + 1200))
    assert (drone.state, drone.reason, drone.blocked) == (RemoteState.PENDING, "Priority", None)
    assert (drone.started_at, drone.expected_start_at) == (0.0, NOW + 1200)


@pytest.mark.parametrize(
    ("reason", "blocked", "hopeless"),
    [
        ("AssocGrpGRES", FaultKind.QUOTA, False),
        ("PartitionTimeLimit", FaultKind.CONFIG, True),
        ("launch failed requeued held", FaultKind.NODE, True),
    ],
)
def test_a_reason_that_blocks_others_of_the_type_is_a_fault(
    reason: str, blocked: FaultKind | None, hopeless: bool
) -> None:
    drone = one(replace(PENDING, reason=reason))
    assert (drone.reason, drone.blocked, drone.hopeless) == (reason, blocked, hopeless)


@pytest.mark.parametrize(
    "job", [replace(RUNNING, state="COMPLETING"), replace(ENDED, flags=frozenset({"COMPLETING"}))]
)
def test_a_completing_job_still_runs(job: SlurmJob) -> None:
    drone = one(job)
    assert (drone.state, drone.end, drone.node) == (RemoteState.RUNNING, None, "hkn0801")
    assert "is ending" in drone.reason


@pytest.mark.parametrize(("restarts", "node"), [(0, "hkn0801"), (1, "")])
def test_a_job_whose_node_powers_up_waits_and_has_its_place(restarts: int, node: str) -> None:
    drone = one(replace(RUNNING, flags=frozenset({"POWER_UP_NODE"}), restarts=restarts))
    assert (drone.state, drone.started_at, drone.node) == (RemoteState.PENDING, 0.0, node)


def test_a_preempted_job_is_under_notice() -> None:
    assert one(replace(RUNNING, preempted_at=NOW - 3)).notice_at == NOW - 3
    assert one(
        replace(ENDED, state="PREEMPTED", flags=frozenset({"COMPLETING"}), preempted_at=NOW - 9)
    ).notice_at


def test_an_end_before_its_time_limit_is_a_notice_too() -> None:
    assert one(replace(RUNNING, ends_at=NOW + 6)).notice_at == NOW
    assert one(replace(RUNNING, limit_s=0.0, ends_at=NOW + 6)).notice_at == 0.0  # no limit is told
    # just its limit
    assert one(replace(RUNNING, started_at=NOW - 3590, ends_at=NOW + 10)).notice_at == 0.0


@pytest.mark.parametrize(
    ("job", "kind", "code", "fault"),
    [
        (ENDED, EndKind.EXITED, 0, None),
        (
            replace(ENDED, state="FAILED", exit_code=73, reason="NonZeroExitCode"),
            EndKind.EXITED,
            73,
            None,
        ),
        (replace(ENDED, state="FAILED", exit_code=0, signal=9), EndKind.EXITED, 137, None),
        (
            replace(ENDED, state="FAILED", exit_code=0, signal=53),
            EndKind.FAULT,
            None,
            FaultKind.CONFIG,
        ),
        (replace(ENDED, state="NODE_FAIL"), EndKind.FAULT, None, FaultKind.NODE),
        (replace(ENDED, state="OUT_OF_MEMORY", signal=125), EndKind.FAULT, None, FaultKind.DRONE),
        (replace(ENDED, state="PREEMPTED"), EndKind.PREEMPTED, None, None),
        (replace(ENDED, restarts=1), EndKind.PREEMPTED, None, None),
        (
            replace(ENDED, state="FAILED", exit_code=73, preempted_at=NOW - 9),
            EndKind.PREEMPTED,
            None,
            None,
        ),
        (
            replace(PENDING, state="DEADLINE", ends_at=NOW - 5),
            EndKind.FAULT,
            None,
            FaultKind.CONFIG,
        ),
        # killed by its own script, shortly before Slurm would do it, and at another time
        (
            replace(ENDED, state="FAILED", started_at=NOW - 3600, exit_code=137),
            EndKind.STOPPED,
            None,
            None,
        ),
        (replace(ENDED, state="FAILED", exit_code=137), EndKind.EXITED, 137, None),
    ],
)
def test_each_way_to_end(
    job: SlurmJob, kind: EndKind, code: int | None, fault: FaultKind | None
) -> None:
    end = one(job).end
    assert end is not None
    assert (end.kind, end.exit_code, end.fault, end.at) == (kind, code, fault, job.ends_at)
    assert end.message or kind is EndKind.EXITED


@pytest.mark.parametrize(
    ("ended_at", "cancelled", "kind", "fault"),
    [
        (NOW - 60, {SEVEN}, EndKind.STOPPED, None),
        (NOW - 60, set(), EndKind.FAULT, FaultKind.UNKNOWN),
        # before this controller started: it may have been ours
        (ENTERED - 10, set(), EndKind.STOPPED, None),
    ],
)
def test_a_job_that_we_did_not_cancel_was_cancelled_by_somebody_else(
    ended_at: float, cancelled: set[DroneId], kind: EndKind, fault: FaultKind | None
) -> None:
    job = replace(ENDED, state="CANCELLED", ends_at=ended_at)
    end = listed(job, cancelled=cancelled, retain_s=2 * 3600.0).drones[SEVEN].end
    assert end is not None
    assert (end.kind, end.fault, "somebody else" in end.message) == (kind, fault, fault is not None)


def test_an_ended_drone_is_listed_for_a_while() -> None:
    assert listed(replace(ENDED, ends_at=NOW - 601)).drones == {}
    assert SEVEN in listed(replace(ENDED, ends_at=NOW - 599)).drones


def test_the_record_of_a_rejected_submission_is_no_drone() -> None:
    times: Any = {"started_at": NOW - 900, "ends_at": NOW - 900}
    never = replace(
        PENDING, state="FAILED", reason="BadConstraints", signal=1, exit_code=0, **times
    )
    assert listed(never).drones == {}
    assert SEVEN in listed(replace(never, reason="JobLaunchFailure", ends_at=NOW - 5)).drones


@pytest.mark.parametrize(
    ("job", "blocked"),
    [
        (replace(PENDING, reason="BeginTime"), None),
        (RUNNING, None),
        # else it would wait, and stand for jobs, until the longest wait in a queue is over
        (replace(PENDING, reason="launch failed requeued held"), FaultKind.NODE),
    ],
)
def test_a_requeued_drone_waits_whatever_its_job_does(
    job: SlurmJob, blocked: FaultKind | None
) -> None:
    drone = one(replace(job, restarts=1))
    assert (drone.state, drone.started_at, drone.expected_start_at) == (
        RemoteState.PENDING,
        0.0,
        0.0,
    )
    assert (drone.blocked, drone.hopeless) == (blocked, blocked is not None)
    assert drone.reason.startswith("requeued by its site")


@pytest.mark.parametrize(
    ("jobs", "kept", "surplus"),
    [
        # the older
        ((replace(PENDING, remote_id="130"), replace(PENDING, remote_id="99")), "99", ("130",)),
        # one that runs
        ((replace(PENDING, remote_id="99"), replace(RUNNING, remote_id="130")), "130", ("99",)),
        # the one that has run for longer, whichever waited for longer
        (
            (
                replace(RUNNING, remote_id="99"),
                replace(RUNNING, remote_id="130", started_at=NOW - 700),
            ),
            "130",
            ("99",),
        ),
        # one that nobody has cancelled
        ((replace(RUNNING, remote_id="99", flags=frozenset({"COMPLETING"})), PENDING), "123", ()),
        # one that lives
        ((ENDED, replace(RUNNING, remote_id="130"), replace(ENDED, remote_id="140")), "130", ()),
        # the one that ran
        ((replace(ENDED, remote_id="99", nodes=(), state="CANCELLED"), ENDED), "123", ()),
    ],
)
def test_of_a_drone_that_is_there_twice_one_counts(
    jobs: Sequence[SlurmJob], kept: str, surplus: tuple[str, ...]
) -> None:
    found = listed(*jobs)
    assert (found.drones[SEVEN].remote_id, tuple(found.duplicates)) == (kept, surplus)
    assert [f"as {kept} and {surplus[0]}" in notice for notice in found.notices] == [True] * len(
        surplus
    )


def named(name: str, remote_id: str = "123") -> SlurmJob:
    return SlurmJob(remote_id, name, "RUNNING")


@pytest.mark.parametrize(
    ("name", "remote_id"),
    [
        ("kit-two-a1b2-17.a100.horeka", "1"),  # of a controller whose name begins like ours
        ("kit-a1b2-17.a100.topas", "1"),
        ("kit-a1b2-017.a100.horeka", "1"),  # would be another drone's id
        ("kit-a1b2-17.a100.horeka\n", "1"),
        ("kit-a1b2-17+.a100.horeka", "1_[0-9]"),
        ("kit-a1b2-17.a100.horeka", "1_4"),
        ("kit-a1b2-" + "9" * 60 + ".a100.horeka", "1"),
    ],
)
def test_a_job_with_another_name_is_no_drone(name: str, remote_id: str) -> None:
    assert drone_of(named(name, remote_id), "kit", "horeka") is None


LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)


@given(
    LABEL,
    st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True),
    st.integers(0, 10**9),
    LABEL,
    LABEL,
    st.integers(1, 5),
)
def test_every_drone_of_a_job_is_found_again(
    controller: str, birth: str, first: int, kind: str, site: str, count: int
) -> None:
    ids = [DroneId(f"{controller}-{birth}-{first + n}") for n in range(count)]
    name = job_name(ids, kind, site)
    remote = [f"8_{n}" for n in range(count)] if count > 1 else ["8"]
    jobs = [named(name, each) for each in remote]
    assert [drone_of(job, controller, site) for job in jobs] == ids
    drones = SlurmDrones(controller, site, 600.0, since=ENTERED).listing(jobs, NOW).drones
    assert {drone.type for drone in drones.values()} == {kind}
    assert is_drone(jobs[0]) and not is_drone(named("train.sh"))
    assert is_drone_id(ids[0], controller) and not is_drone_id(ids[0], f"{controller}x")
