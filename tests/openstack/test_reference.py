"""The tables of states and back-offs in `docs/reference/site-openstack.md` agree with the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from adapters.openstack.servers import SERVER_STATES, StopMethod
from provisioner.model import FaultKind, RemoteState
from provisioner.planner.breakers import BACKOFF_POLICIES

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "site-openstack.md").read_text()
STATE = {
    "waits": RemoteState.PENDING,
    "runs": RemoteState.RUNNING,
    "counts as alive": RemoteState.UNKNOWN,
    "stopped": RemoteState.STOPPED,
    "ended": RemoteState.ENDED,
}
WAY = {"shutdown": StopMethod.SHUT_DOWN, "deletion": StopMethod.DELETE, "nothing": StopMethod.NONE}
SECONDS = {"s": 1, "min": 60, "h": 3600}


def rows(head: str) -> Iterator[list[str]]:
    """The cells of the table whose head row begins with this."""
    _, _, rest = PAGE.partition(f"\n| {head} |")
    assert rest, f"no table `{head}`"
    for line in rest.splitlines()[2:]:
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_states_are_those_of_the_table() -> None:
    told: dict[str, tuple[RemoteState, bool, StopMethod]] = {}
    for statuses, drone, way in rows("status"):
        state = next(state for words, state in STATE.items() if drone.startswith(words))
        for status in re.findall(r"`(\w+)`", statuses):
            assert status not in told
            told[status] = state, "preempted" in drone, WAY[way]
    assert told == {
        status: (means.state, means.taken, means.stop) for status, means in SERVER_STATES.items()
    }


def test_the_back_offs_are_those_of_the_breakers() -> None:
    def seconds(text: str) -> float:
        number, unit = text.split()
        return float(number) * SECONDS[unit]

    told = {}
    for kind, scope, after, first, most in rows("category | scope"):
        per_type = scope not in ("the site", "the node")
        told[FaultKind(kind.strip("`"))] = (
            int(after.split()[0]),
            seconds(first),
            seconds(most),
            per_type,
        )
    assert told == {
        kind: (rule.after, rule.base_s, rule.cap_s, rule.per_type)
        for kind, rule in BACKOFF_POLICIES.items()
        if kind is not FaultKind.LEASE  # no site meets it
    }
