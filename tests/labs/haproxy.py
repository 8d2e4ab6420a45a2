"""Debian's haproxy for the tests, with the configuration that `provisioner render balancer` writes."""

from __future__ import annotations

import csv
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.labs.htcondor import LabError, end, fetched, launch, until

SUITE = "bookworm"


@dataclass(frozen=True)
class HaproxyPrograms:
    program: Path

    @classmethod
    def fetched(cls, suite: str = SUITE) -> HaproxyPrograms:
        """Return the program; without it the test is skipped."""
        try:
            return cls(fetched("get-haproxy.sh", suite) / "haproxy")
        except LabError as error:
            pytest.skip(f"no haproxy: {error}")

    def checked(self, config: Path) -> str:
        """Return what haproxy has to say of a configuration, which has to be valid."""
        command = [str(self.program), "-c", "-f", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@dataclass
class LabHaproxy:
    """A haproxy that can be killed and started again."""

    programs: HaproxyPrograms
    directory: Path
    """With ``haproxy.cfg``."""
    socket: Path
    process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start it, and wait until its socket answers."""
        command = (self.programs.program, "-db", "-f", self.directory / "haproxy.cfg")
        log = self.directory / "haproxy.log"
        self.process = launch(command, log, env=os.environ, cwd=self.directory)

        def answers() -> bool:
            assert self.process is not None and self.process.poll() is None, log.read_text()
            return "Uptime_sec" in self.ask("show info")

        until(answers, 20, what="haproxy answers")

    def ask(self, command: str) -> str:
        """Return the answer of the run-time API."""
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self.socket))
            line.sendall(f"{command}\n".encode())
            return b"".join(iter(lambda: line.recv(1 << 16), b"")).decode()

    def statistics(self, backend: str) -> Mapping[str, str]:
        """Return its own counters of a backend."""
        table = csv.DictReader(self.ask("show stat").removeprefix("# ").splitlines())
        [found] = [row for row in table if (row["pxname"], row["svname"]) == (backend, "BACKEND")]
        return found

    def kill(self) -> None:
        """As a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)


@contextmanager
def running_haproxy(
    programs: HaproxyPrograms, directory: Path, admin: Path
) -> Iterator[LabHaproxy]:
    """Run it with ``haproxy.cfg`` of a directory, which names the socket ``admin``."""
    lab = LabHaproxy(programs, directory, admin)
    try:
        lab.begin()
        yield lab
    finally:
        if lab.process is not None:
            end(lab.process, signal.SIGTERM, 30)
