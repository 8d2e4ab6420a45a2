"""The site's nodes: all that each has, what is free of it, which drone types it could host, which slots must go."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from adapters.htcondor.site.matching import Amount, Host, Place, request
from adapters.htcondor.site.submission import device_pattern, share
from adapters.shared.htcondor.ads import Ad, expression, holds, moment, number, text, value
from provisioner.model import WHOLE_GPU, DroneType, Node

NOTICE_CONSTRAINT = (
    'SlotType =!= "Partitionable" && (State == "Preempting" || Activity == "Retiring" || Activity == "Vacating"'
    " || PreemptingRank =!= undefined || PreemptingOwner =!= undefined)"
)
"""Slots that the site is taking back: mostly none, so asking for them costs nothing."""
NOTICE_PROJECTION = (
    "Name",
    "Machine",
    "SlotType",
    "State",
    "Activity",
    "PreemptingOwner",
    "PreemptingRank",
    "EnteredCurrentActivity",
    "MyCurrentTime",
    "LastHeardFrom",
)
_VRAM_TOLD = 0.9
"""A "40 GB" card tells 40326 MiB and a "32 GB" one 32510: less than what the admin writes, and never this much less."""


def nodes(
    hosts: Sequence[Host],
    types: Iterable[DroneType],
    requirements: Mapping[str, str],
    corrections: Mapping[str, Amount] = {},
) -> tuple[Node, ...]:
    """One node per machine. ``requirements``: by type name, what the site's admin demands of a slot besides.
    ``corrections``: by machine, what is to be added to what its slots say is free (:mod:`occupancy`)."""
    free = {host.name: host.free + corrections.get(host.name, Amount()) for host in hosts}
    kinds = [(kind, _job(kind), requirements.get(kind.name, "")) for kind in types]
    return tuple(
        Node(
            name=host.name,
            types=tuple(
                kind.name
                for kind, job, extra in kinds
                if any(could_host(place, kind, job, extra) for place in host.places)
            ),
            gpu_milli=host.all.gpus * WHOLE_GPU,
            cpus=host.all.cpus,
            memory_mib=host.all.memory_mib,
            disk_mib=host.all.disk_mib,
            free_gpu_milli=max(0, free[host.name].gpus) * WHOLE_GPU,
            free_cpus=max(0, free[host.name].cpus),
            free_memory_mib=max(0, free[host.name].memory_mib),
            free_disk_mib=max(0, free[host.name].disk_mib),
        )
        for host in hosts
    )


def shape(kind: DroneType) -> Amount:
    """What a drone of this type asks the site for. (A share of a GPU is a whole one there, and refused.)"""
    return Amount(-(-kind.gpu_milli // WHOLE_GPU), kind.cpus, kind.memory_mib, kind.disk_mib)


def _job(kind: DroneType) -> Ad:
    return request(shape(kind), {"DroneType": kind.name, "DroneSite": kind.site})


def could_host(place: Place, kind: DroneType, job: Ad, requirements: str = "") -> bool:
    """Whether the slot, empty, could host a drone of this type. A property that it does not tell refuses nothing; what
    the admin demands must be met as HTCondor reads it: told and true."""
    arch = value(place.ad, "Arch")
    return (
        not share(kind)
        and place.all.holds(shape(kind))
        and (not isinstance(arch, str) or arch.lower() == kind.arch.lower())
        and _fitting_gpus(place, kind) >= shape(kind).gpus
        and (not requirements or holds(expression(requirements), job, place.ad))
    )


def _fitting_gpus(place: Place, kind: DroneType) -> int:
    if kind.gpu_milli == 0:
        return place.all.gpus
    if devices := place.gpus:
        return sum(_fits(device, "", kind) for device in devices)
    return place.all.gpus if _fits(place.ad, "GPUs_", kind) else 0


def _fits(ad: Ad, prefix: str, kind: DroneType) -> bool:
    """Whether a GPU is what the type promises."""
    for name, least in (
        ("GlobalMemoryMb", kind.vram_mib * _VRAM_TOLD),
        ("Capability", kind.capability / 10),
        ("MaxSupportedVersion", kind.driver),
    ):
        told = number(ad, prefix + name)
        if told is not None and told < least:
            return False
    model = value(ad, f"{prefix}DeviceName")
    if not kind.gpu_model or not isinstance(model, str):
        return True
    return re.search(device_pattern(kind.gpu_model), model, re.IGNORECASE) is not None


def notices(slot_ads: Iterable[Ad], ahead_s: float = 0.0) -> Mapping[str, float]:
    """Slots, by name, that the site is taking back, and since when, by our clock.

    ``slot_ads``: those of ``NOTICE_CONSTRAINT``. ``ahead_s``: how far the collector's clock is ahead of ours. Of the
    node's own clock only differences are used.
    """
    found = {}
    for ad in slot_ads:
        if (name := text(ad, "Name")) and _taken_back(ad):
            heard = moment(ad, "LastHeardFrom")
            since, now = moment(ad, "EnteredCurrentActivity"), moment(ad, "MyCurrentTime")
            age_s = max(0.0, now - since) if since and now else 0.0
            found[name] = heard - age_s - ahead_s
    return found


def _taken_back(ad: Ad) -> bool:
    state, activity = str(value(ad, "State")).lower(), str(value(ad, "Activity")).lower()
    waited_for = value(ad, "PreemptingOwner") is not None or value(ad, "PreemptingRank") is not None
    return state == "preempting" or activity in ("retiring", "vacating") or (state == "claimed" and waited_for)
