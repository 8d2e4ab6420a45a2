"""Messages to systemd, if it started this process: ready, alive, reloading, stopping (sd_notify(3))."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress


def notify(state: str) -> None:
    """Send a state. Never waits, and never raises."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith("@"):  # an abstract socket
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(state.encode(), address)


async def heartbeat(is_alive: Callable[[], bool] = lambda: True) -> None:
    """Send a heart-beat three times in each ``WatchdogSec``, while ``is_alive``. Without a watchdog return at once."""
    period_s = int(os.environ.get("WATCHDOG_USEC", "0")) / 3e6
    while period_s:
        if is_alive():
            notify("WATCHDOG=1")
        await asyncio.sleep(period_s)
