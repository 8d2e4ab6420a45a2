"""Accounting groups out of the ads that the negotiator leaves at the collector after each cycle.

Quotas and usage there are sums of slot weights, which are CPUs unless a pool says otherwise. They become GPUs by what
the group's own jobs ask for: where its GPU jobs, those of its sub-groups included, ask for 8 CPUs a GPU on average, a
quota of 64 is one of 8 GPUs. That is exact for a group whose jobs are alike, and an average for others. What jobs
without a GPU use of a quota counts as well: it is no longer there.

The negotiator tells the usage of a group without its sub-groups; here it is with them, as the quota is.
A dynamic quota (a share of the pool) is no limit here: the pool grows with every drone, and the share with it. Quotas
are taken as they were written: in a pool without slots the negotiator works none out, and tells nought.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from adapters.htcondor.overlay.settings import SlotWeight
from adapters.shared.htcondor.ads import Ad, number, text, value
from provisioner.model import WHOLE_GPU, Group, JobClass

PROJECTION = (
    "LastHeardFrom",
    "Name",
    "IsAccountingGroup",
    "ConfigQuota",
    "SurplusPolicy",
    "WeightedResourcesUsed",
    "Priority",
)
_NONE = "<none>"
"""HTCondor's name for the root of all groups."""


@dataclass(frozen=True, slots=True)
class _Told:
    """A group as the negotiator tells it, in slot weights."""

    name: str
    quota: float | None
    used: float
    surplus: bool
    priority: float


def groups(ads: Iterable[Ad], classes: Iterable[JobClass], weight: SlotWeight) -> tuple[Group, ...]:
    """All groups but the root; empty where there are no others."""
    told = {each.name.casefold(): each for ad in ads if (each := _told(ad, weight)) is not None}
    if not told:
        return ()
    used: dict[str, float] = {}
    for name, each in told.items():
        for above in _chain(name):
            used[above] = used.get(above, 0.0) + each.used
    weights = _weights(classes) if weight is SlotWeight.CPUS else {}
    return tuple(
        Group(
            name=each.name,
            quota_milli=None if each.quota is None else _gpu_milli(each.quota, weights.get(name, 1.0)),
            used_milli=_gpu_milli(used[name], weights.get(name, 1.0)),
            surplus=each.surplus,
            priority=each.priority,
        )
        for name, each in sorted(told.items())
    )


def doubts(ads: Iterable[Ad], weight: SlotWeight) -> list[str]:
    """Quotas that cannot mean what they say in a pool of drones, a line each."""
    return [
        f"accounting group {name}: its dynamic quota is a share of what there happens to be, and it takes no surplus:"
        " drones started for it will stay idle in part; write GROUP_QUOTA or GROUP_ACCEPT_SURPLUS for it"
        for ad in ads
        if (name := text(ad, "Name", 80)) and _is_group(ad) and _dynamic(ad, weight) and not _takes_surplus(ad)
    ]


def _told(ad: Ad, weight: SlotWeight) -> _Told | None:
    name = text(ad, "Name", 80)
    if not name or not _is_group(ad):
        return None
    quota = max(0.0, number(ad, "ConfigQuota") or 0.0)
    return _Told(
        name=name,
        quota=None if _dynamic(ad, weight) else quota,
        used=max(0.0, number(ad, "WeightedResourcesUsed") or 0.0),
        surplus=_takes_surplus(ad),
        priority=max(0.0, number(ad, "Priority") or 0.0),
    )


def _is_group(ad: Ad) -> bool:
    return value(ad, "IsAccountingGroup") is True and text(ad, "Name", 80) != _NONE


def _dynamic(ad: Ad, weight: SlotWeight) -> bool:
    """The ad does not tell a share of the pool from an amount: what is below one is a share, and so is one, unless it
    is of GPUs."""
    written = number(ad, "ConfigQuota") or 0.0
    return 0.0 < written < 1.0 or (written == 1.0 and weight is SlotWeight.CPUS)


def _takes_surplus(ad: Ad) -> bool:
    return text(ad, "SurplusPolicy", 20).lower() not in ("", "no")


def _weights(classes: Iterable[JobClass]) -> Mapping[str, float]:
    """CPUs for each GPU that the GPU jobs of a group ask for, by the group's name in small letters."""
    cpus: dict[str, int] = {}
    milli: dict[str, int] = {}
    for job in classes:
        count = job.waiting + job.fresh + job.running + job.held
        for name in _chain(job.group.casefold()) if job.gpu_milli else ():
            cpus[name] = cpus.get(name, 0) + count * job.cpus
            milli[name] = milli.get(name, 0) + count * job.gpu_milli
    return {name: total * WHOLE_GPU / milli[name] for name, total in cpus.items() if total and milli[name]}


def _gpu_milli(weight: float, each_gpu: float) -> int:
    """Rounded to a thousandth first: 8 CPUs at 8 a GPU are one GPU, whatever floating point makes of it."""
    return int(round(weight * WHOLE_GPU / each_gpu, 3))


def _chain(name: str) -> Iterable[str]:
    """A group's name and those of the groups that contain it."""
    while name:
        yield name
        name = name.rpartition(".")[0]
