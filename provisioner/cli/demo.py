"""``provisioner demo``: the real controller on this host, jobs to run, drones that come and go, nothing left behind."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated, NoReturn

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

    _end_on_signals()
    show = for_terminal(plain=plain)
    try:
        with stage(directory) as there, asyncio.Runner() as turn:
            outcome = play(there, show, turn)
            show.summary(outcome)
    except KeyboardInterrupt:
        raise Failure("stopped; the controller, its drones and their jobs are gone", code=Exit.INTERRUPTED) from None
    if not outcome.good:
        raise Failure(*outcome.faults)


def _end_on_signals() -> None:
    """A closed terminal or a polite kill ends the demo just as Ctrl-C does, whatever the shell has made of SIGINT."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
