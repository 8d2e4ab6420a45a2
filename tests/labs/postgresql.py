"""Debian's PostgreSQL for the tests: a server of its own, reached by a socket in its directory."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from provisioner.store.database import ServerSchema, place_of
from tests.labs.htcondor import LabError, fetched

SUITE = os.environ.get("PROVISIONER_POSTGRESQL_SUITE", "bookworm")
ACCOUNT = 65534
"""Account that runs the server where the tests are root, which PostgreSQL refuses."""
QUICK = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")
STRICT = ("default_transaction_isolation=serializable",)
"""Default of a site's server, which the record replaces by its own."""


@dataclass(frozen=True)
class PostgresServer:
    """A server, running or not."""

    programs: Path
    directory: Path
    settings: tuple[str, ...] = ()
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    @contextmanager
    def running(cls, *settings: str) -> Iterator[PostgresServer]:
        """Yield a new server. LabError says why there is none."""
        directory = Path(tempfile.mkdtemp(prefix="postgresql-"))
        server = cls(fetched("get-postgresql.sh", SUITE), directory, settings)
        try:
            if os.geteuid() == 0:
                os.chown(directory, ACCOUNT, ACCOUNT)
            directory.chmod(0o755)
            words = ("--auth=trust", "--username=provisioner", "--no-sync", "--encoding=UTF8")
            server.run("initdb", *words, "--locale=C", str(server.data))
            server.start()
            yield server
        finally:
            server.stop()
            shutil.rmtree(directory)

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def start(self) -> None:
        given = [f"-c {each}" for each in ("listen_addresses=", *self.settings)]
        options = " ".join([f"-k {self.directory}", *given])
        log = self.directory / "log"
        self.run("pg_ctl", "start", "-w", "-s", f"-D{self.data}", f"-o{options}", f"-l{log}")

    def stop(self, mode: str = "immediate") -> None:
        if (self.data / "postmaster.pid").exists():
            self.run("pg_ctl", "stop", "-w", "-s", f"-D{self.data}", f"-m{mode}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop all processes of the server for a while, as a machine that is paused."""
        first = int((self.data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        pids = [first, *map(int, children)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def run(self, program: str, *words: str, text: str | None = None) -> str:
        """Run a program of PostgreSQL as the account of the server, and return what it printed."""
        user = ["setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups"]
        command = [*(user if os.geteuid() == 0 else ()), str(self.programs / program), *words]
        done = subprocess.run(
            command,
            input=text,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
            cwd="/",
        )
        if done.returncode != 0:
            raise LabError(f"{program} {' '.join(words)}: {done.stdout}")
        return done.stdout

    def admit(self, *networks: str) -> None:
        """Let clients of these networks connect without a password."""
        rules = "".join(f"host all all {each} trust\n" for each in networks)
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write(rules)
        self.run("pg_ctl", "reload", "-s", f"-D{self.data}")

    @property
    def url(self) -> str:
        return f"postgresql://provisioner@/postgres?host={self.directory}"

    def new_place(self, address: str = "") -> ServerSchema:
        """Return the place of a record that no other test has. ``address``: of the server, if not its socket."""
        url = f"postgresql://provisioner@{address}/postgres" if address else self.url
        place = place_of(url, f"kit-{next(self._numbers)}")
        assert isinstance(place, ServerSchema)
        return place


@contextmanager
def postgres_or_skip(*settings: str) -> Iterator[PostgresServer]:
    """Yield a server; without one the test is skipped."""
    pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")
    try:
        fetched("get-postgresql.sh", SUITE)
    except LabError as error:
        pytest.skip(f"no PostgreSQL: {error}")
    with PostgresServer.running(*settings) as server:
        yield server
