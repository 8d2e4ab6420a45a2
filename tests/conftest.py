"""What all tests share: no settings of the person who runs them, and a demo that has been played once."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

# Settings of the person who runs the tests must not reach the product; those of the tests
# themselves stay.
for name in [name for name in os.environ if name.startswith(("_CONDOR_", "CONDOR_CONFIG"))]:
    del os.environ[name]
for name in ("PROVISIONER_CONFIG", "PROVISIONER_STORE", "PROVISIONER_OUTPUT"):
    os.environ.pop(name, None)


# A shell that starts the tests in the background ignores SIGINT and SIGQUIT, and nohup ignores
# SIGHUP. Every process that a test starts would inherit that. A handler ends with exec, an ignored
# signal does not.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda *_: None)


# CI judges the change, not its luck: there each property test draws the same examples every time.
# And how long one takes says more of who else uses the host.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


class Place:
    """One of the places that the workers of all runs on this host share: as many as one run has workers.

    Daemons keep time limits that a host with three times the load cannot meet. So runs beside each
    other take turns. A worker keeps its place for all tests of a module, because their lab stays
    up.
    """

    def __init__(self, directory: Path, count: int) -> None:
        self.directory, self.count = directory, count
        self.file: int | None = None

    def take(self) -> None:
        """Wait for a place, for an hour at most. A run without workers takes none."""
        latest = time.monotonic() + 3600
        self.directory.mkdir(mode=0o700, exist_ok=True)
        while self.count and self.file is None and time.monotonic() < latest:
            for number in range(self.count):
                file = os.open(self.directory / f"place-{number}", os.O_CREAT | os.O_RDWR, 0o600)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(file)
                else:
                    self.file = file
                    break
            else:
                time.sleep(0.2)

    def leave(self) -> None:
        if self.file is not None:
            # A child that was forked without exec has the file as well: closing it would not give
            # up the lock.
            fcntl.flock(self.file, fcntl.LOCK_UN)
            os.close(self.file)
            self.file = None


PLACE = Place(
    Path(tempfile.gettempdir()) / f"provisioner-tests-{os.getuid()}",
    int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")),
)


# Outside of all others, so that no time limit of a test counts the wait.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Run the tests of a module in a place of the host."""
    PLACE.take()
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            PLACE.leave()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what takes long first, and try live and slow tests up to three times.

    Live tests mostly wait, and the others fill the gaps; the live ones with the longest time limit
    begin, so that the run does not end with one worker. (pytest-xdist puts the groups with the most
    tests before all of them.) A host that others use may stand still for longer than one try takes.
    The summary lists each repetition.
    """
    items.sort(key=_turn)
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("live"):
            item.add_marker(pytest.mark.flaky(reruns=2, reruns_delay=5))


def _turn(item: pytest.Item) -> tuple[bool, bool, float]:
    limit = item.get_closest_marker("timeout")
    return (
        "live" not in item.path.parts,
        item.get_closest_marker("slow") is None,
        -float(limit.args[0]) if limit and limit.args else 0.0,
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-rerunfailures, where it is used, end each run with the tests that it repeated and their tracebacks."""
    config.option.rerun_show_tracebacks = True


@dataclass(frozen=True)
class Played:
    """A demo that is over: where it was, and what it printed."""

    directory: Path
    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """`provisioner demo`, once for all tests of a worker; those that use it are in the group `demo`."""
    directory = tmp_path_factory.mktemp("demo") / "place"
    done = subprocess.run(
        [sys.executable, "-m", "provisioner.cli", "demo", "--dir", str(directory)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return Played(directory, done.returncode, done.stdout, done.stderr)


@pytest.fixture
def lived(played: Played) -> Path:
    """A directory with the demo's configuration and a record in which 40 jobs have come and gone."""
    assert played.code == 0, played.out + played.err
    return played.directory
