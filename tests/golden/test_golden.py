"""What the command line prints, and what the planner decides, is as on record (``README.md`` has what to do if not)."""

from __future__ import annotations

import pytest

from tests.golden.make import PARTS, RECORDS, WORLDS, differences

MOST_LINES = 80


@pytest.mark.parametrize("part", PARTS)
def test_it_is_as_on_record(part: str) -> None:
    found = differences(PARTS[part]())
    more = [f"... and {len(found) - MOST_LINES} more lines"] if len(found) > MOST_LINES else []
    renew = (
        f"renew, once the difference is what was wanted: python -m tests.golden.make --only {part}"
    )
    assert not found, "\n".join([*found[:MOST_LINES], *more, renew])


def test_nothing_else_is_on_record() -> None:
    made = {"cli", "messages", "plans", "reasons.txt"}
    assert {path.name for path in RECORDS.iterdir()} == made
    assert len((RECORDS / "plans" / "worlds.txt").read_text().splitlines()) == WORLDS
