"""How many more drones a project's quota allows."""

from __future__ import annotations

from dataclasses import replace

from adapters.openstack.capacity import allowed
from adapters.openstack.records import Flavor, Limits

LIMITS = Limits(instances=10, instances_used=4, cpus=100, cpus_used=60, memory_mib=400_000, memory_used_mib=100_000)
A100 = Flavor("1", "gpu.a100.1", vcpus=16, memory_mib=65_536, disk_mib=0)
SMALL = Flavor("2", "gpu.t4.1", vcpus=4, memory_mib=8192, disk_mib=0)
FLAVORS = {"a100": A100, "t4": SMALL}


def test_the_narrowest_limit_counts_for_each_type() -> None:
    assert allowed(LIMITS, FLAVORS) == {"a100": 2, "t4": 6}
    assert allowed(replace(LIMITS, memory_used_mib=334_464), FLAVORS) == {"a100": 1, "t4": 6}


def test_a_limit_that_is_none_does_not_count() -> None:
    assert allowed(replace(LIMITS, cpus=-1), FLAVORS) == {"a100": 4, "t4": 6}
    assert allowed(replace(LIMITS, cpus=-1, memory_mib=-1), FLAVORS) == {"a100": 6, "t4": 6}
    assert allowed(replace(LIMITS, instances=-1, cpus=-1, memory_mib=-1), FLAVORS) is None


def test_a_quota_that_was_lowered_below_what_is_used_allows_nothing() -> None:
    assert allowed(replace(LIMITS, instances=3), FLAVORS) == {"a100": 0, "t4": 0}
    assert allowed(replace(LIMITS, cpus=0), FLAVORS) == {"a100": 0, "t4": 0}


def test_what_a_flavour_does_not_use_is_no_limit_to_it() -> None:
    nothing = replace(A100, vcpus=0)
    assert allowed(replace(LIMITS, cpus=60, instances=-1, memory_mib=-1), {"odd": nothing}) == {}
