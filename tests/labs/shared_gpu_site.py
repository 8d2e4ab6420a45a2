"""A site of one node with 8 simulated GPUs that drones share, and an HTCondor site adapter for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adapters.htcondor.site import HTCondorSiteConfig
from provisioner.model import DroneType
from tests.labs.htcondor import LOOPBACK, Condor, Pool, lab_directory, processes_with, until

HERE = "farm"
SITE = """
NUM_CPUS = 32
MEMORY = 65536
DISK = 100000000
USE FEATURE : GPUs
GPU_DISCOVERY_EXTRA = -extra -simulate:4,8
NUM_SLOTS_TYPE_1 = 1
SLOT_TYPE_1 = 100%
SLOT_TYPE_1_PARTITIONABLE = True
CLAIM_WORKLIFE = 0
RUNBENCHMARKS = False
UPDATE_INTERVAL = 2
STARTER_UPDATE_INTERVAL = 2
MACHINEMAXVACATETIME = 3
PERIODIC_EXPR_INTERVAL = 2
SUBMIT_REQUIREMENT_NAMES = Gpus
SUBMIT_REQUIREMENT_Gpus = (RequestGPUs ?: 0) <= 8
SUBMIT_REQUIREMENT_Gpus_REASON = "no node has more than 8 GPUs"
"""
A100 = DroneType(
    HERE,
    "a100",
    gpu_milli=1000,
    cpus=4,
    memory_mib=2048,
    disk_mib=10,
    vram_mib=40960,
    gpu_model="A100",
    capability=80,
    walltime_s=3600.0,
)
HUGE = DroneType(HERE, "huge", gpu_milli=9000, cpus=4, memory_mib=2048, disk_mib=10)


def site_config(pool: Pool, work: Path, **more: object) -> HTCondorSiteConfig:
    token = pool.dir / "clients" / "alice" / "tokens" / "alice"
    return HTCondorSiteConfig.model_validate(
        {
            "collector": pool.collector,
            "token": {"file": str(token)},
            "client_config": LOOPBACK,
            "work_directory": str(work),
            "deadline": "12s",
            **more,
        }
    )


@contextmanager
def farm_of(condor: Condor, more: str = "") -> Iterator[Pool]:
    """The pool, with its node; ``more`` configuration."""
    with lab_directory("farm") as root:
        pool = Pool(root, condor, "site", "COLLECTOR NEGOTIATOR SCHEDD STARTD", SITE + more)
        try:
            pool.start()
            until(lambda: pool.slots("GPUs >= 8"), 60, what="the node is in the pool")
            yield pool
        finally:
            pool.stop()


def clear(pool: Pool, controller: str) -> None:
    """End all drones of a controller, those too that are kept to be listed."""
    pool.empty("-constraint", "DroneId isnt undefined")
    until(lambda: not processes_with(f"PROVISIONER_DRONE_ID={controller}"), 30, what="no drone is left")
