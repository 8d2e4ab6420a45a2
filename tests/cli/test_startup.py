"""Start-up of the command line: options from the environment, and the modules that a list does not load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


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


def test_a_list_loads_no_slow_module(record: Path) -> None:
    program = (
        "import sys; from provisioner.cli import main; code = main(['drones', '-o', 'json']);"
        "slow = {'yaml', 'sqlalchemy', 'rich', 'asyncio'} & set(sys.modules);"
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
