"""One call across a seam: never longer than its deadline, and nothing comes out of it but an answer or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from provisioner.controller.border import held
from provisioner.interfaces import AdapterError
from provisioner.model import Fault, FaultKind

T = TypeVar("T")


async def within(deadline_s: float, call: Awaitable[T]) -> T:
    """The answer of ``call``. Raises TimeoutError after ``deadline_s``, else what the adapter raises; but never a
    cancellation of the adapter's own making: it would be taken for ours and end the service."""
    try:
        async with asyncio.timeout(deadline_s):
            return await call
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError("the adapter let a cancelled call through") from error


def fault_of(error: BaseException, at: float) -> Fault:
    """What went wrong, as data: the four errors by their kind, a deadline as a silence, all else as unknown."""
    match error:
        case AdapterError():
            return Fault(error.kind, held(str(error)) or type(error).__name__, at)
        case TimeoutError():
            return Fault(FaultKind.DOWN, "no answer within its deadline", at)
        case _:
            return Fault(FaultKind.UNKNOWN, held(f"{type(error).__name__}: {error}"), at)
