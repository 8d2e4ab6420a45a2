"""The real controller on the configuration of the demo, and the real web service beside it, as processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adapters.embedded import queue
from provisioner.cli.demo import end_drones
from provisioner.store.reader import Reader
from tests.labs import htcondor
from tests.labs.ports import free_port

ROOT = Path(__file__).parents[2]


class DemoHost:
    """A directory with the configuration of the demo, a controller and a service in it."""

    def __init__(self, path: Path) -> None:
        self.path, self.running = path, dict[str, subprocess.Popen[bytes]]()
        for file in (ROOT / "site_configs" / "demo").glob("*.yaml"):
            shutil.copy(file, path)
        self.file, self.url = path / "provisioner.yaml", f"http://127.0.0.1:{free_port()}"
        web = f"\nweb:\n  listen: {self.url.removeprefix('http://')}\n"
        self.file.write_text(self.file.read_text() + web)
        self.env = {
            name: value for name, value in os.environ.items() if not name.startswith("PROVISIONER_")
        }
        self.env["PYTHONPATH"] = str(ROOT)

    @property
    def reader(self) -> Reader:
        return Reader(next(self.path.glob("*.db")))

    @property
    def queue(self) -> Path:
        return next(self.path.glob("**/queue.db"))

    def start(self, verb: str) -> None:
        with (self.path / f"{verb}.log").open("ab") as log:
            command = [sys.executable, "-m", "provisioner.cli", verb, "-c", str(self.file)]
            self.running[verb] = subprocess.Popen(
                command, cwd=self.path, env=self.env, stderr=log, stdout=log
            )

    def start_all(self) -> None:
        """Start what does not run, and wait until both answer."""
        for verb in ("run", "serve"):
            if verb not in self.running:
                self.start(verb)
        self.until(lambda: self.get("/api/v1/status")["running"])

    def stop(self, verb: str, how: signal.Signals = signal.SIGTERM) -> int:
        process = self.running.pop(verb)
        process.send_signal(how)
        return process.wait(60)

    def cli(self, *words: str, code: int = 0) -> str:
        """A verb over the unix socket of the service."""
        env = {**self.env, "PROVISIONER_URL": f"unix:{self.path}/web.sock", "COLUMNS": "200"}
        command = [sys.executable, "-m", "provisioner.cli", *words]
        ran = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, timeout=60
        )
        assert ran.returncode == code, ran.stderr
        return ran.stdout

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as found:
            return json.loads(found.read())

    def submit(self, jobs: int, run_s: float = 600, **needs: int) -> list[int]:
        return queue.submit(self.queue, ["sleep", f"{run_s:g}"], count=jobs, memory_mib=16, **needs)

    def until(self, what: Callable[[], object], seconds: float = 60.0) -> None:
        try:
            htcondor.until(what, seconds)
        except AssertionError as error:
            logs = "".join(log.read_text()[-1500:] for log in self.path.glob("*.log"))
            raise AssertionError(f"{error}\n{logs}") from error


@contextmanager
def running_demo(path: Path) -> Iterator[DemoHost]:
    """Start both in a directory. In the end no drone is left."""
    made = DemoHost(path)
    try:
        made.start("run")
        made.until(lambda: list(path.glob("*.db")) and made.reader.views())
        made.start_all()
        yield made
        made.start_all()
        made.cli("sites", "disable", "local", "--reason", "the test ends")
        made.cli("drones", "kill", "--site", "local", "--reason", "the test ends", "--yes")
        made.until(lambda: not made.reader.drones())
        for verb in list(made.running):
            assert made.stop(verb) == 0
    finally:
        for process in made.running.values():
            process.kill()
            process.wait(60)
        end_drones(Reader(path / "provisioner.db"))
