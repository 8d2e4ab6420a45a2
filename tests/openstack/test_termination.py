"""Ends of drones, their exit reports on consoles, and what deleted servers leave behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adapters.openstack.records import Server, ServerAction, ServerFault
from adapters.openstack.termination import (
    MAX_TAIL_BYTES,
    EndedServers,
    EndEvidence,
    GuestExitReport,
    ResourceCleanup,
    end_of,
    exit_report,
    is_deleted,
    leftovers,
    tail,
)
from provisioner.interfaces import UnavailableError
from provisioner.model import DroneId, EndKind, FaultKind, RemoteEnd
from tests.openstack.fake_openstack import Clock, FakeCloud, Nova, busy, connect

NOW = 1_800_000_000.0
US, THEM = "3440e6de", "c0ffee"
SEVEN = DroneId("kit-a1b2-7")
OFF = Server("s1", SEVEN, "SHUTOFF", power=4, created_at=NOW - 900, updated_at=NOW - 20, launched_at=NOW - 600)
DELETED = replace(OFF, status="DELETED", power=1, terminated_at=NOW - 10)
VACATED = GuestExitReport(0, "vacated: SIGTERM")


def did(*actions: tuple[str, str]) -> Sequence[ServerAction]:
    """What was done in this order, as the API tells it: newest first."""
    said = [("create", US), *actions]
    return [ServerAction(what, who, NOW - 100 + n) for n, (what, who) in enumerate(said)][::-1]


def ended(
    server: Server,
    actions: Sequence[ServerAction] | None,
    report: GuestExitReport | None = None,
    *,
    asked: bool = False,
    output: str = "",
    us: str = US,
) -> RemoteEnd:
    return end_of(EndEvidence(server, actions, report, output), asked, us, NOW)


# --------------------------------------------------------------------------------------------------------- by whom


def test_a_drone_that_left_by_itself_is_stopped_by_nova() -> None:
    found = ended(OFF, did(("stop", "")), IDLE, output="boot\n")
    assert found == RemoteEnd(EndKind.EXITED, NOW - 99, 0, IDLE.words)
    assert ended(OFF, did(("stop", "")), GuestExitReport(73, "gpu-check")).exit_code == 73


def test_a_drone_that_left_by_itself_is_then_deleted_by_us() -> None:
    assert ended(DELETED, did(("stop", ""), ("delete", US)), IDLE, asked=True).kind is EndKind.EXITED


def test_our_own_stop_makes_it_say_its_last_word_too() -> None:
    found = ended(OFF, did(("stop", US)), VACATED, asked=True)
    assert (found.kind, found.exit_code, found.message) == (
        EndKind.STOPPED,
        None,
        "stopped on our request: vacated: SIGTERM",
    )


def test_one_that_never_ran_is_told_with_what_kept_it_from_it() -> None:
    never = replace(DELETED, launched_at=0.0, fault=ServerFault(500, "No valid host was found."))
    found = ended(never, did(("delete", US)), asked=True)
    assert (found.kind, found.message) == (EndKind.STOPPED, "stopped on our request: No valid host was found.")
    assert ended(DELETED, did(("delete", US))).kind is EndKind.STOPPED  # asked by the controller before this one


def test_an_operators_stop_makes_it_say_its_last_word_too() -> None:
    found = ended(OFF, did(("stop", THEM)), VACATED)
    assert (found.kind, found.exit_code) == (EndKind.PREEMPTED, None)
    assert found.message == "somebody at the cloud stopped it: stop by user c0ffee"


@pytest.mark.parametrize("action", ["stop", "delete", "suspend", "shelve", "reboot", "rebuild", "resize", "migrate"])
def test_whatever_another_does_that_ends_it_is_a_preemption(action: str) -> None:
    found = ended(DELETED, did((action, THEM)))
    assert (found.kind, found.fault) == (EndKind.PREEMPTED, None)
    assert found.message.endswith(f": {action} by user {THEM}")


def test_who_was_first_counts() -> None:
    assert ended(DELETED, did(("stop", US), ("delete", THEM)), asked=True).kind is EndKind.STOPPED
    assert ended(DELETED, did(("suspend", THEM), ("delete", US)), asked=True).kind is EndKind.PREEMPTED
    assert ended(DELETED, did(("reboot", THEM), ("stop", ""), ("delete", US)), IDLE).kind is EndKind.PREEMPTED


def test_what_was_taken_back_has_ended_nothing() -> None:
    assert ended(OFF, did(("suspend", THEM), ("resume", THEM), ("stop", "")), IDLE).kind is EndKind.EXITED
    assert ended(OFF, did(("pause", THEM), ("unpause", THEM), ("stop", "")), IDLE).kind is EndKind.EXITED
    assert ended(OFF, did(("stop", THEM), ("start", THEM), ("stop", "")), IDLE).kind is EndKind.PREEMPTED


def test_actions_that_end_nothing_are_passed_over() -> None:
    done = did(("attach_volume", THEM), ("live-migration", THEM), ("lock", THEM), ("createImage", THEM), ("stop", ""))
    assert ended(OFF, done, IDLE).kind is EndKind.EXITED


def test_an_evacuation_is_its_hosts_end() -> None:
    found = ended(DELETED, did(("evacuate", THEM), ("delete", US)))
    assert (found.kind, found.fault) == (EndKind.FAULT, FaultKind.NODE)


def test_nobody_is_not_us_before_we_know_who_we_are() -> None:
    assert ended(OFF, did(("stop", "")), IDLE, us="").kind is EndKind.EXITED


# ------------------------------------------------------------------------------------------------- nobody is named


def test_without_records_our_own_request_is_believed() -> None:
    assert ended(DELETED, None, asked=True).kind is EndKind.STOPPED
    assert ended(DELETED, [], VACATED, asked=True).kind is EndKind.STOPPED


@pytest.mark.parametrize("status", ["SUSPENDED", "SHELVED", "SHELVED_OFFLOADED"])
def test_a_state_in_which_only_others_put_it_is_a_preemption(status: str) -> None:
    found = ended(replace(OFF, status=status, power=0), None, VACATED)
    assert (found.kind, found.message.startswith("it was s")) == (EndKind.PREEMPTED, True)


def test_its_last_word_is_believed_before_what_its_server_became() -> None:
    failed = replace(OFF, status="ERROR", fault=ServerFault(500, "libvirt has gone"))
    assert ended(failed, None, IDLE).exit_code == 0
    found = ended(failed, did())
    assert (found.kind, found.fault, found.message) == (EndKind.FAULT, FaultKind.NODE, "libvirt has gone")


@pytest.mark.parametrize("actions", [None, did(("stop", ""))])
def test_a_guest_that_went_off_without_a_word(actions: Sequence[ServerAction] | None) -> None:
    found = ended(OFF, actions, output="[   12.0] Kernel panic\n")
    assert (found.kind, found.fault) == (EndKind.FAULT, FaultKind.NODE)


def test_a_console_that_nobody_can_read_accuses_nobody() -> None:
    found = ended(OFF, did(("stop", "")))
    assert (found.kind, found.exit_code, found.fault) == (EndKind.EXITED, None, None)


def test_a_guest_that_crashed() -> None:
    for server in (replace(OFF, power=6), replace(OFF, status="ACTIVE", power=6)):
        found = ended(server, did(("stop", "")) if server.status == "SHUTOFF" else did())
        assert (found.kind, found.fault, found.message) == (EndKind.FAULT, FaultKind.NODE, "its guest has crashed")


def test_one_that_is_gone_and_nobody_says_why() -> None:
    found = ended(DELETED, None)
    assert (found.kind, found.fault, found.message) == (EndKind.FAULT, FaultKind.UNKNOWN, "deleted by somebody")
    by_itself = ended(DELETED, did(("delete", "")))
    assert (by_itself.kind, by_itself.message) == (EndKind.FAULT, "its cloud itself deleted it")


def test_when_it_ended() -> None:
    assert ended(DELETED, did(("delete", US))).at == NOW - 99
    assert ended(DELETED, None).at == NOW - 10
    assert ended(OFF, None).at == NOW - 20
    assert ended(replace(OFF, updated_at=NOW + 900), None).at == NOW  # its clock is ahead
    assert ended(replace(OFF, updated_at=0.0), None).at == NOW


def test_what_is_told_is_one_printable_line() -> None:
    found = ended(OFF, did(("stop", "\x1b[2J" * 100)), GuestExitReport(1, "x\n" * 500))
    assert found.message.isprintable() and len(found.message) <= 300


# ------------------------------------------------------------------------------------------------------ remembering


def test_who_is_gone_is_told_by_the_record_or_by_our_own_request() -> None:
    assert is_deleted(DELETED, [], False)
    assert is_deleted(replace(OFF, status="ACTIVE"), did(("delete", THEM)), False)
    assert not is_deleted(replace(OFF, status="ACTIVE"), did(), True)
    built = replace(OFF, status="BUILD", launched_at=0.0)
    assert is_deleted(built, [], True)
    assert not is_deleted(built, [], False)


def test_an_end_once_made_out_stands() -> None:
    ends = EndedServers(600.0)
    first = ends.determine(SEVEN, EndEvidence(OFF, did(("stop", "")), IDLE), US, NOW)
    ends.ask([SEVEN])
    assert ends.determine(SEVEN, EndEvidence(DELETED), US, NOW + 60) is first
    assert (ends.known, list(ends.asked)) == ({SEVEN: first}, [])


def test_what_was_asked_for_decides_where_nothing_else_is_known() -> None:
    ends = EndedServers(600.0)
    ends.ask([SEVEN])
    assert ends.determine(SEVEN, EndEvidence(DELETED), US, NOW).kind is EndKind.STOPPED
    other = DroneId("kit-a1b2-8")
    ends.ask([other])
    ends.unasked(other)
    assert ends.determine(other, EndEvidence(DELETED), US, NOW).kind is EndKind.FAULT


def test_ends_are_kept_for_as_long_as_their_servers_are_and_a_while_more() -> None:
    clock = Clock()
    ends = EndedServers(600.0, clock)
    ends.ask([SEVEN, DroneId("kit-a1b2-9")])
    ends.determine(SEVEN, EndEvidence(OFF, did(), IDLE), US, NOW)
    for _ in range(5):
        clock.now += 500
        ends.forget([SEVEN])
    assert SEVEN in ends.known
    clock.now += 500
    ends.forget([])
    assert SEVEN in ends.known
    clock.now += 101
    ends.forget([])
    assert ends.known == {}
    assert len(ends.asked) == 2
    clock.now += 86400
    ends.forget([SEVEN])
    assert list(ends.asked) == [SEVEN]


ID = DroneId("kit-ab12-7")
OUTCOME = "drone=kit-ab12-7 exit=0 reason=idle jobs_started=3 seconds=1423 why=no%20claim%20for%20600%20s"
LINE = f"=== drone {ID} exit=0 {OUTCOME} ==="
IDLE = GuestExitReport(0, "idle: no claim for 600 s")
TOKEN = "eyJhbGciOiJIUzI1NiIsImtpZCI6IlBPT0wifQ.eyJpYXQiOjE3MDAwMDAwMDAsInN1YiI6ImRyb25lIn0.c2lnbmF0dXJlLW9mLWl0"


@pytest.mark.parametrize(
    "console",
    [
        LINE,
        f"boot\r\n{LINE}\r\r\n",
        f"[   52.123456] sh[812]: {LINE}\n[   53.0] reboot: Power down\n",
        f"[  OK  ] Reached target\x1b[0m\n\x1b[1;31m{LINE}\x1b[0m  \n",
        f"{LINE}\n=== drone {ID} exit=0 reason=[   52.1] nvidia: kernel speaks\nidle ===\n",
        f"old\r{LINE}\n",
    ],
)
def test_it_is_found(console: str) -> None:
    assert exit_report(console, ID) == IDLE


@pytest.mark.parametrize(
    "console",
    [
        "",
        "Debian GNU/Linux 12 drone ttyS0\n\nlogin: ",
        LINE.replace(ID, "kit-ab12-77"),
        LINE.replace(f"drone {ID}", "drone kitxab12-7"),
        LINE.removesuffix(" ==="),
        f"| {LINE}",  # in a log that was shown
        f"drone: the job says {LINE}",
        f"=== drone {ID} exit=12345 x ===",
    ],
)
def test_it_is_not_made_up(console: str) -> None:
    assert exit_report(console, ID) is None


def test_the_last_one_counts() -> None:
    other = f"=== drone {ID} exit=74 reason=master-died why=it%20%1b[31mdied ==="
    assert exit_report(f"{LINE}\n{other}\n", ID) == GuestExitReport(74, "master-died: it ?[31mdied")
    assert exit_report(f"{other}\n{LINE}\n", ID) == IDLE


def test_words_of_the_guest_itself_are_as_they_are() -> None:
    line = f"=== drone {ID} exit=69 the setup script failed (exit status 3) ==="
    assert exit_report(line, ID) == GuestExitReport(69, "the setup script failed (exit status 3)")


def test_no_words_are_too_long_or_hold_a_token() -> None:
    found = exit_report(f"=== drone {ID} exit=73 reason=not-joined why=token%20{TOKEN} {'x' * 5000} ===", ID)
    assert found == GuestExitReport(73, "not-joined: token (token)")
    long = exit_report(f"=== drone {ID} exit=1 {'x' * 5000} ===", ID)
    assert long is not None
    assert len(long.words) <= 300


def test_people_see_the_last_lines_plain_and_without_tokens() -> None:
    console = f"first\n\x1b[32mgreen\x1b[0m\ttab\r\n\n  bell\x07 {TOKEN}!\n\udc80\n"
    assert tail(console, 3) == "green tab\n  bell? (token)!\n?"
    assert tail(console, 1) == "?"
    assert tail(console, 0) == ""


def test_what_people_see_is_never_large() -> None:
    assert len(tail("é" * 10**6, 100).encode()) <= MAX_TAIL_BYTES
    shown = tail("\n".join(f"{n} " + "é" * 500 for n in range(1000)), 1000)
    assert len(shown.encode()) <= MAX_TAIL_BYTES
    assert shown.splitlines()[-1].startswith("999 ")
    assert shown.split(" ")[0].isdigit()  # whole lines


def gone(server_id: str = "s1", status: str = "DELETED", *volumes: str) -> Server:
    return Server(server_id, "kit-a-1", status, volumes=volumes)


def port(port_id: str, server: str = "s1", owner: str = "compute:nova") -> dict[str, Any]:
    return {"id": port_id, "device_id": server, "device_owner": owner}


def test_only_what_was_a_drones_and_is_free_is_left_behind() -> None:
    ports = {"ours": "s1", "another's": "s9", "nobody's": ""}
    volumes = {"booted": "available", "failed": "error_deleting", "in-use": "in-use", "goes": "deleting"}
    volumes["a-person's"] = "available"
    server = gone("s1", "DELETED", "booted", "failed", "in-use", "goes")
    assert leftovers({"s1": server}, ports, volumes) == (["ours"], ["booted", "failed"])
    assert leftovers({}, ports, volumes) == ([], [])


def test_without_a_deleted_server_nobody_is_asked() -> None:
    cleanup = ResourceCleanup(600.0, Clock())
    assert not cleanup.due({})
    assert not cleanup.due({"s1": gone(status="ACTIVE")}), "merely not listed"
    assert cleanup.due({"s1": gone()})
    assert not ResourceCleanup(0.0, Clock()).due({"s1": gone()}), "0: never"


async def test_it_cleans_up_now_and_again_until_it_is_late_enough(fake: FakeCloud, nova: Nova) -> None:
    clock = Clock()
    cleanup = ResourceCleanup(600.0, clock)
    seen = {"s1": gone("s1", "DELETED", "v1")}
    fake.lists["ports"] = [port("p1"), port("p9", "s9")]
    fake.lists["volumes"] = [{"id": "v1", "status": "detaching"}, {"id": "v9", "status": "available"}]
    assert cleanup.due(seen)
    await cleanup.run(nova)
    assert left(fake) == ["p9", "v1", "v9"]
    assert not cleanup.due(seen)
    fake.lists["volumes"][0]["status"] = "available"
    clock.now += 601
    assert cleanup.due(seen), "Cinder was late"
    await cleanup.run(nova)
    assert left(fake) == ["p9", "v9"]
    clock.now += 601
    assert not cleanup.due(seen), "it is enough"
    assert not cleanup.due({})
    assert cleanup.due({"s2": gone("s2")})


async def test_one_that_failed_is_tried_again_soon(fake: FakeCloud) -> None:
    clock = Clock()
    cleanup = ResourceCleanup(600.0, clock)
    fake.lists["ports"] = [port("p1")]
    fake.fail("/network", busy)
    async with connect(fake, deadline_s=0.2) as nova:
        assert cleanup.due({"s1": gone()})
        with pytest.raises(UnavailableError):
            await cleanup.run(nova)
        fake.heal()
        clock.now += 61
        assert cleanup.due({"s1": gone()})
        await cleanup.run(nova)
        assert left(fake) == []


def left(fake: FakeCloud) -> list[str]:
    return [each["id"] for each in (*fake.lists["ports"], *fake.lists["volumes"])]
