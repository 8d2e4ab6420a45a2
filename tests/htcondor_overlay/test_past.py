"""A pool's past is read from the schedds that answer, in the time that there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import htcondor2
import pytest

from adapters.htcondor.classads import Ad, holds
from adapters.htcondor.daemons import Collectors
from adapters.htcondor.overlay import past
from adapters.htcondor.overlay.past import ASKING_S, PastReader
from adapters.htcondor.overlay.schedds import ScheddQueue
from adapters.htcondor.overlay.settings import HTCondorConfig
from provisioner.history import HISTORY_S, RunHistoryView
from provisioner.interfaces import UnavailableError
from tests.htcondor_overlay.jobs import ad_of, exprs

NOW = time.time()
SINCE = NOW - HISTORY_S
Reading = Callable[..., RunHistoryView]


def done(number: int, ended_at: float, **more: str) -> Ad:
    about = f"ClusterId = {number}; ProcId = 0; JobStatus = 4; CompletionDate = {ended_at:.0f}; RequestGPUs = 1"
    about += f"; EnteredCurrentStatus = {ended_at:.0f}; JobCurrentStartDate = {ended_at - 60:.0f}; JobUniverse = 5"
    return ad_of(exprs(about), more)


@dataclass
class Schedd:
    """A schedd with a history, newest first, that is read as HTCondor does, and with jobs that stay in its queue."""

    clock: list[float]
    left: Sequence[Ad] = ()
    stay: Sequence[Ad] = ()
    silent: bool = False
    asked: list[str] = field(default_factory=list)

    def query(self, constraint: str, projection: object = (), limit: int = -1) -> list[Ad]:
        self.asked.append(constraint)
        if self.silent:
            self.clock[0] += 20.0
            raise OSError("no answer")
        return [ad for ad in self.stay if holds(constraint, ad, ad)][:limit]

    def history(self, constraint: str, projection: object, limit: int, end: str) -> list[Ad]:
        found: list[Ad] = []
        for ad in self.left:
            if holds(end, ad, ad):
                break
            found += [ad] if holds(constraint, ad, ad) else []
        return found[:limit]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Reading:
    monkeypatch.setattr(Collectors, "schedds", lambda self: {})
    monkeypatch.setattr(Collectors, "read_clock", lambda self: None)
    monkeypatch.setitem(htcondor2.param, "TOOL_LOG", str(tmp_path / "log"))

    def completed(clock: list[float], *schedds: Schedd) -> RunHistoryView:
        queues = [ScheddQueue(f"s{n}", schedd, 0.0) for n, schedd in enumerate(schedds)]
        monkeypatch.setattr(past, "queues_of", lambda *given: queues)
        config = HTCondorConfig.model_construct(  # type: ignore[call-arg]
            collector="127.0.0.1:9618", schedds=(), constraint="true", owner_attribute="AcctGroup"
        )
        return PastReader(config, "kit", lambda: clock[0]).completed(SINCE)

    return completed


def ids(view: RunHistoryView) -> list[str]:
    return [run.job_id for run in view.runs]


def test_late_entries_and_jobs_in_the_queue_count(read: Reading) -> None:
    spooled = {"LeaveJobInQueue": "JobStatus == 4"}
    left = [
        done(1, NOW - 100),
        done(2, SINCE - 50, **spooled),
        done(3, NOW - 200),
        done(4, SINCE - 9),
        done(5, NOW),
    ]
    found = read([0.0], Schedd([0.0], left, [done(6, NOW - 300, **spooled)]))
    assert ids(found) == ["s0#1.0", "s0#3.0", "s0#6.0"] and not found.left_out


def test_silent_schedds_take_only_so_much_time(read: Reading) -> None:
    clock = [0.0]
    answers = [Schedd(clock, [done(n, NOW - 100)]) for n in (1, 2)]
    silent = [Schedd(clock, silent=True) for _ in range(2)]
    found = read(clock, answers[0], silent[0], answers[1])
    assert ids(found) == ["s0#1.0", "s2#2.0"] and found.left_out
    clock[0] = 0.0
    found = read(clock, answers[0], *silent, answers[1])
    assert ids(found) == ["s0#1.0"] and found.left_out and clock[0] == 40.0 > ASKING_S
    with pytest.raises(UnavailableError, match="no answer"):
        read([0.0], *silent)
