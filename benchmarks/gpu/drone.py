"""A whole drone on a real GPU, time-sliced and under MPS: HTCondor, four shares, jobs within and over a share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.gpu.rig import CLIENT, Answer, Rig, Skipped, mps_control
from benchmarks.gpu.steps import SMALL
from provisioner.model import Sharing
from tests.labs import htcondor
from tests.labs.htcondor import LabError, Pool, gpu_job, until

SHARES = 4
RECORDED = (
    *("GPUsAverageUsage", "GPUsMemoryUsage", "GPUsEnergyUsage", "AssignedGPUs"),
    *("ExitCode", "HoldReason", "HoldReasonSubCode"),
)
"""Attributes of a job with its use of the GPU and its end; a version without a monitor or guard of
ours lacks some."""
OF_SLOT = (
    "TotalSlotGPUs",
    "GPUs_DeviceName",
    "VramEnforced",
    "GpuGuard",
    "DroneGpuCheck",
    "DroneGpusOfflineWhy",
)
WITHIN_S = 60


def drone(rig: Rig, seconds: float) -> Answer:
    """Run jobs on the shares of a drone in each mode of sharing.

    Raises:
        Skipped: HTCondor cannot be had here.
    """
    try:
        condor = htcondor.Condor.fetched("forky")
    except (LabError, subprocess.SubprocessError) as error:
        raise Skipped(
            f"no HTCondor (`make condor` fetches it): {str(error).splitlines()[-1]}"
        ) from None
    found: Answer = {}
    with htcondor.running_pool(condor, "bench") as pool:
        for mode in (Sharing.TIME_SLICED, Sharing.MPS):
            try:
                found[mode.value] = _Bench(pool, rig, mode, seconds).run()
            except (AssertionError, LabError, Skipped) as why:
                found[mode.value] = {
                    "failed" if isinstance(why, AssertionError | LabError) else "skipped": str(why)
                }
    return found


@dataclass(frozen=True, slots=True)
class _Bench:
    """A drone with shares of one mode and the jobs on it."""

    pool: Pool
    rig: Rig
    mode: Sharing
    seconds: float

    def run(self) -> Answer:
        """Run a training on each share, then a job that holds half as much memory again as its share, then a fault."""
        outside = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CUDA_MPS_", "_CONDOR_"))
        }
        path = outside.get("PATH", os.defpath)
        if self.mode is Sharing.MPS:
            path = f"{path}:{os.path.dirname(mps_control())}"
        total_mib = self.rig.nvml.memory_mib()[1]
        env = outside | {
            "PATH": path,
            "CUDA_VISIBLE_DEVICES": self.rig.nvml.uuid,
            "DRONE_GPU_SIMULATE": "",
            "DRONE_SHARING": self.mode.value,
            "DRONE_SHARES": str(SHARES),
            "DRONE_CPUS": str(SHARES),
            "DRONE_MEMORY_MIB": str(2048 * SHARES),
            "DRONE_VRAM_MIB": str(total_mib),
        }
        began = time.monotonic()
        one = htcondor.start_drone(self.pool, htcondor.own(f"bench-{self.mode.value[:3]}"), env=env)
        try:
            one.slot(self.pool)
            found: Answer = {"joined after, s": round(time.monotonic() - began, 1)}
            found["trainings"] = self._ends(
                self._jobs(SHARES, *SMALL.words(self.rig, self.seconds, 256))
            )
            over = self._jobs(
                1, *SMALL.words(self.rig, self.seconds + 20, total_mib * 3 // 2 // SHARES)
            )
            found["a job over its share"] = self._ends(over)["0"]
            self.pool.remove(over)
            if self.mode is Sharing.MPS:
                found |= self._fault(one)
            slot = one.slot(self.pool)
            return found | {"slot": {name: slot.get(name) for name in OF_SLOT}}
        except AssertionError:
            print(one.story(), file=sys.stderr)
            raise
        finally:
            one.stop()

    def _fault(self, one: htcondor.DroneProcess) -> Answer:
        """Run a job that stores to an illegal address beside a training."""
        neighbour = self._jobs(1, *SMALL.words(self.rig, self.seconds + 10, 256))
        until(lambda: self.pool.statuses(neighbour) == [2], WITHIN_S, what="the neighbour runs")
        time.sleep(3)
        faulty = self._jobs(1, "fault")
        found = {
            "a job that faults": self._ends(faulty)["0"],
            "its neighbour": self._ends(neighbour)["0"],
        }
        with suppress(AssertionError):
            until(
                lambda: one.slot(self.pool).get("DroneFaults"),
                WITHIN_S / 4,
                what="the drone has noticed the fault",
            )
        slot = one.slot(self.pool)
        return found | {
            name: slot.get(name) for name in ("DroneFaults", "DroneMpsReady", "DroneMpsWhy")
        }

    def _jobs(self, n: int, *words: object) -> int:
        """Submit clients of the GPU; return their cluster."""
        pool = self.pool
        client = pool.file("client.py")
        shutil.copy(CLIENT, client)
        client.chmod(0o644)
        # Jobs run under an account that may not reach this interpreter.
        python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin") or sys.executable
        libraries = os.environ.get("LD_LIBRARY_PATH", "")
        command = " ".join(map(str, (python, client, *words)))
        name = f"job-{self.mode.value}-{time.monotonic_ns()}"
        program = pool.program(
            name, f"export LD_LIBRARY_PATH='{libraries}'\nexec {command} </dev/null"
        )
        return pool.submit(
            gpu_job(program=program, n=n, memory_mib=1000, more=f"+GpuMilli = {1000 // SHARES}")
        )

    def _ends(self, cluster: int) -> Answer:
        """Wait until all jobs have ended or are held; return what HTCondor recorded of each, and its last line."""
        pool = self.pool
        until(
            lambda: set(pool.statuses(cluster)) <= {5},
            self.seconds + WITHIN_S,
            what="the jobs have ended or are held",
        )
        return {
            str(ad["ProcId"]): self._recorded(ad)
            for ad in pool.jobs(cluster) or pool.history(cluster)
        }

    def _recorded(self, ad: htcondor.Ad) -> Answer:
        out = self.pool.dir / "jobs" / f"out.{ad['ClusterId']}.{ad['ProcId']}"
        lines = out.read_text().splitlines() if out.exists() else []
        said = json.loads(lines[-1]) if lines else {}
        return {name: ad[name] for name in RECORDED if name in ad} | {"said": said}
