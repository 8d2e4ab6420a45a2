"""Calls of adapters: with deadlines, with errors as data, and sites that need not be connected yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TypeVar

from provisioner.controller.sanitize import held
from provisioner.interfaces import AdapterError, Site, SupportsConsoleOutput, UnavailableError
from provisioner.model import DroneId, Fault, FaultKind, OrderResult, SiteView, StartOrder, StopOrder

T = TypeVar("T")


async def within(deadline_s: float, call: Awaitable[T]) -> T:
    """Return the answer of ``call``. Raises TimeoutError after ``deadline_s``, else what the adapter raises.

    It never raises a cancellation that the adapter caused: that would be taken for ours and end the controller.
    """
    try:
        async with asyncio.timeout(deadline_s):
            return await call
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("the adapter let a cancelled call through") from error


def fault_of(error: BaseException, at: float) -> Fault:
    """Return an error as data: adapter errors by their kind, a deadline as unavailable, all else as unknown."""
    match error:
        case AdapterError():
            return Fault(error.kind, held(str(error)) or type(error).__name__, at)
        case TimeoutError():
            return Fault(FaultKind.DOWN, "no answer within its deadline", at)
        case _:
            return Fault(FaultKind.UNKNOWN, held(f"{type(error).__name__}: {error}"), at)


@dataclass(slots=True, eq=False)
class LazySite:
    """A :class:`~provisioner.interfaces.Site` that is connected by the first poll that succeeds in it.

    A site that is down when the controller starts must not keep the controller from the others.
    """

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

    async def __aenter__(self) -> LazySite:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
