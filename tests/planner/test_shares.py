"""Which jobs fit on shares of a GPU, and how many of them a drone takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import DroneId, JobClass, Policy, Sharing, Slot, SlotState
from provisioner.planner.matching import (
    compatibility_cache,
    count_jobs_in_slot,
    count_jobs_in_type,
    request_of,
    resources_of_type,
    unmet_requirement,
)
from provisioner.planner.supply import DroneSlots, SlotShape
from tests.planner.scenes import A100, QUAD

QUARTERS = replace(A100, name="quarters", sharing=Sharing.MPS, shares=4)
"""40 GiB in four shares of 10."""
SLICED = replace(A100, name="sliced", sharing=Sharing.MIG, shares=7)


def small(gpu_milli: int = 200, **given: int) -> JobClass:
    return JobClass("small", gpu_milli, cpus=1, memory_mib=1024, **given)


def told(job: JobClass, kind: object) -> tuple[str, str, str] | None:
    why = unmet_requirement(job, kind)  # type: ignore[arg-type]
    return None if why is None else (why.dimension, why.requested, why.available)


@pytest.mark.parametrize("gpu_milli", [1000, 2000])
def test_a_job_that_wants_whole_gpus_never_lands_on_shares(gpu_milli: int) -> None:
    many = replace(QUAD, sharing=Sharing.MPS, shares=4)
    assert told(small(gpu_milli), many) == ("gpus", f"{gpu_milli // 1000}", "shares of 0.25")
    assert told(small(gpu_milli), QUAD) is None


def test_a_job_takes_a_whole_share_or_as_many_as_it_needs() -> None:
    assert request_of(small(1), QUARTERS).gpu_milli == 250
    assert request_of(small(250), QUARTERS).gpu_milli == 250
    assert request_of(small(251), QUARTERS).gpu_milli == 500
    assert [count_jobs_in_type(small(milli), QUARTERS) for milli in (1, 250, 251, 501)] == [4, 4, 2, 1]


def test_an_exclusive_gpu_is_parted_as_jobs_ask() -> None:
    assert count_jobs_in_type(small(200), A100) == 5
    assert request_of(small(200), A100).gpu_milli == 200


def test_a_small_job_that_does_not_split_takes_a_whole_gpu_but_of_shares_one() -> None:
    whole = replace(small(200), splits=False)
    assert request_of(whole, A100).gpu_milli == 1000
    assert [count_jobs_in_type(whole, kind) for kind in (A100, QUAD, QUARTERS)] == [1, 4, 4]
    assert told(whole, A100) is None
    half = replace(A100, gpu_milli=500)
    assert count_jobs_in_type(whole, half) == 1, "what is left of a device is all that it can have"
    split, unsplit = small(200), replace(whole, id="whole")
    both = compatibility_cache((A100, QUARTERS), Policy()).table([split, unsplit])
    assert both[split.id].jobs != both["whole"].jobs


def test_a_mig_slice_is_not_joined_with_another() -> None:
    assert told(small(142), SLICED) is None
    assert told(small(143), SLICED) == ("gpus", "0.143", "shares of 0.142")


def test_vram_is_what_the_shares_have() -> None:
    assert told(small(vram_mib=10240), QUARTERS) is None
    assert told(small(vram_mib=10241), QUARTERS) == ("vram", "10241 MiB", "10240 MiB a share")
    assert told(small(500, vram_mib=20480), QUARTERS) is None
    assert told(small(500, vram_mib=20481), QUARTERS) == ("vram", "20481 MiB", "20480 MiB in 2 shares")


def test_cpus_bind_before_shares_do() -> None:
    assert A100.cpus == 8
    twelfths = replace(QUARTERS, shares=12)
    assert count_jobs_in_type(small(83), twelfths) == 8
    assert count_jobs_in_type(small(83), replace(twelfths, cpus=12)) == 12


@pytest.mark.parametrize("shares", [2, 3, 7, 12, 32])
def test_a_drone_of_several_gpus_takes_all_their_shares_and_no_more(shares: int) -> None:
    kind = replace(QUAD, sharing=Sharing.MPS, shares=shares, cpus=1000)
    job = small(1)
    assert count_jobs_in_type(job, kind) == 4 * shares
    each = request_of(job, kind).gpu_milli
    for taken in range(4 * shares + 1):
        slot = Slot(
            DroneId("d"),
            SlotState.BUSY,
            0.0,
            free_gpu_milli=4000 - taken * each,
            free_cpus=1000,
            free_memory_mib=1 << 20,
        )
        assert count_jobs_in_slot(job, slot, kind) == 4 * shares - taken


def test_the_cpus_that_free_gpus_keep_bind_small_jobs_as_well() -> None:
    kind = replace(QUAD, sharing=Sharing.MPS, shares=4, cpus=64, kept_cpus=16)
    assert count_jobs_in_type(small(250), kind) == 16
    greedy = JobClass("greedy", 250, cpus=20, memory_mib=1024)
    assert told(greedy, kind) == ("cpus", "20", "64, of which each other GPU keeps 16")


def test_what_rounding_leaves_of_a_gpu_keeps_nothing() -> None:
    thirds = replace(A100, name="thirds", sharing=Sharing.MPS, shares=3, cpus=3, kept_cpus=3)
    assert count_jobs_in_type(small(333), thirds) == 3, "each takes its third of what the GPU keeps"
    assert told(replace(small(333), cpus=2), thirds) == ("cpus", "2", "3, of which each other GPU keeps 3")


def test_what_is_on_its_way_is_booked_by_shares() -> None:
    coming = DroneSlots(QUARTERS, SlotShape(resources_of_type(QUARTERS), 1e12, on_the_way=True), 1)
    assert coming.holds(small(100), 0.0) == 4
    [left] = coming.fill(small(100), 3, 4)
    assert left.holds(small(100), 0.0) == 1
