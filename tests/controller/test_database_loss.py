"""Members whose database hangs, or fails over by Patroni: they wait, resume, and lose no drone."""

from __future__ import annotations

import time

import pytest

from provisioner.model import DroneId
from provisioner.store.database import ServerSchema, place_of
from tests.controller.test_members import LEASE_S, Pair
from tests.controller.test_process import Host, host
from tests.labs.patroni import Cluster, cluster_or_skip
from tests.labs.postgresql import QUICK, postgres_or_skip

__all__ = ["host"]
pytestmark = [pytest.mark.slow, pytest.mark.matrix]


def test_members_give_no_order_while_the_database_hangs_and_resume(host: Host) -> None:
    with postgres_or_skip(*QUICK) as server:
        pair = Pair(host, 0.3, server.new_place())
        pair.starts_more()
        pair.replaces_one()
        with server.paused():
            time.sleep(LEASE_S + 1.0)
            orders = len(list(pair.orders))
            time.sleep(5 * LEASE_S)
            assert len(list(pair.orders)) == orders
            assert [each.poll() for each in pair.members] == [None, None]
            assert b"lease.renewal_failed" in (host.path / "stderr").read_bytes()
        begun = time.monotonic()
        host.until(lambda: pair.leader is not None)
        pair.starts_more()
        print(f"it resumed after {time.monotonic() - begun:.1f} s")
        pair.runs(2.0)
        pair.keeps_its_promises()


def members_of(host: Host, cluster: Cluster) -> Pair:
    place = place_of(cluster.url, "kit")
    assert isinstance(place, ServerSchema)
    return Pair(host, 0.3, place)


def events(pair: Pair) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in pair.record.events(limit=10_000):
        found.setdefault(each.name, []).append(str(each.fields))
    return found


def resumes(pair: Pair) -> None:
    pair.host.until(lambda: pair.leader is not None)
    starts = pair.count("started")
    while pair.count("started") == starts:  # a request may be lost, or be there again
        pair.runs(1.0)
    pair.runs(3.0)
    stopped = {each[3] for each in pair.orders if each[2] == "stopped"}
    assert stopped <= pair.killed, "only an operator ends a drone"
    pair.keeps_its_promises()


def test_a_synchronous_fail_over_of_the_database_loses_nothing(host: Host) -> None:
    with cluster_or_skip(synchronous=True) as cluster:
        pair = members_of(host, cluster)
        pair.starts_more()
        pair.runs(3.0)
        started = {DroneId(each[3]) for each in pair.orders if each[2] == "started"}
        print(f"the database failed over in {cluster.fail_over():.1f} s")
        resumes(pair)
        told = events(pair)
        assert "lease.epoch_went_back" not in told and "orphan.adopted" not in told
        assert started <= {each.id for each in pair.record.drones(ended=None)}


@pytest.mark.parametrize("epoch_lost", [False, True])
def test_an_asynchronous_fail_over_is_reported_and_its_drones_are_adopted(
    host: Host, epoch_lost: bool
) -> None:
    """``epoch_lost``: the lost transactions include the begin of a term."""
    with cluster_or_skip(synchronous=False) as cluster:
        pair = members_of(host, cluster)
        pair.starts_more()
        pair.runs(2.0)
        kept = {each.id for each in pair.record.drones(ended=None)}
        cluster.hold_back()
        epoch = pair.lease.epoch
        if epoch_lost:
            leader = pair.leader
            assert leader is not None
            leader.kill()
            leader.wait()
            host.until(lambda: pair.lease.epoch > epoch)
            pair.runs_another()
            epoch += 1
        for _ in range(3):
            pair.starts_more()
        lost = {each.id for each in pair.record.drones(ended=None)} - kept
        alive = {*lost} & pair.alive()
        assert alive
        print(f"the database failed over in {cluster.fail_over():.1f} s")
        resumes(pair)
        told = events(pair)
        print(told["lease.epoch_went_back"], told["orphan.adopted"])
        assert pair.lease.epoch > epoch
        assert {each for each in alive if any(each in text for text in told["orphan.adopted"])} == {
            *alive
        }
        assert alive <= {each.id for each in pair.record.drones(ended=None)}
