"""A supercomputer in the lab: a Slurm cluster, our overlay pool, and a controller that knows both."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.labs.controller import LabController
from tests.labs.htcondor import Condor, LabError, Pool, gpu_job, lab_directory, running_pool, until
from tests.labs.slurm import Job, SlurmLab
from tests.labs.slurm_sites import drone_of, ways

SITE_FILE = """\
site: horeka
adapter: slurm
limits: {{max_drones: {most}, max_pending: {most}, max_starts_per_tick: {most}}}
timeouts:
  poll_deadline: 20s
  order_deadline: {act_s}s
  order_confirm: {order_confirm_s}s
  missing: 3s
  booting: {boot_s}s
  grace: 4s
  stopping: 30s
types:
  a100:
    gpus: 1
    gpu_model: A100-SXM4-40GB
    vram: 47661 MiB
    capability: 8.0
    cpus: 8
    memory: 20 GiB
    disk: 1 GiB
    walltime: 1h
  # What the lab's H100 nodes pretend to have: the smaller GPU of the two, and so the first choice for small jobs.
  h100:
    gpus: 1
    gpu_model: Tesla V100-PCIE-16GB
    vram: 24220 MiB
    capability: 7.0
    cpus: 8
    memory: 20 GiB
    disk: 1 GiB
    walltime: 1h
options: {options}
"""

ALIVE = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED")


@dataclass
class HorekaSite:
    """The cluster as a site of ours, by one of the ways to it."""

    slurm: SlurmLab
    way: str = "tools"
    most: int = 12
    order_confirm_s: int = 30
    act_s: int = 25
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = "horeka"

    def text(self, controller: LabController) -> str:
        options = {
            "types": {
                "a100": {"partition": "accelerated", "gres": "gpu:a100"},
                "h100": {"partition": "accelerated-h100", "gres": "gpu:h100"},
            },
            "deadline": "8s",
            "submit_deadline": "20s",
            **ways(self.slurm, controller.directory)[self.way],
            **self.options,
        }
        return SITE_FILE.format(
            most=self.most,
            act_s=self.act_s,
            order_confirm_s=self.order_confirm_s,
            boot_s=controller.boot_s,
            options=json.dumps(options),
        )


@dataclass
class HorekaLab:
    """The overlay, the cluster and our controller (not started yet)."""

    overlay: Pool
    slurm: SlurmLab
    controller: LabController
    site: HorekaSite

    @property
    def enough(self) -> Path:
        """Jobs of :meth:`submit` run until this file is there: here and on the nodes."""
        return self.slurm.shared / f"{self.overlay.root.name}.enough"

    def submit(self, n: int, *, more: str = "") -> int:
        """Jobs of one GPU; those that want an A100 say so by their VRAM."""
        return self.overlay.submit(gpu_job(n=n, until_there=self.enough, more=more))

    def let_go(self) -> None:
        self.enough.touch()
        self.enough.chmod(0o644)

    def jobs(self) -> list[Job]:
        """Slurm's jobs that are drones of this controller, whatever their state."""
        mine = f"{self.controller.name}-"
        return [job for job in self.slurm.jobs("-u", "drone") if drone_of(job.id, job.name).startswith(mine)]

    def alive(self) -> Counter[str]:
        """How many jobs each drone has that wait or run."""
        return Counter(drone_of(job.id, job.name) for job in self.jobs() if job.state in ALIVE)

    def job_of(self, drone_id: str) -> Job:
        return next(job for job in self.jobs() if drone_of(job.id, job.name) == drone_id)

    def nothing_left(self) -> None:
        """No drone in the queue, on the nodes or on record."""
        until(lambda: not self.alive(), 90, what="an empty queue", every_s=0.5)
        until(lambda: not self.controller.processes(), 60, what="no process of a drone", every_s=0.5)
        until(lambda: not self.controller.live(), 60, what="no drone on record that lives", every_s=0.5)
        left = list(self.slurm.inside("/tmp").glob(f"drone.{self.controller.name}-*"))
        assert not left, f"left on the nodes: {left}"

    def story(self) -> str:
        """Everything there is to tell, for a failing test."""
        told = self.controller.told()
        with suppress(LabError, OSError, subprocess.SubprocessError):
            told.append("--- slurm\n" + "\n".join(map(str, self.slurm.jobs())))
            told.append(self.slurm.log("slurmctld", 60))
            told.append(self.overlay.run("condor_q", "-allusers", "-nobatch", timeout_s=10))
        return "\n".join(told)


@contextmanager
def horeka(condor: Condor, slurm: SlurmLab, way: str = "tools", **site: Any) -> Iterator[HorekaLab]:
    """An overlay of its own and a controller before a cluster that others may use after us."""
    with running_pool(condor) as overlay, lab_directory("controller") as directory:
        here = HorekaSite(slurm, way, **site)
        controller = LabController(overlay, directory / "c", sites=(here,))
        lab = HorekaLab(overlay, slurm, controller, here)
        try:
            yield lab
        except BaseException:
            print(lab.story())
            raise
        finally:
            controller.stop()
            with suppress(LabError):
                slurm.empty()
            controller.clean_up()
