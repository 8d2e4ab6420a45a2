"""Two objects with one drone id: whoever looks, and whatever begins to run meanwhile, the same one stays."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from adapters.shared.duplicates import Seniority, epoch_of, seniority, settled
from provisioner.model import DroneId, RemoteDrone, RemoteState

SEVEN = DroneId("kit-a1b2-7")
WAITS = RemoteDrone(SEVEN, RemoteState.PENDING)


def one(remote_id: str, rank: Seniority, epoch: int = 0) -> tuple[Seniority, RemoteDrone]:
    return rank, replace(WAITS, remote_id=remote_id, epoch=epoch)


def key(
    remote_id: str, created_at: float, started_at: float, ending: bool = False, ended: bool = False
) -> Seniority:
    return seniority(remote_id, created_at, started_at, is_ending=ending, has_ended=ended)


@pytest.mark.parametrize(
    ("drone", "other"),
    [
        (key("9", 10.0, 0.0), key("8", 20.0, 0.0)),  # the older
        (key("9", 20.0, 30.0), key("8", 10.0, 0.0)),  # one that runs
        (key("9", 20.0, 30.0), key("8", 10.0, 40.0)),  # the one that runs for longer
        (key("9", 10.0, 0.0), key("10", 10.0, 0.0)),  # the first of the same second
        (key("9", 20.0, 0.0), key("8", 10.0, 15.0, ending=True)),
        (key("9", 20.0, 0.0, ending=True), key("8", 10.0, 15.0, ended=True)),
        (key("9", 20.0, 15.0, ended=True), key("8", 10.0, 0.0, ended=True)),  # the one that ran
    ],
)
def test_one_of_two_is_the_drone(drone: Seniority, other: Seniority) -> None:
    pair = [one("drone", drone), one("other", other, epoch=3)]
    for objects in (pair, pair[::-1]):
        found = settled(objects)
        assert found.drones[SEVEN].remote_id == "drone"
        stopped = not any(other[:2])
        assert list(found.duplicates) == ["other"] * stopped
        text = f"{SEVEN} exists twice, as drone and other (epoch 3): the first is kept"
        assert list(found.notices) == [text] * stopped


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=2, max_size=4), st.data())
def test_listings_of_two_members_never_stop_all(
    objects: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Each object is created and, some time later or never, runs. A member stops the others by its
    listing, and its order takes effect later; meanwhile another member looks."""

    def listed(at: int, leaving: set[str]) -> list[tuple[Seniority, RemoteDrone]]:
        found = []
        for number, (created, delay) in enumerate(objects):
            began = created + delay if delay and created + delay <= at else 0
            name = str(number)
            found.append(one(name, key(name, created, began, name in leaving)))
        random.Random(at).shuffle(found)
        return found

    first_at = data.draw(st.integers(3, 9), "the first look")
    second_at = data.draw(st.integers(first_at, 12), "the second one")
    early = set(settled(listed(first_at, set())).duplicates)
    arrived = {name for name in sorted(early) if data.draw(st.booleans(), f"{name} is leaving")}
    late = set(settled(listed(second_at, arrived)).duplicates)
    ran = any(rank[2] <= first_at for rank, _ in listed(first_at, set()))
    if ran or first_at == second_at:
        assert len(early | late) == len(objects) - 1, "one stays, by both"


def test_an_epoch_is_read_from_tags_and_from_nothing_else() -> None:
    assert [epoch_of(tag) for tag in ("7", "epoch=12", "", "(null)", "of the admin", "-1")] == [
        *(7, 12),
        *[0] * 4,
    ]
    assert epoch_of("9" * 5000) == 0
