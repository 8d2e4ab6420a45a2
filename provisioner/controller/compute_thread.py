"""A thread for work that takes long with many drones: sanitizing of views, planning, estimating."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class ComputeThread:
    """One thread beside the event loop, which serves owners, operators, signals and health checks meanwhile.

    It has a thread of its own, because all threads of :func:`asyncio.to_thread` may hang on a dead
    file system. The work gets values that nobody changes, or state that nothing else touches until
    the work is done. Without ``threaded`` it is done inline, for a loop on a virtual clock.
    """

    def __init__(self, threaded: bool) -> None:
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="compute") if threaded else None

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Return the result of ``work``. A cancelled caller does not wait for it."""
        if self._worker is None:
            return work(*args)
        return await asyncio.get_running_loop().run_in_executor(self._worker, work, *args)

    def close(self) -> None:
        """Let the thread end with what it is doing."""
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)
