"""A clock that is set, forwards or backwards, neither expires drones nor makes them younger."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from provisioner.service.clock import SteadyClock


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


def test_a_start_with_a_clock_set_back_goes_on_from_the_record() -> None:
    hands = Hands()
    clock = SteadyClock(lambda: hands.wall, lambda: hands.mono, not_before=hands.wall + 5000)
    hands.pass_time(10)
    assert abs(clock.now() - (1_000_000.0 + 5000 + 9)) < 1e-6
    assert clock.drift_s() < -4990
