"""Measurements: limits and kills under MPS, the table of shared trainings, counters, the cost of sampling, a probe."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks.gpu.nvml import LISTINGS, NvmlError
from benchmarks.gpu.rig import Answer, Env, Load, Rig, Skipped
from provisioner import sharing
from provisioner.model import Sharing

SMALL = Load("small", sharing.KIT_SMALL.duty, sharing.KIT_SMALL.width)
NARROW, HALF, SATURATING = (
    Load("narrow", 1.0, 0.1),
    Load("half", 0.5, 1.0),
    Load("saturating", 1.0, 1.0),
)
TOGETHER: Mapping[Load, tuple[int, ...]] = {
    SMALL: (1, 2, 4, 8, 12),
    NARROW: (1, 4, 12),
    SATURATING: (1, 2, 4),
}
"""Numbers of trainings on one GPU, by what each does."""
MIXES = ((SATURATING, SMALL), (SATURATING, HALF), (SATURATING, HALF, SMALL), (SATURATING, NARROW))
"""Trainings of different duty on one GPU."""
KILLS = 3
"""A kill may hit one moment or another, so each is repeated."""


def limits(rig: Rig, _: float) -> Answer:
    """Ask for more memory than the limit of MPS, in one process and in two of the same job."""
    limit_mib = min(8192, rig.nvml.memory_mib()[1] // 8)
    found: Answer = {"limit, MiB": limit_mib}
    with rig.mps(limit_mib) as mps:
        env = {**mps.env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={limit_mib}M"}
        for mib in (limit_mib * 5 // 4, limit_mib * 7 // 8):
            with rig.clients([("allocate", "--mib", mib)] * 2, env) as two:
                found[f"two processes ask for {mib} MiB each"] = [one.hear() for one in two]
        found["the default limit reads"] = mps.tell("get_default_device_pinned_mem_limit 0")
        found["server log"] = mps.log("limit")
    return found


def kills(rig: Rig, seconds: float) -> Answer:
    """End a client in the middle of a kernel in three ways, and report on its neighbour."""
    ways = ("terminate_client, then SIGKILL", "SIGKILL alone", "illegal address")
    with rig.mps():
        # without MPS the step is skipped; a try after which it does not start again is a result
        pass
    return {
        way: {f"try {n}": _kill(rig, way, seconds) for n in range(1, KILLS + 1)} for way in ways
    }


def _kill(rig: Rig, way: str, seconds: float) -> Answer:
    try:
        return _killed(rig, way, seconds)
    except Skipped as why:
        return {"failed": str(why)}


def _killed(rig: Rig, way: str, seconds: float) -> Answer:
    long = ("spin", "--blocks", rig.blocks(1.0), "--rounds", rig.rounds(1.0, seconds * 1000))
    words = ("fault",) if way == "illegal address" else long
    with rig.mps() as mps, rig.clients([words], mps.env) as [victim]:
        victim.hear()
        with rig.training([SMALL], seconds, mps.env) as [neighbour]:
            victim.go()
            reply: object = victim.hear()  # launched, or the error
            if way.startswith("terminate_client"):
                reply = mps.terminate(victim.process.pid)
            began = time.monotonic()
            victim.kill()
            works = False
            while not works and time.monotonic() - began < seconds + 60:
                works = "rounds_per_ms" in rig.ask("describe", env=mps.env)
            taken_s = round(time.monotonic() - began, 1) if works else None
            end = neighbour.hear(seconds + 60)
    return {
        "reply": reply,
        "neighbour": end | {"survived": not end["code"]},
        "new client works after, s": taken_s,
    }


@dataclass(frozen=True, slots=True)
class Row:
    """Equal trainings that shared the GPU for a while."""

    load: str
    mode: str
    trainings: int
    steps_per_s: float
    duty: float
    """Share of their run in which they waited for the GPU."""
    width: float
    joule_per_step: float | None
    failed: str = ""


def table(rig: Rig, seconds: float) -> Answer:
    """Measure throughput and energy of 1 to 12 trainings: alone, time-sliced, under MPS."""
    rows, found = [], Answer()
    for load, numbers in TOGETHER.items():
        rows += [
            _row(rig, load, Sharing.TIME_SLICED if n > 1 else Sharing.EXCLUSIVE, n, seconds)
            for n in numbers
        ]
        try:
            with rig.mps() as mps:
                rows += [_row(rig, load, Sharing.MPS, n, seconds, mps.env) for n in numbers]
        except Skipped as why:
            found["skipped rows of MPS"] = str(why)
    return {"rows": [asdict(row) for row in rows]} | found


def _row(
    rig: Rig, load: Load, mode: Sharing, trainings: int, seconds: float, env: Env = None
) -> Row:
    with rig.training([load] * trainings, seconds, env) as clients:
        before_j = _or_none(rig.nvml.energy_j)
        ends = [one.hear(seconds + 60) for one in clients]
        used_j = None if before_j is None else rig.nvml.energy_j() - before_j
    good = [end for end in ends if not end["code"]]
    steps = sum(end["steps"] for end in good)
    return Row(
        load=load.name,
        mode=mode.value,
        trainings=trainings,
        steps_per_s=sum(end["steps"] / end["seconds"] for end in good),
        duty=sum(end["gpu_s"] for end in good) / (sum(end["seconds"] for end in good) or 1.0),
        width=load.width,
        joule_per_step=used_j / steps if used_j is not None and steps else None,
        failed="; ".join(sorted({end["why"] for end in ends if end["code"]})),
    )


def mixed(rig: Rig, seconds: float) -> Answer:
    """Measure the rate of each of several different trainings on one GPU, beside the model's."""
    loads = list(dict.fromkeys(load for mix in MIXES for load in mix))
    alone = {load: _ends(rig, [load], seconds)[0] for load in loads}
    found: Answer = {
        "duty alone": {load.name: round(alone[load][1], 3) for load in loads},
        "mixes": [],
    }
    for mode in (Sharing.TIME_SLICED, Sharing.MPS):
        try:
            with rig.mps() if mode is Sharing.MPS else nullcontext() as mps:
                for mix in MIXES:
                    together = _ends(rig, mix, seconds, mps.env if mps else None)
                    model = sharing.rates(
                        mode, [sharing.Load(min(1.0, alone[each][1]), each.width) for each in mix]
                    )
                    rates = [
                        speed / alone[load][0]
                        for load, (speed, _) in zip(mix, together, strict=True)
                    ]
                    names = [load.name for load in mix]
                    found["mixes"].append(
                        {"mode": mode.value, "loads": names, "rates": rates, "model": list(model)}
                    )
        except Skipped as why:
            found[mode.value] = f"skipped: {why}"
    return found


def _ends(
    rig: Rig, loads: Sequence[Load], seconds: float, env: Env = None
) -> list[tuple[float, float]]:
    """Return steps per second and duty of each of several trainings.

    Raises:
        Skipped: one fails.
    """
    with rig.training(loads, seconds, env) as clients:
        ends = [one.hear(seconds + 60) for one in clients]
    if why := [end["why"] for end in ends if end["code"]]:
        raise Skipped(f"a training fails: {why[0]}")
    return [(end["steps"] / end["seconds"], end["gpu_s"] / end["seconds"]) for end in ends]


def _or_none(read: Callable[[], Any]) -> Any:
    """Return a counter, or None where this GPU lacks it."""
    try:
        return read()
    except NvmlError:
        return None


def counters(rig: Rig, seconds: float) -> Answer:
    """Record per-process counters of two trainings, which hold 512 and 1024 MiB, in each mode."""
    found: Answer = {}
    for mode in (Sharing.TIME_SLICED, Sharing.MPS):
        try:
            with rig.mps() if mode is Sharing.MPS else nullcontext() as mps:
                found[mode.value] = _counters(rig, seconds, mps.env if mps else None)
        except Skipped as why:
            found[mode.value] = f"skipped: {why}"
    return found


def _counters(rig: Rig, seconds: float, env: Env) -> Answer:
    sizes = (512, 1024)
    with rig.clients([SMALL.words(rig, seconds, mib) for mib in sizes], env) as clients:
        names = {
            one.process.pid: f"training with {mib} MiB"
            for one, mib in zip(clients, sizes, strict=True)
        }
        for one in clients:
            one.hear()
            one.go()
        time.sleep(seconds / 2)
        read = {
            f"{name} processes, MiB": _or_none(partial(rig.nvml.processes, name))
            for name in LISTINGS
        }
        read["SM, percent"] = _or_none(rig.nvml.utilization)
    return {
        what: by and {names.get(pid, f"process {pid}"): value for pid, value in by.items()}
        for what, by in read.items()
    }


def sampling(rig: Rig, seconds: float) -> Answer:
    """Measure the cost of reading all counters, for the reader and for a training that is read once per second."""
    found: Answer = {}
    for what, sampled in (("steps/s of a training", False), ("steps/s, sampled at 1 Hz", True)):
        with rig.training([SMALL], seconds) as [one]:
            until = time.monotonic() + seconds
            while sampled and (left := until - time.monotonic()) > 0:
                _sample(rig)
                time.sleep(min(1.0, left))
            end = one.hear(seconds + 60)
        found[what] = round(end["steps"] / end["seconds"], 2)
    began, processor = time.perf_counter(), time.process_time()
    for _ in range(100):
        _sample(rig)
    found["ms per sample"] = round((time.perf_counter() - began) * 10, 3)
    found["processor ms per sample"] = round((time.process_time() - processor) * 10, 3)
    return found


def _sample(rig: Rig) -> None:
    nvml = rig.nvml
    reads: list[Callable[[], Any]] = [nvml.memory_mib, nvml.energy_j, nvml.utilization]
    reads += [partial(nvml.processes, each) for each in LISTINGS]
    for read in reads:
        _or_none(read)


def probe(rig: Rig, _: float) -> Answer:
    """Test the GPU through ``libcuda`` alone: once free, once with 95 % of its memory taken."""
    found: Answer = {}
    for state, share in (("free", 0), ("95 % taken", 95)):
        mib = rig.nvml.memory_mib()[1] * share // 100
        with rig.clients([("allocate", "--mib", mib)] if share else []) as holders:
            held = [one.hear() for one in holders]
            began = time.monotonic()
            found[state] = {**rig.ask("probe"), "s": round(time.monotonic() - began, 2)}
        if held and "ready" not in held[0]:
            found[state] = {"skipped": held[0]["why"]}
    return found
