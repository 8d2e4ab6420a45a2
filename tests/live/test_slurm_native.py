"""pyslurm on a real cluster: built beside Slurm 26.05, in the Python of the cluster's own hosts.

Only there is there a Slurm that a pyslurm builds beside (get-pyslurm.sh), so this is a test of `make test-matrix`.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any, ClassVar

import pytest

from adapters.slurm.native import SlurmNativeClient
from adapters.slurm.records import SlurmJob
from adapters.slurm.settings import SlurmSiteConfig
from provisioner.adapter_tests import SiteContract, SiteWorld
from provisioner.interfaces import OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind
from tests.labs.horeka import horeka
from tests.labs.htcondor import OWN, Condor, LabError, children_of, own
from tests.labs.slurm import NoNamespaces, Slurm, SlurmLab, running_slurm
from tests.labs.slurm_sites import SlurmWorld, lab_job
from tests.live.conftest import wanted
from tests.live.test_slurm_drones import twenty_jobs_run

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
MARKS = [pytest.mark.matrix, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(300)]
pytestmark = MARKS
_NTH = count(1)


@pytest.fixture(scope="module")
def pyslurm() -> Path:
    """Directory with the package, for the Python of the cluster's hosts."""
    wanted()
    if os.geteuid() != 0:
        pytest.skip("a Slurm cluster needs namespaces, and they need root")
    done = subprocess.run(
        [str(HERE / "get-pyslurm.sh"), sys.executable], text=True, capture_output=True, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        pytest.fail(f"no pyslurm:\n{done.stderr}\n(PROVISIONER_NO_LIVE=1 leaves the live tests out)", pytrace=False)
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def slurm(pyslurm: Path) -> Iterator[SlurmLab]:
    with cluster_with_us() as lab:
        yield lab


@contextmanager
def cluster_with_us(**knobs: Any) -> Iterator[SlurmLab]:
    """One whose hosts have this checkout, at the same place."""
    try:
        programs = Slurm.fetched("sid")
    except NoNamespaces as error:
        pytest.skip(str(error))
    except LabError as error:
        pytest.fail(str(error), pytrace=False)
    with running_slurm(programs, binds=(CHECKOUT,), rest=False, ssh=False, **knobs) as lab:
        yield lab


@pytest.fixture
def python(slurm: SlurmLab, pyslurm: Path, tmp_path: Path) -> Path:
    return interpreter(slurm, pyslurm, tmp_path)


def interpreter(lab: SlurmLab, pyslurm: Path, directory: Path) -> Path:
    """The Python of the cluster's hosts, run there as ``drone``: a process that our signals reach."""
    assert lab.process is not None
    (init,) = children_of(lab.process.pid)
    there = ["nsenter", "-t", str(init), "-m", "-u", "-i", "-r", "--"]
    person = ["setpriv", "--reuid", "drone", "--regid", "drone", "--clear-groups", "--inh-caps=-all"]
    file = directory / "python"
    file.write_text(
        f'#!/bin/sh\nexec {shlex.join([*there, *person])} env -C / PYTHONPATH="$PYTHONPATH:{pyslurm}" python3 "$@"\n'
    )
    file.chmod(0o755)
    return file


def config(python: Path, **more: Any) -> SlurmSiteConfig:
    usual = {"transport": "native", "native": {"python": str(python)}, "partition": "accelerated"}
    return SlurmSiteConfig.model_validate({**usual, "deadline": "20s", **more})


@pytest.fixture
async def cluster(slurm: SlurmLab, python: Path) -> AsyncIterator[SlurmNativeClient]:
    async with SlurmNativeClient(config(python), "hk") as found:
        yield found
    slurm.empty()


async def seen(
    cluster: SlurmNativeClient, name: str, wanted: Callable[[Sequence[SlurmJob]], bool]
) -> dict[str, SlurmJob]:
    """Our jobs of that name, as soon as they are as wanted."""
    until = time.monotonic() + 60
    while True:
        jobs = [job for job in await cluster.own_jobs() if job.name == name]
        if wanted(jobs):
            return {job.remote_id: job for job in jobs}
        assert time.monotonic() < until, jobs
        await asyncio.sleep(0.3)


def states(jobs: dict[str, SlurmJob]) -> dict[str, str]:
    return {remote_id: job.state for remote_id, job in jobs.items()}


class NativeWorld(SlurmWorld):
    def __init__(self, lab: SlurmLab, python: Path, work: Path, controller: str) -> None:
        super().__init__(lab, "tools", work, controller)
        self.way = "native"
        kinds = {"a100": {"gres": "gpu:a100"}, "huge": {"gres": "gpu:a100"}}
        self.config = config(python, types=kinds, deadline="8s")


class TestByPyslurm(SiteContract):
    pytestmark: ClassVar = MARKS

    @pytest.fixture
    def world(self, slurm: SlurmLab, python: Path, tmp_path: Path) -> Iterator[SiteWorld]:
        yield NativeWorld(slurm, python, tmp_path, f"kit{OWN}{os.getpid()}n{next(_NTH)}")
        slurm.empty()


def test_twenty_jobs_run_on_the_gpus_that_they_need(newest_condor: Condor, slurm: SlurmLab, python: Path) -> None:
    with horeka(newest_condor, slurm, "native", options={"native": {"python": str(python)}}) as lab:
        twenty_jobs_run(lab)


async def test_an_array_is_told_task_by_task_and_a_task_ends_alone(cluster: SlurmNativeClient) -> None:
    """Also the last one to start, whose number is the whole array's."""
    name = f"{own('array')}-0+.a100.hk"
    job = await cluster.submit(lab_job(name, tasks=(0, 1, 2, 7)))
    ids = {f"{job}_{task}" for task in (0, 1, 2, 7)}
    there = await seen(cluster, name, lambda jobs: [each.state for each in jobs] == ["RUNNING"] * 4)
    assert there.keys() == ids
    one = there[f"{job}_7"]
    assert (one.user, one.account, one.partition, one.limit_s) == ("drone", "lab", "accelerated", 300.0)
    assert (one.cpus, one.memory_mib, one.gpus, one.exit_code) == (8, 2048, {"a100": 1}, None)
    assert one.ends_at - one.started_at == 300
    await cluster.cancel([f"{job}_7", f"{job}_999", "999999"])
    left = await seen(cluster, name, lambda jobs: "CANCELLED" in {each.state for each in jobs})
    assert states(left) == {each: "CANCELLED" if each == f"{job}_7" else "RUNNING" for each in ids}
    await cluster.cancel(sorted(ids), kill=True)
    await seen(cluster, name, lambda jobs: {each.state for each in jobs} == {"CANCELLED"})


async def test_a_long_array_waits_whole(cluster: SlurmNativeClient) -> None:
    name = f"{own('long')}-0+.a100.hk"
    tasks = tuple(range(0, 1000, 3))
    job = await cluster.submit(lab_job(name, tasks=tasks, gres="gpu:a100:4"))
    there = await seen(cluster, name, lambda jobs: len(jobs) == len(tasks))
    assert set(there) == {f"{job}_{task}" for task in tasks}
    waiting = sorted(each for each, found in there.items() if found.state == "PENDING")
    await cluster.cancel(waiting[:-1])
    left = await seen(cluster, name, lambda jobs: len([each for each in jobs if each.state == "PENDING"]) < 2)
    assert {found.state for each, found in left.items() if each == waiting[-1]} <= {"PENDING", "RUNNING"}
    others = {job.remote_id for job in await cluster.active_jobs(["accelerated"])}
    assert waiting[-1] in others and waiting[0] not in others


async def test_nodes_partitions_reservations_and_configuration(slurm: SlurmLab, cluster: SlurmNativeClient) -> None:
    name = f"{own('room')}-1.a100.hk"
    await cluster.submit(lab_job(name, gres="gpu:a100:3"))
    there = await seen(cluster, name, lambda jobs: [each.state for each in jobs] == ["RUNNING"])
    (job,) = there.values()
    nodes = {node.name: node for node in await cluster.nodes()}
    busy = nodes[job.nodes[0]]
    assert (busy.gpus, busy.used_gpus, busy.cpus, busy.used_cpus) == ({"a100": 4}, {"a100": 3}, 152, 8)
    assert (busy.state, busy.memory_mib, busy.used_memory_mib) == ("MIXED", 512000, 2048)
    assert nodes["hkn0901"].gpus == {"h100": 4} and nodes["hkn0901"].used_gpus == {}
    partitions = {partition.name: partition for partition in await cluster.partitions()}
    assert partitions["accelerated"].nodes == ("hkn0801", "hkn0802") and partitions["accelerated"].default
    assert (partitions["accelerated"].max_s, partitions["backfill"].grace_s) == (172800.0, 6.0)
    assert (partitions["accelerated"].tier, partitions["backfill"].preempt_mode) == (10, "CANCEL")
    begin = int(time.time()) + 3600
    slurm.run(
        *("scontrol", "create", "reservation", "reservationname=upkeep", "flags=maint,ignore_jobs", "user=root"),
        *("nodes=hkn0802", "duration=60", f"starttime={time.strftime('%FT%T', time.gmtime(begin))}"),
        user="root",
    )
    try:
        (planned,) = await cluster.reservations()
        assert (planned.name, planned.nodes, planned.users) == ("upkeep", ("hkn0802",), ("root",))
        assert (planned.starts_at, planned.ends_at) == (begin, begin + 3600)
        assert planned.flags >= {"MAINT", "IGNORE_JOBS"}
    finally:
        slurm.run("scontrol", "delete", "reservationname=upkeep", user="root")
    told = await cluster.configuration()
    assert (told["KillWait"], told["MaxArraySize"], told["PreemptType"]) == ("5 sec", "1001", "preempt/partition_prio")
    assert told["SLURM_VERSION"].startswith("26.05")


async def test_ends_are_in_the_accounting_database(cluster: SlurmNativeClient) -> None:
    name = f"{own('ends')}-0+.a100.hk"
    before = time.time() - 1
    job = await cluster.submit(lab_job(name, "exit $SLURM_ARRAY_TASK_ID", tasks=(0, 3)))
    await seen(cluster, name, lambda jobs: {each.state for each in jobs} == {"COMPLETED", "FAILED"})
    for ids in ([f"{job}_0", f"{job}_3"], []):
        ended = await cluster.ended_jobs(ids, before)
        assert ended is not None
        found = {each.remote_id: (each.name, each.state, each.exit_code) for each in ended if each.name == name}
        assert found == {f"{job}_0": (name, "COMPLETED", 0), f"{job}_3": (name, "FAILED", 3)}
    assert await cluster.ended_jobs(["999999"], before) == []


async def test_a_job_gets_nothing_of_our_environment(
    slurm: SlurmLab, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyslurm hands on what has a name of Slurm's: that could be our token."""
    monkeypatch.setenv("SLURM_SECRET", "token")
    monkeypatch.setenv("SECRET_OF_OURS", "token")
    said = slurm.shared / own("environment")
    async with SlurmNativeClient(config(python), "hk") as cluster:
        name = f"{own('env')}-1.a100.hk"
        await cluster.submit(lab_job(name, "/usr/bin/env", output=str(said)))
        await seen(cluster, name, lambda jobs: [each.state for each in jobs] == ["COMPLETED"])
    told = dict(line.split("=", 1) for line in said.read_text().splitlines() if "=" in line)
    assert told["SLURM_EXPORT_ENV"] == "NIL" and told["SLURM_MEM_PER_NODE"] == "2048"
    assert not told.keys() & {"SLURM_SECRET", "SECRET_OF_OURS", "SLURM_BITSTR_LEN"}
    slurm.empty()


@pytest.mark.parametrize(
    ("special", "kind"),
    [
        ({"partition": "nix"}, FaultKind.CONFIG),
        ({"account": "nobody"}, FaultKind.CONFIG),
        ({"gres": "gpu:a100:9"}, FaultKind.CONFIG),
        ({"bb": "x"}, FaultKind.CONFIG),
    ],
    ids=["partition", "account", "gpus", "unsayable"],
)
async def test_a_refusal_says_of_which_kind_it_is(
    cluster: SlurmNativeClient, special: dict[str, Any], kind: FaultKind
) -> None:
    with pytest.raises(RejectedError) as refused:
        await cluster.submit(lab_job(f"{own('no')}-1.a100.hk", **special))
    assert refused.value.kind is kind


async def test_a_submit_that_is_not_answered_in_time_is_unsure(slurm: SlurmLab, python: Path) -> None:
    async with SlurmNativeClient(config(python, deadline="3s", submit_deadline="2s"), "hk") as cluster:
        for _ in range(5):  # its children have started
            try:
                await cluster.own_jobs()
                await cluster.cancel(["999999"])
                break
            except (UnavailableError, OutcomeUnknownError):
                continue
        slurm.signal("slurmctld", SIGSTOP)
        try:
            with pytest.raises(OutcomeUnknownError):
                await cluster.submit(lab_job(f"{own('late')}-1.a100.hk"))
            with pytest.raises(UnavailableError):
                await cluster.own_jobs()
        finally:
            slurm.signal("slurmctld", SIGCONT)
    slurm.empty()


async def test_without_slurm_conf_it_says_so(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libslurm would wait a minute, and end the process."""
    monkeypatch.setenv("SLURM_CONF", "/nowhere/slurm.conf")
    async with SlurmNativeClient(config(python), "hk") as cluster:
        with pytest.raises(UnavailableError, match=r"slurm\.conf is missing: .*/nowhere/slurm\.conf") as down:
            await cluster.own_jobs()
        assert down.value.kind is FaultKind.CONFIG
        with pytest.raises(UnavailableError):
            await cluster.submit(lab_job(f"{own('nowhere')}-1.a100.hk"))


async def test_where_slurm_conf_cannot_be_used_it_says_so(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """libslurm ends the process at once."""
    monkeypatch.setenv("SLURM_CONF", "/etc/hostname")
    async with SlurmNativeClient(config(python), "hk") as cluster:
        with pytest.raises(UnavailableError, match=r"libslurm finds no usable slurm\.conf") as down:
            await cluster.own_jobs()
    assert down.value.kind is FaultKind.CONFIG


async def test_without_accounting_used_gpus_are_those_of_running_jobs(pyslurm: Path, tmp_path: Path) -> None:
    with cluster_with_us(accounting=False) as lab:
        async with SlurmNativeClient(config(interpreter(lab, pyslurm, tmp_path)), "hk") as cluster:
            name = f"{own('plain')}-1.a100.hk"
            await cluster.submit(lab_job(name, gres="gpu:2"))
            there = await seen(cluster, name, lambda jobs: [each.state for each in jobs] == ["RUNNING"])
            (job,) = there.values()
            used = {node.name: node.used_gpus for node in await cluster.nodes()}
            assert used == {name: {"a100": 2} if name in job.nodes else {} for name in lab.setup.nodes}
            assert await cluster.ended_jobs([], 0.0) is None
