"""The wrapper that hides GPUs from jobs, run without HTCondor on device nodes of a test's own."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from provisioner.drone import script
from tests.labs.bare_drone import bare_drone
from tests.labs.device_nodes import with_device_nodes
from tests.labs.htcondor import account, lab_directory

GPUS = """\
GPU-aaaa-1 /dev/nvidia0 /dev/dri/card0 /dev/dri/renderD128
GPU-bbbb-2 /dev/nvidia1
MIG-cccc-3 /dev/nvidia0 /dev/nvidia-caps/nvidia-cap12 /dev/nvidia-caps/nvidia-cap13
"""
TRIES = """for node in $(cd /dev && echo nvidia* dri/* kfd nvidia-caps/*); do
    [ -c "/dev/$node" ] && (: <"/dev/$node") 2>/dev/null && echo $node
done; true"""
SHARED = {"nvidiactl", "nvidia-uvm"}


def wrapped(
    *command: str,
    ids: str = "",
    name: str = "job_wrapper.sh",
    gpus: str = GPUS,
    mount: str = "/bin/mount",
    **env: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command in the wrapper, as an ordinary user."""
    me = account()
    with lab_directory("wrapper") as root:
        (root / "dev").mkdir()
        (root / name).write_bytes(script("job_wrapper.sh"))
        (root / "gpus").write_text(gpus)
        (root / "guard").write_text(
            f"unshare=/usr/bin/unshare\nmount={mount}\nuid={me.uid}\ngid={me.gid}\nguard_jobs=yes\n"
        )
        me.give(root)
        around = with_device_nodes(root / "dev", me.uid, me.gid)
        return subprocess.run(
            [*around, "sh", str(root / name), *command],
            env={"PATH": "/usr/bin:/bin", "_CONDOR_AssignedGPUs": ids, **env},
            cwd=root,
            text=True,
            capture_output=True,
            timeout=60,
            **me.run,
        )


def opened(ids: str, **how: str) -> set[str]:
    """The device nodes that a job with these GPUs can open, without those that all NVIDIA GPUs share."""
    done = wrapped("sh", "-c", TRIES, ids=ids, **how)
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.split())
    assert not found or found >= SHARED, "no GPU, or what each needs"
    return found - SHARED


@pytest.mark.parametrize(
    ("ids", "nodes"),
    [
        ("", set()),
        ("GPU-dddd", set()),
        ("GPU-aaaa", {"nvidia0", "dri/card0", "dri/renderD128"}),
        ("GPU-bbbb-2", {"nvidia1"}),
        ("GPU-aaaa, GPU-bbbb", {"nvidia0", "dri/card0", "dri/renderD128", "nvidia1"}),
        ("MIG-cccc-3", {"nvidia0", "nvidia-caps/nvidia-cap12", "nvidia-caps/nvidia-cap13"}),
    ],
)
def test_a_job_opens_its_own_gpus_alone(ids: str, nodes: set[str]) -> None:
    assert opened(ids) == nodes


def test_htcondor_itself_opens_all_gpus_of_the_drone() -> None:
    assert opened("", name="drone_wrapper.sh", gpus="GPU-bbbb-2 /dev/nvidia1\n") == {"nvidia1"}
    assert opened("GPU-bbbb", name="drone_wrapper.sh", gpus="") == set(), "a CPU drone has none"


UNDONE = """unshare -Urm sh -c '
    umount /dev/nvidia0; mount -o remount,bind,dev /dev/nvidia0
    mkdir x; mount --bind /dev x && cat x/nvidia0; mount --rbind /dev x && head -c 1 x/nvidia0 && echo opened
    head -c 1 /dev/nvidia0 && echo opened; head -c 1 /proc/$1/root/dev/nvidia0 && echo opened; id -u' nested $1"""


def test_a_job_that_makes_namespaces_of_its_own_cannot_undo_it() -> None:
    done = wrapped("sh", "-c", UNDONE, "job", str(os.getpid()))
    assert done.stdout == "0\n", done.stderr
    assert done.stderr.count("Permission denied") >= 3, done.stderr


def test_the_job_is_what_it_was() -> None:
    says = 'cat; id -u; id -g; grep CapEff /proc/self/status; echo $LD_LIBRARY_PATH; echo "$1" >&2; exit 7'
    done = wrapped("sh", "-c", says, "job", "two  words", LD_LIBRARY_PATH="/nowhere")
    me = account()
    assert done.stdout.split("\n") == [
        str(me.uid),
        str(me.gid),
        "CapEff:\t0000000000000000",
        "/nowhere",
        "",
    ]
    assert (done.returncode, done.stderr) == (7, "two  words\n")
    assert wrapped("sh", "-c", "kill -SEGV $$").returncode == -signal.SIGSEGV
    assert wrapped("sh", "-c", "echo $PPID").stdout == f"{os.getpid()}\n", (
        "no process of the wrapper is left"
    )


def test_a_job_does_not_start_where_a_file_cannot_be_hidden() -> None:
    done = wrapped("echo", "started", mount="/bin/false")
    assert (done.returncode, done.stdout, done.stderr) == (
        71,
        "",
        "cannot hide /dev/nvidia-uvm: \n",
    )


SEES_KFD = """if (: </dev/kfd) 2>/dev/null; then echo 'DetectedGPUs="GPU-1"'; else echo DetectedGPUs=0; fi
"""


def test_gpus_whose_files_are_not_known_are_not_hidden_from_their_own_drone() -> None:
    """With AMD's or Intel's, HTCondor found none in the namespace, as many as the table had, and so offered none."""
    me = account()
    with lab_directory("amd") as root:
        (root / "dev").mkdir()
        me.give(root)
        drone = bare_drone(
            root,
            root,
            discovery=SEES_KFD,
            around=with_device_nodes(root / "dev", me.uid, me.gid),
            checks={"gpu_check.sh": "exit 0\n"},
            DRONE_VENDOR="amd",
            DRONE_GPU_SIMULATE="",
        )
        _, outcome = drone.wait()
        assert 'GpuGuard = "environment"\n' in (drone.home / "log/master.out").read_text(), outcome
