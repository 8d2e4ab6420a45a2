"""``make bench-gpu``: run the script on the first GPU, write ``var/gpu/results.json`` and ``results.md``.

    python -m benchmarks.gpu.run [--only STEP ...] [--gpu N] [--seconds S] [--out DIR]

Exit status: 0 if each step was measured or had a reason not to be, which it prints; also where there is no GPU, and
nothing is measured or written. 1 if a step failed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.gpu import drone, report, steps
from benchmarks.gpu.nvml import NvmlError
from benchmarks.gpu.rig import Answer, Rig, Skipped

Step = Callable[[Rig, float], Answer]
STEPS: dict[str, Step] = {
    "limits": steps.limits,
    "kills": steps.kills,
    "table": steps.table,
    "mixed": steps.mixed,
    "counters": steps.counters,
    "sampling": steps.sampling,
    "probe": steps.probe,
    "drone": drone.drone,
}


def machine(rig: Rig) -> Answer:
    """Describe what the figures depend on.

    Raises:
        Skipped: CUDA does not work here.
    """
    nvml = rig.nvml
    return {
        "GPU": f"{nvml.name}, {nvml.memory_mib()[1]} MiB, {rig.described()['multiprocessors']} multiprocessors",
        "driver": nvml.driver,
        "memory in use before, MiB": nvml.memory_mib()[0],
        "CPUs": os.cpu_count(),
        "kernel": platform.release(),
        "measured": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def run(step: Step, rig: Rig, seconds: float) -> Answer:
    """Run a step; what it cannot do is its answer."""
    try:
        return step(rig, seconds)
    except Skipped as why:
        return {"skipped": str(why)}
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"}


def add_comparison(table: Answer) -> None:
    """Add the model's figures to the table, and the rows that are off."""
    rows = [steps.Row(**row) for row in table["rows"]]
    compared = report.compare(rows)
    table["comparison"] = [each._asdict() for each in compared]
    table["verdict"] = report.verdict(compared)
    table["capacity"] = report.capacity(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure shared GPUs on a real one, beside the model."
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=STEPS,
        default=list(STEPS),
        metavar="STEP",
        help=", ".join(STEPS),
    )
    parser.add_argument(
        "--gpu", type=int, default=0, help="index of the GPU, as nvidia-smi counts (0)"
    )
    parser.add_argument("--seconds", type=float, default=10, help="time of each measurement (10)")
    parser.add_argument(
        "--out", type=Path, default=Path("var/gpu"), help="directory of the results (var/gpu)"
    )
    how = parser.parse_args()
    try:
        rig = Rig(how.gpu)
        results: Answer = {"machine": machine(rig), "steps": {}}
    except (OSError, NvmlError, Skipped) as why:
        print(f"bench-gpu: no NVIDIA GPU that works here, so nothing was measured: {why}")
        return 0
    how.out.mkdir(parents=True, exist_ok=True)
    for name in how.only:
        print(f"{name}: ", end="", flush=True, file=sys.stderr)
        results["steps"][name] = found = run(STEPS[name], rig, how.seconds)
        print(found.get("skipped") or found.get("failed") or "measured", file=sys.stderr)
        if name == "table" and "rows" in found:
            add_comparison(found)
        # After each step: a later one may hang the machine.
        (how.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        (how.out / "results.md").write_text(report.markdown(results))
    print(report.markdown(results))
    return 1 if any("failed" in found for found in results["steps"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
