"""Draw docs/pictures/demo.svg: run the demo, keep one moment and the closing tables as a terminal shows them."""

from __future__ import annotations

import io
import re
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from provisioner.cli.demo import DemoView, demo_directory, run_demo, screen, step_cells, summary
from provisioner.model import DroneState

WIDTH = 118
MOMENT_S = 6.0
"""The moment that is kept."""


def main() -> None:
    frames: list[tuple[DemoView, list[Sequence[Text]]]] = []
    recent: deque[Sequence[Text]] = deque(maxlen=6)

    def keep(view: DemoView) -> None:
        recent.extend(
            step_cells(step, view) for step in view.news if step.state is not DroneState.SUBMITTED
        )
        frames.append((view, list(recent)))

    with demo_directory(None) as directory:
        view, faults = run_demo(directory, keep, threading.Event())
    moment, news = min(frames, key=lambda frame: abs(frame[0].at_s - MOMENT_S))
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False
    )
    console.print(Text.assemble(("$ ", "dim"), "provisioner demo"), "")
    console.print(screen(moment, news))
    console.print("", Rule("a few seconds later", style="dim"), summary(view, faults))
    picture_file = Path(__file__).parent / "demo.svg"
    picture_file.write_text(
        without_fonts(console.export_svg(title="provisioner demo")), encoding="utf-8"
    )


def without_fonts(svg: str) -> str:
    """Return the picture with the monospaced font of the reader: it fetches nothing from elsewhere."""
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace(
        "Fira Code", "ui-monospace"
    )


if __name__ == "__main__":
    main()
