"""The lease on disk: one holder at a time, epochs that grow, and transactions that prove their term."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.store import StoreError, StoreHeldError, generations
from provisioner.store.database import Place, database_of
from provisioner.store.lease import Lease, LeaseStore, Member, Term
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.store.story import CONTROLLER

LONG_S, NO_TIME_S = 600.0, 0.0
HOLDER = json.dumps({"pid": 7, "host": "one", "since": 1.0, "process": ""})


class Seeker:
    """A member with its own connection."""

    def __init__(self, place: Place, name: str) -> None:
        self.store = LeaseStore(database_of(place), CONTROLLER)
        self.member = Member(name, HOLDER)
        self.place = place
        self.term: Term | None = None

    @property
    def generations(self) -> list[tuple[int, str, str]]:
        """Return all generations on record, the newest first."""
        with Reader(self.place)._open() as sql:
            query = "SELECT generation, state, reason FROM configurations ORDER BY generation DESC"
            return [tuple(row) for row in sql.execute(query).fetchall()]

    @staticmethod
    def takes(lease: Lease) -> bool:
        return not lease.is_held

    def beat(self, lease_s: float = LONG_S) -> bool:
        """Return True if it holds the lease afterwards."""
        before, after = self.store.beat(self.member, lease_s, self.term, self.takes)
        if self.term is None and after.member == self.member.name and after.nonce != before.nonce:
            self.term = Term(after.epoch, after.nonce)
        return self.term is not None and after.nonce == self.term.nonce


def run(place: Place, statement: str) -> None:
    """Run a statement as the administrator of the database would."""
    sql, _ = database_of(place).hold(CONTROLLER, None, shared=True)
    sql.execute(statement)
    sql.close()


def store_of(place: Place, seeker: Seeker) -> SqlStore:
    return SqlStore(place, CONTROLLER, 1e9, 0, term=seeker.term)


def test_one_holds_it_and_the_next_one_has_the_next_epoch(place: Place) -> None:
    one, other = Seeker(place, "one"), Seeker(place, "other")
    assert one.beat() and not other.beat() and one.beat()
    assert Reader(place).lease()[0].epoch == 1
    assert Reader(place).holder() is not None
    one.store.leave(one.member, releases=False)
    assert Reader(place).lease()[0].is_held
    one.store.leave(one.member, releases=True)
    assert Reader(place).holder() is None and Reader(place).lease()[0].was_released
    assert other.beat() and not one.beat()
    lease, members = Reader(place).lease()
    assert (lease.epoch, lease.member) == (2, "other")
    assert [each.name for each in members] == ["one", "other"]


def test_one_that_ran_out_is_renewed_if_nobody_took_it_and_never_after(place: Place) -> None:
    one, other = Seeker(place, "one"), Seeker(place, "other")
    assert one.beat(NO_TIME_S) and one.beat(NO_TIME_S)
    assert other.beat() and not one.beat()


def test_no_member_gives_an_epoch_that_another_has_seen(place: Place) -> None:
    """As after a fail-over to a database that has lost an epoch."""
    Seeker(place, "one").beat(NO_TIME_S)
    far = Seeker(place, "far")
    far.member = Member("far", HOLDER, epoch=41)
    far.store.beat(far.member, LONG_S, None)
    other = Seeker(place, "other")
    assert other.beat() and other.term is not None and other.term.epoch == 42


async def test_a_former_leader_records_nothing(place: Place) -> None:
    one, other = Seeker(place, "one"), Seeker(place, "other")
    one.beat(NO_TIME_S)
    async with store_of(place, one) as old:
        await old.event(1.0, "here", {})
        other.beat()
        async with store_of(place, other) as new:
            with pytest.raises(StoreHeldError, match="epoch 1 is over"):
                await old.event(2.0, "too late", {})
            await new.event(3.0, "there", {})
    assert one.term is not None and one.term.lost
    assert [each.name for each in Reader(place).events()] == ["here", "there"]


async def test_a_renewal_does_not_wait_for_a_long_record(place: Place) -> None:
    """As that of all drones may be, which takes longer than half of a lease."""
    if isinstance(place, Path):
        pytest.skip("SQLite has one writer at a time")
    one, other = Seeker(place, "one"), Seeker(place, "other")
    one.beat(NO_TIME_S)
    async with store_of(place, one) as store:
        with store._transaction():
            assert one.beat()
        await store.event(1.0, "here", {})
        one.beat(NO_TIME_S)
        with pytest.raises(StoreHeldError), store._transaction():
            assert other.beat()


async def test_a_leader_notices_that_the_database_has_lost_its_last_transaction(
    place: Place,
) -> None:
    one = Seeker(place, "one")
    one.beat()
    async with store_of(place, one) as store:
        await store.event(1.0, "kept", {})
        run(place, "UPDATE lease SET writes = writes - 1")
        with pytest.raises(StoreHeldError, match="has lost a transaction"):
            await store.event(2.0, "after", {})
        run(place, "UPDATE lease SET writes = writes + 1")
        with pytest.raises(StoreHeldError):
            await store.event(3.0, "later", {})
    assert [each.name for each in Reader(place).events()] == ["kept"]


async def test_the_lease_of_an_older_nonce_is_another_term(place: Place) -> None:
    one = Seeker(place, "one")
    one.beat()
    async with store_of(place, one) as store:
        run(place, "UPDATE lease SET nonce = 'other'")
        with pytest.raises(StoreHeldError):
            await store.event(1.0, "here", {})
    lease, _ = Reader(place).lease()
    assert one.term is not None and lease.epoch == one.term.epoch


async def test_members_exclude_a_controller_on_its_own(place: Place) -> None:
    one = Seeker(place, "one")
    one.beat(NO_TIME_S)
    with pytest.raises(StoreHeldError):
        async with SqlStore(place, CONTROLLER, 1e9, 0):
            pass
    one.store.close()
    async with SqlStore(place, CONTROLLER, 1e9, 0):
        with pytest.raises(StoreHeldError):
            Seeker(place, "other").beat()


def test_a_connection_that_was_cut_is_made_anew(place: Place) -> None:
    one = Seeker(place, "one")
    assert one.beat()
    assert one.store._sql is not None
    one.store._sql.close()
    with pytest.raises(StoreError):
        one.beat()
    assert one.beat() and Reader(place).lease()[0].epoch == 1


def test_one_leader_decides_about_proposed_files_and_the_newest_adopted_are_in_force(
    place: Place,
) -> None:
    one, other = Seeker(place, "one"), Seeker(place, "other")
    one.beat()
    assert one.term is not None
    for number, problems in ((1, ""), (2, "too old"), (3, "")):
        other.store.propose(f"files {number}", f"digest {number}", "other")
        one.beat()
        assert one.store.generations[0].generation == number
        if number < 3:
            one.store.settle(one.term, number, problems)
    assert Reader(place).generation() == one.store.generations[-1]
    one.store.propose("files 4", "digest 4", "one")
    one.store.settle(one.term, 4, "")
    assert one.generations == [
        (4, "adopted", ""),
        (3, "rejected", "a newer one was adopted"),
        (2, "rejected", "too old"),
        (1, "adopted", ""),
    ]
    assert one.store.files(4) == "files 4"
    other.store.propose("files 2", "digest 2", "other")
    assert [each[0] for each in other.generations] == [5, 4, 3, 1]
    assert [each.generation for each in other.store.generations] == [5, 4]
    other.store.digest = "digest 1"
    other.beat()
    assert [each.generation for each in other.store.generations] == [5, 4, 1], "with its own"
    with pytest.raises(StoreHeldError):
        other.store.settle(Term(one.term.epoch, "of another"), 5, "")


def test_only_so_many_generations_are_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "GENERATIONS_KEPT", 3)
    one = Seeker(place, "one")
    one.beat()
    assert one.term is not None
    for number in range(1, 7):
        one.store.propose("files", f"digest {number}", "one")
        one.store.settle(one.term, number, "")
    assert [each[0] for each in one.generations] == [6, 5, 4, 3]
