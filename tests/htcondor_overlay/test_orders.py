"""Choice between the tool and an order ad for a drain, with a script in place of the tool."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.htcondor.overlay import HTCondorOverlay, client_directory
from adapters.htcondor.overlay.drain import Drainer, DrainOrders, read_every_s
from provisioner.model import DrainMode, DroneId, Fault, FaultKind, OrderOutcome
from tests.htcondor_overlay.test_overlay_parts import (
    GOOD,
    ONE,
    ORDER,
    TWO,
    Board,
    a_tool,
    args,
    options,
)

DENIED = Fault(FaultKind.DENIED, "order ad: not allowed", 0.0)
BOTH: Mapping[DroneId, str | None] = {**GOOD, TWO: "slot1@kit-2@node8.example.org"}


@pytest.mark.parametrize(
    "body", ["echo 'Failed to start DRAIN_JOBS command'; exit 1", "exec sleep 60"]
)
async def test_a_drone_that_the_tool_does_not_reach_gets_an_order(
    tmp_path: Path, body: str
) -> None:
    """A drain through CCB was refused, or hung for its 20 s, and nothing else was tried."""
    board = Board({ONE: False})
    both = await a_tool(tmp_path, body, board).drain(BOTH, DrainMode.PEACEFUL, "out")
    assert both[0].answer is OrderOutcome.OK
    assert both[1].answer is not OrderOutcome.OK, "it does not read orders"
    assert board.placed == [(ONE, DrainMode.PEACEFUL)]
    without = Drainer("no-such-tool", {"PATH": str(tmp_path)}, 1.0, board)
    assert (await without.drain(GOOD, DrainMode.FAST, "out"))[0].answer is OrderOutcome.OK


async def test_the_tool_is_left_alone_for_a_while_where_it_has_failed(tmp_path: Path) -> None:
    board = Board({ONE: False, TWO: False})
    both = a_tool(tmp_path, "exit 1", board)
    await both.drain({ONE: BOTH[ONE]}, DrainMode.PEACEFUL, "out")
    ran = len(args(tmp_path))
    receipts = await both.drain(BOTH, DrainMode.GRACEFUL, "out")
    assert [r.answer for r in receipts] == [OrderOutcome.OK] * 2 and len(args(tmp_path)) == ran


async def test_a_refusal_says_what_was_tried(tmp_path: Path) -> None:
    board = Board({ONE: False}, DENIED)
    (receipt,) = await a_tool(tmp_path, "echo no luck; exit 1", board).drain(
        GOOD, DrainMode.PEACEFUL, "out"
    )
    assert receipt.answer is OrderOutcome.REJECTED and receipt.fault is not None
    assert receipt.fault.kind is FaultKind.DENIED
    assert "no luck" in receipt.fault.message and "order ad: not allowed" in receipt.fault.message


async def test_a_drain_is_taken_back_in_the_way_in_which_it_was_made(tmp_path: Path) -> None:
    by_order = Board({ONE: True})
    (receipt,) = await a_tool(tmp_path, "exit 0", by_order).drain(GOOD, DrainMode.RESUME, "back")
    assert receipt.answer is OrderOutcome.OK and by_order.placed == [(ONE, DrainMode.RESUME)]
    assert not (tmp_path / "args").exists()

    by_tool = Board({ONE: False})
    once = a_tool(tmp_path, 'case "$1" in -cancel) echo no; exit 1 ;; esac', by_tool)
    assert (await once.drain(GOOD, DrainMode.PEACEFUL, "out"))[
        0
    ].answer is OrderOutcome.OK and by_tool.placed == []
    (receipt,) = await once.drain(GOOD, DrainMode.RESUME, "back")
    assert receipt.answer is OrderOutcome.REJECTED and by_tool.placed == [], (
        "an order cannot take it back"
    )


def token_of(**claims: str) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2lnbmF0dXJl\n"


async def test_a_drone_is_told_whose_orders_to_obey(tmp_path: Path) -> None:
    settings = options(tmp_path)
    async with HTCondorOverlay(settings, "kit") as overlay:
        assert "DRONE_ORDERS_FROM" not in (await overlay.bootstrap(ORDER)).env, (
            "the token names nobody"
        )
        (tmp_path / "token").write_text(
            token_of(sub="boss@pool.example.org", iss="pool.example.org")
        )
        env = (await overlay.bootstrap(ORDER)).env
    assert (env["DRONE_ORDERS_FROM"], env["DRONE_ORDER_S"]) == ("boss@pool.example.org", "2")


def test_only_an_identity_of_the_pool_itself_is_obeyed(tmp_path: Path) -> None:
    directory = client_directory(options(tmp_path))
    ours = {"iss": "pool.example.org"}
    claims = (
        {"sub": "boss@pool.example.org", "iss": "elsewhere"},
        {"sub": 'x", "y@pool.example.org', **ours},
        ours,
    )
    for token in ("not a token", *(token_of(**each) for each in claims)):
        (tmp_path / "token").write_text(token)
        assert directory.identities("pool.example.org") == (), token
    directory.close()


async def test_drones_on_their_way_ask_less_often_too(tmp_path: Path) -> None:
    """Only those in the pool counted: a thousand drones started one after the other all asked every 10 s."""

    async def asks_every(serial: int) -> str:
        order = replace(ORDER, drone_id=DroneId(f"kit-{serial}"))
        return (await overlay.bootstrap(order)).env["DRONE_ORDER_S"]

    assert [read_every_s(drones) for drones in (0, 100, 500, 5000)] == [2.0, 2.0, 10.0, 100.0]
    async with HTCondorOverlay(options(tmp_path), "kit") as overlay:
        (tmp_path / "token").write_text(
            token_of(sub="boss@pool.example.org", iss="pool.example.org")
        )
        assert {await asks_every(serial) for serial in range(200)} == {"2"}, (
            "those of one tick are alike"
        )
        overlay._count_readers({DroneId(f"kit-{serial}") for serial in range(100)})
        assert await asks_every(200) == "4"
        overlay._count_readers({DroneId(f"kit-{serial}") for serial in range(201)})
        assert (await asks_every(201), len(overlay._admitted)) == ("4", 1)


async def test_the_same_order_keeps_its_number_and_another_gets_a_new_one(tmp_path: Path) -> None:
    """A clock that was set back must not make a new order look like the last one."""
    directory = client_directory(options(tmp_path))
    orders = DrainOrders("pool.example.org:9618", "pool.example.org", directory)
    later = time.time_ns() // 1_000_000 + 10**9
    orders._standing[ONE] = (later, DrainMode.PEACEFUL)
    assert orders._order(ONE, DrainMode.PEACEFUL) == (later, DrainMode.PEACEFUL)
    assert orders._order(ONE, DrainMode.RESUME) == (later + 1, DrainMode.RESUME)
    directory.close()
