"""Drones of the local site under an account of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from adapters.local.account import DroneAccount
from tests.labs.accounts import CONTROLLER_ID, DRONES, DRONES_ID, run_as_controller
from tests.local.drones import all_tagged, config as site_config


def processes_of(uid: int) -> list[str]:
    """Return the command lines of the processes of an account."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.stat().st_uid == uid:
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found += [command] if command else []  # a zombie has none
        except OSError:
            continue
    return found


def test_a_drone_of_another_account_sees_no_secret_and_leaves_nothing() -> None:
    # Other runs of pytest on this host close the directories above `tmp_path`.
    with tempfile.TemporaryDirectory(prefix="accounts-") as name:
        place = Path(name)
        root = place / "drones"
        root.mkdir(mode=0o711)
        for path in (root, place):
            path.chmod(0o711)
            os.chown(path, CONTROLLER_ID, CONTROLLER_ID)
        command = [sys.executable, "-m", "tests.local.account_story", str(root), DRONES]
        done = run_as_controller(place, command, CONTROLLER_TOKEN="SECRET-OF-CONTROLLER")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{DRONES}\nacc" in done.stdout and "TOKEN" in done.stdout, done.stdout
    assert "0 secrets seen" in done.stdout, done.stdout
    assert processes_of(DRONES_ID) == processes_of(CONTROLLER_ID) == []
    assert not all_tagged("acc")


def test_an_account_that_cannot_be_used_is_told_with_the_repair(tmp_path: Path) -> None:
    assert "useradd --system no-such-account" in DroneAccount("no-such-account").check(tmp_path)


def test_only_the_drone_account_may_be_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="account"):
        site_config(tmp_path, account="root; id")


def test_the_launcher_is_valid_shell() -> None:
    launcher = Path(__file__).parents[2] / "adapters" / "local" / "launcher.sh"
    assert subprocess.run(["sh", "-n", launcher], capture_output=True).returncode == 0
