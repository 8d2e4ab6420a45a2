"""Configurations of the kinds that TARDIS's documentation shows, in ``tardis/``, and what tests do with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from provisioner.config import Problem
from provisioner.config.strict_yaml import YamlDocument
from provisioner.migrate import ImportFinding, ImportOutcome, ImportResult, ImportSource, convert

TARDIS = Path(__file__).parent / "tardis"
HTCONDOR, SLURM, CLOUDS, OPENSTACK, FAKE, COBALD = (
    (TARDIS / f"{name}.yml").read_text()
    for name in ("htcondor", "slurm", "clouds", "openstack", "fake", "cobald")
)
GPU_JDL, WHOLE_JDL = ((TARDIS / f"{name}.jdl").read_text() for name in ("gpu", "whole"))
JDLS = {"gpu.jdl": GPU_JDL, "whole.jdl": WHOLE_JDL}
ALL = {"htcondor": HTCONDOR, "slurm": SLURM, "clouds": CLOUDS, "openstack": OPENSTACK, "fake": FAKE}


def read(
    text: str,
    cobald: str | None = None,
    *,
    files: Mapping[str, str] | None = None,
    installed: Sequence[str] = ("htcondor", "local"),
) -> tuple[ImportResult | None, list[Problem]]:
    """What comes of ``text``, and what forbids that anything does."""
    documents = [YamlDocument("tardis.yml"), YamlDocument("cobald.yml")]
    made = convert(
        ImportSource(documents[0], text),
        None if cobald is None else ImportSource(documents[1], cobald),
        installed=installed,
        read_file=(JDLS if files is None else files).get,
    )
    return made, [problem for document in documents for problem in document.problems]


def converted(text: str, cobald: str | None = None, **more: object) -> ImportResult:
    made, problems = read(text, cobald, **more)  # type: ignore[arg-type]
    assert problems == []
    assert made is not None
    return made


def about(made: ImportResult, key: str) -> list[tuple[ImportOutcome, int, str]]:
    """Findings about a key of theirs: verdict, line and key of ours."""
    return [(f.verdict, f.line, f.ours) for f in made.findings if f.key == key]


def finding(made: ImportResult, key: str) -> ImportFinding:
    (one,) = [f for f in made.findings if f.key == key]
    return one


def written(made: ImportResult, directory: Path) -> Path:
    """The files in ``directory``; the path of the controller file."""
    for name, text in made.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory / "provisioner.yaml"
