"""The controller as a process: its signals, and what it runs as."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from provisioner import systemd
from provisioner.config import load
from provisioner.controller_process import ControllerProcess

log = structlog.get_logger()

IGNORED_SIGNALS = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR")


async def run(
    path: Path, *, once: bool = False, root: Path | None = None, shadow: bool = False
) -> int:
    """Run the controller until SIGTERM or SIGINT; with ``once`` for a single tick. Return the exit code.

    At a second SIGTERM it does not wait for orders under way: 1. SIGHUP reads the configuration
    again. Drones outlive the controller: the next one takes them over.

    With ``ha`` in the configuration it stands by while another member leads.

    A ``shadow`` polls, decides and records, and gives no order: see
    :mod:`provisioner.controller.shadow`.

    ``root`` is the directory from which relative paths in the files start, where that is not the
    files' own directory. Raises ConfigError, StoreError (StoreHeldError: another controller runs),
    AdapterError (of the overlay, or of an adapter while it is built), AdapterBrokenError and
    AdapterUnknownError.
    """
    stop, hangup = _signals()
    try:
        async with AsyncExitStack() as stack:
            settings = await asyncio.to_thread(load, path, root=root)
            process = ControllerProcess(path, root, stop, hangup, once, shadow)
            if settings.ha is None or shadow:
                return await process.serve_alone(stack, settings)
            return await process.serve_as_member(stack, settings, settings.ha.lease)
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
        log.warning(
            "controller.aborted",
            drones="go on; what was asked for and not answered is settled by the next controller",
        )
        return 1


def _signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Return two events: a request to stop, and a request to read the configuration again.

    A second request to stop cancels this task; the third ends the process as it would end any.
    Signals that other programs send by habit, as tools that rotate logs do, are only logged: by
    default they would end the process.
    """
    stop = asyncio.Event()
    hangup = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def asked_to_stop(number: signal.Signals) -> None:
        if stop.is_set():
            loop.remove_signal_handler(number)
            task.cancel()
        stop.set()
        systemd.notify("STOPPING=1")

    def not_wanted(name: str) -> None:
        log.warning("signal.ignored", signal=name)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        loop.add_signal_handler(number, asked_to_stop, number)
    for name in IGNORED_SIGNALS:
        if ignored := getattr(signal, name, None):  # some systems lack some
            loop.add_signal_handler(ignored, not_wanted, name)
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    return stop, hangup
