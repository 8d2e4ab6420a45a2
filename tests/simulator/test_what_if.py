"""Questions are read once, with a repair for each mistake, and asked of a snapshot."""

from __future__ import annotations

import pytest

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
from provisioner.simulator.what_if import (
    ChangedNumber,
    OwnerRemoved,
    Question,
    QuestionError,
    ScaledDuration,
    SiteOutage,
    on_snapshot,
    read,
)

SITES = ("horeka", "topas")


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("horeka down", SiteOutage("horeka")),
        ("  horeka   down  2d..3d ", SiteOutage("horeka", 172800.0, 259200.0)),
        ("horeka down 90min", SiteOutage("horeka", 5400.0)),
        ("topas gpus=20", ChangedNumber("topas", "gpus", 20.0)),
        ("topas price = 0.5", ChangedNumber("topas", "price", 0.5)),
        ("topas max_drones=0", ChangedNumber("topas", "max_drones", 0.0)),
        ("topas max_gpus=2.5", ChangedNumber("topas", "max_gpus", 2.5)),
        ("horeka queue*2", ScaledDuration("horeka", "queue", 2.0)),
        ("horeka boot * 0.5", ScaledDuration("horeka", "boot", 0.5)),
        ("topas owner=none", OwnerRemoved("topas")),
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
    asked = on_snapshot(snapshot(), [SiteOutage("horeka")])
    away = asked.snapshot.sites["horeka"]
    assert away.view is None and away.fault is not None and away.fault.kind is FaultKind.DOWN
    assert asked.snapshot.drones == {} and starts(asked.snapshot) == {"topas": 3}
    assert asked.notes == ("1 job that run at horeka are not counted as waiting again",)


def test_prices_and_limits_are_those_asked_for() -> None:
    assert set(starts(changed("topas price=0.1"))) == {"topas"}
    limited = changed("horeka max_gpus=2")
    assert limited.policy.sites["horeka"].max_gpu_milli == 2000
    assert starts(limited) == {"horeka": 1, "topas": 2}, "one of the two is there"
    assert starts(changed("horeka max_drones=0")) == {"topas": 3}
    asked = on_snapshot(snapshot(), [ChangedNumber("horeka", "gpus", 2.0)])
    assert starts(asked.snapshot) == {"horeka": 1, "topas": 2} and "stays as it was seen" in asked.notes[0]


def test_an_owner_who_is_none_claims_nothing() -> None:
    view = changed("topas owner=none").sites["topas"].view
    assert view is not None and view.claims == ()


@pytest.mark.parametrize("text", ["horeka down 2d", "horeka down 0s..1h", "horeka queue*2"])
def test_what_takes_time_is_not_asked_of_one_moment(text: str) -> None:
    with pytest.raises(QuestionError, match="a snapshot is one moment"):
        changed(text)
