"""A cloud in the lab: our overlay pool, the cloud whose servers are drones, and a controller that knows both."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.labs.controller import LabController
from tests.labs.htcondor import Condor, LabError, Pool, gpu_job, lab_directory, running_pool, until
from tests.labs.openstack import OWNER, OpenStackLab
from tests.labs.openstack_sites import HOSTS, access, left_of

SITE_FILE = """\
site: gridka
adapter: openstack
limits: {{max_drones: {most}, max_pending: {most}, max_starts_per_tick: {most}}}
timeouts:
  poll_deadline: 20s
  order_deadline: {act_s}s
  order_confirm: {order_confirm_s}s
  missing: 3s
  booting: {boot_s}s
  grace: 4s
  stopping: 30s
{owner}
types:
  # Whole GPUs: what the image pretends of them is IMAGE's.
  h100:
    gpus: 1
    gpu_model: A100-SXM4-40GB
    vram: 47661 MiB
    capability: 8.0
    cpus: 8
    memory: 16 GiB
    disk: 10 GiB
    walltime: 1h
    max_drones: {whole}
  # The smaller of the two, and so the first choice for small jobs.
  vgpu:
    gpus: 1
    gpu_model: Tesla V100-PCIE-16GB
    vram: 24220 MiB
    capability: 7.0
    cpus: 8
    memory: 16 GiB
    disk: 10 GiB
    walltime: 1h
    max_drones: {virtual}
options: {options}
"""

IMAGE = """\
#!/bin/sh
# What an operator has in his image: HTCondor, and a GPU with its driver. The GPU is the one that HTCondor knows to
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
    """The cloud as a site of ours. ``options`` go over those of the site. ``owner``: whether it has one who comes
    first; then the hosts are told as well, for ``vgpu`` alone."""

    cloud: OpenStackLab
    owner: bool = False
    most: int = 10
    whole: int = 8
    virtual: int = 8
    order_confirm_s: int = 60
    act_s: int = 45
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = "gridka"

    def text(self, controller: LabController) -> str:
        image = controller.directory / "image.sh"
        image.write_text(IMAGE.format(prefix=controller.condor_prefix or controller.pool.condor.prefix))
        options = {
            **access(self.cloud, controller.directory),
            "image": "worker",
            "networks": ["drones"],
            "types": {
                "h100": {"flavor": "gpu.h100.pci"},
                "vgpu": {"flavor": "gpu.h100.vgpu", "boot_volume": {"size": "20 GiB"}},
            },
            "setup": "image.sh",
            "env": {"CONDOR_PREFIX": "/opt/condor"},
            "deadline": "8s",
            "create_deadline": "20s",
            **self.options,
        }
        if self.owner:
            options |= {"hosts": HOSTS, "owner": access(self.cloud, controller.directory, OWNER)}
        return SITE_FILE.format(
            most=self.most,
            whole=self.whole,
            virtual=self.virtual,
            act_s=self.act_s,
            order_confirm_s=self.order_confirm_s,
            boot_s=controller.boot_s,
            owner="owner: {preempt_proactively: true}" if self.owner else "",
            options=json.dumps(options),
        )


@dataclass
class GridkaLab:
    """The overlay, the cloud and our controller (not started yet)."""

    overlay: Pool
    cloud: OpenStackLab
    controller: LabController
    site: GridkaSite

    @property
    def enough(self) -> Path:
        """Jobs of :meth:`submit` run until this file is there: here and in the guests."""
        return self.cloud.shared / f"{self.overlay.root.name}.enough"

    def submit(self, n: int, *, large: bool = False, more: str = "") -> int:
        """Jobs of one GPU; ``large``: of a whole one, which they ask for by its VRAM."""
        if large:
            more = f"gpus_minimum_memory = 30000\n{more}"
        return self.overlay.submit(gpu_job(n=n, until_there=self.enough, more=more))

    def let_go(self) -> None:
        self.enough.touch()
        self.enough.chmod(0o644)

    def servers(self) -> list[dict[str, Any]]:
        """Those that are drones of this controller, as the cloud's admin sees them."""
        every = self.cloud.admin("GET", "nova:/servers/detail?all_tenants=1")["servers"]
        return [each for each in every if each["name"].startswith(f"{self.controller.name}-")]

    def statuses(self) -> Counter[str]:
        """How many of our servers are in which status."""
        return Counter(each["status"] for each in self.servers())

    def server_of(self, drone_id: str) -> dict[str, Any]:
        return next(each for each in self.servers() if each["name"] == drone_id)

    def shown(self, drone_id: str) -> str:
        """`drones show` of it, with all there is to see."""
        done = self.controller.call("drones", "show", drone_id)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def left(self) -> Sequence[str]:
        """What our drones still use of the cloud, or of this host."""
        drones = [each["id"] for each in self.controller.drones()]
        return [f"{each} of {drone}" for drone in drones for each in left_of(self.cloud, drone)]

    def nothing_left(self) -> None:
        """No server, port, volume, process or live record of a drone."""
        until(lambda: not self.servers(), 90, what="no server of ours", every_s=0.5)
        until(lambda: not self.controller.processes(), 60, what="no process of a drone", every_s=0.5)
        until(lambda: not self.controller.live(), 60, what="no drone on record that lives", every_s=0.5)
        until(lambda: not self.left(), 30, what="nothing of any drone", every_s=0.5)

    def story(self) -> str:
        """Everything there is to tell, for a failing test."""
        told = self.controller.told()
        with suppress(LabError, OSError, subprocess.SubprocessError):
            for server in self.servers()[:4]:
                said = self.cloud.console(server["id"])[-3000:]
                told.append(f"--- {server['name']}: {server['status']} {server.get('fault', '')}\n{said}")
            told.append(f"--- nova\n{self.cloud.log('nova', 20)}")
            told.append(self.overlay.run("condor_q", "-allusers", "-totals", timeout_s=10))
        return "\n".join(told)


@contextmanager
def gridka(condor: Condor, cloud: OpenStackLab, **site: Any) -> Iterator[GridkaLab]:
    """An overlay of its own and a controller before a cloud that others may use after us. ``site``: fields of
    :class:`GridkaSite`."""
    with running_pool(condor) as overlay, lab_directory("controller") as directory:
        here = GridkaSite(cloud, **site)
        controller = LabController(overlay, directory / "c", sites=(here,))
        lab = GridkaLab(overlay, cloud, controller, here)
        try:
            yield lab
        except BaseException:
            print(lab.story())
            raise
        finally:
            controller.stop()
            with suppress(LabError):
                cloud.reset()
            controller.clean_up()
