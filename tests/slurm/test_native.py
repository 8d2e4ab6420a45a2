"""The native transport without pyslurm: records, options and errors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.slurm.native import SlurmNativeClient, explain_error
from adapters.slurm.native_worker import (
    check_release,
    convert_jobs,
    convert_node,
    hide_from_jobs,
    job_description,
    used_gpus_by_node,
)
from adapters.slurm.options import unsupported_options
from adapters.slurm.records import SlurmJob, SlurmSubmission
from adapters.slurm.settings import SlurmSiteConfig
from provisioner.interfaces import RejectedError, UnavailableError
from provisioner.model import FaultKind

RECORDED = json.loads((Path(__file__).parent / "recorded/pyslurm.json").read_text())
"""Attributes of objects of pyslurm 25.11.2 beside Slurm 26.05."""


def native(**more: Any) -> SlurmNativeClient:
    return SlurmNativeClient(SlurmSiteConfig.model_validate({"transport": "native", **more}), "hk")


def told(**special: Any) -> SimpleNamespace:
    """A job as pyslurm tells it: None for what is 0."""
    return SimpleNamespace(**{**RECORDED["job"], **special})


def only(job: SimpleNamespace) -> SlurmJob:
    (found,) = convert_jobs(job)
    return found


# ------------------------------------------------------------------------------------------------------------ readings


def test_a_waiting_array_is_its_tasks_and_a_started_task_is_itself() -> None:
    waiting = told(
        id=10, array_id=10, array_tasks_waiting="0-1,7", state="PENDING", state_reason="Priority", allocated_nodes=None
    )
    assert [(job.remote_id, job.state, job.reason) for job in convert_jobs(waiting)] == [
        ("10_0", "PENDING", "Priority"),
        ("10_1", "PENDING", "Priority"),
        ("10_7", "PENDING", "Priority"),
    ]
    assert only(told(id=4, array_id=1, array_task_id=1)).remote_id == "1_1"
    assert only(told(id=1, array_id=1, array_task_id=9)).remote_id == "1_9"
    assert only(told(id=3, array_id=1, array_task_id=None)).remote_id == "1_0"  # pyslurm has no 0
    assert only(told(id=3)).remote_id == "3"


def test_a_running_job() -> None:
    job = only(told(preempt_time=1795277100, num_nodes=2, allocated_nodes="hkn[0801-0802]", cpus=16))
    assert (job.submitted_at, job.started_at, job.ends_at) == (1795277069.0, 1795277069.0, 1795277669.0)
    assert (job.limit_s, job.preempted_at, job.exit_code) == (600.0, 1795277100.0, None)
    assert (job.nodes, job.node_count, job.cpus) == (("hkn0801", "hkn0802"), 2, 8)
    assert (job.memory_mib, job.gpus, job.reason) == (20480, {"a100": 1}, "")
    assert only(told(memory_per_cpu=1024, memory_per_node=None)).memory_mib == 8192


def test_only_an_ended_job_has_an_exit_code() -> None:
    assert only(told(state="COMPLETED")).exit_code == 0
    assert only(told(state="FAILED", exit_code=73)).exit_code == 73
    killed = only(told(state="FAILED", exit_code=0, exit_code_signal=9))
    assert (killed.exit_code, killed.signal) == (0, 9)


@pytest.mark.parametrize(
    ("word", "state", "flags"),
    [
        ("CONFIGURING", "RUNNING", {"CONFIGURING"}),
        ("COMPLETING", "COMPLETING", {"COMPLETING"}),
        ("PREEMPTED", "PREEMPTED", set()),
        ("SOMETHING_NEW", "SOMETHING_NEW", set()),
    ],
)
def test_a_flag_replaces_the_base_state(word: str, state: str, flags: set[str]) -> None:
    job = only(told(state=word))
    assert (job.state, job.flags) == (state, flags)


def test_gpus_that_are_asked_for_in_all_are_shared_out() -> None:
    gres = {"gpu": SimpleNamespace(count=4), "gpu:a100": SimpleNamespace(count=4)}
    job = told(gres_per_node={}, requested_tres=SimpleNamespace(gres=gres), num_nodes=2)
    assert only(job).gpus == {"a100": 2}
    assert only(told(gres_per_node={"gres/gpu": 1})).gpus == {"": 1}
    assert only(told(gres_per_node={})).gpus == {}


def test_a_node() -> None:
    node = SimpleNamespace(**RECORDED["node"])
    found = convert_node(node, None)
    assert (found.state, found.flags) == ("MIXED", {"DRAIN", "PLANNED"})
    assert (found.gpus, found.used_gpus, found.features) == ({"a100": 4}, {"a100": 3}, ("LSDF",))
    assert convert_node(node, {"a100": 1}).used_gpus == {"a100": 1}
    node.allocated_gres = {"gpu": 2}  # counted without types: there is but one
    assert convert_node(node, None).used_gpus == {"a100": 2}


def test_gpus_of_running_jobs_are_counted_by_node() -> None:
    have = {"n1": {"a100": 4}, "n2": {"h100": 4}}
    jobs = [
        SlurmJob("1", "x", "RUNNING", nodes=("n1",), gpus={"a100": 1}),
        SlurmJob("2", "x", "COMPLETING", nodes=("n1", "n2"), gpus={"": 2}),
        SlurmJob("3", "x", "PENDING", nodes=(), gpus={"a100": 4}),
    ]
    assert used_gpus_by_node(jobs, have) == {"n1": {"a100": 3}, "n2": {"h100": 2}}


# -------------------------------------------------------------------------------------------------------------- saying


def test_a_submission_in_pyslurms_words() -> None:
    said = job_description(
        SlurmSubmission(
            "kit-a-0+.a100.hk",
            b"#!/bin/sh\n",
            tasks=(0, 1, 4),
            cpus=8,
            memory_mib=20480,
            minutes=10,
            notice_s=60,
            options={
                "partition": "accelerated",
                "gres": "gpu:a100:1",
                "nice": "100",
                "exclude": "hkn0815",
                "exclusive": True,
            },
        )
    )
    assert said["array"] == "0-1,4" and said["gres_per_node"] == "gpu:a100:1"
    assert (said["memory_per_node"], said["time_limit"], said["cpus_per_task"]) == (20480, 10, 8)  # MiB, minutes
    assert said["signal"] == {"signal": 15, "time": 60, "batch_only": True}
    assert (said["is_requeueable"], said["nodes"], said["ntasks"]) == (False, 1, 1)
    assert (said["nice"], said["excluded_nodes"], said["resource_sharing"]) == (100, "hkn0815", "no")
    assert said["environment"] == {"SLURM_EXPORT_ENV": "NIL"} and said["profile_types"] == "none"
    assert not {"account", "qos", "reservations", "constraints"} & said.keys()


def test_the_admins_options_do_not_override_ours() -> None:
    with pytest.raises(RejectedError, match=r"pyslurm does not support `time`"):
        job_description(SlurmSubmission("x", b"#!/bin/sh\n", options={"time": "10"}))


def test_options_that_pyslurm_does_not_support() -> None:
    options: dict[str, str | bool] = {
        "comment": "x",
        "bb": "x",
        "switches": "1@10",
        "mail-type": "END,INVALID_DEPEND",
        "nice": True,
        "reboot": True,
        "nodelist": True,
        "priority": "soon",
    }
    assert list(unsupported_options(options, "native")) == ["bb", "switches", "mail-type", "nodelist", "priority"]


def test_variables_of_slurm_are_hidden_from_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JWT", "token")
    try:
        hide_from_jobs()
        assert not [name for name in os.environ if name.startswith("SLURM_")]
    finally:
        os.unsetenv("SLURM_JWT")
        os.unsetenv("SLURM_BITSTR_LEN")


# -------------------------------------------------------------------------------------------------------------- errors


def test_another_release_is_not_tried() -> None:
    check_release("26.5.0", 45)
    check_release("25.11.2", 44)
    check_release("24.11.0", 42)
    with pytest.raises(UnavailableError, match=r"pyslurm 25\.11\.2 is for Slurm 25\.11, .* is of 26\.05") as down:
        check_release("25.11.2", 45)
    assert down.value.kind is FaultKind.CONFIG


def test_the_end_for_want_of_a_configuration_is_explain_error() -> None:
    said = UnavailableError(
        "ours: the child process ended (exit code 1): fatal: Could not establish a configuration source"
    )
    assert explain_error(said).kind is FaultKind.CONFIG
    other = UnavailableError("ours: no answer within 5 s")
    assert explain_error(other) is other


async def test_without_pyslurm_the_error_names_the_requirement() -> None:
    async with native() as cluster:
        for question in (cluster.own_jobs, lambda: cluster.submit(SlurmSubmission("x", b"#!/bin/sh\n"))):
            with pytest.raises(UnavailableError, match=r"pip install 'gpu-drone-provisioner\[slurm-native\]'") as down:
                await question()
            assert down.value.kind is FaultKind.CONFIG


async def test_an_interpreter_that_is_not_there() -> None:
    async with native(native={"python": "/nowhere/python3"}) as cluster:
        with pytest.raises(UnavailableError, match="cannot be started"):
            await cluster.own_jobs()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Path]:
    """This Python without anything that is installed for it."""
    file = tmp_path / "python"
    file.write_text(f'#!/bin/sh\nexec {Path(sys.executable).resolve()} -S "$@"\n')
    file.chmod(0o755)
    yield file


async def test_another_interpreter_needs_nothing_of_ours_but_our_packages(bare: Path) -> None:
    async with native(native={"python": str(bare)}) as cluster:
        with pytest.raises(UnavailableError, match="the native transport needs pyslurm"):
            await cluster.nodes()


async def test_a_client_that_was_not_entered_is_not_connected() -> None:
    with pytest.raises(UnavailableError, match="not connected"):
        await native().own_jobs()


def test_only_the_native_transport_has_an_interpreter() -> None:
    with pytest.raises(ValueError, match="`native` is for another transport"):
        SlurmSiteConfig.model_validate({"native": {"python": "/usr/bin/python3"}})
