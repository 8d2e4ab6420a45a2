"""Start orders as submissions, and their batch script on a node."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adapters.shared.parcel import UnfitError
from adapters.slurm.settings import SlurmSiteConfig, drone_lifetime_s
from adapters.slurm.submission import SlurmBatch, make_batches, validate_order
from provisioner.job_filter import JobFilter
from provisioner.model import Bootstrap, DroneId, DroneType, StartOrder
from tests.labs.htcondor import processes_with, until

GIB = 1024
A100 = DroneType(
    "horeka", "a100", gpu_milli=1000, cpus=8, memory_mib=20 * GIB, disk_mib=1000, walltime_s=7259.0
)
NODE = replace(A100, name="node", gpu_milli=4000, cpus=152, memory_mib=480 * GIB)
CPU = replace(A100, name="cpu", gpu_milli=0)
DRONE = Bootstrap(b"#!/bin/sh\nexit 0\n", {"DRONE_COLLECTOR": "pool:9618"}, {"token": b"secret"})


def order(serial: int, kind: DroneType = A100, bootstrap: Bootstrap | None = DRONE) -> StartOrder:
    return StartOrder(DroneId(f"kit-ab12-{serial}"), kind, 600.0, 30.0, bootstrap)


def config(**more: object) -> SlurmSiteConfig:
    return SlurmSiteConfig.model_validate({"types": {"a100": {"gres": "gpu:a100"}}, **more})


def submitted(*orders: StartOrder, largest: int = 1001, **more: object) -> list[SlurmBatch]:
    return list(make_batches(list(orders), config(**more), largest))


def test_drones_of_a_type_go_as_one_array_whose_tasks_are_their_numbers_and_one_drone_as_a_job() -> (
    None
):
    [batch] = submitted(order(120), order(117), order(118))
    assert batch.drone_ids == ("kit-ab12-117", "kit-ab12-118", "kit-ab12-120")
    assert (batch.submission.name, batch.submission.tasks) == (
        "kit-ab12-117+.a100.horeka",
        (0, 1, 3),
    )
    assert batch.remote_ids(55) == ("55_0", "55_1", "55_3")
    [batch] = submitted(order(117))
    assert (batch.submission.name, batch.submission.tasks) == ("kit-ab12-117.a100.horeka", ())
    assert batch.remote_ids(55) == ("55",)


@pytest.mark.parametrize(
    ("options", "excluded"),
    [
        ({}, "n1,n2"),
        ({"exclude": "n[7-9]"}, "n[7-9],n1,n2"),
        ({"exclude": "/etc/bad-nodes"}, "/etc/bad-nodes"),
        ({"nodelist": "n1"}, None),
    ],
)
def test_nodes_that_are_avoided_are_excluded_unless_the_operator_names_nodes(
    options: dict[str, str], excluded: str | None
) -> None:
    [batch] = make_batches([order(1)], config(submit=options), 1001, ("n1", "n2"))
    assert batch.submission.options.get("exclude") == excluded


def test_orders_that_differ_in_more_than_the_number_are_separate() -> None:
    other = replace(DRONE, files={"token": b"another"})
    hurried = replace(order(4), idle_timeout_s=60.0)
    picky = replace(order(7), job_filter=JobFilter(("anna",)))
    reborn = replace(order(6), drone_id=DroneId("kit-cd34-6"))
    found = submitted(
        order(1), order(2, CPU), order(3, A100, other), hurried, order(5), reborn, picky
    )
    assert [batch.drone_ids for batch in found] == [
        ("kit-ab12-1", "kit-ab12-5"),
        ("kit-ab12-2",),
        ("kit-ab12-3",),
        ("kit-ab12-4",),
        ("kit-cd34-6",),
        ("kit-ab12-7",),
    ]


def test_no_task_has_a_number_that_the_cluster_does_not_allow() -> None:
    found = submitted(*(order(n) for n in (1, 2, 10, 11, 12, 40)), largest=10)
    assert [batch.submission.tasks for batch in found] == [(0, 1, 9), (0, 1), ()]
    assert [batch.drone_ids[0] for batch in found] == ["kit-ab12-1", "kit-ab12-11", "kit-ab12-40"]


def test_a_submission_requests_the_resources_of_the_type() -> None:
    [batch] = submitted(
        order(1), partition="accelerated", account="hk", submit={"exclude": "hkn0815"}
    )
    asked = batch.submission
    assert asked.cpus == 8
    # --mem=20480M is --mem=20G to Slurm; 20 GB would be 19074M
    assert asked.memory_mib == 20 * 1024
    assert asked.options == {
        "exclude": "hkn0815",
        "partition": "accelerated",
        "account": "hk",
        "gres": "gpu:a100:1",
    }
    assert submitted(order(1, NODE))[0].submission.options["gres"] == "gpu:4"
    assert "gres" not in submitted(order(1, CPU))[0].submission.options


def test_a_job_carries_the_epoch_of_its_order_unless_its_admin_comments_it() -> None:
    third = replace(order(1), epoch=3)
    assert submitted(third)[0].submission.options["comment"] == "epoch=3"
    assert "comment" not in submitted(order(1))[0].submission.options
    [batch] = submitted(third, submit={"comment": "GPU pilots"})
    assert batch.submission.options["comment"] == "GPU pilots"


def test_the_limit_is_whole_minutes_and_the_lifetime_ends_before_it() -> None:
    [batch] = submitted(order(1))  # 7259 s, grace 30 s
    assert (batch.submission.minutes, batch.submission.notice_s) == (120, 60)
    assert drone_lifetime_s(7259.0, 30.0) == 7200 - 30 - 90

    assert config().kept_life_s(7259.0, 30.0) == 7259 - drone_lifetime_s(7259.0, 30.0)


@pytest.mark.parametrize(
    "bad",
    [
        *(replace(order(1), drone_id=DroneId(bad)) for bad in ("kit-two-ab12-1", "kit-ab12-01")),
        order(1, A100, None),
        *(order(1, A100, replace(DRONE, files={name: b""})) for name in ("../token", ".site/step")),
        order(1, A100, replace(DRONE, files={"large": bytes(4 * 1024**2)})),
    ],
)
def test_an_invalid_order_is_rejected(bad: StartOrder) -> None:
    validate_order(order(1), "kit")
    with pytest.raises(UnfitError):
        validate_order(bad, "kit")


def test_the_script_is_plain_ascii_without_readable_secrets() -> None:
    [batch] = submitted(
        order(1, A100, replace(DRONE, files={"token": b"hush-hush", "x": bytes(range(256))}))
    )
    assert batch.submission.script.isascii()
    assert b"hush-hush" not in batch.submission.script


# This host is the node, and has no srun: the step is left out, all else is the same.


class OnTheNode:
    """A batch script under way, as slurmd starts it."""

    def __init__(
        self,
        scratch: Path,
        what: StartOrder,
        shell: str = "/bin/sh",
        told: Mapping[str, str] = {},
        **env: str,
    ) -> None:
        [batch] = submitted(what, scratch=str(scratch), env=told)
        script = scratch.parent / "slurm_script"
        script.write_bytes(batch.submission.script)
        self.drone_id = what.drone_id
        pipes: Any = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
        }
        command = [*shell.split(), str(script)]
        self.process = subprocess.Popen(command, env=env, cwd="/", start_new_session=True, **pipes)

    def end(self, within_s: float = 30) -> tuple[int, str]:
        said, _ = self.process.communicate(timeout=within_s)
        return self.process.returncode, said.decode(errors="replace")


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def drone(
    text: str, env: Mapping[str, str] = {}, files: Mapping[str, bytes] = {}, serial: int = 7
) -> StartOrder:
    bootstrap = Bootstrap(f"#!/bin/sh\n{text}\n".encode(), env, files)
    return replace(
        order(serial, A100, bootstrap),
        drone_id=DroneId(f"kit{os.getpid()}-ab12-{serial}"),
        grace_s=2.0,
    )


@pytest.mark.parametrize("shell", ["/bin/sh", "bash --posix"])
def test_a_drone_finds_its_files_and_its_environment_whatever_is_in_them(
    scratch: Path, shell: str
) -> None:
    odd = 'it\'s $HOME `id` "q" \\ \n EOF\nEND_OF_FILES\n\té'
    files = {"token": bytes(range(256)) * 9, "checks/a.sh": b"END_OF_FILES\n", "empty": b""}
    out = scratch.parent / "seen"
    poll = f'mkdir {out}; cp -r . {out}; cd {out}; printf "%s" "$ODD" >odd; env >env; stat -c "%a" "$DRONE_DIR" >mode'
    code, said = OnTheNode(
        scratch, drone(poll, {"ODD": odd}, files), shell, SLURM_JOB_ID="5", CUDA_VISIBLE_DEVICES="3"
    ).end()
    assert (code, said) == (0, "")
    assert {name: (out / name).read_bytes() for name in files} == files
    assert (out / "odd").read_text() == odd
    assert (out / "mode").read_text() == "700\n"
    env = dict(line.split("=", 1) for line in (out / "env").read_text().splitlines() if "=" in line)
    assert env["DRONE_ID"] == env["PROVISIONER_DRONE_ID"] == f"kit{os.getpid()}-ab12-7"
    assert env["HOME"] == env["DRONE_DIR"]
    assert Path(env["DRONE_DIR"]).parent == scratch
    assert (env["CUDA_VISIBLE_DEVICES"], env["DRONE_WALLTIME_S"]) == ("3", str(7200 - 2 - 90))
    assert "/usr/bin" in env["PATH"].split(":")
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "env", "code", "says", "not_says"),
    [
        (
            "echo I am $DRONE_ID",
            {"SLURM_ARRAY_TASK_ID": "5"},
            0,
            (f"I am kit{os.getpid()}-ab12-12",),
            "requeued",
        ),
        ("echo it lives", {"SLURM_RESTART_COUNT": "1"}, 0, ("requeued",), "it lives"),
        (
            "mkdir log; echo the master died >log/MasterLog; echo exit=74 >outcome; exit 74",
            *({}, 74, ("exit=74", "the master died"), "requeued"),
        ),
    ],
)
def test_a_task_is_the_drone_of_its_number_lives_once_and_reports_its_end(
    scratch: Path, text: str, env: Mapping[str, str], code: int, says: Sequence[str], not_says: str
) -> None:
    found, said = OnTheNode(scratch, drone(text), **env).end()
    assert found == code
    assert all(each in said for each in says) and not_says not in said
    assert list(scratch.iterdir()) == []


def test_the_batch_shell_passes_sigterm_on_to_the_drone(scratch: Path) -> None:
    job = OnTheNode(
        scratch, drone("trap 'echo it leaves; exit 5' TERM; : >ready; while :; do sleep 0.1; done")
    )
    until(lambda: list(scratch.glob("*/ready")), 20, what="the drone runs")
    job.process.send_signal(signal.SIGTERM)  # the batch shell alone, as --signal=B:TERM does
    code, said = job.end()
    assert code == 5
    assert said.count("it leaves") == 1
    assert list(scratch.iterdir()) == []


def test_a_drone_that_exceeds_the_grace_is_killed_with_all_it_started(scratch: Path) -> None:
    text = (
        "trap '' TERM INT; sleep 1000 & setsid sleep 1000 & : >ready; while :; do sleep 1000; done"
    )
    job = OnTheNode(scratch, drone(text))
    until(lambda: list(scratch.glob("*/ready")), 20, what="the drone runs")
    asked = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    job.end()
    assert time.monotonic() - asked >= 1.9  # not before its grace was over
    assert not processes_with(f"PROVISIONER_DRONE_ID={job.drone_id}\0")
    assert list(scratch.iterdir()) == []


def test_directories_of_the_dead_are_swept_and_no_others(scratch: Path) -> None:
    me, node = f"kit{os.getpid()}", os.uname().nodename
    for name, host in (
        ("dead", node),
        ("elsewhere", "other-node"),
        ("living", node),
        ("young", node),
    ):
        home = scratch / f"drone.{me}-ab12-1.{name}"
        (home / ".site").mkdir(parents=True)
        (home / ".site/lock").write_text(f"{host}\n")
        (home / "sub").mkdir(mode=0)
        if name != "young":
            os.utime(home, (0, time.time() - 3600))
    somebody = scratch / "drone.other-ab12-1.dead"
    somebody.mkdir()
    lock = scratch / f"drone.{me}-ab12-1.living/.site/lock"
    with subprocess.Popen(
        ["flock", "-s", str(lock), "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as held:
        taken = ["flock", "-n", "-x", str(lock), "true"]
        until(lambda: subprocess.run(taken).returncode != 0, 20, what="the lock is held")
        assert OnTheNode(scratch, drone(":")).end()[0] == 0
        assert held.stdin is not None
        held.stdin.close()
    left = sorted(each.name.rpartition(".")[2] for each in scratch.glob(f"drone.{me}-*"))
    assert left == ["elsewhere", "living", "young"]
    assert somebody.is_dir()


def test_incomplete_files_start_no_drone(scratch: Path) -> None:
    job = drone("echo it lives", files={"x": b"y" * 5000})
    [batch] = submitted(job, scratch=str(scratch))
    lines = batch.submission.script.splitlines(keepends=True)
    begin = next(i for i, line in enumerate(lines) if b"base64 -d" in line)
    end = lines.index(b"END_OF_FILES\n")
    broken = b"".join(lines[: begin + 20] + lines[end:])
    done = subprocess.run(["/bin/sh"], input=broken, env={}, capture_output=True, timeout=30)
    assert done.returncode == 70
    assert b"it lives" not in done.stdout
    assert list(scratch.iterdir()) == []
