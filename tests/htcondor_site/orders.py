"""Orders for drones at a site called topas, and what becomes of them."""

from __future__ import annotations

from adapters.htcondor.site.settings import HTCondorSiteConfig
from adapters.htcondor.site.submission import SubmitDescription, batches
from provisioner.model import Bootstrap, DroneId, DroneType, StartOrder

CONTROLLER = "main"
A100 = DroneType(
    "topas", "a100", 1000, 8, 20480, 50000, 40960, "A100-SXM4-40GB", 80, 12040, walltime_s=86400.0
)
CPU = DroneType("topas", "cpu", gpu_milli=0, cpus=4, memory_mib=8000, disk_mib=100)
DRONE = Bootstrap(
    b"#!/bin/sh\n",
    {"DRONE_COLLECTOR": "pool:9618"},
    {"token": b"secret", "checks/disk.sh": b"exit 0"},
)


def order(serial: int, kind: DroneType = A100, bootstrap: Bootstrap | None = DRONE) -> StartOrder:
    return StartOrder(DroneId(f"{CONTROLLER}-ab12-{serial}"), kind, 600.0, 30.0, bootstrap)


def config(**more: object) -> HTCondorSiteConfig:
    return HTCondorSiteConfig.model_validate(
        {
            "collector": "condor.example.org:9618",
            "token": {"env": "T"},
            "work_directory": "/var/topas",
            **more,
        }
    )


def submitted(*orders: StartOrder, **more: object) -> list[SubmitDescription]:
    return list(batches(orders, config(**more), CONTROLLER))
