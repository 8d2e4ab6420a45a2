"""Machines of the pool: slots, free resources, and the drone types that each could host.

A job is judged against a slot as it would be if nobody used it: its ad with everything given back.

A slot ad comes by way of the collector, a moment later than the queue's answer. Taken as they are, a drone that has
just begun leaves its GPU free for another (seen: 8 free GPUs, and up to four drones too many), and one that has just
gone leaves it taken, so that more are asked to make room (seen: twice as many as the owner needed). A partitionable
slot names the slots carved from it, in the same ad as what is left: that tells which jobs it knows of.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import classad2

from adapters.htcondor.classads import (
    LARGEST_NUMBER,
    Ad,
    as_number,
    attribute_names,
    evaluated,
    expression,
    holds,
    moment,
    number,
    slot_state,
    source,
    text,
    value,
    whole,
)
from adapters.htcondor.site.submission import device_pattern, share_error
from provisioner.model import WHOLE_GPU, DroneType, Node, RemoteDrone, RemoteState

MACHINE_SLOTS = 'SlotType =!= "Dynamic"'
"""Slots that stay. The ad of a partitionable slot has what is left in it, and what was in it at first."""

MACHINE_SLOT_PROJECTION: tuple[str, ...] = ()
"""All attributes. Requirements of jobs and START may look at any of them. One that was not asked for would be taken for
one that the node does not have, and a node that could host a job would be left out silently."""

_MAX_SLOT_GPUS = 256
_BUSY_STATES = frozenset({"owner", "drained", "claimed", "matched", "preempting", "backfill", "delete"})
_CHILD = ("Name", "State", "Activity", "RemoteUser", "EnteredCurrentState", "GPUs", "Cpus", "Memory", "Disk")
_MAX_DYNAMIC_SLOTS = 4096
_RESOURCE_ATTRIBUTES = ("Cpus", "Memory", "Disk", "GPUs")


class SlotResources(NamedTuple):
    """Resources of a slot, a machine or a job; GPUs are whole devices, as HTCondor counts them."""

    gpus: int = 0
    cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0

    def __add__(self, other: SlotResources) -> SlotResources:  # type: ignore[override]
        return SlotResources(*(mine + more for mine, more in zip(self, other, strict=True)))

    def __sub__(self, other: SlotResources) -> SlotResources:
        return SlotResources(*(mine - less for mine, less in zip(self, other, strict=True)))

    def holds(self, other: SlotResources) -> bool:
        return all(there >= needed for there, needed in zip(self, other, strict=True))


@dataclass(frozen=True, slots=True)
class DynamicSlot:
    """A dynamic slot as in the ad of its partitionable slot."""

    name: str
    user: str
    amount: SlotResources
    entered_at: float
    """When it came into its state, by the node's clock."""
    waits_for_its_job: bool
    """Claimed, and nothing runs in it yet."""


@dataclass(frozen=True, slots=True)
class MachineSlot:
    """One partitionable or static slot. ``ad`` is its ad with everything given back: the slot if nobody used it."""

    ad: Ad = field(repr=False)
    all: SlotResources
    free: SlotResources
    partitionable: bool
    carved: tuple[DynamicSlot, ...] | None = None
    """None where the ad does not list them."""

    @property
    def gpus(self) -> tuple[Ad, ...]:
        """Return the properties of each GPU, or none if the ad has them for all together only."""
        named = (value(self.ad, name) for name in _device_names(self.ad))
        return tuple(device for device in named if isinstance(device, classad2.ClassAd))


@dataclass(frozen=True, slots=True)
class PoolMachine:
    """One machine of the site with its slots.

    Several slots of a machine are one node to the planner, but a job has to fit into one of them.
    """

    name: str
    slots: tuple[MachineSlot, ...]

    @property
    def all(self) -> SlotResources:
        return sum((slot.all for slot in self.slots), SlotResources())

    @property
    def free(self) -> SlotResources:
        return sum((slot.free for slot in self.slots), SlotResources())

    @property
    def carved(self) -> tuple[DynamicSlot, ...] | None:
        """Return the dynamic slots; None where one of the ads does not list them."""
        found = [slot.carved for slot in self.slots]
        return None if None in found else tuple(slot for slots in found for slot in slots or ())


def machines_of(slot_ads: Iterable[Ad], oldest_heard_at: float) -> tuple[PoolMachine, ...]:
    """Return the machines behind slot ads (of ``MACHINE_SLOTS``), by name.

    Slots last heard from before ``oldest_heard_at``, by the collector's clock, are dead, though it may list them for a
    quarter of an hour more. Of two slots of one name the one that was heard last counts.
    """
    alive: dict[str, Ad] = {}
    for ad in slot_ads:
        if value(ad, "SlotType") == "Dynamic" or moment(ad, "LastHeardFrom") < oldest_heard_at:
            continue
        slot = text(ad, "Name")
        if slot not in alive or moment(alive[slot], "LastHeardFrom") < moment(ad, "LastHeardFrom"):
            alive[slot] = ad
    machines: dict[str, list[MachineSlot]] = {}
    for slot in sorted(alive):
        if machine := text(alive[slot], "Machine"):
            machines.setdefault(machine, []).append(_machine_slot(alive[slot]))
    return tuple(PoolMachine(name, tuple(slots)) for name, slots in sorted(machines.items()))


def _machine_slot(ad: Ad) -> MachineSlot:
    partitionable = value(ad, "SlotType") == "Partitionable" or value(ad, "PartitionableSlot") is True
    emptied, free = _emptied(ad), _amount(ad) if _serves(ad, partitionable) else SlotResources()
    return MachineSlot(emptied, _amount(emptied), free, partitionable, _carved(ad) if partitionable else None)


def _carved(ad: Ad) -> tuple[DynamicSlot, ...] | None:
    """Return the dynamic slots by the Child* attributes: lists of one length, an entry for each."""
    count = whole(ad, "NumDynamicSlots")
    columns = {name: value(ad, f"Child{name}") for name in _CHILD}
    lists = {name: found for name, found in columns.items() if isinstance(found, list) and len(found) == count}
    if count and not {"Name", "State"} <= lists.keys():
        return None

    found = []
    for at in range(min(count, _MAX_DYNAMIC_SLOTS)):
        child = {name: column[at] for name, column in lists.items()}
        gpus, cpus, memory_mib, disk_kib = (
            math.ceil(min(max(as_number(child.get(name)) or 0.0, 0.0), LARGEST_NUMBER))
            for name in ("GPUs", "Cpus", "Memory", "Disk")
        )
        state, activity = str(child["State"]).lower(), str(child.get("Activity")).lower()
        slot = DynamicSlot(
            name=str(child["Name"])[:600],
            user=str(child.get("RemoteUser") or "")[:600],
            amount=SlotResources(gpus, cpus, memory_mib, disk_kib // 1024),
            entered_at=as_number(child.get("EnteredCurrentState")) or 0.0,
            waits_for_its_job=(state, activity) == ("claimed", "idle"),
        )
        found.append(slot)
    return tuple(found)


def _amount(ad: Ad) -> SlotResources:
    return SlotResources(whole(ad, "GPUs"), whole(ad, "Cpus"), whole(ad, "Memory"), whole(ad, "Disk") // 1024)


def _serves(ad: Ad, partitionable: bool) -> bool:
    """Return True if the slot takes jobs at all now. START need not hold without a job, and IS_OWNER may follow it."""
    state, activity = slot_state(ad)
    if value(ad, "Offline") is True or value(ad, "Draining") is True or activity == "retiring":
        return False
    return state not in _BUSY_STATES if partitionable else state == "unclaimed"


def _emptied(ad: Ad) -> Ad:
    """Return a copy with all of the slot's resources back, unclaimed."""
    empty = classad2.ClassAd()
    empty.update(ad)
    for name in _RESOURCE_ATTRIBUTES:
        there = whole(ad, f"TotalSlot{name}") or whole(ad, name)
        if there or name != "GPUs":
            empty[name] = there
    if devices := _device_names(ad):
        empty["AvailableGPUs"] = expression("{" + ",".join(devices) + "}")
    empty["State"], empty["Activity"] = "Unclaimed", "Idle"
    return empty


def _device_names(ad: Ad) -> tuple[str, ...]:
    """Return ``GPUs_<id>`` of each GPU of the slot. A repeated GPU (shares) is listed as often as it is given out."""
    prefix = "gpus_"
    nested = {
        name.lower(): name
        for name in ad
        if name.lower().startswith(prefix) and isinstance(value(ad, name), classad2.ClassAd)
    }
    assigned = value(ad, "AssignedGPUs")
    ids = [each.strip() for each in assigned.split(",")] if isinstance(assigned, str) else []
    known = [nested[at] for each in ids if (at := prefix + each.lower().replace("-", "_")) in nested]
    return tuple((known or sorted(nested.values()))[:_MAX_SLOT_GPUS])


# ---------------------------------------------------------------------------------------------------------- judgement


def request(amount: SlotResources, more: Mapping[str, object] = {}) -> Ad:
    """Return a job ad that asks for these resources."""
    ad = classad2.ClassAd(
        {
            "MyType": "Job",
            "JobUniverse": 5,
            "RequestCpus": amount.cpus,
            "RequestMemory": amount.memory_mib,
            "RequestDisk": amount.disk_mib * 1024,
        }
    )
    if amount.gpus:
        ad["RequestGPUs"] = amount.gpus
    for name, each in more.items():
        ad[name] = each
    return ad


def refused(source_text: str, my: Ad, target: Ad) -> bool:
    """Return True if an expression is definitely false for a pair of ads; undefined and error are not."""
    found = evaluated(expression(source_text), my, target) if source_text else None
    return found is False or as_number(found) == 0


def start_of(slot: MachineSlot) -> str:
    """Return the slot's START; "" where its ad has none."""
    return source(slot.ad, "Start")


def devices_with(clause: str, job: Ad, slot: MachineSlot) -> int | None:
    """Return how many GPUs of a slot meet a clause of RequireGPUs; None if that cannot be evaluated."""
    found = as_number(evaluated(expression(f"countMatches({clause}, TARGET.AvailableGPUs)"), job, slot.ad))
    return None if found is None else int(found)


NOTICE_CONSTRAINT = (
    'SlotType =!= "Partitionable" && (State == "Preempting" || Activity == "Retiring" || Activity == "Vacating"'
    " || PreemptingRank =!= undefined || PreemptingOwner =!= undefined)"
)
"""Slots that the site is taking back: mostly none, so asking for them costs nothing."""
NOTICE_PROJECTION = attribute_names(
    """
    Name Machine SlotType State Activity PreemptingOwner PreemptingRank EnteredCurrentActivity MyCurrentTime
    LastHeardFrom
    """
)
_VRAM_TOLERANCE = 0.9
"""A "40 GB" card reports 40326 MiB and a "32 GB" one 32510: less than the admin writes, and never this much less."""


def nodes(
    machines: Sequence[PoolMachine],
    types: Iterable[DroneType],
    requirements: Mapping[str, str],
    corrections: Mapping[str, SlotResources] = {},
) -> tuple[Node, ...]:
    """Return one node per machine.

    ``requirements``: by type name, the site admin's requirements on a slot. ``corrections``: by machine, what is to be
    added to the free resources of its ads.
    """
    kinds = [(kind, drone_job(kind), requirements.get(kind.name, "")) for kind in types]
    found = []
    for machine in machines:
        fitting = (kind for kind, job, extra in kinds if any(could_host(s, kind, job, extra) for s in machine.slots))
        total, free = machine.all, machine.free + corrections.get(machine.name, SlotResources())
        node = Node(
            name=machine.name,
            types=tuple(kind.name for kind in fitting),
            gpu_milli=total.gpus * WHOLE_GPU,
            cpus=total.cpus,
            memory_mib=total.memory_mib,
            disk_mib=total.disk_mib,
            free_gpu_milli=max(0, free.gpus) * WHOLE_GPU,
            free_cpus=max(0, free.cpus),
            free_memory_mib=max(0, free.memory_mib),
            free_disk_mib=max(0, free.disk_mib),
        )
        found.append(node)
    return tuple(found)


def shape(kind: DroneType) -> SlotResources:
    """Return the resources that a drone of this type asks for. A share of a GPU is a whole one here, and refused."""
    return SlotResources(-(-kind.gpu_milli // WHOLE_GPU), kind.cpus, kind.memory_mib, kind.disk_mib)


def drone_job(kind: DroneType, more: Mapping[str, object] = {}) -> Ad:
    """Return the job ad of a drone. ``more``: its attributes beside the usual ones."""
    return request(shape(kind), {"DroneType": kind.name, "DroneSite": kind.site, **more})


def could_host(slot: MachineSlot, kind: DroneType, job: Ad, requirements: str = "") -> bool:
    """Return True if the slot, when empty, could host a drone of this type.

    A property that its ad lacks refuses nothing; the admin's requirements must be true as HTCondor evaluates them.
    """
    arch = value(slot.ad, "Arch")
    return (
        not share_error(kind)
        and slot.all.holds(shape(kind))
        and (not isinstance(arch, str) or arch.lower() == kind.arch.lower())
        and _fitting_gpus(slot, kind) >= shape(kind).gpus
        and (not requirements or holds(expression(requirements), job, slot.ad))
    )


def _fitting_gpus(slot: MachineSlot, kind: DroneType) -> int:
    if kind.gpu_milli == 0:
        return slot.all.gpus
    if devices := slot.gpus:
        return sum(_fits(device, "", kind) for device in devices)
    return slot.all.gpus if _fits(slot.ad, "GPUs_", kind) else 0


def _fits(ad: Ad, prefix: str, kind: DroneType) -> bool:
    """Return True if a GPU has the properties of the type."""
    for name, least in (
        ("GlobalMemoryMb", kind.vram_mib * _VRAM_TOLERANCE),
        ("Capability", kind.capability / 10),
        ("MaxSupportedVersion", kind.driver),
    ):
        found = number(ad, prefix + name)
        if found is not None and found < least:
            return False
    model = value(ad, f"{prefix}DeviceName")
    if not kind.gpu_model or not isinstance(model, str):
        return True
    return re.search(device_pattern(kind.gpu_model), model, re.IGNORECASE) is not None


def notices(slot_ads: Iterable[Ad], ahead_s: float = 0.0) -> Mapping[str, float]:
    """Return the slots, by name, that the site is taking back, and since when, by our clock.

    ``slot_ads``: those of ``NOTICE_CONSTRAINT``. ``ahead_s``: how far the collector's clock is ahead of ours. Of the
    node's own clock only differences are used.
    """
    found = {}
    for ad in slot_ads:
        state, activity = slot_state(ad)
        waited_for = value(ad, "PreemptingOwner") is not None or value(ad, "PreemptingRank") is not None
        leaving = state == "preempting" or activity in ("retiring", "vacating")
        if (leaving or (state == "claimed" and waited_for)) and (name := text(ad, "Name")):
            heard = moment(ad, "LastHeardFrom")
            since, now = moment(ad, "EnteredCurrentActivity"), moment(ad, "MyCurrentTime")
            age_s = max(0.0, now - since) if since and now else 0.0
            found[name] = heard - age_s - ahead_s
    return found


_STALE_SLOT_S = 60.0
"""The slot of an ended drone may still be listed for this long, by our clock; one that is listed later exists."""


def carved(machines: Iterable[PoolMachine]) -> Mapping[str, frozenset[str]]:
    """Return the names of each machine's dynamic slots; machines whose ads do not list them are left out."""
    return {
        machine.name: frozenset(slot.name for slot in slots)
        for machine in machines
        if (slots := machine.carved) is not None
    }


def corrections(
    machines: Iterable[PoolMachine],
    drones: Iterable[RemoteDrone],
    shapes: Mapping[str, SlotResources],
    owners: Iterable[tuple[str, SlotResources]] = (),
    users: Collection[str] = (),
    now: float | None = None,
) -> Mapping[str, SlotResources]:
    """Return by machine what is to be added to the free resources of its ads (and, negative, taken off).

    ``shapes``: of drone types by name. ``owners``: the slot names of the owner's running jobs and what each holds.
    ``users``: owners of our jobs.
    """
    now = time.time() if now is None else now
    ours = list(drones)
    running = {
        drone.slot: shapes[drone.type]
        for drone in ours
        if drone.state is RemoteState.RUNNING and drone.slot and drone.type in shapes
    }
    running |= dict(owners)
    ended = {
        drone.slot: drone.end.at
        for drone in ours
        if drone.end is not None and now - drone.end.at <= _STALE_SLOT_S and drone.slot not in running
    }
    by_machine: dict[str, list[tuple[str, SlotResources]]] = {}
    for name, amount in running.items():
        by_machine.setdefault(name.rpartition("@")[2], []).append((name, amount))
    found: dict[str, SlotResources] = {}
    for machine in machines:
        if (slots := machine.carved) is None:
            continue
        known, more = {slot.name for slot in slots}, SlotResources()
        for slot in slots:
            # One that began later is somebody else's, under the same name. (Two clocks: so it must be our user's too.)
            if slot.user in users and slot.name in ended and slot.entered_at <= ended[slot.name]:
                more += slot.amount
        for name, amount in by_machine.get(machine.name, ()):
            if name not in known:
                more -= amount
        if more != SlotResources():
            found[machine.name] = more
    return found
