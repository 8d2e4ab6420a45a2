"""Tokens, keys and certificates: what is wrong with one is in status, metrics, log and plan within one tick."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provisioner import app
from tests.cli.conftest import Cli
from tests.htcondor_overlay.test_idtoken import CONTROLLER, DRONE, token, written


def troubles_after_a_tick(path: Path, cli: Cli) -> list[tuple[str, str, str]]:
    """Return severity, subject and text of each trouble that names a credential, after one tick of the controller."""
    assert asyncio.run(app.run(path, once=True)) == 0
    found = json.loads(
        cli("status", "-o", "json", "--store", str(path.parent / "provisioner.db")).out
    )["troubles"]
    return [
        (each["severity"], each["subject"], each["text"])
        for each in found
        if each["text"].startswith("`")
    ]


SOON = int(time.time()) + 3 * 86400


@pytest.mark.parametrize(
    ("drone", "severity", "words"),
    [
        (
            token(**DRONE, exp=1_700_000_000),
            "critical",
            "drone@pool.test expired at 2023-11-14T22:13:20Z",
        ),
        (token(**DRONE, exp=SOON), "warning", "drone@pool.test expires at "),
        (
            token(**DRONE | {"iss": "other.test"}),
            "critical",
            "issuer is other.test, not `trust_domain` pool.test",
        ),
        ("garbage", "critical", "no IDTOKEN: "),
        (None, "critical", "cannot be read: No such file or directory"),
        (token(**DRONE), "", ""),
    ],
    ids=["expired", "soon", "foreign", "garbage", "removed", "good"],
)
def test_a_drone_token_is_a_trouble_of_the_running_controller(
    tmp_path: Path, cli: Cli, drone: str | None, severity: str, words: str
) -> None:
    path = written(tmp_path, token(**CONTROLLER), drone or "")
    if drone is None:
        (tmp_path / "drone.token").unlink()
    found = troubles_after_a_tick(path, cli)
    assert [(each[0], each[1]) for each in found] == ([(severity, "overlay")] if severity else [])
    assert all(text.startswith("`drone_token`: ") and words in text for _, _, text in found)
    assert all("signature" not in text for _, _, text in found)


def test_a_reload_tells_of_a_dead_token(tmp_path: Path) -> None:
    """It used to accept the configuration without a message about the token."""
    path = written(tmp_path, token(**CONTROLLER), token(**DRONE, exp=1_700_000_000))
    program = (sys.executable, "-m", "provisioner.cli")
    store = str(tmp_path / "provisioner.db")
    with (tmp_path / "log").open("wb") as log:
        controller = subprocess.Popen(
            [*program, "run", str(path)], stderr=log, env={**os.environ, "TZ": "UTC"}
        )
    try:
        while (
            controller.poll() is None
            and b"controller.started" not in (tmp_path / "log").read_bytes()
        ):
            time.sleep(0.05)
        done = subprocess.run(
            [*program, "reload", "--store", store], capture_output=True, text=True, timeout=60
        )
    finally:
        controller.terminate()
        controller.wait(60)
    assert done.returncode == 0, done.stderr
    assert (
        "uses the new configuration" in done.stderr
        and "drone@pool.test expired at 2023-11-14T22:13:20Z" in done.stderr
    )


def test_status_lists_every_credential_with_its_source(tmp_path: Path, cli: Cli) -> None:
    path = written(tmp_path, token(**CONTROLLER, exp=SOON), token(**DRONE))
    assert asyncio.run(app.run(path, once=True)) == 0
    found = json.loads(
        cli("status", "-o", "json", "--store", str(tmp_path / "provisioner.db")).out
    )["credentials"]
    ours, drones = found
    assert (ours["used_by"], ours["name"], ours["identity"]) == (
        "overlay",
        "token",
        "provisioner@pool.test",
    )
    assert ours["not_after"] == SOON and ours["source"] == f"file {tmp_path}/controller.token"
    assert (
        drones["scopes"] == ["ADVERTISE_MASTER", "ADVERTISE_STARTD", "READ"]
        and drones["not_after"] is None
    )
