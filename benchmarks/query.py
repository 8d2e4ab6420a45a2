"""One look at a real HTCondor pool with 50,000 idle GPU jobs, through the real adapter: seconds and memory.

Real daemons (tests/labs/get-condor.sh fetches them), one schedd, no slot. The adapter's child
process does the work; its memory is read from the kernel.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import sys
import time
from pathlib import Path

from benchmarks.cost import Figure, peak_mib, tell
from benchmarks.world import drone_types
from tests.htcondor_overlay.live import overlay_on
from tests.labs.htcondor import Condor, Pool, children_of, gpu_job, running_pool

SUITE = "trixie"
CLASSES = 100
LOOKS = 5
ROOMY = """
MAX_JOBS_PER_OWNER = 1000000
MAX_JOBS_SUBMITTED = 1000000
MAX_JOBS_PER_SUBMISSION = 1000000
"""


def fill(pool: Pool, jobs: int) -> float:
    """Submit ``jobs`` in :data:`CLASSES` kinds; the seconds that it took."""
    begin = time.perf_counter()
    for number in range(CLASSES):
        more = (
            f"gpus_minimum_memory = {1000 * (number % 40)}\naccounting_group = group{number % 10}\n"
        )
        pool.submit(gpu_job(60, memory_mib=128 + number, more=more, n=jobs // CLASSES))
    return time.perf_counter() - begin


def memory_mib(pid: int, line: str) -> float:
    found = re.search(
        rf"^{line}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    return int(found[1]) / 1024 if found else 0.0


async def poll(pool: Pool, jobs: int) -> list[Figure]:
    types = drone_types(20)
    seconds = []
    async with overlay_on(pool, deadline="10min") as overlay:
        for _ in range(LOOKS):
            begin = time.perf_counter()
            view = await overlay.poll(types)
            seconds.append(time.perf_counter() - begin)
        child = max(children_of(os.getpid()), key=lambda pid: memory_mib(pid, "VmHWM"))
        peak = memory_mib(child, "VmHWM")
    seen, classes = sum(c.waiting + c.fresh for c in view.classes), len(view.classes)
    assert seen == jobs, f"{seen} of {jobs} jobs seen"
    what = f"one look at {jobs:,} idle jobs in {classes} classes, 20 drone types: median"
    return [
        Figure(what, statistics.median(seconds), "s"),
        Figure("  the first, which starts the child", seconds[0], "s"),
        Figure("  peak memory of the child", peak, "MiB"),
        Figure("  peak memory of the controller's side", peak_mib(), "MiB"),
    ]


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    with running_pool(Condor.fetched(SUITE), "bench", ROOMY) as pool:
        took = fill(pool, jobs)
        print(f"{jobs} jobs submitted in {took:.0f} s", file=sys.stderr)
        figures = asyncio.run(poll(pool, jobs))
    tell(*figures)


if __name__ == "__main__":
    main()
