"""COBalD/TARDIS 0.9.0 with 10,000 drones, by the script that is kept beside the checkout, in an environment of its own.

The unmodified packages, their own fake site and fake batch system without delays, their SQLite
registry, default settings: what ``benchmarks.steady`` measures of us. It takes some eight minutes,
most of them waiting. Exit status 3, with a line that says why, where the script is not there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from benchmarks.cost import Figure, tell

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT.parent / "shared" / "bench" / "tardis" / "bench.py"
WANTS = ("cobald-tardis==0.9.0", "psutil", "async-timeout<5")
"""With a newer async-timeout its OpenStack client raises TypeError."""
ABSENT = 3


def python() -> Path:
    """The interpreter of an environment with the packages, made at the first call and kept outside the checkout."""
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-drone-provisioner"
    )
    place = cache / "bench-tardis-0.9.0"
    if not (place / ".made").exists():
        venv.create(place, clear=True, with_pip=True)
        pip = [
            str(place / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            *WANTS,
        ]
        subprocess.run(pip, check=True, timeout=900, stdout=sys.stderr)
        (place / ".made").touch()
    return place / "bin" / "python"


def measured(drones: int, window_s: int) -> dict[str, float]:
    """What the script says, as its own keys."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "result.json"
        command = [
            str(python()),
            str(SCRIPT),
            "--drones",
            str(drones),
            "--sqlite",
            "--window",
            str(window_s),
        ]
        command += ["--lag-window", "5", "--out", str(out), "--workdir", place]
        subprocess.run(
            command, check=True, timeout=1800, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        said = json.loads(out.read_text())
    ready_s = said["time_to"]["0.01"] - said["first_spawn_s"]
    return {
        "cpu_s_per_min": said["cpu_s_per_min"],
        "ready_s": ready_s,
        "rss_mib": said["rss_mib"],
    } | {"ramp_cpu_s": said["ramp_cpu_s"]}


def main() -> None:
    drones = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    if not SCRIPT.is_file():
        print("not measured: ../shared/bench/tardis/bench.py is not there", file=sys.stderr)
        sys.exit(ABSENT)
    said = measured(drones, window_s=60)
    tell(
        Figure(
            f"COBalD/TARDIS, {drones:,} drones: processor seconds per minute",
            said["cpu_s_per_min"],
            "s/min",
        ),
        Figure("  from request to usable: the first", said["ready_s"], "s"),
        Figure("  memory", said["rss_mib"], "MiB"),
        Figure("  processor time to bring them all up", said["ramp_cpu_s"], "s"),
    )


if __name__ == "__main__":
    main()
