"""The measure of waiting while a fitting GPU is free, against cases worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.deciding.idle_waits import GPUS, START_S, share_while_idle
from provisioner.simulator.results import Sample

TOPAS, CLOUD = START_S["topas"], START_S["cloud"]


def sample(at_s: float, *, cloud: int = GPUS["cloud"], owner: float = GPUS["topas"], booting: int = 0) -> Sample:
    """Return a sample at which drones hold ``cloud`` GPUs of the cloud, and the owner all of its own."""
    none = {"topas": 0, "cloud": 0}
    return Sample(at_s, 1, 0, 0.0, 0.0, owner, {"cloud": float(cloud)}, none, {**none, "cloud": booting})


def every_10_s(until_s: float, **state: float) -> list[Sample]:
    return [sample(10.0 * n, **state) for n in range(int(until_s / 10) + 1)]  # type: ignore[arg-type]


def test_waiting_for_a_full_site_is_not_counted() -> None:
    assert share_while_idle([(0.0, 1000.0)], every_10_s(1000)) == 0.0


def test_waiting_beyond_the_start_up_time_of_a_free_cloud_is_counted() -> None:
    share = share_while_idle([(0.0, 1000.0)], every_10_s(1000, cloud=11))
    assert share == pytest.approx((1000 - CLOUD) / 1000, abs=0.02)


def test_no_more_jobs_count_than_gpus_are_free_and_none_whose_drone_boots() -> None:
    waits = [(0.0, 1000.0)] * 4
    one = share_while_idle(waits, every_10_s(1000, cloud=11))
    assert share_while_idle(waits, every_10_s(1000, cloud=10)) == pytest.approx(2 * one)
    assert share_while_idle(waits, every_10_s(1000, cloud=10, booting=1)) == pytest.approx(one)


def test_a_gpu_counts_once_it_has_been_free_for_the_start_up_time() -> None:
    full_until_s = 500.0
    samples = [sample(10.0 * n, cloud=12 if 10 * n < full_until_s else 11) for n in range(101)]
    assert share_while_idle([(0.0, 1000.0)], samples) == pytest.approx((500 - CLOUD) / 1000, abs=0.02)


def test_the_quicker_site_counts_from_its_own_start_up_time() -> None:
    share = share_while_idle([(0.0, 1000.0)], every_10_s(1000, owner=55.0))
    assert share == pytest.approx((1000 - TOPAS) / 1000, abs=0.02) and TOPAS < CLOUD
