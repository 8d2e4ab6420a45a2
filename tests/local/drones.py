"""Scripts for drones of the local site, and eyes on their processes that do not use the adapter."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from adapters.local import LocalSiteConfig
from provisioner.model import Bootstrap, DroneType

HERE = "here"
SMALL = DroneType(HERE, "small", gpu_milli=1000, cpus=2, memory_mib=1024, disk_mib=10, vram_mib=40960, capability=80)
SHARE = DroneType(HERE, "share", gpu_milli=200, cpus=1, memory_mib=100, disk_mib=0)
CPU = DroneType(HERE, "cpu", gpu_milli=0, cpus=3, memory_mib=1024, disk_mib=10)
HUGE = DroneType(HERE, "huge", gpu_milli=9000, cpus=2, memory_mib=1024, disk_mib=10)

LIVING = Bootstrap(b"#!/bin/sh\nexec sleep 1000\n")
STUBBORN = Bootstrap(
    b"#!/bin/sh\ntrap '' TERM INT HUP\nsleep 1000 &\nsetsid sleep 1000 &\nsetsid sh -c 'sleep 1000; :' &\n"
    b"touch ready\nwhile :; do sleep 1000; done\n"
)


def exiting(code: int) -> Bootstrap:
    return Bootstrap(f"#!/bin/sh\necho it leaves with {code}\nexit {code}\n".encode())


def config(root: Path, **others: object) -> LocalSiteConfig:
    """A declared host of four GPUs."""
    declared: dict[str, object] = {"gpus": [{"count": 4, "vram": "40 GiB", "capability": 8.0}], "cpus": 8}
    return LocalSiteConfig.model_validate({"root": str(root), "memory": "8 GiB", "disk": "1 GiB", **declared, **others})


def all_tagged(prefix: str) -> Mapping[int, str]:
    """Every process with a tag that begins so: pid and drone id."""
    found = {}
    mark = f"\0PROVISIONER_DRONE_ID={prefix}".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if mark in environ:
            rest = environ.split(b"\0PROVISIONER_DRONE_ID=", 1)[1]
            found[int(pid)] = rest.split(b"\0", 1)[0].decode()
    return found


def tagged(drone_id: str, name: str = "") -> list[int]:
    """Return pids of living processes that carry the drone's tag (and have this name in their command line)."""
    return [pid for pid, tag in all_tagged(drone_id).items() if tag == drone_id and name in _command(pid)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def end_all_tagged(prefix: str) -> Mapping[int, str]:
    """What a story left behind, killed; a launcher that has written down the end needs an instant to go."""
    for _ in range(100):
        if not all_tagged(prefix):
            return {}
        time.sleep(0.05)
    left = all_tagged(prefix)
    kill_all(list(left))
    return left


def launchers(drone_id: str) -> list[int]:
    """Launchers of a drone that run now: more than one would be a duplicate."""
    return [pid for pid in tagged(drone_id, "launcher.sh") if _parent_of_script(pid, drone_id)]


def _parent_of_script(pid: int, drone_id: str) -> bool:
    """A launcher's subshells have its command line as well, but it is its own session's leader."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def kill_all(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it went by itself
