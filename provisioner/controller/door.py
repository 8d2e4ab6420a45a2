"""The door of a site adapter: it is opened by whoever looks first, and again and again while that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from provisioner.interfaces import Site, SupportsConsoleOutput, UnavailableError
from provisioner.model import DroneId, OrderResult, SiteView, StartOrder, StopOrder


@dataclass(slots=True, eq=False)
class Door:
    """A :class:`~provisioner.interfaces.Site` that may not be entered yet: one that is down when the controller
    starts must
    not keep the controller from the others."""

    site: Site
    _stack: AsyncExitStack | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def open(self) -> None:
        """Enter the adapter. Raises what it raises; the next call tries again."""
        async with self._opening:
            if self._stack is None:
                stack = AsyncExitStack()
                await stack.enter_async_context(self.site)
                self._stack = stack

    async def close(self) -> None:
        """Leave the adapter."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    async def poll(self) -> SiteView:
        await self.open()
        return await self.site.poll()

    async def start(self, orders: Sequence[StartOrder]) -> Sequence[OrderResult]:
        self._must_be_open()
        return await self.site.start(orders)

    async def stop(self, orders: Sequence[StopOrder]) -> Sequence[OrderResult]:
        self._must_be_open()
        return await self.site.stop(orders)

    def last_words(self) -> Mapping[DroneId, str]:
        return self.site.last_words() if isinstance(self.site, SupportsConsoleOutput) else {}

    def _must_be_open(self) -> None:
        if self._stack is None:
            raise UnavailableError("it could not be connected yet")

    async def __aenter__(self) -> Door:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
