"""Packages of this commit and of the one before, and Debian roots to install them in: ``make test-packages``."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import _story

CHECKOUT = Path(__file__).parents[2]
TOOLS = ("dpkg-deb", "rpmbuild", "rpm", "mmdebstrap", "unshare", "hardlink")
IN_ROOT = "python3,ca-certificates,systemd,man-db,bash-completion,zsh,procps"
BUILD_ENVIRONMENT = {**os.environ, "PYTHON": sys.executable, "COMPRESSION": "none"}
ROOTS = CHECKOUT / "var/packages/roots"
"""Packed roots of Debian, which are made anew each week."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.packages)
            item.add_marker(pytest.mark.matrix)  # which `make test` leaves out
            item.add_marker(pytest.mark.xdist_group(f"packages {item.path.stem}"))


def run(*words: str | Path, **more: object) -> str:
    """Run a program and return its output. Raises AssertionError with all of that if it fails."""
    ran = subprocess.run([*map(str, words)], capture_output=True, text=True, **more)
    assert ran.returncode == 0, f"{words}: exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def inside(root: Path, script: str) -> str:
    """Run a shell script in a root with processes, mounts and a network of its own, which reaches nothing."""
    enter = 'mount -t proc proc "$0/proc" && exec chroot "$0" sh -ec "$1"'
    clean = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    unshare = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child")
    return run(*unshare, "sh", "-c", enter, root, script, env=clean, timeout=500)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for large files, where packages and roots can be built."""
    if os.geteuid() != 0:
        pytest.skip("needs root, for roots of other systems")
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    place = tmp_path_factory.mktemp("packages")
    yield place
    shutil.rmtree(place)  # gigabytes


def build(source: Path, out: Path) -> dict[str, Path]:
    """Build both packages of a checkout, and return them by their formats."""
    run(CHECKOUT / "packaging/build.sh", source, out, env=BUILD_ENVIRONMENT)
    return {path.suffix[1:]: path for path in out.iterdir() if path.suffix in (".deb", ".rpm")}


@pytest.fixture(scope="session")
def packages(place: Path) -> dict[str, Path]:
    return build(CHECKOUT, place / "now")


@pytest.fixture(scope="session")
def before(place: Path, packages: dict[str, Path]) -> Path:
    """The deb of the commit before, made by the packaging of this one."""
    source = place / "source-before"
    cloned = subprocess.run(["git", "clone", "-q", CHECKOUT, source], capture_output=True)
    if cloned.returncode:
        pytest.skip("not a clone: the commit before is unknown")
    if subprocess.run(["git", "-C", source, "checkout", "-q", "HEAD^"]).returncode:
        pytest.skip("a shallow clone: it lacks the commit before")
    return build(source, place / "before")["deb"]


def packed_root(include: str, suite: str = "bookworm") -> Path:
    """Return a fresh Debian root with these packages, packed."""
    week = time.strftime("%G-%V")
    ROOTS.mkdir(parents=True, exist_ok=True)
    with open(ROOTS / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two tests may want the same one
        for old in ROOTS.glob("*.tar"):
            if not old.name.startswith(week):
                old.unlink()
        name = hashlib.sha256(f"{suite} {include}".encode()).hexdigest()[:12]
        packed = ROOTS / f"{week}-{name}.tar"
        if not packed.exists():
            unfinished = packed.with_suffix(".new")
            # The roots are thrown away: no file needs to be on the disk.
            options = ("--quiet", "--variant=minbase", "--dpkgopt=force-unsafe-io")
            words = ("mmdebstrap", *options, f"--include={include}", "--format=tar", suite)
            built = subprocess.run([*words, unfinished], capture_output=True, text=True)
            if built.returncode:
                pytest.skip(f"mmdebstrap cannot make a root: {built.stderr[-300:]}")
            unfinished.rename(packed)
    return packed


@pytest.fixture(scope="session")
def base() -> Path:
    return packed_root(IN_ROOT)


@contextmanager
def unpacked(base: Path, root: Path) -> Iterator[Path]:
    """Unpack a packed root, which is removed in the end: it is large."""
    root.mkdir()
    run("tar", "-xf", base, "-C", root)
    yield root
    shutil.rmtree(root)


@pytest.fixture
def root(base: Path, tmp_path: Path) -> Iterator[Path]:
    """A fresh Debian root."""
    with unpacked(base, tmp_path / "root") as root:
        yield root


@pytest.fixture(scope="session")
def filled_record(place: Path) -> Path:
    """The record of the tests of the command line."""
    record = place / "record.db"
    asyncio.run(_story(record))
    return record
