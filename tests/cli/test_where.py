"""The light look at a configuration: ``store.path`` is found, and no file stops the verb that looks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provisioner.answers.errors import Exit, VerbError
from provisioner.cli.options import Where, store_path
from tests.cli.conftest import Cli, process


def _path(tmp_path: Path, text: str) -> Path:
    config = tmp_path / "c.yaml"
    config.write_text(text)
    return store_path(Where(config=config))


@pytest.mark.parametrize(
    "text",
    [
        "store: {path: s.db}",
        "base: &b {path: s.db}\nstore: *b",
        "base: &b {path: s.db}\nstore: {<<: *b, keep: 1d}",
        "base: &b {store: {path: s.db}}\n<<: [*b]",
    ],
)
def test_the_path_is_found_where_yaml_puts_it(tmp_path: Path, text: str) -> None:
    assert _path(tmp_path, text) == tmp_path / "s.db"


@pytest.mark.parametrize("text", ["", "store: 5", "store: {path: [a]}", "store: [", "\x00"])
def test_a_configuration_without_a_path_says_so(tmp_path: Path, text: str) -> None:
    with pytest.raises(VerbError, match="no `store"):
        _path(tmp_path, text)


MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 12)
)
"""Merges of merges: 10 to the power of 11 mappings in 500 bytes."""


def test_merges_of_merges_are_not_multiplied(tmp_path: Path) -> None:
    with pytest.raises(VerbError, match="too large"):
        _path(tmp_path, MERGES + "store: {<<: *a11, path: s.db}\n")


@pytest.mark.parametrize(
    ("part", "times"), [("[", 100_000), ("{b: ", 100_000), ("- ", 100_000), ("#", 5_000_000)]
)
def test_no_file_ends_a_verb_with_a_crash(tmp_path: Path, part: str, times: int) -> None:
    """PyYAML's C code overflowed the stack: the verb died of SIGSEGV."""
    config = tmp_path / "c.yaml"
    config.write_text("a:\n  " + part * times)
    ran = process("status", "--config", config)
    assert ran.returncode == Exit.UNMET, ran.stderr
    assert re.search("nested too deeply|larger than", ran.stderr)


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
