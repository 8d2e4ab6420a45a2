"""The controller is killed outright at random moments of a busy run: real processes, real record, real queue."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from adapters.embedded import queue
from provisioner.store.reader import Reader

CAP = 4
SEED = int(os.environ.get("PROVISIONER_CRASH_SEED", "1"))

CONTROLLER = """\
controller: {name}
store: {{path: record.db}}
overlay: {{adapter: embedded, options: {{path: queue.db, lease: 10s, poll: 100ms}}}}
sites: [site.yaml]
policy: {{interval: 300ms, active_interval: 100ms, idle_timeout: 1s, overlay_max_age: 10s, slot_max_age: 15s}}
"""
SITE = """\
site: here
adapter: local
limits: {{max_drones: {cap}, max_gpus: {cap}, max_pending: {cap}, max_starts_per_tick: 2}}
timeouts: {{view_max_age: 15s, poll_deadline: 5s, order_deadline: 5s, order_confirm: 6s, missing: 2s, booting: 30s,
  draining: 20s, stopping: 5s, grace: 2s}}
types:
  gpu: {{gpus: 1, vram: 16 GiB, cpus: 1, memory: 128 MiB, disk: 10 MiB}}
options:
  root: drones
  cpus: 64
  memory: 64 GiB
  disk: 64 GiB
  gpus: [{{count: 16, model: pretended, vram: 16 GiB}}]
"""


class Tagged(NamedTuple):
    """A process of a drone: the drone's id, the process's parent, whether it is a worker (or a fork of one)."""

    drone: str
    parent: int
    worker: bool


def tagged(name: str) -> dict[int, Tagged]:
    """Processes of this controller's drones, by pid."""
    found: dict[int, Tagged] = {}
    wanted = f"PROVISIONER_DRONE_ID={name}-".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = [
                w for w in (process / "environ").read_bytes().split(b"\0") if w.startswith(wanted)
            ]
            if words:
                parent = int((process / "stat").read_bytes().rpartition(b")")[2].split()[1])
                worker = b"adapters.embedded.worker" in (process / "cmdline").read_bytes()
                found[int(process.name)] = Tagged(
                    words[0].partition(b"=")[2].decode(), parent, worker
                )
        except OSError:
            continue
    return found


class Watch(threading.Thread):
    """Looks at the host all the time: how many drones there are at once, and whether any runs twice."""

    def __init__(self, name: str) -> None:
        super().__init__(daemon=True)
        self.controller = name
        self.most = 0
        self.looks = 0
        self.seen: set[str] = set()
        self.twice: set[str] = set()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.05):
            there = tagged(self.controller)
            ids = {p.drone for p in there.values()}
            workers = {pid for pid, p in there.items() if p.worker}
            first = Counter(p.drone for p in there.values() if p.worker and p.parent not in workers)
            self.seen |= ids
            self.most = max(self.most, len(ids))
            self.twice |= {drone for drone, count in first.items() if count > 1}
            self.looks += 1


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    name = f"crash{os.getpid()}"
    (tmp_path / "provisioner.yaml").write_text(CONTROLLER.format(name=name))
    (tmp_path / "site.yaml").write_text(SITE.format(cap=CAP))
    yield tmp_path, name
    for pid in tagged(name):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def controller(place: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "provisioner.cli",
        "run",
        "--config",
        str(place / "provisioner.yaml"),
    ]
    with (place / "log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=place, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.matrix)])
def test_killed_at_any_moment_it_loses_orphans_and_doubles_nothing(
    place: tuple[Path, str], kills: int
) -> None:
    directory, name = place
    moments = random.Random(SEED)
    watch = Watch(name)
    watch.start()
    line = directory / "ran"
    job = ["/bin/sh", "-c", f"sleep 0.5; echo $EMBEDDED_JOB_ID >> {line}"]
    submitted = queue.submit(directory / "queue.db", job, count=30, memory_mib=16)
    began = time.monotonic()
    process = controller(directory)
    while not watch.seen:
        assert process.poll() is None and time.monotonic() < began + 120, (
            directory / "log"
        ).read_text()[-3000:]
        time.sleep(0.05)
    until_busy_s = time.monotonic() - began  # on this host, as busy as it is
    process.send_signal(signal.SIGKILL)
    process.wait()
    for _ in range(kills - 1):
        process = controller(directory)
        # From before it holds its record until well into its ticks; new jobs keep it busy.
        time.sleep(moments.uniform(0.1, max(2.0, 2 * until_busy_s)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        submitted += queue.submit(directory / "queue.db", job, count=2, memory_mib=16)
    killed_while_busy = len(watch.seen)
    process = controller(directory)
    try:
        deadline = time.monotonic() + 360
        reader = Reader(directory / "record.db")
        while time.monotonic() < deadline:
            states = Counter(j.state for j in queue.jobs(directory / "queue.db", limit=10000))
            if set(states) == {queue.JobState.DONE} and not reader.drones() and not tagged(name):
                break
            time.sleep(0.2)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0, (directory / "log").read_text()[-3000:]
    watch.over.set()
    watch.join()
    assert killed_while_busy >= CAP // 2, "the run was busy"
    assert watch.looks > kills
    assert {j.state for j in queue.jobs(directory / "queue.db", ids=submitted, limit=10000)} == {
        queue.JobState.DONE
    }
    assert reader.drones() == [], "no drone on record that is not there"
    assert tagged(name) == {}, "no orphan"
    assert watch.most <= CAP, "never above the cap"
    assert watch.twice == set(), "no drone twice"
    recorded = {str(d.id) for d in reader.drones(ended=None)}
    assert watch.seen <= recorded, "nothing ran that was not on record"
    print(
        f"{kills} kills, {len(recorded)} drones on record, {len(watch.seen)} ran, at most {watch.most} at once"
    )
