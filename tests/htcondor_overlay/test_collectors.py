"""Several collectors of a pool: queries go to one until it fails, updates to all; and their clock."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import classad2
import htcondor2
import pytest

from adapters.htcondor import daemons as module
from adapters.htcondor.daemons import Collectors, clock_skew

ANY = htcondor2.AdType.Any


class Remote:
    """A collector that answers with its address, as long as it is not among the dead."""

    dead: frozenset[str] = frozenset()
    told: list[str] = []  # noqa: RUF012

    def __init__(self, address: str) -> None:
        self.address = address

    def query(self, *args: object, **more: object) -> Sequence[str]:
        self._alive()
        return [self.address]

    def advertise(self, *args: object) -> None:
        self._alive()
        self.told.append(self.address)

    def _alive(self) -> None:
        if self.address in self.dead:
            raise htcondor2.HTCondorException(f"{self.address} does not answer")


@pytest.fixture(autouse=True)
def remote(monkeypatch: pytest.MonkeyPatch) -> type[Remote]:
    class Fresh(Remote):
        told: list[str] = []  # noqa: RUF012

    monkeypatch.setattr("adapters.htcondor.htcondor2.Collector", Fresh)
    monkeypatch.setattr(
        module, "BindingsErrors", lambda: SimpleNamespace(translated=lambda _: nullcontext())
    )
    return Fresh


def test_one_is_asked_until_it_fails(remote: Any) -> None:
    pool = Collectors("a:1,b:1,[::1]:2")
    first = pool.address
    assert [pool.query(ANY) for _ in range(5)] == [[first]] * 5
    remote.dead = frozenset({first})
    (second,) = pool.query(ANY)
    assert second != first
    remote.dead = frozenset()
    assert pool.query(ANY) == [second]
    assert pool.address == second
    remote.dead = frozenset({"a:1", "b:1", "[::1]:2"})
    for fails in (lambda: pool.query(ANY), lambda: pool.advertise([], "UPDATE_AD_GENERIC")):
        with pytest.raises(htcondor2.HTCondorException):
            fails()


@pytest.mark.parametrize("dead", ["", "a:1", "b:1"])
def test_all_that_live_are_told(remote: Any, dead: str) -> None:
    remote.dead = frozenset({dead})
    Collectors("a:1,b:1").advertise([], "UPDATE_AD_GENERIC")
    assert set(remote.told) == {"a:1", "b:1"} - {dead}


def test_a_process_begins_anywhere() -> None:
    """One that was ended for the silence of a host must not ask that host first again."""
    assert {Collectors("a:1,b:1").address for _ in range(100)} == {"a:1", "b:1"}


class OtherSide:
    """Evaluates what it is asked, with a clock of its own."""

    def __init__(self, ahead_s: int) -> None:
        self.now, self.asked = 1_800_000_000 + ahead_s, 0

    def says(self, expression: str) -> bool:
        self.asked += 1
        return (
            classad2.ExprTree(expression.replace("time()", str(self.now))).eval(classad2.ClassAd())
            is True
        )


@pytest.mark.parametrize("ahead_s", [0, 1, -2, 3, -3, 60, -3600, 86400 * 365, -86400 * 3000])
def test_the_skew_is_found_to_the_second_and_kept_by_one_question(ahead_s: int) -> None:
    other = OtherSide(ahead_s)
    found = clock_skew(other.says, lambda: 1_800_000_000.4)
    assert found == (0 if abs(ahead_s) <= 2 else ahead_s)
    assert other.asked <= 35
    other.asked = 0
    assert clock_skew(other.says, lambda: 1_800_000_000.4, found) == found
    assert other.asked == 1


def test_a_clock_that_makes_no_sense_is_taken_for_ours() -> None:
    assert clock_skew(lambda _: False, lambda: 1_800_000_000.0) == 0
    assert clock_skew(OtherSide(10**10).says, lambda: 1_800_000_000.0) == 0
