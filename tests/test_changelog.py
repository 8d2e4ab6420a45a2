"""The changelog: short, made of entries in files of their own, and read by the script of a release."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
KINDS = ("Added", "Changed", "Removed", "Fixed", "Security")
ENTRY = re.compile(rf"\+[a-z0-9-]+\.({'|'.join(KINDS).lower()})\.md")


def entries() -> list[Path]:
    return [path for path in (ROOT / "changes.d").iterdir() if path.name != "README.md"]


def test_the_changelog_is_short_and_has_no_kinds_of_its_own() -> None:
    assert len(CHANGELOG.split()) <= 2500
    assert set(re.findall("^### (.*)$", CHANGELOG, re.MULTILINE)) <= set(KINDS)
    assert all(len(entry) < 240 for entry in re.findall(r"^- (?:.|\n  )*", CHANGELOG, re.MULTILINE))


def test_entries_are_named_for_their_kind_and_short() -> None:
    assert [path.name for path in entries() if not ENTRY.fullmatch(path.name)] == []
    assert [path.name for path in entries() if len(path.read_text()) > 240] == []


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A repository with the changelog, and an entry more."""
    source = tmp_path / "source"
    for name in ("CHANGELOG.md", "pyproject.toml", "provisioner/__init__.py", "changes.d"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        whole = (ROOT / name).is_dir()
        (shutil.copytree if whole else shutil.copy)(ROOT / name, source / name)
    (source / "changes.d/+a-test.fixed.md").write_text("`status` names the test.\n")
    (source / "provisioner/__init__.py").write_text('__version__ = "99.0.0"\n')
    git(source, "init", "-q")
    commit(source)
    return source


def git(source: Path, *words: str) -> None:
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", "-C", source, *who, *words], check=True)


def commit(source: Path) -> None:
    git(source, "add", "-A")
    git(source, "commit", "-qm", "Release")
    git(source, "tag", "-f", "v99.0.0")


def release(source: Path, python: Path | str = sys.executable) -> str:
    """Return what the script of a release says before it fails."""
    script = [ROOT / "packaging/release.sh", source, source.parent / "files"]
    environment = {**os.environ, "PYTHON": str(python)}
    done = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert done.returncode
    return done.stderr


def test_a_release_takes_entries_that_are_in_the_changelog(source: Path, tmp_path: Path) -> None:
    refused = release(source)
    assert "+a-test.fixed.md" in refused
    assert "run `towncrier build --version 99.0.0`" in refused
    build = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", "99.0.0"]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    assert [path.name for path in (source / "changes.d").iterdir()] == ["README.md"]
    commit(source)
    # The first step after the changelog's: it ends the release with what has been written so far.
    shows = tmp_path / "python"
    shows.write_text('#!/bin/sh\ncat "$5/CHANGES.md" >&2\nexit 1\n')
    shows.chmod(0o755)
    found = release(source, shows)
    assert re.fullmatch(r"\s*(### \w+\s+(- [^\n]+\n(  [^\n]+\n)*\n*)+)+", found), found
    assert "\n- `status` names the test.\n" in found
    assert CHANGELOG.partition("## [0.1.0]")[2] not in found
