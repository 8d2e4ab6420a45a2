"""The lease by which one of several controllers leads: one row of the record.

A leader holds a term: an epoch, which grows from term to term, and a random nonce. Each of its
transactions proves both and counts itself in the same row. So a transaction fails if another
member leads, and also if the database has lost the one before, as an asynchronous fail-over may:
then the member has to read the record anew. The statements are those of SQLite and PostgreSQL.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from provisioner.store import StoreHeldError, generations
from provisioner.store.database import Database, StoreConnection
from provisioner.store.generations import Generation
from provisioner.values import define, frozen

SILENT_S = 60.0
"""A member that gives no sign of life for so long is not ready."""
SILENT_MEMBER_KEPT_S = 3600.0
"""Time for which a member that gives no sign of life is listed."""


@frozen
class Member:
    """A controller that leads or stands by."""

    name: str
    """``<host>/<pid>``."""
    holder: str
    """The process, as JSON of :class:`provisioner.store.Holder`."""
    lacks: tuple[str, ...] = ()
    """Views that it does not have, with the reason: a take-over has to wait for them."""
    unpolled: tuple[str, ...] = ()
    """Sites that only the leader polls, as they are configured."""
    epoch: int = 0
    """The largest that it has seen."""
    seen_at: float = 0.0
    files: str = ""
    """Why its own files are not in force; empty: they are, or it is on its own."""

    def is_alive(self, lease: Lease) -> bool:
        """Return True if it has given a sign of life within :data:`SILENT_S`."""
        return lease.now - self.seen_at < SILENT_S

    def is_ready(self, lease: Lease) -> bool:
        """Return True if it could lead at once."""
        return self.is_alive(lease) and not self.lacks


@frozen
class Lease:
    """The row of the lease as it was at the time ``now`` of the database."""

    epoch: int
    nonce: str
    member: str
    since_at: float
    renewed_at: float
    until_at: float
    writes: int
    now: float

    @property
    def is_held(self) -> bool:
        return self.until_at > self.now

    @property
    def term(self) -> tuple[int, str]:
        return self.epoch, self.nonce

    @property
    def renewal(self) -> tuple[int, str, float]:
        """Return what differs after each renewal."""
        return self.epoch, self.nonce, self.renewed_at

    @property
    def was_released(self) -> bool:
        """Return True if its last holder gave it back, with no order under way."""
        return self.until_at == 0.0


@define
class Term:
    """One leadership. It ends with the first transaction that cannot prove it."""

    epoch: int
    nonce: str
    writes: int = 0
    """Transactions committed in it."""
    lost: bool = False

    def prove(self, sql: StoreConnection) -> None:
        """Prove the term in the open transaction, and count the transaction. Raises :class:`StoreHeldError`."""
        counted = sql.execute(
            "UPDATE lease SET writes = writes + 1 WHERE epoch = ? AND nonce = ? AND writes = ?",
            (self.epoch, self.nonce, self.writes),
        )
        if self.lost or counted.rowcount != 1:
            self.lost = True
            raise StoreHeldError(
                f"epoch {self.epoch} is over: another controller leads, or the database has lost a transaction. "
                "Nothing was recorded, and this controller acts on nothing until it leads again"
            )


def read_lease(sql: StoreConnection, now: str) -> Lease:
    """Return the lease. ``now``: the database's clock in SQL."""
    names = "epoch, nonce, member, since_at, renewed_at, until_at, writes"
    return Lease(*sql.execute(f"SELECT {names}, {now} FROM lease WHERE id = 1").fetchone())


def read_members(sql: StoreConnection) -> list[Member]:
    """Return the members by name."""
    rows = sql.execute(
        "SELECT name, holder, lacks, unpolled, epoch, seen_at, files FROM members ORDER BY name"
    )
    return [
        Member(name, holder, tuple(json.loads(lacks)), tuple(json.loads(unpolled)), *rest)
        for name, holder, lacks, unpolled, *rest in rows
    ]


class LeaseStore:
    """A member's connection for the lease: its renewal waits for no transaction of its own record."""

    def __init__(self, database: Database, controller: str) -> None:
        self.generations: tuple[Generation, ...] = ()
        """Generations of the configuration, the newest first, as they were last read."""
        self.digest = ""
        """Digest of the member's own files, whose older generations are read as well."""
        self._database = database
        self._controller = controller
        self._now = database.clock
        self._sql: StoreConnection | None = None

    def open(self) -> None:
        """Connect, and create the record if there is none. Raises :class:`StoreError`."""
        self._sql, _ = self._database.hold(self._controller, None, shared=True)

    def close(self) -> None:
        """Disconnect, and unlock the record."""
        self._disconnect()
        self._database.release()

    def beat(
        self,
        member: Member,
        duration_s: float,
        term: Term | None,
        takes: Callable[[Lease], bool] = lambda lease: False,
    ) -> tuple[Lease, Lease]:
        """Give a sign of life, and renew the lease of ``term``; without one take it if ``takes`` says so.

        Return the lease before and after. Raises :class:`StoreError` if the database does not
        answer.
        """
        with self._transaction() as sql:
            before = read_lease(sql, self._now)
            if term is not None:
                self._renew(sql, term, duration_s)
            elif takes(before):
                self._acquire(sql, member, duration_s, before)
            self._note(sql, member)
            self.generations = generations.read_generations(sql, self.digest)
            return before, read_lease(sql, self._now)

    def leave(self, member: Member, *, releases: bool) -> None:
        """Remove the member. ``releases``: it has no order under way, and gives back a lease that it holds."""
        with self._transaction() as sql:
            if releases:
                sql.execute("UPDATE lease SET until_at = 0 WHERE member = ?", (member.name,))
            sql.execute("DELETE FROM members WHERE name = ?", (member.name,))

    def propose(self, files: str, digest: str, member: str) -> None:
        """Propose files as the next generation of the configuration."""
        with self._transaction() as sql:
            generations.propose(sql, files, digest, member, self._now)
            self.generations = generations.read_generations(sql, self.digest)

    def files(self, generation: int) -> str:
        """Return the files of a generation."""
        with self._transaction() as sql:
            query = "SELECT files FROM configurations WHERE generation = ?"
            return str(sql.execute(query, (generation,)).fetchone()[0])

    def settle(self, term: Term | None, generation: int, problems: str) -> None:
        """Adopt a generation, or reject it for its ``problems``. Raises :class:`StoreHeldError` after the term."""
        mine = (term.epoch, term.nonce) if term is not None else (0, "")
        with self._transaction() as sql:
            prove = "UPDATE lease SET nonce = nonce WHERE epoch = ? AND nonce = ?"
            if sql.execute(prove, mine).rowcount != 1:
                raise StoreHeldError("another member leads: it decides about the configuration")
            generations.settle(sql, generation, problems)
            self.generations = generations.read_generations(sql, self.digest)

    def _renew(self, sql: StoreConnection, term: Term, duration_s: float) -> None:
        """Renew the lease, also one that has run out: if nobody took it, nobody led meanwhile."""
        sql.execute(
            f"UPDATE lease SET renewed_at = {self._now}, until_at = {self._now} + ?"
            " WHERE epoch = ? AND nonce = ? AND until_at > 0",
            (duration_s, term.epoch, term.nonce),
        )

    def _acquire(
        self, sql: StoreConnection, member: Member, duration_s: float, free: Lease
    ) -> None:
        """Take the lease, if it still is as it was, with an epoch that no member has seen."""
        (seen,) = sql.execute("SELECT coalesce(max(epoch), 0) FROM members").fetchone()
        epoch = max(seen, member.epoch)
        sql.execute(
            "UPDATE lease SET epoch = CASE WHEN epoch > ? THEN epoch ELSE ? END + 1, nonce = ?, member = ?,"
            f" since_at = {self._now}, renewed_at = {self._now}, until_at = {self._now} + ?, writes = 0"
            " WHERE epoch = ? AND nonce = ? AND renewed_at = ? AND until_at = ?",
            (
                *(epoch, epoch, secrets.token_hex(8), member.name, duration_s),
                *(*free.renewal, free.until_at),
            ),
        )

    def _note(self, sql: StoreConnection, member: Member) -> None:
        sql.execute(
            f"INSERT INTO members (name, seen_at, epoch, holder, lacks, unpolled, files)"
            f" VALUES (?, {self._now}, ?, ?, ?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at, epoch = excluded.epoch,"
            " holder = excluded.holder, lacks = excluded.lacks, unpolled = excluded.unpolled,"
            " files = excluded.files",
            (
                *(member.name, member.epoch, member.holder),
                *(json.dumps(member.lacks), json.dumps(member.unpolled), member.files),
            ),
        )
        sql.execute(f"DELETE FROM members WHERE seen_at < {self._now} - ?", (SILENT_MEMBER_KEPT_S,))

    def _disconnect(self) -> None:
        if self._sql is not None:
            with suppress(self._database.errors):
                self._sql.close()
        self._sql = None

    @contextmanager
    def _transaction(self) -> Iterator[StoreConnection]:
        try:
            if self._sql is None:
                self.open()
            assert self._sql is not None
            self._sql.execute(self._database.begin_brief)
            yield self._sql
            self._sql.execute("COMMIT")
        except BaseException as error:
            self._disconnect()  # the next one has a new connection
            if isinstance(error, self._database.errors):
                raise self._database.unusable(error) from error
            raise
