"""A supercomputer and a cloud in the lab: an overlay pool of ours, their site, and a controller that knows both."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.labs.controller import (
    A100,
    V100,
    LabController,
    Settings,
    SiteSettings,
    gpu_type,
    limits,
)
from tests.labs.htcondor import Condor, LabError, Pool, gpu_job, lab_directory, running_pool
from tests.labs.kubernetes import GPU, SHARED, SLICE, KubernetesLab
from tests.labs.kubernetes_sites import left_of as remains_of, site_options
from tests.labs.openstack import OWNER, OpenStackLab
from tests.labs.openstack_sites import HOSTS, access, left_of
from tests.labs.slurm import Job, SlurmLab
from tests.labs.slurm_sites import drone_of, ways

LARGE = "gpus_minimum_memory = 30000"
"""Requirement of a job that wants the larger one of a site's two GPUs. Others get the smaller one first."""


@dataclass
class Facility:
    """All of it, the controller not started yet."""

    overlay: Pool
    controller: LabController

    @property
    def shared(self) -> Path:
        """A directory that the site's machines have, too, at the same path."""
        raise NotImplementedError

    def logs(self) -> str:
        raise NotImplementedError

    @property
    def enough(self) -> Path:
        """Jobs of :meth:`submit` run until this file is there: here and on the machines."""
        return self.shared / f"{self.overlay.root.name}.enough"

    def submit(self, n: int, *, large: bool = False, more: str = "") -> int:
        """Jobs of one GPU."""
        more = f"{LARGE}\n{more}" if large else more
        return self.overlay.submit(gpu_job(n=n, until_there=self.enough, more=more))

    def let_go(self) -> None:
        self.enough.touch()
        self.enough.chmod(0o644)

    def story(self) -> str:
        """Everything there is to tell, for a failing test."""
        told = [self.controller.story()]
        with suppress(LabError, OSError, subprocess.SubprocessError):
            told += [
                self.logs(),
                self.overlay.run("condor_q", "-allusers", "-nobatch", timeout_s=10),
            ]
        return "\n".join(told)


F = TypeVar("F", bound=Facility)


@contextmanager
def _standing(
    condor: Condor,
    site: SiteSettings,
    made: Callable[[Pool, LabController], F],
    reset: Callable[[], None],
) -> Iterator[F]:
    """An overlay of its own and a controller before a site that others may use after us."""
    with running_pool(condor) as overlay, lab_directory("controller") as directory:
        controller = LabController(overlay, directory / "c", sites=(site,))
        lab = made(overlay, controller)
        try:
            yield lab
        except BaseException:
            print(lab.story())
            raise
        finally:
            controller.clean_up()
            with suppress(LabError):
                reset()


# -------------------------------------------------------------------------------------------------------------
# Slurm


@dataclass
class HorekaSite:
    """The cluster as a site of ours, by one of the ways to it."""

    slurm: SlurmLab
    way: str = "tools"
    most: int = 12
    most_by_type: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    more: Settings = field(default_factory=dict)
    name: str = "horeka"

    def settings(self, controller: LabController) -> Settings:
        size = {"cpus": 8, "memory": "20 GiB", "disk": "1 GiB", "walltime": "1h"}
        deadlines = {"poll_deadline": "20s", "order_deadline": "25s", "order_confirm": "30s"}
        options = {
            "types": {
                "a100": {"partition": "accelerated", "gres": "gpu:a100"},
                "h100": {"partition": "accelerated-h100", "gres": "gpu:h100"},
            },
            "deadline": "15s",
            "submit_deadline": "20s",
            **ways(self.slurm, controller.directory)[self.way],
        }
        return {
            "adapter": "slurm",
            "limits": limits(self.most),
            "timeouts": controller.timeouts(missing="3s", grace="4s", **deadlines),
            # The lab's H100 nodes have the smaller one of the two GPUs.
            "types": {
                name: gpu_type(*gpu, max_drones=self.most_by_type.get(name, self.most), **size)
                for name, gpu in (("a100", A100), ("h100", V100))
            },
            "options": {"same_account": True, **options, **self.options},
            **self.more,
        }


@dataclass
class HorekaLab(Facility):
    slurm: SlurmLab

    @property
    def shared(self) -> Path:
        return self.slurm.shared

    def logs(self) -> str:
        return "\n".join(
            ("--- slurm", *map(str, self.slurm.jobs()), self.slurm.log("slurmctld", 60))
        )

    def jobs(self) -> list[tuple[str, Job]]:
        """Slurm's jobs that wait or run and are drones of this controller, with the drones' ids."""
        jobs = [
            (drone_of(job.id, job.name), job) for job in self.slurm.jobs("-u", "drone") if job.alive
        ]
        return [
            (drone_id, job)
            for drone_id, job in jobs
            if drone_id.startswith(f"{self.controller.name}-")
        ]

    def alive(self) -> Counter[str]:
        """Return the number of waiting and running jobs of each drone."""
        return Counter(drone_id for drone_id, _ in self.jobs())

    def nothing_left(self) -> None:
        """No drone in the queue, on the nodes or on record."""
        directories = f"drone.{self.controller.name}-*"
        self.controller.all_gone(
            self.alive, lambda: list(self.slurm.inside("/tmp").glob(directories))
        )


@contextmanager
def horeka(condor: Condor, slurm: SlurmLab, way: str = "tools", **site: Any) -> Iterator[HorekaLab]:
    """``site``: fields of :class:`HorekaSite`."""
    here = HorekaSite(slurm, way, **site)
    with _standing(
        condor, here, lambda overlay, controller: HorekaLab(overlay, controller, slurm), slurm.empty
    ) as lab:
        yield lab


# ---------------------------------------------------------------------------------------------------------
# OpenStack

IMAGE = """\
#!/bin/sh
# Contents of an operator's image: HTCondor, and a GPU with its driver. The GPU is the one that HTCondor knows to
# simulate for the drone's type; nvidia-smi and the discovery tell the same.
set -e
umask 022
grep -q '"provisioner_type": "vgpu"' /mnt/meta_data.json && model=2 || model=4
mkdir -p /opt
cp -rs {prefix}/usr /opt/condor
discovery=/opt/condor/libexec/condor/condor_gpu_discovery
rm $discovery
printf '#!/bin/sh\\nexec {prefix}/usr/libexec/condor/condor_gpu_discovery -simulate:%s,1 "$@"\\n' $model >$discovery
printf '#!/bin/sh\\necho "0, GPU-9d1b6b3c-0000-0000-0000-000000000000, 0"\\n' >/opt/condor/bin/nvidia-smi
chmod 755 $discovery /opt/condor/bin/nvidia-smi
"""


@dataclass
class GridkaSite:
    """The cloud as a site of ours. With ``owner`` it has an owner with priority, and the site lists
    the hosts, for ``vgpu`` alone."""

    cloud: OpenStackLab
    owner: bool = False
    whole: int = 8
    virtual: int = 8
    name: str = "gridka"

    def settings(self, controller: LabController) -> Settings:
        image = controller.directory / "image.sh"
        image.write_text(IMAGE.format(prefix=controller.pool.condor.prefix))
        size = {"cpus": 8, "memory": "16 GiB", "disk": "10 GiB", "walltime": "1h"}
        options = {
            **access(self.cloud, controller.directory),
            "image": "worker",
            "networks": ["drones"],
            "types": {
                "h100": {"flavor": "gpu.h100.pci"},
                "vgpu": {"flavor": "gpu.h100.vgpu", "boot_volume": {"size": "20 GiB"}},
            },
            "setup": "image.sh",
            # The image has no libcuda: its GPU is simulated.
            "env": {"CONDOR_PREFIX": "/opt/condor", "DRONE_GPU_IGNORE": "cuda"},
            "deadline": "15s",
            "create_deadline": "20s",
        }
        if self.owner:
            options |= {"hosts": HOSTS, "owner": access(self.cloud, controller.directory, OWNER)}
        deadlines = {"poll_deadline": "20s", "order_deadline": "45s", "order_confirm": "60s"}
        return {
            "adapter": "openstack",
            "limits": limits(10),
            "timeouts": controller.timeouts(missing="3s", grace="4s", **deadlines),
            "types": {
                "h100": gpu_type(*A100, max_drones=self.whole, **size),
                "vgpu": gpu_type(*V100, max_drones=self.virtual, **size),
            },
            "options": options,
            **({"owner": {"preempt_proactively": True}} if self.owner else {}),
        }


@dataclass
class GridkaLab(Facility):
    cloud: OpenStackLab

    @property
    def shared(self) -> Path:
        return self.cloud.shared

    def logs(self) -> str:
        told = [
            f"--- {s['name']} {s['status']}\n{self.cloud.console(s['id'])[-3000:]}"
            for s in self.servers()[:4]
        ]
        return "\n".join((*told, f"--- nova\n{self.cloud.log('nova', 20)}"))

    def servers(self) -> list[dict[str, Any]]:
        """Return the servers of this controller's drones, as the cloud's admin sees them."""
        every = self.cloud.admin("GET", "nova:/servers/detail?all_tenants=1")["servers"]
        return [each for each in every if each["name"].startswith(f"{self.controller.name}-")]

    def shown(self, drone_id: str) -> str:
        """`drones show` of it, with all there is to see."""
        return self.controller.prints("drones", "show", drone_id)

    def _left(self) -> Sequence[str]:
        drones = [each["id"] for each in self.controller.drones()]
        return [f"{each} of {drone}" for drone in drones for each in left_of(self.cloud, drone)]

    def nothing_left(self) -> None:
        """No server, port, volume, process or live record of a drone."""
        self.controller.all_gone(self.servers, self._left)


@contextmanager
def gridka(condor: Condor, cloud: OpenStackLab, **site: Any) -> Iterator[GridkaLab]:
    """``site``: fields of :class:`GridkaSite`."""
    with _standing(
        condor,
        GridkaSite(cloud, **site),
        lambda overlay, controller: GridkaLab(overlay, controller, cloud),
        cloud.reset,
    ) as lab:
        yield lab


# --------------------------------------------------------------------------------------------------------
# Kubernetes


@dataclass
class CernSite:
    """The cluster as a site of ours, with a drone type for each of its GPU resources."""

    cluster: KubernetesLab
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = "cern"

    def settings(self, controller: LabController) -> Settings:
        size = {"cpus": 2, "memory": "2 GiB", "disk": "2 GiB", "walltime": "1h"}
        deadlines = {"poll_deadline": "20s", "order_deadline": "45s", "order_confirm": "60s"}
        options = {**site_options(self.cluster), **self.options}
        options["types"] = {
            "a100": {"resource": GPU},
            "share": {"resource": SHARED, "enforced": "mps"},
            "mig": {"resource": SLICE},
        }
        return {
            "adapter": "kubernetes",
            "limits": limits(24),
            "timeouts": controller.timeouts(missing="3s", grace="4s", **deadlines),
            "types": {
                "a100": gpu_type(*A100, **size),
                "share": gpu_type(*V100, price=0.2, max_drones=6, **size),
                "mig": gpu_type(*V100, price=0.3, max_drones=6, **size),
            },
            "options": {**options, "retain_finished": "5s", "env": {}},
        }


@dataclass
class CernLab(Facility):
    cluster: KubernetesLab

    @property
    def shared(self) -> Path:
        return self.overlay.root

    def logs(self) -> str:
        return self.cluster.story()

    def pods(self) -> list[dict[str, Any]]:
        """The pods of this controller's drones, as the administrator sees them."""
        return [
            each
            for each in self.cluster.pods()
            if each["metadata"]["name"].startswith(f"{self.controller.name}-")
        ]

    def nothing_left(self) -> None:
        """No pod, secret, process or live record of a drone."""
        drones = [each["id"] for each in self.controller.drones()]
        self.controller.all_gone(
            self.pods, lambda: [each for d in drones for each in remains_of(self.cluster, d)]
        )


@contextmanager
def cern(condor: Condor, cluster: KubernetesLab, **site: Any) -> Iterator[CernLab]:
    """``site``: fields of :class:`CernSite`."""
    with _standing(
        condor,
        CernSite(cluster, **site),
        lambda overlay, controller: CernLab(overlay, controller, cluster),
        cluster.reset,
    ) as lab:
        yield lab
