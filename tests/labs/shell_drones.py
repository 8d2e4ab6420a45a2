"""Parts of a ``SiteWorld`` that labs share: drones as shell scripts that need no pool, and faults of daemons."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

from provisioner.adapter_tests import NotSupportedError
from provisioner.model import Bootstrap, OrderOutcome, StartOrder


def unsupported(reason: str) -> Callable[..., Any]:
    """A hook of a world that cannot cause a fault."""

    def hook(*_: object) -> Any:
        raise NotSupportedError(reason)

    return hook


@asynccontextmanager
async def hanging(send: Callable[[str, signal.Signals], None], daemon: str) -> AsyncIterator[None]:
    """Let a daemon hang for a while."""
    send(daemon, signal.SIGSTOP)
    try:
        yield
    finally:
        send(daemon, signal.SIGCONT)


class ShellDrones:
    """A part of a ``SiteWorld``."""

    site: Callable[..., Any]

    async def start_unseen(self, order: StartOrder) -> None:
        async with self.site() as member:
            with self.unseeing(member):
                [result] = await member.start([order])
        assert result.answer is OrderOutcome.OK, result.fault

    def unseeing(self, member: Any) -> AbstractContextManager[object]:
        """Hide the drones that are there from what a start looks at. By default the site gives each name once."""
        return nullcontext()

    def living(self) -> Bootstrap:
        return Bootstrap(
            b"#!/bin/sh\nexec sleep 1000\n", {"TOLD": 'it\'s $HOME, "quoted"'}, {"token": b"secret"}
        )

    def stubborn(self) -> Bootstrap:
        return Bootstrap(
            b"#!/bin/sh\ntrap '' TERM INT HUP\nsleep 1000 &\nsetsid sleep 1000 &\nsetsid sh -c 'sleep 1000; :' &\n"
            b"while :; do sleep 1000; done\n"
        )

    def exiting(self, code: int) -> Bootstrap:
        return Bootstrap(f"#!/bin/sh\necho it leaves with {code}\nexit {code}\n".encode())
