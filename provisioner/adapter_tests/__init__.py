"""The contract suites of adapters, for authors in any repository: ``docs/how-to/add-a-site.md`` explains their use.

Subclass a suite in a test module and give it a ``world`` fixture::

    class TestMySite(SiteContract):
        @pytest.fixture
        def world(self, tmp_path: Path) -> SiteWorld: ...

Needs ``pytest`` and ``pytest-asyncio``, which the provisioner itself does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import pytest

from provisioner.interfaces import (
    AdapterError,
    AuthError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)

T = TypeVar("T")


class NotSupportedError(Exception):
    """A fault that a world cannot cause. The message is the reason of the skipped test."""


async def skip_unless_supported(hook: Callable[[], AbstractAsyncContextManager[None]]) -> None:
    """Skip the test if the world does not support ``hook``; call it before anything is started."""
    try:
        async with hook():
            pass
    except NotSupportedError as error:
        pytest.skip(str(error))


async def outcome(call: Awaitable[T]) -> T | AdapterError:
    """Return the result of a call, or its error, which has to be one of the four."""
    try:
        return await call
    except AdapterError as error:
        assert isinstance(error, UnavailableError | RejectedError | AuthError | OutcomeUnknownError)
        return error


async def eventually(
    what: str, ask: Callable[[], Awaitable[T | None]], deadline_s: float, every_s: float = 0.05
) -> T:
    """Return the first answer of ``ask`` that is neither None nor False. Raises AssertionError at the deadline."""
    try:
        async with asyncio.timeout(deadline_s):
            while True:
                answer = await ask()
                if answer is not None and answer is not False:
                    return answer
                await asyncio.sleep(every_s)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s:g} s: {what}") from None


for _suite in ("sites", "overlays"):
    pytest.register_assert_rewrite(f"{__name__}.{_suite}")

# Imported last: assertions are rewritten at import, and the suites use the functions above.
from provisioner.adapter_tests.overlays import OverlayContract, OverlayWorld  # noqa: E402
from provisioner.adapter_tests.sites import SiteContract, SiteWorld  # noqa: E402

__all__ = [
    "NotSupportedError",
    "OverlayContract",
    "OverlayWorld",
    "SiteContract",
    "SiteWorld",
    "eventually",
]
