"""How fast jobs run that share one GPU, and what energy that takes. Rates are in units of the same job with a whole GPU
of its own.

Two numbers describe a job (:class:`Load`): the share of a run of its own in which the GPU works, and the share of the
GPU's multiprocessors that its kernels fill. The constants come from two published measurements:

* KIT throughput test: 414 small trainings, in epochs/s: 1.94 with one job a GPU, 10.06 with simple sharing (12
  processes that take turns), 18.16 under MPS (12), 14.14 on MIG (7 slices of 1g).
* CERN, a job that saturates the GPU: 38 % lost with two processes that take turns, no more with further ones; 9 % lost
  by switching MIG on; 2.18, 1.48 and 1.97 between the profiles 7g, 3g, 2g and 1g.

Fitted: ``OVERLAP`` and the trainings' duty (:data:`KIT_SMALL`), each on one row of KIT's table. Taken over: CERN's
losses, which the model therefore gives back by construction. Predicted: KIT's MIG row (13.58, 4 % below), and whatever
jobs of different duty do to each other, which nobody has published: they are taken to get even parts of the GPU's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from provisioner.model import WHOLE_GPU, Sharing

TURNS = 1.0 - 0.38
"""What is left of a GPU whose processes take turns, from two on (CERN)."""
OVERLAP = 1.12
"""How much more a saturated GPU does under MPS than for one process (fitted: KIT's MPS row)."""
MIG_WHOLE = 0.91
"""What a saturating job gets of a GPU with MIG on, in one slice of 7g (CERN)."""
SLICES = {
    1: MIG_WHOLE,
    2: MIG_WHOLE / 2.18,
    3: MIG_WHOLE / 2.18 / 1.48,
    7: MIG_WHOLE / 2.18 / 1.48 / 1.97,
}
"""What a saturating job gets of one of so many equal slices: 7g, 3g, 2g, 1g (CERN)."""
MOST_SHARES = 32
"""Of one GPU: shares are whole thousandths, and with more of them those lost in rounding would make up another one."""
MOST_SLICES = 7
"""Of one GPU under MIG."""


class Load(NamedTuple):
    """What one job asks of a GPU, each between 0 and 1."""

    duty: float = 1.0
    """Share of a run on a GPU of its own in which the GPU works."""
    width: float = 1.0
    """Share of the GPU's multiprocessors that its kernels fill."""


SATURATING = Load()
KIT_SMALL = Load(duty=TURNS * 1.94 / 10.06, width=0.1)
"""A training of KIT's throughput test. The duty is fitted on the row of simple sharing; of the width no more is known
than that it is at most a seventh."""


def load_of(gpu_milli: int, duty_milli: int, width_milli: int) -> Load:
    """The load of a job by what it tells. One that does not tell works its share of a GPU, in time and in width: that
    is what it asked for."""
    asked = min(WHOLE_GPU, gpu_milli) / WHOLE_GPU
    return Load(min(duty_milli, WHOLE_GPU) / WHOLE_GPU or asked, min(width_milli, WHOLE_GPU) / WHOLE_GPU or asked)


def rates(sharing: Sharing, loads: Sequence[Load], shares: int = 1) -> tuple[float, ...]:
    """How fast each of the jobs runs that are on one GPU now.

    ``shares`` is as how many GPUs it is offered; only MIG's slices depend on it. On an exclusive GPU jobs do not meet,
    and each runs as if alone.
    """
    if sharing is Sharing.EXCLUSIVE:
        return (1.0,) * len(loads)
    if sharing is Sharing.MIG:
        return tuple(_in_slice(load, shares) for load in loads)
    if len(loads) == 1:
        return (1.0,)
    return _even([load.duty for load in loads], TURNS if sharing is Sharing.TIME_SLICED else OVERLAP)


def throughput(sharing: Sharing, jobs: int, load: Load, shares: int = 1) -> float:
    """What ``jobs`` equal jobs get done together on one GPU: 1 is what one with a GPU of its own does. An exclusive GPU
    has one job at a time, however many wait."""
    if sharing is Sharing.EXCLUSIVE:
        return float(jobs > 0)
    return sum(rates(sharing, [load] * jobs, shares))


def slice_rate(shares: int) -> float:
    """What a saturating job gets of one of ``shares`` equal MIG slices; between the profiles, of the next smaller."""
    return SLICES[min(n for n in SLICES if n >= min(shares, MOST_SLICES))]


def _in_slice(load: Load, shares: int) -> float:
    """Slices do not meet: what the GPU does is stretched if its kernels are wider than the slice."""
    stretch = max(1.0, load.width / slice_rate(shares))
    return 1.0 / (1.0 - load.duty + load.duty * stretch)


def _even(duties: Sequence[float], there: float) -> tuple[float, ...]:
    """GPU time ``there`` in even parts for jobs that want ``duties`` of it; what one does not need the others get."""
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
    """One of ``shares`` shares of a GPU, in thousandths of it."""
    return WHOLE_GPU // shares


def shares_needed(gpu_milli: int, shares: int) -> int:
    """How many shares of a GPU a small job takes, each ``share_milli(shares)``."""
    return -(-gpu_milli // share_milli(shares))


# ------------------------------------------------------------------------------------------------------------- energy


def kj_per_job(power_w: float, span_s: float, jobs: float) -> float:
    """Energy of each of ``jobs`` jobs done in ``span_s`` by something that takes ``power_w`` meanwhile."""
    return power_w * span_s / 1000.0 / jobs


def kwh(power_w: float, span_s: float) -> float:
    """Energy that ``power_w`` adds up to."""
    return power_w * span_s / 3.6e6


def co2_kg(energy_kwh: float, grid_g_per_kwh: float) -> float:
    """What the grid has given off for that energy."""
    return energy_kwh * grid_g_per_kwh / 1000.0
