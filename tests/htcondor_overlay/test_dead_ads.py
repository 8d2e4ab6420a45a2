"""Removal of a dead drone's ads: which ads that concerns, with a collector that is a list."""

from __future__ import annotations

import time

import classad2
import pytest

from adapters.htcondor.classads import Ad
from adapters.htcondor.overlay import drain
from adapters.htcondor.overlay.drain import CollectorAds, silent
from provisioner.interfaces import AuthError


def ad(name: str, drone_id: str | None, heard_s_ago: float) -> Ad:
    known = {} if drone_id is None else {"DroneId": drone_id}
    return classad2.ClassAd(
        {"Name": name, "LastHeardFrom": int(time.time() - heard_s_ago), **known}
    )


def holds(constraint: str, of: Ad) -> bool:
    return classad2.ExprTree(constraint).eval(of) is True


def test_only_ads_of_that_drone_from_before_its_end_are_removed() -> None:
    hostile = 'x" || true || "'
    for end, ended_s_ago, drone_id, heard_s_ago, removed in (
        ("kit-1", 30.0, "kit-1", 31.0, True),
        ("kit-1", 30.0, "kit-1", 20.0, False),
        ("kit-1", 0.3, "kit-1", 0.0, True),  # the collector's times are whole seconds
        ("kit-1", 30.0, "kit-10", 100.0, False),
        ("kit-1", 30.0, "KIT-1", 100.0, False),
        ("kit-1", 30.0, None, 100.0, False),
        (hostile, 0.0, "kit-1", 100.0, False),
        (hostile, 0.0, hostile, 100.0, True),
    ):
        assert holds(silent(end, ended_s_ago), ad("slot1@x", drone_id, heard_s_ago)) is removed, (
            end,
            drone_id,
        )


class Deaf:
    """A collector that answers, and removes nothing."""

    addresses = "pool:9618"

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def invalidate(self, target: str, command: str, requirements: str) -> None:
        assert holds(requirements, ad("slot1@kit-1", "kit-1", 90)) and not holds(
            requirements, ad("x", "kit-1", 1)
        )
        self.told.append((target, command))

    def query(self, kind: object, constraint: str, projection: object) -> list[Ad]:
        return [ad("slot1@kit-1", "kit-1", 90)]


def test_a_collector_that_keeps_the_ads_is_named_with_what_to_allow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collector = Deaf()
    monkeypatch.setattr(drain, "Collectors", lambda _: collector)
    monkeypatch.setattr(drain, "INVALIDATE_TIMEOUT_S", 0.1)
    with pytest.raises(
        AuthError, match=r"^allow .* ADVERTISE_STARTD .*: collector pool:9618 still lists slot1@kit"
    ):
        CollectorAds("pool:9618").remove({"kit-1": time.time() - 60})
    assert collector.told == [
        ("Machine", "INVALIDATE_STARTD_ADS"),
        ("DaemonMaster", "INVALIDATE_MASTER_ADS"),
    ]
