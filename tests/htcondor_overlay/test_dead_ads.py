"""Removal of a dead drone's ads: which ads that concerns, with a collector that is a list."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import classad2
import htcondor2
import pytest

from adapters.htcondor.classads import Ad
from adapters.htcondor.overlay import drain
from adapters.htcondor.overlay.drain import CollectorAds, silent
from provisioner.interfaces import AuthError


def ad(name: str, drone_id: str | None, heard_s_ago: float) -> Ad:
    known = {} if drone_id is None else {"DroneId": drone_id}
    return classad2.ClassAd({"Name": name, "LastHeardFrom": int(time.time() - heard_s_ago), **known})


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
        assert holds(silent(end, ended_s_ago), ad("slot1@x", drone_id, heard_s_ago)) is removed, (end, drone_id)


class Collector:
    """A pool's collectors as a list of ads by kind; ``keeps``: it answers, and does nothing."""

    def __init__(self, slots: Sequence[Ad], masters: Sequence[Ad], *, keeps: bool = False) -> None:
        self.ads = {htcondor2.AdType.Startd: list(slots), htcondor2.AdType.Master: list(masters)}
        self.keeps, self.addresses = keeps, "pool:9618"
        self.told: list[str] = []

    def invalidate(self, target: str, command: str, requirements: str) -> None:
        kind, of = {
            "INVALIDATE_STARTD_ADS": (htcondor2.AdType.Startd, "Machine"),
            "INVALIDATE_MASTER_ADS": (htcondor2.AdType.Master, "DaemonMaster"),
        }[command]
        assert target == of
        self.told.append(command)
        if not self.keeps:
            self.ads[kind] = [each for each in self.ads[kind] if not holds(requirements, each)]

    def query(self, kind: Any, constraint: str, projection: Sequence[str]) -> list[Ad]:
        return [each for each in self.ads[kind] if holds(constraint, each)]

    def names(self) -> list[str]:
        return [str(each["Name"]) for ads in self.ads.values() for each in ads]


def removing(monkeypatch: pytest.MonkeyPatch, collector: Collector) -> CollectorAds:
    monkeypatch.setattr(drain, "Collectors", lambda _: collector)
    monkeypatch.setattr(drain, "INVALIDATE_TIMEOUT_S", 0.1)
    return CollectorAds("pool:9618")


def test_slots_and_masters_of_the_dead_go_and_all_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = [ad("s1", "kit-1", 90), ad("s1_1", "kit-1", 95), ad("s2", "kit-2", 90), ad("s3", "kit-3", 1)]
    collector = Collector([*slots, ad("node", None, 90)], [ad("m1", "kit-1", 90), ad("m2", "kit-2", 90)])
    removing(monkeypatch, collector).remove({"kit-1": time.time() - 60, "kit-3": time.time() - 60})
    assert collector.names() == ["s2", "s3", "node", "m2"], "kit-3 was heard after its end: it lives"


def test_a_collector_that_keeps_the_ads_is_named_with_what_to_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector([ad("slot1@kit-1", "kit-1", 90)], [], keeps=True)
    with pytest.raises(AuthError, match=r"^allow .* ADVERTISE_STARTD .*: collector pool:9618 still lists slot1@kit"):
        removing(monkeypatch, collector).remove({"kit-1": time.time() - 60})
    assert collector.told == ["INVALIDATE_STARTD_ADS", "INVALIDATE_MASTER_ADS"]
