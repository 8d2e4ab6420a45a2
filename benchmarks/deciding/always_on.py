"""Always on: as many drones as the sites give, for ever. What a cluster without a provisioner would do.

No system's rule: it bounds from below how long jobs wait (all GPUs are there before any job is),
and from above what idle GPUs cost. Its drones get the same owners' preemptions, queues and boots as
all others.
"""

from __future__ import annotations

from typing import ClassVar

from benchmarks.deciding.rule import Rule, Sight


class AlwaysOn(Rule):
    """Each type is filled up to its quota."""

    interval_s: ClassVar[float] = 60.0

    def decide(self, sight: Sight) -> None:
        for herd in sight.herds.values():
            sight.start(herd, herd.quota - len(herd.wanted))
