"""The control loop: poll, plan, record, act, and record the results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from itertools import filterfalse
from math import inf
from typing import Self

import structlog

from provisioner import formatting, model, reasons
from provisioner.controller import actuation
from provisioner.controller.actuation import DeadSlots, Pools
from provisioner.controller.clock import Clock
from provisioner.controller.clock_watch import ClockWatch
from provisioner.controller.compute_thread import ComputeThread
from provisioner.controller.estimation import EstimateCollector, EstimateRecorder
from provisioner.controller.journal import (
    log_breakers,
    log_moves,
    log_plan,
    read_store,
    write_store,
)
from provisioner.controller.leadership import Leadership
from provisioner.controller.low_use import LowUseWatch
from provisioner.controller.orphans import OrphanWatch
from provisioner.controller.past_runs import PastRuns
from provisioner.controller.periodic import (
    GarbageCollection,
    PeriodicWork,
    Pruning,
    WorkContext,
)
from provisioner.controller.polling import (
    FIRST_POLL_WAIT_S,
    SERVICES_DEADLINE_S,
    TICK_WAIT_S,
    CredentialSource,
    Poller,
    PollTarget,
    adapter_of,
    within,
)
from provisioner.controller.reports import Reports
from provisioner.controller.serials import Serials
from provisioner.controller.tick_measures import (
    DECISION_SECONDS,
    STORE_WRITE_SECONDS,
    TICK_SECONDS,
    TickMeasures,
)
from provisioner.controller.view_doubts import ViewDoubts
from provisioner.interfaces import (
    Overlay,
    ServicePool,
    Site,
    SupportsClaim,
    SupportsConsoleOutput,
    SupportsCredentials,
)
from provisioner.keys import OVERLAY_SCOPE, Scope
from provisioner.model import (
    Breaker,
    DroneId,
    DroneState,
    DroneType,
    OverlayView,
    Plan,
    Policy,
    PolledOverlay,
    RemoteDrone,
    RequestKind,
    ServicesView,
    Snapshot,
    StateChange,
)
from provisioner.planner import decide
from provisioner.planner.breakers import update_by_order_results
from provisioner.planner.lifecycle import (
    apply_drain_result,
    apply_start_result,
    apply_stop_result,
)
from provisioner.planner.safeguards import PlanFunction, PlanValidator, safe_plan
from provisioner.planner.validation import validate_plan
from provisioner.store import Store
from provisioner.values import define, factory, frozen

log = structlog.get_logger()


CLAIM_DEADLINE_S = 1.0
SHUTDOWN_WAIT_S = 60.0
"""Longest wait for orders under way at the end. The next controller settles those without a result."""
TURN_LIMIT_S = 300.0
"""A turn that takes longer hangs: its polls and orders have deadlines of seconds. The watchdog ends the process."""
ACTIVE_FOR_S = 300.0
"""A drone that stays in one state for longer does not shorten the pause between ticks."""
CHANGING = {
    *(DroneState.REQUESTED, DroneState.SUBMITTED, DroneState.BOOTING, DroneState.JOINED),
    *(DroneState.DRAINING, DroneState.STOPPING),
}


@frozen
class TickReport:
    plan: Plan
    faults: tuple[str, ...] = ()
    """Breaches of the plan as it was made; the actions concerned were left out."""
    recorded: bool = True
    """False if the store could not take the plan: then nothing was acted on either."""


@define
class PlannerFailures:
    """Failures of the planner in a row.

    The log gets each new error once with its traceback, and a lasting one only when its count has
    doubled: at every tick it would fill the disk.
    """

    error: str = ""
    count: int = 0

    def note(self, error: Exception | None) -> None:
        """Count and log a failure, or a plan that succeeded (None)."""
        text = f"{type(error).__name__}: {error}" if error is not None else ""
        if self.error and not text:
            log.info("planner.recovered", why=self.error, in_a_row=self.count)
        self.count = self.count + 1 if text == self.error else 1
        self.error = text
        if text and self.count == 1:
            log.error("planner.failed", why=text, exc_info=error)
        elif text and self.count & (self.count - 1) == 0:
            log.error("planner.failed", why=text, in_a_row=self.count)


@define
class Controller:
    """The control loop. Enter it, then call :meth:`tick` or :meth:`run`."""

    name: str
    policy: Policy
    types: Sequence[DroneType]
    overlay: Overlay
    sites: Mapping[str, Site]
    store: Store
    clock: Clock
    services: ServicePool | None = None
    estimation: EstimateCollector = factory(EstimateCollector)
    planner: PlanFunction = decide
    judge: PlanValidator = validate_plan
    between_ticks: asyncio.Lock = factory(asyncio.Lock)
    """Held during a tick of :meth:`run`, and by each change of the configuration."""
    credentials: Mapping[str, CredentialSource] = factory(dict)
    """Functions that return the credentials of the options, by their user: ``overlay``, ``site:<name>``, ``web``."""
    on_reload: Callable[[], None] = lambda: None
    """Called when an operator has requested to read the configuration again."""
    on_resign: Callable[[], None] = lambda: None
    """Called when an operator has requested that another member leads."""
    leadership: Leadership = factory(Leadership)
    warm: Poller | None = None
    """Polls of a standby, whose views this controller begins with."""
    threaded: bool = False
    """Sanitize, plan and estimate in a thread, so that the loop goes on; inline on a virtual clock."""
    _stop: asyncio.Event = factory(asyncio.Event)
    _turn_due_at: float = inf
    """When the turn of :meth:`run` that is under way has to be done, by the event loop."""
    _compute: ComputeThread = field(init=False)
    _group: asyncio.TaskGroup = factory(asyncio.TaskGroup)
    _poller: Poller = field(init=False)
    _orders: dict[asyncio.Task[actuation.BatchResults], str] = factory(dict)
    """Orders under way, or answered and not yet on record, with the site that they went to."""
    _failures: PlannerFailures = factory(PlannerFailures)
    _suspects: tuple[str, ...] = ()
    """Job classes on which the planner failed at the newest tick."""
    _orphans: OrphanWatch = factory(OrphanWatch)
    _requests: tuple[model.OperatorRequest, ...] = ()
    """The open requests of operators as they were last read: a site that one disables stays disabled."""
    _completed_jobs: tuple[model.CompletedJob, ...] = ()
    """The jobs of the newest poll that are on record: an overlay reports each, as the same object, in many polls."""
    measures: TickMeasures = field(init=False)
    recorder: EstimateRecorder = field(init=False)
    _clock_watch: ClockWatch = field(init=False)
    _reports: Reports = field(init=False)
    _doubts: ViewDoubts = field(init=False)
    _serials: Serials = field(init=False)
    _periodic: Sequence[PeriodicWork] = field(init=False)
    """Work between two ticks, in this order."""
    _dead_slots: DeadSlots = field(init=False)
    _past_runs: PastRuns = field(init=False)
    _leads_since: float = 0.0
    _starts_from: float = 0.0
    """No drone is started by an older view of its site."""

    def __post_init__(self) -> None:
        self._compute = ComputeThread(self.threaded)
        self._dead_slots = DeadSlots(self.overlay, self.clock, self.leadership)
        self.measures = TickMeasures(self.store, self.clock, self._compute)
        self.recorder = EstimateRecorder(self.estimation, self.store, self.clock, self.event)
        self._clock_watch = ClockWatch(self.clock, self.store, self.event)
        self._reports = Reports(self.event)
        self._doubts = ViewDoubts(self.store, self.clock)
        self._serials = Serials(self.name, self.store, self.event)
        self._past_runs = PastRuns(self.store, self.clock, self.event)
        self._periodic = (
            self._clock_watch,
            Pruning(self.store, self.clock),
            self.measures,
            self.recorder,
            self._past_runs,
            LowUseWatch(self.store, self.clock, self.event),
            # it sets thresholds of the whole process, which belongs to the controller in the service alone
            *([GarbageCollection(self.clock)] if self.threaded else ()),
        )
        overlay = PollTarget("overlay", self._poll_overlay, 0.0, kind="overlay")
        self._poller = Poller(self._group, self.clock, self._compute, overlay)
        if self.services is not None:
            self._poller.services = PollTarget(
                "services", self._poll_services, SERVICES_DEADLINE_S, kind="services"
            )
        if self.warm is not None:
            overlay.view = self.warm.overlay.view
            self._poller.sites = self.warm.sites
            if self._poller.services is not None and self.warm.services is not None:
                self._poller.services.view = self.warm.services.view

    async def __aenter__(self) -> Self:
        await self._clock_watch.settle(start=True)
        await self.recorder.begin(self.policy.waiting_cost)
        self._past_runs.begin()
        await self._group.__aenter__()
        self._set_poll_targets()
        self._leads_since = self.clock.now()
        if self.leadership.takes_over:  # its last orders may still be carried out
            sites = self.policy.sites.values()
            longest_s = max((each.order_deadline_s for each in sites), default=0.0)
            self._starts_from = self._leads_since + longest_s
            self._serials.skip()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """Cancel polls and wait for orders under way, up to a deadline.

        Their intent is on record, and listings will show the next controller what came of them.
        """
        self._poller.close()
        self._dead_slots.close()
        self._past_runs.close()
        try:
            if error is None:
                await self.recorder.keep()
            if error is None and self._orders:
                log.info(
                    "controller.awaiting_orders",
                    of=sorted(s or "overlay" for s in self._orders.values()),
                )
                await asyncio.wait(self._orders, timeout=SHUTDOWN_WAIT_S)
                await self._record_results()
        finally:
            for task in self._orders:
                task.cancel()
            self._compute.close()
            await self._group.__aexit__(kind, error, None)

    async def tick(self) -> TickReport:
        """Poll, plan, record, act. Return the result of the tick."""
        await self._record_results()  # of orders that took longer than the last tick
        await self._clock_watch.settle()
        await self._take_up_requests()
        snapshot = await self._poll()
        await self._reports.credentials(snapshot)
        with self.measures.timed(DECISION_SECONDS):
            found = await self._compute.run(
                safe_plan, snapshot, self.planner, self.judge, self._suspects
            )
        if self.threaded and self._stop.is_set():  # the next controller plans anew
            return TickReport(found.plan, found.faults, recorded=False)
        self._suspects = found.classes
        self._failures.note(found.error)
        await self._reports.breaches(found, snapshot)
        if not await self._record(found.plan, snapshot):
            return TickReport(found.plan, found.faults, recorded=False)
        await self._compute.run(self.estimation.note, snapshot, found.plan)
        await self._remove_dead_slots(snapshot, found.plan)
        await self._act(found.plan)
        await self._record_results()
        await self._record_completed(snapshot.overlay.view)
        return TickReport(found.plan, found.faults)

    async def turn(self) -> TickReport:
        """Tick, and do the work between ticks that is due."""
        async with self.between_ticks:
            with self.measures.timed(TICK_SECONDS):
                report = await self.tick()
            for each in self._periodic:
                await each.turn(self._work())
        return report

    async def run(self, stop: asyncio.Event) -> None:
        """Tick until ``stop`` is set: quickly while something is on the move, else slowly."""
        self._poller.first_wait_s = FIRST_POLL_WAIT_S
        self._stop = stop
        loop = asyncio.get_running_loop()
        while not stop.is_set():
            self._turn_due_at = loop.time() + TURN_LIMIT_S
            report = await self.turn()
            self._turn_due_at = inf
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause(report)):
                    await stop.wait()

    @property
    def awaits_orders(self) -> bool:
        """Return True while an order is under way, or has a result that is not on record."""
        return bool(self._orders)

    def is_making_progress(self) -> bool:
        """Return False if a turn of :meth:`run` hangs."""
        return asyncio.get_running_loop().time() < self._turn_due_at

    async def _poll_overlay(self) -> OverlayView:
        return await self.overlay.poll([kind for kind in self.types if kind.server is None])

    async def _poll_services(self) -> ServicesView:
        assert self.services is not None
        self.leadership.require()  # it changes the balancer
        drones = [drone for drone in self.store.drones.values() if drone.service]
        return await self.services.poll(drones, self.types)

    async def _poll(self) -> Snapshot:
        await self._poller.poll(self.store.breakers)
        await self._record_console_output()
        readings = self._poller.site_readings()
        pool = self._poller.overlay_reading()
        by_site = self._unrecorded(readings.values())
        unrecorded = [each for drones in by_site.values() for each in drones]
        listed = {each.drone_id for each in unrecorded}
        slots = self._doubts.unrecorded_slots(pool.view)
        next_serial = await self._serials.next({*listed, *slots})
        rivals = await self._rivals()
        # its last orders are still under way: what it shows now is half the truth
        for site in self._orders.values():
            if site in readings:
                readings[site] = replace(readings[site], busy=True)
        unknown = [each for each in slots if each not in listed]
        overlay = self._doubted(pool, unknown)
        now = self.clock.now()
        ended = await self._ended(unrecorded, overlay.view)
        found = set(self._orphans.since)
        self._orphans.note(readings.values(), by_site, ended, now)
        new = self._orphans.since.keys() - found
        await self._reports.orphans([each for each in unrecorded if each.drone_id in new])
        twins = rivals | self._orphans.twins(self.policy.orphan_grace_s, now)
        await self._reports.twins(twins)
        return Snapshot(
            now=now,
            tick=self.store.tick + 1,
            id_prefix=f"{self.name}-{self.store.birth}",
            next_serial=next_serial,
            policy=self.policy,
            types=tuple(self.types),
            overlay=overlay,
            sites=readings,
            drones=self.store.drones,
            breakers=self.store.breakers,
            requests=self._requests,
            ended=ended,
            patience=self.store.committed.patience,
            reserved=self.store.committed.reserved,
            estimates=self.estimation.estimates,
            drift_s=self.clock.drift_s(),
            credentials=self._poller.credentials.known,
            renewed=self._poller.credentials.renewed,
            orphans=dict(self._orphans.since),
            services=self._poller.services_reading(),
            service_states=self.store.committed.services,
            twins=twins,
            starts_from=self._starts_from,
            unlisted=self._orphans.unlisted(readings, self._leads_since)
            if self.leadership.term
            else frozenset(),
            adopts=self.leadership.term is not None,
        )

    def _unrecorded(self, readings: Iterable[model.PolledSite]) -> dict[str, list[RemoteDrone]]:
        """Return by site the drones that it lists and the record does not know."""
        is_known = self.store.drones.__contains__
        return {
            each.site: [each.view.drones[i] for i in filterfalse(is_known, each.view.drones)]
            for each in readings
            if each.view is not None
        }

    async def _rivals(self) -> dict[str, str]:
        """Return the other processes that hold a claim at a site under our name, by their records."""
        found: dict[str, str] = {}
        for name, site in self.sites.items():
            adapter = adapter_of(site)
            if isinstance(adapter, SupportsClaim):
                try:
                    others = await within(CLAIM_DEADLINE_S, adapter.claim(self.store.birth))
                except Exception as error:  # of an optional help: it decides nothing
                    log.warning(
                        "claim.failed", site=name, message=f"{type(error).__name__}: {error}"
                    )
                else:
                    births = {each: each.partition(" ")[0] for each in others}
                    found |= {
                        f"{self.name}-{birth}": f"{each}, site {name}"
                        for each, birth in births.items()
                        # another member with this record
                        if not (self.leadership.term and birth == self.store.birth)
                    }
        return found

    async def _record(self, plan: Plan, snapshot: Snapshot) -> bool:
        """Record and log a plan. Return False if the store cannot take it: then nothing may be acted on."""
        self.measures.note(snapshot, plan)
        with self.measures.timed(STORE_WRITE_SECONDS):
            if not await write_store("store.write_failed", self.store.record(plan, snapshot)):
                return False
        if any(each.kind is RequestKind.RESIGN for each in snapshot.requests):
            self.on_resign()
        log_plan(plan)
        log_breakers(snapshot.breakers, plan.breakers, snapshot.overlay.view)
        await self._reports.plan(plan, snapshot)
        return True

    def _doubted(self, reading: PolledOverlay, unknown: Sequence[DroneId]) -> PolledOverlay:
        if reading.view is None:
            return reading
        view = self._doubts.without_forged_slots(reading.view, unknown)
        view = self._doubts.with_seen_waits(view)
        notices = (*view.notices, *self._clock_watch.notices())
        return replace(reading, view=replace(view, notices=notices))

    async def _ended(
        self, unrecorded: Iterable[RemoteDrone], view: OverlayView | None
    ) -> Mapping[DroneId, DroneState]:
        """Return the final states on record of drones that a site still lists, or in which jobs failed lately."""
        ended = model.RemoteState.ENDED
        asked = [each.drone_id for each in unrecorded if each.state is not ended]
        mishaps = view.mishaps if view is not None else ()
        asked += {each.drone_id for each in mishaps if each.drone_id not in self.store.drones}
        if not asked:
            return {}
        return await read_store("store.read_failed", self.store.ended(asked), {})

    async def _record_console_output(self) -> None:
        """Record the last output of drones, for `drones show`. It decides nothing, so failures are only logged."""
        words: dict[DroneId, str] = {}
        for name, site in self.sites.items():
            adapter = adapter_of(site)
            if not isinstance(adapter, SupportsConsoleOutput):
                continue
            try:
                words |= adapter.console_output()
            except Exception as error:
                log.warning(
                    "console_output.read_failed",
                    site=name,
                    message=f"{type(error).__name__}: {error}",
                )
        if words:
            await write_store(
                "console_output.write_failed", self.store.record_outputs(self.clock.now(), words)
            )

    async def _record_completed(self, view: OverlayView | None) -> None:
        """Record the completed jobs that are new. A write that fails is tried again at the next tick."""
        if view is None or view.completions is None:
            return
        known = set(map(id, self._completed_jobs))
        new = [job for job in view.completions if id(job) not in known]
        if not new or await write_store(
            "completed_jobs.write_failed", self.store.record_completed(new)
        ):
            self._completed_jobs = view.completions

    async def _take_up_requests(self) -> None:
        """Read the requests of operators; lift bans and reload. The plan that follows marks them as done."""
        self._requests = await read_store(
            "requests.read_failed", self.store.requests(), self._requests
        )
        for request in self._requests:
            if request.kind is RequestKind.RELOAD:
                self.on_reload()
            if request.kind is not RequestKind.RESET:
                continue
            known = self.store.breakers
            now = self.clock.now()
            failing = [
                scope for scope, breaker in known.items() if breaker.failures or breaker.faults
            ]
            scopes = [
                s
                for s in failing
                if any(s.is_within(Scope.parse(each)) for each in request.drone_ids)
            ]
            lifted = [Breaker(s, since=now, blind_until=known[s].blind_until) for s in scopes]
            if not lifted:
                continue
            if not await write_store(
                "breaker.reset_failed", self.store.record_results(self.store.tick, (), lifted)
            ):
                return
            names = ", ".join(map(str, scopes))[:2000]
            await self.event("breaker.reset", scopes=names, by=request.by, reason=request.reason)

    async def _act(self, plan: Plan) -> None:
        begun: list[asyncio.Task[actuation.BatchResults]] = []
        for batch in (
            actuation.batches(plan, {t.key: t for t in self.types}, self.policy)
            if plan.acts
            else ()
        ):
            site = self.sites.get(batch.site)
            limits = self.policy.sites.get(batch.site)
            deadline_s = limits.order_deadline_s if limits else actuation.DRAIN_DEADLINE_S
            if batch.site and site is None:
                continue  # a site that was removed with drones on record: nobody can be asked
            terms = actuation.OrderTerms(self.clock, self.leadership, deadline_s)
            work = actuation.carry_out(batch, site, Pools(self.overlay, self.services), terms)
            begun.append(self._group.create_task(work, name=f"act:{batch.site or 'pool'}"))
            self._orders[begun[-1]] = batch.site
        if begun:  # earlier ones may hang: they are not waited for again
            await asyncio.wait(begun, timeout=TICK_WAIT_S)

    async def _remove_dead_slots(self, snapshot: Snapshot, plan: Plan) -> None:
        """Have the pool forget drones that died without leaving it: jobs would be matched to their slots."""
        fault = self._dead_slots.answered()
        if fault is not None:
            await self.event("slots.not_removed", warn=True, why=formatting.excerpt(fault.message))
        sites = snapshot.sites.values()
        self._dead_slots.turn(self._group, plan.moves, snapshot.overlay, sites, self.store.drones)

    async def _record_results(self) -> None:
        """Record the results that have come. One that cannot be recorded is kept, and tried again at the next tick."""
        for task in [t for t in self._orders if t.done()]:
            moves, breakers = self._changes_by_results(task.result())
            before = dict(self.store.breakers)
            known = {m.drone.id: self.store.drones[m.drone.id].drain_refusal for m in moves}
            if moves or breakers:
                results = self.store.record_results(self.store.tick, moves, breakers)
                if not await write_store("order_results.write_failed", results):
                    return
            site = self._orders.pop(task)
            log_moves(moves)
            log_breakers(before, breakers)
            for move in moves:
                if site or move.drone.drain_refusal == known[move.drone.id]:
                    continue
                refused = isinstance(move.reason, reasons.DrainRefused)
                await self.event(
                    "drain.rejected" if refused else "drain.failed",
                    warn=True,
                    drone=move.drone.id,
                    why=formatting.excerpt(move.drone.drain_refusal),
                )

    def _changes_by_results(
        self, answers: actuation.BatchResults
    ) -> tuple[list[StateChange], list[Breaker]]:
        now = self.clock.now()
        drones = self.store.drones
        moves: list[StateChange | None] = []
        refused = (r for r in answers.admissions if r.answer is model.OrderOutcome.REJECTED)
        for receipt in (*answers.starts, *refused):
            drone = drones.get(receipt.drone_id)
            # else a listing has settled it
            if drone is not None and drone.state is DroneState.REQUESTED:
                moves.append(apply_start_result(drone, receipt, now))
        for receipt in answers.leaves:
            drone = drones.get(receipt.drone_id)
            if drone is not None:
                settle = apply_stop_result if answers.site else apply_drain_result
                moves.append(settle(drone, receipt))
        return [m for m in moves if m is not None], self._breakers_by_results(answers, now)

    def _breakers_by_results(self, answers: actuation.BatchResults, now: float) -> list[Breaker]:
        drones = self.store.drones
        admitted = (r.drone_id for r in answers.admissions)
        served = {key for key in admitted if key in drones and drones[key].service}
        # what the service pool refuses concerns the type of the server, and not the overlay
        refused = [
            r
            for r in answers.admissions
            if r.drone_id in served and r.answer is model.OrderOutcome.REJECTED
        ]
        known = [r for r in (*answers.starts, *refused) if r.drone_id in drones]
        types = {r.drone_id: Scope.parse(drones[r.drone_id].type) for r in known}
        breakers = update_by_order_results(self.store.breakers, types, known, now)
        by_overlay = [r for r in answers.admissions if r.drone_id not in served]
        overlay = {r.drone_id: OVERLAY_SCOPE for r in by_overlay}
        breakers += update_by_order_results(self.store.breakers, overlay, by_overlay, now)
        return breakers

    def apply(
        self,
        policy: Policy,
        types: Sequence[DroneType],
        sites: Mapping[str, Site],
        credentials: Mapping[str, CredentialSource],
    ) -> Collection[asyncio.Task[actuation.BatchResults]]:
        """Take over a changed configuration between two ticks.

        Return the orders under way: the adapters that they were given to must stay open until they
        are done.
        """
        self.policy = policy
        self.types = types
        self.sites = sites
        self.credentials = credentials
        self._set_poll_targets()
        return list(self._orders)

    def _set_poll_targets(self) -> None:
        before = self._poller.sites
        self._poller.sites = {}
        for name, site in self.sites.items():
            target = before.pop(name, None)
            if target is not None and target.poll != site.poll:  # built anew: what is known stays
                target.close()
                target = PollTarget(name, site.poll, 0.0, target.view, target.fault)
            target = target or PollTarget(name, site.poll, 0.0)
            target.deadline_s = self.policy.sites[name].poll_deadline_s
            self._poller.sites[name] = target
        for gone in before.values():
            gone.close()
        adapters = {
            "overlay": self.overlay,
            **{f"site:{name}": adapter_of(site) for name, site in self.sites.items()},
        }
        sources = {user: [source] for user, source in self.credentials.items()}
        for user, adapter in adapters.items():
            if user in sources and isinstance(adapter, SupportsCredentials):
                sources[user].append(adapter.credentials)
        self._poller.credentials.sources = sources
        self._poller.overlay.deadline_s = self.policy.overlay_poll_deadline_s

    def _work(self) -> WorkContext:
        view = self._poller.overlay.view
        return WorkContext(self._group, self.policy, self.types, self.sites, self.overlay, view)

    def _pause(self, report: TickReport) -> float:
        if not report.recorded:
            return self.policy.interval_s
        since = self.clock.now() - ACTIVE_FOR_S
        moving = any(d.since > since and d.state in CHANGING for d in self.store.drones.values())
        view = self._poller.overlay.view
        waiting = view is not None and any(job.fresh for job in view.classes)
        services = self._poller.services_reading().view
        # requests that wait, or that no server takes: one that starts is seen at once
        unserved = services is not None and any(
            each.queued or (each.requests_per_s and not services.slots)
            for each in services.services
        )
        active = report.plan.acts or moving or waiting or unserved or self._poller.unanswered
        return self.policy.active_interval_s if active else self.policy.interval_s

    async def event(self, name: str, *, warn: bool = False, **fields: str | int | float) -> None:
        """Log and record an event that is no transition of a drone, as a warning with ``warn``."""
        (log.warning if warn else log.info)(name, **fields)
        await write_store("store.write_failed", self.store.event(self.clock.now(), name, fields))
