"""A collector that has just started lists no nodes, or few: that is not taken for a site without any."""

from __future__ import annotations

import pytest

from adapters.htcondor.site.site import NodeRegistry
from provisioner.interfaces import UnavailableError


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def roll_call(clock: Clock) -> NodeRegistry:
    return NodeRegistry("c.test:9618", 900.0, clock)


def test_nodes_that_were_there_a_while_ago_do_not_all_vanish(roll_call: NodeRegistry, clock: Clock) -> None:
    assert roll_call.notices(["a", "b"]) == ()
    clock.now += 900
    for _ in range(2):
        with pytest.raises(UnavailableError, match="lists no slots"):
            roll_call.notices([])
    clock.now += 1
    assert roll_call.notices([]) == ("collector c.test:9618 lists no slots: nothing can start here",)


def test_a_site_that_never_listed_any_is_told_of(roll_call: NodeRegistry) -> None:
    assert len(roll_call.notices([])) == 1


def test_when_more_than_half_are_missed_a_person_is_told(roll_call: NodeRegistry, clock: Clock) -> None:
    assert roll_call.notices("abcd") == ()
    assert roll_call.notices("ab") == ()
    assert roll_call.notices("a") == ("collector c.test:9618 lists 1 nodes (just started?); 3 are missed",)
    clock.now += 901
    assert roll_call.notices("a") == (), "those are gone for good"
