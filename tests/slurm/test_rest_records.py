"""Real answers of slurmrestd (24.11 with v0.0.42, 26.05 with v0.0.45) in our records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.slurm.records import SlurmJob
from adapters.slurm.rest_records import (
    RestJobState,
    _number,
    parse_accounted_job,
    parse_configuration,
    parse_job_details,
    parse_job_state,
    parse_node,
    parse_partition,
    parse_reservation,
)
from provisioner.interfaces import UnavailableError

ANSWERS = Path(__file__).with_name("rest_answers")


def answer(name: str) -> Any:
    return json.loads((ANSWERS / f"{name}.json").read_text())


def test_a_waiting_task_has_the_number_of_its_array_and_a_started_one_its_own() -> None:
    entries = [parse_job_state(each) for each in answer("states-24.11")["jobs"]]

    assert RestJobState(5113, 9, "PENDING", frozenset()) in entries
    assert RestJobState(5114, 0, "RUNNING", frozenset()) in entries


def test_flags_stand_beside_the_base_state() -> None:
    told = parse_job_state({"job_id": "7", "state": ["CANCELLED", "COMPLETING"]})

    assert told == RestJobState(7, None, "CANCELLED", frozenset({"COMPLETING"}))


def test_a_wholly_cancelled_array_is_reported_without_its_tasks() -> None:
    assert parse_job_state({"job_id": "55_*", "state": ["CANCELLED"]}).all_tasks


@pytest.mark.parametrize("record", [{}, {"job_id": "x", "state": ["RUNNING"]}, {"job_id": "1", "state": []}])
def test_a_state_that_cannot_be_read_is_an_error_and_not_left_out(record: dict[str, Any]) -> None:
    with pytest.raises(UnavailableError):
        parse_job_state(record)


def test_an_array_reports_its_waiting_tasks_together_and_started_ones_singly() -> None:
    waiting, running = [parse_job_details(each) for each in answer("array-24.11")["jobs"]]

    assert (waiting.number, waiting.array, waiting.task) == (5113, 5113, None)
    assert (running.number, running.array, running.task) == (5121, 5113, 7)
    assert (waiting.job.state, waiting.job.reason) == ("PENDING", "Resources")
    job = running.job
    assert job == SlurmJob(
        remote_id="5113_7",
        name="c-b-0+.a100.horeka",
        state="RUNNING",
        user="drone",
        account="lab",
        partition="accelerated",
        qos="normal",
        submitted_at=1795277063.0,
        started_at=1795277064.0,
        ends_at=1795280664.0,
        limit_s=3600.0,
        nodes=("hkn0802",),
        cpus=8,
        memory_mib=20480,
        gpus={"a100": 1},
    )


def test_a_later_release_reports_the_same() -> None:
    jobs = {each.task: each.job for each in (parse_job_details(record) for record in answer("array-26.05")["jobs"])}

    assert {task: job.remote_id for task, job in jobs.items()} == {4: "21_4", 3: "21_3"}
    assert {(job.state, job.gpus["a100"], job.memory_mib, job.limit_s) for job in jobs.values()} == {
        ("RUNNING", 1, 20480, 3600.0)
    }


def test_a_rejected_job_leaves_a_record_with_the_reason() -> None:
    (job,) = [parse_job_details(each).job for each in answer("bad-constraints-24.11")["jobs"]]

    assert (job.state, job.reason, job.exit_code, job.signal) == ("FAILED", "BadConstraints", None, 1)


def test_accounting_reports_the_end_of_a_task() -> None:
    jobs = [parse_accounted_job(each) for each in answer("accounted-24.11")["jobs"]]

    assert sorted((job.remote_id, job.state, job.name, job.user) for job in jobs) == [
        ("5113_0", "CANCELLED", "c-b-0+.a100.horeka", "drone"),
        ("5113_1", "CANCELLED", "c-b-0+.a100.horeka", "drone"),
    ]
    assert all(0 < job.started_at <= job.ends_at and job.limit_s == 3600.0 for job in jobs)


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_a_node_reports_total_and_allocated_resources(release: str) -> None:
    (told,) = [parse_node(each) for each in answer(f"nodes-{release}")["nodes"]]

    assert (told.name, told.partitions, told.cpus, told.memory_mib) == ("hkn0801", ("accelerated", "dev"), 152, 512000)
    assert (told.gpus, told.threads_per_core) == ({"a100": 4}, 2)
    assert told.used_cpus > 0 and told.used_gpus == {"a100": told.used_cpus // 8}


@pytest.mark.parametrize(("release", "default"), [("24.11", False), ("26.05", True)])
def test_a_partition_reports_nodes_limits_and_since_26_05_whether_it_is_the_default(
    release: str, default: bool
) -> None:
    (told,) = [parse_partition(each) for each in answer(f"partitions-{release}")["partitions"]]

    assert (told.name, told.up, told.nodes, told.max_s) == ("accelerated", True, ("hkn0801", "hkn0802"), 172800.0)
    assert (told.max_cpus_per_node, told.max_memory_per_cpu_mib, told.default) == (0, 0, default)


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_a_maintenance_reservation(release: str) -> None:
    (told,) = [parse_reservation(each) for each in answer(f"reservations-{release}")["reservations"]]

    assert (told.name, told.nodes, told.users, told.accounts) == ("m1", ("hkn0901",), ("root",), ())
    assert (told.ends_at - told.starts_at, "MAINT" in told.flags) == (3600.0, True)


def test_the_configuration_reads_as_scontrol_prints_it() -> None:
    told = parse_configuration(answer("conf-26.05"))

    assert told["SLURM_VERSION"] == "26.05.5"
    assert (told["KillWait"], told["MinJobAge"], told["MaxArraySize"]) == ("5 sec", "300 sec", "100001")
    assert (told["SelectTypeParameters"], told["JobRequeue"]) == ("CR_CORE_MEMORY", "Yes")
    assert "SuspendTime" not in told


def test_an_earlier_release_reports_at_least_its_version() -> None:
    assert parse_configuration(answer("states-24.11")) == {
        "SLURM_VERSION": "24.11.5",
        "ClusterName": "horeka",
        "AccountingStorageType": "accounting_storage/slurmdbd",
    }


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ({"set": True, "infinite": False, "number": 5}, 5),
        ({"set": False, "infinite": False, "number": 5}, None),
        ({"set": False, "infinite": True, "number": 0}, None),
        (7, 7),
        ("7", None),
        (None, None),
    ],
)
def test_a_number_may_be_unset_or_infinite(told: object, meant: float | None) -> None:
    assert _number(told) == meant


@pytest.mark.parametrize(("spec", "cores"), [("0-3,38-41", 4), ("", 0), (None, 0)])
def test_cores_are_restricted_only_where_the_node_names_them(spec: str | None, cores: int) -> None:
    record = {**answer("nodes-24.11")["nodes"][0], "res_cores_per_gpu": 4, "gpu_spec": spec}
    assert parse_node(record).restricted_cores_per_gpu == cores
