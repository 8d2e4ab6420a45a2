"""Waiting for something that must become true, with a deadline that only a broken adapter reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(what: str, ask: Callable[[], Awaitable[T | None]], deadline_s: float, every_s: float = 0.05) -> T:
    """The first answer of ``ask`` that is neither None nor False. AssertionError, naming ``what``, at the deadline."""
    answer: T | None = None
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                answer = await ask()
                if answer is not None and answer is not False:
                    return answer
                await asyncio.sleep(every_s)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s:g} s: {what}") from None
