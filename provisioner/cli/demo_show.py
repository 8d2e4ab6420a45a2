"""What the demo looks like: a moving picture on a terminal, lines elsewhere, and the closing tables."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from provisioner import formatting
from provisioner.cli.demo_play import Outcome, Scene, ShapeNow, Show
from provisioner.model import WAITING, Drone, DroneState
from provisioner.reasons import JobsWaiting
from provisioner.store import Transition

STYLES = {
    DroneState.BUSY: "bold green",
    DroneState.IDLE: "yellow",
    DroneState.DRAINING: "magenta",
    DroneState.STOPPING: "magenta",
    DroneState.FAILED: "bold red",
    DroneState.LOST: "bold red",
    DroneState.JOIN_TIMEOUT: "bold red",
}
ENDED_SHOWN = 3
NEWS_SHOWN = 6
BAR = 16
WIDTH = 100
"""Of tables that go elsewhere than to a terminal."""


def for_terminal(*, plain: bool) -> Show:
    """A picture where there is a terminal to move it on, lines elsewhere."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    return Lines(console) if plain or not console.is_terminal else Picture(console)


# ------------------------------------------------------------------------------------------------------------- picture


@dataclass(slots=True)
class Picture:
    """Redraws one screen."""

    console: Console
    news: deque[Text] = field(default_factory=lambda: deque(maxlen=NEWS_SHOWN))
    _live: Live | None = None

    def scene(self, scene: Scene) -> None:
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        self.news.extend(line(step, scene) for step in scene.news)
        self._live.update(picture(scene, self.news), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def summary(self, outcome: Outcome) -> None:
        self.console.print(summary(outcome))


def picture(scene: Scene, news: Iterable[Text]) -> RenderableType:
    """One screen: the jobs, the drones, and what happened last."""
    return Group(_heading(scene), _jobs(scene.shapes), Text(), _drones(scene), Text(), *news)


def _heading(scene: Scene) -> Text:
    states = Counter(d.state for d in scene.live)
    counts = ", ".join(f"{n} {state}" for state, n in states.items()) or "none"
    return Text.assemble(
        ("GPU drone provisioner", "bold"), f"   {scene.at_s:4.1f} s   ", ("drones: ", "dim"), counts, "\n", style=""
    )


def _table(*columns: str, title: str = "") -> Table:
    table = Table(box=None, pad_edge=False, title=title or None, title_justify="left", title_style="bold", expand=False)
    for name in columns:
        right = name.endswith(">")
        table.add_column(name.removesuffix(">"), justify="right" if right else "left", header_style="dim")
    return table


def _jobs(shapes: Sequence[ShapeNow]) -> Table:
    table = _table("jobs", "each wants", "", "done>", "running>", "waiting>", "why they wait")
    table.columns[2].no_wrap, table.columns[2].min_width = True, BAR
    for now in shapes:
        table.add_row(
            now.shape.name,
            f"1 GPU, {formatting.size(now.shape.vram_mib)}",
            _bar(now),
            str(now.done),
            str(now.running),
            str(now.waiting),
            Text(
                formatting.describe(now.why) if now.why else "",
                style="" if now.shape.fits else "yellow",
                overflow="fold",
            ),
        )
    return table


def _bar(now: ShapeNow) -> Text:
    done = BAR * now.done // now.shape.count
    running = -(-BAR * (now.done + now.running) // now.shape.count) - done
    return Text.assemble(("█" * done, "green"), ("▓" * running, "yellow"), ("░" * (BAR - done - running), "dim"))


def _drones(scene: Scene) -> Table:
    table = _table("drone", "type", "state", "for>", "jobs so far>")
    ended = [d for d in scene.drones if d.state.ended]
    for drone in [*ended[-ENDED_SHOWN:], *scene.live]:
        style = "dim" if drone.state.ended else ""
        table.add_row(
            str(drone.id),
            str(drone.type),
            Text(drone.state, style=style or STYLES.get(drone.state, "cyan")),
            "" if drone.state.ended else formatting.age(max(0.0, scene.now - drone.since)),
            str(drone.jobs_started),
            style=style,
        )
    if not scene.drones:
        table.add_row(Text("none yet", style="dim"))
    return table


def line(step: Transition, scene: Scene) -> Text:
    at = max(0.0, scene.at_s - (scene.now - step.at))
    reason = step.reason
    if isinstance(reason, JobsWaiting):
        reason = replace(reason, class_id=scene.classes.get(reason.class_id, reason.class_id))
    return Text.assemble(
        (f"{at:5.1f} s  ", "dim"),
        f"{step.drone_id}  ",
        (f"{step.state:<15}", STYLES.get(step.state, "cyan")),
        formatting.describe(reason),
        overflow="ellipsis",
        no_wrap=True,
    )


# --------------------------------------------------------------------------------------------------------------- lines


@dataclass(slots=True)
class Lines:
    """A line for each drone that comes or goes, and now and then one for the jobs."""

    console: Console
    _told: tuple[int, ...] = ()
    _told_at_s: float = -10.0

    def scene(self, scene: Scene) -> None:
        for step in scene.news:
            if step.state not in (DroneState.BUSY, DroneState.IDLE):
                self.console.print(line(step, scene), soft_wrap=True)
        counts = tuple(now.done for now in scene.shapes)
        if counts != self._told and scene.at_s - self._told_at_s >= 2:
            self._told, self._told_at_s = counts, scene.at_s
            jobs = "; ".join(f"{n.shape.name}: {n.done} done, {n.running} run, {n.waiting} wait" for n in scene.shapes)
            self.console.print(f"{scene.at_s:5.1f} s  jobs  {jobs}", soft_wrap=True)

    def close(self) -> None:
        pass

    def summary(self, outcome: Outcome) -> None:
        self.console.print(summary(outcome))


# ------------------------------------------------------------------------------------------------------------- summary


def summary(outcome: Outcome) -> RenderableType:
    """What became of the jobs and what the drones did."""
    verdict = (
        Text(f"All drones have left, no process is left, after {outcome.scene.at_s:.1f} s.", style="bold green")
        if outcome.good
        else Text("Something went wrong, see below.", style="bold red")
    )
    return Group(Text(), _job_summary(outcome.scene), Text(), _drone_summary(outcome), Text(), verdict)


def _job_summary(scene: Scene) -> Table:
    table = _table("jobs", "submitted>", "done>", "not run>", "mean wait>", "longest>", "why not")
    for now in scene.shapes:
        waits = now.waits_s
        table.add_row(
            now.shape.name,
            str(now.shape.count),
            str(now.done),
            str(now.shape.count - now.done),
            f"{sum(waits) / len(waits):.1f} s" if waits else "-",
            f"{max(waits):.1f} s" if waits else "-",
            Text(formatting.describe(now.why) if now.why else "", overflow="fold"),
        )
    return table


def _drone_summary(outcome: Outcome) -> Table:
    table = _table("drones", "started>", "jobs>", "GPU-seconds busy>", "idle>", "use>", "ended as")
    by_type: dict[str, list[Drone]] = {}
    for drone in outcome.scene.drones:
        by_type.setdefault(drone.type, []).append(drone)
    for kind, drones in sorted(by_type.items()):
        spans = [gpu_seconds(outcome.histories.get(drone.id, []), drone) for drone in drones]
        busy, held = sum(b for b, _ in spans), sum(h for _, h in spans)
        ends = Counter(d.state for d in drones)
        table.add_row(
            kind,
            str(len(drones)),
            str(sum(d.jobs_started for d in drones)),
            f"{busy:.1f}",
            f"{held - busy:.1f}",
            f"{busy / held:.0%}" if held else "-",
            ", ".join(f"{n} {state}" for state, n in ends.items()),
        )
    return table


def gpu_seconds(history: Sequence[Transition], drone: Drone) -> tuple[float, float]:
    """GPU-seconds of a drone with work and at all, from the first sign of it at the site to its end, by its history."""
    busy = held = 0.0
    for step, after in pairwise(history):
        span_s = after.at - step.at
        held += 0.0 if step.state in WAITING else span_s
        busy += span_s if step.state is DroneState.BUSY else 0.0
    share = drone.gpu_milli / 1000
    return busy * share, held * share
