"""The table of the benchmark beside the model, and the page of all results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.gpu import queueing
from benchmarks.gpu.rig import Answer
from benchmarks.gpu.steps import Row
from provisioner import sharing
from provisioner.model import Sharing

OFF = 0.10
"""Largest difference between measurement and model that counts as agreement."""


class Compared(NamedTuple):
    """A row of the table beside the model; throughput and energy per step in units of one training alone."""

    load: str
    mode: str
    trainings: int
    throughput: float
    model: float
    energy: float | None
    queue: float = 1.0
    """Throughput of the closed queueing network with the capacity that the busiest row of this width implies."""

    @property
    def ratio(self) -> float:
        """Measured throughput divided by the model's."""
        return self.throughput / self.model

    @property
    def off(self) -> bool:
        return abs(self.ratio - 1) > OFF


def compare(rows: Sequence[Row]) -> list[Compared]:
    """Compare each row with the model, by the duty that the same training has alone."""
    compared, capacities = [], implied(rows)
    for row in rows:
        [alone] = (one for one in rows if one.load == row.load and one.mode == Sharing.EXCLUSIVE)
        if alone.steps_per_s:
            load = sharing.Load(min(1.0, alone.duty), row.width)
            model = sum(sharing.rates(Sharing(row.mode), [load] * row.trainings, row.trainings))
            joule, unit = row.joule_per_step, alone.joule_per_step
            energy = joule / unit if joule is not None and unit else None
            throughput = row.steps_per_s / alone.steps_per_s
            capacity = capacities.get((row.mode, row.width), 1.0)
            queue = (
                sum(queueing.rates([load.duty] * row.trainings, capacity))
                if row.trainings > 1
                else 1.0
            )
            compared.append(
                Compared(row.load, row.mode, row.trainings, throughput, model, energy, queue)
            )
    return compared


def implied(rows: Sequence[Row]) -> dict[tuple[str, float], float]:
    """Return the capacity of the GPU by mode and width of the trainings, as the busiest rows imply it."""
    found: dict[tuple[str, float], tuple[float, float]] = {}
    alone = {row.load: row for row in rows if row.mode == Sharing.EXCLUSIVE and row.steps_per_s}
    for row in rows:
        unit = alone.get(row.load)
        if unit and row.trainings > 1:
            asked, got = row.trainings * unit.duty, row.steps_per_s / unit.steps_per_s * unit.duty
            if asked > max(1.0, found.get((row.mode, row.width), (0.0, 0.0))[0]):
                found[row.mode, row.width] = asked, got
    return {key: got for key, (_, got) in found.items()}


def capacity(rows: Sequence[Row]) -> Answer:
    """Return the constants of the model that rows with a busy GPU imply (throughput x duty alone), beside its own."""
    constants = {Sharing.TIME_SLICED: sharing.TURNS, Sharing.MPS: sharing.OVERLAP}
    alone = {row.load: row for row in rows if row.mode == Sharing.EXCLUSIVE and row.steps_per_s}
    found: Answer = {}
    for row in rows:
        unit, constant = alone.get(row.load), constants.get(Sharing(row.mode), 0.0)
        if constant and unit and row.trainings * unit.duty > max(1.0, constant):
            implied = row.steps_per_s / unit.steps_per_s * unit.duty
            found[f"{row.load} {row.mode} x{row.trainings}"] = (
                f"{implied:.2f}, model {constant:.2f}"
            )
    return found


def verdict(compared: Sequence[Compared]) -> str:
    """Say in one line which rows are off."""
    off = [
        f"{each.load} {each.mode} x{each.trainings} ({each.ratio:.2f})"
        for each in compared
        if each.off
    ]
    if not off:
        return f"All {len(compared)} rows are within {OFF:.0%} of the model."
    which = ", ".join(off)
    return f"{len(off)} of {len(compared)} rows are more than {OFF:.0%} off the model (measured / model): {which}."


def markdown(results: Answer) -> str:
    """Return the results as a page."""
    parts = [
        "# GPU benchmark",
        "",
        *(f"- {name}: {value}" for name, value in results["machine"].items()),
    ]
    for step, found in results["steps"].items():
        parts += ["", f"## {step}", ""]
        if "comparison" in found:
            parts += [
                *_table([Compared(**row) for row in found["comparison"]]),
                found["verdict"],
                "",
            ]
        if found.get("mixes"):
            rows = [Row(**row) for row in results["steps"].get("table", {}).get("rows", [])]
            parts += _mixes(
                found, {mode: got for (mode, width), got in implied(rows).items() if width == 1}
            )
        rest = {
            key: value
            for key, value in found.items()
            if key not in ("rows", "comparison", "verdict", "mixes")
        }
        parts += ["```json", json.dumps(rest, indent=1), "```"]
    return "\n".join(parts) + "\n"


def _mixes(found: Answer, capacities: Mapping[str, float]) -> list[str]:
    lines = ["| mode | training | beside it | rate | model | queue |", "|---" * 6 + "|"]
    for mix in found["mixes"]:
        duties = [min(1.0, found["duty alone"][name]) for name in mix["loads"]]
        queue = queueing.rates(duties, capacities.get(mix["mode"], 1.0))
        for at, name in enumerate(mix["loads"]):
            beside = ", ".join(mix["loads"][:at] + mix["loads"][at + 1 :])
            rates = " | ".join(f"{each[at]:.2f}" for each in (mix["rates"], mix["model"], queue))
            lines.append(f"| {mix['mode']} | {name} | {beside} | {rates} |")
    return [*lines, "", "Rates in units of the same training alone on the GPU.", ""]


def _table(compared: Sequence[Compared]) -> list[str]:
    heads = (
        "load",
        "mode",
        "trainings",
        "throughput",
        "model",
        "measured / model",
        "queue",
        "energy per step",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in compared:
        ratio = f"**{row.ratio:.2f}**" if row.off else f"{row.ratio:.2f}"
        energy = "-" if row.energy is None else f"{row.energy:.2f}"
        figures = (f"{row.throughput:.2f}", f"{row.model:.2f}", ratio, f"{row.queue:.2f}", energy)
        words = (row.load, row.mode, str(row.trainings), *figures)
        lines.append(f"| {' | '.join(words)} |")
    units = "Throughput and energy in units of one training alone on the GPU."
    return [
        *lines,
        "",
        f"{units} `queue`: the GPU as a server that divides its capacity (`queueing.py`).",
        "",
    ]
