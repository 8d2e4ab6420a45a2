"""Processes that a demo's drones may have left: found by the drone's id that each carries, ended by process id."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from provisioner.store import Reader, StoreError


def left_behind(reader: Reader) -> list[str]:
    """Processes that still carry the id of a drone of this demo, as complaints."""
    return [f"process {pid} of drone {drone} is still there" for pid, drone in _processes(reader)]


def sweep(reader: Reader, patience_s: float = 3.0) -> None:
    """End every process of this demo's drones: asked first, then without mercy. Only after the controller has gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid, drone in _processes(reader):
            _signal(pid, drone, number)
        give_up = time.monotonic() + patience_s
        while _processes(reader) and time.monotonic() < give_up:
            time.sleep(0.1)


def _processes(reader: Reader) -> list[tuple[int, str]]:
    """This user's processes that carry the id of a drone on record, and that id."""
    try:
        ours = {str(drone.id) for drone in reader.drones(ended=None)}
    except StoreError:
        return []
    found = ((int(entry.name), _drone_of(int(entry.name))) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [(pid, drone) for pid, drone in found if drone in ours]


def _drone_of(pid: int) -> str:
    """The drone that a process belongs to; empty if none, if it is not ours to see, or if it has ended."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    mark = b"PROVISIONER_DRONE_ID="
    return next((e[len(mark) :].decode(errors="replace") for e in environment.split(b"\0") if e.startswith(mark)), "")


def _signal(pid: int, drone: str, number: signal.Signals) -> None:
    """Signal a process that is still the one that was found: its number may have gone to another meanwhile."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _drone_of(pid) == drone:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass  # it has ended: what was wanted
    finally:
        os.close(handle)
