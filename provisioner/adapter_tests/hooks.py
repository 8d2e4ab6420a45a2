"""Hooks of a world: faults that a lab can bring about, or says why it cannot."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest


class NotSupportedError(Exception):
    """A fault that a lab cannot bring about. The message is the reason for the skipped test."""


async def supported(hook: Callable[[], AbstractAsyncContextManager[None]]) -> None:
    """Skip the test if the world cannot do this; nothing has been started yet, so nothing is left behind."""
    try:
        async with hook():
            pass
    except NotSupportedError as error:
        pytest.skip(str(error))
