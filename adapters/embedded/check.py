"""The operator's check of a drone before it takes jobs, in a process of its own: one that hangs is a verdict too."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence

from adapters.embedded.attempt import prepare
from adapters.embedded.guard import Guard, kill_group

_FAILED = 71
_HUNG = 72


def check(argv: Sequence[str], guard: Guard, deadline_s: float, pause: Callable[[], None]) -> tuple[int, str] | None:
    """The exit status that the drone must leave with, and why; None if all is well. ``pause`` is called meanwhile."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=lambda: prepare(guard)
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return _FAILED, f"GPU check cannot be run: {error}"
    give_up_at = time.monotonic() + deadline_s
    try:
        while process.poll() is None:
            if time.monotonic() > give_up_at:
                return _HUNG, f"GPU check hung: no answer within {deadline_s:g} s"
            pause()
    finally:
        kill_group(process.pid)
        guard.only(())
    return (_FAILED, f"GPU check failed with status {process.returncode}") if process.returncode else None
