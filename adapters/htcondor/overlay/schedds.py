"""The schedds of a pool: those that answer, and the last answer of those that do not.

This lives in the worker process that polls the pool. The bindings wait 20 s for a schedd that
accepts connections and does not answer, and nothing shortens that. So each schedd is first asked by
a process of its own, which can be ended. What must outlive the end of the worker itself, at the
deadline of a poll, is kept in a directory.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from adapters.htcondor import htcondor2
from adapters.htcondor.classads import SAME_CLOCK_S, Ad, Refusal, moment, number
from adapters.htcondor.daemons import with_new_session
from adapters.htcondor.overlay.job_classes import JobGroup
from adapters.htcondor.overlay.work import EVICTION_REPORTED_S, PoolWork
from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError, UnavailableError
from provisioner.model import Slot
from provisioner.values import factory, frozen

SCHEDD_ANSWER_TIMEOUT_S = 3.0  # longest wait for the answer of a schedd to a trivial question
SILENT_RETRY_S, HUNG_RETRY_S = 30.0, 300.0
"""A silent schedd is asked again after this long; one that kept us waiting ever more rarely, at
last after the second."""
_MAX_SILENCE_NOTICES = 10


@frozen
class ScheddQueue:
    """One schedd: where it is, and how far its clock is ahead of the collector's."""

    name: str
    schedd: Any
    ahead_s: float
    # number of further jobs it may run (MAX_JOBS_RUNNING); None where it does not say
    slack: int | None = None

    def ask(self) -> None:
        nothing = "ClusterId == 0 && ProcId == 0"
        with_new_session(lambda: self.schedd.query(nothing, projection=["ClusterId"], limit=1))


@frozen
class ScheddAnswer:
    taken_at: float
    groups: tuple[JobGroup, ...]
    work: PoolWork
    slack: int | None = None  # as of :class:`ScheddQueue`
    refusals: Mapping[str, Refusal] = factory(dict)
    """Newest refusal of a waiting job by its concurrency limits."""
    routed: Mapping[str, str] = factory(dict)
    """Ids of routed copies by those of their source jobs."""

    def work_now(self, slots: Sequence[Slot], now: float) -> PoolWork:
        """Return its work that may still go on in ``slots``, and its recent ends."""
        busy = {slot.drone_id for slot in slots if slot.jobs}
        return PoolWork(
            tuple(run for run in self.work.runs if run.drone_id in busy),
            tuple(each for each in self.work.evictions if each.at >= now - EVICTION_REPORTED_S),
            tuple(each for each in self.work.failures if each.at >= now - EVICTION_REPORTED_S),
        )


@frozen
class ScheddSilence:
    since: float
    tried_at: float
    error: AdapterError
    hung: int = 0  # questions in a row that it accepted and did not answer in time


class ScheddRegistry:
    """The schedds that answer, those that do not, and the last answer of each, beyond the end of the worker."""

    def __init__(self, memory_s: float, directory: Path) -> None:
        """Go on where the process before this one was ended, which may have been while it asked a schedd."""
        self.memory_s = memory_s
        self._directory = directory
        self.answered: set[str] = set()  # schedds that have ever answered
        self.silent: dict[str, ScheddSilence] = {}
        self.last: dict[str, ScheddAnswer] = {}
        with suppress(OSError, EOFError, pickle.UnpicklingError):  # none was written
            directory.mkdir(mode=0o700, exist_ok=True)
            self.answered, self.silent, self.last = pickle.loads((directory / "known").read_bytes())
        whom, _, name = asked(directory).partition(" ")
        if whom == "schedd":
            self.failed(
                name,
                UnavailableError("no answer before the deadline of a poll"),
                time.time(),
                hung=True,
            )
            self.save()
        self.note_asked("")

    def save(self) -> None:
        """Keep what a process after this one needs. Answers only where one of several schedds may become silent."""
        kept = self.last if len(self.last) > 1 or self.silent else {}
        with suppress(OSError):
            fresh = self._directory / "known.new"
            fresh.write_bytes(
                pickle.dumps((self.answered, self.silent, kept), protocol=pickle.HIGHEST_PROTOCOL)
            )
            fresh.replace(self._directory / "known")

    @contextmanager
    def asking(self, whom: str, name: str) -> Iterator[None]:
        """Note for the time of the context who is asked: this process may be kept waiting until it is ended."""
        self.note_asked(f"{whom} {name}")
        try:
            yield
        finally:
            self.note_asked("")

    def note_asked(self, whom: str) -> None:
        with suppress(OSError):
            (self._directory / "asking").write_text(whom, encoding="utf-8")

    def due(self, queues: Sequence[ScheddQueue], now: float) -> list[ScheddQueue]:
        """Return the schedds to ask: those that answer, and now and then the silent ones; all, if none answers."""
        if all(queue.name in self.silent for queue in queues):
            return list(queues)
        found = []
        for queue in queues:
            silence = self.silent.get(queue.name)
            if silence is not None:
                wait_s = min(
                    SILENT_RETRY_S * 2.0 ** min(max(0, silence.hung - 1), 10), HUNG_RETRY_S
                )
                # a clock that was set back must not silence it for long
                if now < min(silence.tried_at, time.time()) + wait_s:
                    continue
            found.append(queue)
        return found

    def try_out(
        self, queues: Sequence[ScheddQueue], translated: Callable[[ScheddQueue], Any], wait_s: float
    ) -> None:
        """Ask each schedd an empty question. ``translated``: a context that turns the bindings' errors into ours."""
        now = time.time()
        results = answers({queue.name: queue.ask for queue in queues}, wait_s)
        for queue in queues:
            try:
                if results[queue.name] is None:
                    raise UnavailableError(f"no answer within {wait_s:g} s")
                if not results[queue.name]:  # at once: this process may ask for the reason
                    with translated(queue):
                        queue.ask()
                self.heard(queue.name)
            except AdapterError as error:
                self.failed(queue.name, error, now, hung=results[queue.name] is None)

    def failed(
        self,
        name: str,
        error: AdapterError,
        now: float,
        *,
        hung: bool = False,
        unlisted: bool = False,
    ) -> None:
        """Note that a schedd did not answer. One that is ``unlisted`` is asked at once when it is listed again."""
        known = self.silent.get(name)
        last = self.last.get(name)
        since = known.since if known else last.taken_at if last else now
        tries = (known.hung if known else 0) + 1 if hung else 0
        self.silent[name] = ScheddSilence(since, 0.0 if unlisted else now, error, tries)

    def heard(self, name: str, answer: ScheddAnswer | None = None) -> None:
        self.silent.pop(name, None)
        self.answered.add(name)
        if answer is not None:
            self.last[name] = answer

    def forget(self, name: str) -> None:
        self.silent.pop(name, None)
        self.last.pop(name, None)
        self.answered.discard(name)

    def kept(self, now: float) -> Mapping[str, ScheddAnswer]:
        """Return the last answers of silent schedds, for as long as they count."""
        for name in self.silent.keys() & self.last.keys():
            if now - self.last[name].taken_at > self.memory_s:
                del self.last[name]
        return {name: self.last[name] for name in sorted(self.silent.keys() & self.last.keys())}

    def error(self) -> AdapterError:
        some = list(islice(self.silent.items(), 5))
        message = "; ".join(f"schedd {printable(name, 80)}: {each.error}" for name, each in some)
        return type(some[0][1].error)(message, some[0][1].error.kind)

    def notices(self, named: Sequence[str], now: float) -> Iterator[str]:
        """Yield a line for each silent schedd. ``named``: those of the configuration."""
        for name, silence in sorted(self.silent.items())[:_MAX_SILENCE_NOTICES]:
            shown = printable(name, 80)
            why = printable(str(silence.error), 160)
            minutes = int((now - silence.since) // 60)
            age = f"{minutes} min" if minutes else "less than a minute"
            if name not in self.answered and name not in named:
                repair = (
                    "name the schedds to query under `schedds`, or allow the controller READ there"
                )
                yield f"schedd {shown} has never answered and is left out ({why}): {repair}"
            elif name in self.last:
                yield f"schedd {shown} does not answer ({why}): its jobs count as they were {age} ago"
            else:
                yield f"schedd {shown} has not answered for {age} ({why}): its jobs are left out"

    def unheard(self, named: Sequence[str]) -> tuple[str, ...]:
        """Return the silent schedds whose jobs should count."""
        return tuple(
            printable(n, 80) for n in sorted(self.silent) if n in self.answered or n in named
        )


def asked(directory: Path) -> str:
    """Return who is asked now, or was when the polling process was ended: ``schedd NAME``, ``collector ADDRESS``."""
    try:
        return (directory / "asking").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def answers(asks: Mapping[str, Callable[[], object]], wait_s: float) -> dict[str, bool | None]:
    """Call each in a process of its own, all at once; return whether it returned, None if it is not done in time."""

    def run(ask: Callable[[], object]) -> None:
        with suppress(BaseException):
            ask()
            os._exit(0)
        os._exit(1)

    fork = multiprocessing.get_context("fork")
    running = {name: fork.Process(target=run, args=(ask,)) for name, ask in asks.items()}
    limit = time.monotonic() + wait_s
    try:
        for process in running.values():
            process.start()
        for process in running.values():
            process.join(max(0.0, limit - time.monotonic()))
        return {
            name: None if each.exitcode is None else each.exitcode == 0
            for name, each in running.items()
        }
    finally:
        for process in running.values():
            if process.pid is not None:
                process.kill()
                process.join()


def queues_of(ads: Mapping[str, Ad], names: Collection[str]) -> list[ScheddQueue]:
    """Return the schedds whose jobs count: those of these names, or all. ``ads``: by name."""
    found = []
    for name, ad in sorted(ads.items()):
        most = number(ad, "MaxJobsRunning")
        runs = number(ad, "TotalRunningJobs")
        slack = None if most is None or runs is None else max(0, int(most - runs))
        if not names or name in names:
            found.append(ScheddQueue(name, htcondor2.Schedd(ad), ahead(ad), slack))
    return found


def ahead(ad: Ad) -> float:
    """Return by how many seconds the clock of the daemon that sent an ad is ahead of the collector's."""
    theirs = moment(ad, "MyCurrentTime")
    heard = moment(ad, "LastHeardFrom")
    ahead = theirs - heard if theirs and heard else 0.0
    return ahead if abs(ahead) > SAME_CLOCK_S else 0.0
