"""Speed of jobs that share one GPU. Rates are relative to the same job on a GPU of its own.

Two numbers describe a job (:class:`Load`): the share of its run in which the GPU works, and the
share of the GPU's multiprocessors that its kernels fill. The constants come from two published
measurements.

KIT throughput test: 414 small trainings, in epochs/s: 1.94 with one job per GPU, 10.06 with time
slicing (12 processes), 18.16 under MPS (12), 14.14 on MIG (7 slices of 1g).

CERN, a job that saturates the GPU: 38 % lost with two time-sliced processes, no more with further
ones; 9 % lost by enabling MIG; factors 2.18, 1.48 and 1.97 between the profiles 7g, 3g, 2g and 1g.

Fitted: ``OVERLAP`` and the duty of the trainings (:data:`KIT_SMALL`), each on one row of KIT's
table. Adopted: CERN's losses, which the model reproduces by construction. Predicted: KIT's MIG row
(13.58, 4 % below), and jobs of different duty on one GPU, for which nothing is published: they are
assumed to get equal parts of the GPU's time.
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
MOST_SLICES = 7


class Load(NamedTuple):
    """Load of one job on a GPU, each value between 0 and 1."""

    duty: float = 1.0
    """Share of a run on a GPU of its own in which the GPU works."""
    width: float = 1.0
    """Share of the GPU's multiprocessors that its kernels fill."""


KIT_SMALL = Load(duty=TURNS * 1.94 / 10.06, width=0.1)
"""A training of KIT's throughput test: the duty is fitted on the row of time slicing, the width at most a seventh."""


def load_of(gpu_milli: int, duty_milli: int, width_milli: int) -> Load:
    """Return the load of a job by its declaration; an undeclared value is the job's share of a GPU."""
    asked = min(WHOLE_GPU, gpu_milli) / WHOLE_GPU
    return Load(
        min(duty_milli, WHOLE_GPU) / WHOLE_GPU or asked,
        min(width_milli, WHOLE_GPU) / WHOLE_GPU or asked,
    )


def rates(sharing: Sharing, loads: Sequence[Load], shares: int = 1) -> tuple[float, ...]:
    """Return the rate of each of the jobs that run on one GPU now, which is offered in ``shares`` (for MIG)."""
    if sharing is Sharing.MIG:
        # Between the profiles, the rate of the next smaller slice holds.
        width = SLICES[min(n for n in SLICES if n >= min(shares, MOST_SLICES))]
        # GPU work is stretched if a job's kernels are wider than the slice.
        return tuple(
            1.0 / (1.0 - load.duty + load.duty * max(1.0, load.width / width)) for load in loads
        )
    if sharing is Sharing.EXCLUSIVE or len(loads) == 1:
        return (1.0,) * len(loads)
    return _even(
        [load.duty for load in loads], TURNS if sharing is Sharing.TIME_SLICED else OVERLAP
    )


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


def share_milli(shares: int) -> int:
    return WHOLE_GPU // shares


def pool_milli(vram_mib: int, pool_mib: int, shares: int) -> int:
    """Return what a job takes of a GPU whose VRAM is a pool: its part of the VRAM, and at least an equal share."""
    return (
        share_milli(shares)
        if vram_mib <= pool_mib // shares
        else -(-vram_mib * WHOLE_GPU // pool_mib)
    )


def shares_needed(gpu_milli: int, shares: int) -> int:
    return -(-gpu_milli // share_milli(shares))
