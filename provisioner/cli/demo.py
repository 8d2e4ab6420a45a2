"""``provisioner demo``: the real controller on this host, jobs to run, drones that come and go, nothing left behind."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from provisioner.cli.exits import Exit, Failure

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def demo(
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="PATH", help="Play here, in an empty directory, and leave the record behind."),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines instead of a moving picture, as without a terminal.")
    ] = False,
) -> None:
    """Watch 40 GPU jobs become drones on this host: no root, no GPU and no HTCondor needed.

    The controller itself runs, with a queue in a file as its pool and this host as its site, with GPUs that it only
    pretends to have. Jobs of three shapes wait; one shape fits no drone type. Drones start, run the jobs and leave.

    \b
    Examples:
      provisioner demo
      provisioner demo --dir /tmp/demo && provisioner drones --all -c /tmp/demo/provisioner.yaml
    """
    from provisioner.cli.demo_play import play, stage
    from provisioner.cli.demo_show import for_terminal

    asked = _asked_to_end()
    show = for_terminal(plain=plain)
    try:
        with stage(directory) as there, asyncio.Runner() as turn:
            outcome = play(there, show, turn, asked)
            show.summary(outcome)
    except KeyboardInterrupt:
        raise Failure("stopped; the controller, its drones and their jobs are gone", code=Exit.INTERRUPTED) from None
    if not outcome.good:
        raise Failure(*outcome.faults)


def _asked_to_end() -> threading.Event:
    """Set once a closed terminal, a polite kill or Ctrl-C asks the demo to end, whatever the shell has made of SIGINT.

    The play looks at it between two scenes. An exception raised here could come up inside anything, and where that is
    an ``exec`` of a text (a dataclass being made), CPython 3.11 ends by the signal though the exception was handled.
    Who asks twice will not wait for the next scene.
    """
    asked = threading.Event()

    def end(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    return asked
