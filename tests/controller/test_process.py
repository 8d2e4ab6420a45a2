"""The real process: signals with orders under way, a changed configuration, a site that is down, a full log."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapters.embedded import queue
from provisioner.model import DroneState, Plan, RequestKind
from provisioner.reasons import ShadowOnly
from provisioner.store.reader import Reader
from tests.labs.ports import free_port

pytestmark = pytest.mark.slow

ADAPTER = '''
"""A site whose drones are files; it tells a log what becomes of it."""
import asyncio, os, time
from pathlib import Path
from pydantic import BaseModel, ConfigDict
from provisioner.model import OrderOutcome, OrderResult, RemoteDrone, RemoteState, SiteView
from provisioner.interfaces import UnavailableError

class Config(BaseModel):
    model_config = ConfigDict(extra="forbid")
    root: Path
    start_s: float = 0.0

    def __eq__(self, other):
        if 13.0 in (self.start_s, other.start_s):
            raise ZeroDivisionError("a fault of the adapter")
        return super().__eq__(other)

if importing := os.environ.get("IMPORTING"):
    Path(importing).touch()
    time.sleep(1)

class Files:
    Config = Config

    def __init__(self, name, config, types, controller):
        self.name, self.root, self.start_s = name, Path(config.root), config.start_s

    def say(self, what):
        with (self.root / "log").open("a") as log:
            log.write(f"{what} {self.start_s:g}\\n")

    async def __aenter__(self):
        if (self.root / "down").exists():
            raise UnavailableError("no route to host")
        self.say("opened")
        return self

    async def __aexit__(self, *exc):
        self.say("closed")

    async def poll(self):
        if (self.root / "hang").exists():
            time.sleep(60)
        names = os.listdir(self.root / "drones")
        here = {name: RemoteDrone(name, RemoteState.RUNNING, name, "gpu") for name in names}
        return SiteView(self.name, time.time(), here)

    async def start(self, orders):
        self.say("asked")
        await asyncio.sleep(self.start_s)
        for order in orders:
            (self.root / "drones" / order.drone_id).touch()
        self.say("started")
        return [OrderResult(o.drone_id, OrderOutcome.OK, "r-" + o.drone_id) for o in orders]

    async def stop(self, orders):
        for order in orders:
            (self.root / "drones" / order.drone_id).unlink(missing_ok=True)
        return [OrderResult(o.drone_id, OrderOutcome.OK) for o in orders]
'''
CONTROLLER = """\
controller: proc
store: {path: record.db}
overlay: {adapter: embedded, options: {path: queue.db}}
sites: [site-*.yaml]
policy: {interval: 300ms, active_interval: 100ms, idle_timeout: 10min}
"""
SITE = """\
site: NAME
adapter: files
limits: {max_drones: 1}
types:
  gpu: {gpus: 1, vram: 16 GiB, cpus: 1, memory: 128 MiB, disk: 10 MiB}
options: {root: ROOT, start_s: START}
"""


@dataclass
class Host:
    """A directory with a configuration, an adapter of its own, and controllers that run there."""

    path: Path
    env: dict[str, str]
    running: list[subprocess.Popen[bytes]]

    def site(self, name: str, start_s: float = 0.0) -> None:
        (self.path / name / "drones").mkdir(parents=True, exist_ok=True)
        text = (
            SITE.replace("NAME", name)
            .replace("ROOT", str(self.path / name))
            .replace("START", str(start_s))
        )
        (self.path / f"site-{name}.yaml").write_text(text)

    def command(self, *more: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "provisioner.cli",
            "run",
            "--config",
            str(self.path / "provisioner.yaml"),
            *more,
        ]

    def run(self, *more: str, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """Start a controller, by a command that begins with the words ``before``."""
        command = [*before, *self.command(*more)]
        with (self.path / "stderr").open("ab") as log:
            process = subprocess.Popen(command, env=self.env, cwd=self.path, stderr=log)
        self.running.append(process)
        return process

    def log(self, site: str) -> list[str]:
        try:
            return (self.path / site / "log").read_text().splitlines()
        except FileNotFoundError:
            return []

    def stderr(self) -> list[bytes]:
        return (self.path / "stderr").read_bytes().splitlines()

    @property
    def record(self) -> Reader:
        return Reader(self.path / "record.db")

    def call(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        command = [
            sys.executable,
            "-m",
            "provisioner.cli",
            *words,
            "--config",
            str(self.path / "provisioner.yaml"),
        ]
        return subprocess.run(command, env=self.env, cwd=self.path, capture_output=True)

    def plans(self) -> list[Plan]:
        return self.record.plans() if self.record.path.exists() else []

    def tick(self) -> int:
        views = self.record.views()
        return views.tick if views else 0

    def told(self, name: str) -> list[str]:
        return [
            " ".join(map(str, e.fields.values())) for e in self.record.events() if e.name == name
        ]

    def until(self, what: Callable[[], object], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < deadline, (self.path / "stderr").read_text()[-3000:]
            time.sleep(0.05)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    (tmp_path / "provisioner.yaml").write_text(CONTROLLER)
    (tmp_path / "files_site.py").write_text(ADAPTER)
    egg = tmp_path / "files-1.0.dist-info"
    egg.mkdir()
    (egg / "METADATA").write_text("Metadata-Version: 2.1\nName: files\nVersion: 1.0\n")
    (egg / "entry_points.txt").write_text("[provisioner.sites]\nfiles = files_site:Files\n")
    found = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    made = Host(tmp_path, {**os.environ, "PYTHONPATH": found}, [])
    queue.submit(tmp_path / "queue.db", ["true"], memory_mib=16)
    yield made
    for process in made.running:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_asked_twice_it_waits_for_nothing_and_the_next_controller_knows_of_the_order(
    host: Host,
) -> None:
    host.site("slow", start_s=50)
    process = host.run()
    host.until(lambda: "asked 50" in host.log("slow"))
    process.send_signal(signal.SIGTERM)
    host.until(lambda: b"controller.awaiting_orders" in (host.path / "stderr").read_bytes())
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 1
    assert b"Traceback" not in (host.path / "stderr").read_bytes()
    assert host.log("slow") == ["opened 50", "asked 50", "closed 50"]
    assert [d.state for d in host.record.drones()] == [DroneState.REQUESTED]
    host.site("slow")
    process = host.run()
    host.until(lambda: "opened 0" in host.log("slow"))
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert "asked 0" not in host.log("slow"), "the order counts until a listing settles it"


def test_a_shadow_starts_nothing_and_has_a_record_of_its_own(host: Host) -> None:
    """Not even after its sites were replaced; a controller refuses its record, and it refuses a controller's."""
    host.site("well")
    process = host.run("--shadow")
    host.until(
        lambda: any(isinstance(r.reason, ShadowOnly) for p in host.plans() for r in p.refusals)
    )
    host.site("well", start_s=2)
    process.send_signal(signal.SIGHUP)
    host.until(lambda: host.told("config.reloaded"))
    ticks = host.tick()
    host.until(lambda: host.tick() >= ticks + 3)
    assert b"a shadow, it starts nothing" in host.call("status").stdout
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert host.log("well") == ["opened 0", "opened 2", "closed 0", "closed 2"]
    assert not host.record.drones(ended=None) and host.record.observations(0.0)
    refused = subprocess.run(
        host.command("--once"), env=host.env, cwd=host.path, capture_output=True
    )
    assert (
        refused.returncode == 1
        and b"is the record of a shadow: run it with `--shadow`" in refused.stderr
    )
    host.record.path.unlink()
    (host.path / "well" / "drones").mkdir(exist_ok=True)
    assert subprocess.run(host.command("--once"), env=host.env, cwd=host.path).returncode == 0
    refused = subprocess.run(
        host.command("--once", "--shadow"), env=host.env, cwd=host.path, capture_output=True
    )
    assert (
        refused.returncode == 1
        and b"is the record of a controller: run it without `--shadow`" in refused.stderr
    )
    report = host.call("shadow", "report")
    assert report.returncode == 1 and b"is not the record of a shadow" in report.stderr


def test_a_site_that_is_down_when_the_controller_starts_keeps_it_from_nothing_else(
    host: Host,
) -> None:
    host.site("well")
    host.site("ill")
    (host.path / "ill" / "down").touch()
    host.run()
    host.until(lambda: "started 0" in host.log("well"))
    assert host.log("ill") == []
    queue.submit(host.path / "queue.db", ["true"], memory_mib=16)
    (host.path / "ill" / "down").unlink()
    host.until(lambda: "started 0" in host.log("ill"))


def test_a_changed_site_is_built_anew_and_its_old_adapter_lives_until_its_orders_are_done(
    host: Host,
) -> None:
    host.site("here", start_s=9)
    process = host.run()
    host.until(lambda: "asked 9" in host.log("here"))
    host.site("here", start_s=0)
    process.send_signal(signal.SIGHUP)
    host.until(lambda: host.told("config.reloaded"))
    assert "start_s" in host.told("config.reloaded")[0]
    assert host.log("here") == ["opened 9", "asked 9", "opened 0"], "not closed below its order"
    host.until(lambda: "closed 9" in host.log("here"))
    assert host.log("here") == ["opened 9", "asked 9", "opened 0", "started 9", "closed 9"]
    host.until(lambda: [d.remote_id for d in host.record.drones() if d.remote_id])
    (drone,) = host.record.drones()
    host.record.ask(RequestKind.KILL, [drone.id], reason="end", by="test", at=time.time())
    host.until(lambda: not (host.path / "here" / "drones" / drone.id).exists())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("new", "site: new\nadapter: flies\n", "flies"),
        ("new", "site: " + "[" * 400 + "]" * 400 + "\n", "nested too deeply"),
        ("new", "", "site new: no route to host"),
        ("here", "", "ZeroDivisionError: a fault of the adapter"),
    ],
    ids=["cannot be read", "is nested 400 deep", "cannot be connected", "makes code fail"],
)
def test_a_configuration_that_cannot_be_taken_over_changes_nothing(
    host: Host, name: str, text: str, said: str
) -> None:
    """Whatever fails: the controller ended at a nested file."""
    host.site("here")
    process = host.run()
    host.until(lambda: "started 0" in host.log("here"))
    before = [d.id for d in host.record.drones()]
    host.site(name, start_s=13 if name == "here" else 0)
    if name == "new":
        (host.path / "new" / "down").touch()
    if text:
        (host.path / "site-new.yaml").write_text(text)
    process.send_signal(signal.SIGHUP)
    host.until(lambda: host.told("config.rejected"))
    (told,) = host.told("config.rejected")
    assert said in told and str(host.path / "provisioner.yaml") in told
    assert [b"warning" in line for line in host.stderr() if b"config.rejected" in line] == [True]
    tick = host.record.views()
    assert tick is not None
    host.until(lambda: (now := host.record.views()) is not None and now.tick > tick.tick + 2)
    assert [d.id for d in host.record.drones()] == before
    assert host.log("here") == ["opened 0", "asked 0", "started 0"]
    assert process.poll() is None


def test_a_single_tick_waits_for_what_it_asked_for_and_needs_no_log(host: Host) -> None:
    host.site("here", start_s=7)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            host.command("--once"),
            env=host.env,
            cwd=host.path,
            stderr=full,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0
    assert host.log("here") == ["opened 7", "asked 7", "started 7", "closed 7"]
    assert [d.state for d in host.record.drones()] == [DroneState.SUBMITTED]


def test_signals_that_tools_send_by_habit_end_nothing_and_the_quit_signal_ends_it_in_order(
    host: Host,
) -> None:
    host.site("fast")
    process = host.run("--log-format", "json")
    host.until(lambda: host.record.path.exists() and host.tick() > 1)
    for number in (
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGVTALRM,
        signal.SIGPROF,
        signal.SIGIO,
    ):
        process.send_signal(number)
        host.until(lambda name=number.name: any(name.encode() in line for line in host.stderr()))  # type: ignore[misc]
    before = host.tick()
    host.until(lambda: host.tick() > before)
    process.send_signal(signal.SIGQUIT)
    assert process.wait(30) == 0
    assert any(b"controller.stopping" in line for line in host.stderr())


class Systemd:
    """The socket on which systemd hears of a service."""

    def __init__(self, host: Host, name: str, watchdog_s: float) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(name.replace("@", "\0"))
        host.env["NOTIFY_SOCKET"] = name
        host.env["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))

    def next(self, *, within_s: float = 20.0) -> str:
        self._socket.settimeout(within_s)
        return self._socket.recv(100).decode()

    def after_beats(self) -> str:
        """Return the next state that is no heart-beat."""
        while (state := self.next()) == "WATCHDOG=1":
            pass
        return state


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_of_the_start_of_life_of_reloads_and_of_the_end(
    host: Host, abstract: bool
) -> None:
    name = f"@{host.path.name}-{os.getpid()}" if abstract else str(host.path / "notify")
    systemd = Systemd(host, name, watchdog_s=0.6)
    host.site("here")
    process = host.run()
    assert systemd.after_beats() == "READY=1"
    assert {systemd.next(within_s=2) for _ in range(5)} == {"WATCHDOG=1"}
    for valid in (True, False):
        if not valid:
            (host.path / "provisioner.yaml").write_text("controller: [")
        process.send_signal(signal.SIGHUP)
        assert systemd.after_beats() == "RELOADING=1"
        assert systemd.after_beats() == "READY=1"
    process.send_signal(signal.SIGTERM)
    assert systemd.after_beats() == "STOPPING=1"
    assert process.wait(20) == 0


def test_a_hung_controller_sends_no_heartbeat_and_leaves_its_stacks_to_the_journal(
    host: Host,
) -> None:
    systemd = Systemd(host, str(host.path / "notify"), watchdog_s=0.6)
    host.site("here")
    process = host.run()
    assert systemd.after_beats() == "READY=1"
    assert systemd.next() == "WATCHDOG=1"
    (host.path / "here" / "hang").touch()
    with pytest.raises(TimeoutError):
        while True:
            systemd.next(within_s=3)
    process.send_signal(signal.SIGABRT)  # as systemd does then
    process.wait(20)
    assert b"files_site.py" in (host.path / "stderr").read_bytes()


def test_a_request_to_read_the_configuration_again_never_ends_a_controller_that_starts(
    host: Host,
) -> None:
    host.env["IMPORTING"] = str(host.path / "importing")
    host.site("here")
    process = host.run()
    host.until((host.path / "importing").exists)
    process.send_signal(signal.SIGHUP)
    host.until(lambda: host.record.path.exists() and host.told("config.reloaded"))
    assert process.poll() is None


def test_a_controller_with_a_wrong_configuration_never_says_that_it_is_ready(host: Host) -> None:
    systemd = Systemd(host, str(host.path / "notify"), watchdog_s=0.6)
    (host.path / "provisioner.yaml").write_text("controller: [")
    assert host.run().wait(20) == 3
    with pytest.raises(TimeoutError):
        systemd.next(within_s=0.1)


def test_systemd_hears_of_the_web_service_too(host: Host) -> None:
    host.site("here")
    assert host.call("run", "--once").returncode == 0
    settings = host.path / "provisioner.yaml"
    web = f"web: {{listen: '127.0.0.1:{free_port()}'}}\n"
    settings.write_text(settings.read_text() + web)
    systemd = Systemd(host, str(host.path / "notify"), watchdog_s=0.6)
    command = [sys.executable, "-m", "provisioner.cli", "serve", "--config", str(settings)]
    process = subprocess.Popen(command, env=host.env, cwd=host.path, stderr=subprocess.DEVNULL)
    host.running.append(process)
    assert systemd.after_beats() == "READY=1"
    assert {systemd.next(within_s=2) for _ in range(5)} == {"WATCHDOG=1"}
    process.send_signal(signal.SIGTERM)
    assert systemd.after_beats() == "STOPPING=1"
    assert process.wait(20) == 0
