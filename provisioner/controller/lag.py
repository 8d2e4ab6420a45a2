"""How long the event loop is held up: what must never happen when a service that we ask is silent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

log = structlog.get_logger()

STEP_S = 0.05
WORTH_TELLING_S = 0.1


@dataclass(slots=True)
class LagProbe:
    """Sleeps in small steps and notes by how much each took longer. ``worst_s``: since it began."""

    worst_s: float = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(STEP_S)
            lag_s = loop.time() - began - STEP_S
            if lag_s > WORTH_TELLING_S:
                log.warning("loop.lagged", lag_ms=round(lag_s * 1000))
            self.worst_s = max(self.worst_s, lag_s)
