"""What if: questions are read once, with a repair for each mistake, and asked of a snapshot or of a world."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provisioner import model as m
from provisioner.config import Settings
from provisioner.planner import decide
from provisioner.simulator.drones import HardwareFaultKind
from provisioner.simulator.loop import Fixed, LogNormal, Uniform
from provisioner.simulator.sites import Facility
from provisioner.simulator.what_if import (
    FOREVER_S,
    Question,
    QuestionError,
    changed as changed_plan,
    on_snapshot,
    read,
)
from provisioner.simulator.world_file import WorldPlan, world_of
from tests.simulator.declared import declared, world

SITES = ("horeka", "topas")


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("horeka down", Question("horeka", "down")),
        ("horeka down 90min", Question("horeka", "down", 5400.0)),
        ("topas gpus=20", Question("topas", "gpus", 20.0)),
        ("topas price = 0.5", Question("topas", "price", 0.5)),
        ("topas max_drones=0", Question("topas", "max_drones", 0.0)),
        ("horeka queue*2", Question("horeka", "queue", 2.0)),
        ("topas owner=none", Question("topas", "owner")),
    ],
)
def test_what_is_understood(text: str, question: Question) -> None:
    assert read(text, SITES) == question


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("horika down", "no site `horika` here: did you mean `horeka`?"),
        ("horeka dwon", "is not understood: did you mean `down`?"),
        ("horeka down 3d..2d", "2d is not after 3d"),
        ("topas gpu=20", "nothing is known of `gpu`: did you mean `gpus`?"),
        ("topas gpus=1.5", "`1.5` is no whole number"),
        ("topas price=nan", "a number from 0 to a million is wanted"),
        ("topas queue=2", "write `topas queue*2`"),
        ("topas owner=etp", "write `topas owner=none`"),
    ],
)
def test_what_is_not_understood_says_what_to_write(text: str, complaint: str) -> None:
    with pytest.raises(QuestionError, match=re.escape(complaint)):
        read(text, SITES)


KINDS = {
    name: m.DroneType(name, "gpu", 1000, 8, 20480, 51200, price=price)
    for name, price in (("horeka", 1), ("topas", 2))
}


def snapshot() -> m.Snapshot:
    """Three jobs wait. HoreKa is the cheaper site; a drone runs there, and another is on its way."""
    works = m.Drone(
        m.DroneId("kit-a-1"),
        m.TypeKey("horeka/gpu"),
        m.DroneState.BUSY,
        500.0,
        400.0,
        1000,
        joined_at=480.0,
        jobs=1,
        started_at=450.0,
        remote_id="1",
    )
    claims = (m.OwnerDemand(1, 1000, 1, 100, 900.0),)
    slot = m.Slot(works.id, m.SlotState.BUSY, 995.0, jobs=1)
    return m.Snapshot(
        now=1000.0,
        tick=7,
        id_prefix="kit-a",
        next_serial=2,
        policy=m.Policy(sites={name: m.SitePolicy(name) for name in SITES}),
        types=tuple(KINDS.values()),
        overlay=m.PolledOverlay(
            m.OverlayView(
                995.0,
                (m.JobClass("c1", 1000, 1, 1024, waiting=3, oldest_at=900.0),),
                (slot,),
                990.0,
            )
        ),
        sites={
            name: m.PolledSite(name, m.SiteView(name, 996.0, {}, {"gpu": 5}, claims=claims))
            for name in SITES
        },
        drones={works.id: works},
    )


def starts(asked: m.Snapshot) -> dict[str, int]:
    sites = [each.drone.site for each in decide(asked).starts]
    return {site: sites.count(site) for site in sorted(set(sites))}


def changed(*questions: str) -> m.Snapshot:
    return on_snapshot(snapshot(), [read(each, SITES) for each in questions])[0]


def test_without_a_site_everything_starts_at_the_other() -> None:
    assert set(starts(snapshot())) == {"horeka"}
    asked, notes = on_snapshot(snapshot(), [Question("horeka", "down")])
    away = asked.sites["horeka"]
    assert away.view is None and away.fault is not None and away.fault.kind is m.FaultKind.DOWN
    assert asked.drones == {} and starts(asked) == {"topas": 3}
    assert notes == ["1 job that run at horeka are not counted as waiting again"]


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
    asked, notes = on_snapshot(snapshot(), [read(question, SITES)])
    assert starts(asked) == started
    assert not notes or (" gpus=" in question and "stays as it was seen" in notes[0])


@pytest.mark.parametrize("text", ["horeka down 2d", "horeka queue*2"])
def test_what_takes_time_is_not_asked_of_one_moment(text: str) -> None:
    with pytest.raises(QuestionError, match="a snapshot is one moment"):
        changed(text)


def test_an_owner_who_is_none_claims_nothing() -> None:
    view = changed("topas owner=none").sites["topas"].view
    assert view is not None and view.claims == ()


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


@pytest.mark.parametrize("gpus", [0, 12, 100])
def test_a_site_with_more_or_fewer_gpus_has_limits_to_match(plan: WorldPlan, gpus: int) -> None:
    there = farm(plan, f"farm gpus={gpus}")
    assert sum(p.nodes * p.gpus_per_node for p in there.pools) == gpus
    assert there.policy.max_gpu_milli == gpus * 1000 and there.policy.max_drones >= gpus


def test_gpus_that_come_in_fours_are_asked_for_in_fours(settings: Settings) -> None:
    plan = world(settings, "sites: {farm: {nodes: {x: {nodes: 5, gpus: 4}}}}")
    with pytest.raises(
        QuestionError, match="`farm gpus=13`: drones there have 4 GPUs: write a multiple of that"
    ):
        asked(plan, "farm gpus=13")


def test_what_takes_longer_takes_longer_for_every_type(settings: Settings) -> None:
    queues = (
        "{queue: {median: 1min, sigma: 1, most: 1h}, types: {v100: {queue: {low: 0s, high: 1min}}}}"
    )
    there = farm(world(settings, f"sites: {{farm: {queues}}}"), "farm queue*2", "farm boot*3")
    behaviours = there.behaviour, there.behaviour_of["v100"]
    assert [each.queue for each in behaviours] == [
        LogNormal(120.0, 1.0, 7200.0),
        Uniform(0.0, 120.0),
    ]
    assert [each.boot for each in behaviours] == [Fixed(225.0)] * 2
    only_one = world(settings, "sites: {farm: {types: {v100: {queue: 1min}}}}")
    assert farm(only_one, "farm queue*2").behaviour_of["v100"].queue == Fixed(120.0)
