"""The files of a release: made from a tag, complete, with their checksums."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path

import pytest

from provisioner import __version__
from tests.packages.conftest import BUILD_ENVIRONMENT, CHECKOUT, run


@pytest.fixture(scope="module")
def source(place: Path) -> Path:
    """A clone of the checkout without tags."""
    source = place / "source-release"
    if subprocess.run(["git", "clone", "-q", "--no-tags", CHECKOUT, source]).returncode:
        pytest.skip("not a clone: a release needs the history")
    return source


def release(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [CHECKOUT / "packaging/release.sh", source, out]
    return subprocess.run(command, env=BUILD_ENVIRONMENT, capture_output=True, text=True)


def tag(source: Path, name: str) -> None:
    run("git", "-C", source, "tag", "-f", name)


def collect_entries(source: Path) -> None:
    """Remove the entries of the changelog with a commit, as its maker does who has collected them."""
    for entry in (source / "changes.d").glob("+*"):
        entry.unlink()
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    run("git", "-C", source, *who, "commit", "-q", "-a", "--allow-empty", "-m", "Collect entries")


def test_a_commit_without_the_tag_of_its_version_is_refused(source: Path, tmp_path: Path) -> None:
    refused = release(source, tmp_path / "files")
    assert (refused.returncode, f"run `git tag v{__version__}`" in refused.stderr) == (1, True)
    tag(source, "v99.0.0")
    refused = release(source, tmp_path / "files")
    run("git", "-C", source, "tag", "-d", "v99.0.0")
    assert refused.returncode == 1
    assert f"the tag v99.0.0 differs from the version {__version__}" in refused.stderr


def test_a_change_without_a_commit_is_refused(source: Path, tmp_path: Path) -> None:
    tag(source, f"v{__version__}")
    change = source / "LICENSE.new"
    change.touch()
    refused = release(source, tmp_path / "files")
    change.unlink()
    assert (refused.returncode, "uncommitted changes" in refused.stderr) == (1, True)


def test_a_tag_gives_all_files_with_their_checksums(source: Path, place: Path) -> None:
    if missing := [
        name for name in ("twine", "cyclonedx_py") if not importlib.util.find_spec(name)
    ]:
        pytest.skip(f"not installed: {', '.join(missing)} (`make .venv/.tools`)")
    collect_entries(source)
    tag(source, f"v{__version__}")
    out = place / "release"  # which is removed in the end: the files are large
    made = release(source, out)
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.count("PASSED") == 2  # sdist and wheel

    names = {path.name for path in out.iterdir()}
    count = run("git", "-C", source, "rev-list", "--count", "HEAD").strip()
    commit = run("git", "-C", source, "rev-parse", "HEAD")[:8]
    package = f"{__version__}-{count}.g{commit}"
    assert names == {
        "CHANGES.md",
        "SHA256SUMS",
        f"gpu-drone-provisioner-{__version__}.cdx.json",
        f"gpu-drone-provisioner-{package}.x86_64.rpm",
        f"gpu-drone-provisioner_{package}_amd64.deb",
        f"gpu_drone_provisioner-{__version__}-py3-none-any.whl",
        f"gpu_drone_provisioner-{__version__}.tar.gz",
    }
    checked = run("sha256sum", "--strict", "-c", "SHA256SUMS", cwd=out)
    assert {line.removesuffix(": OK") for line in checked.splitlines()} == names - {"SHA256SUMS"}

    changes = (out / "CHANGES.md").read_text()
    assert changes in (source / "CHANGELOG.md").read_text().partition(f"## [{__version__}]")[2]
    assert "###" in changes and "\n## " not in changes

    listed = json.loads((out / f"gpu-drone-provisioner-{__version__}.cdx.json").read_text())
    assert listed["bomFormat"] == "CycloneDX"
    assert listed["metadata"]["component"]["name"] == "gpu-drone-provisioner"
    pinned = re.findall(
        r"^([\w.-]+)==([^ ]+)",
        (source / "requirements/all.txt").read_text(),
        re.MULTILINE,
    )
    components = [(each["name"], each["version"]) for each in listed["components"]]
    assert sorted(components) == sorted(pinned) != []
