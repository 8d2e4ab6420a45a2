"""``provisioner demo``: the real controller on this host, jobs to run, drones that come and go, nothing left behind."""

from __future__ import annotations

import asyncio
import importlib.resources
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.resources.abc import Traversable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Protocol, TypeVar, cast

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from provisioner import formatting
from provisioner.cli.jobs import QueuedJobView, class_rows, newest_plan, open_queue
from provisioner.cli.options import Exit, VerbError, Where
from provisioner.model import WAITING, Drone, DroneId, DroneState
from provisioner.reasons import JobsWaiting, Reason
from provisioner.store import Reader, StoreError, Transition


def processes_left(reader: Reader) -> list[str]:
    """Return a complaint for each process that still carries the id of a drone of this demo."""
    return [f"process {pid} of drone {drone} is still there" for pid, drone in _drone_processes(reader)]


def end_processes(reader: Reader, patience_s: float = 3.0) -> None:
    """End every process of this demo's drones: by SIGTERM, then by SIGKILL. Only after the controller has gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid, drone in _drone_processes(reader):
            _signal(pid, drone, number)
        give_up = time.monotonic() + patience_s
        while _drone_processes(reader) and time.monotonic() < give_up:
            time.sleep(0.1)


def _drone_processes(reader: Reader) -> list[tuple[int, str]]:
    """Return this user's processes that carry the id of a drone on record, with that id."""
    try:
        ours = {str(drone.id) for drone in reader.drones(ended=None)}
    except StoreError:
        return []
    found = ((int(entry.name), _drone_of(int(entry.name))) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [(pid, drone) for pid, drone in found if drone in ours]


def _drone_of(pid: int) -> str:
    """Return the drone of a process; empty if it has none, is not ours to see, or has ended."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    mark = b"PROVISIONER_DRONE_ID="
    return next((e[len(mark) :].decode(errors="replace") for e in environment.split(b"\0") if e.startswith(mark)), "")


def _signal(pid: int, drone: str, number: signal.Signals) -> None:
    """Signal a process that is still the one that was found: its number may have gone to another meanwhile."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _drone_of(pid) == drone:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        pass  # it has ended: what was wanted
    finally:
        os.close(handle)


T = TypeVar("T")

DEMO_LIMIT_S = 150.0
"""The demo gives up after this long. It takes about 20 s on a quiet host."""
DEMO_POLL_S = 0.2
CONTROLLER_STOP_S = 15.0
"""Longest time for the controller to end in order."""

# ---------------------------------------------------------------------------------------------------------------- jobs


@dataclass(frozen=True, slots=True)
class JobShape:
    """Equal jobs."""

    name: str
    count: int
    vram_mib: int
    run_s: float
    fits: bool


JOB_SHAPES = (
    JobShape("large", 10, vram_mib=36 * 1024, run_s=2.0, fits=True),
    JobShape("small", 24, vram_mib=8 * 1024, run_s=1.5, fits=True),
    JobShape("huge", 6, vram_mib=80 * 1024, run_s=1.0, fits=False),
)
"""Large jobs need the larger GPU, small ones run anywhere, and no GPU here is large enough for huge ones."""


class DemoQueue(Protocol):
    """Interface of the embedded overlay for submission."""

    async def submit(self, argv: Sequence[str], *, count: int, vram_mib: int, memory_mib: int) -> Sequence[int]: ...

    async def jobs(self) -> Sequence[QueuedJobView]: ...

    async def remove(self, ids: Sequence[int]) -> int: ...


@dataclass(frozen=True, slots=True)
class QueueClient:
    """Client of the embedded overlay's queue from outside its event loop."""

    jobs_in: DemoQueue
    turn: asyncio.Runner

    def submit(self, shape: JobShape) -> Sequence[int]:
        """Submit the jobs of one shape: each sleeps for a moment, as if it computed."""
        argv = ["sleep", f"{shape.run_s:g}"]
        jobs = self.jobs_in.submit(argv, count=shape.count, vram_mib=shape.vram_mib, memory_mib=64)
        return self.turn.run(_awaited(jobs))

    def jobs(self) -> Sequence[QueuedJobView]:
        return self.turn.run(_awaited(self.jobs_in.jobs()))

    def remove(self, ids: Sequence[int]) -> None:
        self.turn.run(_awaited(self.jobs_in.remove(ids)))


async def _awaited(call: Awaitable[T]) -> T:
    async with asyncio.timeout(30):
        return await call


# ------------------------------------------------------------------------------------------------------------ the play


@dataclass(frozen=True, slots=True)
class DemoDirectory:
    """Directory of a demo."""

    directory: Path

    @property
    def config(self) -> Path:
        return self.directory / "provisioner.yaml"

    @property
    def log(self) -> Path:
        return self.directory / "controller.log"


@dataclass(frozen=True, slots=True)
class ShapeView:
    """Progress of the jobs of one shape."""

    shape: JobShape
    done: int
    running: int
    failed: int
    waits_s: tuple[float, ...]
    """Waits from submission to start, of those that have started."""
    why: Reason | None
    """Reason for which the rest waits."""

    @property
    def waiting(self) -> int:
        return self.shape.count - self.done - self.running - self.failed


@dataclass(frozen=True, slots=True)
class DemoView:
    """State of the demo at one moment."""

    at_s: float
    """Since the demo began."""
    shapes: tuple[ShapeView, ...]
    drones: tuple[Drone, ...]
    """Live and ended ones, oldest first."""
    news: tuple[Transition, ...]
    """Steps of drones since the last view."""
    now: float
    classes: Mapping[str, str] = field(default_factory=dict)
    """Names of the shapes by the id of their job class."""

    @property
    def live(self) -> tuple[Drone, ...]:
        return tuple(d for d in self.drones if not d.state.ended)

    @property
    def over(self) -> bool:
        """All jobs that fit are done, and all drones have left."""
        return (
            not self.live
            and bool(self.drones)
            and all(s.done + s.failed == s.shape.count for s in self.shapes if s.shape.fits)
        )


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Result of a demo."""

    view: DemoView
    histories: dict[DroneId, list[Transition]]
    faults: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.faults


class DemoDisplay(Protocol):
    """Interface of what shows the demo to a person."""

    def view(self, view: DemoView) -> None: ...

    def summary(self, outcome: DemoResult) -> None: ...

    def close(self) -> None: ...


def run_demo(
    there: DemoDirectory, display: DemoDisplay, turn: asyncio.Runner, asked_to_end: threading.Event
) -> DemoResult:
    """Submit, watch until all is over, take away what could never run, and look for anything left behind.

    Raises KeyboardInterrupt where it was asked to end before all was over.
    """
    from provisioner.store.reader import SqlReader

    queue = QueueClient(cast(DemoQueue, open_queue(Where(config=there.config))), turn)
    reader = SqlReader(there.directory / "provisioner.db")
    jobs = {shape: queue.submit(shape) for shape in JOB_SHAPES}
    faults: list[str] = []
    watcher = DemoWatcher(queue, reader, jobs)
    try:
        with running_controller(there) as process:
            try:
                view = watcher.view()
                while not view.over:
                    if asked_to_end.is_set():
                        raise KeyboardInterrupt
                    if process.poll() is not None:
                        raise VerbError(f"the controller ended, status {process.returncode}:", *_last_lines(there.log))
                    if view.at_s > DEMO_LIMIT_S:
                        faults.append(f"not over after {DEMO_LIMIT_S:g} s; the controller's last words:")
                        faults += _last_lines(there.log)
                        break
                    display.view(view)
                    asked_to_end.wait(DEMO_POLL_S)
                    view = watcher.view()
                display.view(view)
                queue.remove([job for shape, ids in jobs.items() if not shape.fits for job in ids])
            finally:
                display.close()
        if process.returncode:
            faults.append(f"the controller ended with status {process.returncode}: {there.log}")
        faults += _faults(view)
        return DemoResult(view, {d.id: reader.history(d.id) for d in view.drones}, (*faults, *processes_left(reader)))
    finally:
        end_processes(reader)


@contextmanager
def running_controller(there: DemoDirectory) -> Iterator[subprocess.Popen[bytes]]:
    """``provisioner run`` in a session of its own; ended in order, or at last without mercy."""
    with there.log.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "provisioner.cli", "run", "-c", str(there.config)],
            cwd=there.directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(CONTROLLER_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(slots=True)
class DemoWatcher:
    """Observer of the queue and the record, as any operator could be."""

    queue: QueueClient
    reader: Reader
    jobs: dict[JobShape, Sequence[int]]
    began: float = 0.0
    seen: int = 0
    classes: dict[str, str] = field(default_factory=dict)

    def view(self) -> DemoView:
        now = time.time()
        self.began = self.began or now
        try:
            drones, steps = self.reader.drones(ended=None), self.reader.transitions(after=self.seen)
            why = self._reasons()
        except StoreError:  # not there yet
            drones, steps, why = [], [], {}
        self.seen = max((number for number, _ in steps), default=self.seen)
        states = {job.id: job for job in self.queue.jobs()}
        shapes = tuple(
            _shape_view(shape, [states[number] for number in ids if number in states], why.get(shape.vram_mib))
            for shape, ids in self.jobs.items()
        )
        return DemoView(now - self.began, shapes, tuple(drones), tuple(step for _, step in steps), now, self.classes)

    def _reasons(self) -> dict[int, Reason]:
        """Return the reasons for which jobs wait, by the VRAM that they ask for: it distinguishes the shapes."""
        rows = class_rows(self.reader.views(), newest_plan(self.reader), ())
        names = {shape.vram_mib: shape.name for shape in self.jobs}
        self.classes |= {row.job.id: names[row.job.vram_mib] for row in rows if row.job.vram_mib in names}
        return {row.job.vram_mib: row.reasons[0] for row in rows if row.reasons and (row.job.waiting or row.job.fresh)}


def _shape_view(shape: JobShape, jobs: list[QueuedJobView], why: Reason | None) -> ShapeView:
    states = [str(job.state) for job in jobs]
    return ShapeView(
        shape,
        done=states.count("done"),
        running=states.count("running"),
        failed=states.count("failed") + states.count("held"),
        waits_s=tuple(job.started_at - job.submitted_at for job in jobs if job.started_at),
        why=why if "idle" in states else None,
    )


def _faults(view: DemoView) -> list[str]:
    """Return what did not go as it should have."""
    found = [f"drone {drone.id} is still {drone.state}" for drone in view.live]
    for now in view.shapes:
        name, ran = now.shape.name, now.done + now.running + now.failed
        if now.shape.fits and now.done != now.shape.count:
            found.append(f"{now.done} of {now.shape.count} {name} jobs are done, {now.failed} failed")
        if not now.shape.fits and ran:
            found.append(f"{name} jobs should fit no drone type, and {ran} ran")
        if not now.shape.fits and now.why is None:
            found.append(f"there is no reason why {name} jobs wait")
    return found


def _last_lines(log: Path, count: int = 12) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-count:]


# ----------------------------------------------------------------------------------------------------------- the stage


@contextmanager
def demo_directory(directory: Path | None) -> Iterator[DemoDirectory]:
    """Yield a directory with the demo's configuration: the one named, which stays, or a temporary one."""
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise VerbError(f"{directory} is not empty: name a new directory")
    place = directory.resolve() if directory else Path(tempfile.mkdtemp(prefix="provisioner-demo-"))
    try:
        for source in _configuration().iterdir():
            if source.name.endswith(".yaml"):
                (place / source.name).write_bytes(source.read_bytes())
        yield DemoDirectory(place)
    finally:
        if directory is None:
            shutil.rmtree(place, ignore_errors=True)


def _configuration() -> Traversable:
    """Return the demo's configuration: packaged in a wheel, beside the packages in a checkout."""
    packaged = importlib.resources.files("provisioner.cli") / "demo_config"
    if packaged.is_dir():
        return packaged
    return importlib.resources.files("provisioner") / ".." / "site_configs" / "demo"


STATE_STYLES = {
    DroneState.BUSY: "bold green",
    DroneState.IDLE: "yellow",
    DroneState.DRAINING: "magenta",
    DroneState.STOPPING: "magenta",
    DroneState.FAILED: "bold red",
    DroneState.LOST: "bold red",
    DroneState.JOIN_TIMEOUT: "bold red",
}
MAX_ENDED_SHOWN = 3
MAX_STEPS_SHOWN = 6
BAR_WIDTH = 16
PLAIN_WIDTH = 100
"""Width of tables that do not go to a terminal."""


def demo_display(*, plain: bool) -> DemoDisplay:
    """Return a display: a live screen on a terminal, lines elsewhere."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    return LineDisplay(console) if plain or not console.is_terminal else LiveDisplay(console)


# ------------------------------------------------------------------------------------------------------------- picture


@dataclass(slots=True)
class LiveDisplay:
    """Display that redraws one screen."""

    console: Console
    news: deque[Text] = field(default_factory=lambda: deque(maxlen=MAX_STEPS_SHOWN))
    _live: Live | None = None

    def view(self, view: DemoView) -> None:
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        self.news.extend(step_line(step, view) for step in view.news)
        self._live.update(screen(view, self.news), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()

    def summary(self, outcome: DemoResult) -> None:
        self.console.print(summary(outcome))


def screen(view: DemoView, news: Iterable[Text]) -> RenderableType:
    """Return one screen: the jobs, the drones, and what happened last."""
    return Group(_screen_heading(view), _jobs_table(view.shapes), Text(), _drones_table(view), Text(), *news)


def _screen_heading(view: DemoView) -> Text:
    states = Counter(d.state for d in view.live)
    counts = ", ".join(f"{n} {state}" for state, n in states.items()) or "none"
    return Text.assemble(
        ("GPU drone provisioner", "bold"), f"   {view.at_s:4.1f} s   ", ("drones: ", "dim"), counts, "\n", style=""
    )


def _plain_table(*columns: str, title: str = "") -> Table:
    table = Table(box=None, pad_edge=False, title=title or None, title_justify="left", title_style="bold", expand=False)
    for name in columns:
        right = name.endswith(">")
        table.add_column(name.removesuffix(">"), justify="right" if right else "left", header_style="dim")
    return table


def _jobs_table(shapes: Sequence[ShapeView]) -> Table:
    table = _plain_table("jobs", "each wants", "", "done>", "running>", "waiting>", "why they wait")
    table.columns[2].no_wrap, table.columns[2].min_width = True, BAR_WIDTH
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


def _bar(now: ShapeView) -> Text:
    done = BAR_WIDTH * now.done // now.shape.count
    running = -(-BAR_WIDTH * (now.done + now.running) // now.shape.count) - done
    return Text.assemble(("█" * done, "green"), ("▓" * running, "yellow"), ("░" * (BAR_WIDTH - done - running), "dim"))


def _drones_table(view: DemoView) -> Table:
    table = _plain_table("drone", "type", "state", "for>", "jobs so far>")
    ended = [d for d in view.drones if d.state.ended]
    for drone in [*ended[-MAX_ENDED_SHOWN:], *view.live]:
        style = "dim" if drone.state.ended else ""
        table.add_row(
            str(drone.id),
            str(drone.type),
            Text(drone.state, style=style or STATE_STYLES.get(drone.state, "cyan")),
            "" if drone.state.ended else formatting.age(max(0.0, view.now - drone.since)),
            str(drone.jobs_started),
            style=style,
        )
    if not view.drones:
        table.add_row(Text("none yet", style="dim"))
    return table


def step_line(step: Transition, view: DemoView) -> Text:
    at = max(0.0, view.at_s - (view.now - step.at))
    reason = step.reason
    if isinstance(reason, JobsWaiting):
        reason = replace(reason, class_id=view.classes.get(reason.class_id, reason.class_id))
    return Text.assemble(
        (f"{at:5.1f} s  ", "dim"),
        f"{step.drone_id}  ",
        (f"{step.state:<15}", STATE_STYLES.get(step.state, "cyan")),
        formatting.describe(reason),
        overflow="ellipsis",
        no_wrap=True,
    )


# --------------------------------------------------------------------------------------------------------------- lines


@dataclass(slots=True)
class LineDisplay:
    """Display of lines: one for each drone that starts or ends, and now and then one for the jobs."""

    console: Console
    _told: tuple[int, ...] = ()
    _told_at_s: float = -10.0

    def view(self, view: DemoView) -> None:
        for step in view.news:
            if step.state not in (DroneState.BUSY, DroneState.IDLE):
                self.console.print(step_line(step, view), soft_wrap=True)
        counts = tuple(now.done for now in view.shapes)
        if counts != self._told and view.at_s - self._told_at_s >= 2:
            self._told, self._told_at_s = counts, view.at_s
            jobs = "; ".join(f"{n.shape.name}: {n.done} done, {n.running} run, {n.waiting} wait" for n in view.shapes)
            self.console.print(f"{view.at_s:5.1f} s  jobs  {jobs}", soft_wrap=True)

    def close(self) -> None:
        pass

    def summary(self, outcome: DemoResult) -> None:
        self.console.print(summary(outcome))


# ------------------------------------------------------------------------------------------------------------- summary


def summary(outcome: DemoResult) -> RenderableType:
    """Return tables of what became of the jobs and what the drones did."""
    verdict = (
        Text(f"All drones have left, no process is left, after {outcome.view.at_s:.1f} s.", style="bold green")
        if outcome.good
        else Text("Something went wrong, see below.", style="bold red")
    )
    return Group(Text(), _job_summary_table(outcome.view), Text(), _drone_summary_table(outcome), Text(), verdict)


def _job_summary_table(view: DemoView) -> Table:
    table = _plain_table("jobs", "submitted>", "done>", "not run>", "mean wait>", "longest>", "why not")
    for now in view.shapes:
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


def _drone_summary_table(outcome: DemoResult) -> Table:
    table = _plain_table("drones", "started>", "jobs>", "GPU-seconds busy>", "idle>", "use>", "ended as")
    by_type: dict[str, list[Drone]] = {}
    for drone in outcome.view.drones:
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
    """Return GPU-seconds of a drone with work, and of its whole run at the site, by its history."""
    busy = held = 0.0
    for step, after in pairwise(history):
        span_s = after.at - step.at
        held += 0.0 if step.state in WAITING else span_s
        busy += span_s if step.state is DroneState.BUSY else 0.0
    share = drone.gpu_milli / 1000
    return busy * share, held * share


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
    stop = _stop_request()
    display = demo_display(plain=plain)
    try:
        with demo_directory(directory) as there, asyncio.Runner() as turn:
            outcome = run_demo(there, display, turn, stop)
            display.summary(outcome)
    except KeyboardInterrupt:
        raise VerbError("stopped; the controller, its drones and their jobs are gone", code=Exit.INTERRUPTED) from None
    if not outcome.good:
        raise VerbError(*outcome.faults)


def _stop_request() -> threading.Event:
    """Set once a closed terminal, a polite kill or Ctrl-C asks the demo to end, whatever the shell has made of SIGINT.

    The play looks at it between two scenes. An exception raised here could come up inside anything, and where that is
    an ``exec`` of a text (a dataclass being made), CPython 3.11 ends by the signal though the exception was handled.
    Who asks twice will not wait for the next scene.
    """
    stop = threading.Event()

    def end(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    return stop
