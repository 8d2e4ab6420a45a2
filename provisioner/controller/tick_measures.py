"""Counters and time series that the control loop adds to the record: durations, GPU time, demand and supply."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from provisioner.controller.clock import Clock
from provisioner.controller.compute_thread import ComputeThread
from provisioner.controller.journal import write_store
from provisioner.controller.periodic import WorkContext
from provisioner.model import Plan, Snapshot
from provisioner.store import Store
from provisioner.store.measures import (
    MetricCounts,
    MetricKey,
    MetricValues,
    count_drones,
    gauges,
)
from provisioner.values import define, factory

TICK_SECONDS = MetricKey("provisioner_tick_seconds")
DECISION_SECONDS = MetricKey("provisioner_decision_seconds")
STORE_WRITE_SECONDS = MetricKey("provisioner_store_write_seconds")
SAMPLE_EVERY_S = 60.0


@define
class TickMeasures:
    """Call :meth:`note` before a plan is recorded, and :meth:`turn` between ticks."""

    store: Store
    clock: Clock
    compute: ComputeThread
    _durations: MetricCounts = factory(MetricCounts)
    _sampled_at: float | None = None
    _due: tuple[Snapshot, Plan] | None = None
    """Snapshot and plan of the sample that is due."""

    @contextmanager
    def timed(self, duration: MetricKey) -> Iterator[None]:
        """Measure the time of a block."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        finally:
            self._durations.add_duration(duration, loop.time() - began)

    def note(self, snapshot: Snapshot, plan: Plan) -> None:
        """Count durations, and note what the sample that is due shows, for the transaction of ``plan``."""
        now = asyncio.get_running_loop().time()
        self.store.count(self._durations)
        self._durations.clear()
        if self._sampled_at is None or now - self._sampled_at >= SAMPLE_EVERY_S:
            self._sampled_at = now
            self._due = snapshot, plan

    async def turn(self, work: WorkContext) -> None:
        """Record the sample that is due. One that cannot be written is left out of the gauges."""
        due = self._due
        self._due = None
        if due is not None:
            values = await self.compute.run(_gauges, *due)
            sample = self.store.record_sample(self.clock.now(), values)
            await write_store("series.write_failed", sample)


def _gauges(snapshot: Snapshot, plan: Plan) -> MetricValues:
    return gauges(snapshot, count_drones(snapshot.drones.values()), plan, snapshot.now)
