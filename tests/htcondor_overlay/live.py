"""An overlay adapter on one of the lab's pools, as an operator would configure it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from adapters.htcondor.overlay import HTCondorConfig, HTCondorOverlay
from provisioner.model import DroneType, JobClass, OverlayView
from tests.labs.htcondor import Pool

CLIENT = """
NETWORK_INTERFACE = 127.0.0.1
BIND_ALL_INTERFACES = False
ENABLE_IPV6 = False
NO_DNS = True
DEFAULT_DOMAIN_NAME = test
"""

A100 = DroneType(
    site="lab",
    name="a100",
    gpu_milli=1000,
    cpus=2,
    memory_mib=512,
    disk_mib=1024,
    vram_mib=40536,
    gpu_model="A100-SXM4-40GB",
    capability=80,
    walltime_s=3600.0,
)
"""The drone that ``start_drone`` starts."""


def config(pool: Pool, identity: str = "admin", **more: Any) -> HTCondorConfig:
    clients = pool.dir / "clients"
    return HTCondorConfig.model_validate(
        {
            "collector": pool.collector,
            "trust_domain": pool.domain,
            "token": {"file": str(clients / identity / "tokens" / identity)},
            "drone_token": {"file": str(clients / "drone" / "tokens" / "drone")},
            "client_config": CLIENT,
            "drain_tool": str(pool.condor.prefix / "usr/bin/condor_drain"),
            **more,
        }
    )


@contextlib.asynccontextmanager
async def overlay_on(pool: Pool, identity: str = "admin", **more: Any) -> AsyncIterator[HTCondorOverlay]:
    async with HTCondorOverlay(config(pool, identity, **more), "kit") as overlay:
        yield overlay


def classes_of(view: OverlayView, owner: str = "alice") -> list[JobClass]:
    return [each for each in view.classes if each.owner == owner]
