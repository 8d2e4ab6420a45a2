"""Karpenter-like: a drone for each job that nothing is coming for, where the site has room, and 30 s of idling.

Karpenter (kubernetes-sigs/karpenter, with aws/karpenter-provider-aws @ 0846b0a) collects pending
pods for at most 10 s (``--batch-max-duration``), starts nodes for those that no node on its way
will take, passes over an offering that has just shown no capacity
(``pkg/cache/unavailableofferings.go``), and removes empty nodes after ``consolidateAfter``.

Where this re-implementation stands for it: one pod is one node here, so its bin packing and its
consolidation of busy nodes have nothing to do; an offering's lack of capacity is seen at once, in
the site's own count of free GPUs, where Karpenter learns it by a failed call and remembers it for 3
minutes. It is thus better than the real thing. ``consolidateAfter`` is 30 s, a common setting;
nodes that are booting and no longer needed are kept, requests that still wait in a site's queue are
taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from benchmarks.deciding.rule import Herd, Rule, Sight, release_idle


@dataclass(slots=True)
class Karpenter(Rule):
    """The deficit, every 10 s, site by site in the order of configuration."""

    empty_s: float = 30.0

    interval_s: ClassVar[float] = 10.0

    def decide(self, sight: Sight) -> None:
        supply = {key: len(h.idle) + len(h.coming) for key, h in sight.herds.items()}
        queued = {key: len(h.waiting) for key, h in sight.herds.items()}
        for job in sorted(sight.classes, key=lambda c: (-c.vram_mib, c.oldest_at)):
            herds = sight.fitting(job)
            lack = job.waiting + job.fresh
            for pool in (supply, queued):
                for herd in sorted(herds, key=lambda h: h.kind.vram_mib):
                    taken = min(lack, pool[herd.kind.key])
                    pool[herd.kind.key] -= taken
                    lack -= taken
            for herd in herds:
                count = max(0, min(lack, herd.quota - herd.size, self._room(sight, herd)))
                sight.start(herd, count)
                lack -= count
        for key, herd in sight.herds.items():
            sight.withdraw(herd, queued[key])
        release_idle(sight, sight.herds.values(), self.empty_s)

    @staticmethod
    def _room(sight: Sight, herd: Herd) -> int:
        free = sight.free_now(herd.kind)
        return herd.quota if free is None else free
