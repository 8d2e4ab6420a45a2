"""The demo's play: submit jobs, run the controller, watch both until all is over, look for anything left."""

from __future__ import annotations

import asyncio
import importlib.resources
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Protocol, TypeVar, cast

from provisioner.cli.demo_traces import left_behind, sweep
from provisioner.cli.exits import Failure
from provisioner.cli.options import Where
from provisioner.cli.queue_rows import QueuedJob, open_queue
from provisioner.model import Drone, DroneId
from provisioner.reasons import Reason
from provisioner.store import Reader, StoreError, Transition

T = TypeVar("T")

LIMIT_S = 150.0
"""The demo gives up after this long. It takes about 20 s on a quiet host."""
LOOK_S = 0.2
GOODBYE_S = 15.0
"""What the controller gets to end in order."""

# ---------------------------------------------------------------------------------------------------------------- jobs


@dataclass(frozen=True, slots=True)
class Shape:
    """Jobs that are all alike."""

    name: str
    count: int
    vram_mib: int
    run_s: float
    fits: bool


SHAPES = (
    Shape("large", 10, vram_mib=36 * 1024, run_s=2.0, fits=True),
    Shape("small", 24, vram_mib=8 * 1024, run_s=1.5, fits=True),
    Shape("huge", 6, vram_mib=80 * 1024, run_s=1.0, fits=False),
)
"""Large jobs need the larger GPU, small ones run anywhere, and no GPU here is large enough for huge ones."""


class JobQueue(Protocol):
    """What the embedded overlay offers to those who submit."""

    async def submit(self, argv: Sequence[str], *, count: int, vram_mib: int, memory_mib: int) -> Sequence[int]: ...

    async def jobs(self) -> Sequence[QueuedJob]: ...

    async def remove(self, ids: Sequence[int]) -> int: ...


@dataclass(frozen=True, slots=True)
class Queue:
    """The embedded overlay's queue, from outside its event loop."""

    jobs_in: JobQueue
    turn: asyncio.Runner

    def submit(self, shape: Shape) -> Sequence[int]:
        """The jobs of one shape: each sleeps for a moment, as if it computed."""
        argv = ["sleep", f"{shape.run_s:g}"]
        jobs = self.jobs_in.submit(argv, count=shape.count, vram_mib=shape.vram_mib, memory_mib=64)
        return self.turn.run(_awaited(jobs))

    def jobs(self) -> Sequence[QueuedJob]:
        return self.turn.run(_awaited(self.jobs_in.jobs()))

    def remove(self, ids: Sequence[int]) -> None:
        self.turn.run(_awaited(self.jobs_in.remove(ids)))


async def _awaited(call: Awaitable[T]) -> T:
    async with asyncio.timeout(30):
        return await call


# ------------------------------------------------------------------------------------------------------------ the play


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a demo is played."""

    directory: Path

    @property
    def config(self) -> Path:
        return self.directory / "provisioner.yaml"

    @property
    def log(self) -> Path:
        return self.directory / "controller.log"


@dataclass(frozen=True, slots=True)
class ShapeNow:
    """How the jobs of one shape fare."""

    shape: Shape
    done: int
    running: int
    failed: int
    waits_s: tuple[float, ...]
    """From submission to start, of those that have started."""
    why: Reason | None
    """Why the rest waits."""

    @property
    def waiting(self) -> int:
        return self.shape.count - self.done - self.running - self.failed


@dataclass(frozen=True, slots=True)
class Scene:
    """What is to be seen at one moment."""

    at_s: float
    """Since the curtain rose."""
    shapes: tuple[ShapeNow, ...]
    drones: tuple[Drone, ...]
    """Live and ended ones, oldest first."""
    news: tuple[Transition, ...]
    """Steps of drones since the last scene."""
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
class Outcome:
    """What came of it."""

    scene: Scene
    histories: dict[DroneId, list[Transition]]
    faults: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.faults


class Show(Protocol):
    """What shows the scenes to a person."""

    def scene(self, scene: Scene) -> None: ...

    def summary(self, outcome: Outcome) -> None: ...

    def close(self) -> None: ...


def play(there: Stage, show: Show, turn: asyncio.Runner, asked_to_end: threading.Event) -> Outcome:
    """Submit, watch until all is over, take away what could never run, and look for anything left behind.

    Raises KeyboardInterrupt where it was asked to end before all was over.
    """
    from provisioner.store.sql import SqlReader

    queue = Queue(cast(JobQueue, open_queue(Where(config=there.config))), turn)
    reader = SqlReader(there.directory / "provisioner.db")
    jobs = {shape: queue.submit(shape) for shape in SHAPES}
    faults: list[str] = []
    watcher = Watcher(queue, reader, jobs)
    try:
        with controller(there) as process:
            try:
                scene = watcher.scene()
                while not scene.over:
                    if asked_to_end.is_set():
                        raise KeyboardInterrupt
                    if process.poll() is not None:
                        raise Failure(f"the controller ended, status {process.returncode}:", *_last_lines(there.log))
                    if scene.at_s > LIMIT_S:
                        faults.append(f"not over after {LIMIT_S:g} s; the controller's last words:")
                        faults += _last_lines(there.log)
                        break
                    show.scene(scene)
                    asked_to_end.wait(LOOK_S)
                    scene = watcher.scene()
                show.scene(scene)
                queue.remove([job for shape, ids in jobs.items() if not shape.fits for job in ids])
            finally:
                show.close()
        if process.returncode:
            faults.append(f"the controller ended with status {process.returncode}: {there.log}")
        faults += _wrong(scene)
        return Outcome(scene, {d.id: reader.history(d.id) for d in scene.drones}, (*faults, *left_behind(reader)))
    finally:
        sweep(reader)


@contextmanager
def controller(there: Stage) -> Iterator[subprocess.Popen[bytes]]:
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
            process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(slots=True)
class Watcher:
    """Looks at the queue and at the record, as any operator could."""

    queue: Queue
    reader: Reader
    jobs: dict[Shape, Sequence[int]]
    began: float = 0.0
    seen: int = 0
    classes: dict[str, str] = field(default_factory=dict)

    def scene(self) -> Scene:
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
            _shape_now(shape, [states[number] for number in ids if number in states], why.get(shape.vram_mib))
            for shape, ids in self.jobs.items()
        )
        return Scene(now - self.began, shapes, tuple(drones), tuple(step for _, step in steps), now, self.classes)

    def _reasons(self) -> dict[int, Reason]:
        """Why jobs wait, by the VRAM that they ask for: it tells the shapes apart."""
        from provisioner.cli.class_rows import class_rows
        from provisioner.cli.demand import newest_plan

        rows = class_rows(self.reader.views(), newest_plan(self.reader), ())
        names = {shape.vram_mib: shape.name for shape in self.jobs}
        self.classes |= {row.job.id: names[row.job.vram_mib] for row in rows if row.job.vram_mib in names}
        return {row.job.vram_mib: row.reasons[0] for row in rows if row.reasons and (row.job.waiting or row.job.fresh)}


def _shape_now(shape: Shape, jobs: list[QueuedJob], why: Reason | None) -> ShapeNow:
    states = [str(job.state) for job in jobs]
    return ShapeNow(
        shape,
        done=states.count("done"),
        running=states.count("running"),
        failed=states.count("failed") + states.count("held"),
        waits_s=tuple(job.started_at - job.submitted_at for job in jobs if job.started_at),
        why=why if "idle" in states else None,
    )


def _wrong(scene: Scene) -> list[str]:
    """What did not go as it should have."""
    found = [f"drone {drone.id} is still {drone.state}" for drone in scene.live]
    for now in scene.shapes:
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
def stage(directory: Path | None) -> Iterator[Stage]:
    """A directory with the demo's configuration: the one named, which stays, or a temporary one."""
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise Failure(f"{directory} is not empty: name a new directory")
    place = directory.resolve() if directory else Path(tempfile.mkdtemp(prefix="provisioner-demo-"))
    try:
        for source in _configuration().iterdir():
            if source.name.endswith(".yaml"):
                (place / source.name).write_bytes(source.read_bytes())
        yield Stage(place)
    finally:
        if directory is None:
            shutil.rmtree(place, ignore_errors=True)


def _configuration() -> Traversable:
    """The demo's configuration: packaged in a wheel, beside the packages in a checkout."""
    packaged = importlib.resources.files("provisioner.cli") / "demo_config"
    if packaged.is_dir():
        return packaged
    return importlib.resources.files("provisioner") / ".." / "site_configs" / "demo"
