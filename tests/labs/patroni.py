"""Two PostgreSQL servers with Patroni and etcd: one is the primary, the other one takes over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.labs.htcondor import LabError, fetched
from tests.labs.ports import free_port
from tests.labs.postgresql import ACCOUNT, SUITE

TTL_S = 20
"""Patroni's least time for the lock of the primary."""
START_S = 90.0
SETTINGS = """\
scope: kit
name: {name}
restapi: {{listen: "127.0.0.1:{rest}", connect_address: "127.0.0.1:{rest}"}}
etcd3: {{host: "127.0.0.1:{etcd}"}}
bootstrap:
  dcs:
    ttl: {ttl}
    loop_wait: 2
    retry_timeout: 4
    maximum_lag_on_failover: 1000000000
    synchronous_mode: {synchronous}
    postgresql: {{use_pg_rewind: false, parameters: {{fsync: "off"}}}}
  initdb: [{{auth: trust}}, {{encoding: UTF8}}, {{locale: C}}]
  pg_hba: ["local all all trust", "host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
postgresql:
  listen: "127.0.0.1:{port}"
  connect_address: "127.0.0.1:{port}"
  data_dir: {directory}/data
  bin_dir: {programs}
  pgpass: {directory}/pgpass
  authentication: {{superuser: {{username: provisioner}}, replication: {{username: replicator}}}}
  parameters: {{unix_socket_directories: "{directory}", synchronous_commit: "{commit}"}}
"""


def until(what: Callable[[], object], seconds: float = START_S) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            raise LabError(f"not within {seconds:g} s: {what}")
        time.sleep(0.2)


@dataclass
class Node:
    """A server with its Patroni, in a process group of their own."""

    name: str
    directory: Path
    port: int
    rest: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def state(self) -> dict[str, object]:
        """Return the answer of its Patroni; nothing if there is none."""
        with suppress(OSError, ValueError):
            request = f"http://127.0.0.1:{self.rest}/patroni"
            with urllib.request.urlopen(request, timeout=3) as answer:
                return dict(json.load(answer))
        return {}

    @property
    def is_primary(self) -> bool:
        return self.state.get("role") in ("master", "primary")

    def kill(self) -> None:
        """End it as by a loss of its host: Patroni, the server and its processes."""
        if self.process is None:
            return
        first = (self.directory / "data" / "postmaster.pid").read_text().split()[0]
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        self.process.kill()
        self.process.wait()
        for pid in (int(first), *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process = None


class Cluster:
    """Two nodes and an etcd on this host."""

    def __init__(self, root: Path, *, synchronous: bool) -> None:
        self.root = root
        self.programs = fetched("get-patroni.sh", "bookworm")
        self.servers = fetched("get-postgresql.sh", SUITE)
        self.etcd = free_port()
        self.synchronous = synchronous
        self.nodes = [Node(name, root / name, free_port(), free_port()) for name in ("one", "two")]
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """Return the address of whichever is the primary, as libpq finds it."""
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.nodes)
        return f"postgresql://provisioner@{hosts}/postgres?target_session_attrs=read-write"

    def run(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        log = (self.root / f"{name}.log").open("ab")
        user = ["setpriv", f"--reuid={ACCOUNT}", f"--regid={ACCOUNT}", "--clear-groups"]
        process = subprocess.Popen(
            [*(user if os.geteuid() == 0 else ()), *words], stdout=log, stderr=log, cwd=self.root
        )
        self.processes.append(process)
        return process

    def start(self) -> None:
        client = f"http://127.0.0.1:{self.etcd}"
        peer = f"http://127.0.0.1:{free_port()}"
        self.run(
            "etcd",
            *(str(self.programs / "etcd"), f"--data-dir={self.root / 'etcd'}"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            f"--initial-cluster=default={peer}",
        )
        for node in self.nodes:
            self.start_node(node)
            until(lambda node=node: node.state.get("state") == "running")
        if self.synchronous:
            until(lambda: any(each.state.get("sync_standby") for each in self.nodes))

    def start_node(self, node: Node) -> None:
        node.directory.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            os.chown(node.directory, ACCOUNT, ACCOUNT)
        settings = SETTINGS.format(
            name=node.name,
            directory=node.directory,
            port=node.port,
            rest=node.rest,
            etcd=self.etcd,
            ttl=TTL_S,
            programs=self.servers,
            synchronous=str(self.synchronous).lower(),
            commit="on" if self.synchronous else "local",
        )
        file = self.root / f"{node.name}.yaml"
        file.write_text(settings)
        node.process = self.run(node.name, str(self.programs / "patroni"), str(file))

    @property
    def primary(self) -> Node:
        found = [each for each in self.nodes if each.is_primary]
        if len(found) != 1:
            raise LabError(f"{len(found)} primaries")
        return found[0]

    def other(self, node: Node) -> Node:
        return next(each for each in self.nodes if each is not node)

    def hold_back(self) -> None:
        """Let the primary send no more to its replica: what it commits now is lost with it."""
        sender = self.sql(self.primary, "SELECT pid FROM pg_stat_replication")
        os.kill(int(sender), signal.SIGSTOP)

    def fail_over(self) -> float:
        """Lose the primary. Return the time until the other one has its place."""
        begun = time.monotonic()
        lost = self.primary
        lost.kill()
        until(lambda: self.other(lost).is_primary)
        return time.monotonic() - begun

    def sql(self, node: Node, statement: str) -> str:
        """Run a statement on a node, and return what it prints."""
        to = ("-h", "127.0.0.1", "-p", str(node.port), "-U", "provisioner", "-At", "postgres")
        done = subprocess.run(
            [str(self.servers / "psql"), *to, "-c", statement],
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode:
            raise LabError(done.stderr)
        return done.stdout.strip()

    def end(self) -> None:
        for node in self.nodes:
            with suppress(OSError):
                node.kill()
        for process in self.processes:
            process.kill()
            process.wait()


@contextmanager
def cluster_or_skip(*, synchronous: bool) -> Iterator[Cluster]:
    """Yield a running cluster; without the programs the test is skipped."""
    pytest.importorskip("psycopg", reason="the extra `postgresql` is not installed")
    try:
        fetched("get-patroni.sh", "bookworm")
    except LabError as error:
        pytest.skip(f"no Patroni: {error}")
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="patroni-")))
        root.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(root, ACCOUNT, ACCOUNT)
        cluster = Cluster(root, synchronous=synchronous)
        stack.callback(cluster.end)
        cluster.start()
        yield cluster
