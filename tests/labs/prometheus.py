"""Debian's Prometheus for the tests: ``promtool``, and a server on loopback that scrapes one address."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.labs.htcondor import LabError, fetched

SUITE = "bookworm"


@dataclass(frozen=True)
class PrometheusPrograms:
    directory: Path

    @classmethod
    def fetched(cls) -> PrometheusPrograms:
        """Return the programs; without them the test is skipped."""
        try:
            return cls(fetched("get-prometheus.sh", SUITE))
        except LabError as error:
            pytest.skip(f"no prometheus: {error}")

    def promtool(self, *words: str, stdin: str | None = None) -> str:
        """Run promtool, which has to succeed, and return what it printed."""
        command = [str(self.directory / "promtool"), *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@dataclass(frozen=True)
class PrometheusServer:
    url: str

    def ask(self, path: str, **query: object) -> Any:
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(query)}", timeout=60) as answer:
            return json.load(answer)["data"]

    def wait(self) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                with urlopen(f"{self.url}/-/ready", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        raise LabError(f"prometheus at {self.url} is not ready after 60 s")


@contextmanager
def running_prometheus(
    programs: PrometheusPrograms, directory: Path, port: int, target: str, rules: Mapping[str, Any]
) -> Iterator[PrometheusServer]:
    """Run a server over the blocks in ``directory/data`` that scrapes ``target`` (host:port) every second."""
    scrape = [
        {
            "job_name": "provisioner",
            "scrape_interval": "1s",
            "static_configs": [{"targets": [target]}],
        }
    ]
    (directory / "rules.yml").write_text(json.dumps(rules))
    (directory / "prometheus.yml").write_text(
        json.dumps({"rule_files": ["rules.yml"], "scrape_configs": scrape})
    )
    command = [
        str(programs.directory / "prometheus"),
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            server = PrometheusServer(f"http://127.0.0.1:{port}")
            server.wait()
            yield server
        finally:
            process.kill()
            process.wait()
