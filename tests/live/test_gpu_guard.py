"""GPUs that jobs cannot open: device nodes of a test's own, real drones, real jobs of an ordinary user.

``condor_gpu_discovery`` simulates the GPUs, ``nvidia-smi`` is a fake that lists the same, and each
device node is /dev/zero under another name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.labs.device_nodes import MIG_MINORS, nvidia_smi, with_device_nodes
from tests.labs.htcondor import QUICK_DRONE, DroneProcess, Pool, StartDrone, gpu_job, until

GuardedDrone = Callable[..., DroneProcess]
SHARED = {"nvidiactl", "nvidia-uvm"}
TRIES = """
for node in $(cd /dev && echo nvidia* dri/* kfd nvidia-caps/*); do
    [ ! -c "/dev/$node" ] || { (: <"/dev/$node") 2>/dev/null && echo "opened $node"; }
done
env | grep VISIBLE_DEVICES
"""


@pytest.fixture
def guarded(pool: Pool, drone_on: StartDrone) -> GuardedDrone:
    """Start a drone on a node with the GPUs of ``tests.labs.device_nodes``."""

    def start(
        name: str, *, smi: str = "", nodes: Mapping[str, Any] = {}, **env: str
    ) -> DroneProcess:
        root = pool.root / f"node-{time.monotonic_ns()}"
        (root / "dev").mkdir(parents=True)
        (root / "bin").mkdir()
        if smi:
            (root / "bin/nvidia-smi").write_text(smi)
            (root / "bin/nvidia-smi").chmod(0o755)
        (root / "proc/nvidia-caps").mkdir(parents=True)
        (root / "proc/nvidia-caps/mig-minors").write_text(MIG_MINORS)
        binds = {root / "proc": "/proc/driver"} if "MIG" in smi else {}
        pool.account.give(root)
        around = with_device_nodes(
            root / "dev", pool.account.uid, pool.account.gid, binds=binds, **nodes
        )
        env = {"PATH": f"{root}/bin:/usr/bin:/bin", "DRONE_CPUS": "4", **env}
        return drone_on(
            pool, name, shell=(*around, "/bin/sh"), env=env, files={"extra.conf": EXTRA.encode()}
        )

    return start


EXTRA = f"{QUICK_DRONE}STARTER_ALLOW_JOB_PRE_AND_POST_CMD = True\n"  # which 25.x does not by itself
CPU = {
    "DRONE_GPUS": "0",
    "DRONE_GPU_MILLI": "0",
    "DRONE_GPU_SIMULATE": "",
    "CUDA_VISIBLE_DEVICES": "",
}
BOTH = {"DRONE_GPUS": "2", "DRONE_GPU_SIMULATE": "4,2", "CUDA_VISIBLE_DEVICES": "0,1"}


def opened(pool: Pool, cluster: int, proc: int = 0) -> set[str]:
    """The device nodes that a job could open, by its output."""
    lines = (pool.dir / f"jobs/out.{cluster}.{proc}").read_text().splitlines()
    return {line.removeprefix("opened ") for line in lines if line.startswith("opened ")}


def on(drone: DroneProcess, guard: str) -> str:
    """The requirement of a job that wants this drone with this guard."""
    return f'Requirements = TARGET.DroneId == "{drone.id}" && TARGET.GpuGuard == "{guard}"'


def output(pool: Pool, cluster: int, proc: int = 0) -> str:
    return (pool.dir / f"jobs/out.{cluster}.{proc}").read_text()


def done(pool: Pool, cluster: int) -> dict[str, Any]:
    """The ad of a cluster's first job, once all its jobs have ended."""
    until(lambda: not pool.jobs(cluster), 90, what=f"cluster {cluster} has ended")
    return pool.history(cluster)[-1]


@pytest.mark.parametrize("namespaces", [True, False], ids=["namespace", "refused"])
def test_jobs_of_a_cpu_drone_open_no_gpu(
    pool: Pool, guarded: GuardedDrone, namespaces: bool
) -> None:
    drone = guarded("cpu", nodes={"namespaces": namespaces}, **CPU)
    guard = "namespace" if namespaces else "environment"
    assert drone.slot(pool)["GpuGuard"] == guard
    nested = "unshare -Ur id -u; id -u"
    program = pool.program("tries", f"{TRIES}{nested}\nexit 7\n")
    cluster = pool.submit(gpu_job(gpus=0, program=program, more=on(drone, guard)))
    assert done(pool, cluster)["ExitCode"] == 7
    said = output(pool, cluster)
    assert "CUDA_VISIBLE_DEVICES=10000" in said, "which a program may ignore"
    assert said.splitlines()[-1] == str(pool.account.uid)
    assert ("0" in said.splitlines()) == namespaces, "a job may make namespaces where the drone may"
    if namespaces:
        assert not opened(pool, cluster)
    else:
        assert opened(pool, cluster) > {"nvidia0", "nvidia1", "nvidiactl", "kfd", "dri/renderD128"}


def test_a_device_filter_of_the_site_is_a_guard(pool: Pool, guarded: GuardedDrone) -> None:
    gpus = ("nvidia0", "nvidia1", "dri/renderD128")
    drone = guarded("filter", nodes={"namespaces": False, "closed": gpus}, **CPU)
    assert drone.slot(pool)["GpuGuard"] == "cgroup"
    drone = guarded("holes", nodes={"namespaces": False, "closed": gpus[1:]}, **CPU)
    assert drone.slot(pool)["GpuGuard"] == "environment", "one GPU is open"


def test_each_job_of_a_drone_opens_the_gpu_that_it_was_given(
    pool: Pool, guarded: GuardedDrone
) -> None:
    drone = guarded("two", smi=nvidia_smi(), **BOTH)
    assert drone.slot(pool)["GpuGuard"] == "namespace"
    enough = pool.file("enough")
    program = pool.program(
        "tries", f"{TRIES}echo >>{enough}.tried; while [ ! -e {enough} ]; do sleep 0.2; done\n"
    )
    forged = 'environment = "_CONDOR_AssignedGPUs=GPU _CONDOR_SCRATCH_DIR=/"'
    cluster = pool.submit(gpu_job(n=2, program=program, more=f"{on(drone, 'namespace')}\n{forged}"))
    until(
        lambda: enough.with_name(f"{enough.name}.tried").read_text() == "\n\n",
        90,
        what="both have tried",
    )
    enough.touch()
    done(pool, cluster)
    pairs = [opened(pool, cluster, proc) for proc in range(2)]
    assert sorted(pairs, key=sorted) == [SHARED | {"nvidia0"}, SHARED | {"nvidia1"}]
    for proc, own in enumerate(pairs):
        gpu = "GPU-a0223334" if "nvidia0" in own else "GPU-b1223334"
        assert f"CUDA_VISIBLE_DEVICES={gpu}" in output(pool, cluster, proc), "as HTCondor sets it"


def test_jobs_on_shares_open_the_gpu_of_their_share(pool: Pool, guarded: GuardedDrone) -> None:
    if pool.condor.version.startswith("23."):
        pytest.skip("this HTCondor counts each GPU once, but for the slices of MIG")
    drone = guarded(
        "shares", smi=nvidia_smi(), DRONE_SHARING="time-sliced", DRONE_SHARES="2", **BOTH
    )
    assert (drone.slot(pool)["GpuGuard"], drone.slot(pool)["GPUs"]) == ("namespace", 4)
    program = pool.program("tries", f"{TRIES}sleep 5\n")
    cluster = pool.submit(
        gpu_job(
            n=4, memory_mib=100, program=program, more=f"+GpuMilli = 500\n{on(drone, 'namespace')}"
        )
    )
    done(pool, cluster)
    each = [opened(pool, cluster, proc) for proc in range(4)]
    assert all(own in (SHARED | {"nvidia0"}, SHARED | {"nvidia1"}) for own in each), each


def test_each_job_opens_its_own_mig_instance(pool: Pool, guarded: GuardedDrone) -> None:
    mig = {
        "DRONE_GPU_SIMULATE": "5,1",
        "CUDA_VISIBLE_DEVICES": "0",
        "DRONE_SHARING": "mig",
        "DRONE_SHARES": "2",
    }
    drone = guarded("mig", smi=nvidia_smi(mig=True), **mig)
    assert drone.slot(pool)["GpuGuard"] == "namespace"
    program = pool.program("tries", f"{TRIES}sleep 5\n")
    cluster = pool.submit(
        gpu_job(
            n=2, memory_mib=100, program=program, more=f"+GpuMilli = 500\n{on(drone, 'namespace')}"
        )
    )
    done(pool, cluster)
    both = [
        SHARED | {"nvidia0"} | {f"nvidia-caps/nvidia-cap{minor}" for minor in minors}
        for minors in ((12, 13), (21, 22))
    ]
    assert all(opened(pool, cluster, proc) in both for proc in range(2))


def test_the_gpus_that_the_site_kept_are_hidden_from_all_of_the_drone(
    pool: Pool, guarded: GuardedDrone
) -> None:
    """HTCondor starts a job's PreCmd without a wrapper."""
    drone = guarded("second", smi=nvidia_smi(), DRONE_GPU_SIMULATE="4,2", CUDA_VISIBLE_DEVICES="1")
    assert drone.slot(pool)["GpuGuard"] == "namespace"
    notes = pool.file("notes")
    before = pool.program("before", f"{{ {TRIES} }} >{notes}\n")
    more = f'{on(drone, "namespace")}\n+PreCmd = "{before.name}"\ntransfer_input_files = {before}'
    cluster = pool.submit(gpu_job(program=pool.program("tries", TRIES), more=more))
    done(pool, cluster)
    assert opened(pool, cluster) == SHARED | {"nvidia1"}
    assert {
        line for line in notes.read_text().splitlines() if line.startswith("opened nvidia")
    } == {f"opened {node}" for node in (*SHARED, "nvidia1")}
    assert "CUDA_VISIBLE_DEVICES=GPU-b1223334" in output(pool, cluster)


def test_without_a_table_of_gpus_the_ad_claims_no_guard(pool: Pool, guarded: GuardedDrone) -> None:
    assert guarded("none", **BOTH).slot(pool)["GpuGuard"] == "environment"
    other = nvidia_smi().replace("b1223334", "c1223334")
    assert guarded("other", smi=other, **BOTH).slot(pool)["GpuGuard"] == "environment"


@pytest.mark.parametrize("end", ["hold", "vacate", "segv", "missing"])
def test_jobs_end_as_without_the_wrapper(pool: Pool, guarded: GuardedDrone, end: str) -> None:
    drone = guarded("ends", smi=nvidia_smi(), **BOTH)
    assert drone.slot(pool)["GpuGuard"] == "namespace"
    notes = pool.file(f"notes-{end}")
    waits = (
        f"trap 'echo TERM >>{notes}; exit 3' TERM; echo up >>{notes}; while :; do sleep 0.2; done\n"
    )
    text = {"segv": "kill -SEGV $$\n"}.get(end, waits)
    program = pool.program("ends", text)
    more = on(drone, "namespace")
    if end == "missing":
        program.write_text("#!/no/such/interpreter\n")
    cluster = pool.submit(gpu_job(program=program, more=more))
    if end == "segv":
        ad = done(pool, cluster)
        assert (ad["ExitBySignal"], ad["ExitSignal"]) == (True, 11)
        return
    if end == "missing":
        assert done(pool, cluster)["ExitCode"] == 127, "HTCondor alone would hold it"
        return
    until(notes.exists, 90, what="it runs")
    pool.run(
        *(("condor_hold", str(cluster)) if end == "hold" else ("condor_vacate_job", str(cluster))),
        identity="alice",
    )
    until(lambda: "TERM" in notes.read_text(), 30, what="it got the signal")
    until(
        lambda: (
            pool.statuses(cluster) == [5] if end == "hold" else notes.read_text().count("up") > 1
        ),
        60,
        what=end,
    )
