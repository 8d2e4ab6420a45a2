"""Draw docs/pictures/demo.svg: plays the demo, and keeps one moment and the closing tables as a terminal shows them."""

from __future__ import annotations

import asyncio
import io
import re
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from provisioner.cli.demo_play import Outcome, Scene, play, stage
from provisioner.cli.demo_show import line, picture, summary
from provisioner.model import DroneState

WIDTH = 118
MOMENT_S = 6.0
"""The moment that is kept: when the most is to be seen."""


@dataclass(slots=True)
class Camera:
    """A show that keeps the scenes."""

    frames: list[tuple[Scene, list[Text]]] = field(default_factory=list)
    news: deque[Text] = field(default_factory=lambda: deque(maxlen=6))

    def scene(self, scene: Scene) -> None:
        self.news.extend(line(step, scene) for step in scene.news if step.state is not DroneState.SUBMITTED)
        self.frames.append((scene, list(self.news)))

    def summary(self, outcome: Outcome) -> None:
        pass

    def close(self) -> None:
        pass


def main() -> None:
    camera = Camera()
    with stage(None) as there, asyncio.Runner() as turn:
        outcome = play(there, camera, turn)
    scene, news = min(camera.frames, key=lambda frame: abs(frame[0].at_s - MOMENT_S))
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text.assemble(("$ ", "dim"), "provisioner demo"), "")
    console.print(picture(scene, news))
    console.print("", Rule("a few seconds later", style="dim"), summary(outcome))
    picture_file = Path(__file__).parent / "demo.svg"
    picture_file.write_text(without_fonts(console.export_svg(title="provisioner demo")), encoding="utf-8")


def without_fonts(svg: str) -> str:
    """A picture that fetches nothing from elsewhere: the reader's own monospaced font will do."""
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace("Fira Code", "ui-monospace")


if __name__ == "__main__":
    main()
