"""pyslurm on a real cluster: built beside Slurm 26.05, in the Python of the cluster's own hosts.

Only there is there a Slurm that a pyslurm builds beside (get-pyslurm.sh), so this is a test of
`make test-matrix`.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

from adapters.slurm.native import SlurmNativeClient
from adapters.slurm.settings import SlurmSiteConfig
from provisioner.adapter_tests import SiteContract, SiteWorld
from provisioner.interfaces import UnavailableError
from provisioner.model import FaultKind
from tests.labs.facilities import horeka
from tests.labs.htcondor import OWN, Condor, children_of, fetched, own
from tests.labs.slurm import Slurm, SlurmLab, running_slurm
from tests.labs.slurm_sites import SlurmWorld, lab_job
from tests.live.conftest import programs
from tests.live.test_drones import jobs_run_at_slurm
from tests.live.test_slurm_transports import TransportStories, in_state, seen, unique

CHECKOUT = Path(__file__).parents[2]
MARKS = [pytest.mark.matrix, pytest.mark.xdist_group("slurm")]
pytestmark = MARKS
_NTH = count(1)


@pytest.fixture(scope="module")
def pyslurm() -> Path:
    """Directory with the package, for the Python of the cluster's hosts."""
    if os.geteuid() != 0:
        pytest.skip("a Slurm cluster needs namespaces, and they need root")
    return programs(fetched, "get-pyslurm.sh", sys.executable)


@pytest.fixture(scope="module")
def slurm(pyslurm: Path) -> Iterator[SlurmLab]:
    with cluster_with_us() as lab:
        yield lab


@contextmanager
def cluster_with_us(**knobs: Any) -> Iterator[SlurmLab]:
    """One whose hosts have this checkout, at the same place."""
    with running_slurm(
        programs(Slurm.fetched, "sid"), binds=(CHECKOUT,), rest=False, ssh=False, **knobs
    ) as lab:
        yield lab


@pytest.fixture
def python(slurm: SlurmLab, pyslurm: Path, tmp_path: Path) -> Path:
    return interpreter(slurm, pyslurm, tmp_path)


def interpreter(lab: SlurmLab, pyslurm: Path, directory: Path) -> Path:
    """The Python of the cluster's hosts, run there as ``drone``: a process that our signals reach."""
    assert lab.process is not None
    (init,) = children_of(lab.process.pid)
    there = ["nsenter", "-t", str(init), "-m", "-u", "-i", "-r", "--"]
    person = [
        "setpriv",
        "--reuid",
        "drone",
        "--regid",
        "drone",
        "--clear-groups",
        "--inh-caps=-all",
    ]
    file = directory / "python"
    file.write_text(
        f'#!/bin/sh\nexec {shlex.join([*there, *person])} env -C / PYTHONPATH="$PYTHONPATH:{pyslurm}" python3 "$@"\n'
    )
    file.chmod(0o755)
    return file


def config(python: Path, **more: Any) -> SlurmSiteConfig:
    usual = {"transport": "native", "native": {"python": str(python)}, "partition": "accelerated"}
    return SlurmSiteConfig.model_validate(
        {**usual, "deadline": "20s", "submit_deadline": "20s", **more}
    )


@pytest.fixture
async def cluster(slurm: SlurmLab, python: Path) -> AsyncIterator[SlurmNativeClient]:
    async with SlurmNativeClient(config(python), "hk") as found:
        yield found
    slurm.empty()


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


class TestPyslurm(TransportStories):
    pytestmark: ClassVar = MARKS


def test_twenty_jobs_run_on_the_gpus_that_they_need(
    newest_condor: Condor, slurm: SlurmLab, python: Path
) -> None:
    with horeka(newest_condor, slurm, "native", options={"native": {"python": str(python)}}) as lab:
        jobs_run_at_slurm(lab, 8, 4)


async def test_a_long_array_waits_whole(cluster: SlurmNativeClient) -> None:
    name = unique("long")
    tasks = tuple(range(0, 1000, 3))
    job = await cluster.submit(lab_job(name, tasks=tasks, gres="gpu:a100:4"))
    there = await seen(cluster, name, lambda jobs: len(jobs) == len(tasks))
    assert set(there) == {f"{job}_{task}" for task in tasks}
    waiting = sorted(each for each, found in there.items() if found.state == "PENDING")
    await cluster.cancel(waiting[:-1])
    left = await seen(
        cluster, name, lambda jobs: len([each for each in jobs if each.state == "PENDING"]) < 2
    )
    assert {found.state for each, found in left.items() if each == waiting[-1]} <= {
        "PENDING",
        "RUNNING",
    }
    others = {job.remote_id for job in await cluster.active_jobs(["accelerated"])}
    assert waiting[-1] in others and waiting[0] not in others


async def test_a_job_gets_nothing_of_our_environment(
    slurm: SlurmLab, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyslurm hands on what has a name of Slurm's: that could be our token."""
    monkeypatch.setenv("SLURM_SECRET", "token")
    monkeypatch.setenv("SECRET_OF_OURS", "token")
    said = slurm.shared / own("environment")
    async with SlurmNativeClient(config(python), "hk") as cluster:
        name = unique("env")
        await cluster.submit(lab_job(name, "/usr/bin/env", output=str(said)))
        await seen(cluster, name, in_state("COMPLETED", 1))
    told = dict(line.split("=", 1) for line in said.read_text().splitlines() if "=" in line)
    assert told["SLURM_EXPORT_ENV"] == "NIL" and told["SLURM_MEM_PER_NODE"] == "2048"
    assert not told.keys() & {"SLURM_SECRET", "SECRET_OF_OURS", "SLURM_BITSTR_LEN"}
    slurm.empty()


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("/nowhere/slurm.conf", r"slurm\.conf is missing: .*/nowhere/slurm\.conf"),
        ("/etc/hostname", r"libslurm finds no usable slurm\.conf"),
    ],
)
async def test_without_a_slurm_conf_that_can_be_used_it_says_so(
    python: Path, monkeypatch: pytest.MonkeyPatch, file: str, words: str
) -> None:
    """libslurm would wait a minute, and end the process."""
    monkeypatch.setenv("SLURM_CONF", file)
    async with SlurmNativeClient(config(python), "hk") as cluster:
        with pytest.raises(UnavailableError, match=words) as down:
            await cluster.own_jobs()
        assert down.value.kind is FaultKind.CONFIG


async def test_without_accounting_used_gpus_are_those_of_running_jobs(
    pyslurm: Path, tmp_path: Path
) -> None:
    with cluster_with_us(accounting=False) as lab:
        async with SlurmNativeClient(config(interpreter(lab, pyslurm, tmp_path)), "hk") as cluster:
            name = unique("plain")
            await cluster.submit(lab_job(name, gres="gpu:2"))
            there = await seen(cluster, name, in_state("RUNNING", 1))
            (job,) = there.values()
            used = {node.name: node.used_gpus for node in await cluster.nodes()}
            assert used == {
                name: {"a100": 2} if name in job.nodes else {} for name in lab.setup.nodes
            }
            assert await cluster.ended_jobs([], 0.0) is None
