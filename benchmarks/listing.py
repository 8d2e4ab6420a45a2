"""`provisioner drones` with 10,000 drones on record, and no controller: wall seconds of the whole command."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.cost import Figure, cpu_s, tell, timed
from benchmarks.world import NOW, drone_types, drones, snapshot
from provisioner.model import Plan, StateChange
from provisioner.reasons import SeenInPool
from provisioner.store.writer import SqlStore

DRONES = 10_000
TIMES = 5


async def fill(path: Path) -> None:
    """A record with live drones, as a controller leaves it when it is killed."""
    alive = drones(DRONES, drone_types(200))
    moves = tuple(StateChange(drone, None, SeenInPool("busy", 1, 60.0)) for drone in alive.values())
    async with SqlStore(path, "bench", keep_s=30 * 86400.0, snapshots=1) as store:
        await store.record(
            Plan(1, NOW, moves=moves), snapshot(jobs=1000, classes=10, types=200, drones_alive=0)
        )


def run(path: Path, *words: str) -> str:
    command = [sys.executable, "-m", "provisioner.cli", *words, "--store", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "record.db"
        asyncio.run(fill(path))
        before = cpu_s()
        answer, as_json = timed(lambda: run(path, "drones", "-o", "json"), TIMES)
        work_s = (cpu_s() - before) / TIMES
        listed = len(json.loads(answer)["items"])
        assert listed == DRONES, f"{listed} drones listed"
        _, as_table = timed(lambda: run(path, "drones"), TIMES)
        some = json.loads(answer)["items"][DRONES // 2]["id"]
        _, shown = timed(lambda: run(path, "drones", "show", some), TIMES)
    tell(
        Figure(
            f"provisioner drones -o json, {DRONES:,} drones: median",
            statistics.median(as_json),
            "s",
            "< 0.5",
        ),
        Figure("  slowest", max(as_json), "s"),
        Figure("  processor time", work_s, "s"),
        Figure("  as a table: median", statistics.median(as_table), "s", "< 0.5"),
        Figure("  drones show ID: median", statistics.median(shown), "s"),
    )


if __name__ == "__main__":
    main()
