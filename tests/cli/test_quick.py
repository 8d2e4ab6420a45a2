"""``provisioner drones`` without the parser of options says what it says with it, and leaves to it what is odd."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from provisioner.cli import process
from provisioner.cli.quick import quick
from tests.cli.conftest import NOW, Cli

PLAIN = (
    [],
    ["-o", "json"],
    ["--output=jsonl"],
    ["-o", "yaml", "--all"],
    ["-o", "csv", "--ended"],
    ["-o", "wide", "-a", "--no-color"],
    ["-o", "name", "--sort", "-age_s,id", "-n", "2"],
    ["--columns", "id,state,reason", "--no-header"],
    ["--site", "topas", "--site=horeka", "--state", "busy", "--state", "idle", "--type", "topas/a100"],
    ["--node", "topas-a100-1", "--node=topas-a100-2", "-a"],
    ["--columns", "stat"],
    ["--limit", "0"],
    ["--columns", "id,requested_at", "--local"],
    ["-o", "json", "-o", "name"],
)

ODD = (
    ["--watch"],
    ["--help"],
    ["-ojson"],
    ["-o"],
    ["-o", "xml"],
    ["-o", "--all"],
    ["--all=yes"],
    ["--state", "BUSY"],
    ["--limit", "few"],
    ["--limit=-1"],
    ["show", "1"],
    ["--", "show"],
    ["--sites", "topas"],
    [""],
)


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
def test_both_ways_say_the_same(words: Sequence[str], cli: Cli, record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW + 1.5)
    line = ["drones", *words, "--store", record]
    answered: list[bool] = []
    monkeypatch.setattr(process, "quick", lambda argv: answered.append(True) or quick(argv))
    quickly = cli(*line)
    monkeypatch.setattr(process, "quick", lambda argv: False)
    assert cli(*line) == quickly
    assert answered == [True]


@pytest.mark.parametrize("words", ODD, ids=" ".join)
def test_what_is_odd_is_left_to_the_parser(words: Sequence[str], record: Path) -> None:
    assert quick(["drones", *words]) is False


def test_the_environment_counts_less_than_the_command_line(
    cli: Cli, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVISIONER_STORE", str(record))
    monkeypatch.setenv("PROVISIONER_OUTPUT", "name")
    assert cli("drones").lines == ["kit-ab12-1", "kit-ab12-3", "kit-ab12-4"]
    assert cli("drones", "-o", "csv", "--columns", "id").lines[0] == "id"
    monkeypatch.setenv("PROVISIONER_OUTPUT", "xml")
    assert cli("drones").code == 2
    monkeypatch.setenv("PROVISIONER_OUTPUT", "")
    assert cli("drones").lines[0].startswith("ID ")


def test_the_parser_is_not_loaded(record: Path) -> None:
    program = (
        "import sys; from provisioner.cli import main; code = main(['drones', '-o', 'json']);"
        "slow = {'typer', 'click', 'pydantic', 'yaml', 'sqlalchemy', 'rich'} & set(sys.modules);"
        "sys.exit(code or ', '.join(slow) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PROVISIONER_STORE": str(record)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
