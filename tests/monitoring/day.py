"""A scripted day: the whole controller in virtual time, with a real record and what `/metrics` says every minute.

Two sites, one with an owner who comes and goes; drones that die young and eat jobs; a site that
denies us for a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from prometheus_client.metrics_core import Metric

from provisioner.model import (
    Credential,
    ModelUse,
    Plan,
    Policy,
    PolledServices,
    Service,
    ServiceState,
    ServicesView,
    ServiceView,
    Snapshot,
)
from provisioner.monitoring.metrics import families
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import JobRequirements
from provisioner.simulator.loop import Fixed, Uniform
from provisioner.simulator.world import START_EPOCH
from tests.simulator.crashing import simulate
from tests.simulator.faults import FaultyScenario, ServiceFault, ServiceFaultKind
from tests.simulator.owner_queue import Owner, OwnerJob
from tests.simulator.worlds import IMPOSSIBLE, Shape, poisson_mix, small, topas
from tests.store.story import TemporaryStore

HOURS = 6
HOUR_S = 3600.0
END = START_EPOCH + HOURS * HOUR_S
MEASURED = Shape(
    JobRequirements(cpus=2, memory_mib=8192, duty_milli=300, width_milli=500),
    Uniform(300.0, 2400.0),
)


class ScrapedStore(TemporaryStore):
    """A record that is scraped whenever the controller takes a sample."""

    def __init__(self) -> None:
        super().__init__("sim", snapshots=0)
        self.scrapes: list[tuple[float, list[Metric]]] = []

    async def record(self, plan: Plan, snapshot: Snapshot) -> None:
        """Record a plan of a controller with a token and an inference service."""
        token = Credential("token", "file token", not_after=END + 30 * 86400.0, used_by="overlay")
        done = 10 * plan.tick
        model = ModelUse("deepmet:3", done, queue_s=0.1 * done, compute_s=0.3 * done)
        view = ServiceView("cms", done, plan.tick, by_vo={"cms": done}, models=(model,))
        known = replace(
            snapshot,
            credentials=(token,),
            policy=replace(snapshot.policy, services=(Service("cms"),)),
            services=PolledServices(ServicesView(snapshot.now, (view,))),
        )
        await super().record(replace(plan, services=(ServiceState("cms"),)), known)

    async def record_sample(self, at: float, gauges: Any) -> None:
        await super().record_sample(at, gauges)
        self.scrapes.append((at, [*families(self.reader(), at, lambda _: [("note", "hopeless")])]))


def scripted_day(hours: int = HOURS) -> ScrapedStore:
    """Play the day. Return its record, with the scrapes of each minute."""
    store, span_s = ScrapedStore(), hours * HOUR_S
    rough = SiteBehaviour(
        boot=Uniform(20.0, 90.0), check=Fixed(5.0), dies_young=0.1, eats_jobs=0.05
    )
    kit = small("kit", gpus=8, max_drones=8, behaviour=rough, types=2)
    bursts = tuple(
        OwnerJob((at + 0.5) * HOUR_S, 1500.0, gpus=4, cpus=4)
        for at in range(hours)
        for _ in range(7)
    )
    owner = Owner(bursts, preempts_after_s=60.0)
    scenario = FaultyScenario(
        (replace(kit, reports_nodes=True), topas(owner, nodes=4)),
        poisson_mix(
            (MEASURED, replace(IMPOSSIBLE, weight=0.05)), per_hour=40.0, span_s=span_s, seed=1
        ),
        policy=Policy(idle_timeout_s=120.0, interval_s=20.0, active_interval_s=20.0),
        limit_s=span_s,
        service_faults=(
            ServiceFault(ServiceFaultKind.DENIED, "kit", "poll", 2 * HOUR_S, 2.5 * HOUR_S),
            ServiceFault(ServiceFaultKind.DENIED, "kit", "*", span_s - 1200.0),
        ),
    )
    simulate(scenario, lambda: store)
    return store


def openmetrics(store: ScrapedStore) -> Iterator[str]:
    """Yield the scrapes as one file in OpenMetrics, with times: each family once."""
    named: dict[str, list[tuple[float, Metric]]] = {}
    for at, scrape in store.scrapes:
        for family in scrape:
            named.setdefault(family.name, []).append((at, family))
    for name, found in named.items():
        yield f"# TYPE {name} {found[0][1].type}\n"
        for at, family in found:
            for sample in family.samples:
                labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
                yield f"{sample.name}{{{labels}}} {sample.value!r} {at:.3f}\n"
    yield "# EOF\n"
