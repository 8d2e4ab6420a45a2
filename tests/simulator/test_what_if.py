"""What if: questions are read once, with a repair for each mistake, and asked of a snapshot or of a world."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.config import Settings
from provisioner.model import (
    Drone,
    DroneId,
    DroneState,
    DroneType,
    FaultKind,
    JobClass,
    OverlayView,
    OwnerDemand,
    Policy,
    PolledOverlay,
    PolledSite,
    SitePolicy,
    SiteView,
    Slot,
    SlotState,
    Snapshot,
    type_key,
)
from provisioner.planner import decide
from provisioner.simulator.faults import HardwareFaultKind
from provisioner.simulator.loop import Fixed, LogNormal, Uniform
from provisioner.simulator.sites import Facility
from provisioner.simulator.what_if import FOREVER_S, Question, QuestionError, on_snapshot, read
from provisioner.simulator.what_if import changed as changed_plan
from provisioner.simulator.world_file import WorldPlan, world_of
from tests.simulator.declared import declared, world

SITES = ("horeka", "topas")


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("horeka down", Question("horeka", "down")),
        ("  horeka   down  2d..3d ", Question("horeka", "down", 172800.0, 259200.0)),
        ("horeka down 90min", Question("horeka", "down", 5400.0)),
        ("topas gpus=20", Question("topas", "gpus", 20.0)),
        ("topas price = 0.5", Question("topas", "price", 0.5)),
        ("topas max_drones=0", Question("topas", "max_drones", 0.0)),
        ("topas max_gpus=2.5", Question("topas", "max_gpus", 2.5)),
        ("horeka queue*2", Question("horeka", "queue", 2.0)),
        ("horeka boot * 0.5", Question("horeka", "boot", 0.5)),
        ("topas owner=none", Question("topas", "owner")),
    ],
)
def test_what_is_understood(text: str, question: Question) -> None:
    assert read(text, SITES) == question


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("horika down", "no site `horika` here: did you mean `horeka`?"),
        ("", "no site `` here: choose from horeka, topas"),
        ("horeka", "is not understood: write `SITE down`"),
        ("horeka dwon", "is not understood: did you mean `down`?"),
        ("horeka down soon", "`horeka down soon`: "),
        ("horeka down 3d..2d", "2d is not after 3d"),
        ("topas gpu=20", "nothing is known of `gpu`: did you mean `gpus`?"),
        ("topas gpus=many", "`many` is no whole number"),
        ("topas gpus=1.5", "`1.5` is no whole number"),
        ("topas price=-1", "a number from 0 to a million is wanted"),
        ("topas price=nan", "a number from 0 to a million is wanted"),
        ("topas queue=2", "write `topas queue*2`"),
        ("topas price*2", "write `topas price=2`"),
        ("topas owner=etp", "write `topas owner=none`"),
    ],
)
def test_what_is_not_understood_says_what_to_write(text: str, complaint: str) -> None:
    with pytest.raises(QuestionError) as told:
        read(text, SITES)
    assert complaint in str(told.value)


KINDS = {
    name: DroneType(name, "gpu", 1000, 8, 20480, 51200, price=price) for name, price in (("horeka", 1), ("topas", 2))
}


def snapshot() -> Snapshot:
    """Three jobs wait. HoreKa is the cheaper site; a drone runs there, and another is on its way."""
    works = Drone(
        DroneId("kit-a-1"),
        type_key("horeka", "gpu"),
        DroneState.BUSY,
        500.0,
        400.0,
        1000,
        joined_at=480.0,
        jobs=1,
        started_at=450.0,
        remote_id="1",
    )
    slot = Slot(works.id, SlotState.BUSY, 995.0, jobs=1)
    return Snapshot(
        now=1000.0,
        tick=7,
        id_prefix="kit-a",
        next_serial=2,
        policy=Policy(sites={name: SitePolicy(name) for name in SITES}),
        types=tuple(KINDS.values()),
        overlay=PolledOverlay(
            OverlayView(995.0, (JobClass("c1", 1000, 1, 1024, waiting=3, oldest_at=900.0),), (slot,), 990.0)
        ),
        sites={
            name: PolledSite(name, SiteView(name, 996.0, {}, {"gpu": 5}, claims=(OwnerDemand(1, 1000, 1, 100, 900.0),)))
            for name in SITES
        },
        drones={works.id: works},
    )


def starts(asked: Snapshot) -> dict[str, int]:
    sites = [each.drone.site for each in decide(asked).starts]
    return {site: sites.count(site) for site in sorted(set(sites))}


def changed(*questions: str) -> Snapshot:
    return on_snapshot(snapshot(), [read(each, SITES) for each in questions]).snapshot


def test_without_a_site_everything_starts_at_the_other() -> None:
    assert set(starts(snapshot())) == {"horeka"}
    asked = on_snapshot(snapshot(), [Question("horeka", "down")])
    away = asked.snapshot.sites["horeka"]
    assert away.view is None and away.fault is not None and away.fault.kind is FaultKind.DOWN
    assert asked.snapshot.drones == {} and starts(asked.snapshot) == {"topas": 3}
    assert asked.notes == ("1 job that run at horeka are not counted as waiting again",)


@pytest.mark.parametrize(
    ("question", "started"),
    [
        ("topas price=0.1", {"topas": 3}),
        ("horeka max_gpus=2", {"horeka": 1, "topas": 2}),  # one of the two is there
        ("horeka gpus=2", {"horeka": 1, "topas": 2}),
        ("horeka max_drones=0", {"topas": 3}),
    ],
)
def test_prices_and_limits_are_those_asked_for(question: str, started: dict[str, int]) -> None:
    asked = on_snapshot(snapshot(), [read(question, SITES)])
    assert starts(asked.snapshot) == started
    assert asked.notes == () or (" gpus=" in question and "stays as it was seen" in asked.notes[0])


def test_an_owner_who_is_none_claims_nothing() -> None:
    view = changed("topas owner=none").sites["topas"].view
    assert view is not None and view.claims == ()


@pytest.mark.parametrize("text", ["horeka down 2d", "horeka down 0s..1h", "horeka queue*2"])
def test_what_takes_time_is_not_asked_of_one_moment(text: str) -> None:
    with pytest.raises(QuestionError, match="a snapshot is one moment"):
        changed(text)


# ----------------------------------------------------------------------------------------------------------- of a world


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return declared(tmp_path)


@pytest.fixture
def plan(settings: Settings) -> WorldPlan:
    """Without a world file."""
    return world_of(settings, None, span_s=1.0)


def asked(plan: WorldPlan, *questions: str) -> WorldPlan:
    for question in questions:
        plan = changed_plan(plan, read(question, [facility.name for facility in plan.facilities]))
    return plan


def farm(plan: WorldPlan, *questions: str) -> Facility:
    return asked(plan, *questions).facilities[0]


def test_a_site_that_is_down_for_a_time_or_for_ever(plan: WorldPlan) -> None:
    faults = asked(plan, "cloud down", " farm  down 2d..3d", "cloud down 2d").hardware_faults
    assert [(fault.where, fault.at_s, fault.for_s) for fault in faults] == [
        ("cloud", 0.0, FOREVER_S),
        ("farm", 172800.0, 86400.0),
        ("cloud", 172800.0, FOREVER_S - 172800.0),
    ]
    assert {fault.kind for fault in faults} == {HardwareFaultKind.DOWNTIME}


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
    there = farm(world(settings, f"sites: {{farm: {queues}}}"), "farm queue*2", "farm boot*3")
    behaviours = there.behaviour, there.behaviour_of["v100"]
    assert [each.queue for each in behaviours] == [LogNormal(120.0, 1.0, 7200.0), Uniform(0.0, 120.0)]
    assert [each.boot for each in behaviours] == [Fixed(225.0)] * 2
    only_one = world(settings, "sites: {farm: {types: {v100: {queue: 1min}}}}")
    assert farm(only_one, "farm queue*2").behaviour_of["v100"].queue == Fixed(120.0)


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
