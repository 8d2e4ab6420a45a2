"""A small process beside the worker that ends its jobs when the worker cannot: the fence behind the leases.

It is told the process groups of the jobs and until when the leases hold. When the worker dies, or is stopped for so
long that the leases run out, it kills the groups: then no job runs twice at once, however its drone came to grief.

One line each over a pipe: ``+PGID`` a job begins, ``*PGID,PGID`` these are all there are, ``=SECONDS`` leases hold
until then (monotonic clock).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable
from typing import NoReturn

from adapters.embedded.table import lease_clock


class Guard:
    """The worker's end of the pipe. Make it before anything is opened that must not be shared with a child."""

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._writer)
            _watch(reader)
        os.close(reader)

    def begin_here(self) -> None:
        """Called in the job's own process before it executes anything: it is guarded before it can do anything."""
        self._tell(f"+{os.getpid()}")

    def only(self, groups: Iterable[int]) -> None:
        """Forget all others: their numbers may soon be somebody else's."""
        self._tell("*" + ",".join(map(str, groups)))

    def hold_until(self, lease_until: float) -> None:
        self._tell(f"={lease_until!r}")

    def close(self) -> None:
        os.close(self._writer)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # the guard was killed: then so are we, by the same hand
            os.write(self._writer, f"{line}\n".encode())


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _watch(reader: int) -> NoReturn:
    groups: set[int] = set()
    until, rest = float("inf"), b""
    while True:
        wait_s = None if until == float("inf") or not groups else max(0.0, until - lease_clock())
        if not select.select([reader], [], [], wait_s)[0]:
            for group in groups:
                kill_group(group)
            until = float("inf")
            continue
        received = os.read(reader, 65536)
        if not received:
            for group in groups:
                kill_group(group)
            os._exit(0)
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            match line[:1]:
                case b"+":
                    groups.add(int(line[1:]))
                case b"*":
                    groups = {int(group) for group in line[1:].split(b",") if group}
                case b"=":
                    until = float(line[1:])
