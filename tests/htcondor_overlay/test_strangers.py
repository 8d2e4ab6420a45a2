"""A schedd that does not answer stops nothing: one of others is left out, of one of ours the last answer is kept."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import classad2
import htcondor2
import pytest

from adapters.htcondor import daemons
from adapters.htcondor.classads import Ad
from adapters.htcondor.overlay import pool, schedds
from adapters.htcondor.overlay.settings import HTCondorConfig
from adapters.htcondor.overlay.work import JobRun, PoolWork
from provisioner.interfaces import AuthError, UnavailableError
from provisioner.model import DroneId, Eviction, OverlayView, Slot, SlotState
from tests.htcondor_overlay.jobs import job
from tests.htcondor_overlay.live import A100

SECRET = {"env": "T"}


class Fake:
    """A schedd by name, with what its pool says of it."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab, self.name = lab, name

    def query(self, constraint: str, *, opts: object = None, **_: object) -> list[Ad]:
        """Only the question of this process itself is noted: others are asked in processes of their own."""
        if self.name in self.lab.hangs:
            time.sleep(60)
        error = self.lab.errors.get(self.name)
        if error is not None:
            raise error
        if opts != htcondor2.QueryOpt.GroupBy:
            return self.lab.refused if "LastRejMatchTime" in constraint else []
        more = {"ConcurrencyLimits": f'"{self.lab.limits}"'} if self.lab.limits else {}
        return [job(Owner='"alice"', JobCount=str(self.lab.jobs.get(self.name, 0)), **more)]


class Lab(pool.PoolPoller):
    """A pool whose daemons are dictionaries: schedds by name, what they raise, and the collector's own ad."""

    def __init__(self, *names: str, memory: Path, schedds: tuple[str, ...] = ()) -> None:
        config = HTCondorConfig.model_validate(
            {"collector": "c:9618", "trust_domain": "t", "schedds": schedds}
            | {"token": SECRET, "drone_token": SECRET}
        )
        super().__init__(config, "kit", str(memory))
        self.names = list(names)
        self.errors: dict[str, BaseException] = {}
        self.hangs: set[str] = set()
        self.jobs: dict[str, int] = {}
        self.limits = ""
        self.refused: list[Ad] = []
        self.more: dict[str, dict[str, int]] = {}
        """More that schedds say in the collector."""
        self.started: float | None = 1000.0
        self._collector.query = self._ads  # type: ignore[method-assign]

    def _ads(self, kind: Any, constraint: str = "", projection: object = ()) -> list[Ad]:
        if kind == htcondor2.AdType.Collector:
            return (
                []
                if self.started is None
                else [classad2.ClassAd({"MonitorSelfTime": self.started})]
            )
        if kind != htcondor2.AdType.Schedd or "time()" in constraint:
            return [classad2.ClassAd({"Name": "x"})] if "time()" in constraint else []
        now = int(time.time())
        return [
            classad2.ClassAd({"Name": n, "LastHeardFrom": now, **self.more.get(n, {})})
            for n in self.names
        ]

    def schedd(self, ad: Ad) -> Fake:
        return Fake(self, str(ad["Name"]))

    def seen(self) -> OverlayView:
        return self.poll([A100]).view

    def waiting(self) -> int:
        return sum(each.waiting + each.fresh for each in self.seen().classes)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Lab]:
    monkeypatch.setattr(
        daemons, "BindingsErrors", lambda: SimpleNamespace(translated=lambda _: nullcontext())
    )
    monkeypatch.setattr("adapters.htcondor.htcondor2.Collector", lambda _: None)

    def made(*names: str, **more: Any) -> Lab:
        lab = Lab(*names, **{"memory": tmp_path / "schedds", **more})
        monkeypatch.setattr("adapters.htcondor.htcondor2.Schedd", lab.schedd)
        return lab

    return made


@pytest.fixture
def lab(make: Callable[..., Lab]) -> Lab:
    made = make("ours", "stranger")
    made.errors["stranger"] = AuthError("schedd stranger: READ denied")
    made.jobs = {"ours": 2, "stranger": 5}
    return made


def test_a_schedd_that_denies_reading_is_left_out_with_a_notice_that_names_it(lab: Lab) -> None:
    view = lab.seen()
    (notice,) = view.notices
    assert notice.startswith(
        "schedd stranger has never answered and is left out (schedd stranger: READ denied)"
    )
    assert "`schedds`" in notice
    assert lab.waiting() == 2
    assert view.unheard == (), "its jobs never counted, so nothing is missing"
    assert lab.poll([A100]).silent == ("stranger",), "nobody waits for its history"
    lab.names.remove("stranger")
    assert lab.seen().notices == (), "once it has gone it is forgotten"


def later(lab: Lab, by_s: float) -> None:
    """Let time pass for what is known of the schedds."""
    known = lab._schedds
    for name, silence in known.silent.items():
        known.silent[name] = replace(
            silence, since=silence.since - by_s, tried_at=silence.tried_at - by_s
        )
    for name, last in known.last.items():
        known.last[name] = replace(last, taken_at=last.taken_at - by_s)


def test_once_it_answers_its_jobs_count(lab: Lab) -> None:
    assert lab.waiting() == 2
    lab.errors.clear()
    assert lab.waiting() == 2, "not asked again at once"
    later(lab, schedds.SILENT_RETRY_S)
    assert lab.waiting() == 7


@pytest.mark.parametrize("named", [(), ("stranger",)], ids=["any", "named"])
def test_where_no_schedd_answers_nobody_knows_what_waits(
    make: Callable[..., Lab], named: tuple[str, ...]
) -> None:
    lab = make("stranger", schedds=named)
    lab.errors["stranger"] = AuthError("READ denied")
    for _ in range(2):
        with pytest.raises(AuthError, match="schedd stranger: READ denied"):
            lab.seen()
    lab.errors.clear()
    assert lab.seen().unheard == (), "and it is asked at each look"


@pytest.mark.parametrize("named", [(), ("a", "b")], ids=["any", "named"])
@pytest.mark.parametrize("how", ["hangs", "fails", "unlisted"])
def test_a_schedd_that_falls_silent_is_left_out_and_its_last_answer_kept_for_a_while(
    make: Callable[..., Lab], how: str, named: tuple[str, ...]
) -> None:
    lab = make("a", "b", schedds=named)
    lab.jobs = {"a": 2, "b": 5}
    assert lab.waiting() == 7
    if how == "hangs":
        lab.hangs.add("b")
    elif how == "fails":
        lab.errors["b"] = UnavailableError("no connection")
    else:
        lab.names.remove("b")
    why = {
        "hangs": "no answer within 3 s",
        "fails": "no connection",
        "unlisted": "the collector does not list it",
    }[how]
    view = lab.seen()
    (notice,) = view.notices
    assert (
        notice
        == f"schedd b does not answer ({why}): its jobs count as they were less than a minute ago"
    )
    assert view.unheard == ("b",)
    lab.jobs["a"] = 1
    assert lab.waiting() == 6, "of b what it said last, of a what it says now"
    if how == "unlisted":
        lab.names.append("b")
        assert lab.waiting() == 6 and lab.seen().unheard == (), (
            "at once: it was not asked while it was not listed"
        )
        lab.names.remove("b")
    later(lab, 600.0)
    assert "as they were 10 min ago" in lab.seen().notices[0] and lab.waiting() == 6
    later(lab, 600.0)
    assert lab.waiting() == 1, "nobody knows any more"
    if how == "unlisted" and not named:
        assert lab.seen().unheard == (), "it has gone for good"
    else:
        assert lab.seen().unheard == ("b",)
        assert lab.seen().notices == (
            f"schedd b has not answered for 20 min ({why}): its jobs are left out",
        )


@pytest.mark.parametrize("limit", ["most-running", "concurrency"])
def test_jobs_of_a_silent_schedd_that_no_slot_would_help_stay_behind_their_limit(
    make: Callable[..., Lab], limit: str
) -> None:
    """A schedd that runs all it can is busy, and may be too slow to answer: its queue was demand as long as it was."""
    lab = make("a", "b")
    lab.jobs = {"b": 5}
    if limit == "concurrency":
        lab.limits = "licence"
        told = {
            "ConcurrencyLimits": "licence",
            "LastRejMatchReason": "concurrency limit licence reached",
        }
        lab.refused = [
            classad2.ClassAd({"JobStatus": 1, "LastRejMatchTime": int(time.time()), **told})
        ]
    else:
        lab.more["b"] = {"MaxJobsRunning": 10, "TotalRunningJobs": 8}
    kept_back = 5 if limit == "concurrency" else 3

    def limited() -> int:
        return sum(each.limited for each in lab.seen().classes)

    lab.seen()  # jobs are fresh until a cycle has passed them by, and fresh ones are not judged
    before = limited()
    lab.names.remove("b")
    lab.refused = []
    assert (before, limited()) == (kept_back, kept_back)
    assert lab.seen().unheard == ("b",)


def test_one_that_keeps_us_waiting_is_asked_ever_more_rarely(tmp_path: Path) -> None:
    known = schedds.ScheddRegistry(900.0, tmp_path)
    good, slow = (schedds.ScheddQueue(name, None, 0.0) for name in "ab")
    asked = []
    for _ in range(80):
        due = known.due([good, slow], time.time())
        assert good in due
        asked.append(slow in due)
        if asked[-1]:
            known.failed("b", UnavailableError("no answer"), time.time(), hung=True)
        known.silent["b"] = replace(known.silent["b"], tried_at=known.silent["b"].tried_at - 15.0)
    assert asked[:9] == [True, False, True, False, False, False, True, False, False]
    assert asked[-40:].count(True) == 2, "at last every five minutes"


def test_names_that_are_not_listed_are_told_with_those_that_are(make: Callable[..., Lab]) -> None:
    with pytest.raises(
        UnavailableError, match=r"does not list sub1, sub2; it lists submit1, submit2"
    ):
        make("submit1", "submit2", schedds=("sub1", "sub2")).seen()
    view = make("submit1", schedds=("submit1", "sub2")).seen()
    assert view.unheard == ("sub2",), "the view is partial"
    assert view.notices[0].startswith(
        "schedd sub2 has not answered for less than a minute (the collector does not"
    )


def test_a_process_that_was_ended_leaves_word_to_the_next_one(
    make: Callable[..., Lab], tmp_path: Path
) -> None:
    """A schedd may fall silent between the trivial question and the real ones: then the process that looks is ended."""
    first = make("a", "b", memory=tmp_path)
    first.jobs = {"a": 2, "b": 5}
    assert first.waiting() == 7
    first._schedds.note_asked("schedd b")  # and was ended
    assert schedds.asked(tmp_path) == "schedd b"
    second = make("a", "b", memory=tmp_path)
    second.jobs = {"a": 2}
    second.hangs.add("b")
    assert schedds.asked(tmp_path) == ""
    assert second.waiting() == 7
    view = second.seen()
    assert view.unheard == ("b",) and "no answer before the deadline of a poll" in view.notices[0]
    later(second, 1000.0)
    assert second.waiting() == 2
    third = make("a", memory=tmp_path)
    third.jobs = {"a": 2}
    assert third.waiting() == 2


def test_work_of_a_silent_schedd_is_told_while_its_drone_is_busy() -> None:
    run = JobRun(DroneId("kit-1"), 1000, 50.0)
    ended = replace(run, drone_id=DroneId("kit-2"))
    evictions = tuple(
        Eviction(DroneId("kit-3"), f"{n}.0", at, 1000, 1.0) for n, at in enumerate((1000.0, 50.0))
    )
    answer = schedds.ScheddAnswer(1000.0, (), PoolWork((run, ended), evictions))
    slots = [replace(slot("kit-1"), state=SlotState.BUSY, jobs=1), slot("kit-2")]
    assert answer.work_now(slots, 1000.0) == PoolWork((run,), evictions[:1])


def test_a_schedd_that_has_restarted_is_asked_again() -> None:
    rejected = "Failed to fetch ads from schedd, errmsg=SECMAN:2004:Server rejected our session id"
    errors = [rejected]

    class Restarted:
        def query(self, *args: object, **more: object) -> list[Ad]:
            if errors:
                raise htcondor2.HTCondorException(errors.pop())
            return []

    queue = schedds.ScheddQueue("ours", Restarted(), 0.0)
    queue.ask()
    errors += [rejected, rejected]
    with pytest.raises(htcondor2.HTCondorException):
        queue.ask()
    assert not errors


def test_each_is_asked_in_a_process_of_its_own() -> None:
    def fails() -> None:
        raise OSError

    began = time.monotonic()
    found = schedds.answers({"good": time.time, "bad": fails, "slow": lambda: time.sleep(60)}, 5.0)
    assert found == {"good": True, "bad": False, "slow": None}
    assert time.monotonic() - began < 30
    assert schedds.answers({}, 1.0) == {}


def test_where_no_more_processes_can_be_started_none_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """End and collect those that had been started: else each look left more of them."""
    started: list[int] = []

    def fork() -> int:
        if started:
            raise BlockingIOError("no more processes")
        started.append(real())
        return started[0]

    real = os.fork
    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(BlockingIOError):
        schedds.answers({"one": lambda: time.sleep(60), "two": time.time}, 5.0)
    with pytest.raises(ChildProcessError):
        os.waitpid(started[0], os.WNOHANG)


def slot(name: str) -> Slot:
    return Slot(DroneId(name), SlotState.IDLE, heard_at=0.0)


def test_a_missing_ad_of_the_collector_is_no_restart_and_leaves_no_ghosts(lab: Lab) -> None:
    one, two = (slot("kit-1"),), (slot("kit-2"),)
    assert lab._after_restart(one, 9000.0) == (one, [])
    for now, started in ((9010.0, None), (9020.0, 1000.0), (9030.0, None), (9040.0, 1000.0)):
        lab.started = started
        assert lab._after_restart(two, now) == (two, []), (
            "the drone that left is gone, and nothing has started anew"
        )


def test_slots_outlive_a_restart_whose_first_second_has_no_ad(lab: Lab) -> None:
    one = (slot("kit-1"),)
    lab._after_restart(one, 9000.0)
    lab.started = None
    assert lab._after_restart((), 9010.0) == ((), [])
    lab.started = 1110.0
    slots, (notice,) = lab._after_restart((), 9011.0)
    assert slots == one and notice.startswith("collector restarted")
