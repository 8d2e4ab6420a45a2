"""A real controller for the live tests: the command that an operator runs, as a process, with its own record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from provisioner.cli.drones import DroneFilter, drone_listing
from provisioner.store import StoreError
from provisioner.store.reader import Reader
from tests.labs.htcondor import LOOPBACK, QUICK_DRONE, Pool, end, own, processes_with, until

CONTROLLER = """\
controller: {name}
store:
  path: provisioner.db
overlay:
  adapter: htcondor
  options:
    collector: {collector}
    trust_domain: {domain}
    token: {{file: admin.token}}
    drone_token: {{file: drone.token}}
    drain_tool: {drain_tool}
    condor_prefix: {prefix}
    deadline: 5s
    client_config: {client_config}
    drone_config: {drone_config}
sites: [site-*.yaml]
policy:
  interval: 1s
  active_interval: 500ms
  idle_timeout: {idle_s}s
  overlay_max_age: 12s
"""

SITE = """\
site: {name}
adapter: local
limits: {{max_drones: {most}, max_pending: {most}, max_starts_per_tick: {most}}}
timeouts: {{order_deadline: 15s, order_confirm: 20s, missing: 5s, booting: {boot_s}s, grace: 10s, stopping: 30s}}
types:
  {kind}:
    gpus: 1
    gpu_model: {model}
    vram: {vram} MiB
    capability: {capability}
    cpus: 2
    memory: 512 MiB
    disk: 2 GiB
options:
  root: drones-{name}
  cpus: 1000
  memory: 1000 GiB
  disk: 1000 GiB
  gpus: [{{count: 64, model: {model}, vram: {vram} MiB, capability: {capability}, simulate: {simulate}}}]
  retain_finished: 1h
"""


class SiteText(Protocol):
    """A site of the lab as the controller gets to know it."""

    @property
    def name(self) -> str: ...

    def text(self, controller: LabController) -> str:
        """Its site file; other files that this one names are put into the controller's directory."""
        ...


@dataclass(frozen=True)
class LabSite:
    """A ``local`` site of one drone type with simulated GPUs, as ``condor_gpu_discovery -simulate`` knows them."""

    name: str
    kind: str
    model: str
    vram: int
    capability: float
    simulate: int
    most: int = 12

    def text(self, controller: LabController) -> str:
        return SITE.format(**vars(self), boot_s=controller.boot_s)


BIG = LabSite("big", "a100", "A100-SXM4-40GB", 47661, 8.0, 4)
SMALL = LabSite("small", "v100", "Tesla V100-PCIE-16GB", 24220, 7.0, 2)


@dataclass
class LabController:
    """``provisioner run`` against a real pool; its answers as an operator gets them."""

    pool: Pool
    directory: Path
    sites: Sequence[SiteText] = (BIG, SMALL)
    idle_s: int = 6
    boot_s: int = 180
    name: str = field(default_factory=lambda: own("lab"))
    condor_prefix: str = ""
    """Where the drones are told to find HTCondor; default: where it is."""
    process: subprocess.Popen[bytes] | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.directory / "provisioner.yaml"

    def write(self) -> None:
        """Its configuration, with tokens of its own."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for identity, name in (("admin", "admin.token"), ("drone", "drone.token")):
            file = self.directory / name
            file.touch(mode=0o600)
            authz = ("READ", "ADVERTISE_STARTD", "ADVERTISE_MASTER") if identity == "drone" else ()
            file.write_text(self.pool.token(identity, authz) + "\n")
        prefix = self.pool.condor.prefix
        self.config.write_text(
            CONTROLLER.format(
                name=self.name,
                collector=self.pool.collector,
                domain=self.pool.domain,
                drain_tool=prefix / "usr/bin/condor_drain",
                prefix=self.condor_prefix or prefix,
                idle_s=self.idle_s,
                client_config=json.dumps(LOOPBACK),
                drone_config=json.dumps(QUICK_DRONE),
            )
        )
        for site in self.sites:
            (self.directory / f"site-{site.name}.yaml").write_text(site.text(self))

    def start(self, *, write: bool = True) -> LabController:
        if write:
            self.write()
        checked = self.call("check", str(self.config))
        assert checked.returncode == 0, checked.stdout + checked.stderr
        log = (self.directory / "controller.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "provisioner.cli", "run", "--config", str(self.config)],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **self.env},
            start_new_session=True,
        )
        log.close()
        self.ticks(1)
        return self

    @property
    def tick(self) -> int:
        """Number of the newest tick; 0 before the first."""
        try:
            views = self._record.views()
        except StoreError:
            return 0
        return views.tick if views is not None else 0

    def ticks(self, more: int) -> None:
        """Wait until the controller has done so many more."""
        goal = more + self.tick

        def so_many() -> bool:
            assert self.process is not None and self.process.poll() is None, self.log()[-3000:]
            return self.tick >= goal

        until(so_many, 60 + 10 * more, what=f"tick {goal}", every_s=0.3)

    def overlay(self) -> dict[str, Any]:
        """The view of the overlay as ``status`` tells it."""
        return next(v for v in self.json("status")["views"] if v["view"] == "overlay")

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One call of the operator's command."""
        return subprocess.run(
            [sys.executable, "-m", "provisioner.cli", *words],
            cwd=self.directory,
            text=True,
            capture_output=True,
            timeout=60,
            env={**os.environ, "PROVISIONER_CONFIG": str(self.config), **self.env},
        )

    def json(self, *words: str) -> Any:
        done = self.call(*words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def drones(self, *words: str) -> list[dict[str, Any]]:
        """Drones on record, past ones included; with ``words`` as the command prints them."""
        if words:
            found: list[dict[str, Any]] = self.json("drones", "--all", *words)["items"]
            return found
        return self._listed(ended=None)

    def states(self) -> Counter[str]:
        return Counter(d.state.value for d in self._record.drones(ended=None))

    def live(self) -> list[dict[str, Any]]:
        return self._listed(ended=False)

    def one(self) -> dict[str, Any]:
        """The only drone on record, as `drones` tells it."""
        [drone] = self.drones()
        return drone

    def is_one(self, what: str, holds: Callable[[dict[str, Any]], object], within_s: float = 90) -> dict[str, Any]:
        """Wait until the only drone on record is as wanted."""

        def so() -> dict[str, Any] | None:
            drones = self.drones()
            return drones[0] if len(drones) == 1 and holds(drones[0]) else None

        return until(so, within_s, what=what, every_s=0.5)

    def told(self) -> list[str]:
        """What it has to tell of itself, for a failing test."""
        told = []
        with suppress(OSError):
            told.append(f"--- the controller\n{self.log()[-20000:]}")
        for words in (("drones", "--all", "-o", "wide"), ("sites",), ("demand",)):
            with suppress(OSError, subprocess.SubprocessError):
                told.append(f"--- provisioner {words[0]}\n{self.call(*words).stdout}")
        return told

    # What is asked again and again until it is so is read by the code of the command and not by a process of its own:
    # a third of a second of processor time each, by three workers, is more than the daemons themselves need.

    @property
    def _record(self) -> Reader:
        return Reader(self.directory / "provisioner.db")

    def _listed(self, *, ended: bool | None) -> list[dict[str, Any]]:
        listing = drone_listing(self._record, DroneFilter(), ended)
        found: list[dict[str, Any]] = json.loads(json.dumps(listing.plain()))
        return found

    def processes(self) -> dict[int, str]:
        """Everything on this host that carries an id of this controller."""
        return processes_with(f"PROVISIONER_DRONE_ID={self.name}-")

    def log(self) -> str:
        return (self.directory / "controller.log").read_text(errors="replace")

    def lag_ms(self, after: int) -> int:
        """By how much its loop was held up at worst, by its log ``after`` so many characters: 0 if by nothing (100 ms)
        worth a line."""
        lines = [line for line in self.log()[after:].splitlines() if " lag_ms=" in line]
        lags = [line.partition(" lag_ms=")[2].split()[0] for line in lines]
        return max(map(int, lags), default=0)

    def kill(self) -> None:
        """As a power cut would: no word to anybody."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            end(self.process, signal.SIGTERM, 30)

    def clean_up(self) -> None:
        """Whatever a failed test left, by pid."""
        self.stop()
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
