"""Trainings on one GPU as a closed queueing network, beside the model of ``provisioner/sharing.py``.

The GPU is a server that divides its capacity equally among the kernels that run on it (processor
sharing); the host work of each training is a delay. Time is in units of one step of a training
alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

STEPS = 2000
"""Steps of each training alone that are simulated; the results are within 1 %."""


def rates(duties: Sequence[float], capacity: float) -> list[float]:
    """Return the rate of each training, in units of the same training alone on the GPU.

    ``duties``: share of a run alone in which the GPU works. ``capacity``: work that the GPU does
    per unit of time while two or more kernels run on it.
    """
    dice = random.Random(1)
    idle_until = {n: dice.random() * (1 - duty) for n, duty in enumerate(duties)}
    left: dict[int, float] = {}
    done, now = [0] * len(duties), 0.0
    while now < STEPS:
        speed = 1.0 if len(left) < 2 else capacity / len(left)
        ends = [(now + work / speed, n, True) for n, work in left.items()]
        at, n, ended = min(ends + [(due, n, False) for n, due in idle_until.items()])
        for each in left:
            left[each] -= (at - now) * speed
        now = at
        if ended:
            del left[n]
            done[n] += 1
            idle_until[n] = now + 2 * dice.random() * (1 - duties[n])
        else:
            del idle_until[n]
            left[n] = duties[n]
    return [count / now for count in done]
