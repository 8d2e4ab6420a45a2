"""Processes in ``/proc``: liveness, drones' tags, and signals that reach only the process meant.

A process is known by pid, start time and boot, never by pid alone. Every process of a drone carries
``PROVISIONER_DRONE_ID=<id>`` in the environment that it was executed with, wherever it went (``proc(5)``, environ).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self

TAG = "PROVISIONER_DRONE_ID"
_KILL_ROUNDS = 50
_KILL_PAUSE_S = 0.02


@cache
def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this boot, or of another; ``start`` is field 22 of ``/proc/<pid>/stat``, in clock ticks."""

    pid: int
    start: int
    boot: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``<pid> <start> <boot>``, as the launcher writes it. Raises ValueError for anything else."""
        pid, start, boot = text.split()
        return cls(int(pid), int(start), boot)

    @classmethod
    def own(cls) -> Self:
        return cls(os.getpid(), _start(os.getpid()), boot_id())

    def __str__(self) -> str:
        return f"{self.pid} {self.start} {self.boot}"

    @property
    def alive(self) -> bool:
        """True while it runs; a zombie does not."""
        return self.pid > 0 and self.boot == boot_id() and _start(self.pid) == self.start

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to exactly this process; False if it is gone."""
        return self.pid > 0 and _signal_if(self.pid, number, lambda pid: self.alive)


def _signal_if(pid: int, number: signal.Signals, is_meant: Callable[[int], bool]) -> bool:
    """Send a signal to ``pid`` if, with a handle on it open, it is the process that is meant; False if it is not."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if not is_meant(pid):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:  # it went by itself
        return False
    finally:
        os.close(handle)
    return True


def _fields(pid: int) -> list[bytes]:
    """Return fields 3 (state) and up of ``/proc/<pid>/stat``; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _start(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[19]) if fields and fields[0] not in (b"Z", b"X") else -1


def _session(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[3]) if fields else 0


def _has_tag(pid: int, drone_id: str) -> bool:
    """Return True for a living process of this user that carries the drone's id."""
    directory = Path(f"/proc/{pid}")
    try:
        variables = (directory / "environ").read_bytes().split(b"\0")
        return f"{TAG}={drone_id}".encode() in variables and directory.stat().st_uid == os.geteuid()
    except OSError:  # gone, or made unreadable by a change of user: not ours then
        return False


def kill_tagged(drone_id: str) -> bool:
    """Send SIGKILL to the processes of a drone and of its sessions until none is left; return False if some stay.

    A session with a tagged process in it belongs to the drone: its launcher starts one, and its jobs may.
    """
    for _ in range(_KILL_ROUNDS):
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        tagged = [pid for pid in pids if _has_tag(pid, drone_id)]
        if not tagged:
            return True
        sessions = {_session(pid) for pid in tagged} - {os.getsid(0), 0}

        def belongs(pid: int, sessions: set[int] = sessions) -> bool:
            return _has_tag(pid, drone_id) or _session(pid) in sessions

        for pid in filter(belongs, pids):
            _signal_if(pid, signal.SIGKILL, belongs)
        time.sleep(_KILL_PAUSE_S)
    return False
