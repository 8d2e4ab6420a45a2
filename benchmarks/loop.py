"""The whole loop at three sizes: the real controller, sanitizer and SQLite store, in a world that goes on.

Sites and pool answer at once from memory with what :mod:`benchmarks.ticks` prepared before the tick.
The store writes in its thread, to a real disk. Each tick is 15 s after the last one on the
controller's clock. ``python -m benchmarks.loop --size DRONES CLASSES TYPES`` measures one size,
with ``--profile FILE`` under cProfile and without threads, and ``--anew`` with adapters that build each value again.
``--plot FILE.svg`` also measures how a tick grows with drones and classes, and draws it.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import structlog

from benchmarks.cost import Figure, peak_mib, tell
from benchmarks.ticks import TICK_S, World
from benchmarks.world import NOW
from provisioner import model, reasons
from provisioner.controller.loop import Controller
from provisioner.controller.sanitize import Sanitizer
from provisioner.model import OrderOutcome, OrderResult
from provisioner.planner import planner
from provisioner.planner.validation import validate_plan
from provisioner.simulator.loop import VirtualClock
from provisioner.store.writer import SqlStore

SIZES = ((1_000, 100, 20), (10_000, 1_000, 100), (100_000, 10_000, 500))
WANTED = {
    1_000: (0.02, 0.05, 0.05, 100),
    10_000: (0.1, 0.3, 0.1, 200),
    100_000: (1.0, 2.0, 0.3, 600),
}
"""By drones: seconds of a tick in the mean and at worst, of the longest block; MiB."""
WARM_UP = 6
TICKS = 12
GROWTH = {100: 20, 1_000: 100, 10_000: 500}
"""Drone types by number of classes, for the picture."""
GROWTH_DRONES = (1_000, 10_000, 100_000)
WATCH_S = 0.01


@dataclass
class SteppedClock(VirtualClock):
    """The controller's clock, set before each tick."""

    at: float = NOW

    def now(self) -> float:
        return self.at


@dataclass(slots=True)
class Place:
    """Pool and sites as they are in the next tick."""

    seen: model.Snapshot
    ordered_at: float = 0.0
    """Time of the first order to drain or stop drones since it was 0."""

    def site(self, name: str) -> PreparedSite:
        return PreparedSite(self, name)

    def ordered(self) -> None:
        self.ordered_at = self.ordered_at or time.perf_counter()


class _Entered:
    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


@dataclass(slots=True, eq=False)
class PreparedPool(_Entered):
    place: Place

    async def poll(self, types: Sequence[model.DroneType]) -> model.OverlayView:
        view = self.place.seen.overlay.view
        assert view is not None
        return view

    async def drain(
        self, drone_ids: Sequence[model.DroneId], mode: model.DrainMode, reason: str
    ) -> list[OrderResult]:
        self.place.ordered()
        return [OrderResult(each, OrderOutcome.OK) for each in drone_ids]

    async def bootstrap(self, order: model.StartOrder) -> model.Bootstrap:
        return model.Bootstrap(b"x")


@dataclass(slots=True, eq=False)
class PreparedSite(_Entered):
    place: Place
    name: str

    async def poll(self) -> model.SiteView:
        view = self.place.seen.sites[self.name].view
        assert view is not None
        return view

    async def start(self, orders: Sequence[model.StartOrder]) -> list[OrderResult]:
        return [OrderResult(o.drone_id, OrderOutcome.OK, remote_id=o.drone_id) for o in orders]

    async def stop(self, orders: Sequence[model.StopOrder]) -> list[OrderResult]:
        self.place.ordered()
        return [OrderResult(each.drone_id, OrderOutcome.OK) for each in orders]


@dataclass(slots=True)
class Spent:
    """Processor seconds by part of the tick, and the longest block of the event loop, since :meth:`clear`."""

    parts: Counter[str] = field(default_factory=Counter)
    block_s: float = 0.0

    def clear(self) -> None:
        self.parts.clear()
        self.block_s = 0.0

    @contextmanager
    def of(self, part: str, clock: Callable[[], float] = time.thread_time) -> Iterator[None]:
        began = clock()
        try:
            yield
        finally:
            self.parts[part] += clock() - began

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.of(part):
                return call(*args, **kwargs)

        return run

    async def watch(self) -> None:
        """Note by how much the loop is late, for ever."""
        while True:
            began = time.perf_counter()
            await asyncio.sleep(WATCH_S)
            self.block_s = max(self.block_s, time.perf_counter() - began - WATCH_S)


class MeasuredStore(SqlStore):
    """The store, with what a plan's record costs; nothing else of the process works meanwhile."""

    spent: Spent
    asked: tuple[model.OperatorRequest, ...] = ()
    """Requests of operators."""

    async def requests(self) -> tuple[model.OperatorRequest, ...]:
        return (*await super().requests(), *self.asked)

    async def record(self, plan: model.Plan, snapshot: model.Snapshot) -> None:
        with self.spent.of("record", time.process_time):
            await super().record(plan, snapshot)


@dataclass(frozen=True, slots=True)
class Measured:
    """One size. Seconds; each part in the mean of all ticks, in processor time."""

    drones: int
    classes: int
    types: int
    acting: float
    """Part of the ticks that started or ended a drone."""
    mean_s: float
    """Wall-clock seconds of a tick in the mean."""
    worst_s: float
    cpu_s: float
    """Processor time of all threads in a tick."""
    parts: dict[str, float]
    block_s: float
    resident_mib: float
    peak_mib: float
    acted_s: dict[str, float]
    """From the begin of a tick that sees a request to its order; from SIGTERM in a tick to the end of the loop."""


async def ordered_s(controller: Controller, place: Place, seen: model.Snapshot) -> float:
    """Return the seconds from the begin of a tick that sees this to the first order that frees a GPU."""
    place.seen = seen
    place.ordered_at, began = 0.0, time.perf_counter()
    await controller.turn()
    assert place.ordered_at, "the request was not carried out"
    return place.ordered_at - began


def with_claim(
    seen: model.Snapshot, kinds: Mapping[model.TypeKey, model.DroneType]
) -> model.Snapshot:
    """Return a snapshot in which each drone of a site has a node of its own, and an owner wants one."""
    drone = next(d for d in seen.drones.values() if d.state is model.DroneState.BUSY)
    polled = seen.sites[drone.site]
    assert polled.view is not None
    listed = {i: replace(remote, node=i) for i, remote in polled.view.drones.items()}
    nodes = []
    for drone_id in listed:
        kind = kinds[seen.drones[drone_id].type]
        whole = (kind.gpu_milli, kind.cpus, kind.memory_mib, kind.disk_mib)
        nodes.append(model.Node(drone_id, (kind.name,), *whole, 0, 0, 0, 0))
    claim = model.OwnerDemand(1, drone.gpu_milli, 1, 1024, seen.now - 1, nodes=(drone.id,))
    view = replace(polled.view, drones=listed, nodes=tuple(nodes), claims=(claim,))
    return replace(seen, sites={**seen.sites, drone.site: replace(polled, view=view)})


def without_claims(polled: model.PolledSite) -> model.PolledSite:
    assert polled.view is not None
    return replace(polled, view=replace(polled.view, claims=()))


def turned(world: World, store: SqlStore, clock: SteppedClock) -> model.Snapshot:
    """Return what is seen in the next tick, in which no drone ends."""
    clock.at += TICK_S
    world.follow(store.drones, clock.at)
    world.ends = set()
    return world.snapshot()


async def put_on_record(store: SqlStore, world: World) -> None:
    """Have the world's drones on record, and its jobs since they wait."""
    begun_at = NOW - 86_400.0
    await store.record(model.Plan(1, begun_at), replace(world.snapshot(), now=begun_at))
    why = reasons.JobsWaiting("0", "0", waiting=1, covered=0, starts=1)
    begun = [model.StateChange(drone, None, why) for drone in world.drones.values()]
    await store.record_results(0, begun, ())


async def play(size: tuple[int, int, int], path: Path, ticks: int, asked: Asked) -> Measured:
    drones, classes, types = size
    world = World.of(100 * classes, classes, types, drones)
    world.anew = asked.anew
    place, clock, spent = Place(world.snapshot()), SteppedClock(), Spent()
    sound = Sanitizer.sanitized
    Sanitizer.sanitized = spent.timed("sanitize", sound)  # type: ignore[method-assign]
    rows: list[tuple[float, float, Counter[str], float]] = []
    acting = 0
    async with MeasuredStore(
        path, "bench", keep_s=30 * 86400.0, snapshots=50, threaded=not asked.profile
    ) as store:
        store.spent = spent
        await put_on_record(store, world)
        controller = Controller(
            name="bench",
            policy=world.policy,
            types=world.types,
            overlay=PreparedPool(place),
            sites={name: place.site(name) for name in place.seen.sites},
            store=store,
            clock=clock,
            planner=spent.timed("plan", planner()),
            judge=spent.timed("validate", validate_plan),
            threaded=not asked.profile,
        )
        profile = cProfile.Profile(time.thread_time) if asked.profile else None
        async with controller:
            watch = asyncio.create_task(spent.watch())
            for number in range(WARM_UP + ticks):
                clock.at += TICK_S
                world.follow(store.drones, clock.at)
                place.seen = world.snapshot()
                await asyncio.sleep(2 * WATCH_S)
                spent.clear()
                measured = number >= WARM_UP
                with profile if profile and measured else nullcontext():
                    wall, used = time.perf_counter(), time.process_time()
                    report = await controller.turn()
                    wall, used = time.perf_counter() - wall, time.process_time() - used
                await asyncio.sleep(2 * WATCH_S)
                assert report.recorded, "the store did not take a plan"
                if measured:
                    acting += report.plan.acts
                    rows.append((wall, used, Counter(spent.parts), spent.block_s))
            watch.cancel()
            resident = resident_mib()
            seen = with_claim(turned(world, store, clock), world.by_key)
            quiet = {name: without_claims(polled) for name, polled in seen.sites.items()}
            place.seen = replace(seen, sites=quiet)  # the nodes alone are no news of the owner
            await controller.turn()
            acted = {"an owner's claim": await ordered_s(controller, place, seen)}
            seen = turned(world, store, clock)
            busy = next(d.id for d in seen.drones.values() if d.state is model.DroneState.BUSY)
            drain = model.RequestKind.DRAIN
            store.asked = (model.OperatorRequest(1, clock.at, drain, (busy,), "bench", "op"),)
            acted["an operator's drain"] = await ordered_s(controller, place, seen)
            store.asked = ()
            stop = asyncio.Event()
            life = asyncio.create_task(controller.run(stop))
            await asyncio.sleep(statistics.mean(row[0] for row in rows) / 2)
            stopped = time.perf_counter()
            stop.set()
            await life
        acted["SIGTERM"] = time.perf_counter() - stopped
    assert acting, "plans that do nothing measure nothing"
    if profile:
        profile.dump_stats(asked.profile)
    Sanitizer.sanitized = sound  # type: ignore[method-assign]
    walls, cpus, parts, blocks = zip(*rows, strict=True)
    means = {name: sum(each[name] for each in parts) / ticks for name in parts[0]}
    means["rest"] = statistics.mean(cpus) - sum(means.values())
    return Measured(
        *size,
        acting / ticks,
        statistics.mean(walls),
        max(walls),
        statistics.mean(cpus),
        means,
        max(blocks),
        resident,
        peak_mib(),
        acted,
    )


def resident_mib() -> float:
    """Memory that this process holds now."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024


def apart(*size: int) -> Measured:
    """Measure one size in a process of its own, so that its memory is its own."""
    command = [sys.executable, "-m", "benchmarks.loop", "--size", *map(str, size)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def figures(found: Measured) -> list[Figure]:
    mean_s, worst_s, block_s, resident = WANTED[found.drones]
    what = f"{found.drones:,} drones, {found.classes:,} classes, {found.types} types"
    return [
        Figure(f"one tick, {what}: mean", found.mean_s, "s", f"<= {mean_s}"),
        Figure("  worst", found.worst_s, "s", f"<= {worst_s}"),
        Figure("  processor time, mean", found.cpu_s, "s"),
        *(Figure(f"    {name}", cost_s, "s") for name, cost_s in found.parts.items()),
        Figure("  longest block of the event loop", found.block_s, "s", f"<= {block_s}"),
        Figure("  resident memory, world included", found.resident_mib, "MiB", f"<= {resident}"),
        *(
            Figure(f"  until acted on: {what}", acted_s, "s", "<= 2")
            for what, acted_s in found.acted_s.items()
        ),
    ]


def growth() -> dict[int, list[float]]:
    """By number of classes, the processor seconds of a tick for each number of drones."""
    return {
        classes: [apart(drones, classes, types).cpu_s for drones in GROWTH_DRONES]
        for classes, types in GROWTH.items()
    }


def draw(found: dict[int, list[float]], path: Path) -> None:
    """The picture in ``docs``."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "loop-scale"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for classes, cost_s in found.items():
        label = f"{classes:,} job classes, {GROWTH[classes]} drone types"
        axes.loglog(GROWTH_DRONES, cost_s, marker="o", label=label)
    axes.set_xlabel("drones")
    axes.set_ylabel("one tick, s of processor time")
    axes.set_title("The whole loop: poll, plan, record, act")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


class Asked(argparse.Namespace):
    size: list[int] | None
    ticks: int
    anew: bool
    profile: Path | None
    plot: Path | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--size", type=int, nargs=3, metavar=("DRONES", "CLASSES", "TYPES"))
    parser.add_argument("--ticks", type=int, default=TICKS)
    parser.add_argument("--anew", action="store_true")
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args(namespace=Asked())
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if asked.size:
        drones, classes, types = asked.size
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "record.db"
            found = asyncio.run(play((drones, classes, types), path, asked.ticks, asked))
        print(json.dumps(asdict(found)))
        return
    told = [figure for size in SIZES for figure in figures(apart(*size))]
    if asked.plot:
        draw(growth(), asked.plot)
    tell(*told)


if __name__ == "__main__":
    main()
