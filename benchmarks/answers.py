"""Answers of the command line and of the web service with 10,000 and 100,000 drones on record: processor seconds.

The record is that of :mod:`benchmarks.loop`, left by a controller that has ended. Each verb is a
process of its own. The web service is one process, asked for one path after the other, each twice:
after the first one it has decoded the record. Meanwhile somebody asks for ``/-/healthy`` all the
time: the longest answer to that is the time for which a page held the service up.

``python -m benchmarks.answers --record DIRECTORY`` keeps the records there, and uses those that it
finds. ``--drones 100000`` measures one of the sizes.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from benchmarks import loop
from benchmarks.cost import Figure, tell
from benchmarks.query import memory_mib
from benchmarks.web import processor_s

TICKS = 6
WANTED_S = {
    "status --check": 0.5,
    "status": 1.0,
    "demand": 1.0,
    "sites": 1.0,
    "explain class 1": 1.0,
    "drones": 2.0,
}
"""Verbs with the processor seconds that they may take with 100,000 drones."""
VERBS = (
    *WANTED_S,
    "status -o json",
    "demand -o json",
    "drones -o json",
    "drones --limit 100",
    "drones show 500",
    "plan",
    "usage",
    "events",
)
PATHS = (
    "/metrics",
    "/-/ready",
    "/",
    "/sites",
    "/sites/site0",
    "/drones",
    "/owner",
    "/use",
    "/waste",
    "/plan",
    "/drone/bench-abcd-500",
    "/class/1",
    "/job/1.5",
    "/api/v1/status",
    "/api/v1/sites",
    "/api/v1/demand",
    "/api/v1/drones?limit=500",
    "/api/v1/drones",
    "/api/v1/classes/1",
    "/api/v1/plan",
)
LONGEST_S = 120.0
CONFIG = """
controller: bench
store: {{path: {store}}}
overlay: {{adapter: embedded, options: {{path: queue.db}}}}
sites: [none.yaml]
web: {{listen: "", socket: {socket}}}
"""


async def make(directory: Path, size: tuple[int, int, int]) -> Path:
    """Return a record of that size, made if it is not there."""
    path = directory / str(size[0]) / "record.db"
    if not path.exists():
        path.parent.mkdir(parents=True)
        await loop.play(size, path, TICKS, loop.Asked(anew=False, profile=None))
    return path


def verb_cost(record: Path, verb: str) -> float:
    """Return the processor seconds of one run of a verb."""
    command = [sys.executable, "-m", "provisioner.cli", *verb.split(), "--store", str(record)]
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    # of `status --check`: no controller runs
    assert process.returncode in (0, 2), f"{verb}: exit code {process.returncode}"
    return used.ru_utime + used.ru_stime


@contextmanager
def served(record: Path) -> Iterator[tuple[int, Path]]:
    """Run the web service of a record; yield its process id and its socket."""
    place = record.with_name("web.sock")
    config = record.with_name("provisioner.yaml")
    config.write_text(CONFIG.format(store=record, socket=place))
    command = [sys.executable, "-m", "provisioner.cli", "serve", str(config)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as service:
        try:
            while not place.exists():
                assert service.poll() is None, "the web service has ended"
                time.sleep(0.1)
            time.sleep(0.5)
            yield service.pid, place
        finally:
            service.send_signal(signal.SIGTERM)


def get(place: Path, path: str) -> int:
    """Ask the web service; return the length of its answer."""
    connection = http.client.HTTPConnection("localhost", timeout=LONGEST_S)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(LONGEST_S)
    connection.sock.connect(str(place))
    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status in (200, 404, 503), f"{path}: {answer.status} {body[:200]!r}"
    return len(body)


class Watch(threading.Thread):
    """Somebody who asks for ``/-/healthy`` all the time."""

    def __init__(self, place: Path) -> None:
        super().__init__(daemon=True)
        self.place, self.longest_s, self.ended = place, 0.0, False

    def run(self) -> None:
        while not self.ended:
            began = time.perf_counter()
            get(self.place, "/-/healthy")
            self.longest_s = max(self.longest_s, time.perf_counter() - began)
            time.sleep(0.02)


def path_cost(pid: int, place: Path, path: str) -> tuple[float, float, float]:
    """Return processor seconds of the first and the second answer, and the longest block of the service."""
    found = []
    watch = Watch(place)
    watch.start()
    for _ in range(2):
        before = processor_s(pid)
        get(place, path)
        found.append(processor_s(pid) - before)
        time.sleep(2.2)  # as long as an answer is given again
    watch.ended = True
    watch.join()
    return found[0], found[1], watch.longest_s


def figures(record: Path, drones: int) -> list[Figure]:
    large = drones == max(size[0] for size in loop.SIZES)
    found = []
    for verb in VERBS:
        cost_s = verb_cost(record, verb)
        wanted = f"<= {WANTED_S[verb]}" if large and verb in WANTED_S else ""
        if not large and verb == "drones -o json":
            wanted = "<= 0.3"
        found.append(Figure(f"{verb}, {drones:,} drones", cost_s, "s", wanted))
    with served(record) as (pid, place):
        for path in PATHS:
            first_s, again_s, blocked_s = path_cost(pid, place, path)
            what = f"{path}, {drones:,} drones; first {first_s:.2f} s, blocked {blocked_s:.2f} s"
            wanted = "<= 0.3" if path == "/metrics" else "<= 1" if large else ""
            found.append(Figure(what, again_s, "s", wanted))
        memory = memory_mib(pid, "VmHWM")
        found.append(Figure(f"memory of the web service, {drones:,} drones", memory, "MiB"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--record", type=Path)
    parser.add_argument("--drones", type=int, nargs="*")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as directory:
        told = []
        for size in loop.SIZES[1:]:
            if not asked.drones or size[0] in asked.drones:
                record = asyncio.run(make(asked.record or Path(directory), size))
                told += figures(record, size[0])
                for each in told if asked.drones else ():
                    print(f"{each.what:70} {each.value:8.2f} {each.unit}  {each.wanted}")
    tell(*told)


if __name__ == "__main__":
    main()
