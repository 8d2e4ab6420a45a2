"""``provisioner reload``: have the running controller take over a changed configuration, and say whether it did."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import Annotated

import typer

from provisioner import formatting
from provisioner.cli.events import all_events
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.options import ConfigArgument, Where, shared
from provisioner.cli.output import note
from provisioner.cli.where import open_record
from provisioner.store import Event, Reader
from provisioner.store.lock import process_of

app = typer.Typer(add_completion=False, rich_markup_mode=None)

POLL_S = 0.1
RELOADED, REFUSED = "config.reloaded", "config.rejected"


@app.command()
@shared
def reload(
    where: Where,
    path: ConfigArgument = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0, help="Give up after this; exit 124.")
    ] = 60.0,
) -> None:
    """Make the controller read its configuration anew.

    A valid change is applied without dropping a drone; an invalid one is refused and the old stays: exit 3. Run it
    on the host of the controller, as its user or root.

    \b
    Examples:
      provisioner reload
      provisioner check && provisioner reload
      provisioner reload --timeout 10 || echo "still the old configuration"
    """
    reader = open_record(Where(config=path) if path is not None else where)
    before = max((e.id for e in all_events(reader)), default=0)
    pid = _signal(reader)
    event = _outcome(reader, before, pid, timeout)
    if event.name == RELOADED:
        note(f"process {pid} took over the configuration", *_lines(event))
        return
    raise Failure(f"process {pid} refused the configuration and keeps the old one", *_lines(event), code=Exit.UNMET)


def _signal(reader: Reader) -> int:
    """SIGHUP to the holder, if it is a process of this host."""
    holder = reader.holder()
    if holder is None:
        raise Failure("no controller runs; `provisioner run` reads the configuration when it starts")
    if holder.host not in (socket.gethostname(), socket.getfqdn()):
        raise Failure(
            f"the controller runs on {holder.host}, this is {socket.gethostname()}: "
            f"run it there, or `kill -HUP {holder.pid}` there"
        )
    if holder.process and holder.process != process_of(holder.pid):
        raise Failure(
            f"the controller, process {holder.pid}, is no process that is seen from here: run it in the "
            f"container of the controller, or send SIGHUP to the controller there"
        )
    try:
        os.kill(holder.pid, signal.SIGHUP)
    except ProcessLookupError:
        raise Failure(f"the controller, process {holder.pid}, has just gone") from None
    except PermissionError:
        raise Failure(f"the controller, process {holder.pid}, belongs to another user") from None
    return holder.pid


def _outcome(reader: Reader, before: int, pid: int, timeout_s: float) -> Event:
    deadline = time.monotonic() + timeout_s
    while True:
        for event in all_events(reader, before):
            if event.name in (RELOADED, REFUSED):
                return event
        if reader.holder() is None:
            raise Failure(f"the controller, process {pid}, has ended")
        if time.monotonic() >= deadline:
            raise Failure(f"no answer from process {pid} after {formatting.age(timeout_s)}", code=Exit.TIMED_OUT)
        time.sleep(POLL_S)


def _lines(event: Event) -> list[str]:
    return [line for value in event.fields.values() for line in str(value).splitlines()]
