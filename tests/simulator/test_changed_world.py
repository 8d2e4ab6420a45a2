"""What if: the plan of a world, changed; what would change nothing is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.config import Settings
from provisioner.simulator.faults import HardwareFault, HardwareFaultKind
from provisioner.simulator.loop import Fixed, LogNormal, Uniform
from provisioner.simulator.sites import Facility
from provisioner.simulator.what_if import FOREVER_S, QuestionError, changed, read
from provisioner.simulator.world_file import WorldPlan, world_of
from tests.simulator.declared import declared, world


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return declared(tmp_path)


@pytest.fixture
def plan(settings: Settings) -> WorldPlan:
    """Without a world file."""
    return world_of(settings, None, span_s=1.0)


def asked(plan: WorldPlan, *questions: str) -> WorldPlan:
    for question in questions:
        plan = changed(plan, read(question, [facility.name for facility in plan.facilities]))
    return plan


def farm(plan: WorldPlan, *questions: str) -> Facility:
    return asked(plan, *questions).facilities[0]


def test_a_site_that_is_down_for_a_time_or_for_ever(plan: WorldPlan) -> None:
    assert asked(plan, "cloud down").hardware_faults == (
        HardwareFault(HardwareFaultKind.DOWNTIME, 0.0, FOREVER_S, "cloud"),
    )
    assert asked(plan, " cloud  down 2d..3d").hardware_faults == (
        HardwareFault(HardwareFaultKind.DOWNTIME, 172800.0, 86400.0, "cloud"),
    )
    both = asked(plan, "cloud down 2d", "farm down").hardware_faults
    assert [(blow.where, blow.at_s) for blow in both] == [("cloud", 172800.0), ("farm", 0.0)]


@pytest.mark.parametrize("gpus", [0, 4, 12, 40, 100])
def test_a_site_with_more_or_fewer_gpus_has_limits_to_match(plan: WorldPlan, gpus: int) -> None:
    there = farm(plan, f"farm gpus={gpus}")
    assert sum(p.nodes * p.gpus_per_node for p in there.pools) == gpus
    assert there.policy.max_gpu_milli == gpus * 1000 and there.policy.max_drones >= gpus


def test_gpus_that_come_in_fours_are_asked_for_in_fours(settings: Settings) -> None:
    plan = world(settings, "sites: {farm: {nodes: {x: {nodes: 5, gpus: 4}}}}")
    with pytest.raises(QuestionError, match="`farm gpus=13`: drones there have 4 GPUs: write a multiple of that"):
        asked(plan, "farm gpus=13")


def test_a_pool_without_a_gpu_left_takes_its_types_along(plan: WorldPlan) -> None:
    there = farm(plan, "farm gpus=4")
    assert [pool.name for pool in there.pools] == ["a100-a100x4", "cpu"]
    assert {kind.name for kind in there.types} == {"a100", "a100x4", "cpu"}


def test_limits_and_prices(plan: WorldPlan) -> None:
    policy = farm(plan, "farm price=0.5", "farm max_drones=1", "farm max_gpus=0.5").policy
    assert (policy.price, policy.max_drones, policy.max_gpu_milli) == (0.5, 1, 500)


def test_what_takes_longer_takes_longer_for_every_type(settings: Settings) -> None:
    queues = "{queue: {median: 1min, sigma: 1, most: 1h}, types: {v100: {queue: {low: 0s, high: 1min}}}}"
    plan = world(settings, f"sites: {{farm: {queues}}}")
    there = farm(plan, "farm queue*2")
    assert there.behaviour.queue == LogNormal(120.0, 1.0, 7200.0)
    assert there.behaviour_of["v100"].queue == Uniform(0.0, 120.0)
    assert (
        farm(plan, "farm boot*3").behaviour.boot == farm(plan, "farm boot*3").behaviour_of["v100"].boot == Fixed(225.0)
    )


def test_a_queue_that_only_one_type_has(settings: Settings) -> None:
    plan = world(settings, "sites: {farm: {types: {v100: {queue: 1min}}}}")
    assert farm(plan, "farm queue*2").behaviour_of["v100"].queue == Fixed(120.0)


def test_an_owner_who_is_there_no_more(settings: Settings) -> None:
    plan = world(settings, "sites: {farm: {owner: {file: load.csv, vc: vcA}}}")
    assert plan.facilities[0].owner is not None and farm(plan, "farm owner=none").owner is None


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("cloud owner=none", "`cloud owner=none`: cloud has no owner: a world file may give it one"),
        ("cloud queue*2", "`cloud queue*2`: it takes no time there to begin with: a world file tells how long"),
    ],
)
def test_a_change_that_changes_nothing_is_refused(plan: WorldPlan, question: str, words: str) -> None:
    with pytest.raises(QuestionError) as caught:
        asked(plan, question)
    assert words in str(caught.value)
