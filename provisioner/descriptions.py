"""Words for job classes, states, credentials and advice, for people."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from provisioner.formatting import (
    SHORT_TEXT,
    age,
    amounts,
    capability,
    count,
    driver,
    gpus,
    iso,
    sanitize,
    short,
    size,
)
from provisioner.keys import Scope, Subject
from provisioner.model import (
    WHOLE_GPU,
    BreakerState,
    Credential,
    DrainMode,
    DroneState,
    JobClass,
    OverlayView,
)
from provisioner.reasons import RequestAdvice, StartForecast, StartOutcome

USUAL_CPUS = 16
"""More CPUs than this for each GPU are unusual: the name of a class has them."""
USUAL_MEMORY_MIB = 128 * 1024
"""The same of memory."""
SHORTEST_CLASS_ID = 4
_HASH = re.compile(r"[0-9a-f]{5,}")


class _NamePart(NamedTuple):
    text: str
    """Empty if the jobs do not ask for it."""
    is_usual: bool = True
    """It is left out unless it distinguishes classes."""


def gpu_words(gpu_milli: int) -> str:
    """Return ``1 GPU``, ``0.5 GPU``, ``8 GPUs``; empty for 0."""
    plural = "s" if gpu_milli > WHOLE_GPU else ""
    return f"{gpus(gpu_milli)} GPU{plural}" if gpu_milli else ""


def _size_parts(job: JobClass) -> list[_NamePart]:
    # Jobs without a GPU have no other size than CPUs and memory: for them these are never left out.
    whole_gpus = -(-job.gpu_milli // WHOLE_GPU)
    gpu = "optional GPU" if job.gpu_optional else gpu_words(job.gpu_milli)
    return [
        _NamePart(gpu, is_usual=False),
        _NamePart(f"{size(job.vram_mib)} VRAM" if job.vram_mib else "", is_usual=False),
        _NamePart(f"CC {capability(job.capability)}" if job.capability else ""),
        _NamePart(f"CUDA {driver(job.driver)}" if job.driver else ""),
        _NamePart(count(job.cpus, "CPU"), job.cpus <= USUAL_CPUS * whole_gpus),
        _NamePart(f"{size(job.memory_mib)} RAM", job.memory_mib <= USUAL_MEMORY_MIB * whole_gpus),
    ]


def _name_parts(job: JobClass) -> list[_NamePart]:
    others = (
        f"{size(job.disk_mib)} disk" if job.disk_mib else "",
        job.arch,
        f"up to {age(job.walltime_s)}" if job.walltime_s else "",
        f"group {job.group}" if job.group else "",
        f"priority {job.priority}",
    )
    return [*_size_parts(job), *map(_NamePart, others)]


def job_size(job: JobClass) -> str:
    """Return what one job asks for: ``1 GPU, 40 GiB VRAM, 2 CPUs, 4 GiB RAM``."""
    texts = [part.text for part in _size_parts(job)]
    texts[0] = texts[0] or "no GPU"
    return ", ".join(filter(None, texts))


class ClassNames:
    """Names of job classes for people: ``alice: 1 GPU, 40 GiB VRAM (3f2a)``.

    A name has the owner, what one job asks for, and the begin of the id, which is as short as is
    unique among all known classes. CPUs, memory and what else jobs can ask for are in it if they
    distinguish classes of one owner, or are unusual. Classes of which only the id is known
    (``others``) have a short id alone. Names are made when they are asked for.
    """

    def __init__(
        self,
        view: OverlayView | None,
        more: Iterable[JobClass] = (),
        others: Iterable[str] = (),
    ) -> None:
        self._classes = {job.id: job for job in (*(view.classes if view else ()), *more)}
        self._others = others
        self._distinguishing: dict[str, set[int]] = {}

    @cached_property
    def _ids(self) -> list[str]:
        return sorted({*self._classes, *self._others})

    @cached_property
    def _of_owner(self) -> dict[str, list[JobClass]]:
        found = defaultdict[str, list[JobClass]](list)
        for job in self._classes.values():
            found[job.owner].append(job)
        return found

    def of(self, class_id: str) -> str:
        """Return the name of a class."""
        job = self._classes.get(class_id)
        if job is None:
            return self.short_id(class_id)
        if class_id not in self._distinguishing:
            self._distinguishing |= _distinguishing_parts(self._of_owner[job.owner])
        shown = [
            sanitize(part.text, SHORT_TEXT)
            for place, part in enumerate(_name_parts(job))
            if part.text and (place in self._distinguishing[class_id] or not part.is_usual)
        ]
        owner = f"{short(job.owner)}: " if job.owner else ""
        return f"{owner}{', '.join(shown)} ({self.short_id(class_id)})"

    def short_id(self, class_id: str) -> str:
        """Return the begin of an id that no other class has; an id that is no hash as it is."""
        if not _HASH.fullmatch(class_id):
            return class_id
        at = bisect_left(self._ids, class_id)
        near = [each for each in self._ids[max(0, at - 1) : at + 2] if each != class_id]
        alike = max((_common_length(class_id, each) for each in near), default=0)
        return class_id[: max(SHORTEST_CLASS_ID, alike + 1)]

    def in_key(self, key: str) -> str:
        """Return a subject with the name of its class, or a scope with the short id of its class, if it has one."""
        subject = Subject.parse(key)
        scope = Scope.parse(key)
        if subject.kind == "class":
            return self.of(subject.name)
        return str(replace(scope, class_id=self.short_id(scope.class_id)))


def _common_length(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))


_PART_VALUES: tuple[Callable[[JobClass], object], ...] = (
    attrgetter("gpu_milli", "gpu_optional"),
    attrgetter("vram_mib"),
    attrgetter("capability"),
    attrgetter("driver"),
    attrgetter("cpus"),
    attrgetter("memory_mib"),
    attrgetter("disk_mib"),
    attrgetter("arch"),
    attrgetter("walltime_s"),
    attrgetter("group"),
    attrgetter("priority"),
)
"""Values of the parts of a name, in the order of ``_name_parts``."""


def _distinguishing_parts(classes: list[JobClass]) -> dict[str, set[int]]:
    """Return by id the places of the parts that tell the classes of one owner apart.

    Values are compared and no texts: one user may have 20,000 classes, of which few are named. Each
    part splits the classes that all parts before it leave alike; a class that is alone needs no more.
    """
    found: dict[str, set[int]] = {job.id: set() for job in classes}
    alike = [classes]
    for place, value_of in enumerate(_PART_VALUES):
        split = list[list[JobClass]]()
        for group in alike:
            by_value = defaultdict[object, list[JobClass]](list)
            for job in group:
                by_value[value_of(job)].append(job)
            if len(by_value) > 1:
                for job in group:
                    found[job.id].add(place)
            split += (jobs for jobs in by_value.values() if len(jobs) > 1)
        alike = split
    return found


STATE_WORDS = {
    DroneState.REQUESTED: "recorded and ordered; the site has not confirmed it",
    DroneState.SUBMITTED: "the site accepted the order",
    DroneState.QUEUED: "waits at the site",
    DroneState.BOOTING: "the site runs it; it is not in the pool yet",
    DroneState.JOINED: "in the pool, checking its GPUs; accepts no jobs yet",
    DroneState.IDLE: "in the pool, ready for jobs, none runs",
    DroneState.BUSY: "runs jobs",
    DroneState.DRAINING: "accepts no new jobs; running ones may finish",
    DroneState.STOPPING: "the site was asked to stop it and has not confirmed the end",
    DroneState.DONE: "ended: as planned",
    DroneState.CANCELLED: "ended: cancelled, because no job needed it or an operator requested it",
    DroneState.PREEMPTED: "ended: preempted by the site",
    DroneState.FAILED: "ended: could not start or broke",
    DroneState.LOST: "lost: disappeared from site and pool without an exit status",
    DroneState.JOIN_TIMEOUT: "ended: the site ran it but it did not join the pool in time",
    DroneState.UNUSED: "ended: was in the pool but never had a job",
}


BREAKER_WORDS = {
    BreakerState.ACTIVE: "works",
    BreakerState.DEGRADED: "failed recently, still used",
    BreakerState.BANNED: "not used",
    BreakerState.PROBING: "tested with one drone",
}


DRAIN_MODE_WORDS = {
    DrainMode.NONE: "jobs and drone are not affected",
    DrainMode.PEACEFUL: "no new jobs, running ones finish",
    DrainMode.GRACEFUL: "no new jobs, running ones get time to save and are then evicted",
    DrainMode.FAST: "no new jobs, running ones are killed",
    DrainMode.RESUME: "return to service",
}
"""Effect of each mode on running jobs."""


def credential_trouble(credential: Credential, now: float) -> str:
    """Return why a credential cannot be used, or when it ends if that is soon; empty: it can be used."""
    name = f"`{credential.name}`: "
    who = sanitize(credential.identity or credential.source, 200)
    if credential.problem:
        return name + sanitize(credential.problem, SHORT_TEXT)
    left_s = credential.not_after - now
    if not credential.not_after or left_s > credential.warning_s:
        return ""
    ends = f"expires at {iso(credential.not_after)}, in {age(left_s)}"
    if left_s <= 0:
        ends = f"expired at {iso(credential.not_after)}"
    return f"{name}the credential of {who} {ends}. Renew {credential.source}"


_ADVISED_CHANGES = {
    "memory": "ask for {0} of memory instead of {1}, if that is enough for the program",
    "disk": "ask for {0} of disk instead of {1}, if that is enough for the program",
    "vram": "ask for GPUs with {0} of memory instead of {1}, if that is enough for the program",
    "cpus": "ask for {0} CPU instead of {1}",
    "gpus": "ask for {0} GPU instead of {1}",
    "capability": "ask for GPUs of compute capability {0} instead of {1}, if that is enough for the program",
    "driver": "ask for CUDA {0} instead of {1}, if that is enough for the program",
    "walltime": "declare a run time of {0} instead of {1}",
    "optional": "declare the GPU as optional, if the program can run without one",
    "priority": "raise the priority of the job from {1} to {0}, above that of your other jobs",
    "group": "submit it for the group {0} instead of {1}",
}
"""Advised changes, of the advised and the requested amount; all others drop a requirement."""


_START_OUTCOMES = {
    StartOutcome.STARTS: "it starts as soon as its slot is ready, at an unknown time",
    StartOutcome.WAITS: "it waits for a free slot for an unknown time",
    StartOutcome.NEVER: "it never starts",
}
"""Outcomes with an unknown waiting time."""


def about(wait_s: float) -> str:
    """Return a waiting time as people say it: ``17 minutes``, ``9 hours``, ``3 days``."""
    for unit_s, least_s, unit in (
        (86400.0, 172800.0, "day"),
        (3600.0, 7200.0, "hour"),
        (60.0, 0.0, "minute"),
    ):
        if wait_s >= least_s:
            return count(max(1, round(wait_s / unit_s)), unit)
    return "-"


def _when(forecast: StartForecast) -> str:
    if forecast.wait_s is None:
        return _START_OUTCOMES[forecast.outcome]
    return (
        f"it starts in about {about(forecast.wait_s)}"
        if forecast.wait_s >= 1
        else "it starts at once"
    )


def advise(advice: RequestAdvice) -> str:
    """Return the advice in one sentence for the job's owner, who need not know what a drone is."""
    if advice.then is None:
        if advice.why is None:
            return f"no change is needed: {_when(advice.now)}"
        when = "" if advice.now.wait_s is None else f"; {_when(advice.now)}"
        return f"no change of the request helps: {advice.why.describe()}{when}"
    change = _ADVISED_CHANGES.get(advice.dimension)
    if change is None:
        asked = f"drop the requirement {short(advice.requested)}"
    else:
        requested, advised = amounts(_in_age(advice.requested), _in_age(advice.advised))
        asked = change.format(short(advised), short(requested))
    if advice.now.wait_s is not None and advice.then.wait_s is not None:
        return f"{asked}: {_when(advice.then)} instead of {about(advice.now.wait_s)}"
    return f"{asked}: {_when(advice.then)}. As it is, {_when(advice.now)}"


def _in_age(text: str) -> str:
    span_s, _, unit = text.partition(" ")
    return age(float(span_s)) if unit == "s" else text
