"""Processes of this host: known by pid, start time and boot, and found by the tags in their environment.

A tag is a variable ``NAME=value`` in the environment that a process was executed with. It stays there
wherever the process goes (``proc(5)``, environ). Standard library only, for drones too.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Self

from provisioner.values import frozen

DRONE_TAG = "PROVISIONER_DRONE_ID"
"""Variable that every process of a drone carries."""
_KILL_ROUNDS = 50
_KILL_PAUSE_S = 0.02


@cache
def boot_id() -> str:
    """Return the mark of this boot of the host; empty if this is no Linux."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


@frozen
class Process:
    """One process of this boot, or of another; ``start`` is field 22 of ``/proc/<pid>/stat``, in clock ticks."""

    pid: int
    start: int
    boot: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``<pid> <start> <boot>``. Raises ValueError for anything else."""
        pid, start, boot = text.split()
        return cls(int(pid), int(start), boot)

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return the process with a number. Its start is -1 if it does not run."""
        return cls(pid, _start_and_session(pid)[0], boot_id())

    @classmethod
    def own(cls) -> Self:
        return cls.of(os.getpid())

    def __str__(self) -> str:
        return f"{self.pid} {self.start} {self.boot}"

    @property
    def alive(self) -> bool:
        """True while it runs; a zombie does not."""
        return (
            self.pid > 0
            and self.boot == boot_id()
            and _start_and_session(self.pid)[0] == self.start
        )

    @property
    def is_of_another_account(self) -> bool:
        """True while it runs under another account than this process."""
        return self.alive and Path(f"/proc/{self.pid}").stat().st_uid != os.geteuid()

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to exactly this process; False if it is gone."""
        return self.pid > 0 and _signal_if(self.pid, number, lambda pid: self.alive)


def end_tagged(tag: str) -> bool:
    """Kill the processes of this account that carry a tag, and those of their sessions.

    Return False if some stay.
    """
    for _ in range(_KILL_ROUNDS):
        found = tagged(tag)
        if not found:
            return True
        sessions = {_start_and_session(pid)[1] for pid in found} - {os.getsid(0), 0}

        def belongs(pid: int, sessions: set[int] = sessions) -> bool:
            return _has_tag(pid, tag) or _start_and_session(pid)[1] in sessions

        for pid in filter(belongs, _pids()):
            _signal_if(pid, signal.SIGKILL, belongs)
        time.sleep(_KILL_PAUSE_S)
    return False


def tagged(tag: str) -> list[int]:
    """Return the processes of this account that carry a tag."""
    return [pid for pid in _pids() if _has_tag(pid, tag)]


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _has_tag(pid: int, tag: str) -> bool:
    directory = Path(f"/proc/{pid}")
    try:
        variables = (directory / "environ").read_bytes().split(b"\0")
        return tag.encode() in variables and directory.stat().st_uid == os.geteuid()
    except OSError:  # gone, or made unreadable by a change of user: not ours then
        return False


def _signal_if(pid: int, number: signal.Signals, is_meant: Callable[[int], bool]) -> bool:
    # With a handle on it open, the pid cannot become another process's between the question and the
    # signal.
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


def _start_and_session(pid: int) -> tuple[int, int]:
    """Return fields 22 and 6 of ``/proc/<pid>/stat``; -1 as the start of what does not run, a zombie included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return -1, 0
    return -1 if fields[0] in (b"Z", b"X") else int(fields[19]), int(fields[3])
