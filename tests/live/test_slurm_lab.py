"""The Slurm lab itself: a cluster comes up, is reached in every way that an adapter takes, and goes without a trace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM

import asyncssh
import pytest

from tests.labs.htcondor import until
from tests.labs.slurm import SlurmLab, processes_in

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

    submitted = tool("sbatch", "--parsable", *ONE_GPU, "-J", "a name; $(false)", stdin=SLEEPS)
    number = submitted.stdout.strip()
    assert (submitted.returncode, number.isdigit()) == (0, True)
    assert idle.reaches(int(number), "RUNNING").name == "a name; $(false)"
    assert tool("scancel", number).returncode == 0
    until(lambda: not tool("squeue", "-h").stdout, what="it has gone")
    refused = tool("sbatch", "--gres=gpu:9", stdin=SLEEPS)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "Requested node configuration is not available" in refused.stderr


def test_slurmrestd_answers(slurm: SlurmLab) -> None:
    version = {(22, 5): "v0.0.38", (24, 11): "v0.0.42", (26, 5): "v0.0.42"}[slurm.slurm.version]
    for token, good in ((slurm.token("drone"), True), ("none", False)):
        # Not aiohttp: 26.05 sends more than a no is long.
        server = HTTPConnection("127.0.0.1", slurm.rest_port, timeout=20)
        headers = {"X-SLURM-USER-NAME": "drone", "X-SLURM-USER-TOKEN": token}
        with closing(server):
            server.request("GET", f"/slurm/{version}/partitions/", headers=headers)
            assert (server.getresponse().status == 200) == good


def test_slurmrestd_of_its_own_knows_drone_by_its_socket(slurm: SlurmLab) -> None:
    version = "v0.0.38" if slurm.slurm.version < (23, 2) else "v0.0.42"
    asks = (
        f"import socket; s = socket.socket(socket.AF_UNIX); s.settimeout(20); s.connect('{slurm.rest_socket}')\n"
        f"s.sendall(b'GET /slurm/{version}/ping HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')\n"
        "print(s.recv(100).split()[1].decode())"
    )

    def answer(*before: str) -> str:
        return subprocess.check_output([*before, "/usr/bin/env", "python3", "-c", asks], text=True, timeout=60).strip()

    assert answer(*slurm.beside("drone")) == "200"
    assert answer() != "200"


@pytest.mark.parametrize("user", ["drone", "owner"])
async def test_ssh_lets_both_in(slurm: SlurmLab, user: str) -> None:
    async with asyncssh.connect(
        "127.0.0.1",
        slurm.ssh_port,
        username=user,
        client_keys=[str(slurm.key)],
        known_hosts=str(slurm.known_hosts),
        config=None,
        agent_path=None,
    ) as connection:
        done = await connection.run("id -un; sinfo -h -N -p backfill -o %N", check=True, timeout=60)
        assert str(done.stdout).split() == [user, *slurm.setup.nodes]


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
        a100=1,
        h100=0,
        rest=False,
        ssh=False,
        max_submit_jobs=1,
        prolog="#!/bin/sh\nexit 1\n",
        extra="MaxArraySize=7\n",
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
