"""Which drones of a node leave: a set that is enough, the cheapest such set, and none in vain."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given, strategies as st

from provisioner.model import DroneId
from provisioner.planner.matching import count_fits
from provisioner.planner.victims import (
    VictimCandidate,
    cheapest_set,
)
from provisioner.resources import NO_RESOURCES, Resources

DRONE = Resources(1000, 8, 20480, 0)
CPU_DRONE = Resources(0, 16, 32768, 0)
FULL = Resources(0, 0, 0, 0)


def names(found: tuple[VictimCandidate, ...] | None) -> list[str]:
    assert found is not None
    return sorted(c.drone_id for c in found)


def test_among_equals_those_not_started_go_before_idle_ones_and_the_youngest_first() -> None:
    idle_old = VictimCandidate(DroneId("old"), DRONE, 0.0, (1, -100.0))
    idle_young = VictimCandidate(DroneId("young"), DRONE, 0.0, (1, -200.0))
    booting = VictimCandidate(DroneId("boots"), DRONE, 0.0, (0, -50.0))
    assert names(cheapest_set(DRONE, FULL, NO_RESOURCES, [idle_old, idle_young, booting])) == [
        "boots"
    ]
    assert names(cheapest_set(DRONE, FULL, NO_RESOURCES, [idle_old, idle_young])) == ["young"]


def mixed(shapes: int, each: int) -> list[VictimCandidate]:
    """Drones of many shapes on one node, with and without GPUs, that lose different amounts."""
    made = []
    for n in range(shapes):
        space = Resources(1000 * (n % 3), 1 + n % 7, 2048 * (1 + n % 5) + n, 0)
        made += [
            VictimCandidate(DroneId(f"d{n}-{i}"), space, float((37 * n + 101 * i) % 997))
            for i in range(each)
        ]
    return made


def test_many_shapes_on_a_node_cost_a_bounded_search_and_still_make_room() -> None:
    """Every combination was tried: seven shapes on each of ten nodes took most of a minute."""
    need, some = Resources(8000, 64, 262144, 0), mixed(20, 50)
    for _ in range(10):
        found = cheapest_set(need, FULL, NO_RESOURCES, some)
        assert found is not None
        assert (
            count_fits(
                need,
                Resources(*map(sum, zip(*(c.space for c in found), strict=True))),
                NO_RESOURCES,
            )
            >= 1
        )
        for each in found:
            rest = [c.space for c in found if c is not each]
            room = Resources(*map(sum, zip(*rest, strict=True)))
            assert count_fits(need, room, NO_RESOURCES) < 1 or not each.lost_gpu_s, (
                "nobody with work leaves in vain"
            )


def test_room_that_a_leaving_gpu_drone_takes_from_others_counts() -> None:
    """Each free GPU keeps CPUs: the end of a GPU drone can need that of one more CPU drone."""
    need, kept = Resources(0, 24, 1024), Resources(0, 8, 0)
    some = [VictimCandidate(DroneId(f"c{n}"), CPU_DRONE, 5.0) for n in range(3)]
    gpu = VictimCandidate(DroneId("g"), DRONE, 0.0)
    assert names(cheapest_set(need, FULL, kept, [*some, gpu])) == ["c0", "c1"]
    assert len(names(cheapest_set(Resources(1000, 40, 1024), FULL, kept, [*some, gpu]))) == 3


SPACES = st.sampled_from([DRONE, CPU_DRONE, Resources(2000, 24, 65536, 0)])


@given(
    st.lists(st.tuples(SPACES, st.integers(0, 50)), max_size=8),
    st.builds(
        Resources, st.sampled_from([0, 1000, 2000, 4000]), st.integers(1, 48), st.integers(1, 90000)
    ),
    st.builds(
        Resources, st.sampled_from([0, 1000, 2000]), st.integers(0, 40), st.integers(0, 90000)
    ),
    st.sampled_from([NO_RESOURCES, Resources(0, 8, 20480)]),
)
def test_no_set_is_cheaper_and_none_in_it_could_stay(
    held: list[tuple[Resources, int]], need: Resources, free: Resources, kept: Resources
) -> None:
    """Against every subset there is."""
    some = [
        VictimCandidate(DroneId(f"d{i}"), space, float(lost))
        for i, (space, lost) in enumerate(held)
    ]

    def enough(chosen: tuple[VictimCandidate, ...]) -> bool:
        room = free
        for each in chosen:
            room = room.plus(each.space)
        return count_fits(need, room, kept) >= 1

    found = cheapest_set(need, free, kept, some)
    subsets = chain.from_iterable(combinations(some, n) for n in range(len(some) + 1))
    costs = [(sum(c.lost_gpu_s for c in each), len(each)) for each in subsets if enough(each)]
    everything = free
    for each in some:
        everything = everything.plus(each.space)
    if found is None:
        assert not enough(tuple(some))
    else:
        assert enough(found)
        assert (sum(c.lost_gpu_s for c in found), len(found)) == min(costs)
