"""The Puppet class and the Ansible role, on a root of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.conftest import CHECKOUT, inside, packed_root, unpacked

TOOLS = "python3,python3-apt,systemd,procps,puppet-agent,ansible-core"
NAME = "gpu_drone_provisioner"


@pytest.fixture(scope="session")
def base_with_tools(place: Path) -> Path:
    return packed_root(TOOLS)


@pytest.fixture
def managed(base_with_tools: Path, tmp_path: Path) -> Iterator[Path]:
    """A fresh Debian root with Puppet and Ansible."""
    with unpacked(base_with_tools, tmp_path / "root") as root:
        yield root


@pytest.mark.parametrize("tool", ["puppet", "ansible"])
def test_a_second_run_changes_nothing_and_a_broken_file_stops_before_the_reload(
    packages: dict[str, Path], managed: Path, tool: str
) -> None:
    home = managed / "root"
    shutil.copy(packages["deb"], home / "new.deb")
    place = home / NAME if tool == "puppet" else home / "roles" / NAME
    shutil.copytree(CHECKOUT / "packaging" / tool / NAME, place)
    shutil.copy(Path(__file__).with_name("managed_story.py"), home / "story.py")
    # Both tools look for systemd by the name of the first process.
    shutil.copy(managed / "usr/bin/dash", home / "systemd")
    first = f"exec /root/systemd -ec 'python3 /root/story.py {tool}; exit'"
    assert "managed" in inside(managed, first)


@pytest.mark.parametrize(
    "command",
    [
        ("puppet-lint", "--fail-on-warnings", "packaging/puppet"),
        ("ansible-lint", "--offline", "-q", f"packaging/ansible/{NAME}"),
    ],
    ids=lambda command: command[0],
)
def test_linters_have_no_complaint(command: tuple[str, ...]) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    if shutil.which(command[0], path=path) is None:
        pytest.skip(f"not installed: {command[0]}")
    environment = {**os.environ, "PATH": path}
    linted = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    assert linted.returncode == 0, linted.stdout + linted.stderr
