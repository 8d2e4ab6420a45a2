"""One user with tens of thousands of different requests: others, operators and signals do not wait for the decision."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

import pytest

from adapters.embedded import queue
from provisioner.model import DrainMode, DroneState, RequestKind
from tests.controller.test_process import Host, host

__all__ = ["host"]
pytestmark = pytest.mark.slow
REQUESTS = 20_000


def test_an_operator_and_a_signal_are_served_while_one_user_has_many_requests(host: Host) -> None:
    host.site("well")
    process = host.run()
    host.until(
        lambda: host.plans() and [d for d in host.record.drones() if d.state is DroneState.BOOTING]
    )
    queue.submit(host.path / "queue.db", ["true"], count=REQUESTS, gpus=4, owner="mallory")
    with closing(sqlite3.connect(host.path / "queue.db", isolation_level=None)) as sql:
        sql.execute("UPDATE job SET memory_mib = 16 + id WHERE owner = 'mallory'")

    def classes() -> int:
        views = host.record.views()
        return len(views.overlay.view.classes) if views and views.overlay.view else 0

    host.until(lambda: classes() > REQUESTS, 120.0)
    (drone,) = host.record.drones()
    host.record.ask(
        RequestKind.DRAIN, [drone.id], mode=DrainMode.FAST, reason="repair", by="mg", at=drone.since
    )
    asked = host.tick()

    def leaves() -> bool:
        return drone.id not in [
            each.id for each in host.record.drones() if each.state is DroneState.BOOTING
        ]

    host.until(leaves, 120.0)
    assert host.tick() <= asked + 3, (
        "the tick that was under way, the next, and one more to look at it"
    )
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
