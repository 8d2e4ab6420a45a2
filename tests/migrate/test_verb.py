"""`provisioner import` on the command line: what it writes, shows and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from provisioner.answers.errors import Exit
from provisioner.answers.schemas import output_schemas
from provisioner.cli.__main__ import run_verb
from tests.migrate.examples import COBALD, GPU_JDL, HTCONDOR, WHOLE_JDL

FILES = ["provisioner.yaml", "site_configs/topas.yaml"]


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the old configuration; we are elsewhere."""
    directory = tmp_path / "old"
    directory.mkdir()
    for name, text in (
        ("tardis.yml", HTCONDOR),
        ("cobald.yml", COBALD),
        ("gpu.jdl", GPU_JDL),
        ("whole.jdl", WHOLE_JDL),
    ):
        (directory / name).write_text(text)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("PROVISIONER_OUTPUT", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return directory


def run(*words: str | Path) -> int:
    return int(run_verb([str(w) for w in ("import", *words)]))


def made(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


def test_cobalds_file_alone_is_answered_with_the_right_call(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(old / "cobald.yml", "--to", "new") == Exit.UNMET
    err = capsys.readouterr().err
    assert f"`provisioner import {old / 'tardis.yml'} --cobald {old / 'cobald.yml'}`" in err
    assert not Path("new").exists()


def test_json_has_every_finding_and_keeps_to_its_schema(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(old / "tardis.yml", "--to", "new", "-o", "json") == Exit.UNMET
    tree = json.loads(capsys.readouterr().out)
    jsonschema.validate(tree, output_schemas()[tree["schema"]], cls=jsonschema.Draft202012Validator)
    (quota,) = [item for item in tree["items"] if item["key"] == "Sites[0].quota"]
    assert (quota["file"], quota["line"], quota["verdict"]) == (
        str(old / "tardis.yml"),
        11,
        "changed",
    )
    assert quota["ours"] == "site_configs/topas.yaml: limits.max_drones"


def test_nothing_is_written_over_unless_told(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("site_configs").mkdir()
    Path("site_configs/topas.yaml").write_text("mine")
    assert run(old / "tardis.yml") == Exit.FAILED
    assert "site_configs/topas.yaml exists already" in capsys.readouterr().err
    assert made(Path(".")) == ["site_configs/topas.yaml"]
    assert Path("site_configs/topas.yaml").read_text() == "mine"
    assert run(old / "tardis.yml", "--force") == Exit.UNMET
    assert made(Path(".")) == FILES
    assert Path("site_configs/topas.yaml").read_text().startswith("# yaml-language-server")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"Sites: [a\n", "tardis.yml:1:8: unclosed `[`"),
        (b"a: \xff\n", "tardis.yml:1:4: byte 0xff is not UTF-8"),
        (None, "no such file"),
    ],
)
def test_what_cannot_be_read_is_refused_and_nothing_is_written(
    content: bytes | None, words: str, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (old / "tardis.yml").unlink()
    if content is not None:
        (old / "tardis.yml").write_bytes(content)
    assert run(old / "tardis.yml", "--to", "new") == Exit.UNMET
    out, err = capsys.readouterr()
    assert words in err and "nothing is written" in err
    assert out == "" and not Path("new").exists()


def test_templates_are_found_where_tardis_was_started(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("gpu.jdl", "whole.jdl"):
        (old / name).rename(Path(name))
    run(old / "tardis.yml", "--to", "new", "-o", "name")
    assert "accounting_group" in capsys.readouterr().out.splitlines()
