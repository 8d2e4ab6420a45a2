"""The owner's queues, all asked at once: one that is silent holds up nothing, and is not forgotten at once either."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from adapters.htcondor.site.cluster import Cluster
from adapters.htcondor.site.matching import Host
from adapters.htcondor.site.occupancy import slots_of
from adapters.htcondor.site.owner import OwnerSettings, job_constraint
from adapters.htcondor.site.owner_queue import Queue, further, wanted_by
from adapters.shared.printing import printable
from provisioner.interfaces import AdapterError

PATIENCE_S = 6.0
"""For all of them together, beside what the site itself takes of one look."""
REMEMBERED_S = 600.0
"""So long a silent queue's last word counts."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 30.0, 300.0
_MOST_NAMES = 300
_ROUNDS = 4
"""An attribute that is looked at may be an expression that looks at others."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one queue says, or said last."""

    queue: Queue
    fresh: bool
    slots: frozenset[tuple[str, float]]
    """The carved slots of the site at that time: one that is not among them has begun since."""


@dataclass(slots=True)
class _Known:
    """What is remembered of one schedd; times by the steady clock."""

    told: Told | None = None
    heard_at: float = 0.0
    silences: int = 0
    trouble: str = ""
    ask_at: float = 0.0
    names: frozenset[str] = field(default_factory=frozenset)
    """Attributes that its jobs look at."""


class OwnerQueues:
    """The schedds of ``settings``, and what each said last."""

    def __init__(
        self, cluster: Cluster, settings: OwnerSettings | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster, self._clock = cluster, clock
        self._constraint = job_constraint(settings) if settings else "false"
        self._known = {schedd: _Known() for schedd in (settings.schedds if settings else ())}

    async def poll(self, hosts: Sequence[Host]) -> tuple[Sequence[Told], Sequence[str]]:
        """What each queue tells, and a notice for each that is silent. Never a site's error; ``PATIENCE_S`` at most."""
        wanted, slots = wanted_by(hosts), slots_of(hosts)
        now = self._clock()
        async with asyncio.TaskGroup() as group:
            for schedd, known in self._known.items():
                if known.ask_at <= now:
                    group.create_task(self._asked(schedd, known, wanted, slots))
        now = self._clock()
        told = []
        for known in self._known.values():
            if known.told is not None and (not known.silences or now - known.heard_at <= REMEMBERED_S):
                told.append(known.told if not known.silences else Told(known.told.queue, False, known.told.slots))
        return told, [_notice(schedd, known, now) for schedd, known in self._known.items() if known.silences]

    async def _asked(
        self, schedd: str, known: _Known, wanted: frozenset[str], slots: frozenset[tuple[str, float]]
    ) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                queue = await self._queue(schedd, known, wanted)
        except (AdapterError, TimeoutError) as error:
            known.silences += 1
            known.trouble = str(error) or f"no answer within {PATIENCE_S:g} s"
            known.ask_at = self._clock() + min(_FIRST_WAIT_S * 2 ** min(known.silences - 1, 8), _LONGEST_WAIT_S)
        else:
            known.told, known.heard_at = Told(queue, True, slots), self._clock()
            known.silences, known.trouble, known.ask_at = 0, "", 0.0

    async def _queue(self, schedd: str, known: _Known, wanted: frozenset[str]) -> Queue:
        """Asked again, which is rare, until all is there that its jobs' expressions look at."""
        for _ in range(_ROUNDS):
            names = wanted | known.names
            queue = await self._cluster.owner_queue(schedd, self._constraint, sorted(names))
            more = further(queue, names)
            if not more or len(known.names | more) > _MOST_NAMES:
                break
            known.names |= more
        return queue


def _notice(schedd: str, known: _Known, now: float) -> str:
    age_s = now - known.heard_at
    if known.told is None:
        meanwhile = "its jobs are not seen"
    elif age_s <= REMEMBERED_S:
        meanwhile = f"what it said {age_s:.0f} s ago still counts"
    else:
        meanwhile = f"its jobs are not seen, what it said {age_s:.0f} s ago is too old"
    return printable(f"owner's schedd {schedd}: {meanwhile}: {known.trouble}", 300)
