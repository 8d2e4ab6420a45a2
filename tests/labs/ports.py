"""Ports for daemons of labs: no two processes of this host's tests are given the same one."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import cycle
from pathlib import Path

FIRST, LAST = 20000, 31999
"""Outside the range that the kernel hands to outgoing connections."""
BLOCK = 100


def free_port() -> int:
    """Return a port on which nobody listens, and which no other process of the tests is given.

    A lab's daemon binds its port seconds after it was chosen: one chosen by chance may be another's by then.
    """
    ports = _ports_of(os.getpid())
    while True:
        port = next(ports)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@cache
def _ports_of(_process: int) -> Iterator[int]:
    """Take the ports of a block that no other process has; they are this process's until it ends."""
    directory = Path(tempfile.gettempdir()) / f"provisioner-tests-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    for first in range(FIRST, LAST, BLOCK):
        file = os.open(directory / f"ports-{first}", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
        else:
            return cycle(range(first, first + BLOCK))
    raise RuntimeError(f"no block of ports is free: see the locks in {directory}")
