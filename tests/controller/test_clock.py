"""A clock that is set, forwards or backwards, neither expires drones nor makes them younger."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provisioner.controller.clock import SteadyClock


class Hands:
    """A wall clock that people set and a monotonic one that they cannot."""

    def __init__(self) -> None:
        self.wall, self.mono = 1_000_000.0, 50.0

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.mono += seconds


def steady(hands: Hands) -> SteadyClock:
    return SteadyClock(lambda: hands.wall, lambda: hands.mono)


def test_it_follows_the_wall_clock_when_nobody_sets_it() -> None:
    hands = Hands()
    clock = steady(hands)
    for _ in range(100):
        hands.pass_time(15)
        assert abs(clock.now() - hands.wall) < 1e-6


def test_a_step_of_an_hour_moves_it_by_a_tenth_of_what_passes() -> None:
    hands = Hands()
    clock = steady(hands)
    hands.wall += 3600
    hands.pass_time(10)
    assert abs(clock.now() - 1_000_011.0) < 1e-6
    assert abs(clock.drift_s() - 3599) < 1e-6


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0.01, 1e4)), min_size=1, max_size=30))
def test_it_never_goes_backwards_and_never_runs_more_than_a_tenth_off(steps: list[tuple[float, float]]) -> None:
    hands = Hands()
    clock = steady(hands)
    before = clock.now()
    for step, passes in steps:
        hands.wall += step
        hands.pass_time(passes)
        now = clock.now()
        assert 0.9 * passes - 1e-3 <= now - before <= 1.1 * passes + 1e-3
        before = now


def started(hands: Hands, record: float, drift_s: float = 0.0, ntp: bool = False) -> SteadyClock:
    """A clock of a controller that starts with a record of that time."""
    return SteadyClock(lambda: hands.wall, lambda: hands.mono, record, drift_s, lambda: ntp)


def test_a_start_with_a_clock_set_back_goes_on_from_the_record() -> None:
    hands = Hands()
    clock = started(hands, hands.wall + 3000)
    hands.pass_time(10)
    assert abs(clock.now() - (1_000_000.0 + 3000 + 9)) < 1e-6
    assert clock.drift_s() < -2990
    assert not clock.doubted()


def test_a_start_goes_on_with_what_the_clock_was_off_before() -> None:
    hands = Hands()
    clock = started(hands, hands.wall - 3510 - 20, drift_s=3510)
    assert clock.now() == hands.wall - 3510
    assert not clock.doubted()


@pytest.mark.parametrize("off_s", [60 * 86_400.0, -60 * 86_400.0])
def test_a_clock_that_is_months_off_at_the_start_is_doubted_until_it_is_set(off_s: float) -> None:
    hands = Hands()
    clock = started(hands, hands.wall - off_s)
    hands.pass_time(600)
    assert clock.now() == 1_000_000.0 - off_s + 600, "time goes on, and nothing of the difference is made up"
    assert clock.doubted() and clock.due_s() == 0.0
    hands.wall -= off_s  # NTP has come
    assert not clock.doubted()
    assert clock.now() == hands.wall


@pytest.mark.parametrize("off_s", [1e5, -1e5])
def test_a_clock_that_ntp_keeps_is_believed_at_once_whatever_the_record_says(off_s: float) -> None:
    hands = Hands()
    clock = started(hands, hands.wall - off_s, ntp=True)
    assert clock.due_s() == off_s
    clock.settle()
    assert (clock.now(), clock.doubted(), clock.due_s()) == (hands.wall, False, 0.0)


def test_a_doubted_clock_that_nobody_sets_is_believed_after_an_hour() -> None:
    hands = Hands()
    clock = started(hands, hands.wall - 1e5)
    hands.pass_time(3599)
    assert clock.due_s() == 0.0
    hands.pass_time(2)
    assert clock.due_s() == 1e5
    clock.settle()
    assert (clock.now(), clock.doubted(), clock.due_s()) == (hands.wall, False, 0.0)


def test_a_clock_that_runs_is_never_set_back() -> None:
    hands = Hands()
    clock = started(hands, hands.wall + 1e5)
    clock.now()
    hands.pass_time(1e4)
    assert clock.doubted() and clock.due_s() == 0.0


@pytest.mark.parametrize("drift_s", [1e5, -1e5])
def test_a_clock_far_off_that_kept_its_distance_is_believed(drift_s: float) -> None:
    hands = Hands()
    clock = started(hands, hands.wall - drift_s - 20, drift_s=drift_s)
    assert clock.due_s() == drift_s
    clock.settle()
    assert clock.now() == hands.wall
