"""Whether the simulator gives the figures of the prototype that came before it: the same rules, traces, owners, sites.

    python -m benchmarks.deciding.validate [DIR ...]

Reads the rows that ``benchmarks.deciding.run --seeds 3`` has left and prints each figure ± its standard deviation
beside the prototype's (means of three seeds; of KIT's bursts one seed, and not all figures were written down). Both
draw queues and boots from the same distributions, not the same numbers. What differs by construction, and which way it
goes:

- The prototype's rules see the world as it is, at their own times; here they see what the last look told, and act at
  the next tick: a drone's end is known up to a tick later, so the place it had is asked for again later.
- An idle drone leaves at the first tick after its time-out, not at the second: half a tick more of idling for each
  (5 s of 30 s for the Karpenter-like rule).
- Of idle drones of one type a job takes the one that has been idle for longest; in the prototype it is the one that
  fell idle last. So all of an always-on pool get a job now and then, and retire a day later; there, most never do.
- Which drones an owner's new jobs find free GPUs beside is drawn, in both. With few and long jobs the badput of one
  seed is a matter of a few preemptions: most of the spread.
- A heartbeat of TARDIS' comes to each drone at its own time here, to all at once there; and a drone is supply half a
  tick later on average. With one controller for each pool that moves nothing (47.5 to 47.7 % idle, b436b2+, 3 seeds).
  COBalD as documented fills and empties whole sites in step, and each delay lengthens the beat: with both of them and
  the order of idle drones put into the prototype, idling in the first 1.5 days of b436b2+ grows there from 1,880 ± 81
  to 2,160 ± 133 % (6 seeds); here it is 2,314 % (one seed).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.deciding.checks import Figure, cases_of
from benchmarks.deciding.play import CLAIRVOYANT, TITLES, Case
from benchmarks.deciding.rows import RESULTS, Row, merged


class Figures(NamedTuple):
    """Shares of the good GPU-hours in per cent, waits in seconds; None where nothing was written down."""

    waste: float
    idle: float | None
    boot_release: float | None
    badput: float | None
    wait_mean_s: float
    wait_p50_s: float | None
    wait_p95_s: float
    requests: float | None

    @classmethod
    def of(cls, row: Row) -> Figures:
        waits_s = row.wait_mean_s, row.wait_p50_s, row.wait_p95_s
        return cls(
            100 * row.waste,
            100 * row.idle,
            100 * row.boot_release,
            100 * row.badput,
            *waits_s,
            row.requests,
        )


PROTOTYPE: Mapping[tuple[str, str], Mapping[str, Figures]] = {
    ("6214e9", "vc8Sj"): {
        "cobald-pools": Figures(57.7, 27.1, 26.4, 4.2, 16797, 4723, 70172, 111351),
        "cobald-low-waste": Figures(26.8, 20.4, 1.9, 4.5, 17659, 5369, 73030, 7200),
        "glidein": Figures(9.9, 4.7, 0.7, 4.5, 17147, 5251, 69199, 6618),
        "karpenter": Figures(5.0, 0.1, 0.7, 4.2, 17233, 5068, 72239, 4868),
        "always-on": Figures(247.7, 242.7, 0.7, 4.3, 16503, 4251, 70817, 5635),
        CLAIRVOYANT: Figures(0.6, 0.0, 0.6, 0.0, 14763, 3714, 62730, 0),
    },
    ("b436b2+", "vc3sl"): {
        "cobald-pools": Figures(107.6, 59.7, 42.6, 5.4, 4511, 3160, 10726, 122082),
        "cobald-low-waste": Figures(57.1, 47.7, 2.3, 7.0, 5284, 4096, 10951, 4452),
        "glidein": Figures(16.1, 7.6, 0.9, 7.5, 4859, 3394, 11236, 4711),
        "karpenter": Figures(6.6, 0.2, 0.8, 5.6, 4611, 3244, 11071, 2470),
        "always-on": Figures(537.0, 529.1, 0.6, 7.3, 4001, 2423, 10567, 2414),
        CLAIRVOYANT: Figures(0.8, 0.0, 0.8, 0.0, 3348, 2127, 8900, 0),
    },
    ("openb2023", "vchbv"): {
        "cobald-pools": Figures(447.2, 216.9, 219.0, 11.4, 424, 0, 397, 317067),
        "cobald-low-waste": Figures(141.3, 119.5, 8.6, 13.2, 495, 0, 715, 15163),
        "glidein": Figures(38.9, 24.7, 2.5, 11.7, 482, 0, 453, 5413),
        "karpenter": Figures(15.7, 0.7, 2.8, 12.2, 594, 120, 897, 6045),
        "always-on": Figures(1300, 1268, 8.9, 23.2, 862, 0, 2142, 27383),
        CLAIRVOYANT: Figures(2.3, 0.0, 2.3, 0.0, 0, 0, 0, 0),
    },
    ("kit", "vc8Sj"): {
        "cobald-pools": Figures(88, None, None, None, 1866, None, 4168, None),
        "glidein": Figures(47, None, None, None, 1804, None, 3871, None),
        "karpenter": Figures(5.9, None, None, None, 1792, None, 4140, None),
        "always-on": Figures(1559, None, None, None, 1171, None, 3153, None),
        CLAIRVOYANT: Figures(4.6, None, None, None, 1038, None, 2521, None),
    },
}
SEEDS = 3


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """In Markdown: here, and there."""
    for case, rules in cases_of([row for row in rows if row.seed <= SEEDS]).items():
        before = PROTOTYPE.get((case.trace, case.owner))
        if before is None or case != Case(case.trace, case.owner):
            continue
        yield f"\n**{case.trace}**, owner {case.owner}: here / the prototype\n"
        yield (
            "| policy | seeds | "
            + " | ".join(name.replace("_", " ") for name in Figures._fields)
            + " |"
        )
        yield "|---" * (len(Figures._fields) + 2) + "|"
        for rule, mine in rules.items():
            if rule in before:
                pairs = zip(zip(*map(Figures.of, mine), strict=True), before[rule], strict=True)
                cells = [f"{_told(here)} / {_number(there)}" for here, there in pairs]
                yield f"| {TITLES[rule]} | {len(mine)} | " + " | ".join(cells) + " |"


def _told(values: Sequence[float]) -> str:
    here = Figure.of(values)
    return here.told(0 if here.mean >= 100 else 1)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    for line in lines(merged([Path(place) for place in sys.argv[1:]] or [RESULTS])):
        print(line)
