"""A database server that says nothing: it is paused, or the network to it is cut. All waits end."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from provisioner.store import StoreError, StoreUnusableError
from provisioner.store.database import ServerSchema, database_of
from provisioner.store.lease import LeaseStore, Member, Term
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.labs.network import Apart, available
from tests.labs.postgresql import QUICK, PostgresServer, postgres_or_skip
from tests.store.story import CONTROLLER, drone, record, starts

SILENCE_S = 2.0
LIMIT_S = 20.0
"""A wait that ends by itself ends before; without a limit it would last as long as the silence."""
CLONE_NEWNET = 0x40000000


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_or_skip(*QUICK) as made:
        yield made


def store_at(place: ServerSchema, *, threaded: bool = True) -> SqlStore:
    store = SqlStore(place, CONTROLLER, 1e9, 3, threaded)
    store._database = database_of(place, SILENCE_S)
    return store


def reader_of(place: ServerSchema) -> Reader:
    reader = Reader(place)
    reader.database = database_of(place, SILENCE_S)
    return reader


async def fails(work: Callable[[], Any], reason: str) -> None:
    """Check that a call of the store ends by itself, with this error."""
    begun = time.monotonic()
    with pytest.raises(StoreUnusableError, match=reason):
        found = work()
        if isinstance(found, Coroutine):
            await found
    assert time.monotonic() - begun < LIMIT_S


async def test_a_server_that_is_paused_is_given_up_and_nothing_is_lost(
    server: PostgresServer,
) -> None:
    place = server.new_place()
    reader = reader_of(place)
    async with store_at(place) as store:
        await record(store, starts(1, drone(1)))
        assert len(reader.drones()) == 1
        with server.paused():
            await fails(lambda: record(store, starts(2, drone(2))), "no answer for 2 s")
            await fails(lambda: record(store, starts(2, drone(2))), "timeout expired")
            await fails(reader.drones, "no connection to the database")
        for _ in range(2):  # what was sent may have been carried out: then the record is read anew
            try:
                await record(store, starts(store.tick + 1, drone(store.tick + 1)))
            except StoreError as error:
                assert "recomputes the plan" in str(error)
        assert {each.id for each in reader.drones()} == {*store.drones}
        assert len(store.drones) == store.tick > 1


async def test_a_renewal_that_gets_no_answer_ends_within_the_lease(server: PostgresServer) -> None:
    database = database_of(server.new_place(), 1.0)
    leases = LeaseStore(database, CONTROLLER)
    member = Member("one", "{}")
    _, lease = leases.beat(member, 6.0, None, lambda lease: True)
    term = Term(*lease.term)
    with server.paused():
        begun = time.monotonic()
        await fails(lambda: leases.beat(member, 6.0, term), "no answer for 1 s")
        assert time.monotonic() - begun < 6.0
    before, after = leases.beat(member, 6.0, term)
    assert before.term == after.term == lease.term and after.renewed_at > lease.renewed_at
    leases.close()


def in_namespace(apart: Apart, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test in a thread whose sockets are in the namespace."""

    def enter() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = os.open(f"/run/netns/{apart.namespace}", os.O_RDONLY)
        assert libc.setns(fd, CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        os.close(fd)
        asyncio.run(work())

    with ThreadPoolExecutor(1) as thread:
        thread.submit(enter).result()


@pytest.mark.skipif(not available(), reason="network namespaces need root and iproute2")
def test_a_network_that_is_cut_without_a_reset_is_given_up() -> None:
    """The server holds the lock of the lost transaction until its own timeout has passed."""

    async def play() -> None:
        async with store_at(place, threaded=False) as store:
            await record(store, starts(1, drone(1)))
            with apart.cut():
                await fails(lambda: record(store, starts(2, drone(2))), "no answer for 2 s")
                await fails(lambda: record(store, starts(2, drone(2))), "timeout expired")
            deadline = time.monotonic() + LIMIT_S
            while store.tick < 2:
                assert time.monotonic() < deadline
                try:
                    await record(store, starts(2, drone(2)))
                except StoreError:
                    await asyncio.sleep(0.5)
            assert set(store.drones) == {drone(1).id, drone(2).id}

    with Apart() as apart, postgres_or_skip(*QUICK, f"listen_addresses={apart.far}") as server:
        server.admit(f"{apart.there}/32")
        place = server.new_place(apart.far)
        in_namespace(apart, play)
