"""A site on the lab's cloud, and a look at its drones past the adapter."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
)
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch
from urllib.parse import urlencode

from adapters.openstack import OpenStackSite, creation
from adapters.openstack.settings import OpenStackSiteConfig
from provisioner.model import DroneId, DroneType
from tests.labs.htcondor import processes_of
from tests.labs.openstack import OWNER, TENANT, OpenStackLab
from tests.labs.shell_drones import ShellDrones

HERE = "gk"
CPUS = DroneType(
    HERE, "cpus", gpu_milli=0, cpus=8, memory_mib=16384, disk_mib=10240, walltime_s=3600.0
)
H100 = replace(CPUS, name="h100", gpu_milli=1000, vram_mib=81920, gpu_model="H100", capability=90)
VGPU = replace(H100, name="vgpu", vram_mib=20480)
HUGE = replace(CPUS, name="huge", gpu_milli=9000)
TYPES: Mapping[str, Mapping[str, Any]] = {
    "h100": {"flavor": "gpu.h100.pci", "boot_volume": {"size": "20 GiB"}},
    "vgpu": {"flavor": "gpu.h100.vgpu"},
    "huge": {"flavor": "gpu.h100.9"},
}
"""By drone type: one boots from a volume, one from the image, and one is of a flavour that the cloud does not have."""
HOSTS = (
    {
        "names": ["gpu01", "gpu02"],
        "types": ["vgpu"],
        "gpus": 4,
        "cpus": 64,
        "memory": "512 GiB",
        "disk": "4000 GiB",
    },
)
"""What the lab's operator tells of its hosts, with the virtual GPUs alone: a host has GPUs of one kind here."""
_JSON = {"Content-Type": "application/json"}
_OVER = ("SHUTOFF", "ERROR", "SUSPENDED", "SHELVED", "SHELVED_OFFLOADED", "DELETED", "SOFT_DELETED")


def clouds_file(lab: OpenStackLab, directory: Path) -> Path:
    """A clouds.yaml with an entry for each of the two projects, named like it."""
    file = directory / "clouds.yaml"
    file.touch(mode=0o600)
    clouds = {project: lab.credential(project).cloud for project in (TENANT, OWNER)}
    file.write_text(json.dumps({"clouds": clouds}, indent=2))  # JSON is YAML
    return file


def access(lab: OpenStackLab, directory: Path, project: str = TENANT) -> Mapping[str, Any]:
    """How the settings say who we are."""
    return {"cloud": project, "clouds_file": str(clouds_file(lab, directory))}


def site_config(lab: OpenStackLab, work: Path, **more: Any) -> OpenStackSiteConfig:
    options = {
        "image": "worker",
        "networks": ["drones"],
        "types": TYPES,
        "deadline": "20s",
        "create_deadline": "20s",
    }
    return OpenStackSiteConfig.model_validate({**access(lab, work), **options, **more})


class OpenStackWorld(ShellDrones):
    """The contract's view of it."""

    kind: DroneType = H100
    impossible: DroneType = HUGE
    grace_s = 2.0
    longest_wait_s = 180.0
    reports_free = False
    reports_exit_codes = True

    def __init__(self, lab: OpenStackLab, work: Path, controller: str, **options: Any) -> None:
        self.lab, self.controller = lab, controller
        self.config = site_config(lab, work, **options)

    def site(self, controller: str | None = None) -> OpenStackSite:
        return OpenStackSite(HERE, self.config, [H100, VGPU, HUGE], controller or self.controller)

    def unseeing(self, member: Any) -> AbstractContextManager[object]:
        return patch.object(creation, "servers_of", AsyncMock(return_value={}))

    async def alive(self, drone_id: DroneId) -> int:
        servers = await asyncio.to_thread(servers_named, self.lab, drone_id)
        return len([each for each in servers if each["status"] not in _OVER])

    async def anything_left(self, drone_id: DroneId) -> bool:
        return bool(await asyncio.to_thread(left_of, self.lab, drone_id))

    @asynccontextmanager
    async def broken(self) -> AsyncIterator[None]:
        """Nova cuts connections, the others are overloaded."""
        with ExitStack() as faults:
            for name, front in self.lab.fronts.items():
                how: Mapping[str, Any] = {"cut": "before"} if name == "nova" else {"status": 503}
                faults.enter_context(front.failing(**how))
            yield

    @asynccontextmanager
    async def _nova(self, **how: Any) -> AsyncIterator[None]:
        with self.lab.nova.failing(**how):
            yield

    def lost_replies(self) -> AbstractAsyncContextManager[None]:
        return self._nova(method="POST", path="/servers$", cut="after")

    def pages(self) -> AbstractAsyncContextManager[None]:
        return self._nova(method="GET", path="/servers/detail", page=1)

    def cut_listings(self) -> AbstractAsyncContextManager[None]:
        return self._nova(method="GET", path="/servers", half=True)

    def refused_starts(self) -> AbstractAsyncContextManager[None]:
        words = {
            "forbidden": {
                "code": 403,
                "message": "Quota exceeded for instances: Requested 1, but already used 4",
            }
        }
        return self._nova(
            method="POST", path="/servers$", status=403, body=json.dumps(words), headers=_JSON
        )

    def refused_stops(self, status: int) -> AbstractAsyncContextManager[None]:
        words = {"computeFault": {"code": status, "message": "not now"}}
        path = r"/servers/[^/]+(/action)?$"
        return self._nova(
            method="DELETE|POST", path=path, status=status, body=json.dumps(words), headers=_JSON
        )

    def forgetful_site(self) -> OpenStackSite:
        return self.site()  # Nova keeps what is deleted

    async def objects(self, drone_id: DroneId) -> Sequence[str]:
        return await asyncio.to_thread(left_of, self.lab, drone_id)


def servers_named(
    lab: OpenStackLab, drone_id: str, *, deleted: bool = False
) -> list[dict[str, Any]]:
    """All servers of a drone as the admin sees them."""
    query = {
        "all_tenants": "1",
        "name": f"^{re.escape(drone_id)}$",
        **({"deleted": "true"} if deleted else {}),
    }
    found: list[dict[str, Any]] = lab.admin("GET", f"nova:/servers/detail?{urlencode(query)}")[
        "servers"
    ]
    return found


def left_of(lab: OpenStackLab, drone_id: str) -> list[str]:
    """Return all of a drone that uses anything: servers in any state, their parts, and processes.

    A volume that is attached to nothing may have been its own."""
    there = [each["id"] for each in servers_named(lab, drone_id)]
    once = {each["id"] for each in servers_named(lab, drone_id, deleted=True)} | set(there)
    ports = lab.admin("GET", "neutron:/ports")["ports"]
    volumes = lab.disks()
    held = [{attached["server_id"] for attached in volume["attachments"]} for volume in volumes]
    return [
        *(f"server {each}" for each in there),
        *(f"port {port['id']}" for port in ports if port["device_id"] in once),
        *(
            f"volume {volume['id']}"
            for volume, by in zip(volumes, held, strict=True)
            if not by - once
        ),
        *(f"process {pid}" for server in once for pid in lab.guest(server)),
        *(f"process {pid}" for pid in processes_of(drone_id)),
    ]
