"""Sharing out a host is exact, whatever comes and goes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from adapters.local.resources import FreeHostResources, HostAllocation, LocalGpu, LocalHost
from tests.local.drones import SMALL

HOST = LocalHost(cpus=16, memory_mib=1000, disk_mib=1000, gpus=tuple(LocalGpu(n, "A100", 40960, 80) for n in range(4)))

shapes = st.builds(
    lambda milli, cpus, memory_mib: replace(SMALL, gpu_milli=milli, cpus=cpus, memory_mib=memory_mib, disk_mib=0),
    st.integers(0, 5000),
    st.integers(0, 20),
    st.integers(0, 400),
)


@given(st.lists(st.tuples(shapes, st.booleans()), max_size=40))
def test_nothing_is_given_twice_and_all_comes_back(steps: list[tuple[object, bool]]) -> None:
    held: list[HostAllocation] = []
    for kind, goes in steps:
        if goes and held:
            held.pop(0)
        found = FreeHostResources.of(HOST, held).find(kind)  # type: ignore[arg-type]
        if isinstance(found, HostAllocation):
            assert sum(found.gpus.values()) == kind.gpu_milli  # type: ignore[attr-defined]
            held.append(found)
        for gpu in HOST.gpus:
            assert sum(allocation.gpus.get(gpu.index, 0) for allocation in held) <= 1000
        assert sum(allocation.cpus for allocation in held) <= HOST.cpus
        assert sum(allocation.memory_mib for allocation in held) <= HOST.memory_mib
    assert (
        FreeHostResources.of(HOST, []).find(SMALL) == HostAllocation(2, 1024, 10, {0: 1000}) or HOST.memory_mib < 1024
    )


@given(shapes)
def test_as_many_start_as_were_said_to_be_free(kind: object) -> None:
    room = FreeHostResources.of(HOST)
    said, started = room.count(kind), 0  # type: ignore[arg-type]
    while started < 100 and isinstance(found := room.find(kind), HostAllocation):  # type: ignore[arg-type]
        room.take(found)
        started += 1
    assert min(said, 100) == started


def test_shares_go_where_a_share_already_is() -> None:
    room = FreeHostResources.of(HOST)
    share = replace(SMALL, gpu_milli=500, memory_mib=1)
    for _ in range(2):
        found = room.find(share)
        assert isinstance(found, HostAllocation)
        room.take(found)
    assert room.free_milli == {0: 0, 1: 1000, 2: 1000, 3: 1000}
