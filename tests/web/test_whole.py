"""The service and a real controller as processes: requests over the API happen and are recorded."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.model import DroneState
from tests.labs.demo import DemoHost, running_demo
from tests.web.conftest import ME

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("demo")]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[DemoHost]:
    with running_demo(tmp_path) as made:
        yield made


class Follower(threading.Thread):
    """A client of the stream that comes again with the last id that it got."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url, self.last, self.rows, self.ends = (
            f"{url}/api/v1/events/stream",
            "0.0",
            list[dict[str, Any]](),
            0,
        )

    def run(self) -> None:
        while True:
            try:
                request = urllib.request.Request(self.url, headers={"Last-Event-ID": self.last})
                with urllib.request.urlopen(request, timeout=60) as found:
                    for line in found:
                        name, _, value = line.decode().strip().partition(": ")
                        if name == "id":
                            self.last = value
                        elif name == "data" and "name" in (row := json.loads(value)):
                            # else it tells of a tick
                            self.rows.append(row)
            except (OSError, http.client.HTTPException):
                pass
            self.ends += 1
            time.sleep(0.2)


def test_a_disabled_site_gets_no_drones_across_a_restart_and_says_why(host: DemoHost) -> None:
    host.cli("sites", "disable", "local", "--reason", "cooling is repaired")
    host.submit(2)
    host.until(lambda: "cooling is repaired" in host.cli("demand"))
    host.stop("run")
    assert "cooling is repaired" in host.cli("sites"), "it needs no controller to be known"
    host.start("run")
    tick = host.reader.position().tick
    host.until(lambda: host.reader.position().tick > tick + 3)
    assert not host.reader.drones(ended=None)
    (site,) = host.get("/api/v1/sites")["items"]
    assert site["enabled"] is False and f"disabled by {ME}" in site["note"]
    assert "is disabled by" in host.cli(
        "explain", "class", host.get("/api/v1/demand")["items"][0]["id"]
    )
    host.cli("sites", "enable", "local", "--reason", "cool again")
    host.until(lambda: host.reader.drones(states=[DroneState.BUSY]))
    assert not host.reader.requests(), "both are carried out"


def test_drones_are_drained_and_killed_and_the_stream_tells_it_across_restarts(
    host: DemoHost,
) -> None:
    follower = Follower(host.url)
    follower.start()
    host.submit(2)
    host.until(lambda: len(host.reader.drones(states=[DroneState.BUSY])) == 2)
    first, second = (drone.id for drone in host.reader.drones())
    host.cli("drones", "drain", first, "--mode", "fast", "--reason", "new fan")
    host.until(lambda: host.reader.drone(first).state.ended)
    assert host.stop("serve") == 0
    host.stop("run")
    host.start("run")
    host.start("serve")
    host.until(lambda: host.get("/api/v1/status")["running"])
    host.cli("drones", "kill", second, "--reason", "hung")
    host.until(lambda: host.reader.drone(second).state.ended)
    host.cli("sites", "disable", "local", "--reason", "enough")
    host.until(lambda: [r for r in follower.rows if (r["fields"] or {}).get("reason") == "enough"])
    told = [(row["name"], row["drone"]) for row in follower.rows]
    assert follower.ends >= 1 and len(told) == len(set(map(json.dumps, follower.rows))), (
        "nothing twice"
    )
    for drone in (first, second):
        steps = [row["name"] for row in follower.rows if row["drone"] == drone]
        assert steps == [step.state.value for step in host.reader.history(drone)], (
            "nothing is missing"
        )
    asked = [row["fields"] for row in follower.rows if row["name"] == "request.recorded"]
    assert [(each["kind"], each["by"]) for each in asked] == [
        ("drain", ME),
        ("kill", ME),
        ("disable", ME),
    ]
    assert "new fan" in host.cli("explain", "drone", first)


def test_a_changed_configuration_is_taken_over_and_one_service_has_the_place(
    host: DemoHost,
) -> None:
    site = host.path / "local.yaml"
    site.write_text(site.read_text().replace("max_drones: 6", "max_drones: 5"))
    host.cli("reload")
    host.until(lambda: host.get("/api/v1/sites")["items"][0]["max_drones"] == 5)
    site.write_text(site.read_text().replace("max_drones: 5", "max_drones: -5"))
    host.cli("reload")
    host.until(lambda: [e for e in host.reader.events() if e.name == "config.rejected"])
    assert len([e for e in host.reader.events() if e.name.startswith("config.")]) == 2, (
        "each was read once"
    )
    command = [sys.executable, "-m", "provisioner.cli", "serve", "-c", str(host.file)]
    site.write_text(site.read_text().replace("max_drones: -5", "max_drones: 5"))
    ran = subprocess.run(
        command, env=host.env, capture_output=True, text=True, check=False, timeout=60
    )
    assert (
        ran.returncode == 1
        and "another service does" in ran.stderr
        and "Traceback" not in ran.stderr
    )
    host.cli("status")  # the first one goes on
    host.running["serve"].kill()
    host.running.pop("serve").wait()
    assert (host.path / "web.sock").is_socket(), "left over"
    host.start("serve")
    host.until(lambda: host.get("/api/v1/status")["running"])
    host.cli("status")
