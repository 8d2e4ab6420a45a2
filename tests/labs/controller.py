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

from provisioner.answers.drones import DroneFilter, drone_listing
from provisioner.answers.query import ListQuery
from provisioner.answers.sites import sites
from provisioner.store import StoreError
from provisioner.store.reader import Reader
from tests.labs.htcondor import (
    IDENTITIES,
    LOOPBACK,
    QUICK_DRONE,
    Pool,
    end,
    kill,
    launch,
    own,
    processes_with,
    until,
)

Settings = Mapping[str, Any]


class SiteSettings(Protocol):
    """A site of the lab as the controller gets to know it."""

    @property
    def name(self) -> str: ...

    def settings(self, controller: LabController) -> Settings:
        """Its site file, but for its name; other files that it names are put into the controller's directory."""
        ...


def limits(most: int) -> Settings:
    return {"max_drones": most, "max_pending": most, "max_starts_per_tick": most}


def gpu_type(model: str, vram_mib: int, capability: float, **size: Any) -> Settings:
    """A drone type of one GPU."""
    return {
        "gpus": 1,
        "gpu_model": model,
        "vram": f"{vram_mib} MiB",
        "capability": capability,
        **size,
    }


A100, V100 = ("A100-SXM4-40GB", 47661, 8.0), ("Tesla V100-PCIE-16GB", 24220, 7.0)
"""GPUs as ``condor_gpu_discovery -simulate`` knows them, by the numbers 4 and 2."""


@dataclass(frozen=True)
class LabSite:
    """A ``local`` site of one drone type with simulated GPUs."""

    name: str
    kind: str
    gpu: tuple[str, int, float]
    simulate: int
    most: int = 12
    type: Settings = field(default_factory=dict)
    """Settings of the drone type that differ."""

    def settings(self, controller: LabController) -> Settings:
        model, vram, capability = self.gpu
        gpus = {
            "count": 64,
            "model": model,
            "vram": f"{vram} MiB",
            "capability": capability,
            "simulate": self.simulate,
        }
        room = {"cpus": 1000, "memory": "1000 GiB", "disk": "1000 GiB", "gpus": [gpus]}
        return {
            "adapter": "local",
            "limits": limits(self.most),
            "timeouts": controller.timeouts(
                order_deadline="15s", order_confirm="20s", missing="5s", grace="10s"
            ),
            "types": {
                self.kind: gpu_type(*self.gpu, cpus=2, memory="512 MiB", disk="2 GiB") | self.type
            },
            "options": {
                "root": f"drones-{self.name}",
                "retain_finished": "1h",
                "same_account": True,
                **room,
            },
        }


BIG = LabSite("big", "a100", A100, 4)
SMALL = LabSite("small", "v100", V100, 2)


@dataclass
class LabController:
    """``provisioner run`` against a real pool; its answers as an operator gets them."""

    pool: Pool
    directory: Path
    sites: Sequence[SiteSettings] = (BIG, SMALL)
    idle_s: int = 6
    boot_s: int = 180
    name: str = field(default_factory=lambda: own("lab"))
    condor_prefix: str = ""
    """Where the drones are told to find HTCondor; default: where it is."""
    options: Settings = field(default_factory=dict)
    """Options of the overlay that differ; None: not told."""
    policy: Settings = field(default_factory=dict)
    """Settings of the policy that differ."""
    sections: Settings = field(default_factory=dict)
    """Further sections of its file."""
    run_options: Sequence[str] = ()
    around: Sequence[str] = ()
    """Words before its command, and before the operator's."""
    program: Sequence[str] = (sys.executable, "-m", "provisioner.cli")
    process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> Sequence[str]:
        return (*self.around, *self.program)

    @property
    def config(self) -> Path:
        return self.directory / "provisioner.yaml"

    def timeouts(self, **more: str) -> Settings:
        """Return the timeouts of a site."""
        return {"booting": f"{self.boot_s}s", "stopping": "30s", **more}

    def secret(self, name: str, text: str) -> Path:
        """A file of the controller that nobody else may read."""
        file = self.directory / name
        file.touch(mode=0o600)
        file.write_text(text)
        return file

    def write(self) -> None:
        """Its configuration, with tokens of its own. JSON is YAML."""
        self.directory.mkdir(parents=True, exist_ok=True)
        policy = {"interval": "1s", "active_interval": "500ms", "overlay_max_age": "12s"}
        settings = {
            "controller": self.name,
            "store": {"path": "provisioner.db"},
            "overlay": self.overlay_settings(),
            "sites": ["site-*.yaml"],
            "policy": {"idle_timeout": f"{self.idle_s}s", **policy, **self.policy},
            **self.sections,
        }
        self.config.write_text(json.dumps(settings, indent=1))
        for site in self.sites:
            text = json.dumps({"site": site.name, **site.settings(self)}, indent=1)
            (self.directory / f"site-{site.name}.yaml").write_text(text)

    def overlay_settings(self) -> Settings:
        for identity in ("admin", "drone"):
            self.secret(f"{identity}.token", self.pool.token(identity, IDENTITIES[identity]) + "\n")
        prefix = self.pool.condor.prefix
        options = {
            "collector": self.pool.collector,
            "trust_domain": self.pool.domain,
            "token": {"file": "admin.token"},
            "drone_token": {"file": "drone.token"},
            "drain_tool": str(prefix / "usr/bin/condor_drain"),
            "condor_prefix": self.condor_prefix or str(prefix),
            "deadline": "15s",
            "client_config": LOOPBACK,
            "drone_config": QUICK_DRONE,
        }
        told = {
            name: value for name, value in {**options, **self.options}.items() if value is not None
        }
        return {"adapter": "htcondor", "options": told}

    def start(self, *, write: bool = True) -> LabController:
        """Start it, and wait for its first tick."""
        if write:
            self.write()
        checked = self.call("check", str(self.config))
        assert checked.returncode == 0, checked.stdout + checked.stderr
        self.begin()
        self.ticks(1)
        return self

    def begin(self) -> None:
        """Only start the process."""
        command = (*self.command, "run", "--config", self.config, *self.run_options)
        self.process = launch(
            command, self.directory / "controller.log", env=os.environ, cwd=self.directory
        )

    @property
    def tick(self) -> int:
        """Number of the newest tick; 0 before the first."""
        try:
            views = self.record.views()
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
            [*self.command, *words],
            cwd=self.directory,
            text=True,
            capture_output=True,
            timeout=60,
            env={**os.environ, "PROVISIONER_CONFIG": str(self.config)},
        )

    def prints(self, *words: str) -> str:
        """Return the output of a call that has to succeed."""
        done = self.call(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.prints(*words, "-o", "json"))

    # Polls in a loop run the code of the command in this process, not in one of their own: a third
    # of a second of processor time each, by three workers, is more than the daemons themselves
    # need.

    def site_row(self) -> dict[str, Any]:
        """The only site as `sites` tells it."""
        [row] = json.loads(json.dumps([*sites(self.record, ListQuery()).plain()]))
        return row

    @property
    def record(self) -> Reader:
        return Reader(self.directory / "provisioner.db")

    def drones(self, ended: bool | None = None) -> list[dict[str, Any]]:
        """Drones on record as `drones` tells them, past ones included unless ``ended`` says which."""
        listing = drone_listing(self.record, DroneFilter(), ended)
        return json.loads(json.dumps([*listing.plain()]))

    def states(self) -> Counter[str]:
        return Counter(d.state.value for d in self.record.drones(ended=None))

    def settles(self, states: dict[str, int], within_s: float = 60.0) -> None:
        """Wait until the drones on record, past ones included, are in these states."""
        try:
            until(lambda: self.states() == states, within_s, what="the drones' states", every_s=0.5)
        except AssertionError as error:
            raise AssertionError(
                f"{error}; wanted {states}, there are {dict(self.states())}"
            ) from None

    def live(self) -> list[dict[str, Any]]:
        return self.drones(ended=False)

    def all_gone(self, *left: Callable[[], object]) -> None:
        """Wait until no drone is on record as living, has a process on this host, or has ``left`` anything."""
        for each in (self.live, self.processes, *left):
            until(
                lambda each=each: not each(), 90, what="nothing is left of any drone", every_s=0.5
            )

    def story(self) -> str:
        """What it has to tell of itself, for a failing test."""
        told = []
        with suppress(OSError):
            told.append(f"--- the controller\n{self.log()[-20000:]}")
        for words in (("drones", "--all", "-o", "wide"), ("sites", "-o", "json"), ("demand",)):
            with suppress(OSError, subprocess.SubprocessError):
                told.append(f"--- provisioner {words[0]}\n{self.call(*words).stdout}")
        return "\n".join(told)

    def processes(self) -> dict[int, str]:
        """Everything on this host that carries an id of this controller."""
        return processes_with(f"PROVISIONER_DRONE_ID={self.name}-")

    def log(self) -> str:
        return (self.directory / "controller.log").read_text(errors="replace")

    def lag_ms(self, after: int) -> int:
        """By how much its loop was held up at worst, by its log ``after`` so many characters: 0 if
        by nothing (100 ms) worth a line."""
        lines = [line for line in self.log()[after:].splitlines() if " lag_ms=" in line]
        return max((int(line.partition(" lag_ms=")[2].split()[0]) for line in lines), default=0)

    def kill(self) -> None:
        """As a power cut would: no word to anybody."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def stop(self) -> None:
        if self.process is not None:
            end(self.process, signal.SIGTERM, 45)

    def clean_up(self) -> None:
        """Whatever a failed test left, by pid."""
        try:
            self.stop()
        finally:
            kill(*self.processes())


@dataclass
class Sightings:
    """Numbers of processes of each drone of a controller at its site, at each look past the provisioner."""

    controller: LabController
    look: Callable[[], Counter[str]]
    seen: list[Counter[str]] = field(default_factory=list)

    def __call__(self) -> None:
        self.seen.append(self.look())

    def no_orphan_no_duplicate(self, most: int) -> None:
        assert self.seen, "nothing was looked at"
        assert max(each.total() for each in self.seen) <= most, "never above the cap"
        assert max(max(each.values(), default=0) for each in self.seen) <= 1, (
            "no drone twice at a time"
        )
        recorded = {each["id"] for each in self.controller.drones()}
        assert {drone_id for each in self.seen for drone_id in each} <= recorded, (
            "none that is not on record"
        )
