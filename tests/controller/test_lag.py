"""The loop's own lag is seen."""

from __future__ import annotations

import asyncio
import time

from provisioner.controller.clock import LagProbe


async def test_a_blocking_call_is_noticed() -> None:
    probe = LagProbe()
    task = asyncio.create_task(probe.run())
    await asyncio.sleep(0.01)
    time.sleep(0.3)  # noqa: ASYNC251  # the very thing that must not happen
    await asyncio.sleep(0.06)
    task.cancel()
    assert probe.worst_s > 0.15
