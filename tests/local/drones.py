"""Scripts for drones of the local site, and eyes on their processes that do not use the adapter."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from adapters.local import LocalSiteConfig
from provisioner.adapter_tests import eventually
from provisioner.model import Bootstrap, DroneType

HERE = "here"
SMALL = DroneType(
    HERE,
    "small",
    gpu_milli=1000,
    cpus=2,
    memory_mib=1024,
    disk_mib=10,
    vram_mib=40960,
    capability=80,
)
CPU = DroneType(HERE, "cpu", gpu_milli=0, cpus=3, memory_mib=1024, disk_mib=10)
HUGE = replace(SMALL, name="huge", gpu_milli=9000)
LIVING = Bootstrap(b"#!/bin/sh\nexec sleep 1000\n")
STUBBORN = Bootstrap(
    b"#!/bin/sh\ntrap '' TERM INT HUP\nsleep 1000 &\nsetsid sleep 1000 &\nsetsid sh -c 'sleep 1000; :' &\n"
    b"touch ready\nwhile :; do sleep 1000; done\n"
)


def config(root: Path, **others: object) -> LocalSiteConfig:
    """A declared host of four GPUs."""
    declared: dict[str, object] = {
        "gpus": [{"count": 4, "vram": "40 GiB", "capability": 8.0}],
        "cpus": 8,
    }
    return LocalSiteConfig.model_validate(
        {"root": str(root), "memory": "8 GiB", "disk": "1 GiB", **declared, **others}
    )


def all_tagged(prefix: str) -> Mapping[int, str]:
    """Every process with a tag that begins so: pid and drone id."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if variable.startswith(f"PROVISIONER_DRONE_ID={prefix}".encode()):
                    found[int(pid)] = variable.partition(b"=")[2].decode()
    return found


def tagged(drone_id: str, name: str = "") -> list[int]:
    """Return pids of living processes that carry the drone's tag (and have this name in their command line)."""
    found = []
    for pid, tag in all_tagged(drone_id).items():
        with suppress(OSError):
            command = (
                Path(f"/proc/{pid}/cmdline")
                .read_bytes()
                .replace(b"\0", b" ")
                .decode(errors="replace")
            )
            if tag == drone_id and name in command:
                found.append(pid)
    return found


def launchers(drone_id: str) -> list[int]:
    """Launchers of a drone that run now: more than one would be a duplicate."""
    found = []
    for pid in tagged(drone_id, "launcher.sh"):
        with suppress(ProcessLookupError):
            if os.getsid(pid) == pid:  # its subshells have its command line as well
                found.append(pid)
    return found


def end_all_tagged(prefix: str) -> Mapping[int, str]:
    """What a story left behind, killed; a launcher that has written down the end needs an instant to go."""
    for _ in range(100):
        if not all_tagged(prefix):
            return {}
        time.sleep(0.05)
    left = all_tagged(prefix)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return left


async def holds(what: str, so: Callable[[], bool]) -> None:
    """Wait until something is so."""

    async def ask() -> bool:
        return so()

    await eventually(what, ask, 60)
