"""``provisioner run`` and ``reload``: the controller itself, and taking over a changed configuration."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import time
from pathlib import Path
from typing import Annotated

import typer

from provisioner import formatting
from provisioner.answers.errors import Exit, UnmetError, VerbError, reported
from provisioner.answers.events import NO_LIMIT
from provisioner.cli import options as opt
from provisioner.cli.output import note
from provisioner.cli.pipes import closed_pipes_raise
from provisioner.logs import LogFormat, LogLevel, log_to_stderr
from provisioner.store.lock import process_of
from provisioner.store.reader import Reader

LogForm = Annotated[
    LogFormat | None,
    opt.switch(
        "Format of the log lines; default: journal under systemd, else console.", "--log-format"
    ),
]
LogFrom = Annotated[LogLevel, opt.switch("Lowest level that is logged.", "--log-level")]


def run(
    path: opt.ConfigArgument = None,
    config: opt.ConfigPath = None,
    once: Annotated[bool, opt.switch("Stop after a single tick.", "--once")] = False,
    shadow: Annotated[
        bool, opt.switch("Only observe and plan: start, drain and stop no drone.", "--shadow")
    ] = False,
    root: Annotated[
        Path | None,
        opt.option("DIR", "Base of relative paths; default: the directory of each file."),
    ] = None,
    log_format: LogForm = None,
    log_level: LogFrom = LogLevel.INFO,
) -> None:
    """Run the controller.

    SIGTERM or Ctrl-C ends it. Its drones keep running, and the next controller continues with them. Only one
    controller can hold a record; a second one refuses to start and names the first, or stands by with `ha`. SIGHUP or
    `provisioner reload` reads a changed configuration. Log lines go to stderr, under systemd with priorities for the
    journal. With --shadow it polls pool and sites beside another system and gives no orders; this needs a record of
    its own.

    \b
    Examples:
      provisioner run
      provisioner run /etc/provisioner/provisioner.yaml
      provisioner run --once
      provisioner run --shadow shadow.yaml
      provisioner run --log-format json --log-level warning
    """
    # Imports take a while. No file has been read yet, so that a request to read them again is met.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    faulthandler.enable(2)  # a watchdog's SIGABRT leaves the stacks of all threads in the log
    from provisioner import app as process
    from provisioner.interfaces import AdapterError
    from provisioner.loader import AdapterBrokenError, AdapterUnknownError

    config = opt.config_path(opt.Where(config=path or config))
    log_to_stderr(log_level, log_format)
    with closed_pipes_raise(), reported(AdapterError, AdapterBrokenError, AdapterUnknownError):
        code = asyncio.run(process.run(config, once=once, root=root, shadow=shadow))
    raise typer.Exit(code)


RELOAD_POLL_S = 0.1
RELOAD_REFUSED_EVENT = "config.rejected"
RELOAD_EVENTS = ("config.reloaded", RELOAD_REFUSED_EVENT)


@opt.shared
def reload(
    where: opt.Where,
    timeout: Annotated[
        float, opt.option("SECONDS", "Stop waiting after this time (exit 124).", min=0)
    ] = 60.0,
) -> None:
    """Make the controller read its configuration again.

    A valid change applies without the loss of a drone. The controller refuses an invalid one and keeps the old
    configuration (exit 3). Run this on the host of the controller, as its user or root. With --url the reload is only
    requested; `provisioner events` shows the outcome.

    \b
    Examples:
      provisioner reload --timeout 10 || echo "still the old configuration"
    """
    if where.url is not None:
        from provisioner.cli import remote

        remote.post(where, "/reload", reason="provisioner reload")
        return
    reader = opt.open_record(where)
    before = reader.position().event
    pid = _signal_controller(reader)
    deadline = time.monotonic() + timeout
    while not (
        found := [e for e in reader.events(after=before, limit=NO_LIMIT) if e.name in RELOAD_EVENTS]
    ):
        if reader.holder() is None:
            raise VerbError(f"the controller, process {pid}, has ended")
        if time.monotonic() >= deadline:
            raise VerbError(
                f"no answer from process {pid} after {formatting.age(timeout)}",
                code=Exit.TIMED_OUT,
            )
        time.sleep(RELOAD_POLL_S)
    event = found[0]
    lines = "\n".join(map(str, event.fields.values())).splitlines()
    if event.name == RELOAD_REFUSED_EVENT:
        refused = f"process {pid} refused the configuration and keeps the old one"
        raise UnmetError(refused, *lines)
    note(f"process {pid} uses the new configuration", *lines)


def _signal_controller(reader: Reader) -> int:
    holder = reader.holder()
    if holder is None:
        raise VerbError(
            "no controller runs; `provisioner run` reads the configuration when it starts"
        )
    if holder.host not in (socket.gethostname(), socket.getfqdn()):
        where = f"the controller runs on {holder.host}, this is {socket.gethostname()}"
        raise VerbError(f"{where}: run it there, or `kill -HUP {holder.pid}` there")
    if holder.process and holder.process != process_of(holder.pid):
        unseen = f"the controller, process {holder.pid}, is not visible from here"
        raise VerbError(
            f"{unseen}: run it in the container of the controller, or send SIGHUP to it there"
        )
    process = f"the controller, process {holder.pid}"
    try:
        os.kill(holder.pid, signal.SIGHUP)
    except PermissionError:
        here = f"{process}, belongs to another user: run this verb as that user or as root"
        raise VerbError(
            here, "operators use the web service: provisioner reload --url unix:PATH_OF_WEB_SOCK"
        ) from None
    except ProcessLookupError:
        raise VerbError(f"{process}, has just ended") from None
    return holder.pid
