"""A whole drone on a real GPU: HTCondor, four shares, a job on each, and one that takes more memory than its share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

from benchmarks.gpu.rig import CLIENT, Answer, Rig, Skipped
from benchmarks.gpu.steps import SMALL
from tests.labs import htcondor
from tests.labs.htcondor import LabError, Pool, gpu_job, until

SHARES = 4
RECORDED = ("GPUsAverageUsage", "GPUsMemoryUsage", "GPUsEnergyUsage", "AssignedGPUs", "HoldReason", "HoldReasonSubCode")
"""Attributes of a job that tell of its use of the GPU; a version without a monitor or guard of ours lacks some."""
WITHIN_S = 120


def drone(rig: Rig, seconds: float) -> Answer:
    """Run four trainings on the shares of a drone, then one that holds half as much memory again as its share.

    Raises:
        Skipped: HTCondor cannot be had here.
    """
    try:
        condor = htcondor.Condor.fetched("forky")
    except (LabError, subprocess.SubprocessError) as error:
        raise Skipped(f"no HTCondor (`make condor` fetches it): {str(error).splitlines()[-1]}") from None
    total_mib = rig.nvml.memory_mib()[1]
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_MPS_", "_CONDOR_"))}
    env = outside | {
        "CUDA_VISIBLE_DEVICES": rig.nvml.uuid,
        "DRONE_GPU_SIMULATE": "",
        "DRONE_SHARING": "time-sliced",
        "DRONE_SHARES": str(SHARES),
        "DRONE_CPUS": str(SHARES),
        "DRONE_VRAM_MIB": str(total_mib),
    }
    with htcondor.running_pool(condor, "bench") as pool:
        one = htcondor.start_drone(pool, htcondor.own("bench-gpu"), env=env)
        try:
            slot = one.slot(pool)
            small = _jobs(pool, rig, seconds, SHARES, 256)
            until(lambda: not pool.jobs(small), seconds + WITHIN_S, what="the trainings have ended")
            hog = _jobs(pool, rig, seconds + 30, 1, total_mib * 3 // 2 // SHARES)
            until(lambda: pool.statuses(hog) in ([], [5]), seconds + WITHIN_S, what="the large job was ended or held")
            [large] = pool.jobs(hog) or pool.history(hog)
            return {
                "slot": {name: slot.get(name) for name in ("GPUs", "GPUs_DeviceName", "VramEnforced", "GpuGuard")},
                "trainings": {str(ad["ProcId"]): _recorded(pool, ad) for ad in pool.history(small)},
                "a job over its share": _recorded(pool, large) | {"held": large["JobStatus"] == 5},
            }
        finally:
            one.stop()


def _jobs(pool: Pool, rig: Rig, seconds: float, n: int, mib: int) -> int:
    """Submit trainings that hold memory; return their cluster."""
    client = pool.file("client.py")
    shutil.copy(CLIENT, client)
    client.chmod(0o644)
    # Jobs run under an account that may not reach this interpreter.
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable
    words = " ".join(map(str, (python, client, *SMALL.words(rig, seconds, mib))))
    libraries = os.environ.get("LD_LIBRARY_PATH", "")
    program = pool.program(f"train-{mib}", f"export LD_LIBRARY_PATH='{libraries}'\nexec {words} </dev/null")
    return pool.submit(gpu_job(program=program, n=n, memory_mib=100, more=f"+GpuMilli = {1000 // SHARES}"))


def _recorded(pool: Pool, ad: htcondor.Ad) -> Answer:
    """Return what HTCondor recorded of a job, and what it printed at its end."""
    out = pool.dir / "jobs" / f"out.{ad['ClusterId']}.{ad['ProcId']}"
    lines = out.read_text().splitlines() if out.exists() else []
    said = json.loads(lines[-1]) if lines else {}
    return {name: ad[name] for name in RECORDED if name in ad} | {"said": said}
