"""``provisioner demo``: the real controller on this host, with 40 jobs and GPUs that are only declared."""

from __future__ import annotations

import importlib.resources
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from provisioner import formatting
from provisioner.answers.demand import class_rows
from provisioner.answers.drones import STATE_TINTS
from provisioner.answers.errors import Exit, VerbError
from provisioner.answers.lookup import newest_plan
from provisioner.cli import options as opt
from provisioner.cli.jobs import answer_of, open_queue
from provisioner.model import Drone, DroneState
from provisioner.processes import DRONE_TAG, end_tagged, tagged
from provisioner.reasons import Reason
from provisioner.store import StoreError, Transition
from provisioner.store.measures import reasons_by_class
from provisioner.store.reader import Reader
from provisioner.values import frozen

DEMO_LIMIT_S = 150.0
"""The demo gives up after this long. It takes about 20 s on a quiet host."""
DEMO_POLL_S = 0.2
CONTROLLER_STOP_S = 15.0
MAX_STEPS_SHOWN = 6
BAR_WIDTH = 16
PLAIN_WIDTH = 100
"""Width of tables that do not go to a terminal."""
JOB_LINE_INTERVAL_S = 2.0


class JobShape(NamedTuple):
    name: str
    jobs: int
    vram_mib: int
    run_s: float
    fits: bool


JOB_SHAPES = (
    JobShape("large", 10, vram_mib=36 * 1024, run_s=2.0, fits=True),
    JobShape("small", 24, vram_mib=8 * 1024, run_s=1.5, fits=True),
    JobShape("huge", 6, vram_mib=80 * 1024, run_s=1.0, fits=False),
)
"""Large jobs need the larger GPU, small ones run anywhere, and no GPU here is large enough for huge ones."""


class ShapeView(NamedTuple):
    """Progress of the jobs of one shape, and the reason for which the rest waits."""

    shape: JobShape
    done: int
    running: int
    failed: int
    why: Reason | None

    @property
    def waiting(self) -> int:
        return self.shape.jobs - self.done - self.running - self.failed

    @property
    def why_text(self) -> Text:
        style = "" if self.shape.fits else "yellow"
        return Text(self.why.describe() if self.why else "", style=style, overflow="fold")


@frozen
class DemoView:
    at_s: float
    shapes: Sequence[ShapeView]
    drones: Sequence[Drone]
    news: Sequence[Transition]
    now: float

    @property
    def live(self) -> list[Drone]:
        return [d for d in self.drones if not d.state.ended]

    @property
    def over(self) -> bool:
        """True once all jobs that fit are done and all drones have left."""
        done = all(s.done + s.failed == s.shape.jobs for s in self.shapes if s.shape.fits)
        return done and bool(self.drones) and not self.live


def watch(directory: Path, reader: Reader) -> Generator[DemoView, None, None]:
    """Submit the jobs and yield views of the queue and the record, as any operator could see them.

    Closed, it removes the jobs that never fit, so that the controller can leave nothing behind.
    """
    queue = open_queue(opt.Where(config=directory / "provisioner.yaml"))
    began = time.time()
    seen = 0
    jobs: dict[JobShape, Sequence[int]] = {}
    for shape in JOB_SHAPES:
        argv = ["sleep", f"{shape.run_s:g}"]
        jobs[shape] = answer_of(
            queue.submit(argv, count=shape.jobs, vram_mib=shape.vram_mib, memory_mib=64)
        )
    try:
        while True:
            drones = list[Drone]()
            steps = list[tuple[int, Transition]]()
            why = dict[int, Reason]()
            with suppress(StoreError):  # it is not there yet
                drones = reader.drones(ended=None)
                steps = reader.transitions(after=seen)
                reasons = reasons_by_class(newest_plan(reader))
                for row in class_rows(reader.views(), reasons, {}):
                    if row.reasons:  # VRAM distinguishes the shapes
                        why[row.job.vram_mib] = row.reasons[0]
            seen = max((number for number, _ in steps), default=seen)
            states = {job.id: str(job.state) for job in answer_of(queue.jobs())}
            shapes = []
            for shape, ids in jobs.items():
                counts = Counter(states.get(number) for number in ids)
                reason = why.get(shape.vram_mib) if counts["idle"] else None
                shapes.append(
                    ShapeView(
                        shape,
                        counts["done"],
                        counts["running"],
                        counts["failed"] + counts["held"],
                        reason,
                    )
                )
            now = time.time()
            yield DemoView(now - began, shapes, drones, [step for _, step in steps], now)
    finally:
        answer_of(
            queue.remove([job for shape, ids in jobs.items() if not shape.fits for job in ids])
        )


def run_demo(
    directory: Path,
    show: Callable[[DemoView], None],
    asked_to_end: threading.Event,
) -> tuple[DemoView, list[str]]:
    """Submit jobs, show their progress until all drones have left, and search for anything left behind.

    Return the last view and the faults. Raises KeyboardInterrupt where it was asked to end earlier.
    """
    log = directory / "controller.log"
    reader = Reader(directory / "provisioner.db")
    faults: list[str] = []
    try:
        with (
            running_controller(directory, log) as process,
            closing(watch(directory, reader)) as views,
        ):
            for view in views:
                show(view)
                if view.over:
                    break
                if asked_to_end.is_set():
                    raise KeyboardInterrupt
                ended = process.poll() is not None
                if ended or view.at_s > DEMO_LIMIT_S:
                    last_lines = log.read_text(errors="replace").splitlines()[-12:]
                    what = (
                        f"ended, status {process.returncode}"
                        if ended
                        else f"is not done after {DEMO_LIMIT_S:g} s"
                    )
                    raise VerbError(f"the controller {what}; end of its log:", *last_lines)
                asked_to_end.wait(DEMO_POLL_S)
        if process.returncode:
            faults.append(f"the controller ended with status {process.returncode}: {log}")
    finally:
        left = end_drones(reader)
    faults += [
        f"{each.failed} {each.shape.name} jobs failed" for each in view.shapes if each.failed
    ]
    faults += [f"processes of drone {drone} still ran" for drone in left]
    return view, faults


@contextmanager
def running_controller(directory: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable,
        "-m",
        "provisioner.cli",
        "run",
        "-c",
        str(directory / "provisioner.yaml"),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(CONTROLLER_STOP_S)
        process.kill()
        process.wait()


def end_drones(reader: Reader) -> list[str]:
    """Kill every process of this demo's drones. Return the drones that still had some.

    The controller must have ended: it would start others.
    """
    try:
        ours = [str(drone.id) for drone in reader.drones(ended=None)]
    except StoreError:
        return []
    left = [drone for drone in ours if tagged(f"{DRONE_TAG}={drone}")]
    for drone in left:
        end_tagged(f"{DRONE_TAG}={drone}")
    return left


@contextmanager
def demo_directory(directory: Path | None) -> Iterator[Path]:
    """Yield a directory with the demo's configuration: the given one, which stays, or a temporary one."""
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise VerbError(f"{directory} is not empty: name a new directory")
    place = directory.resolve() if directory else Path(tempfile.mkdtemp(prefix="provisioner-demo-"))
    configuration = importlib.resources.files("provisioner.cli") / "demo_config"  # in a wheel
    if not configuration.is_dir():
        # in a checkout
        configuration = importlib.resources.files("provisioner") / ".." / "site_configs" / "demo"
    try:
        for source in configuration.iterdir():
            if source.name.endswith(".yaml"):
                (place / source.name).write_bytes(source.read_bytes())
        yield place
    finally:
        if directory is None:
            shutil.rmtree(place, ignore_errors=True)


class DemoDisplay:
    """One screen that is redrawn, or lines: one per step of a drone, and now and then one for the jobs."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.live = (
            Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        )
        if self.live is None:
            self.console.width = PLAIN_WIDTH
        self._news: deque[Sequence[Text]] = deque(maxlen=MAX_STEPS_SHOWN)
        self._next_at_s = 0.0

    def show(self, view: DemoView) -> None:
        if self.live is not None:
            self._news.extend(step_cells(step, view) for step in view.news)
            self.live.update(screen(view, self._news), refresh=True)
            return
        for step in view.news:
            if step.state not in (DroneState.BUSY, DroneState.IDLE):
                self.console.print(*step_cells(step, view), sep="  ", soft_wrap=True)
        if view.at_s >= self._next_at_s:
            self._next_at_s = view.at_s + JOB_LINE_INTERVAL_S
            jobs = "; ".join(
                f"{n.shape.name}: {n.done} done, {n.running} run, {n.waiting} wait"
                for n in view.shapes
            )
            self.console.print(f"{view.at_s:5.1f} s  jobs  {jobs}", soft_wrap=True)


def step_cells(step: Transition, view: DemoView) -> Sequence[Text]:
    """Return time, drone, state and reason of one step of a drone."""
    return (
        Text(f"{max(0.0, view.at_s - (view.now - step.at)):5.1f} s", style="dim"),
        Text(step.drone_id),
        Text(f"{step.state:<9}", style=STATE_TINTS.get(step.state, "cyan")),
        Text(step.reason.describe()),
    )


def screen(view: DemoView, news: Iterable[Sequence[Text]]) -> RenderableType:
    counts = (
        ", ".join(f"{n} {state}" for state, n in Counter(d.state for d in view.live).items())
        or "none"
    )
    title = ("GPU drone provisioner", "bold")
    heading = Text.assemble(title, f"   {view.at_s:4.1f} s   ", ("drones: ", "dim"), counts, "\n")
    jobs = _table("jobs", "each requests", "", "done>", "running>", "waiting>")
    jobs.columns[2].no_wrap = True
    jobs.columns[2].min_width = BAR_WIDTH
    for each in view.shapes:
        done = BAR_WIDTH * each.done // each.shape.jobs
        running = -(-BAR_WIDTH * (each.done + each.running) // each.shape.jobs) - done
        bar = (
            ("█" * done, "green"),
            ("▓" * running, "yellow"),
            ("░" * (BAR_WIDTH - done - running), "dim"),
        )
        numbers = map(str, (each.done, each.running, each.waiting))
        wants = f"1 GPU, {formatting.size(each.shape.vram_mib)}"
        jobs.add_row(each.shape.name, wants, Text.assemble(*bar), *numbers)
    why = _table("jobs", "why they wait")
    for each in view.shapes:
        if each.why:
            why.add_row(each.shape.name, each.why_text)
    drones = _table("drone", "type", "state", "for>", "jobs so far>")
    for drone in view.live:
        state = Text(drone.state, style=STATE_TINTS.get(drone.state, "cyan"))
        drones.add_row(
            drone.id,
            drone.type,
            state,
            formatting.ago(drone.since, view.now),
            str(drone.jobs_started),
        )
    steps = _table("at>", "drone", "state", "reason")
    for cells in news:
        steps.add_row(*cells)
    return Group(heading, jobs, Text(), why, Text(), drones, Text(), steps)


def _table(*columns: str) -> Table:
    """Return an empty table. A column whose name ends with ``>`` is aligned to the right."""
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(
            name.removesuffix(">"),
            justify="right" if name.endswith(">") else "left",
            header_style="dim",
        )
    return table


def summary(view: DemoView, faults: Sequence[str]) -> RenderableType:
    jobs = _table("jobs", "submitted>", "done>", "not run>", "why not")
    for each in view.shapes:
        numbers = map(str, (each.shape.jobs, each.done, each.shape.jobs - each.done))
        jobs.add_row(each.shape.name, *numbers, each.why_text)
    drones = _table("drones", "started>", "jobs>", "ended as")
    for kind in sorted({drone.type for drone in view.drones}):
        of_type = [drone for drone in view.drones if drone.type == kind]
        ends = ", ".join(f"{n} {state}" for state, n in Counter(d.state for d in of_type).items())
        drones.add_row(kind, str(len(of_type)), str(sum(d.jobs_started for d in of_type)), ends)
    verdict = Text(
        f"All drones have left, no process is left, after {view.at_s:.1f} s.", style="bold green"
    )
    if faults:
        verdict = Text("Something went wrong, see below.", style="bold red")
    return Group(Text(), jobs, Text(), drones, Text(), verdict)


def demo(
    directory: Annotated[
        Path | None,
        opt.option("PATH", "Empty directory for the demo's files; they are kept.", "--dir"),
    ] = None,
) -> None:
    """Run 40 jobs in drones on this host: no root, no GPU and no HTCondor needed.

    A real controller runs with a queue in a file as its pool and with this host as its site; the GPUs are simulated.
    Jobs of three shapes wait; one shape fits no drone type. Drones start, run the jobs and end.

    \b
    Examples:
      provisioner demo --dir /tmp/demo && provisioner drones --all -c /tmp/demo/provisioner.yaml
    """
    stop = _stop_request()
    display = DemoDisplay()
    try:
        with demo_directory(directory) as place:
            with display.live or nullcontext():
                view, faults = run_demo(place, display.show, stop)
            display.console.print(summary(view, faults))
    except KeyboardInterrupt:
        ended = "stopped; the controller, its drones and their jobs are gone"
        raise VerbError(ended, code=Exit.INTERRUPTED) from None
    if faults:
        raise VerbError(*faults)


def _stop_request() -> threading.Event:
    """Return an event that a closed terminal, SIGTERM or Ctrl-C sets, whatever the shell has made of SIGINT.

    The demo checks it between two views. An exception raised here could come up inside anything,
    and where that is an ``exec`` of a text (a dataclass being made), CPython 3.11 ends by the
    signal though the exception was handled. A second signal ends the demo at once.
    """
    stop = threading.Event()

    def end(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    return stop
