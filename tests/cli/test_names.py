"""The hidden verb of the shells' completion, and the version."""

from __future__ import annotations

from pathlib import Path

import pytest

import provisioner
from provisioner.cli.__main__ import _commit
from tests.cli.conftest import Cli, process


def test_names_on_record_of_each_kind(
    cli: Cli, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVISIONER_STORE", str(record))
    assert "kit-ab12-1" in cli("names", "drones").lines
    assert cli("names", "sites").lines == ["topas", "horeka"]
    assert cli("names", "types").lines == ["topas/a100", "horeka/h100"]
    assert cli("names", "classes").lines == ["7", "9", "11"]
    assert {"204.0", "204.3", "207.1"} < set(cli("names", "jobs").lines)


def test_the_record_is_found_by_the_configuration(cli: Cli, record: Path, tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(f"store: {{path: {record.name}}}\nsites: !odd []\n")
    assert cli("names", "sites", "--config", tmp_path / "pool.yaml").lines == []
    (tmp_path / "pool.yaml").write_text(f"store: {{path: {record.name}}}\nunknown: key\n")
    assert cli("names", "sites", "--config", tmp_path / "pool.yaml").lines == ["topas", "horeka"]


@pytest.mark.parametrize("store", ["none.db", "text.db"])
def test_a_shell_is_not_disturbed_where_there_is_no_record(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    (tmp_path / "text.db").write_text("no store")
    monkeypatch.setenv("PROVISIONER_STORE", store)
    ran = cli("names", "drones")
    assert (ran.code, ran.out.strip(), ran.err) == (0, "", "")


def test_the_help_does_not_list_the_verb(cli: Cli) -> None:
    assert "names" not in cli("--help").out.split()


def test_the_version_names_the_commit(tmp_path: Path) -> None:
    package = tmp_path / "provisioner"
    package.mkdir()
    assert _commit(package) == "", "a package of unknown origin"
    (package / "COMMIT").write_text("0123abcd\n")
    assert _commit(package) == "0123abcd"
    shown = process("--version").stdout
    commit = _commit(Path(provisioner.__file__).parent)
    assert (
        shown
        == " ".join([provisioner.__version__, *([f"(commit {commit})"] if commit else [])]) + "\n"
    )
