"""Recorded answers of slurmrestd (24.11, 26.05) and attributes of pyslurm's objects (25.11 beside 26.05) as records.

Those of the tools are in test_tools.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.slurm import records, rest
from adapters.slurm.native import (
    _PYSLURM_PARTITION,
    _attributes,
    convert_accounted_job,
    convert_job,
    convert_node,
    used_gpus_by_node,
)
from adapters.slurm.records import SlurmJob
from tests.slurm.restd import recorded

PYSLURM = json.loads((Path(__file__).parent / "recorded/pyslurm.json").read_text())


def test_a_job_of_slurmrestd() -> None:
    waiting, running = (rest.parse_job(each) for each in recorded("array-24.11")["jobs"])

    assert [(job.remote_id, job.reason) for job in waiting] == [
        ("5113_8", "Resources"),
        ("5113_9", "Resources"),
    ]
    assert running == [
        SlurmJob(
            remote_id="5113_7",
            name="c-b-0+.a100.horeka",
            state="RUNNING",
            **{"user": "drone", "account": "lab", "partition": "accelerated", "qos": "normal"},
            **{
                "submitted_at": 1795277063.0,
                "started_at": 1795277064.0,
                "ends_at": 1795280664.0,
                "limit_s": 3600.0,
            },
            nodes=("hkn0802",),
            cpus=8,
            memory_mib=20480,
            gpus={"a100": 1},
        )
    ]


def test_accounting_reports_the_end_of_a_task() -> None:
    jobs = [rest.parse_accounted_job(each) for each in recorded("accounted-24.11")["jobs"]]
    assert {(job.state, job.name, job.user) for job in jobs} == {
        ("CANCELLED", "c-b-0+.a100.horeka", "drone")
    }
    assert sorted(job.remote_id for job in jobs) == ["5113_0", "5113_1"]
    assert all(0 < job.started_at <= job.ends_at and job.limit_s == 3600.0 for job in jobs)


@pytest.mark.parametrize(("release", "default"), [("24.11", False), ("26.05", True)])
def test_nodes_partitions_and_reservations_of_slurmrestd(release: str, default: bool) -> None:
    [node] = [rest.parse_node(each) for each in recorded(f"nodes-{release}")["nodes"]]
    assert (node.name, node.partitions, node.cpus, node.memory_mib) == (
        "hkn0801",
        ("accelerated", "dev"),
        152,
        512000,
    )
    assert (node.gpus, node.threads_per_core) == ({"a100": 4}, 2)
    assert node.used_cpus > 0 and node.used_gpus == {"a100": node.used_cpus // 8}

    [partition] = [
        rest.parse_partition(each) for each in recorded(f"partitions-{release}")["partitions"]
    ]
    assert (partition.name, partition.up, partition.max_s) == ("accelerated", True, 172800.0)
    assert (partition.nodes, partition.default) == (("hkn0801", "hkn0802"), default)

    assert partition.exclusive in ("", "NO")
    [maintenance] = [
        rest.parse_reservation(each) for each in recorded(f"reservations-{release}")["reservations"]
    ]
    assert (maintenance.name, maintenance.nodes) == ("m1", ("hkn0901",))
    assert maintenance.ends_at - maintenance.starts_at == 3600


def test_partitions_of_slurmrestd_that_do_not_share_nodes() -> None:
    """As 24.11 and 26.05 report them: 26.05 has 0 jobs per node in every partition."""
    old, new = (
        recorded(f"partitions-{release}")["partitions"][0] for release in ("24.11", "26.05")
    )
    none = {"oversubscribe": {"jobs": 0, "flags": []}}
    whole = rest.parse_partition(
        {**old, "maximums": {**old["maximums"], **none}, "minimums": {"nodes": 2}}
    )
    assert (whole.exclusive, whole.min_nodes) == ("NODE", 2)
    for word in ("NO", "NODE", "USER"):
        state = {**new["partition"], "exclusive": word}
        assert rest.parse_partition({**new, "partition": state}).exclusive == word


def test_a_partition_of_pyslurm_that_does_not_share_nodes() -> None:
    values = {
        "name": "whole",
        "state": "UP",
        "nodes": "hkn0801",
        "oversubscribe": "EXCLUSIVE",
        "min_nodes": 2,
    }
    record = SimpleNamespace(
        **{**dict.fromkeys(_PYSLURM_PARTITION.values()), **values, "is_user_exclusive": True}
    )
    found = records.read(records.Partition, _attributes(record, _PYSLURM_PARTITION))
    assert (found.oversubscribe, found.exclusive_user, found.min_nodes, found.up) == (
        "EXCLUSIVE",
        True,
        2,
        True,
    )


def test_the_configuration_reads_as_scontrol_prints_it() -> None:
    told = rest.parse_configuration(recorded("conf-26.05"))

    assert told["SLURM_VERSION"] == "26.05.5"
    assert (told["KillWait"], told["MinJobAge"], told["MaxArraySize"]) == ("5", "300", "100001")
    assert rest.parse_configuration(recorded("states-24.11")) == {
        "SLURM_VERSION": "24.11.5",
        "AccountingStorageType": "accounting_storage/slurmdbd",
    }


@pytest.mark.parametrize(("spec", "cores"), [("0-3,38-41", 4), (None, 0)])
def test_cores_are_restricted_only_where_the_node_names_them(spec: str | None, cores: int) -> None:
    record = {**recorded("nodes-24.11")["nodes"][0], "res_cores_per_gpu": 4, "gpu_spec": spec}
    assert rest.parse_node(record).restricted_cores_per_gpu == cores


def of_pyslurm(**special: Any) -> SimpleNamespace:
    """A job as pyslurm reports it: None for what is 0."""
    return SimpleNamespace(**{**PYSLURM["job"], **special})


def only(job: SimpleNamespace) -> SlurmJob:
    [found] = convert_job(job)
    return found


def test_a_waiting_array_is_its_tasks_and_a_started_task_is_itself() -> None:
    waiting = of_pyslurm(
        id=10,
        array_id=10,
        array_tasks_waiting="0-1,7",
        state="PENDING",
        state_reason="Priority",
        allocated_nodes=None,
    )
    assert [(job.remote_id, job.state, job.reason) for job in convert_job(waiting)] == [
        (f"10_{task}", "PENDING", "Priority") for task in (0, 1, 7)
    ]
    assert only(of_pyslurm(id=4, array_id=1, array_task_id=1)).remote_id == "1_1"
    assert only(of_pyslurm(id=1, array_id=1, array_task_id=9)).remote_id == "1_9"
    # pyslurm has no 0
    assert only(of_pyslurm(id=3, array_id=1, array_task_id=None)).remote_id == "1_0"


def test_a_running_job_of_pyslurm() -> None:
    job = only(
        of_pyslurm(preempt_time=1795277100, num_nodes=2, allocated_nodes="hkn[0801-0802]", cpus=16)
    )
    assert (job.submitted_at, job.started_at, job.ends_at) == (
        1795277069.0,
        1795277069.0,
        1795277669.0,
    )
    assert (job.limit_s, job.preempted_at, job.exit_code) == (600.0, 1795277100.0, None)
    assert (job.nodes, job.node_count, job.cpus) == (("hkn0801", "hkn0802"), 2, 8)
    assert (job.memory_mib, job.gpus, job.reason) == (20480, {"a100": 1}, "")
    assert only(of_pyslurm(memory_per_cpu=1024, memory_per_node=None)).memory_mib == 8192


def test_an_ended_job_of_pyslurm() -> None:
    assert only(of_pyslurm(state="COMPLETED")).exit_code == 0
    assert only(of_pyslurm(state="FAILED", exit_code=73)).exit_code == 73
    killed = only(of_pyslurm(state="FAILED", exit_code=0, exit_code_signal=9))
    assert (killed.exit_code, killed.signal) == (0, 9)
    accounted = convert_accounted_job(
        of_pyslurm(state="FAILED", exit_code=73, user_name="drone", nodelist="hkn0801")
    )
    assert (accounted.exit_code, accounted.user, accounted.nodes) == (73, "drone", ("hkn0801",))


def test_gpus_that_are_requested_in_all_are_divided_by_the_nodes() -> None:
    gres = {"gpu": SimpleNamespace(count=4), "gpu:a100": SimpleNamespace(count=4)}
    job = of_pyslurm(gres_per_node={}, requested_tres=SimpleNamespace(gres=gres), num_nodes=2)
    assert only(job).gpus == {"a100": 2}
    assert only(of_pyslurm(gres_per_node={"gres/gpu": 1})).gpus == {"": 1}


@pytest.mark.parametrize(
    ("configured", "allocated", "used"),
    [
        ({"gpu:a100": 4}, {"gpu": 3}, {"a100": 3}),
        ({"gpu:(null)": 4}, {"gpu:(null)": {"count": 4, "indexes": "0-3"}}, {"": 4}),
        ({"gpu:a100": 4, "shard:a100": 16}, {"gpu": 1, "gpu:a100": 1, "shard": 2}, {"a100": 3}),
    ],
)
def test_used_gpus_of_a_node_of_pyslurm(
    configured: dict[str, Any], allocated: dict[str, Any], used: dict[str, int]
) -> None:
    record = SimpleNamespace(
        **{**PYSLURM["node"], "configured_gres": configured, "allocated_gres": allocated}
    )
    node = convert_node(record)
    assert (sum(node.gpus.values()), node.used_gpus) == (4, used)


@pytest.mark.parametrize(
    ("gres", "gres_used", "used"),
    [
        ("gpu:4(S:0-1)", "gpu:(null):4(IDX:0-3)", {"": 4}),
        (
            "gpu:a100:4,shard:a100:16",
            "gpu:a100:0(IDX:N/A),shard:a100:4(1/4,3/4,0/4,0/4)",
            {"a100": 2},
        ),
    ],
)
def test_used_gpus_of_a_node_of_slurmrestd(gres: str, gres_used: str, used: dict[str, int]) -> None:
    node = rest.parse_node(
        {**recorded("nodes-24.11")["nodes"][0], "gres": gres, "gres_used": gres_used}
    )
    assert (sum(node.gpus.values()), node.used_gpus) == (4, used)


def test_gpus_of_running_jobs_are_counted_by_node() -> None:
    have = {"n1": {"a100": 4}, "n2": {"h100": 4}}
    jobs = [
        SlurmJob("1", "x", "RUNNING", nodes=("n1",), gpus={"a100": 1}),
        SlurmJob("2", "x", "COMPLETING", nodes=("n1", "n2"), gpus={"": 2}),
        SlurmJob("3", "x", "PENDING", nodes=(), gpus={"a100": 4}),
    ]
    assert used_gpus_by_node(jobs, have) == {"n1": {"a100": 3}, "n2": {"h100": 2}}
