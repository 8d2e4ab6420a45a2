"""The table of the benchmark beside the model, and the page of all results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

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

    @property
    def ratio(self) -> float:
        """Measured throughput divided by the model's."""
        return self.throughput / self.model

    @property
    def off(self) -> bool:
        return abs(self.ratio - 1) > OFF


def compare(rows: Sequence[Row]) -> list[Compared]:
    """Compare each row with the model, by the duty that the same training has alone."""
    compared = []
    for row in rows:
        [alone] = (one for one in rows if one.load == row.load and one.mode == Sharing.EXCLUSIVE)
        if alone.steps_per_s:
            load = sharing.Load(min(1.0, alone.duty), row.width)
            model = sum(sharing.rates(Sharing(row.mode), [load] * row.trainings, row.trainings))
            joule, unit = row.joule_per_step, alone.joule_per_step
            energy = joule / unit if joule is not None and unit else None
            throughput = row.steps_per_s / alone.steps_per_s
            compared.append(Compared(row.load, row.mode, row.trainings, throughput, model, energy))
    return compared


def capacity(rows: Sequence[Row]) -> Answer:
    """Return the constants of the model that rows with a busy GPU imply (throughput x duty alone), beside its own."""
    constants = {Sharing.TIME_SLICED: sharing.TURNS, Sharing.MPS: sharing.OVERLAP}
    alone = {row.load: row for row in rows if row.mode == Sharing.EXCLUSIVE and row.steps_per_s}
    found: Answer = {}
    for row in rows:
        unit, constant = alone.get(row.load), constants.get(Sharing(row.mode), 0.0)
        if constant and unit and row.trainings * unit.duty > max(1.0, constant):
            implied = row.steps_per_s / unit.steps_per_s * unit.duty
            found[f"{row.load} {row.mode} x{row.trainings}"] = f"{implied:.2f}, model {constant:.2f}"
    return found


def verdict(compared: Sequence[Compared]) -> str:
    """Say in one line which rows are off."""
    off = [f"{each.load} {each.mode} x{each.trainings} ({each.ratio:.2f})" for each in compared if each.off]
    if not off:
        return f"All {len(compared)} rows are within {OFF:.0%} of the model."
    which = ", ".join(off)
    return f"{len(off)} of {len(compared)} rows are more than {OFF:.0%} off the model (measured / model): {which}."


def markdown(results: Answer) -> str:
    """Return the results as a page."""
    parts = ["# GPU benchmark", "", *(f"- {name}: {value}" for name, value in results["machine"].items())]
    for step, found in results["steps"].items():
        parts += ["", f"## {step}", ""]
        if "comparison" in found:
            parts += [*_table([Compared(**row) for row in found["comparison"]]), found["verdict"], ""]
        rest = {key: value for key, value in found.items() if key not in ("rows", "comparison", "verdict")}
        parts += ["```json", json.dumps(rest, indent=1), "```"]
    return "\n".join(parts) + "\n"


def _table(compared: Sequence[Compared]) -> list[str]:
    lines = ["| load | mode | trainings | throughput | model | measured / model | energy per step |", "|---" * 7 + "|"]
    for row in compared:
        ratio = f"**{row.ratio:.2f}**" if row.off else f"{row.ratio:.2f}"
        energy = "-" if row.energy is None else f"{row.energy:.2f}"
        words = (row.load, row.mode, str(row.trainings), f"{row.throughput:.2f}", f"{row.model:.2f}", ratio, energy)
        lines.append(f"| {' | '.join(words)} |")
    return [*lines, "", "Throughput and energy in units of one training alone on the GPU.", ""]
