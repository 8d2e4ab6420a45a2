"""The glideinWMS frontend's rule: a third of the idle jobs asked for a cycle, and glideins that end when idle too long.

Source: glideinWMS/glideinwms @ efdc530, ``frontend/glideinFrontendElement.py``
(``compute_glidein_min_idle``, ``compute_glidein_max_running``) and the defaults of
``creation/lib/cvWParamDict.py``. Each loop (60 s here), for each entry: idle jobs are split evenly
over the entries that match them; *effective idle* is that less the entry's idle slots; asked for
are a third of it (``ramp_up_attenuation`` 3) and a reserve of a third of the jobs idle for more
than 600 s, 5 at most (``reserve_idle``); 100 at most, half of it from 5 idle slots on (the curb),
none from 100 idle slots on; together at most 1.15 times what is idle and running
(``relative_to_queue``), and one. The factory keeps so many glideins in the site's queue. A glidein
ends itself after 1200 s without a job (``GLIDEIN_Max_Idle``). Where no job has matched an entry for
5 loops, glideins in its queue are removed.

Where this re-implementation stands for it: no limits of the whole frontend, no held glideins, no
downtimes, one group, and a factory that carries out a request within the same loop (really, its own
loop of about a minute comes on top). How many jobs are idle for more than 600 s is not seen as
such: it is taken to be the least number that waited at any time of the last 600 s, if the oldest
has waited for so long; it concerns the reserve alone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

from benchmarks.deciding.rule import Herd, Rule, Sight
from provisioner.model import JobClass, TypeKey

RAMP_UP_ATTENUATION = 3.0
RESERVE_IDLE = 5
OLD_S = 600.0
MAX_IDLE_PER_ENTRY = 100
MAX_IDLE_SLOTS, CURB_IDLE_SLOTS = 100, 5
RELATIVE_TO_QUEUE = 1.15
LOOPS_TO_REMOVAL = 5


@dataclass(slots=True)
class Glidein(Rule):
    """One entry for each drone type."""

    _seen: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    """By class: how many waited, of the last :data:`OLD_S`."""
    _unmatched: dict[TypeKey, int] = field(default_factory=dict)
    """Loops in which no idle job matched the entry."""

    interval_s: ClassVar[float] = 60.0
    idle_timeout_s: ClassVar[float] = 1200.0

    def decide(self, sight: Sight) -> None:
        idle = dict.fromkeys(sight.herds, 0.0)
        old = dict.fromkeys(sight.herds, 0.0)
        for job in sight.classes:
            herds = sight.fitting(job)
            aged = self._old(sight, job)
            for herd in herds:
                idle[herd.kind.key] += (job.waiting + job.fresh) / len(herds)
                old[herd.kind.key] += aged / len(herds)
        for gone in self._seen.keys() - {job.id for job in sight.classes}:
            del self._seen[gone]
        for key, herd in sight.herds.items():
            sight.start(herd, max(0, self._lacking(herd, idle[key], old[key])))
            self._unmatched[key] = 0 if idle[key] else self._unmatched.get(key, 0) + 1
            if self._unmatched[key] > LOOPS_TO_REMOVAL:
                sight.withdraw(herd, len(herd.waiting))

    def _old(self, sight: Sight, job: JobClass) -> int:
        seen = self._seen.setdefault(job.id, deque())
        waiting = job.waiting + job.fresh
        seen.append((sight.now, waiting))
        while seen[0][0] < sight.now - OLD_S:
            seen.popleft()
        return min(count for _, count in seen) if sight.now - job.oldest_at > OLD_S else 0

    @staticmethod
    def _lacking(herd: Herd, idle: float, old: float) -> int:
        """Glideins that the factory lacks in the entry's queue."""
        slots, running = len(herd.idle), len(herd.busy)
        effective = max(idle - slots, 0.0)
        wanted = 0
        if effective > 0 and slots < MAX_IDLE_SLOTS:
            reserve = min(int(max(old - slots, 0.0)) // 3, RESERVE_IDLE)
            asked = min(int(effective / RAMP_UP_ATTENUATION) + reserve, MAX_IDLE_PER_ENTRY)
            wanted = max(1, int(asked / 2 if slots >= CURB_IDLE_SLOTS else asked))
        most = int((effective + running) * RELATIVE_TO_QUEUE + 1) if idle else running
        queued = len(herd.waiting)
        return min(wanted - queued, most - slots - running - len(herd.coming) - queued)
