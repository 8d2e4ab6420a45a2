"""The pool by the HTCondor bindings, one poll per call, in a worker process, because they block."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from adapters.htcondor import classad2, classads, htcondor2
from adapters.htcondor.classads import IDLE, Ad, moment, number, source, text
from adapters.htcondor.daemons import Collectors, with_new_session
from adapters.htcondor.overlay import job_classes, matching, schedds, work
from adapters.htcondor.overlay.job_classes import JobGroup, QueueWait
from adapters.htcondor.overlay.schedds import ScheddAnswer, ScheddQueue, ScheddRegistry
from adapters.htcondor.overlay.settings import HTCondorConfig
from adapters.htcondor.overlay.slots import SLOT_PROJECTION, SlotsView, forged, ours, slots_view
from adapters.htcondor.overlay.work import JobInDrone
from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError, UnavailableError
from provisioner.model import (
    DroneId,
    DroneType,
    JobClass,
    JobFailure,
    OverlayView,
    Slot,
    TypeKey,
    UnmetRequirement,
)
from provisioner.values import define, factory

# jobs whose waits are looked up in one poll: a query each, of a millisecond or two
_MAX_LOOKUPS_PER_POLL = 100
_JUDGING_S = 5.0  # time of one poll for new verdicts: some ten thousand
_MOST_REMARKS = 5  # of one kind
# types whose slots are asked for the value of a request: one user may submit thousands
_READ_IN = 4
_REJUDGED_S = 60.0  # a verdict that depends on the time is made anew after this long
_JUDGING_FITTING_S = 4.0  # part of it that only types get whose numbers fit
_NOT_YET = UnmetRequirement(
    "unjudged", "judged in one of the next polls", "too many new classes and types at once"
)
_ITS_OWN = "UpdateSequenceNumber is undefined"
"""The ad that a collector made itself. The other collectors of the pool send it theirs, with a number."""
_SAME_START_S = 2.0  # two starts of the collector differ by more than this
# jobs of one schedd that the negotiator has refused and that are looked at
_MAX_REFUSED_JOBS = 1000
# routed copies of one schedd whose source jobs `explain job` finds
_MAX_ROUTED_JOBS = 2000
# slots that were sent with stolen tokens are counted anew after this long
_FORGERS_INTERVAL_S = 60.0
_RELEARN_S = 600.0  # a drone type's received slot is looked at anew after this long


class PolledPool(NamedTuple):
    view: OverlayView
    users: Mapping[DroneId, frozenset[str]]  # owners of the claims that the slots of a drone showed
    silent: tuple[str, ...]  # schedds that did not answer, those that never have as well
    faults: tuple[JobFailure, ...] = ()  # on shared GPUs, by the word of the drones
    ran: frozenset[JobInDrone] = frozenset()  # jobs that ran in the drones with faults


class PoolPoller:
    """Server of ``poll``. It remembers what seldom changes: verdicts, received slots, jobs' waits."""

    def __init__(self, config: HTCondorConfig, controller: str, memory: str) -> None:
        """Connect to the pool. ``memory``: directory for what must outlive this process, which a poll may end."""
        self._config = config
        self._controller = controller
        self._affiliation = config.affiliation
        self._attributes = job_classes.group_attributes(self._affiliation, config.constraint)
        self._collector = Collectors(config.collector)
        self._schedds = ScheddRegistry(config.collector_memory, Path(memory))
        self._waits: dict[tuple[str, str], QueueWait] = {}  # by schedd and job id
        self._verdicts = Verdicts(config.drone_config)
        self._devices: dict[DroneId, tuple[float, int]] = {}
        # by address, of each collector that we have asked
        self._collector_started: dict[str, float] = {}
        self._restarted_at = 0.0
        self._last_slots: tuple[Slot, ...] = ()
        self._ran: dict[JobInDrone, float] = {}  # with the time of the last poll that showed it
        self._forged: tuple[str, ...] = ()  # notice of slots that were sent with stolen tokens
        self._forgers_at = -math.inf

    def poll(self, types: Sequence[DroneType]) -> PolledPool:
        """Query slots first, then queues: a job that starts meanwhile is missed once rather than counted twice."""
        config = self._config
        taken_at = time.time()
        with self._schedds.asking("collector", config.collector):
            self._collector.read_clock()
            ads = self._collector.query(
                htcondor2.AdType.Startd, ours(config.drone_identities), SLOT_PROJECTION
            )
            seen = slots_view(ads, self._controller, self._collector.to_our_clock)
            listed = self._collector.schedds()
            began_at, ended_at, accounting = self._cycle()
            notices = [*self._forgers(), *seen.notices]
            notices += self._verdicts.learn(seen, types, taken_at, self._collector)
            notices += job_classes.quota_warnings(accounting, config.slot_weight)
            slots, restarted = self._after_restart(seen.slots, taken_at)
        # drones that have left count while evictions of their jobs are reported
        self._devices |= {each.slot.drone_id: (taken_at, each.device_milli) for each in seen.drones}
        oldest = taken_at - work.EVICTION_REPORTED_S
        self._devices = {
            drone_id: known for drone_id, known in self._devices.items() if known[0] >= oldest
        }
        # jobs that want no GPU are demand only where something could be started for them
        cpu_jobs_count = any(not kind.gpu_milli for kind in types)
        of_jobs = job_classes.JOBS if cpu_jobs_count else job_classes.GPU_JOBS_AND_CALLERS
        constraint = f"({of_jobs}) && ({config.constraint})"
        queues = self._answering(self._queues(listed, taken_at), taken_at, constraint)
        kept = self._schedds.kept(taken_at)
        answers = {queue.name: self._schedds.last[queue.name] for queue in queues}
        at_work = work.together(
            [
                *(each.work for each in answers.values()),
                *(each.work_now(slots, taken_at) for each in kept.values()),
            ]
        )
        answers |= kept
        by_class = job_classes.merged(each for answer in answers.values() for each in answer.groups)
        fresh = self._fresh(queues, began_at, by_class, constraint)
        waits = self._waits_of(by_class, queues, taken_at)
        limited = limits_of(by_class, answers)
        classes = self._classes(by_class, fresh, waits, limited, types)
        view = OverlayView(
            taken_at=taken_at,
            classes=tuple(classes),
            slots=at_work.on(slots),
            negotiated_at=self._collector.to_our_clock(ended_at) if ended_at else 0.0,
            notices=(*self._schedds.notices(config.schedds, taken_at), *notices, *restarted),
            remarks=(
                *seen.remarks,
                *islice(job_classes.negative_requests(by_class.values()), _MOST_REMARKS),
            ),
            evictions=at_work.evictions,
            groups=job_classes.accounting_groups(accounting, classes, config.slot_weight),
            priorities=job_classes.user_priorities(accounting, classes),
            mishaps=at_work.failures,
            unheard=self._schedds.unheard(config.schedds),
            routed={k: v for answer in answers.values() for k, v in answer.routed.items()},
        )
        users = {each.slot.drone_id: each.users for each in seen.drones}
        faults = tuple(fault for each in seen.drones for fault in each.faults)
        ran = self._ran_beside(faults, at_work, taken_at)
        return PolledPool(
            view, users, tuple(printable(name, 80) for name in self._schedds.silent), faults, ran
        )

    def _classes(
        self,
        by_class: Mapping[str, list[JobGroup]],
        fresh: Mapping[str, int],
        waits: Mapping[str, QueueWait],
        limited: Mapping[str, tuple[int, str]],
        types: Sequence[DroneType],
    ) -> Sequence[JobClass]:
        """Return the job classes with the verdicts on their requirements, as far as there is time for these."""
        self._verdicts.keep(by_class, types)
        until = time.monotonic() + _JUDGING_S
        slots_of_types = self._verdicts.slots()
        classes = []
        for class_id, groups in sorted(by_class.items()):
            wait = waits.get(class_id, job_classes.NO_WAITS)
            jobs = job_classes.job_class(
                class_id, groups, fresh.get(class_id, 0), wait, slots_of_types
            )
            jobs = self._verdicts.judged(jobs, groups, types, until)
            classes.append(behind(jobs, *limited[class_id]) if class_id in limited else jobs)
        return classes

    def _ran_beside(
        self, faults: Iterable[JobFailure], at_work: work.PoolWork, now: float
    ) -> frozenset[JobInDrone]:
        """Return the jobs that ran in drones with faults and run there no more."""
        self._ran |= dict.fromkeys(at_work.ran, now)
        running = {(run.drone_id, run.owner, run.job_id) for run in at_work.runs}
        oldest = now - work.EVICTION_REPORTED_S
        self._ran = {
            job: at for job, at in self._ran.items() if at >= oldest and job not in running
        }
        faulty = {fault.drone_id for fault in faults}
        return frozenset(job for job in self._ran if job[0] in faulty)

    @contextmanager
    def _asked(self, queue: ScheddQueue) -> Iterator[None]:
        whom = f"schedd {printable(queue.name, 80)}"
        with self._schedds.asking("schedd", queue.name), self._collector.errors.translated(whom):
            yield

    def _query(
        self,
        queue: ScheddQueue,
        constraint: str,
        projection: Sequence[str],
        limit: int = -1,
        *,
        grouped: bool = False,
    ) -> list[Ad]:
        """Return ads of jobs, or of groups of them. An empty list is an answer."""
        opts = htcondor2.QueryOpt.GroupBy if grouped else htcondor2.QueryOpt.Default
        with self._asked(queue):
            wanted = partial(
                queue.schedd.query, constraint, projection=list(projection), limit=limit, opts=opts
            )
            return list(with_new_session(wanted))

    def _forgers(self) -> tuple[str, ...]:
        """Return a notice of drones whose tokens have sent slots of other drones, looked up now and then."""
        identities = self._config.drone_identities
        if identities and time.monotonic() - self._forgers_at > _FORGERS_INTERVAL_S:
            self._forgers_at = time.monotonic()
            constraint = f"DroneId isnt undefined && {forged(identities)}"
            ads = self._collector.query(
                htcondor2.AdType.Startd, constraint, ["AuthenticatedIdentity"]
            )
            senders = sorted({text(ad, "AuthenticatedIdentity", 300) for ad in ads})
            shown = ", ".join(senders[:3]) + (" and others" if len(senders) > 3 else "")
            notice = f"{len(ads)} slots ignored: {shown} sent them in the name of other drones, with stolen tokens"
            self._forged = (notice,) if ads else ()
        return self._forged

    def _queues(self, ads: Mapping[str, Ad], now: float) -> list[ScheddQueue]:
        """Return the schedds whose jobs count and that answer a trivial question.

        UnavailableError if there is none. The others are left out, and their last answers kept for
        a while. Anybody can have a schedd listed: one that flocks here and denies reading, or a
        machine that is switched off, stops nothing.
        """
        known = self._schedds
        wanted = self._config.schedds
        memory_s = self._config.collector_memory
        known.kept(now)
        for name in {*wanted, *known.answered, *known.silent} - ads.keys():
            last = known.last.get(name)
            if name in wanted or (
                last is not None and last.groups and now - last.taken_at <= memory_s
            ):
                known.failed(
                    name, UnavailableError("the collector does not list it"), now, unlisted=True
                )
            else:
                known.forget(name)  # it had no jobs that count, or has been gone for long
        for name in known.silent.keys() - {*wanted} if wanted else ():
            known.forget(name)
        queues = schedds.queues_of(ads, wanted)
        if not queues:
            which = (
                ", ".join(printable(name, 80) for name in wanted or known.silent) or "any schedd"
            )
            lists = ", ".join(printable(name, 80) for name in sorted(ads)[:10])
            more = f"; it lists {lists}" if lists else ""
            raise UnavailableError(
                f"collector {self._config.collector} does not list {which}{more}"
            )
        # an only one that keeps us waiting is named at the next poll
        if len(queues) > 1 or known.silent:
            due = known.due(queues, now)
            known.try_out(
                due, self._asked, min(schedds.SCHEDD_ANSWER_TIMEOUT_S, self._config.deadline / 2)
            )
            queues = [queue for queue in due if queue.name not in known.silent]
        return queues

    def _answering(
        self, queues: Sequence[ScheddQueue], now: float, constraint: str
    ) -> list[ScheddQueue]:
        """Take the answers of these schedds; return those that gave one. Raises their errors if none did."""
        for queue in queues:
            try:
                at_work = self._at_work(queue, now)
                groups = self._groups(queue, constraint)
                refusals = self._refusals(queue, groups, now)
                routed = self._routed(queue, groups)
                found = ScheddAnswer(now, tuple(groups), at_work, queue.slack, refusals, routed)
                self._schedds.heard(queue.name, found)
            except AdapterError as error:
                self._schedds.failed(queue.name, error, now)
        self._schedds.save()
        answered = [queue for queue in queues if queue.name not in self._schedds.silent]
        if not answered:
            raise self._schedds.error()
        return answered

    def _cycle(self) -> tuple[float, float, Sequence[Ad]]:
        """Return begin and end of the last negotiation by the collector's clock (0: unknown), and its accounting ads.

        Its own ad comes only every NEGOTIATOR_UPDATE_INTERVAL (300 s), but the accounting ads come
        at the end of each cycle, in a pool without slots too.
        """
        projection = [
            "LastNegotiationCycleEnd0",
            "LastNegotiationCycleDuration0",
            "LastHeardFrom",
            "MyCurrentTime",
        ]
        negotiators = self._collector.query(htcondor2.AdType.Negotiator, projection=projection)
        accounting = self._collector.query(
            htcondor2.AdType.Accounting, projection=job_classes.ACCOUNTING_PROJECTION
        )
        took = max(
            (number(ad, "LastNegotiationCycleDuration0") or 0.0 for ad in negotiators), default=0.0
        )
        ends = [moment(ad, "LastHeardFrom") for ad in accounting]
        reported = [
            end - schedds.ahead(ad)
            for ad in negotiators
            if (end := moment(ad, "LastNegotiationCycleEnd0"))
        ]
        if not ends and reported:
            ends = [time.time() + self._collector.skew_s - self._config.negotiation_period]
        ended_at = max([*ends, *reported], default=0.0)
        return ended_at - min(max(took, 0.0), 3600.0), ended_at, accounting

    def _after_restart(
        self, slots: tuple[Slot, ...], now: float
    ) -> tuple[tuple[Slot, ...], list[str]]:
        """Return the slots with those that a collector does not know yet after a restart, and a notice.

        A collector that has just started knows only the startds that have called since. The others
        keep the slot, and the age, that they had, for as long as a startd may take to call.
        """
        memory_s = self._config.collector_memory
        address = self._collector.address
        ads = self._collector.query(
            htcondor2.AdType.Collector, _ITS_OWN, ["MonitorSelfTime", "MonitorSelfAge"]
        )
        starts = [
            moment(ad, "MonitorSelfTime") - (number(ad, "MonitorSelfAge") or 0.0) for ad in ads
        ]
        started = max(starts, default=0.0)
        if not started:
            # In its first second, or where its own ad does not live until the next one: it may have
            # started anew or not. What was there before is kept in mind until it tells.
            return slots, []
        if (before := self._collector_started.get(address)) is not None:
            restarted = abs(started - before) > _SAME_START_S
        else:  # the first that is asked, or another one of the pool, which may just have come back
            restarted = (
                bool(self._collector_started)
                and self._collector.to_our_clock(started) > now - memory_s
            )
        self._restarted_at = now if restarted else self._restarted_at
        self._collector_started[address] = started
        listed = {slot.drone_id for slot in slots}
        remembers = now - self._restarted_at < memory_s
        kept = tuple(slot for slot in self._last_slots if remembers and slot.drone_id not in listed)
        self._last_slots = slots + kept
        return self._last_slots, [
            f"collector restarted: {len(kept)} slots keep their last known state"
        ] if kept else []

    def _at_work(self, queue: ScheddQueue, now: float) -> work.PoolWork:
        ahead_s = self._collector.skew_s + queue.ahead_s
        since = now + ahead_s - work.EVICTION_REPORTED_S
        ads = self._query(queue, work.constraint(self._controller, since), work.WORK_PROJECTION)
        device_milli = {drone_id: milli for drone_id, (_, milli) in self._devices.items()}
        return work.work(ads, self._controller, now, lambda theirs: theirs - ahead_s, device_milli)

    def _groups(self, queue: ScheddQueue, constraint: str, *also: str) -> list[JobGroup]:
        """Return the groups that count. ``also``: an attribute to group by beside the usual ones."""
        ads = self._query(queue, constraint, [*self._attributes, *also], grouped=True)
        found = (job_classes.group(ad, queue.name, self._affiliation) for ad in ads)
        return [each for each in found if each is not None]

    def _fresh(
        self,
        queues: Sequence[ScheddQueue],
        began_at: float,
        by_class: dict[str, list[JobGroup]],
        constraint: str,
    ) -> dict[str, int]:
        known = {
            g.key: class_id
            for class_id, groups in by_class.items()
            for g in groups
            if g.status == IDLE
        }
        fresh = Counter[str]()
        gpus_only = " && RequestGPUs isnt 0" if job_classes.GPU_JOBS in constraint else ""
        for queue in queues:
            new = f"JobStatus == {IDLE} && QDate >= {int(began_at + queue.ahead_s)}"
            if self._query(queue, f"{new}{gpus_only}", ["ClusterId"], 1):
                for found in self._groups(queue, f"{new} && {constraint}", "QDate"):
                    if found.key in known:
                        fresh[known[found.key]] += found.count
        return fresh

    def _refusals(
        self, queue: ScheddQueue, groups: Sequence[JobGroup], now: float
    ) -> dict[str, classads.Refusal]:
        """Return the negotiator's newest refusals of a schedd's waiting jobs, by their concurrency limits."""
        if all(
            each.status != IDLE or source(each.ad, "ConcurrencyLimits") in ("", "undefined")
            for each in groups
        ):
            return {}
        refused = f"JobStatus == {IDLE} && ConcurrencyLimits isnt undefined && LastRejMatchTime > 0"
        projection = ["JobStatus", "ServerTime", *classads.LIMITS_PROJECTION]
        return classads.refusals(self._query(queue, refused, projection, _MAX_REFUSED_JOBS), now)

    def _routed(self, queue: ScheddQueue, groups: Sequence[JobGroup]) -> dict[str, str]:
        """Return the ids of routed copies by those of their source jobs, of the oldest copies in a schedd's queue."""
        if not any(source(each.ad, "RouteName") for each in groups):
            return {}
        copies = "RouteName isnt undefined && RoutedFromJobId isnt undefined && JobStatus != 4"
        projection = ["ClusterId", "ProcId", "RoutedFromJobId"]
        ads = self._query(queue, copies, projection, _MAX_ROUTED_JOBS)
        return {classads.routed_from(ad): classads.job_id(ad) for ad in ads}

    def _waits_of(
        self, by_class: dict[str, list[JobGroup]], queues: Sequence[ScheddQueue], now: float
    ) -> dict[str, QueueWait]:
        """Return the waits of the idle jobs of each class.

        The first and the last of their ids are looked up, once each: the first was submitted first,
        and where that one was evicted lately the last has waited longer. First ones go first: the
        last one changes with every submission.
        """
        by_name = {queue.name: queue for queue in queues}
        idle = [
            (class_id, g)
            for class_id, groups in by_class.items()
            for g in groups
            if g.status == IDLE
        ]
        wanted = dict.fromkeys(
            [*((g.schedd, g.first) for _, g in idle), *((g.schedd, g.last) for _, g in idle)]
        )
        self._waits = {key: waits for key, waits in self._waits.items() if key in wanted}
        unknown = (key for key in wanted if key not in self._waits and key[0] in by_name)
        for schedd, job_id in islice(unknown, _MAX_LOOKUPS_PER_POLL):
            cluster, _, proc = job_id.partition(".")
            if cluster.isdigit() and proc.isdigit():
                which = f"ClusterId == {cluster} && ProcId == {proc}"
                for ad in self._query(by_name[schedd], which, job_classes.WAIT_PROJECTION, 1):
                    self._waits[schedd, job_id] = QueueWait.of(ad, time.time())
        found: dict[str, QueueWait] = {}
        for class_id, each in idle:
            for job_id in (each.first, each.last):
                waits = self._waits.get((each.schedd, job_id), QueueWait(now, now))
                found[class_id] = waits.earlier(found.get(class_id, waits))
        return found


@define
class _JudgedType:
    """Verdicts on one drone type, and the slot ad that they are about."""

    kind: DroneType
    template: Ad
    received: matching.ReceivedSlot | None = None  # the slot of a drone of this type, as it arrived
    learnt_at: float = 0.0
    verdicts: dict[str, tuple[UnmetRequirement | None, float]] = factory(dict)
    """By shape of the jobs, with the time (monotonic) after which a verdict is made anew."""


class Verdicts:
    """Verdicts of jobs' requirements on drone types, by a slot of the type that was really received, if any."""

    def __init__(self, drone_config: str) -> None:
        self._drone_config = drone_config
        self._types: dict[TypeKey, _JudgedType] = {}

    def keep(self, by_class: Mapping[str, list[JobGroup]], types: Sequence[DroneType]) -> None:
        known = self._types
        self._types = {}
        shapes = {group.shape for groups in by_class.values() for group in groups}
        for kind in types:
            old = known.get(kind.key)
            if old is None or old.kind != kind:
                old = self._judged_type(
                    kind, old.received if old else None, old.learnt_at if old else 0.0
                )
            old.verdicts = {
                shape: found for shape, found in old.verdicts.items() if shape in shapes
            }
            self._types[kind.key] = old

    def _judged_type(
        self, kind: DroneType, received: matching.ReceivedSlot | None, learnt_at: float
    ) -> _JudgedType:
        return _JudgedType(
            kind, matching.template(kind, received, self._drone_config), received, learnt_at
        )

    def learn(
        self, seen: SlotsView, types: Sequence[DroneType], now: float, collector: Collectors
    ) -> list[str]:
        """Replace templates by slots that really arrived, now and then; return what arrived less than ordered."""
        wanted = {kind.key: kind for kind in types}
        for drone in seen.drones:
            kind = wanted.get(drone.type)
            old = self._types.get(drone.type)
            if kind is None or (old is not None and now - old.learnt_at < _RELEARN_S):
                continue
            for slot in collector.query(
                htcondor2.AdType.Startd, f"Name == {classad2.quote(drone.ad_name)}"
            )[:1]:
                received = matching.received(slot)
                if old is None or received != old.received:
                    self._types[kind.key] = self._judged_type(kind, received, now)
                else:
                    old.learnt_at = now
        return [
            line
            for kind in types
            if (each := self._types.get(kind.key)) is not None and each.received is not None
            for line in matching.differences(kind, each.received)
        ]

    def slots(self) -> job_classes.Slots:
        """Return slots of the smallest types, without a GPU and with one."""
        by_size = sorted(
            self._types.values(), key=lambda each: (each.kind.gpu_milli, each.kind.cpus)
        )
        return [
            [each.template for each in by_size if bool(each.kind.gpu_milli) is gpu][:_READ_IN]
            for gpu in (False, True)
        ]

    def judged(
        self, jobs: JobClass, groups: list[JobGroup], types: Sequence[DroneType], until: float
    ) -> JobClass:
        """Return a class with the types that it refuses, or that there was no time ``until`` now to judge."""
        refuses: dict[TypeKey, UnmetRequirement] = {}
        ad: Ad | None = None
        for kind in types if not jobs.invalid else ():
            fits = numbers_fit(jobs, kind)  # if not, the rest says whether a smaller request would
            judge = matching.unmet_requirement if fits else matching.unmet_beside_amounts
            judged = self._types[kind.key]
            shape = groups[0].shape
            now = time.monotonic()
            verdict, expires_at = judged.verdicts.get(shape, (_NOT_YET, -math.inf))
            if expires_at < now <= (until if fits else until - _JUDGING_FITTING_S):
                ad = ad or job_classes.as_job(job_classes.representative(groups))
                verdict = judge(ad, judged.template)
                passes = job_classes.passes(ad) or "time()" in source(judged.template, "Start")
                judged.verdicts[shape] = verdict, now + _REJUDGED_S if passes else math.inf
            if verdict is not None:
                refuses[kind.key] = verdict
        return replace(jobs, refuses=refuses) if refuses else jobs


def numbers_fit(jobs: JobClass, kind: DroneType) -> bool:
    """Return True if the plain numbers fit. If not, the reason is plain without a verdict of ours."""
    return (
        bool(jobs.gpu_milli) == bool(kind.gpu_milli)  # what a drone has beside its GPUs is for them
        and jobs.gpu_milli <= kind.gpu_milli
        and jobs.cpus <= kind.cpus
        and jobs.memory_mib <= kind.memory_mib
        and jobs.disk_mib <= kind.disk_mib
        and (not kind.vram_mib or jobs.vram_mib <= kind.vram_mib)
        and (not kind.capability or jobs.capability <= kind.capability)
    )


def limits_of(
    by_class: dict[str, list[JobGroup]], answers: Mapping[str, ScheddAnswer]
) -> dict[str, tuple[int, str]]:
    """Return how many idle jobs of each class no slot would help, and the limit. ``answers``: by schedd."""
    idle = [
        (class_id, g)
        for class_id, groups in sorted(by_class.items())
        for g in groups
        if g.status == IDLE
    ]
    found: dict[str, tuple[int, str]] = {}
    reached = classads.used_up(*(answer.refusals for answer in answers.values()))
    left = {name: answer.slack for name, answer in answers.items()}
    for class_id, g in idle:
        limits = text(g.ad, "ConcurrencyLimits", 80)
        more = left.get(g.schedd)
        known, why = found.get(class_id, (0, ""))
        if limits in reached:
            found[class_id] = known + g.count, f"concurrency limit {limits} is used up"
        elif more is not None:
            left[g.schedd] = max(0, more - g.count)
            if g.count > more:
                why = why or f"schedd {printable(g.schedd, 80)} has reached its MAX_JOBS_RUNNING"
                found[class_id] = known + g.count - more, why
    return found


def behind(jobs: JobClass, count: int, limit: str) -> JobClass:
    """Return a class of which so many waiting jobs are behind a limit. Fresh ones are not judged yet."""
    return replace(jobs, limited=min(jobs.waiting, count), limit=limit) if jobs.waiting else jobs
