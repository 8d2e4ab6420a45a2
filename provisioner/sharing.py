"""Speed of jobs that share one GPU, and their energy. Rates are relative to the same job on a GPU of its own.

Two numbers describe a job (:class:`Load`): the share of its run in which the GPU works, and the share of the GPU's
multiprocessors that its kernels fill. The constants come from two published measurements.

KIT throughput test: 414 small trainings, in epochs/s: 1.94 with one job per GPU, 10.06 with time slicing (12
processes), 18.16 under MPS (12), 14.14 on MIG (7 slices of 1g).

CERN, a job that saturates the GPU: 38 % lost with two time-sliced processes, no more with further ones; 9 % lost by
enabling MIG; factors 2.18, 1.48 and 1.97 between the profiles 7g, 3g, 2g and 1g.

Fitted: ``OVERLAP`` and the duty of the trainings (:data:`KIT_SMALL`), each on one row of KIT's table. Adopted: CERN's
losses, which the model reproduces by construction. Predicted: KIT's MIG row (13.58, 4 % below), and jobs of different
duty on one GPU, for which nothing is published: they are assumed to get equal parts of the GPU's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from provisioner.model import WHOLE_GPU, Sharing

TURNS = 1.0 - 0.38
"""Remaining capacity of a GPU with two or more time-sliced processes (CERN)."""
OVERLAP = 1.12
"""Capacity of a saturated GPU under MPS, relative to one process (fitted: KIT's MPS row)."""
MIG_WHOLE = 0.91
"""Rate of a saturating job on a GPU with MIG enabled, in one slice of 7g (CERN)."""
SLICES = {
    1: MIG_WHOLE,
    2: MIG_WHOLE / 2.18,
    3: MIG_WHOLE / 2.18 / 1.48,
    7: MIG_WHOLE / 2.18 / 1.48 / 1.97,
}
"""Rate of a saturating job in one of so many equal slices: 7g, 3g, 2g, 1g (CERN)."""
MOST_SHARES = 32
"""Maximum of shares of one GPU: shares are whole thousandths, and with more of them the rounding losses would add up to
another share."""
MOST_SLICES = 7
"""Maximum of MIG slices of one GPU."""


class Load(NamedTuple):
    """Load of one job on a GPU, each value between 0 and 1."""

    duty: float = 1.0
    """Share of a run on a GPU of its own in which the GPU works."""
    width: float = 1.0
    """Share of the GPU's multiprocessors that its kernels fill."""


SATURATING = Load()
KIT_SMALL = Load(duty=TURNS * 1.94 / 10.06, width=0.1)
"""A training of KIT's throughput test. The duty is fitted on the row of time slicing; of the width it is only known
that it is at most a seventh."""


def load_of(gpu_milli: int, duty_milli: int, width_milli: int) -> Load:
    """Return the load of a job by its declaration.

    An undeclared value is the job's share of a GPU, in time and in width.
    """
    asked = min(WHOLE_GPU, gpu_milli) / WHOLE_GPU
    return Load(min(duty_milli, WHOLE_GPU) / WHOLE_GPU or asked, min(width_milli, WHOLE_GPU) / WHOLE_GPU or asked)


def rates(sharing: Sharing, loads: Sequence[Load], shares: int = 1) -> tuple[float, ...]:
    """Return the rate of each of the jobs that run on one GPU now.

    ``shares`` is the number of shares offered; only MIG depends on it. On an exclusive GPU jobs do not meet, and each
    runs as if alone.
    """
    if sharing is Sharing.EXCLUSIVE:
        return (1.0,) * len(loads)
    if sharing is Sharing.MIG:
        return tuple(_in_slice(load, shares) for load in loads)
    if len(loads) == 1:
        return (1.0,)
    return _even([load.duty for load in loads], TURNS if sharing is Sharing.TIME_SLICED else OVERLAP)


def slice_rate(shares: int) -> float:
    """Return the rate of a saturating job in one of ``shares`` equal MIG slices.

    Between the profiles, the rate of the next smaller slice holds.
    """
    return SLICES[min(n for n in SLICES if n >= min(shares, MOST_SLICES))]


def _in_slice(load: Load, shares: int) -> float:
    """Return the rate of a job in a slice: its GPU work is stretched if its kernels are wider than the slice."""
    stretch = max(1.0, load.width / slice_rate(shares))
    return 1.0 / (1.0 - load.duty + load.duty * stretch)


def _even(duties: Sequence[float], there: float) -> tuple[float, ...]:
    """Share the GPU time ``there`` evenly among jobs that want ``duties`` of it; unused parts go to the others."""
    got = dict.fromkeys(range(len(duties)), 1.0)
    wanting = sorted(range(len(duties)), key=duties.__getitem__)
    for place, job in enumerate(wanting):
        part = there / (len(wanting) - place)
        if duties[job] > part:
            got |= {hungry: part / duties[hungry] for hungry in wanting[place:]}
            break
        there -= duties[job]
    return tuple(got.values())


# ------------------------------------------------------------------------------------------------------------- shares


def share_milli(shares: int) -> int:
    """Return the size of one of ``shares`` shares of a GPU, in milli-GPUs."""
    return WHOLE_GPU // shares


def shares_needed(gpu_milli: int, shares: int) -> int:
    """Return the number of shares that a small job takes, each of ``share_milli(shares)``."""
    return -(-gpu_milli // share_milli(shares))


# ------------------------------------------------------------------------------------------------------------- energy


def kwh(power_w: float, span_s: float) -> float:
    """Return the energy of ``power_w`` over ``span_s``."""
    return power_w * span_s / 3.6e6


def co2_kg(energy_kwh: float, grid_g_per_kwh: float) -> float:
    """Return the emissions of the grid for that energy."""
    return energy_kwh * grid_g_per_kwh / 1000.0
