"""The end of a drone is read off its server's console, whatever else is there."""

from __future__ import annotations

import pytest

from adapters.openstack.termination import MAX_TAIL_BYTES, GuestExitReport, exit_report, tail
from provisioner.model import DroneId

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
