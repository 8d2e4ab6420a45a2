"""The report of a shadow beside a wasteful controller in one simulated world, against what that world knows itself."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from provisioner.answers.shadow import comparison_document, shadow_document
from provisioner.controller.loop import Controller
from provisioner.controller.shadow import decide_without_orders, observed_overlay, observed_site
from provisioner.model import DroneId, DroneType, OtherDrones, OverlayView, Policy, SiteView
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Fixed, VirtualClock, run_virtual
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.shadow import Comparison, GpuUse, compare, with_sum
from provisioner.simulator.world import (
    START_EPOCH,
    Scenario,
    Simulation,
    SimulationOutcome,
    World,
    quiet,
    simulate,
)
from provisioner.store import Store
from provisioner.store.observations import Observation
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.simulator.worlds import small

BOOT_S, CYCLE_S, TICK_S = 60.0, 20.0, 10.0
BEHAVIOUR = SiteBehaviour(boot=Fixed(BOOT_S), check=Fixed(0.0), release=Fixed(20.0))
WASTEFUL = Policy(idle_timeout_s=1800.0, idle_fixed=True)
"""Its drones stay for half an hour without a job."""
THRIFTY = Policy(idle_timeout_s=120.0, idle_fixed=True)


def a_scenario(policy: Policy) -> Scenario:
    """Bursts of jobs an hour apart, at a site of 4 GPUs; each job takes ten minutes."""
    jobs = [
        SimulatedJob(300.0 + hour * 3600.0 + n, 600.0, JobRequirements())
        for hour in range(4)
        for n in range(6)
    ]
    facility = small("kit", behaviour=BEHAVIOUR)
    return Scenario(
        (facility,),
        tuple(jobs),
        policy=replace(policy, interval_s=TICK_S),
        pool=PoolBehaviour(CYCLE_S),
    )


@dataclass
class PoolSeenFromOutside:
    """The pool of a world, for one who has no drones in it."""

    world: World
    joined: set[DroneId] = field(default_factory=set)

    async def __aenter__(self) -> PoolSeenFromOutside:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        view = await self.world.overlay.poll(types)
        done = tuple(replace(each, drone_id=None) for each in view.completions or ())
        return replace(view, slots=(), completions=done, evictions=None, mishaps=())

    async def other_drones(self) -> Sequence[OtherDrones]:
        slots = (await self.world.overlay.poll(())).slots
        busy = sum(1000 - slot.free_gpu_milli for slot in slots)
        self.joined |= {slot.drone_id for slot in slots}
        return [OtherDrones("KIT", "A100", len(slots), 1000 * len(slots), busy, len(self.joined))]


@dataclass
class SiteSeenFromOutside:
    world: World

    async def __aenter__(self) -> SiteSeenFromOutside:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def poll(self) -> SiteView:
        return replace(await self.world.sites["kit"].poll(), drones={})


async def side_by_side(path: Path, scenario: Scenario) -> tuple[World, SimulationOutcome]:
    """Run a controller in the scenario's world, and beside it a shadow with the record at ``path``."""
    simulation, worlds = Simulation(scenario), list[World]()

    async def shadow(world: World) -> None:
        store = SqlStore(path, "sim-shadow", 1e9, 3, threaded=False, shadow=True)
        async with (
            store,
            Controller(
                "sim-shadow",
                replace(THRIFTY, sites=scenario.full_policy.sites, interval_s=TICK_S),
                world.types,
                observed_overlay(PoolSeenFromOutside(world)),  # type: ignore[arg-type]
                {"kit": observed_site(SiteSeenFromOutside(world))},  # type: ignore[arg-type]
                store,
                VirtualClock(),
                planner=decide_without_orders,
            ) as controller,
        ):
            store._opened.execute("PRAGMA synchronous = OFF")
            await controller.run(asyncio.Event())

    serve = simulation.serve

    async def both(
        world: World, stop: asyncio.Event, store: Store, overlay: object, sites: object
    ) -> None:
        worlds.append(world)
        beside = asyncio.create_task(shadow(world))
        await serve(world, stop, store, overlay, sites)  # type: ignore[arg-type]
        beside.cancel()
        await asyncio.wait([beside])

    simulation.serve = both  # type: ignore[method-assign]
    outcome = await simulation.run()
    return worlds[0], outcome


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reader, SimulationOutcome]:
    path = tmp_path_factory.mktemp("shadow") / "record.db"
    with quiet():
        _, outcome = run_virtual(side_by_side(path, a_scenario(WASTEFUL)), start_epoch=START_EPOCH)
    return Reader(path), outcome


def test_the_figures_are_those_of_the_world(played: tuple[Reader, SimulationOutcome]) -> None:
    reader, outcome = played
    alone, used = (
        simulate(replace(a_scenario(WASTEFUL), seed=outcome.seed)),
        outcome.metrics.by_site["kit"],
    )
    assert alone.digest == outcome.digest, "the shadow changed something"
    views, seen = reader.views(), reader.observations(0.0)
    assert views is not None and not outcome.violations
    found = compare(views, seen, reader.completions(0.0, 1e12), BOOT_S, CYCLE_S)
    assert found.their_waits.jobs == found.our_waits.jobs == outcome.jobs == 24
    theirs = found.theirs["kit"]
    in_pool_s = used.held - used.boot - used.release
    assert theirs.drones == outcome.metrics.started
    # the begin and the end of each drone are known to a tick
    within = 2 * TICK_S * outcome.metrics.started
    assert theirs.held_s == pytest.approx(in_pool_s, abs=within) and in_pool_s > 20 * within / 3
    assert theirs.busy_s == pytest.approx(used.good, abs=within) and used.good == 24 * 600
    waits = outcome.metrics.waits_s
    assert found.their_waits.mean_s == pytest.approx(sum(waits) / len(waits), abs=1.0)


def test_a_submission_in_the_second_of_the_first_observation_counts(
    played: tuple[Reader, SimulationOutcome],
) -> None:
    reader, outcome = played
    completed = reader.completions(0.0, 1e12)
    first = int(min(each.submitted_at for each in completed))
    cut = [replace(each, submitted_at=float(int(each.submitted_at))) for each in completed]
    views, seen = reader.views(), reader.observations(first + 0.9)
    assert views is not None and seen[0].at == first + 0.9
    assert compare(views, seen, cut, BOOT_S, CYCLE_S).their_waits.jobs == outcome.jobs


def test_the_prediction_is_what_our_policy_does_in_that_world(
    played: tuple[Reader, SimulationOutcome],
) -> None:
    reader, _ = played
    views, real = reader.views(), simulate(a_scenario(THRIFTY)).metrics
    assert views is not None
    found = compare(views, reader.observations(0.0), reader.completions(0.0, 1e12), BOOT_S, CYCLE_S)
    ours, theirs = found.ours["kit"], found.theirs["kit"]
    assert ours.busy_s == pytest.approx(real.by_site["kit"].good) and ours.drones == pytest.approx(
        real.started, abs=4
    )
    assert ours.held_s == pytest.approx(real.by_site["kit"].held, rel=0.05)
    assert found.our_waits.mean_s == pytest.approx(
        sum(real.waits_s) / len(real.waits_s), abs=2 * CYCLE_S
    )
    assert theirs.idle_s - ours.idle_s > 6 * 3600.0, "half an hour of four GPUs, after each burst"


def test_the_report_tells_it(
    played: tuple[Reader, SimulationOutcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, outcome = played
    monkeypatch.setattr("time.time", lambda: START_EPOCH + outcome.ended_s)
    told = shadow_document(reader, 0.0, BOOT_S, CYCLE_S).plain()
    other, ours = told["uses"][:2]
    assert told["replayed"] == pytest.approx(1.0, abs=0.05)
    saved = told["replayed"] * other["idle_gpu_s"] - ours["idle_gpu_s"]
    assert told["saved_gpu_s"] == pytest.approx(saved, rel=0.01) and saved > 0
    assert [row["site"] for row in told["uses"]] == ["", "", "kit", "kit"] and told["uses"][3][
        "saved_gpu_s"
    ] > 0
    assert other["jobs"] == 24 and told["uses"][2]["jobs"] is None
    assert "boot 1m, negotiation every 20s" in told["assumptions"]
    half = shadow_document(reader, START_EPOCH + 3 * 3600.0, BOOT_S, CYCLE_S).plain()
    assert half["jobs"] == 6 and half["since_at"] == START_EPOCH + 3 * 3600.0


def test_idle_time_of_the_other_system_counts_as_far_as_its_jobs_are_replayed() -> None:
    """Its drones idled between ten hours of jobs, of which five ran on at the end: we cannot save what we do not do."""
    theirs, ours = {"kit": GpuUse(9, 54_000.0, 36_000.0)}, {"kit": GpuUse(5, 20_000.0, 18_000.0)}
    found = Comparison(theirs=with_sum(theirs), ours=with_sum(ours))
    told = comparison_document(found).plain()
    assert told["replayed"] == 0.5 and told["saved_gpu_s"] == 18_000.0 / 2 - 2_000.0
    assert told["uses"][3]["saved_gpu_s"] == told["saved_gpu_s"]
    assert (
        comparison_document(found._replace(theirs=with_sum({}))).plain()["saved_gpu_s"] == -2_000.0
    )


def test_what_was_not_observed_does_not_count() -> None:
    from provisioner.simulator.shadow import _spans, _use

    def at(begin: float, end: float, drones: int, joined: int) -> Observation:
        return Observation(
            begin, end, (OtherDrones("a", "", drones, 1000 * drones, 500 * drones, joined),), {}
        )

    first = Observation(0, 0, (), {})
    assert _use([*_spans([first, at(0, 100, 1, 1)])])["a"].drones == 1, (
        "it joined, though there was none before"
    )
    # after the gap another process polls
    seen = [at(0, 100, 1, 7), at(110, 200, 2, 9), at(4000, 4100, 4, 1)]
    spans = list(_spans(seen))
    assert [(begin, end) for begin, end, _ in spans] == [(0, 110), (110, 200), (4000, 4100)]
    assert _use(spans) == {"a": GpuUse(3, 110 + 180 + 400, 55 + 90 + 200)}
