"""Which jobs fit on shares of a GPU, and how many of them a drone takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner.model import DroneId, JobClass, Policy, Sharing, Slot, SlotState
from provisioner.planner import matching
from provisioner.planner.matching import (
    count_jobs,
    count_jobs_in_type,
    free_resources,
    request_of,
    unmet_requirement,
)
from provisioner.sharing import KIT_SMALL, Load, load_of, rates
from tests.planner.scenes import A100, QUAD

QUARTERS = replace(A100, name="quarters", sharing=Sharing.MPS, shares=4)
"""40 GiB in four shares of 10."""
SLICED = replace(A100, name="sliced", sharing=Sharing.MIG, shares=7)


POOL = replace(A100, name="pool", sharing=Sharing.MPS, shares=8, vram_pool=True)
"""40 GiB as a pool, for at most 8 jobs."""


def small(gpu_milli: int = 200, **given: int) -> JobClass:
    return JobClass("small", gpu_milli, cpus=1, memory_mib=1024, **given)


def told(job: JobClass, kind: object) -> tuple[str, str, str] | None:
    why = unmet_requirement(job, kind)
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
    assert [count_jobs_in_type(small(milli), QUARTERS) for milli in (1, 250, 251, 501)] == [
        4,
        4,
        2,
        1,
    ]


def test_a_small_job_that_does_not_split_takes_a_whole_gpu_but_of_shares_one() -> None:
    whole = replace(small(200), splits=False)
    assert request_of(whole, A100).gpu_milli == 1000
    assert [count_jobs_in_type(whole, kind) for kind in (A100, QUAD, QUARTERS)] == [1, 4, 4]
    assert told(whole, A100) is None
    half = replace(A100, gpu_milli=500)
    assert count_jobs_in_type(whole, half) == 1, "what is left of a device is all that it can have"
    split, unsplit = small(200), replace(whole, id="whole")
    both = matching.compatibility_cache((A100, QUARTERS), Policy()).table([split, unsplit])
    assert both[split.id].jobs != both["whole"].jobs


@pytest.mark.parametrize(
    ("vram_mib", "jobs"),
    [(0, 8), (1000, 8), (5120, 8), (5121, 7), (9000, 4), (10240, 4), (20481, 1), (40960, 1)],
)
def test_jobs_take_of_a_pool_what_they_request_and_at_least_an_equal_share(
    vram_mib: int, jobs: int
) -> None:
    wants = replace(small(1000 if vram_mib else 125, vram_mib=vram_mib), splits=False)
    assert told(wants, POOL) is None
    assert count_jobs_in_type(wants, POOL) == jobs
    assert (
        request_of(wants, POOL).gpu_milli * jobs
        <= 1000
        < request_of(wants, POOL).gpu_milli * (jobs + 1)
    )


def test_jobs_of_several_sizes_share_a_pool() -> None:
    large, equal = (replace(small(125, vram_mib=mib), splits=False) for mib in (20480, 0))
    left = matching.resources_of_type(POOL)._replace(
        gpu_milli=1000 - request_of(large, POOL).gpu_milli
    )
    assert [count_jobs(each, left, POOL) for each in (large, equal)] == [1, 4]


def test_what_does_not_fit_a_pool_says_why() -> None:
    assert told(replace(small(1000, vram_mib=40961), splits=False), POOL) == (
        "vram",
        "40961 MiB",
        "40960 MiB",
    )
    assert told(replace(small(1000), splits=False), POOL) == ("gpus", "1", "shares of 0.125")
    assert told(small(1000, vram_mib=9000), POOL) == ("gpus", "1", "shares of 0.125"), (
        "a queue that splits GPUs"
    )


def test_a_mig_slice_is_not_joined_with_another() -> None:
    assert told(small(142), SLICED) is None
    assert told(small(143), SLICED) == ("gpus", "0.143", "shares of 0.142")


def test_vram_is_what_the_shares_have() -> None:
    assert told(small(vram_mib=10240), QUARTERS) is None
    assert told(small(vram_mib=10241), QUARTERS) == ("vram", "10241 MiB", "10240 MiB a share")
    assert told(small(500, vram_mib=20480), QUARTERS) is None
    assert told(small(500, vram_mib=20481), QUARTERS) == (
        "vram",
        "20481 MiB",
        "20480 MiB in 2 shares",
    )


@pytest.mark.parametrize("shares", [2, 3, 7, 12, 32])
def test_a_drone_of_several_gpus_takes_all_their_shares_and_no_more(shares: int) -> None:
    kind = replace(QUAD, sharing=Sharing.MPS, shares=shares, cpus=1000)
    job = small(1)
    assert count_jobs_in_type(job, kind) == 4 * shares
    each = request_of(job, kind).gpu_milli
    for taken in range(4 * shares + 1):
        free = {
            "free_gpu_milli": 4000 - taken * each,
            "free_cpus": 1000,
            "free_memory_mib": 1 << 20,
        }
        slot = Slot(DroneId("d"), SlotState.BUSY, 0.0, **free)
        assert count_jobs(job, free_resources(slot), kind) == 4 * shares - taken


def test_the_cpus_that_free_gpus_keep_bind_small_jobs_as_well() -> None:
    kind = replace(QUAD, sharing=Sharing.MPS, shares=4, cpus=64, kept_cpus=16)
    assert count_jobs_in_type(small(250), kind) == 16
    greedy = JobClass("greedy", 250, cpus=20, memory_mib=1024)
    assert told(greedy, kind) == ("cpus", "20", "64, of which each other GPU keeps 16")


def test_what_rounding_leaves_of_a_gpu_keeps_nothing() -> None:
    thirds = replace(A100, name="thirds", sharing=Sharing.MPS, shares=3, cpus=3, kept_cpus=3)
    assert count_jobs_in_type(small(333), thirds) == 3, "each takes its third of what the GPU keeps"
    assert told(replace(small(333), cpus=2), thirds) == (
        "cpus",
        "2",
        "3, of which each other GPU keeps 3",
    )


# ---- The model of shared GPUs against the published tables; which rows are fitted and which
# predicted, its module says


KIT_ALONE = 1.94
"""Epochs/s of one job a GPU."""


def throughput(sharing: Sharing, jobs: int, load: Load, shares: int = 1) -> float:
    """Return the total rate of equal jobs on one GPU; an exclusive one runs one at a time."""
    return (
        float(jobs > 0)
        if sharing is Sharing.EXCLUSIVE
        else sum(rates(sharing, [load] * jobs, shares))
    )


@pytest.mark.parametrize(
    ("sharing", "jobs", "shares", "published"),
    [
        (Sharing.EXCLUSIVE, 1, 1, 1.94),
        (Sharing.TIME_SLICED, 12, 12, 10.06),
        (Sharing.MPS, 12, 12, 18.16),
        (Sharing.MIG, 7, 7, 14.14),
    ],
)
def test_kits_throughput_test(sharing: Sharing, jobs: int, shares: int, published: float) -> None:
    assert KIT_ALONE * throughput(sharing, jobs, KIT_SMALL, shares) == pytest.approx(
        published, rel=0.10
    )


def test_cerns_measurements_of_a_saturating_job() -> None:
    def of(sharing: Sharing, jobs: int, shares: int = 1) -> float:
        return throughput(sharing, jobs, Load(), shares)

    assert of(Sharing.TIME_SLICED, 2) - 1 == pytest.approx(-0.38, abs=0.01)
    assert of(Sharing.TIME_SLICED, 4) == pytest.approx(of(Sharing.TIME_SLICED, 2))
    assert of(Sharing.MIG, 1) - 1 == pytest.approx(-0.09, abs=0.01)
    one = {shares: of(Sharing.MIG, 1, shares) for shares in (1, 2, 3, 7)}
    assert one[1] / one[2] == pytest.approx(2.18, abs=0.01)
    assert one[2] / one[3] == pytest.approx(1.48, abs=0.01)
    assert one[3] / one[7] == pytest.approx(1.97, abs=0.01)


@pytest.mark.parametrize(("sharing", "there"), [(Sharing.TIME_SLICED, 0.62), (Sharing.MPS, 1.12)])
def test_jobs_of_different_duty_get_even_parts_of_the_gpu(sharing: Sharing, there: float) -> None:
    light, heavy, other = rates(sharing, [Load(0.1), Load(1.0), Load(0.8)])
    assert light == 1.0, "it wants less than its part"
    assert heavy * 1.0 == pytest.approx(other * 0.8), "the two others have the rest, half each"
    assert light * 0.1 + heavy * 1.0 + other * 0.8 == pytest.approx(there)


def test_a_job_that_does_not_tell_works_the_share_that_it_asked_for() -> None:
    assert load_of(200, 0, 0) == Load(0.2, 0.2)
    assert load_of(2000, 0, 0) == Load()
    assert load_of(200, 120, 0) == Load(0.12, 0.2)
    assert load_of(200, 0, 5000) == Load(0.2, 1.0)
