"""World files: what sites are in a simulation, every mistake with its line, and what is derived without one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.config import ConfigError, Settings, load
from provisioner.config.messages import fields_of
from provisioner.model import EndKind, Service
from provisioner.simulator import world_file
from provisioner.simulator.drones import HardwareFault, HardwareFaultKind
from provisioner.simulator.jobs import SimulatedJob
from provisioner.simulator.loop import Fixed, LogNormal, Uniform
from provisioner.simulator.owner import OwnerSeries, VictimRule
from provisioner.simulator.services import RequestBurst
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world import Scenario, simulate
from provisioner.simulator.world_file import world_of
from tests.simulator.declared import SERIES, declared, world

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "site_configs" / "simulation"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return declared(tmp_path)


def test_without_a_file_the_world_follows_from_the_limits_and_says_so(settings: Settings) -> None:
    plan = world_of(settings, None, span_s=1.0)
    farm, cloud = plan.facilities
    assert [(p.name, p.nodes * p.gpus_per_node, p.gpus_per_node) for p in farm.pools] == [
        ("v100", 8, 1),
        ("a100-a100x4", 12, 4),
        ("cpu", 0, 0),
    ]
    assert farm.serves == {
        "v100": "v100",
        "a100": "a100-a100x4",
        "a100x4": "a100-a100x4",
        "cpu": "cpu",
    }
    assert [(p.name, p.nodes) for p in cloud.pools] == [("t4", 4)]
    assert farm.behaviour.boot == Fixed(75.0)
    assert (
        "farm: 8 GPUs for v100, 12 GPUs for a100-a100x4, as its limits allow; nobody else uses it"
        in plan.notes
    )
    assert "cloud: no queue, boot 75 s, release 5 s" in plan.notes


def test_what_a_file_tells_is_taken(settings: Settings) -> None:
    plan = world(
        settings,
        """
        pool: {negotiation: 0s, update: 30s, best_fit: true}
        sites:
          farm:
            nodes:
              old: {nodes: 2, gpus: 4, cpus: 32, memory: 256 GiB, serves: [v100]}
              new: {gpus: 8, serves: [a100, a100x4]}
              cpu: {nodes: 3, gpus: 0, serves: [cpu]}
            queue: {median: 45s, sigma: 0.4, most: 1h}
            boot: {low: 1min, high: 2min}
            release: 20s
            retire: 24h
            failures: {dies_young: 0.1, eats_jobs: 0.05}
            types:
              a100x4: {queue: 1h}
            owner: {file: load.csv, vc: vcA, gpus: 5, nodes: [old, new], victim: random, notice: 10s}
            reports_free: false
            quota: 9
        hardware_faults:
          - {kind: downtime, where: cloud, at: 1d, for: 6h, notice: 1h}
        """,
        span_s=2 * 86400.0,
    )
    farm = plan.facilities[0]
    assert farm.pools[0] == GpuPool("old", 4, 2, cpus_per_node=32, memory_mib_per_node=262144)
    assert farm.behaviour.queue == LogNormal(45.0, 0.4, 3600.0) and farm.behaviour.boot == Uniform(
        60.0, 120.0
    )
    assert (farm.behaviour.retire_s, farm.behaviour.dies_young, farm.behaviour.eats_jobs) == (
        86400.0,
        0.1,
        0.05,
    )
    assert farm.behaviour_of["a100x4"].queue == Fixed(3600.0)
    assert farm.behaviour_of["a100x4"].boot == Uniform(60.0, 120.0)
    steps = ((0.0, 2), (3600.0, 4), (86400.0, 2), (90000.0, 4))
    assert farm.owner == OwnerSeries(steps, ("old", "new"), VictimRule.RANDOM, 10.0)
    assert not farm.reports_free and farm.quota == 9
    assert plan.hardware_faults == (
        HardwareFault(HardwareFaultKind.DOWNTIME, 86400.0, 21600.0, "cloud", notice_s=3600.0),
    )
    assert (plan.pool.negotiation_s, plan.pool.update_s, plan.pool.best_fit) == (0.0, 30.0, True)


def test_bursts_of_requests_are_of_a_configured_service(settings: Settings) -> None:
    text = "bursts: [{service: cms, at: 1h, for: 20min, rate: 100, jobs: 5, ahead: 2min}]"
    with pytest.raises(ConfigError, match="no service `cms` is configured"):
        world(settings, text)
    policy = replace(settings.policy, services=(Service("cms"),))
    plan = world(replace(settings, policy=policy), text)
    assert plan.bursts == (RequestBurst("cms", 3600.0, 1200.0, 100.0, jobs=5, ahead_s=120.0),)
    assert len(plan.announcing_jobs) == 5


def test_every_key_is_told_of() -> None:
    page = (ROOT / "docs" / "how-to" / "simulate.md").read_text()
    for section in (
        world_file.SiteSection,
        world_file.PoolSection,
        world_file.SeriesSection,
        world_file.NodesSection,
        world_file.FailureSection,
        world_file.HardwareFaultSection,
        world_file.RequestBurstSection,
    ):
        for key in fields_of(section):
            assert f"`{key}`" in page or f" {key}:" in page, f"{section.__name__}.{key}"


def test_the_shipped_world_is_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "owner_load_public.csv.gz").write_bytes(b"")
    (tmp_path / "owner_load_public.csv").write_text(SERIES.replace("vcA", "vc8Sj"))
    monkeypatch.setenv("PROVISIONER_TRACES", str(tmp_path))
    text = (SHIPPED / "world.yaml").read_text().replace("public.csv.gz", "public.csv")
    (tmp_path / "world.yaml").write_text(text)
    plan = world_of(
        load(SHIPPED / "provisioner.yaml", connects=False), tmp_path / "world.yaml", span_s=86400.0
    )
    gpus = {f.name: {p.name: p.nodes * p.gpus_per_node for p in f.pools} for f in plan.facilities}
    assert gpus == {
        "topas": {"v100": 32, "a100": 24},
        "gridka": {"a100": 12},
        "horeka": {"a100": 48, "h100": 8},
    }
    assert isinstance(plan.facilities[0].owner, OwnerSeries) and plan.notes == ()


def test_one_owner_of_two_pools_takes_free_gpus_first_and_then_the_youngest_drones(
    settings: Settings,
) -> None:
    """Ten GPUs in two pools, six drones at work: an owner of 4 disturbs nobody, one of 7 costs three of them."""
    farm = settings.sites[0]
    kinds = tuple(kind for kind in farm.types if kind.name in ("v100", "a100"))

    def ended(gpus: int) -> int:
        facility = Facility(
            farm.policy,
            kinds,
            (GpuPool("v", 1, 4), GpuPool("a", 1, 6)),
            {"v100": "v", "a100": "a"},
            owner=OwnerSeries(((0.0, 0), (3000.0, gpus), (3001.0, 0))),
        )
        jobs = tuple(SimulatedJob(0.0, 6000.0) for _ in range(6))
        outcome = simulate(Scenario((facility,), jobs, seed=1, policy=settings.policy))
        assert not outcome.violations and outcome.jobs_done == 6
        return outcome.metrics.ends["farm", EndKind.PREEMPTED]

    assert ended(4) == 0
    assert ended(7) == 3
    assert ended(50) == 6
