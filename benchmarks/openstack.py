"""One look at an OpenStack site with 50 and with 500 drones' servers: calls, processor time, and how they grow.

The adapter as shipped, before a cloud in a thread that speaks as Nova does (tests/openstack/fake_openstack.py); only
the adapter's own thread is measured. Servers have come up a minute apart.

    openstack.py
"""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from adapters.openstack import OpenStackSite
from adapters.openstack.registry import ServerNames
from adapters.openstack.settings import OpenStackSiteConfig
from benchmarks.cost import Figure, tell
from provisioner.model import DroneId, DroneType
from tests.openstack.fake_openstack import FakeCloud, running

FEW, MANY = 50, 500
LOOKS = 20
US, HERE = "bench", "cloud"
GPU = DroneType(
    HERE,
    "h100",
    gpu_milli=1000,
    cpus=8,
    memory_mib=16384,
    disk_mib=10240,
    vram_mib=81920,
    gpu_model="H100",
    capability=90,
    walltime_s=3600.0,
)


@dataclass(frozen=True, slots=True)
class Look:
    """What one look took."""

    calls: float
    cpu_s: float


def add_server(cloud: FakeCloud, number: int, at: datetime) -> None:
    """One as Nova 34 tells it, with all fields that it has for a project's user."""
    drone_id, names = DroneId(f"{US}-a1b2-{number}"), ServerNames(US, HERE)
    told = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    address = {
        "version": 4,
        "addr": f"10.0.{number // 250}.{number % 250}",
        "OS-EXT-IPS:type": "fixed",
    }
    cloud.add(
        drone_id,
        metadata=dict(names.metadata(drone_id, GPU.name)),
        tags=names.tags(drone_id),
        created=told,
        updated=told,
        hostId=f"{number % 25:056x}",
        user_id="3440e6de2d8a4ac0adb94520d4deec0e",
        image={
            "id": "c0ffee00-0000-4000-8000-000000000000",
            "links": [{"rel": "bookmark", "href": f"{cloud.url}/i"}],
        },
        flavor={
            "original_name": "gpu.h100",
            "vcpus": 16,
            "ram": 65536,
            "disk": 80,
            "ephemeral": 0,
            "swap": 0,
            "extra_specs": {"pci_passthrough:alias": "h100:1"},
        },
        addresses={"drones": [{**address, "OS-EXT-IPS-MAC:mac_addr": "fa:16:3e:00:00:00"}]},
        key_name=None,
        links=[
            {"rel": "self", "href": f"{cloud.url}/s"},
            {"rel": "bookmark", "href": f"{cloud.url}/s"},
        ],
        security_groups=[{"name": "gpu-drones"}],
        **{
            "OS-EXT-STS:vm_state": "active",
            "OS-SRV-USG:launched_at": at.strftime("%Y-%m-%dT%H:%M:%S.000000"),
            "OS-SRV-USG:terminated_at": None,
            "os-extended-volumes:volumes_attached": [],
            "OS-EXT-AZ:availability_zone": "nova",
            "OS-DCF:diskConfig": "MANUAL",
            "accessIPv4": "",
            "accessIPv6": "",
            "config_drive": "",
            "progress": 0,
            "description": None,
            "locked": False,
            "trusted_image_certificates": None,
        },
    )


@contextmanager
def cloud_of(servers: int) -> Iterator[FakeCloud]:
    """In a thread of its own."""
    cloud = FakeCloud(quota=10_000)
    up, over = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with running(cloud):
            up.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), name="cloud")
    thread.start()
    up.wait()
    try:
        now = datetime.now(UTC)
        for number in range(servers):
            add_server(cloud, number + 1, now - timedelta(minutes=servers - number))
        yield cloud
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


async def looks(cloud: FakeCloud, servers: int) -> Look:
    """The mean of some, after the first."""
    config = OpenStackSiteConfig.model_validate(
        {
            "auth": {
                "url": f"{cloud.url}/identity",
                "application_credential_id": "abc",
                "application_credential_secret": {"env": "CLOUD_SECRET"},
            },
            "image": "drone",
            "types": {GPU.name: {"flavor": "gpu.h100"}},
        }
    )
    seconds = []
    async with OpenStackSite(HERE, config, [GPU], US) as site:
        await site.poll()
        asked = len(cloud.asked)
        for _ in range(LOOKS):
            begin = time.thread_time()
            view = await site.poll()
            seconds.append(time.thread_time() - begin)
            assert len(view.drones) == servers, f"{len(view.drones)} of {servers} drones seen"
        return Look((len(cloud.asked) - asked) / LOOKS, statistics.median(seconds))


def measured(servers: int) -> Look:
    with cloud_of(servers) as cloud:
        return asyncio.run(looks(cloud, servers))


def main() -> None:
    os.environ["CLOUD_SECRET"] = "s3cret"
    few, many = measured(FEW), measured(MANY)
    tell(
        Figure(
            f"one look at an OpenStack site with {MANY} servers: processor time", many.cpu_s, "s"
        ),
        Figure("  calls", many.calls, "", "3"),
        Figure(f"  calls, to those with {FEW} servers", many.calls / few.calls, "times", "1"),
        Figure(f"  processor time, to that with {FEW} servers", many.cpu_s / few.cpu_s, "times"),
    )


if __name__ == "__main__":
    main()
