"""Ends of drones, their exit reports on consoles, and what deleted servers leave behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adapters.openstack.servers import Server, ServerAction, ServerFault
from adapters.openstack.termination import (
    MAX_TAIL_BYTES,
    GuestExitReport,
    ResourceCleanup,
    end_of,
    exit_report,
    tail,
)
from provisioner.model import DroneId, EndKind, FaultKind, RemoteEnd
from tests.openstack.fake_openstack import PROJECT, Clock, FakeCloud, Nova

NOW = 1_800_000_000.0
US, THEM = "3440e6de", "c0ffee"
SEVEN = DroneId("kit-a1b2-7")
OFF = Server(
    "s1",
    SEVEN,
    "SHUTOFF",
    power=4,
    created_at=NOW - 900,
    updated_at=NOW - 20,
    launched_at=NOW - 600,
)
DELETED = replace(OFF, status="DELETED", power=1, terminated_at=NOW - 10)
VACATED = GuestExitReport(0, "vacated: SIGTERM")


def did(*actions: tuple[str, str]) -> Sequence[ServerAction]:
    """What was done in this order, as the API tells it: newest first."""
    said = [("create", US), *actions]
    return [ServerAction(what, who, NOW - 100 + n) for n, (what, who) in enumerate(said)][::-1]


def ended(
    server: Server,
    actions: Sequence[ServerAction],
    report: GuestExitReport | None = None,
    asked: bool = False,
    output: str = "",
) -> RemoteEnd:
    return end_of(server, actions, report, output, asked=asked, our_user=US, now=NOW)


ID = DroneId("kit-ab12-7")
OUTCOME = (
    "drone=kit-ab12-7 exit=0 reason=idle jobs_started=3 seconds=1423 why=no%20claim%20for%20600%20s"
)
LINE = f"=== drone {ID} exit=0 {OUTCOME} ==="
IDLE = GuestExitReport(0, "idle: no claim for 600 s")
TOKEN = "eyJhbGciOiJIUzI1NiIsImtpZCI6IlBPT0wifQ.eyJpYXQiOjE3MDAwMDAwMDAsInN1YiI6ImRyb25lIn0.c2lnbmF0dXJlLW9mLWl0"


FAULT, EXITED, STOPPED, PREEMPTED = (
    EndKind.FAULT,
    EndKind.EXITED,
    EndKind.STOPPED,
    EndKind.PREEMPTED,
)
BY_NOVA, BY_US = ("stop", ""), ("delete", US)
FAILED = replace(OFF, status="ERROR", fault=ServerFault(500, "libvirt has gone"))
NEVER_RAN = replace(DELETED, launched_at=0.0, fault=ServerFault(500, "No valid host was found."))


@pytest.mark.parametrize(
    ("server", "actions", "report", "more", "told"),
    [
        # it left by itself: Nova stops its server, and then we delete it
        (OFF, did(BY_NOVA), IDLE, {"output": "boot\n"}, (EXITED, 0, None, IDLE.words)),
        (DELETED, did(BY_NOVA, BY_US), IDLE, {"asked": True}, (EXITED, 0, None, IDLE.words)),
        # a stop makes it say its last word, too
        (
            OFF,
            did(("stop", US)),
            VACATED,
            {"asked": True},
            (STOPPED, None, None, ": vacated: SIGTERM"),
        ),
        (OFF, did(("stop", THEM)), VACATED, {}, (PREEMPTED, None, None, ": stop by user c0ffee")),
        (
            NEVER_RAN,
            did(BY_US),
            None,
            {"asked": True},
            (STOPPED, None, None, "No valid host was found."),
        ),
        # whoever was first counts
        *(
            (
                DELETED,
                did((action, THEM)),
                None,
                {},
                (PREEMPTED, None, None, f": {action} by user {THEM}"),
            )
            for action in ("delete", "shelve", "rebuild", "migrate")
        ),
        (
            DELETED,
            did(("stop", US), ("delete", THEM)),
            None,
            {"asked": True},
            (STOPPED, None, None, ""),
        ),
        (
            DELETED,
            did(("suspend", THEM), BY_US),
            None,
            {"asked": True},
            (PREEMPTED, None, None, ""),
        ),
        (DELETED, did(("evacuate", THEM), BY_US), None, {}, (FAULT, None, FaultKind.NODE, "")),
        # what was taken back has ended nothing, and other actions end nothing
        (OFF, did(("suspend", THEM), ("resume", THEM), BY_NOVA), IDLE, {}, (EXITED, 0, None, "")),
        # nobody is named: our own request is believed, then the state, then the last word, then the
        # server
        (DELETED, (), None, {"asked": True}, (STOPPED, None, None, "")),
        *(
            (replace(OFF, status=status, power=0), (), VACATED, {}, (PREEMPTED, None, None, ""))
            for status in ("SUSPENDED", "SHELVED_OFFLOADED")
        ),
        (FAILED, did(), None, {}, (FAULT, None, FaultKind.NODE, "libvirt has gone")),
        (OFF, (), None, {"output": "Kernel panic\n"}, (FAULT, None, FaultKind.NODE, "")),
        # a console that nobody can read accuses nobody
        (OFF, did(BY_NOVA), None, {}, (EXITED, None, None, "")),
        (
            replace(OFF, power=6),
            did(BY_NOVA),
            None,
            {},
            (FAULT, None, FaultKind.NODE, "its guest has crashed"),
        ),
        (DELETED, (), None, {}, (FAULT, None, FaultKind.UNKNOWN, "deleted by somebody")),
    ],
)
def test_how_it_ended(
    server: Server,
    actions: Any,
    report: GuestExitReport | None,
    more: dict[str, Any],
    told: tuple[Any, ...],
) -> None:
    found = ended(server, actions, report, **more)
    *what, words = told
    assert [found.kind, found.exit_code, found.fault] == what
    assert found.message.endswith(words)


def test_when_it_ended() -> None:
    assert ended(DELETED, did(("delete", US))).at == NOW - 99
    assert ended(DELETED, ()).at == NOW - 10
    assert ended(OFF, ()).at == NOW - 20
    assert ended(replace(OFF, updated_at=NOW + 900), ()).at == NOW  # its clock is ahead


@pytest.mark.parametrize(
    ("console", "found"),
    [
        (LINE, IDLE),
        (f"[   52.123456] sh[812]: {LINE}\r\n[   53.0] reboot: Power down\n", IDLE),
        (f"{LINE}\n=== drone {ID} exit=0 reason=[   52.1] nvidia: kernel speaks\nidle ===\n", IDLE),
        (f"=== drone {ID} exit=74 reason=master-died why=it%20%1b[31mdied ===\n{LINE}\n", IDLE),
        (
            f"{LINE}\n=== drone {ID} exit=7 reason=x why=it%20%1b[31mdied ===",
            GuestExitReport(7, "x: it ?[31mdied"),
        ),
        ("", None),
        (LINE.replace(ID, "kit-ab12-77"), None),
        (LINE.removesuffix(" ==="), None),
        (f"| {LINE}", None),  # in a log that was shown
        (f"=== drone {ID} exit=12345 x ===", None),
    ],
)
def test_it_is_found_and_not_made_up(console: str, found: GuestExitReport | None) -> None:
    assert exit_report(console, ID) == found


def test_no_words_are_too_long_or_hold_a_token() -> None:
    found = exit_report(
        f"=== drone {ID} exit=73 reason=not-joined why=token%20{TOKEN} {'x' * 5000} ===", ID
    )
    assert found == GuestExitReport(73, "not-joined: token (token)")


def test_people_see_the_last_lines_plain_short_and_without_tokens() -> None:
    console = f"first\n\x1b[32mgreen\x1b[0m\ttab\r\n\n  bell\x07 {TOKEN}!\n\udc80\n"
    assert (tail(console, 3), tail(console, 0)) == ("green tab\n  bell? (token)!\n?", "")
    shown = tail("\n".join(f"{n} " + "é" * 500 for n in range(1000)), 1000)
    assert len(shown.encode()) <= MAX_TAIL_BYTES
    assert shown.splitlines()[-1].startswith("999 ")
    assert shown.split(" ")[0].isdigit()  # whole lines


def gone(server_id: str = "s1", status: str = "DELETED", *volumes: str) -> Server:
    return Server(server_id, "kit-a-1", status, volumes=volumes)


def port(port_id: str, server: str = "s1", owner: str = "compute:nova") -> dict[str, Any]:
    return {"id": port_id, "device_id": server, "device_owner": owner}


def test_without_a_deleted_server_nobody_is_asked() -> None:
    cleanup = ResourceCleanup(600.0, Clock())
    assert not cleanup.due({})
    assert not cleanup.due({"s1": gone(status="ACTIVE")}), "merely not listed"
    assert cleanup.due({"s1": gone()})
    assert not ResourceCleanup(0.0, Clock()).due({"s1": gone()}), "0: never"


async def test_it_cleans_up_now_and_again_until_it_is_late_enough(
    fake: FakeCloud, nova: Nova
) -> None:
    clock = Clock()
    cleanup = ResourceCleanup(600.0, clock)
    seen = {"s1": gone("s1", "DELETED", "v1", "v2", "v3")}
    fake.lists["ports"] = [
        port("p1", owner="compute:az-2"),
        port("p9", "s9"),
        port("p8", owner="network:dhcp"),
    ]
    fake.lists["volumes"] = [
        {"id": "v1", "status": "detaching"},
        {"id": "v9", "status": "available"},
    ]
    fake.lists["volumes"] += [
        {"id": "v2", "status": "error_deleting"},
        {"id": "v3", "status": "in-use"},
    ]
    assert cleanup.due(seen)
    await cleanup.run(nova)
    assert left(fake) == ["p9", "p8", "v1", "v9", "v3"], "only what was a drone's and is free"
    assert any("/ports?" in each and f"project_id={PROJECT}" in each for each in fake.asked), (
        "an admin sees all ports"
    )
    assert not cleanup.due(seen)
    fake.lists["volumes"][0]["status"] = "available"
    clock.now += 601
    assert cleanup.due(seen), "Cinder was late"
    await cleanup.run(nova)
    assert left(fake) == ["p9", "p8", "v9", "v3"]
    clock.now += 601
    assert not cleanup.due(seen), "it is enough"
    assert not cleanup.due({})
    assert cleanup.due({"s2": gone("s2")})


def left(fake: FakeCloud) -> list[str]:
    return [each["id"] for each in (*fake.lists["ports"], *fake.lists["volumes"])]
