"""The collector's clock is found by yes and no."""

from __future__ import annotations

import classad2
import pytest

from adapters.htcondor.daemons import clock_skew


class OtherSide:
    """Evaluates what it is asked, with a clock of its own."""

    def __init__(self, ahead_s: int) -> None:
        self.now, self.asked = 1_800_000_000 + ahead_s, 0

    def says(self, expression: str) -> bool:
        self.asked += 1
        return classad2.ExprTree(expression.replace("time()", str(self.now))).eval(classad2.ClassAd()) is True


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
