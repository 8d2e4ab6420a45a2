"""Progress of replays on stderr: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from provisioner import formatting

if TYPE_CHECKING:
    from provisioner.simulator.replay import Turn

Tell = Callable[["Turn", float], None]


LINE_EVERY_S = 30.0
"""Pause between two lines of progress where stderr is no terminal."""


@contextmanager
def progress(turns: int, span_s: float, *, color: bool, clock: Callable[[], float] = time.monotonic) -> Iterator[Tell]:
    """Yield a listener that reports how far each of ``turns`` replays of ``span_s`` is, by simulated time.

    A bar on a terminal, elsewhere a line now and then.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, no_color=not color or bool(os.environ.get("NO_COLOR")))
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    reached: dict[int, float] = {}
    days = span_s / 86400.0
    began = told = clock()

    with bar:
        task = bar.add_task(f"0 of {turns} replays done", total=turns)

        def tell(turn: Turn, at_s: float) -> None:
            nonlocal told
            reached[turn.number] = min(1.0, at_s / span_s) if span_s else 1.0
            done = sum(part >= 1.0 for part in reached.values())
            words = f"{done} of {turns} replays done, {sum(reached.values()) * days:.1f} of {turns * days:.1f} days"
            bar.update(task, completed=sum(reached.values()), description=words)
            if not sys.stderr.isatty() and clock() - told >= LINE_EVERY_S:
                told = clock()
                print(f"{words}{_left(told - began, sum(reached.values()), turns)}", file=sys.stderr, flush=True)

        yield tell


def _left(taken_s: float, done: float, of: int) -> str:
    """Return the time that the rest will take, if it goes on as it went."""
    return f", about {formatting.age(taken_s / done * (of - done))} left" if done else ""


@contextmanager
def interruptible() -> Iterator[None]:
    """A polite kill or a closed terminal ends the replays as Ctrl-C does, their processes included.

    A pool of processes that is given up may write to a pipe that it has closed itself, and expects an error from that;
    the SIGPIPE of a command line would end us at once.
    """

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGPIPE] = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
