"""The record in PostgreSQL beside SQLite: :mod:`benchmarks.steady` with each in turn, and what the server takes.

Debian's PostgreSQL as it is configured by default, on this host, by a socket. A virtual hour takes
half a minute of real time, and so the server looks for rows to vacuum each second, not each minute.
The server's figures are of the whole run, those of the controller of the hour.

    python -m benchmarks.postgresql [DRONES [ROUNDS]]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from benchmarks.cost import Figure, tell
from tests.labs.htcondor import LabError
from tests.labs.postgresql import PostgresServer

PER_MINUTE = "processor seconds per minute"
SAMPLE_S = 5.0
HOUR_MIN = 60


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def used_s(pid: int) -> float:
    """Return the processor time of a process and its children, with those that have ended."""
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    used = sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK")
    return used + sum(used_s(each) for each in children(pid))


def memory_mib(pid: int) -> float:
    """Return the memory of a process and its children, with each part that they share once."""
    total = 0.0
    for each in (pid, *children(pid)):
        with suppress(OSError):  # it has ended
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total / 1024


def measure(drones: int, server: PostgresServer, *url: str) -> list[Figure]:
    """Run the benchmark with a record in the server, or without ``url`` in a file."""
    pid = int((server.data / "postmaster.pid").read_text().split()[0])
    before = used_s(pid)
    most = 0.0
    command = [sys.executable, "-m", "benchmarks.steady", str(drones), *url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        while run.poll() is None:
            most = max(most, memory_mib(pid))
            time.sleep(SAMPLE_S)
        assert run.stdout is not None
        text = run.stdout.read()
    assert run.returncode == 0
    figures = [Figure(**each) for each in json.loads(text.splitlines()[-1])]
    if url:
        figures.append(Figure("  processor time of the server", used_s(pid) - before, "s"))
        figures.append(Figure("  memory of the server at most", most, "MiB"))
        words = ("psql", "-h", str(server.directory), "-U", "provisioner", "postgres", "-c")
        server.run(*words, "DROP SCHEMA bench CASCADE")
    return figures


def main() -> None:
    drones = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    found = defaultdict[tuple[str, str], list[Figure]](list)
    try:
        with PostgresServer.running("autovacuum_naptime=1s") as server:
            for _ in range(rounds):
                for name, url in (("SQLite", ()), ("PostgreSQL", (server.url,))):
                    for figure in measure(drones, server, *url):
                        found[name, figure.what].append(figure)
    except LabError as error:
        sys.exit(f"not measured: no PostgreSQL: {error}")
    means = {key: statistics.mean(each.value for each in runs) for key, runs in found.items()}
    per_minute = {name: mean for (name, what), mean in means.items() if PER_MINUTE in what}
    server_s = means["PostgreSQL", "  processor time of the server"] / HOUR_MIN
    ratio = (per_minute["PostgreSQL"] + server_s) / per_minute["SQLite"]
    tell(
        *(
            Figure(f"{name}: {what.strip()}", means[name, what], runs[0].unit)
            for (name, what), runs in found.items()
        ),
        Figure("PostgreSQL to SQLite: processor time, with the server's", ratio, "times", "<= 2"),
    )


if __name__ == "__main__":
    main()
