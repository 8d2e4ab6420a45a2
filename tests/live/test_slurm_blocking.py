"""Blocking at a real Slurm cluster: a real slurmctld loads what `render` prints, and what then starts is counted.

The node is one of HoreKa's: 152 CPUs, 500 GiB, 4 A100, all declared. Drones are jobs of a drone's
shape that sleep.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping, Sequence

import pytest

from adapters.slurm.blocking import SlurmAudit, render_blocking
from adapters.slurm.capacity import list_nodes, next_downtime, resolve_types
from adapters.slurm.records import Partition, Reservation, SlurmNode
from adapters.slurm.settings import SlurmSiteConfig
from adapters.slurm.tools import SlurmToolsClient
from provisioner.model import DroneType, Node, Reserve, SitePolicy
from tests.labs.htcondor import until
from tests.labs.slurm import Slurm, SlurmLab, running_slurm

pytestmark = pytest.mark.xdist_group("slurm")

NODE = "hkn0801"
POLICY = SitePolicy(site="horeka", grace_s=5, blocking=(Reserve(cpus=8, memory_mib=20480),))
DRONE = DroneType("horeka", "a100", 1000, 8, 20480, 0, walltime_s=1800)
SHAPE = {
    "cores_per_socket": 38,
    "threads_per_core": 2,
    "memory": "512000 MiB",
    "gpus": 4,
    "gres": "gpu:a100",
}
CONFIG = SlurmSiteConfig.model_validate(
    {"partition": "accelerated", "hardware": [{"nodes": NODE, **SHAPE}]}
)
CPU_PARTITION = "cpu-beside-gpus-a100"
SLEEP = "#!/bin/sh\nsleep 600\n"


@pytest.fixture(scope="module")
def plain(slurm_programs: Slurm) -> Iterator[SlurmLab]:
    """A cluster of one node that keeps nothing."""
    with running_slurm(
        slurm_programs, a100=1, h100=0, accounting=False, rest=False, ssh=False
    ) as lab:
        yield lab


@pytest.fixture(scope="module")
def blocked(plain: SlurmLab) -> SlurmLab:
    """The same once its admin has put each printed part where it says. (RestrictedCoresPerGPU is of 24.05.)"""
    if plain.slurm.version < (24, 5):
        pytest.skip("this Slurm does not know RestrictedCoresPerGPU")
    conf, gres = plain.etc / "slurm.conf", plain.etc / "gres.conf"
    found = parts(render_blocking(POLICY, [DRONE], CONFIG))
    before, after = (
        found["slurm.conf, before the NodeName lines"],
        found["slurm.conf, after the NodeName lines"],
    )
    lines = conf.read_text().splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("NodeName="))
    conf.write_text("\n".join([*lines[:first], before, *lines[first:], after, ""]))
    gres.write_text(
        found["gres.conf, in the place of the lines"].replace("/dev/nvidia", "/dev/lab/gpu") + "\n"
    )
    plain.run("scontrol", "reconfigure", user="root")
    bound = "RestrictedCoresPerGPU=4(0-7,38-45)"
    until(
        lambda: bound in plain.run("scontrol", "show", "node", NODE),
        30,
        what="the node has told of its GPUs",
    )
    return plain


def parts(text: str) -> dict[str, str]:
    """The printed lines by the file and place that they are for."""
    found: dict[str, list[str]] = {}
    place = ""
    for line in text.splitlines():
        if heading := re.fullmatch(
            rf"# ---- ((?:slurm|gres)\.conf.*?)(?: (?:of|for) {NODE})?", line
        ):
            place = heading[1]
        elif line and not line.startswith("#"):
            found.setdefault(place, []).append(line)
    return {place: "\n".join(lines) for place, lines in found.items()}


def fill(lab: SlurmLab, partition: str, tasks: int, *size: str) -> tuple[int, int, int]:
    """Jobs without GPU until no more start: how many run, and the CPUs and the memory in use then."""
    lab.sbatch(
        SLEEP, f"--array=0-{tasks - 1}", "-p", partition, "-t", "30", "-o", "/dev/null", *size
    )
    until(lambda: waits(lab), 60, what="the rest waits for room")
    return (lab.run("squeue", "-h", "-r", "-t", "RUNNING").count("\n"), *in_use(lab))


def waits(lab: SlurmLab) -> bool:
    """Whether the scheduler has looked at all that wait and left them."""
    jobs = lab.jobs("-t", "PENDING,CONFIGURING,RUNNING")
    waiting = {job.reason for job in jobs if job.state == "PENDING"}
    return (
        bool(waiting)
        and waiting <= {"Resources", "Priority"}
        and any(j.state == "RUNNING" for j in jobs)
    )


def in_use(lab: SlurmLab) -> tuple[int, int]:
    said = lab.run("scontrol", "show", "node", NODE, "-o")
    cpus, memory = re.search(r"CPUAlloc=(\d+)", said), re.search(r"AllocMem=(\d+)", said)
    assert cpus and memory
    return int(cpus[1]), int(memory[1])


def start_drones(lab: SlurmLab) -> list[int]:
    size = (
        "--gres=gpu:a100:1",
        f"-c{DRONE.cpus}",
        f"--mem={DRONE.memory_mib}M",
        "-t",
        "30",
        "-o",
        "/dev/null",
    )
    return [lab.sbatch(SLEEP, "-p", "accelerated", *size) for _ in range(4)]


def running(lab: SlurmLab, numbers: list[int]) -> int:
    return sum(lab.job(number).state == "RUNNING" for number in numbers)


@pytest.fixture
def emptied(plain: SlurmLab) -> Iterator[None]:
    yield
    plain.empty()


@pytest.mark.usefixtures("emptied")
@pytest.mark.parametrize(
    ("tasks", "mem", "filled"),
    [
        (90, "1G", (60, 120, 60 * 1024)),  # of 152, 4 * 8 are kept
        (8, "100G", (4, 120, 4 * 102400)),  # a job of 100 GiB is given 30 CPUs
    ],
)
def test_jobs_without_gpu_leave_every_free_gpu_its_cpus_and_four_drones_start(
    blocked: SlurmLab, tasks: int, mem: str, filled: tuple[int, int, int]
) -> None:
    assert fill(blocked, CPU_PARTITION, tasks, "-c2", f"--mem={mem}") == filled
    drones = start_drones(blocked)
    until(lambda: running(blocked, drones) == 4, 60, what="every GPU has its drone")
    assert in_use(blocked) == (152, filled[2] + 4 * 20480)


@pytest.mark.usefixtures("emptied")
def test_a_greedy_gpu_job_leaves_the_other_gpus_theirs(blocked: SlurmLab) -> None:
    greedy = ("--gres=gpu:a100:1", "-t", "30", "-o", "/dev/null", "-p", "accelerated", "--mem=1G")
    most = 152 - 3 * 8
    too_much = blocked.done("sbatch", f"-c{most + 2}", *greedy, stdin=SLEEP)
    assert too_much.returncode != 0 and "not available" in too_much.stderr, too_much
    blocked.reaches(blocked.sbatch(SLEEP, f"-c{most}", *greedy), "RUNNING")


# ----------------------------------------------------------------------------------------- what is
# seen from outside

Told = tuple[Sequence[SlurmNode], Sequence[Partition], Sequence[Reservation], Mapping[str, str]]


def told(lab: SlurmLab) -> Told:
    """By the command-line tools."""

    async def ask() -> Told:
        config = CONFIG.model_copy(
            update={"tools": CONFIG.tools.model_copy(update={"bin": str(lab.tools)})}
        )
        async with SlurmToolsClient(config, "horeka") as cluster:
            state = (
                await cluster.nodes(reserves=True),
                await cluster.partitions(),
                await cluster.reservations(),
            )
            return (*state, await cluster.configuration())

    return asyncio.run(ask())


def free(lab: SlurmLab, config: SlurmSiteConfig = CONFIG) -> Node:
    slurm_nodes, partitions, reservations, _ = told(lab)
    kinds = resolve_types([DRONE], partitions, config)
    [node] = list_nodes(slurm_nodes, partitions, kinds, config, reservations, now=time.time())
    return node


def audited(lab: SlurmLab, config: SlurmSiteConfig = CONFIG) -> list[tuple[str, str]]:
    slurm_nodes, partitions, _, configuration = told(lab)
    kinds = resolve_types([DRONE], partitions, config)
    found = SlurmAudit(slurm_nodes, partitions, configuration, POLICY, kinds, config).gaps()
    return [(gap.node, gap.dimension) for gap in found]


@pytest.mark.usefixtures("emptied")
def test_the_audit_sees_what_keeps_and_what_does_not(blocked: SlurmLab) -> None:
    # as loose as the lab has them: they have no limit of memory
    others = {"accelerated", "dev", "backfill"}
    assert audited(blocked) == [(NODE, "memory")]
    slurm_nodes, partitions, *_ = told(blocked)
    assert slurm_nodes[0].restricted_cores_per_gpu == 4 and slurm_nodes[0].threads_per_core == 2
    limited = {each.name: each.max_memory_per_cpu_mib for each in partitions}
    assert limited == {CPU_PARTITION: 3584, **dict.fromkeys(others, 0)}
    for name in others:
        blocked.run("scontrol", "update", f"PartitionName={name}", "MaxMemPerCPU=3584", user="root")
    try:
        assert audited(blocked) == []
    finally:
        for name in others:
            blocked.run(
                "scontrol", "update", f"PartitionName={name}", "MaxMemPerCPU=0", user="root"
            )


@pytest.mark.usefixtures("emptied")
def test_what_is_free_is_what_then_starts(plain: SlurmLab) -> None:
    assert free(plain) == Node(NODE, ("a100",), 4000, 152, 512_000, 0, 4000, 152, 512_000, 0)
    drones = start_drones(plain)[:3]
    plain.run("scancel", str(drones[-1] + 1))
    until(lambda: running(plain, drones) == 3, 60, what="three of them run")
    until(lambda: free(plain).free_gpu_milli == 1000, 30, what="the fourth has gone")
    assert free(plain) == Node(
        NODE, ("a100",), 4000, 152, 512_000, 0, 1000, 128, 512_000 - 3 * 20480, 0
    )

    plain.run("scontrol", "update", f"NodeName={NODE}", "State=DRAIN", "Reason=test", user="root")
    try:
        assert (free(plain).free_gpu_milli, free(plain).free_cpus) == (0, 0)
    finally:
        plain.run("scontrol", "update", f"NodeName={NODE}", "State=RESUME", user="root")


def test_a_maintenance_of_all_nodes_is_the_downtime(plain: SlurmLab) -> None:
    until(
        lambda: free(plain).free_gpu_milli == 4000,
        30,
        what="nothing is planned for jobs that have gone",
    )
    starts_at = int(time.time()) + 1200
    when = plain.run("date", "-d", f"@{starts_at}", "+%Y-%m-%dT%H:%M:%S").strip()
    plain.run(
        *(
            "scontrol",
            "create",
            "reservation",
            "ReservationName=service",
            f"StartTime={when}",
            "Duration=60",
        ),
        *("Nodes=ALL", "Flags=MAINT,IGNORE_JOBS", "Users=root"),
        user="root",
    )
    try:
        slurm_nodes, partitions, reservations, _ = told(plain)
        now = time.time()
        kinds = resolve_types([DRONE], partitions, CONFIG)
        assert next_downtime(reservations, slurm_nodes, kinds, now) == starts_at
        assert free(plain).free_gpu_milli == 0  # for a drone that would not be done in time
        [node] = list_nodes(
            slurm_nodes, partitions, kinds, CONFIG, reservations, now=now, downtime_at=starts_at
        )
        assert node.free_gpu_milli == 4000  # for one whose life is cut
        inside = CONFIG.model_copy(update={"reservation": "service"})
        assert (
            next_downtime(
                reservations, slurm_nodes, resolve_types([DRONE], partitions, inside), now
            )
            == 0
        )
    finally:
        plain.run("scontrol", "delete", "ReservationName=service", user="root")
