"""Output and arguments of Slurm's tools: an incomplete answer is an error.

The answers below ``recorded`` are those of real clusters of three versions, with the separator
``@c0de``. On each of them one user has a job whose name is made to look like rows of a table.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from adapters.shared.commands.runner import Finished, NoReplyError
from adapters.slurm import tools as slurm_tools
from adapters.slurm.records import SlurmJob, SlurmSubmission
from adapters.slurm.settings import SlurmSiteConfig
from adapters.slurm.tools import SlurmToolsClient
from provisioner.interfaces import (
    AdapterError,
    AuthError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)
from provisioner.model import FaultKind

RECORDED = Path(__file__).with_name("recorded")
SEPARATOR = "@c0de"
each_version = pytest.mark.parametrize("version", ["22.05", "24.11", "26.05"])
HOSTILE = "evil\nname@5e9a\n9@5e9aRUNNING"


def recorded(version: str, name: str) -> str:
    return (RECORDED / version / f"{name}.txt").read_text()


def own_jobs(text: str) -> list[SlurmJob]:
    return slurm_tools.parse_jobs(text, SEPARATOR, slurm_tools.OWN_JOB_COLUMNS)


def active_jobs(text: str) -> list[SlurmJob]:
    return slurm_tools.parse_jobs(text, SEPARATOR, slurm_tools.ACTIVE_JOB_COLUMNS)


def by_name(jobs: Sequence[SlurmJob]) -> dict[str, list[SlurmJob]]:
    found: dict[str, list[SlurmJob]] = {}
    for job in jobs:
        found.setdefault(job.name, []).append(job)
    return found


@each_version
def test_own_jobs_are_listed_with_their_ends(version: str) -> None:
    jobs = by_name(own_jobs(recorded(version, "ours")))

    drones = jobs["kit-a1b2-7+.a100.horeka"]
    assert sorted(job.remote_id.partition("_")[2] for job in drones) == ["0", "1", "2", "5"]
    for job in drones:
        assert (job.state, job.nodes, job.exit_code, job.reason) == (
            "RUNNING",
            ("hkn0801",),
            None,
            "",
        )
        assert (job.limit_s, job.ends_at - job.started_at) == (300.0, 300.0)

    told = {name: jobs[name][0] for name in ("failer", "killed", "imposs", "held", "over")}
    ends = {
        name: (told[name].state, told[name].exit_code, told[name].signal)
        for name in ("failer", "killed", "held")
    }
    assert ends == {
        "failer": ("FAILED", 3, 0),
        "killed": ("FAILED", 0, 9),
        "held": ("PENDING", None, 0),
    }
    assert (told["imposs"].reason, told["imposs"].nodes) == ("BadConstraints", ())
    assert (told["held"].reason, told["held"].started_at) == ("JobHeldUser", 0.0)
    assert (told["over"].reason, told["over"].limit_s) == ("PartitionTimeLimit", 864000.0)
    assert [job.state for job in jobs[HOSTILE]] == ["RUNNING"]


@each_version
def test_accounting_lists_ended_jobs(version: str) -> None:
    jobs = by_name(slurm_tools.parse_ended_jobs(recorded(version, "ended"), SEPARATOR))
    assert len(jobs["kit-a1b2-7+.a100.horeka"]) == 4
    [cancelled] = jobs["cancelled"]
    assert (cancelled.state, cancelled.reason, cancelled.limit_s) == ("CANCELLED", "by 2001", 300.0)
    assert [job.state for job in jobs[HOSTILE]] == ["RUNNING"]


def test_waiting_tasks_in_one_row_of_accounting_are_listed_singly() -> None:
    row = (
        *(
            "14_[2-4,9,10-14:2%2]",
            "CANCELLED by 0",
            "0:0",
            "None",
            "5",
            "None",
            "9",
            "UNLIMITED",
            "p",
        ),
        *("None assigned", "drone", "lab", "normal", "kit-a-0+.t.s"),
    )
    text = "".join(
        f"{SEPARATOR.join(each)}{SEPARATOR}\n" for each in (slurm_tools.SACCT_COLUMNS, row)
    )
    jobs = slurm_tools.parse_ended_jobs(text, SEPARATOR)
    assert [job.remote_id for job in jobs] == [
        "14_2",
        "14_3",
        "14_4",
        "14_9",
        "14_10",
        "14_12",
        "14_14",
    ]
    assert {(job.state, job.ends_at, job.limit_s, job.nodes) for job in jobs} == {
        ("CANCELLED", 9.0, 0.0, ())
    }
    with pytest.raises(ValueError, match="more tasks"):
        slurm_tools.parse_ended_jobs(text.replace("2-4", "0-999999999"), SEPARATOR)


@each_version
def test_active_jobs_are_listed_with_their_request_per_node(version: str) -> None:
    jobs = active_jobs(recorded(version, "others"))
    runs = [job for job in jobs if job.state == "RUNNING"]
    assert len(runs) == 5
    for job in runs:
        assert (job.node_count, job.cpus, job.memory_mib, dict(job.gpus)) == (
            1,
            8,
            20480,
            {"a100": 1},
        )
    assert {job.name for job in runs} == {"kit-a1b2-7+.a100.horeka", HOSTILE}
    two = next(job for job in jobs if job.required_nodes)
    assert (two.required_nodes, two.node_count, two.cpus, two.memory_mib) == (
        ("hkn0801", "hkn0802"),
        2,
        16,
        20480,
    )
    assert dict(two.gpus) == {"": 2}


@each_version
def test_nodes_are_listed_once_with_allocated_resources(version: str) -> None:
    nodes = {
        node.name: node for node in slurm_tools.parse_nodes(recorded(version, "nodes"), SEPARATOR)
    }
    assert set(nodes) == {"hkn0801", "hkn0802", "hkn0901", "hkn0902"}
    full, drained = nodes["hkn0801"], nodes["hkn0902"]
    assert (full.state, full.partitions, full.threads_per_core) == (
        "MIXED",
        ("accelerated", "dev"),
        2,
    )
    assert (full.cpus, full.used_cpus, full.memory_mib, full.used_memory_mib) == (
        152,
        32,
        512000,
        81920,
    )
    assert (dict(full.gpus), dict(full.used_gpus)) == ({"a100": 4}, {"a100": 4})
    assert dict(nodes["hkn0802"].used_gpus) == {"a100": 1}
    assert (drained.state, drained.flags) == ("IDLE", {"DRAIN"})
    assert (dict(drained.gpus), dict(drained.used_gpus)) == ({"h100": 4}, {})


@each_version
def test_partitions_reservations_and_configuration(version: str) -> None:
    partitions = {
        each.name: each for each in slurm_tools.parse_partitions(recorded(version, "partitions"))
    }
    assert list(partitions) == ["accelerated", "accelerated-h100", "dev"]
    assert (partitions["accelerated"].default, partitions["dev"].default) == (True, False)
    assert {
        (each.oversubscribe, each.exclusive_user, each.min_nodes) for each in partitions.values()
    } == {("NO", False, 0)}
    (maintenance,) = slurm_tools.parse_reservations(recorded(version, "reservations"))
    assert (maintenance.name, maintenance.nodes) == ("maint", ("hkn0901",))
    configuration = slurm_tools.parse_configuration(recorded(version, "config"))
    assert configuration["SLURM_VERSION"].startswith(version)
    assert (configuration["KillWait"], configuration["MaxArraySize"]) == ("5 sec", "100001")


@pytest.mark.parametrize(
    ("version", "changes", "meant"),
    [
        ("24.11", {"OverSubscribe=NO": "OverSubscribe=EXCLUSIVE"}, ("EXCLUSIVE", "", False, 0)),
        (
            "22.05",
            {"ExclusiveUser=NO": "ExclusiveUser=YES", "MinNodes=0": "MinNodes=2"},
            ("NO", "", True, 2),
        ),
        ("26.05", {"Exclusive=NO": "Exclusive=NODE"}, ("NO", "NODE", False, 0)),
        ("26.05", {"OverSubscribe=NO": "OverSubscribe=FORCE:4"}, ("FORCE:4", "NO", False, 0)),
    ],
)
def test_partitions_that_do_not_share_nodes(
    version: str, changes: dict[str, str], meant: tuple[object, ...]
) -> None:
    text = recorded(version, "partitions").splitlines()[0] + "\n"
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    [found] = slurm_tools.parse_partitions(text)
    assert (found.oversubscribe, found.exclusive, found.exclusive_user, found.min_nodes) == meant


READERS: dict[str, Callable[[str], object]] = {
    "ours": own_jobs,
    "others": active_jobs,
    "ended": lambda text: slurm_tools.parse_ended_jobs(text, SEPARATOR),
    "nodes": lambda text: slurm_tools.parse_nodes(text, SEPARATOR),
}


@each_version
@pytest.mark.parametrize("name", READERS)
def test_an_incomplete_table_is_no_answer(version: str, name: str) -> None:
    whole, read = recorded(version, name), READERS[name]
    header = whole.split("\n")[0] + "\n"
    assert read(header) == []
    with pytest.raises(ValueError):
        read("")
    with pytest.raises(ValueError):
        read(whole.removeprefix(header))
    assert read(f"Welcome to the login node!\n\n{whole}") == read(whole)
    with pytest.raises(ValueError, match="Welcome to the login node!"):
        read(f"Welcome to the login node!\n{whole.removeprefix(header)}")
    with pytest.raises(ValueError):
        read(f"Welcome to the login node! {whole}")
    rows = whole.split(f"{SEPARATOR}\n")
    ends = {sum(len(row) + len(SEPARATOR) + 1 for row in rows[: n + 1]) for n in range(len(rows))}
    for at in range(0, len(whole), 7):
        if at not in ends:
            with pytest.raises(ValueError):
                read(whole[:at])


@pytest.mark.parametrize(
    "text", ["", "slurm_load\n", "State=UP\n", "PartitionName=a Nodes=x State=UP MaxTi"]
)
def test_incomplete_partitions_are_no_answer_and_a_greeting_is_skipped(text: str) -> None:
    whole = recorded("24.11", "partitions")
    assert slurm_tools.parse_partitions(f"Welcome\n\n{whole}") == slurm_tools.parse_partitions(
        whole
    )
    assert slurm_tools.parse_reservations("Welcome\nNo reservations in the system\n") == []
    with pytest.raises(ValueError):
        slurm_tools.parse_partitions(text)
    with pytest.raises(ValueError):
        slurm_tools.parse_reservations(text)
    with pytest.raises(ValueError):
        slurm_tools.parse_configuration(text)


class Login:
    """A login node whose tools answer as a test says."""

    def __init__(self) -> None:
        self.answers: list[Finished | Exception] = []
        self.asked: list[tuple[list[str], bytes]] = []

    async def __aenter__(self) -> Login:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", deadline_s: float) -> Finished:
        self.asked.append((list(argv), stdin))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Login:
    there = Login()
    monkeypatch.setattr(slurm_tools, "runner_for", lambda *_: there)
    monkeypatch.setattr(slurm_tools, "_separator", lambda: SEPARATOR)
    return there


@pytest.fixture
async def tools(login: Login) -> AsyncIterator[SlurmToolsClient]:
    async with SlurmToolsClient(SlurmSiteConfig(), "site") as cluster:
        yield cluster


def well(out: str = "", err: str = "") -> Finished:
    return Finished(0, out.encode(), err.encode())


def badly(err: str, code: int = 1, out: str = "") -> Finished:
    return Finished(code, out.encode(), err.encode())


OPTIONS = {
    "exclude": "hkn0815",
    "exclusive": True,
    "partition": "accelerated,dev",
    "gres": "gpu:a100:1",
}
SIZE: Any = {"cpus": 8, "memory_mib": 20000, "minutes": 60, "notice_s": 120}
SUBMISSION = SlurmSubmission(
    "kit-a1b2-7+.a100.horeka", b"#!/bin/sh\n", (0, 1, 2, 5), options=OPTIONS, **SIZE
)


@pytest.mark.parametrize(
    "answer",
    [
        well(),
        badly("slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
        well(recorded("24.11", "ours"), "squeue: error: Invalid user: nosuch\n"),
        well(recorded("24.11", "ours")[:-9]),
        NoReplyError("cut"),
    ],
)
async def test_no_jobs_only_by_a_complete_answer(
    login: Login, tools: SlurmToolsClient, answer: Finished | Exception
) -> None:
    header = recorded("24.11", "ours").split("\n")[0] + "\n"
    login.answers = [
        answer,
        well(header, "bash: warning: setlocale: LC_ALL: cannot change locale\n"),
    ]
    with pytest.raises(UnavailableError):
        await tools.own_jobs()
    assert await tools.own_jobs() == []


LEFTOVER = "error: Ignoring ControlMachine since SlurmctldHost is set."


async def test_a_remark_beside_a_complete_answer_is_a_notice(
    login: Login, tools: SlurmToolsClient
) -> None:
    """A leftover line in slurm.conf took the whole site down."""
    whole = recorded("24.11", "ours")
    login.answers = [
        well(whole, f"squeue: {LEFTOVER}\n"),
        well(recorded("24.11", "partitions"), f"scontrol: {LEFTOVER}\n"),
        badly(f"scancel: {LEFTOVER}\n"),
        well("", f"scancel: {LEFTOVER}\n"),
        badly(f"squeue: {LEFTOVER}\n"),
        well("", f"squeue: {LEFTOVER}\n"),
        well(whole[:-9], f"squeue: {LEFTOVER}\n"),
    ]
    assert list(tools.notices()) == []
    assert await tools.own_jobs() == own_jobs(whole)
    await tools.partitions()
    (notice,) = tools.notices()
    assert LEFTOVER in notice
    with pytest.raises(OutcomeUnknownError):
        await tools.cancel(["3"])
    await tools.cancel(["3"])
    for _ in range(3):
        with pytest.raises(UnavailableError):
            await tools.own_jobs()


async def test_questions_pass_a_shell_that_splits_at_blanks(login: Login) -> None:
    for name in (
        "ours",
        "others",
        "ended",
        "ended",
        "nodes",
        "partitions",
        "reservations",
        "config",
    ):
        login.answers.append(well(recorded("24.11", name)))
    login.answers.insert(5, well("NodeName=hkn0801 X=1 RestrictedCoresPerGPU=4(0-15)\n"))
    async with SlurmToolsClient(
        SlurmSiteConfig.model_validate({"tools": {"bin": "/opt/slurm/bin/"}}), "site"
    ) as cluster:
        await cluster.own_jobs()
        await cluster.active_jobs(["dev", "accelerated"])
        await cluster.ended_jobs(["12_3", "14"], 0)
        await cluster.ended_jobs([], 1000.5)
        nodes = await cluster.nodes(reserves=True)
        await cluster.partitions(), await cluster.reservations(), await cluster.configuration()
    for argv, stdin in login.asked:
        assert shlex.join(argv).split() == argv
        assert argv[0] == "env" and "SLURM_TIME_FORMAT=%s" in argv and not stdin
    told = [" ".join(argv) for argv, _ in login.asked]
    assert "/opt/slurm/bin/squeue --me -a -r -t all -O JobArrayID:0@c0de,State:0@c0de," in told[0]
    assert "-u SQUEUE_PARTITION" in told[0]
    assert "-p accelerated,dev -O " in told[1] and "-u SQUEUE_USERS" in told[1]
    assert told[2].endswith(" -j 12_3,14") and told[3].endswith(" -S uts1000")
    assert {
        node.name: node.restricted_cores_per_gpu for node in nodes if node.restricted_cores_per_gpu
    } == {"hkn0801": 4}


async def test_missing_accounting_is_asked_once(login: Login) -> None:
    login.answers = [badly("Slurm accounting storage is disabled")]
    async with SlurmToolsClient(SlurmSiteConfig(), "site") as cluster:
        assert await cluster.ended_jobs(["1"], 0) is None
        assert await cluster.ended_jobs([], 0) is None
    assert len(login.asked) == 1


async def test_a_submission_has_all_arguments_of_a_drone(
    login: Login, tools: SlurmToolsClient
) -> None:
    login.answers = [well("4711\n"), well("sbatch wrapper 3.1\n12;horeka\n")]
    assert await tools.submit(SUBMISSION) == 4711
    assert await tools.submit(SUBMISSION) == 12
    argv, stdin = login.asked[0]
    assert stdin == SUBMISSION.script
    assert argv == [
        *(
            "sbatch",
            "--exclude=hkn0815",
            "--exclusive",
            "--partition=accelerated,dev",
            "--gres=gpu:a100:1",
        ),
        *(
            "--job-name=kit-a1b2-7+.a100.horeka",
            "--nodes=1",
            "--ntasks=1",
            "--cpus-per-task=8",
            "--mem=20000M",
        ),
        *(
            "--time=60",
            "--signal=B:TERM@120",
            "--output=/dev/null",
            "--chdir=/",
            "--export=NIL",
            "--array=0-2,5",
        ),
        *("--no-requeue", "--parsable"),
    ]


def failed(why: str, before: str = "") -> Finished:
    return badly(f"{before}sbatch: error: Batch job submission failed: {why}")


LIMIT = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
GREETING = "Welcome, permission denied to nobody\nsbatch: error: QOSMaxSubmitJobPerUserLimit\n"


@pytest.mark.parametrize(
    ("answer", "error", "kind"),
    [
        (failed("Requested node configuration is not available"), RejectedError, FaultKind.CONFIG),
        (failed(LIMIT, GREETING), RejectedError, FaultKind.QUOTA),
        (failed("Socket timed out on send/recv operation"), OutcomeUnknownError, FaultKind.UNKNOWN),
        (failed("Access/permission denied"), AuthError, FaultKind.DENIED),
        (badly(""), OutcomeUnknownError, FaultKind.UNKNOWN),
        (well("Submitted\n"), OutcomeUnknownError, FaultKind.UNKNOWN),
        (NoReplyError("cut"), OutcomeUnknownError, FaultKind.UNKNOWN),
        (UnavailableError("no connection"), UnavailableError, FaultKind.DOWN),
    ],
)
async def test_the_outcome_of_a_submission(
    login: Login,
    tools: SlurmToolsClient,
    answer: Finished | Exception,
    error: type[AdapterError],
    kind: FaultKind,
) -> None:
    login.answers = [answer]
    with pytest.raises(AdapterError) as raised:
        await tools.submit(SUBMISSION)
    assert (type(raised.value), raised.value.kind) == (error, kind)


async def test_cancelling_and_killing(login: Login, tools: SlurmToolsClient) -> None:
    gone = "scancel: error: Kill job error on job step id 9.0: Invalid job id specified\n"
    login.answers = [well(), badly(gone), well(), well(), well(), well()]
    await tools.cancel([])
    await tools.cancel(["7_0", "7_1", "9"])
    await tools.cancel(["7_0", "9"], kill=True)
    await tools.cancel([f"5_{task}" for task in range(1200)])
    assert [argv for argv, _ in login.asked] == [
        ["scancel", "9", "7_[0-1]"],
        ["scancel", "--signal=KILL", "7_0.0", "9.0"],
        ["scancel", "9", "7_0"],
        ["scancel", "5_[0-499]"],
        ["scancel", "5_[500-999]"],
        ["scancel", "5_[1000-1199]"],
    ]


@pytest.mark.parametrize("strange", ["", "-u", "7_[0-9]", "7 8", "\N{ARABIC-INDIC DIGIT THREE}"])
async def test_an_invalid_job_id_is_never_an_argument(
    login: Login, tools: SlurmToolsClient, strange: str
) -> None:
    with pytest.raises(ValueError):
        await tools.cancel(["1", strange])
    with pytest.raises(ValueError):
        await tools.ended_jobs(["1", strange], 0)
    assert login.asked == []


KILL_ERROR = "scancel: error: Kill job error on job id"
ONE_IS_UNSURE = (
    f"{KILL_ERROR} 3: Job/step already completing or completed\n{KILL_ERROR} 4: Socket "
    "timed out on send/recv operation"
)


@pytest.mark.parametrize("answer", [badly(ONE_IS_UNSURE), badly(""), NoReplyError("cut")])
async def test_a_cancellation_that_may_not_have_happened_is_unsure(
    login: Login, tools: SlurmToolsClient, answer: Finished | Exception
) -> None:
    login.answers = [answer]
    with pytest.raises(OutcomeUnknownError):
        await tools.cancel(["3", "4"])
