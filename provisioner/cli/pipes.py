"""Closed pipes and sockets in verbs that speak to other processes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closed_pipes_raise() -> Iterator[None]:
    """Let a write to a closed pipe or socket raise ``BrokenPipeError`` instead of ending the process.

    A command line ends by SIGPIPE when the reader of its output goes away. A process with other
    connections must not: each client of the web service could end it by leaving early.
    """
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGPIPE, before)
