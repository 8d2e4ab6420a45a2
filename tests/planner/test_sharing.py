"""The model of shared GPUs against the published tables; which rows are fitted and which predicted, its module says."""

from __future__ import annotations

import pytest

from provisioner.model import Sharing
from provisioner.sharing import (
    KIT_SMALL,
    MOST_SHARES,
    MOST_SLICES,
    SATURATING,
    Load,
    co2_kg,
    kj_per_job,
    kwh,
    load_of,
    rates,
    share_milli,
    shares_needed,
    slice_rate,
    throughput,
)

KIT_ALONE = 1.94
"""Epochs/s of one job a GPU."""


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
    assert KIT_ALONE * throughput(sharing, jobs, KIT_SMALL, shares) == pytest.approx(published, rel=0.10)


def test_cerns_measurements_of_a_saturating_job() -> None:
    def of(sharing: Sharing, jobs: int, shares: int = 1) -> float:
        return throughput(sharing, jobs, SATURATING, shares)

    assert of(Sharing.TIME_SLICED, 2) - 1 == pytest.approx(-0.38, abs=0.01)
    assert of(Sharing.TIME_SLICED, 4) == pytest.approx(of(Sharing.TIME_SLICED, 2))
    assert of(Sharing.MIG, 1) - 1 == pytest.approx(-0.09, abs=0.01)
    one = {shares: of(Sharing.MIG, 1, shares) for shares in (1, 2, 3, 7)}
    assert one[1] / one[2] == pytest.approx(2.18, abs=0.01)
    assert one[2] / one[3] == pytest.approx(1.48, abs=0.01)
    assert one[3] / one[7] == pytest.approx(1.97, abs=0.01)


@pytest.mark.parametrize(
    ("jobs", "minutes", "power_w", "published"),
    [
        (64, 82.07, 664.8, 51.95),
        (8, 10.56, 748.22, 59.25),
        (96, 41.43, 1202.58, 31.15),
        (96, 16.23, 1396.29, 14.17),
        (56, 9.41, 1327.55, 13.39),
    ],
    ids=["cpu", "default", "simple sharing", "mps", "mig"],
)
def test_energy_of_one_training(jobs: int, minutes: float, power_w: float, published: float) -> None:
    assert kj_per_job(power_w, 60 * minutes, jobs) == pytest.approx(published, rel=0.02)


def test_energy_and_what_the_grid_gives_off_for_it() -> None:
    assert kwh(300.0, 7200.0) == pytest.approx(0.6)
    assert co2_kg(0.6, 380.0) == pytest.approx(0.228)


@pytest.mark.parametrize("sharing", list(Sharing))
def test_a_job_alone_is_never_faster_than_on_a_gpu_of_its_own(sharing: Sharing) -> None:
    for load in (SATURATING, KIT_SMALL, Load(0.5, 1.0), Load(1.0, 0.05)):
        (alone,) = rates(sharing, [load], 7)
        assert 0 < alone <= 1
        assert alone == 1 or sharing is Sharing.MIG


@pytest.mark.parametrize(("sharing", "there"), [(Sharing.TIME_SLICED, 0.62), (Sharing.MPS, 1.12)])
def test_jobs_of_different_duty_get_even_parts_of_the_gpu(sharing: Sharing, there: float) -> None:
    light, heavy, other = rates(sharing, [Load(0.1), Load(1.0), Load(0.8)])
    assert light == 1.0, "it wants less than its part"
    assert heavy * 1.0 == pytest.approx(other * 0.8), "the two others have the rest, half each"
    assert light * 0.1 + heavy * 1.0 + other * 0.8 == pytest.approx(there)


def test_the_order_of_the_jobs_makes_no_difference() -> None:
    one, two, three = rates(Sharing.MPS, [Load(0.9), Load(0.2), Load(0.6)])
    assert rates(Sharing.MPS, [Load(0.2), Load(0.6), Load(0.9)]) == (two, three, one)


def test_jobs_that_leave_the_gpu_time_do_not_slow_each_other() -> None:
    assert rates(Sharing.MPS, [Load(0.3)] * 3) == (1.0, 1.0, 1.0)
    assert rates(Sharing.TIME_SLICED, [Load(0.3)] * 2) == (1.0, 1.0)
    assert rates(Sharing.MPS, []) == ()


def test_a_slice_between_two_profiles_is_the_smaller_one() -> None:
    assert slice_rate(4) == slice_rate(7) < slice_rate(3) < slice_rate(2) < slice_rate(1)


def test_a_job_that_does_not_tell_works_the_share_that_it_asked_for() -> None:
    assert load_of(200, 0, 0) == Load(0.2, 0.2)
    assert load_of(2000, 0, 0) == SATURATING
    assert load_of(200, 120, 0) == Load(0.12, 0.2)
    assert load_of(200, 0, 5000) == Load(0.2, 1.0)


@pytest.mark.parametrize("shares", range(1, MOST_SHARES + 1))
def test_all_shares_of_a_gpu_go_into_it_and_no_more(shares: int) -> None:
    assert 1000 // share_milli(shares) == shares
    assert shares_needed(1, shares) == 1
    assert shares_needed(share_milli(shares), shares) == 1
    assert shares == 1 or shares_needed(share_milli(shares) + 1, shares) == 2


def test_mig_has_at_most_as_many_slices_as_shares_are_allowed() -> None:
    assert MOST_SLICES <= MOST_SHARES
