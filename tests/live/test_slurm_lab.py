"""The Slurm lab itself: a cluster comes up, is reached in every way that an adapter takes, and goes without a trace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import pytest

from adapters.shared.commands.settings import SshSettings
from adapters.shared.commands.ssh import SshRunner
from tests.labs.htcondor import until
from tests.labs.slurm import SlurmLab, processes_in
from tests.labs.slurm_sites import ways

pytestmark = pytest.mark.xdist_group("slurm")

ROOT = Path(__file__).parents[2]

STEP = """#!/bin/sh
srun sh -c 'echo $(hostname) $SLURMD_NODENAME gpu $CUDA_VISIBLE_DEVICES of $DRONE_GPU_SIMULATE as $(id -un)'
"""
SLEEPS = "#!/bin/sh\nexec sleep 600\n"
ONE_GPU = ("--gres=gpu:1", "-c", "8", "--mem=20G", "--time=10", "-o", "/dev/null")


@pytest.fixture
def idle(slurm: SlurmLab) -> SlurmLab:
    assert slurm.jobs("-t", "PENDING,RUNNING,COMPLETING") == []
    return slurm


@pytest.mark.parametrize(("gpu", "node", "seen"), [("a100", "hkn0801", "4,4"), ("h100", "hkn0901", "2,4")])
def test_a_job_has_a_gpu_of_its_type_in_a_step(idle: SlurmLab, gpu: str, node: str, seen: str) -> None:
    partition = {"a100": "accelerated", "h100": "accelerated-h100"}[gpu]
    out = idle.shared / f"step-{gpu}"
    options = ("-p", partition, f"--gres=gpu:{gpu}:1", "-c", "8", "--mem=20G", "--time=5", "-o", str(out))
    number = idle.sbatch(STEP, *options)
    job = idle.reaches(number, "COMPLETED", "FAILED")
    assert (job.state, job.node, job.user, job.partition) == ("COMPLETED", node, "drone", partition)
    assert out.read_text() == f"login {node} gpu 0 of {seen} as drone\n"
    told = ("sacct", "-X", "-n", "-P", "-j", str(number), "-o", "state,account,alloctres")
    until(lambda: idle.run(*told), what="the database has the job")
    state, account, tres = idle.run(*told).strip().split("|")
    assert (state, account) == ("COMPLETED", "lab")
    assert f"gres/gpu:{gpu}=1" in tres.split(",")


def test_its_tools_work_from_this_host(idle: SlurmLab) -> None:
    def tool(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(idle.tools / argv[0]), *argv[1:]]
        return subprocess.run(command, input=stdin, text=True, capture_output=True, timeout=60)

    number = tool("sbatch", "--parsable", *ONE_GPU, "-J", "a name; $(false)", stdin=SLEEPS).stdout.strip()
    assert idle.reaches(int(number), "RUNNING").name == "a name; $(false)"
    assert tool("scancel", number).returncode == 0
    until(lambda: not tool("squeue", "-h").stdout, what="it has gone")
    assert tool("sbatch", "--gres=gpu:9", stdin=SLEEPS).returncode == 1


async def test_ssh_lets_the_owner_in(slurm: SlurmLab) -> None:
    config = SshSettings.model_validate({**ways(slurm, slurm.dir)["ssh"]["tools"]["ssh"], "user": "owner"})
    async with SshRunner(config) as runner:
        done = await runner.run(["sh", "-c", "id -un; sinfo -h -N -p backfill -o %N"], deadline_s=60)
        assert done.out.decode().split() == ["owner", *slurm.setup.nodes]


def test_daemons_hang_die_and_come_back(idle: SlurmLab) -> None:
    number = idle.sbatch(SLEEPS, *ONE_GPU)
    node = idle.reaches(number, "RUNNING").node
    idle.signal("slurmctld", SIGSTOP)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            idle.run("squeue", timeout_s=2)
    finally:
        idle.signal("slurmctld", SIGCONT)
    for daemon in ("slurmctld", f"slurmd-{node}", "slurmdbd", "slurmrestd", "slurmrestd-drone", "sshd"):
        before = idle.pid(daemon)
        idle.restart(daemon, SIGKILL if daemon.startswith("slurmd-") else SIGTERM)
        assert idle.pid(daemon) != before
    assert idle.job(number).state == "RUNNING"
    assert set(idle.nodes()) == set(idle.setup.nodes)
    idle.empty()
    assert idle.job(number).state == "CANCELLED"


def test_knobs_make_another_cluster(new_slurm: Callable[..., SlurmLab]) -> None:
    lab = new_slurm(
        a100=1, h100=0, rest=False, ssh=False, max_submit_jobs=1, prolog="#!/bin/sh\nexit 1\n", extra="MaxArraySize=7\n"
    )
    assert lab.nodes() == {"hkn0801": "idle"}
    number = lab.sbatch(SLEEPS, *ONE_GPU)
    assert "AssocMaxSubmitJobLimit" in lab.done("sbatch", *ONE_GPU, stdin=SLEEPS).stderr
    assert "Invalid job array" in lab.done("sbatch", "--array=0-7", *ONE_GPU, user="owner", stdin=SLEEPS).stderr
    job = until(lambda: (held := lab.job(number)).reason != "None" and held, what="the prolog has failed")
    assert (job.state, job.reason) == ("PENDING", "launch failed requeued held")
    assert lab.nodes()["hkn0801"].startswith("drain")


def test_nothing_outlives_the_process_that_started_it(slurm: SlurmLab, tmp_path: Path) -> None:
    program = f"""
import sys
from tests.labs.slurm import Slurm, running_slurm
with running_slurm(Slurm.fetched({slurm.slurm.suite!r}), accounting=False) as lab:
    lab.reaches(lab.sbatch({SLEEPS!r}), "RUNNING")
    print(lab.namespace, lab.root, flush=True)
    sys.stdin.read()
"""
    with (tmp_path / "said").open("wb") as said:
        child = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
        )
    assert child.stdout is not None
    told = child.stdout.readline().decode().split()
    assert len(told) == 2, (tmp_path / "said").read_text()
    namespace, root = told[0], Path(told[1])
    try:
        expected = ("munged", "slurmctld", "slurmd -D -N hkn0801", "slurmstepd", "sleep 600", "slurmrestd", "sshd")
        until(
            lambda: all(any(each in of for of in processes_in(namespace).values()) for each in expected),
            what=f"all of {expected} run",
        )
        child.kill()
        child.wait(30)
        until(lambda: not processes_in(namespace), 10, what="all of it is gone")
        assert str(root) not in Path("/proc/self/mounts").read_text()
        assert not list((root / "root").iterdir())
    finally:
        child.kill()
        child.wait(30)
        child.stdout.close()
        shutil.rmtree(root)
