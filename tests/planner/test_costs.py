"""Costs of a start and of waiting, and the decisions that follow from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from provisioner import model
from provisioner.estimates import Estimates, StartDelays, run_keys
from provisioner.planner.costs import RunTimeSums, StartCosts
from tests.planner.scenes import (
    A100,
    NOW,
    SMALL,
    V100,
    drone,
    jobs,
    plan_of,
    slot_of,
    snapshot,
    started,
)

SIZE = run_keys(SMALL.owner, SMALL.gpu_milli, SMALL.cpus, SMALL.memory_mib)[0]
ROOMY = {"max_drones": 100, "max_pending": 100, "max_starts_per_tick": 100}
CLOUD = replace(A100, site="cloud", price=1.0)
BATCH = replace(A100, site="batch", price=1.0)
DELAYS = {CLOUD.key: StartDelays(10.0, 240.0), BATCH.key: StartDelays(1800.0, 60.0)}


def costs(**policy: object) -> StartCosts:
    types = {kind.key: kind for kind in (CLOUD, BATCH)}
    return StartCosts(model.Policy(**policy), Estimates(delays=DELAYS), types)


def test_a_start_costs_what_it_holds_and_what_the_job_waits() -> None:
    cost = costs().of_job(SMALL, 1024.0)
    assert costs().start(CLOUD, 1, cost) == 240 + 20 + 1024 + 250
    assert costs().start(CLOUD, 2, cost) == (240 + 20 + 1024) / 2 + 250, (
        "two jobs share what the drone holds"
    )


@pytest.mark.parametrize(
    ("group", "gpu_milli", "per_s"),
    [
        ("", 200, 1.0),
        ("cms", 1000, 1.0),
        ("CMS.urgent", 1000, 5.0),
        ("cms.urgent.hi", 1000, 5.0),
        ("x", 6000, 6.0),
    ],
)
def test_a_second_of_waiting_costs_what_its_group_and_its_gpus_make_of_it(
    group: str, gpu_milli: int, per_s: float
) -> None:
    job = replace(SMALL, group=group, gpu_milli=gpu_milli)
    assert costs(waiting_cost_by_group={"cms.Urgent": 5.0}).of_job(job, 60.0).per_s == per_s


@pytest.mark.parametrize(("waiting_cost", "first"), [(1.0, CLOUD), (0.05, BATCH)])
def test_a_free_cloud_comes_before_a_long_queue_if_waiting_is_dear(
    waiting_cost: float, first: model.DroneType
) -> None:
    made = snapshot(classes=[jobs(waiting=1)], types=(BATCH, CLOUD), free={"a100": 5})
    policy = replace(made.policy, waiting_cost=waiting_cost)
    assert started(plan_of(replace(made, policy=policy, estimates=Estimates(delays=DELAYS)))) == [
        first.key
    ]


PAIR = replace(A100, name="b100x2", gpu_milli=2000, cpus=16, memory_mib=40960)


def test_a_drone_of_several_gpus_costs_until_its_last_job_ends() -> None:
    types = {kind.key: kind for kind in (A100, PAIR)}
    found = StartCosts(
        model.Policy(), Estimates(delays={A100.key: StartDelays(10.0, 100.0)}), types
    )
    cost = found.of_job(SMALL, 1024.0)
    assert found.of_types[PAIR.key][:2] == (45.0, 100.0), (
        "no drone of it has started: not sooner than the smaller one"
    )
    assert found.start(A100, 1, cost) == 2 * (120 + 1024) + 110
    assert found.start(PAIR, 2, cost) == 2 * 2 * (120 + 1024 * 1.5) / 2 + 145


@pytest.mark.parametrize(
    ("price", "delays"),
    [
        (2.0, {A100.key: StartDelays(10.0, 100.0), PAIR.key: StartDelays(10.0, 100.0)}),
        # it starts a little sooner
        (2.0, {A100.key: StartDelays(10.0, 100.0), PAIR.key: StartDelays(10.0, 60.0)}),
        (2.0, {PAIR.key: StartDelays(10.0, 60.0)}),  # nothing is known of the smaller one
        (0.0, {}),
    ],
)
def test_one_gpu_jobs_get_drones_of_one_gpu(
    price: float, delays: dict[model.TypeKey, StartDelays]
) -> None:
    types = tuple(replace(kind, price=price) for kind in (replace(PAIR, name="a-pair"), A100))
    delays = {types[0].key if key == PAIR.key else key: each for key, each in delays.items()}
    made = snapshot(classes=[jobs(waiting=1)], types=types, free={"a100": 2, "a-pair": 1})
    assert started(plan_of(replace(made, estimates=Estimates(delays=delays)))) == [A100.key]


def test_a_shared_type_says_nothing_of_the_delays_of_whole_gpus() -> None:
    shared = replace(A100, name="shared", shares=4, sharing=model.Sharing.MPS)
    types = {kind.key: kind for kind in (shared, PAIR)}
    found = StartCosts(
        model.Policy(), Estimates(delays={shared.key: StartDelays(10.0, 100.0)}), types
    )
    assert found.of_types[PAIR.key].boot_s == 90.0 and not found.smaller[PAIR.key]


@pytest.mark.parametrize(
    ("ran_s", "within_s", "jobs"),
    [
        (0.0, 50.0, 0.0),  # none has ever ended so soon
        (0.0, 100.0, 0.5),  # one of two ends after 100 s
        (50.0, 100.0, 0.5 * (1 + 50 / 550)),  # and serves the mean run time's part of what is left
        (100.0, 800.0, 0.0),
        (5000.0, 100.0, 0.0),  # it has run longer than any: it is assumed to be half done
        (80.0, 2000.0, 1 + (2000 - (20 + 920) / 2) / 550),
    ],
)
def test_a_drone_serves_the_next_job_once_its_own_has_ended(
    ran_s: float, within_s: float, jobs: float
) -> None:
    assert RunTimeSums((100.0, 1000.0)).served(ran_s, within_s) == pytest.approx(jobs)


@pytest.mark.parametrize(
    ("longest_s", "ran_s", "starts"), [(400.0, 5.0, 0), (400.0, 20.0, 1), (2000.0, 5.0, 1)]
)
def test_only_jobs_of_seconds_wait_for_one_that_ends_soon(
    longest_s: float, ran_s: float, starts: int
) -> None:
    """Eight run; of such jobs nine in ten take ten seconds. Where the tenth takes 2000 s, the mean is 209 s."""
    busy = [drone(f"kit-ab12-{n}", model.DroneState.BUSY) for n in range(8)]
    slots = [
        replace(slot_of(each, jobs=1), begun_at=NOW - ran_s, free_gpu_milli=0) for each in busy
    ]
    job = jobs(waiting=1, running=8, oldest_at=NOW - 5.0)
    made = snapshot(classes=[job], types=(V100,), drones=busy, slots=slots)
    made = replace(made, estimates=Estimates(runs={SIZE: (10.0,) * 9 + (longest_s,)}))
    assert len(plan_of(made).starts) == starts


def test_the_dearer_the_waiting_the_more_drones_share_short_jobs() -> None:
    found = []
    for waiting_cost in (0.1, 1.0, 10.0, 0.0):
        made = snapshot(
            classes=[jobs(waiting=100, oldest_at=NOW - 5.0)], types=(V100,), limits=ROOMY
        )
        policy = replace(made.policy, waiting_cost=waiting_cost)
        estimates = Estimates(runs={SIZE: (10.0,)})
        found.append(len(plan_of(replace(made, policy=policy, estimates=estimates)).starts))
    assert found == [7, 22, 68, 100], "100 * sqrt(cost * 10 / (2 * 110)); at no cost one for each"
