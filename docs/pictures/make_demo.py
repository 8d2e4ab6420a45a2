"""Draw docs/pictures/demo.svg: run the demo, keep one moment and the closing tables as a terminal shows them."""

from __future__ import annotations

import asyncio
import io
import re
import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from provisioner.cli.demo import DemoResult, DemoView, demo_directory, run_demo, screen, step_line, summary
from provisioner.model import DroneState

WIDTH = 118
MOMENT_S = 6.0
"""The moment that is kept."""


@dataclass(slots=True)
class Camera:
    """Display that keeps what it shows."""

    frames: list[tuple[DemoView, list[Text]]] = field(default_factory=list)
    news: deque[Text] = field(default_factory=lambda: deque(maxlen=6))

    def view(self, view: DemoView) -> None:
        self.news.extend(step_line(step, view) for step in view.news if step.state is not DroneState.SUBMITTED)
        self.frames.append((view, list(self.news)))

    def summary(self, outcome: DemoResult) -> None:
        pass

    def close(self) -> None:
        pass


def main() -> None:
    camera = Camera()
    with demo_directory(None) as there, asyncio.Runner() as runner:
        outcome = run_demo(there, camera, runner, threading.Event())
    view, news = min(camera.frames, key=lambda frame: abs(frame[0].at_s - MOMENT_S))
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text.assemble(("$ ", "dim"), "provisioner demo"), "")
    console.print(screen(view, news))
    console.print("", Rule("a few seconds later", style="dim"), summary(outcome))
    picture_file = Path(__file__).parent / "demo.svg"
    picture_file.write_text(without_fonts(console.export_svg(title="provisioner demo")), encoding="utf-8")


def without_fonts(svg: str) -> str:
    """Return the picture with the monospaced font of the reader: it fetches nothing from elsewhere."""
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code", "ui-monospace")


if __name__ == "__main__":
    main()
