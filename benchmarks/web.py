"""The web service under load beside a controller with 10,000 drones: ticks with and without clients, answers, memory.

Three processes: a controller in a simulated world in real time, `provisioner serve` as shipped, and
the clients (this one). Ticks begin every two seconds, as they do while drones change their state.
200 clients listen to the events, one more never reads, and others send 50 requests a second,
whether or not those before are answered.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.cost import Figure, tell
from benchmarks.query import memory_mib
from benchmarks.web_controller import DRONES
from provisioner.model import DroneState
from provisioner.store.reader import Reader
from tests.web.conftest import free_port

QUIET_S, LOADED_S, COLD_S = 14.0, 24.0, 8.0
CLIENTS, RATE = 200, 50
CUT_OFF_LIMIT_S = 45.0
API = "/api/v1"


@dataclass
class Load:
    """Clients of the service, and what they got."""

    url: str
    paths: Sequence[str]
    answers: list[tuple[float, float]] = field(default_factory=list)
    """Time of each request, since the start of the load, and its seconds."""
    statuses: Counter[str] = field(default_factory=Counter)
    events: int = 0
    began: float = 0.0

    async def listen(self, session: aiohttp.ClientSession) -> None:
        endless = aiohttp.ClientTimeout(total=None)
        async with session.get(f"{self.url}{API}/events/stream", timeout=endless) as found:
            async for line in found.content:
                self.events += line.startswith(b"data")

    async def ask(self, session: aiohttp.ClientSession, path: str) -> None:
        began = time.monotonic()
        try:
            async with session.get(self.url + path, headers={"Accept-Encoding": "gzip"}) as found:
                await found.read()
                self.statuses[str(found.status)] += 1
        except (aiohttp.ClientError, TimeoutError) as error:
            self.statuses[type(error).__name__] += 1
        self.answers.append((began - self.began, time.monotonic() - began))

    async def run(self) -> float:
        """Send requests for a while, with the listeners connected. Return the seconds until all were answered."""
        timeout, connector = aiohttp.ClientTimeout(total=60.0), aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False
        ) as session:
            listeners = [asyncio.create_task(self.listen(session)) for _ in range(CLIENTS)]
            self.began, asked = time.monotonic(), list[asyncio.Task[None]]()
            for number in range(int(LOADED_S * RATE)):
                await asyncio.sleep(self.began + number / RATE - time.monotonic())
                asked.append(
                    asyncio.create_task(self.ask(session, self.paths[number % len(self.paths)]))
                )
            await asyncio.gather(*asked)
            took_s = time.monotonic() - self.began
            self.statuses["listeners lost"] = sum(task.done() for task in listeners)
            for task in listeners:
                task.cancel()
        return took_s


def deaf_client(port: int) -> socket.socket:
    """Ask for all events on record, and read nothing."""
    deaf = socket.create_connection(("127.0.0.1", port))
    deaf.sendall(
        f"GET {API}/events/stream HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 0.0\r\n\r\n".encode()
    )
    return deaf


def sockets_of(pid: int) -> set[str]:
    found = set[str]()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed since
            found.add(os.readlink(each))
    return {link for link in found if link.startswith("socket:")}


def processor_s(pid: int) -> float:
    """Processor time of a process, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def paths_of(reader: Reader) -> list[str]:
    """Addresses of the API and the pages: each once in a second or so."""
    drone = [each.id for each in reader.drones(limit=8)]
    views = reader.views()
    assert views and views.overlay.view
    of_class = [each.id for each in views.overlay.view.classes if each.waiting]
    api = [
        "status",
        "drones?limit=100",
        f"drones/{drone[0]}",
        f"drones/{drone[1]}",
        "drones?site=site1",
        "drones",
    ]
    api += [
        "sites",
        "sites/site1",
        "demand",
        f"classes/{of_class[0]}",
        f"classes/{of_class[-1]}",
        "plan",
    ]
    api += ["events?since=10s&limit=200", "usage", "estimates", "openapi.json", "schemas"]
    pages = ["", "sites", "drones", "owner", "use", "waste", "plan", "why", "sites/site2"]
    pages += [
        f"drone/{drone[2]}",
        f"drone/{drone[3]}",
        f"why?q={drone[4]}",
        "static/style.css",
        "metrics",
        "-/ready",
    ]
    found = [f"{API}/{path}" for path in api] + [f"/{path}" for path in pages]
    random.Random(1).shuffle(found)
    return found


@contextmanager
def process(*words: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    running = subprocess.Popen(words, text=True, stdout=subprocess.PIPE, **more)
    try:
        yield running
    finally:
        running.kill()
        running.communicate()


async def until(what: Any, seconds: float) -> float:
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds, "it took too long"
        await asyncio.sleep(0.25)
    return time.monotonic() - began


def settled(path: Path) -> bool:
    return path.exists() and len(Reader(path).drones(states=[DroneState.BUSY])) > 0.99 * DRONES


@dataclass(frozen=True)
class Period:
    """Measures of the controller in a part of the time."""

    tick_s: float
    tick_cpu_s: float
    lag_median_s: float
    lag_p99_s: float

    @classmethod
    def of(cls, measured: dict[str, Any], *spans: tuple[float, float]) -> Period:
        def within(at: float) -> bool:
            return any(begin <= at < end for begin, end in spans)

        ticks = [(wall, cpu) for at, wall, cpu in measured["ticks"] if within(at)]
        lags = [lag for at, lag in measured["lags"] if within(at)]
        walls, cpus = zip(*ticks, strict=True)
        return cls(
            statistics.median(walls),
            statistics.median(cpus),
            statistics.median(lags),
            part(lags, 0.99),
        )


def part(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


async def measure(place: Path) -> list[Figure]:
    record, port = place / "record.db", free_port()
    config = place / "provisioner.yaml"
    config.write_text(CONFIG.format(store=record, port=port))
    with process(sys.executable, "-m", "benchmarks.web_controller", str(record)) as controller:
        await until(lambda: settled(record), 60.0)
        serve = [sys.executable, "-m", "provisioner.cli", "serve", str(config)]
        # as its unit has it
        with process("nice", "-n", "5", *serve, stderr=subprocess.DEVNULL) as service:
            await until(lambda: answers(port), 30.0)
            quiet_from, start_mib = time.monotonic(), memory_mib(service.pid, "VmRSS")
            await asyncio.sleep(QUIET_S)
            load = Load(f"http://127.0.0.1:{port}", paths_of(Reader(record)))
            before, cpu_before_s, loaded_from = (
                sockets_of(service.pid),
                processor_s(service.pid),
                time.monotonic(),
            )
            with deaf_client(port):
                await until(lambda: sockets_of(service.pid) - before, 10.0)
                held = sockets_of(service.pid) - before
                cut_off = asyncio.create_task(
                    until(lambda: not sockets_of(service.pid) & held, CUT_OFF_LIMIT_S)
                )
                took_s = await load.run()
                service_cpu_s = processor_s(service.pid) - cpu_before_s
                loaded_to = time.monotonic()
                after_mib = memory_mib(service.pid, "VmRSS")
                cut_off_s = await cut_off
            await asyncio.sleep(QUIET_S / 2)
            peak_mib = memory_mib(service.pid, "VmHWM")
        controller.send_signal(signal.SIGTERM)
        measured = json.loads((await asyncio.to_thread(controller.communicate, timeout=30))[0])
    loaded = Period.of(measured, (loaded_from, loaded_to))
    quiet = Period.of(measured, (quiet_from, loaded_from), (loaded_to, math.inf))
    first = [took for at, took in load.answers if at < COLD_S]
    seconds = [took for at, took in load.answers if at >= COLD_S]
    bad = sum(number for status, number in load.statuses.items() if status != "200")
    return [
        Figure(
            f"a tick with {DRONES:,} drones beside the web service, no clients",
            quiet.tick_s * 1000,
            "ms",
        ),
        Figure(
            f"  with {CLIENTS} listeners and {RATE} requests/s, to that",
            loaded.tick_s / quiet.tick_s,
            "times",
            "1",
        ),
        Figure("  its processor time, to that", loaded.tick_cpu_s / quiet.tick_cpu_s, "times", "1"),
        Figure("  lag of the event loop, no clients: median", quiet.lag_median_s * 1000, "ms"),
        Figure("  with clients, to that", loaded.lag_median_s / quiet.lag_median_s, "times", "1"),
        Figure("  lag, no clients: 99 % below", quiet.lag_p99_s * 1000, "ms"),
        Figure("  with clients, to that", loaded.lag_p99_s / quiet.lag_p99_s, "times", "1"),
        Figure("requests/s answered", len(load.answers) / took_s, "1/s", str(RATE)),
        Figure("  answers: median", statistics.median(seconds) * 1000, "ms"),
        Figure("  95 % within", part(seconds, 0.95) * 1000, "ms", "< 1000"),
        Figure(
            f"  95 % within, of the first {COLD_S:.0f} s, with nothing read",
            part(first, 0.95) * 1000,
            "ms",
        ),
        Figure(
            "  processor seconds of the service per second", service_cpu_s / took_s, "s/s", "< 1"
        ),
        Figure("  refused, failed, or listeners lost", bad, "", "0"),
        Figure("  events that a listener was sent", load.events / CLIENTS, ""),
        Figure("  memory of the service at its start", start_mib, "MiB"),
        Figure("  after the load", after_mib, "MiB"),
        Figure("  peak", peak_mib, "MiB"),
        Figure("  a client that never reads is cut off after", cut_off_s, "s", "< 45"),
    ]


CONFIG = """
controller: bench
store: {{path: {store}}}
overlay: {{adapter: embedded, options: {{path: queue.db}}}}
sites: [none.yaml]
web: {{listen: "127.0.0.1:{port}"}}
"""


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        tell(*asyncio.run(measure(Path(place))))


if __name__ == "__main__":
    main()
