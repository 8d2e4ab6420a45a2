"""Generations of the configuration on record: members decide by the newest one that was adopted."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from provisioner.store.database import StoreConnection
from provisioner.store.tables import Table
from provisioner.values import frozen

GENERATIONS_KEPT = 100


class Verdict(StrEnum):
    """The answer of a leader to proposed files."""

    PROPOSED = "proposed"
    ADOPTED = "adopted"
    REJECTED = "rejected"


@frozen
class Generation:
    """Files that a member has proposed."""

    generation: int
    digest: str
    proposed_by: str
    at: float
    state: Verdict
    reason: str
    """Why the leader has rejected it."""


_TABLE = Table("configurations", Generation, {"state": Verdict})


def read_generations(sql: StoreConnection, digest: str = "") -> tuple[Generation, ...]:
    """Return the generation in force, those proposed and those of one digest, the newest first."""
    in_force = "SELECT max(generation) FROM configurations WHERE state = ?"
    which = f"WHERE state = ? OR digest = ? OR generation = ({in_force}) ORDER BY generation DESC"
    return tuple(_TABLE.select(sql, which, (Verdict.PROPOSED, digest, Verdict.ADOPTED)))


def adopted_of(generations: Iterable[Generation]) -> Generation | None:
    """Return the generation in force, of the newest first."""
    return next((each for each in generations if each.state is Verdict.ADOPTED), None)


def propose(sql: StoreConnection, files: str, digest: str, member: str, now: str) -> None:
    """Propose files in place of the same ones that are not in force. ``now``: the database's clock in SQL."""
    sql.execute(
        "DELETE FROM configurations WHERE digest = ? AND state != ?", (digest, Verdict.ADOPTED)
    )
    sql.execute(
        "INSERT INTO configurations (digest, files, proposed_by, at, state, reason)"
        f" VALUES (?, ?, ?, {now}, ?, '')",
        (digest, files, member, Verdict.PROPOSED),
    )


def settle(sql: StoreConnection, generation: int, problems: str) -> None:
    """Reject a generation for its ``problems``, or without any adopt it in place of those before."""
    change = "UPDATE configurations SET state = ?, reason = ? WHERE generation = ?"
    state = Verdict.REJECTED if problems else Verdict.ADOPTED
    sql.execute(change, (state, problems, generation))
    if not problems:
        sql.execute(
            "UPDATE configurations SET state = ?, reason = ? WHERE generation < ? AND state = ?",
            (Verdict.REJECTED, "a newer one was adopted", generation, Verdict.PROPOSED),
        )
        oldest = generation - GENERATIONS_KEPT
        sql.execute("DELETE FROM configurations WHERE generation < ?", (oldest,))
