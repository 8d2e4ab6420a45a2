"""What a site tells besides our own jobs: its nodes, the slots that it takes back, what its owner waits for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from adapters.htcondor.site import matching, nodes, owner
from adapters.htcondor.site.cluster import Cluster
from adapters.htcondor.site.matching import Amount
from adapters.htcondor.site.occupancy import without_matched
from adapters.htcondor.site.owner import OwnerSettings
from adapters.htcondor.site.owner_queues import OwnerQueues, Told
from adapters.shared.htcondor.ads import evaluated, expression, moment
from provisioner.model import OwnerDemand, OwnerLoad

_SAME_CLOCK_S = 2.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """The site's machines, and since when slots (by name) are being taken back."""

    hosts: tuple[matching.Host, ...] = ()
    noticed: Mapping[str, float] | None = None
    ahead_s: float = 0.0
    """How far the collector's clock is ahead of ours, as far as its ads show."""


@dataclass(frozen=True, slots=True)
class Owned:
    """What the owner wants and has."""

    claims: tuple[OwnerDemand, ...] = ()
    runs: OwnerLoad | None = None
    notices: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    held: tuple[tuple[str, Amount], ...] = ()
    """The slots of his running jobs, and what each holds."""


async def hardware(cluster: Cluster, slot_max_age_s: float) -> Hardware:
    """To be asked first: what begins or ends meanwhile is then known to the queues (:mod:`occupancy`)."""
    slot_ads = await cluster.slots(matching.CONSTRAINT, matching.PROJECTION)
    noticed = await cluster.slots(nodes.NOTICE_CONSTRAINT, nodes.NOTICE_PROJECTION)
    newest = max((moment(ad, "LastHeardFrom") for ad in slot_ads), default=0.0)
    ahead_s = _ahead(newest, time.time())
    return Hardware(matching.hosts(slot_ads, newest - slot_max_age_s), nodes.notices(noticed, ahead_s), ahead_s)


def _ahead(newest_heard_at: float, now: float) -> float:
    """Nothing was heard in the future. (A clock that is behind cannot be told from silence: it counts as right, and
    which slots are alive is judged by the one that was heard last.)"""
    return newest_heard_at - now if newest_heard_at - now > _SAME_CLOCK_S else 0.0


async def owned(cluster: Cluster, settings: OwnerSettings | None, queues: OwnerQueues, site: Hardware) -> Owned:
    """To be asked last: a job that has started meanwhile is no claim any more.

    A queue that does not answer is told of. What it said last counts for a while (:mod:`owner_queues`): without its
    claims drones would start in the very room that is being made for its jobs.
    """
    if settings is None:
        return Owned()
    told, notices = await queues.poll(site.hosts)
    claims, more = await asyncio.to_thread(_claims, told, site.hosts)  # some milliseconds for each shape
    if settings.submitters:
        totals = await cluster.submitters(owner.SUBMITTER_PROJECTION)
        claims = (*claims, *owner.submitter_claims(totals, settings, time.time()))
    held = tuple(each for one in told if one.fresh for each in one.queue.running)
    runs = owner.running(held, site.hosts) if any(one.fresh for one in told) else None
    return Owned(claims, runs, tuple(notices), more, held)


def _claims(told: Sequence[Told], hosts: Sequence[matching.Host]) -> tuple[tuple[OwnerDemand, ...], tuple[str, ...]]:
    found = []
    for one in told:
        waiting = without_matched(one.queue.groups, hosts, None if one.fresh else one.slots)
        found.append(owner.claims(waiting, hosts, one.queue.left_out))
    return tuple(c for each in found for c in each.claims), tuple(n for each in found for n in each.notices)


def admins_attributes(commands: Mapping[str, str]) -> Mapping[str, object]:
    """Attributes that the site's admin gives drones' jobs, where they are plain values."""
    return dict(_plain(commands.items()))


def _plain(commands: Iterable[tuple[str, str]]) -> Iterable[tuple[str, object]]:
    for name, value in commands:
        bare = name.removeprefix("+") if name.startswith("+") else name[3:] if name[:3].lower() == "my." else ""
        parsed, nothing = expression(value), matching.request(matching.Amount())
        if bare and parsed is not None:
            found = evaluated(parsed, nothing, nothing)
            if isinstance(found, bool | int | float | str):
                yield bare, found
