"""Collection of samples for the estimates, tick by tick; see :mod:`provisioner.estimates`.

Everything is bounded: the newest run times of each user, a fortnight of an owner's use, the newest
gaps. :class:`EstimateRecorder` records the samples regularly, so that a restarted controller
continues with them; losing them costs nothing but that. Time without polls is left out, not made
up.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import accumulate, groupby, islice
from math import ceil

import structlog

from provisioner import estimates as est
from provisioner.controller.clock import Clock
from provisioner.controller.journal import EventWriter, read_store, write_store
from provisioner.controller.periodic import WorkContext
from provisioner.estimates import (
    RUNS_NEEDED as RUNS_NEEDED,
    RUNS_TOLD as RUNS_TOLD,
    UNKNOWN,
    USE_EVERY_S as USE_EVERY_S,
    Estimates,
    EstimateSamples,
    OwnerGrowth,
    SiteSamples,
    StartDelays,
    thinned,
)
from provisioner.keys import site_of
from provisioner.model import (
    PENDING,
    CompletedJob,
    Drone,
    DroneId,
    DroneState,
    OverlayView,
    Plan,
    PolledSite,
    Snapshot,
    TypeKey,
)
from provisioner.planner.states import MIN_IDLE_GAPS
from provisioner.reasons import IdleTimeout, OptionalJobsOnly
from provisioner.store import Store, StoreError
from provisioner.values import define, factory

log = structlog.get_logger()

RUNS_KEPT = 200
"""Number of the newest run times under one key that are kept."""
UNFINISHED_EVERY_S = 300.0
"""Interval at which unfinished drones are examined."""
KEYS_KEPT = 5000
USE_KEPT = 14 * 86400 // 120
USE_FILLED = 15
"""Up to this many samples in a row that are missing (half an hour) get the value of the next one; more are unknown."""
RISE_EVERY_S = 4 * 3600.0
"""Interval at which the growth of an owner is estimated; at first after each quarter of the time observed so far."""
RISE_QUANTILES = 500
GAPS_KEPT = 200
DEPARTED_KEPT_S = 3600.0
"""A drone that left, and that no other drone replaced within this time, would have waited without a job."""
IDLE_CHOICES_S = (15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 900.0, 1800.0, 3600.0)
"""Candidates for an idle timeout, none shorter than a tick."""
MEAN_WEIGHT = 0.1
"""Weight of the newest delay in the mean."""
ESTIMATE_EVERY_S = 60.0
AWAY_S = 300.0
"""After a longer time without a view of the pool it is unknown when a drone joined, or got its next job."""
SEEN_S = 1200.0
"""The same end of a job counts once within this time, which is longer than an overlay reports it."""
SHORTEST_RUN_S = 0.1
"""Run times are kept to the tenth of a second."""
FADE_S = 7 * 86400.0
"""Half-life of the counts of preemptions."""
CUT_KEPT = 1000
"""Number of evicted jobs that are kept, the newest."""
LONGER = 2.0
"""A job that has run longer than all completed ones is expected to run this many times as long:
seen at any moment of its life a job is, in the median, half done (Gott, "Implications of the
Copernican principle", Nature 363, 1993)."""

Keys = tuple[str, ...]
"""Keys of the run times of a job (:func:`provisioner.estimates.run_keys`), the widest last."""


@define
class UnfinishedJobs:
    """Jobs that run alone in a drone, and those that were evicted from one.

    Forgotten with this life of the controller: running jobs are seen again.
    """

    running: dict[DroneId, tuple[Keys, float]] = factory(dict)
    """By drone: keys of the job that runs there, and its start."""
    cut: dict[str, tuple[Keys, float]] = factory(dict)
    """By job: its keys, and its longest run before an eviction."""

    def note(self, view: OverlayView) -> None:
        """Take in a view of the pool: first the evictions of jobs that ran at the view before."""
        for eviction in view.evictions or ():
            keys, begun_at = self.running.get(eviction.drone_id, ((), eviction.at))
            before_s = self.cut.pop(eviction.job_id, (keys, 0.0))[1]
            ran_s = max(eviction.at - begun_at, before_s)
            if keys and ran_s > 0:
                self.cut[eviction.job_id] = keys, ran_s
        while len(self.cut) > CUT_KEPT:
            del self.cut[next(iter(self.cut))]
        self.running = {
            slot.drone_id: (
                est.run_keys(slot.owner, slot.job_gpu_milli, slot.job_cpus, slot.job_memory_mib),
                slot.begun_at,
            )
            for slot in view.slots
            if slot.job_cpus and slot.begun_at and slot.owner
        }

    def so_far(self, now: float) -> Iterator[tuple[Keys, list[float]]]:
        """Yield the run times so far of unfinished jobs, by key, with all wider keys."""
        ages = [(keys, max(0.0, now - begun_at)) for keys, begun_at in self.running.values()]
        ages += self.cut.values()
        for level in range(3):
            found: dict[Keys, list[float]] = {}
            for keys, ran_s in ages:
                found.setdefault(keys[level:], []).append(ran_s)
            yield from found.items()

    def forget(self, user: str) -> None:
        """Forget the evicted jobs of one user."""
        self.cut = {job: cut for job, cut in self.cut.items() if user not in cut[0]}


@define
class SiteHistory:
    """The past of one site."""

    use_milli: deque[int] = field(default_factory=lambda: deque(maxlen=USE_KEPT))
    """Use of its owner, every :data:`USE_EVERY_S`, or :data:`UNKNOWN`."""
    used_at: float = 0.0
    rise: OwnerGrowth | None = None
    rise_at: float = 0.0
    gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS_KEPT))
    """Waits of drones for their next job, or the waits they would have had."""
    departed: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=500))
    """Drones that left because they were idle: seconds without a job, and time of leaving."""
    taken: float = 0.0
    run_s: float = 0.0
    counted_at: float = 0.0
    """Time up to which ``run_s`` is counted; 0: not yet since the start of the controller."""

    @classmethod
    def of(cls, kept: SiteSamples, now: float, away_s: float) -> SiteHistory:
        """Return the history from recorded samples, after ``away_s`` in which nobody polled."""
        fresh = 0.5 ** (away_s / FADE_S)
        site = cls(
            used_at=min(kept.used_at, now), taken=kept.taken * fresh, run_s=kept.run_s * fresh
        )
        site.use_milli.extend(kept.use_milli)
        site.gaps_s.extend(kept.gaps_s)
        if site.use_milli:
            site.rise = rise_of(site.use_milli)
            site.rise_at = now
        return site

    def kept(self) -> SiteSamples:
        return SiteSamples(
            tuple(self.use_milli), self.used_at, tuple(self.gaps_s), self.taken, self.run_s
        )


@define
class EstimateCollector:
    """Samples of what the controller observes.

    Call :meth:`note` after each tick; :attr:`estimates` goes into the next snapshot. Departed
    drones are forgotten with this life of the controller; the rest is recorded.
    """

    runs: dict[str, tuple[float, ...]] = factory(dict)
    """By the keys of a job; never changed in place: the recorded samples share these values."""
    delays: dict[str, StartDelays] = factory(dict)
    sites: dict[str, SiteHistory] = factory(dict)
    estimates: Estimates = est.NO_ESTIMATES
    _seen: frozenset[tuple[str, float]] = frozenset()
    """Counted jobs: those reported now, and of those reported before the ones that ended in the last :data:`SEEN_S`."""
    _counted: tuple[CompletedJob, ...] | None = None
    _at: float = 0.0
    _dirty: bool = True
    _waiting_cost: float = 0.0
    """Cost of waiting in the policy, at the newest tick."""
    _pool_at: float = 0.0
    """Time of the newest view of the pool."""
    _unfinished: UnfinishedJobs = factory(UnfinishedJobs)
    _examined_at: float = 0.0
    """Time at which the unfinished jobs were examined."""

    def note(self, snapshot: Snapshot, plan: Plan) -> None:
        """Add the samples of one tick."""
        view = snapshot.overlay.view
        now = snapshot.now
        self._waiting_cost = snapshot.policy.waiting_cost
        if view is not None and view.completions and view.completions is not self._counted:
            self._note_runs(view.completions, now)
        if (
            view is not None
            and view.completions is not None
            and now - self._examined_at >= UNFINISHED_EVERY_S
        ):
            self._unfinished.note(view)
            self._examined_at, self._dirty = (
                now,
                self._dirty or bool(self._unfinished.running or self._unfinished.cut),
            )
        watched = now - self._pool_at <= AWAY_S
        if view is not None and snapshot.overlay.fault is None:
            self._pool_at = now
        for move in plan.moves:
            self._note_move(snapshot.drones.get(move.drone.id), move.drone, now, watched)
        for name, reading in snapshot.sites.items():
            self._note_use(name, reading, snapshot)
        self._note_preemption_chances(snapshot)
        self._note_gaps(snapshot, plan)
        if self._dirty and now - self._at >= ESTIMATE_EVERY_S:
            self._at = now
            self._dirty = False
            self.estimates = self._estimated()

    def samples(self, now: float) -> EstimateSamples:
        """Return the samples to record."""
        sites = {name: site.kept() for name, site in self.sites.items()}
        return EstimateSamples(now, dict(self.runs), dict(self.delays), sites, self._seen)

    def recall(self, kept: EstimateSamples, now: float, waiting_cost: float) -> None:
        """Begin with the samples of an earlier controller: its estimates hold from the first tick on."""
        away_s = max(0.0, now - kept.at)
        self.runs, self.delays = dict(kept.runs), dict(kept.delays)
        self.sites = {name: SiteHistory.of(site, now, away_s) for name, site in kept.sites.items()}
        self._seen = kept.seen
        self._waiting_cost = waiting_cost
        self.estimates = self._estimated()

    def learn_delays(self, starts: Iterable[tuple[TypeKey, float, float]]) -> None:
        """Add the type, queue time and boot time of drones that came since the samples were recorded, oldest first."""
        for kind, queue_s, boot_s in starts:
            self._note_delays(kind, queue_s, boot_s)
        self.estimates = self._estimated()

    def forget(self, what: str) -> None:
        """Forget samples as an operator asks: ``all``, ``user:NAME`` or ``site:NAME``. Counted jobs stay counted.

        Run times of all users together go with any user's, as they cannot be told apart; ten jobs
        fill them again.
        """
        kind, _, name = what.partition(":")
        match kind:
            case "all":
                self.runs, self.delays, self.sites, self._unfinished = {}, {}, {}, UnfinishedJobs()
            case "user":
                self.runs = {
                    key: runs
                    for key, runs in self.runs.items()
                    if key and est.owner_of(key) != name
                }
                self._unfinished.forget(name)
            case "site":
                self.sites.pop(name, None)
                self.delays = {key: d for key, d in self.delays.items() if site_of(key) != name}
        self.estimates = self._estimated()

    def _site(self, name: str) -> SiteHistory:
        return self.sites.setdefault(name, SiteHistory())

    def _note_runs(self, completions: tuple[CompletedJob, ...], now: float) -> None:
        done = [each for each in completions if not each.unfinished]
        told = frozenset((each.job_id, each.ended_at) for each in done)
        new = [
            each
            for each in done
            if (each.job_id, each.ended_at) not in self._seen and each.run_s > 0
        ]
        for each in new:
            run_s = max(SHORTEST_RUN_S, round(each.run_s, 1))
            for key in dict.fromkeys(
                est.run_keys(each.owner, each.gpu_milli, each.cpus, each.memory_mib)
            ):
                runs = self.runs.pop(key, ())
                self.runs[key] = (*runs[1 - RUNS_KEPT :], run_s)  # the newest last
        self._limit_keys()
        # a schedd that does not answer once tells its jobs again when it is back
        self._seen = told | {
            (job, ended_at) for job, ended_at in self._seen if ended_at >= now - SEEN_S
        }
        self._counted = completions
        self._dirty = self._dirty or bool(new)

    def _limit_keys(self) -> None:
        for key in list(islice(filter(None, self.runs), max(0, len(self.runs) - KEYS_KEPT))):
            del self.runs[key]

    def _note_use(self, name: str, reading: PolledSite, snapshot: Snapshot) -> None:
        view = reading.view
        now = snapshot.now
        if view is None or reading.fault is not None:
            return
        if view.owner_runs is None:
            return
        site = self._site(name)
        missed = int((now - site.used_at) // USE_EVERY_S) if site.used_at else 1
        if missed > 0:
            held = view.owner_runs.gpu_milli
            between = held if missed <= USE_FILLED else UNKNOWN
            site.use_milli.extend([between] * (min(missed, USE_KEPT) - 1) + [held])
            site.used_at = now if not site.used_at else site.used_at + missed * USE_EVERY_S
            if now - site.rise_at >= min(RISE_EVERY_S, USE_EVERY_S * len(site.use_milli) / 4):
                site.rise = rise_of(site.use_milli)
                site.rise_at = now
                self._dirty = True

    def _note_preemption_chances(self, snapshot: Snapshot) -> None:
        """Count the time in which drones ran at the sites whose views do not show the owner's use."""
        now = snapshot.now
        views = {name: each.view for name, each in snapshot.sites.items() if each.fault is None}
        sites = {name: self._site(name) for name, v in views.items() if v and v.owner_runs is None}
        due = {n: site for n, site in sites.items() if now - site.counted_at >= ESTIMATE_EVERY_S}
        if not due:
            return
        joined = Counter(drone.type for drone in snapshot.drones.values() if drone.joined_at)
        for name, site in due.items():
            past_s = now - site.counted_at
            if site.counted_at:
                site.run_s += past_s * sum(n for kind, n in joined.items() if site_of(kind) == name)
                kept = 0.5 ** (past_s / FADE_S)
                site.taken = site.taken * kept
                site.run_s = site.run_s * kept
                self._dirty = self._dirty or site.taken > 0
            site.counted_at = now

    def _note_move(self, was: Drone | None, drone: Drone, now: float, watched: bool) -> None:
        if was is None:
            return
        if drone.state is DroneState.PREEMPTED and self._site(drone.site).counted_at:
            self._site(drone.site).taken += 1
        if not watched:
            return
        if was.state in PENDING and drone.joined_at and drone.started_at:
            self._note_delays(
                drone.type,
                drone.started_at - drone.requested_at,
                drone.joined_at - drone.started_at,
            )
        served = was.idle_at and not drone.idle_at  # not so by a job with an optional GPU
        if (
            was.state in (DroneState.IDLE, DroneState.BUSY)
            and drone.state is DroneState.BUSY
            and served
            and not drone.service
        ):
            self._gap(drone.site, now - was.idle_at)

    def _note_delays(self, kind: TypeKey, queue_s: float, boot_s: float) -> None:
        # sites tell whole seconds, by clocks of their own: what began before it was ordered began
        # at once
        queue_s = max(0.0, queue_s)
        boot_s = max(0.0, boot_s)
        known = self.delays.get(kind, StartDelays(queue_s, boot_s))
        self.delays[kind] = StartDelays(
            known.queue_s + MEAN_WEIGHT * (queue_s - known.queue_s),
            known.boot_s + MEAN_WEIGHT * (boot_s - known.boot_s),
        )
        self._dirty = True

    def _note_gaps(self, snapshot: Snapshot, plan: Plan) -> None:
        for drain in plan.drains:
            if isinstance(drain.reason, IdleTimeout | OptionalJobsOnly):
                self._site(drain.drone.site).departed.append((drain.reason.idle_s, snapshot.now))
        for start in plan.starts:
            departed = self._site(start.drone.site).departed
            # the one that left last would have served these jobs
            if departed and not start.drone.service:
                idle_s, left_at = departed.pop()
                self._gap(start.drone.site, idle_s + snapshot.now - left_at)
        for name, site in self.sites.items():
            while site.departed and snapshot.now - site.departed[0][1] > DEPARTED_KEPT_S:
                self._gap(name, site.departed.popleft()[0] + DEPARTED_KEPT_S)

    def _gap(self, site: str, gap_s: float) -> None:
        self._site(site).gaps_s.append(max(0.0, gap_s))
        self._dirty = True

    def _estimated(self) -> Estimates:
        boots: dict[str, float] = {}
        for key, delays in self.delays.items():
            site = site_of(key)
            boots[site] = min(boots.get(site, delays.boot_s), delays.boot_s)
        return Estimates(
            runs=self._runs(),
            delays=dict(self.delays),
            rises={name: site.rise for name, site in self.sites.items() if site.rise is not None},
            taken_per_s={
                name: s.taken / s.run_s for name, s in self.sites.items() if s.taken and s.run_s
            },
            idle_s={
                name: best_timeout_s(site.gaps_s, boots[name], self._waiting_cost)
                for name, site in self.sites.items()
                if name in boots
            },
            gaps={name: len(site.gaps_s) for name, site in self.sites.items() if site.gaps_s},
        )

    def _runs(self) -> dict[str, tuple[float, ...]]:
        """Return equally likely run times by key.

        Unfinished jobs count where all completed ones are kept: of the newest alone it is unknown
        how many began when. Samples missing to :data:`RUNS_NEEDED` are then borrowed from the
        completed ones under the next wider key.
        """
        known = self.runs
        of_done = {
            key: thinned(runs, RUNS_TOLD) for key, runs in known.items() if len(runs) >= RUNS_NEEDED
        }
        told = dict(of_done)
        for (key, *wider), so_far in self._unfinished.so_far(self._examined_at):
            done = known.get(key, ())
            if len(done) < RUNS_KEPT:
                others = next(
                    (of_done[each] for each in wider if each in of_done), (est.USUAL_RUN_S,)
                )
                borrowed = expected(others, (), max(0, RUNS_NEEDED - len(done)))
                told[key] = expected((*done, *borrowed), so_far, RUNS_TOLD)
        return told


def rise_of(use_milli: Iterable[int]) -> OwnerGrowth:
    """Return how much the owner's use grew within each horizon, from each sample on.

    No window reaches across a time without samples.
    """
    stretches = [list(noted) for known, noted in groupby(use_milli, UNKNOWN.__ne__) if known]
    longest = max(map(len, stretches), default=0)
    highest = stretches
    span = 1
    rows = []  # highest[n][i]: of stretches[n][i : i + span]
    for horizon_s in est.HORIZONS_S:
        wanted = max(1, ceil(horizon_s / USE_EVERY_S))
        # what is left of the past must still be many moments
        while span < min(wanted, longest // 2):
            step = min(span, wanted - span)
            highest = [
                [max(pair) for pair in zip(tops, tops[step:], strict=False)] for tops in highest
            ]
            span += step
        pairs = (zip(tops, use, strict=False) for tops, use in zip(highest, stretches, strict=True))
        rises = sorted(top - now for each in pairs for top, now in each)
        rows.append(tuple(int(rise) for rise in thinned(rises, RISE_QUANTILES)))
    return OwnerGrowth(tuple(rows), USE_EVERY_S * sum(map(len, stretches)))


def best_timeout_s(gaps_s: Iterable[float], boot_s: float, waiting_cost: float) -> float:
    """Return the idle timeout under which these gaps would have cost least.

    The cost is idle time and, for each gap that was longer, the start of another drone, for which a
    job waits. With too few gaps it is just the cost of another start, which costs at most twice the
    optimum, whatever comes (rent or buy; see ``idle_limit`` in ``planner/states.py``).
    """
    gaps = list(gaps_s)
    start_s = boot_s + est.RELEASE_S + waiting_cost * boot_s
    if len(gaps) < MIN_IDLE_GAPS:
        return start_s

    def cost(timeout_s: float) -> float:
        return sum(gap if gap <= timeout_s else timeout_s + start_s for gap in gaps)

    return min(IDLE_CHOICES_S, key=cost)


# ------------------------------------------------------------------------------------------------
# run times of jobs A job that runs, or was cut short, takes longer than it has run so far. To learn
# from completed jobs alone is blind where it matters: none of a user's first jobs of a day is
# completed for a day, and a job that an owner cuts short each time never is. The estimate of Kaplan
# and Meier ("Nonparametric estimation from incomplete observations", J. Am. Stat. Assoc. 53, 1958)
# takes such jobs in, here in the form of Efron ("The two sample problem with censored data", Proc.
# 5th Berkeley Symp. 4, 1967): the weight of an unfinished job goes to all that took longer, in
# equal parts.


def expected(done: Sequence[float], unfinished: Sequence[float], count: int) -> tuple[float, ...]:
    """Return ``count`` equally likely run times in seconds, ascending.

    They are of jobs some of which are ``done`` after so many seconds, and others ``unfinished``
    after so many.
    """
    longest_done = max(done, default=0.0)
    # A job that ends in the very moment up to which another was seen ends before that one.
    seen = sorted([(run_s, False) for run_s in done] + [(run_s, True) for run_s in unfinished])
    weighted: list[tuple[float, float]] = []
    weight = 1.0
    for longer, (run_s, goes_on) in zip(range(len(seen) - 1, -1, -1), seen, strict=True):
        if not goes_on:
            weighted.append((run_s, weight))
        elif run_s >= longest_done:
            weighted.append((LONGER * run_s, weight))
        else:
            weight *= (longer + 1) / longer
    values, weights = zip(*sorted(weighted), strict=True)
    reached = list(accumulate(weights))
    found = []
    at = 0
    for n in range(count):
        wanted = (n + 0.5) / count * reached[-1]
        while reached[at] < wanted:
            at += 1
        found.append(values[at])
    return tuple(found)


# --------------------------------------------------------------------------------------------------------
# on record

KEEP_EVERY_S = 600.0
"""A crash loses what was learned since: at most so much."""
DELAYS_SINCE_S = 7 * 86400.0
"""Age of the oldest drones from which start delays are learned where no samples are on record."""
ASK_EVERY_S = 60.0
"""Interval at which requests to forget are read."""


@define
class EstimateRecorder:
    """The samples on record: read at the start, written regularly, and forgotten where an operator asks.

    Call :meth:`begin` before the first tick, :meth:`turn` between ticks, :meth:`keep` after the
    last. A store that fails is reported; it ends nothing.
    """

    estimation: EstimateCollector
    store: Store
    clock: Clock
    event: EventWriter
    _kept_at: float = 0.0
    """0 until the first tick: what that shows may be late, and the next start must not learn from it."""
    _asked_at: float = 0.0

    async def begin(self, waiting_cost: float) -> None:
        """Restore the estimates of an earlier controller, and learn the delays that it could not write any more."""
        now = self.clock.now()
        since = now - DELAYS_SINCE_S
        try:
            known = await self.store.estimate_samples()
        except StoreError as error:
            await self.event("estimates.reset", warn=True, message=str(error)[:2000])
        else:
            if known is not None:
                since = known.at
                self.estimation.recall(known, now, waiting_cost)
                away_s = round(max(0.0, now - known.at))
                log.info(
                    "estimates.restored",
                    run_times=len(known.runs),
                    sites=len(known.sites),
                    away_s=away_s,
                )
        delays = await read_store("estimates.read_failed", self.store.start_delays(since), ())
        self.estimation.learn_delays(delays)
        await self._forget()

    async def turn(self, work: WorkContext) -> None:
        """Write and forget what is due."""
        now = self.clock.now()
        if now - self._asked_at >= ASK_EVERY_S:
            await self._forget()
        if now - self._kept_at >= KEEP_EVERY_S:
            await self.keep()

    async def keep(self, resets: Sequence[int] = ()) -> bool:
        """Record the samples, and that ``resets`` are carried out. A failure is tried again later."""
        now = self._kept_at = self.clock.now()
        samples = self.estimation.samples(now)
        return await write_store(
            "estimates.write_failed", self.store.record_estimates(samples, resets)
        )

    async def _forget(self) -> None:
        self._asked_at = self.clock.now()
        asked = await read_store("estimates.forget_failed", self.store.estimate_resets(), ())
        for each in asked:
            self.estimation.forget(each.what)
        if asked and await self.keep([each.id for each in asked]):
            for each in asked:
                await self.event(
                    "estimates.forgotten", what=each.what, by=each.by, reason=each.reason
                )
