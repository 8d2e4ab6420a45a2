"""5,000 drones at a real Slurm site, by its tools: asked for, looked at tick by tick, withdrawn; calls, bytes, seconds.

The controller with the SQLite store and the adapter as shipped, before a Slurm 24.11 of our own, which
tests/labs/get-slurm.sh fetches, with as many A100 nodes as HoreKa, of which four are more than a name; their GPUs are
the owner's, so all drones wait. The pool is a number of waiting jobs. Beside it, what the same queue costs who reads
``squeue --json``, and what it costs to call ``sbatch`` for each drone, as COBalD/TARDIS does. Processor time is that of
the controller and of Slurm's tools, the lab's way into the cluster and the counting of calls included; slurmctld's own
is not.

Needs root for the cluster's namespaces. Exit status 3, with a line that says why, where there is none.

    slurm.py [DRONES]     5000 unless told
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import structlog

from adapters.slurm import SlurmSite
from adapters.slurm.settings import SlurmSiteConfig
from benchmarks.cost import Figure, cpu_s, peak_mib, tell
from provisioner.controller.clock import SteadyClock
from provisioner.controller.loop import Controller
from provisioner.model import (
    Bootstrap,
    DrainMode,
    DroneId,
    DroneState,
    DroneType,
    JobClass,
    OrderResult,
    OverlayView,
    Policy,
    SitePolicy,
    StartOrder,
)
from provisioner.store.writer import SqlStore
from tests.labs.slurm import Call, CountedTools, NoNamespaces, Slurm, SlurmLab, running_slurm

SUITE = "trixie"
ABSENT = 3
NODES = 163
"""Beside the lab's own four: 167 nodes of HoreKa have four A100 each."""
MORE_NODES = f"""
NodeName=hkx[0001-{NODES:04}] NodeAddr=127.0.0.1 Port=9 State=DOWN Sockets=2 CoresPerSocket=38 ThreadsPerCore=2 \
RealMemory=512000 Gres=gpu:a100:4
PartitionName=large Nodes=ALL MaxTime=2-00:00:00 State=UP
"""
TICKS = 10
ONE_BY_ONE = 100
GPU = DroneType(
    "horeka",
    "a100",
    gpu_milli=1000,
    cpus=8,
    memory_mib=20480,
    disk_mib=1024,
    vram_mib=40960,
    gpu_model="A100",
    capability=80,
    walltime_s=3600.0,
)


@dataclass
class Jobs:
    """A pool in which GPU jobs wait, and nothing ever joins."""

    waiting: int

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        pass

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        now = time.time()
        found = (
            JobClass("1", 1000, 1, 1024, waiting=self.waiting, oldest_at=now - 60, job_ids="1.0"),
        )
        return OverlayView(now, found if self.waiting else (), negotiated_at=now)

    async def drain(
        self, drone_ids: Sequence[DroneId], mode: DrainMode, reason: str
    ) -> Sequence[OrderResult]:
        return []

    async def bootstrap(self, order: StartOrder) -> Bootstrap:
        return Bootstrap(
            b"#!/bin/sh\nexec sleep 1000\n", {"POOL": "pool.example.org"}, {"token": b"secret"}
        )


@dataclass
class Part:
    """What a part of it took."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    ticks: int = 0
    calls: list[Call] = field(default_factory=list)

    def count(self, tool: str) -> int:
        return Counter(call.tool for call in self.calls)[tool]


@dataclass
class Bench:
    """A controller before a cluster, ticked by hand."""

    lab: SlurmLab
    tools: CountedTools
    pool: Jobs
    store: SqlStore
    controller: Controller

    @contextmanager
    def part(self) -> Iterator[Part]:
        found = Part(ticks=self.store.tick, calls=self.tools.calls())
        wall, cpu = time.perf_counter(), cpu_s()
        yield found
        found.wall_s, found.cpu_s = time.perf_counter() - wall, cpu_s() - cpu
        found.ticks, found.calls = self.store.tick - found.ticks, self.tools.calls(len(found.calls))

    async def ticked_until(self, so: Callable[[], bool]) -> None:
        limit = time.monotonic() + 300
        while not so():
            assert time.monotonic() < limit, Counter(d.state for d in self.store.drones.values())
            report = await self.controller.tick()
            assert report.recorded and not report.faults, report.faults
            await asyncio.sleep(0.5)

    def queued(self) -> int:
        return sum(d.state is DroneState.QUEUED for d in self.store.drones.values())


async def play(lab: SlurmLab, drones: int, place: Path) -> list[Figure]:
    tools, pool = CountedTools(lab), Jobs(drones)
    config = SlurmSiteConfig.model_validate(
        {
            "partition": "large",
            "types": {"a100": {"gres": "gpu:a100"}},
            "tools": {"bin": str(tools.directory)},
            "deadline": "60s",
        }
    )
    limits = SitePolicy(
        "horeka",
        max_drones=2 * drones,
        max_pending=2 * drones,
        max_starts_per_tick=2 * drones,
        queue_when_full=True,
        poll_deadline_s=90.0,
        order_deadline_s=180.0,
        missing_s=1.0,
    )
    policy = Policy(idle_timeout_s=600.0, max_drones=2 * drones, sites={"horeka": limits})
    async with (
        SlurmSite("horeka", config, [GPU], "bench") as site,
        SqlStore(place, "bench", keep_s=30 * 86400.0, snapshots=50) as store,
        Controller(
            "bench", policy, [GPU], pool, {"horeka": site}, store, SteadyClock()
        ) as controller,
    ):
        bench = Bench(lab, tools, pool, store, controller)
        with bench.part() as asked:
            await bench.ticked_until(lambda: bench.queued() == drones)
        take_apart(lab)
        await controller.tick()
        with bench.part() as steady:
            for _ in range(TICKS):
                await controller.tick()
        assert bench.queued() == drones, "not a steady state"
        with bench.part() as looks:
            for _ in range(TICKS):
                await site.poll()
        peak = peak_mib()
        json_cpu_s, json_bytes = as_json(lab)
        pool.waiting = 0
        controller.policy = replace(policy, idle_timeout_s=0.5)
        with bench.part() as withdrawn:
            await bench.ticked_until(lambda: not store.drones)
    each_cpu_s = one_by_one(lab)
    listed = [call.answer for call in steady.calls if call.tool == "squeue"]
    assert len(listed) <= TICKS, "more than one listing in a tick"
    return [
        Figure(
            f"{drones:,} drones asked for at a Slurm site: until all are seen in its queue",
            asked.wall_s,
            "s",
        ),
        Figure("  processor time", asked.cpu_s, "s"),
        Figure("  calls of sbatch", asked.count("sbatch"), ""),
        Figure(
            "  `sbatch` for each drone, the calls alone: processor time, to ours of everything",
            each_cpu_s * drones / asked.cpu_s,
            "times",
        ),
        Figure(
            f"one tick with {drones:,} own jobs there: processor time of all",
            steady.cpu_s / TICKS,
            "s",
            "< 2",
        ),
        Figure("  of which the site's look", looks.cpu_s / TICKS, "s"),
        Figure("  calls of squeue", steady.count("squeue") / TICKS, "", "<= 1"),
        Figure("  calls of other tools", (len(steady.calls) - len(listed)) / TICKS, ""),
        Figure("  answer of squeue", statistics.mean(listed) / 2**20, "MiB"),
        Figure("  seconds", steady.wall_s / TICKS, "s"),
        Figure("  peak memory of the controller", peak, "MiB"),
        Figure("  the same queue by `squeue --json`", json_bytes / 2**20, "MiB"),
        Figure("    processor time to ask and to parse", json_cpu_s, "s"),
        Figure("    bytes, to ours", json_bytes / statistics.mean(listed), "times"),
        Figure(
            "    processor time, to that of our look", json_cpu_s / (looks.cpu_s / TICKS), "times"
        ),
        Figure(f"{drones:,} withdrawn: until none is at the site", withdrawn.wall_s, "s"),
        Figure("  processor time", withdrawn.cpu_s, "s"),
        Figure("  calls of scancel", withdrawn.count("scancel"), ""),
    ]


def take_apart(lab: SlurmLab) -> None:
    """Have slurmctld keep a record for each task of the arrays, as it does once they run: until
    then it is one for all, which is no measure for anything."""
    for line in lab.run("squeue", "-h", "--me", "-o", "%F %K").splitlines():
        job, _, tasks = line.partition(" ")
        first, _, last = tasks.partition("-")
        lab.run("scontrol", "update", f"jobid={job}_[{int(first) + 1}-{last}]", "nice=1")


def as_json(lab: SlurmLab) -> tuple[float, int]:
    """Processor seconds to have the queue as JSON and to parse it, and its bytes. The mean of three."""
    seconds, text = [], b""
    for _ in range(3):
        begin = cpu_s()
        text = subprocess.run(
            [str(lab.tools / "squeue"), "--me", "--json"],
            capture_output=True,
            timeout=300,
            check=True,
        ).stdout
        json.loads(text)
        seconds.append(cpu_s() - begin)
    return statistics.mean(seconds), len(text)


def one_by_one(lab: SlurmLab) -> float:
    """Processor seconds of one ``sbatch`` for one drone."""
    script = b"#!/bin/sh\nexec sleep 1000\n"
    sbatch = [
        str(lab.tools / "sbatch"),
        "--parsable",
        "-p",
        "accelerated",
        "--gres=gpu:a100:1",
        "-o",
        "/dev/null",
    ]
    begin = cpu_s()
    for _ in range(ONE_BY_ONE):
        subprocess.run(sbatch, input=script, capture_output=True, timeout=60, check=True)
    return (cpu_s() - begin) / ONE_BY_ONE


def main() -> None:
    drones = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        slurm = Slurm.fetched(SUITE)
    except NoNamespaces as error:
        print(f"not measured: {error}", file=sys.stderr)
        sys.exit(ABSENT)
    with (
        running_slurm(slurm, a100=4, h100=0, rest=False, ssh=False, extra=MORE_NODES) as lab,
        tempfile.TemporaryDirectory() as place,
    ):
        for _ in range(4):
            job = lab.sbatch(
                "#!/bin/sh\nexec sleep 36000\n",
                "-p",
                "accelerated",
                "--gres=gpu:a100:4",
                user="owner",
            )
            lab.reaches(job, "RUNNING")
        figures = asyncio.run(play(lab, drones, Path(place) / "record.db"))
    tell(*figures)


if __name__ == "__main__":
    main()
