"""Machines of the pool: slots, free resources, and the drone types that each could host.

A job is judged against a slot as it would be if nobody used it: its ad with everything given back.

A slot ad comes by way of the collector, a moment later than the queue's answer. Taken as they are,
a drone that has just begun leaves its GPU free for another (seen: 8 free GPUs, and up to four
drones too many), and one that has just gone leaves it taken, so that more are asked to make room
(seen: twice as many as the owner needed). A partitionable slot names the slots carved from it, in
the same ad as what is left: that tells which jobs it knows of.
"""

from __future__ import annotations

import math
import operator
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from adapters.htcondor import classad2, classads
from adapters.htcondor.classads import Ad, moment, source, text, value, whole
from adapters.htcondor.site.submission import VRAM_TOLERANCE, device_pattern
from provisioner.model import NVIDIA, WHOLE_GPU, DroneType, Node, RemoteDrone, RemoteState
from provisioner.values import frozen

MACHINE_SLOTS = 'SlotType =!= "Dynamic"'
"""Slots that stay. The ad of a partitionable slot has what is left in it, and what was in it at first."""
MACHINE_SLOT_PROJECTION: tuple[str, ...] = ()
"""All attributes. Requirements of jobs and START may look at any of them. One that was not asked
for would be taken for one that the node does not have, and a node that could host a job would be
left out silently."""

_MAX_SLOT_GPUS = 256
_BUSY_STATES = frozenset(
    {"owner", "drained", "claimed", "matched", "preempting", "backfill", "delete"}
)
_CHILD = classads.attribute_names(
    "Name State Activity RemoteUser EnteredCurrentState GPUs Cpus Memory Disk"
)
_MAX_DYNAMIC_SLOTS = 4096


class SlotResources(NamedTuple):
    """Resources of a slot, a machine or a job; GPUs are whole devices, as HTCondor counts them."""

    gpus: int = 0
    cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0

    def __add__(self, other: SlotResources) -> SlotResources:  # type: ignore[override]
        return SlotResources(*map(operator.add, self, other))

    def __sub__(self, other: SlotResources) -> SlotResources:
        return SlotResources(*map(operator.sub, self, other))

    def holds(self, other: SlotResources) -> bool:
        return all(map(operator.ge, self, other))


@frozen
class DynamicSlot:
    """A dynamic slot as in the ad of its partitionable slot."""

    name: str
    user: str
    amount: SlotResources
    entered_at: float  # when it came into its state, by the node's clock
    waits_for_its_job: bool  # claimed, and nothing runs in it yet


@frozen
class MachineSlot:
    """One partitionable or static slot. ``ad`` is its ad with everything given back: the slot if nobody used it."""

    ad: Ad = field(repr=False)
    all: SlotResources
    free: SlotResources
    carved: tuple[DynamicSlot, ...] | None = None  # none where the ad does not list them

    @property
    def gpus(self) -> tuple[Ad, ...]:
        """Return the properties of each GPU, or none if the ad has them for all together only."""
        named = (value(self.ad, name) for name in _device_names(self.ad))
        return tuple(device for device in named if isinstance(device, classad2.ClassAd))


@frozen
class PoolMachine:
    """One machine of the site: one node to the planner, but a job has to fit into one of its slots."""

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

    Slots last heard from before ``oldest_heard_at``, by the collector's clock, are dead, though it
    may list them for a quarter of an hour more. Of two slots of one name the one that was heard
    last counts.
    """
    alive: dict[str, Ad] = {}
    for ad in sorted(slot_ads, key=lambda each: moment(each, "LastHeardFrom")):
        if value(ad, "SlotType") != "Dynamic" and moment(ad, "LastHeardFrom") >= oldest_heard_at:
            alive[text(ad, "Name")] = ad
    machines: dict[str, list[MachineSlot]] = {}
    for _, ad in sorted(alive.items()):
        state, activity = classads.slot_state(ad)
        partitionable = (
            value(ad, "SlotType") == "Partitionable" or value(ad, "PartitionableSlot") is True
        )
        # whether it takes jobs at all now: START need not hold without a job, and IS_OWNER may
        # follow it
        serves = state not in _BUSY_STATES if partitionable else state == "unclaimed"
        stopped = (
            value(ad, "Offline") is True or value(ad, "Draining") is True or activity == "retiring"
        )
        emptied = _emptied(ad)
        free = _amount(ad) if serves and not stopped else SlotResources()
        slot = MachineSlot(emptied, _amount(emptied), free, _carved(ad) if partitionable else None)
        if machine := text(ad, "Machine"):
            machines.setdefault(machine, []).append(slot)
    return tuple(PoolMachine(name, tuple(slots)) for name, slots in sorted(machines.items()))


def _carved(ad: Ad) -> tuple[DynamicSlot, ...] | None:
    """Return the dynamic slots by the Child* attributes: lists of one length, an entry for each."""
    count = whole(ad, "NumDynamicSlots")
    columns = {name: value(ad, f"Child{name}") for name in _CHILD}
    lists = {
        name: found
        for name, found in columns.items()
        if isinstance(found, list) and len(found) == count
    }
    if count and not {"Name", "State"} <= lists.keys():
        return None
    found = []
    for at in range(min(count, _MAX_DYNAMIC_SLOTS)):
        child = {name: column[at] for name, column in lists.items()}
        state = str(child["State"]).lower(), str(child.get("Activity")).lower()
        gpus, cpus, memory_mib, disk_kib = (
            _count(child.get(name)) for name in ("GPUs", "Cpus", "Memory", "Disk")
        )
        slot = DynamicSlot(
            name=str(child["Name"])[:600],
            user=str(child.get("RemoteUser") or "")[:600],
            amount=SlotResources(gpus, cpus, memory_mib, disk_kib // 1024),
            entered_at=classads.as_number(child.get("EnteredCurrentState")) or 0.0,
            waits_for_its_job=state == ("claimed", "idle"),
        )
        found.append(slot)
    return tuple(found)


def _count(found: object) -> int:
    return math.ceil(min(max(classads.as_number(found) or 0.0, 0.0), classads.LARGEST_NUMBER))


def _amount(ad: Ad) -> SlotResources:
    return SlotResources(
        whole(ad, "GPUs"), whole(ad, "Cpus"), whole(ad, "Memory"), whole(ad, "Disk") // 1024
    )


def _emptied(ad: Ad) -> Ad:
    """Return a copy with all of the slot's resources back, unclaimed."""
    empty = classad2.ClassAd()
    empty.update(ad)
    for name in ("Cpus", "Memory", "Disk", "GPUs"):
        there = whole(ad, f"TotalSlot{name}") or whole(ad, name)
        if there or name != "GPUs":
            empty[name] = there
    if devices := _device_names(ad):
        empty["AvailableGPUs"] = classads.expression("{" + ",".join(devices) + "}")
    empty["State"], empty["Activity"] = "Unclaimed", "Idle"
    return empty


def _device_names(ad: Ad) -> tuple[str, ...]:
    """Return ``GPUs_<id>`` of each GPU of the slot. A repeated GPU (shares) is listed as often as it is given out."""
    named = {name.lower(): name for name in ad if name.lower().startswith("gpus_")}
    nested = {
        key: name for key, name in named.items() if isinstance(value(ad, name), classad2.ClassAd)
    }
    assigned = value(ad, "AssignedGPUs")
    ids = (
        [each.strip().lower() for each in assigned.split(",")] if isinstance(assigned, str) else []
    )
    known = [nested[at] for each in ids if (at := "gpus_" + each.replace("-", "_")) in nested]
    return tuple((known or sorted(nested.values()))[:_MAX_SLOT_GPUS])


def request(amount: SlotResources, more: Mapping[str, object] = {}) -> Ad:
    asked = {
        "MyType": "Job",
        "JobUniverse": 5,
        "RequestCpus": amount.cpus,
        "RequestMemory": amount.memory_mib,
        "RequestDisk": amount.disk_mib * 1024,
    }
    return classad2.ClassAd(
        {**asked, **({"RequestGPUs": amount.gpus} if amount.gpus else {}), **more}
    )


def refused(source_text: str, my: Ad, target: Ad) -> bool:
    """Return True if an expression is definitely false for a pair of ads; undefined and error are not."""
    found = classads.evaluated(source_text, my, target)
    return found is False or classads.as_number(found) == 0


def start_of(slot: MachineSlot) -> str:
    return source(slot.ad, "Start")


def nodes(
    machines: Sequence[PoolMachine],
    types: Iterable[DroneType],
    requirements: Mapping[str, str],
    corrections: Mapping[str, SlotResources] = {},
) -> tuple[Node, ...]:
    """Return one node per machine. ``requirements``: by type; ``corrections``: to the free resources, by machine."""
    kinds = [(kind, drone_job(kind), requirements.get(kind.name, "")) for kind in types]
    found = []
    for machine in machines:
        fitting = (
            kind
            for kind, job, more in kinds
            if any(could_host(s, kind, job, more) for s in machine.slots)
        )
        free = machine.free + corrections.get(machine.name, SlotResources())
        (gpus, *others), (free_gpus, *free_others) = machine.all, (max(0, each) for each in free)
        names = tuple(kind.name for kind in fitting)
        sizes = [gpus * WHOLE_GPU, *others, free_gpus * WHOLE_GPU, *free_others]
        found.append(Node(machine.name, names, *sizes))
    return tuple(found)


def shape(kind: DroneType) -> SlotResources:
    """Return the resources that a drone of this type asks for: whole GPUs, as the configuration demands here."""
    return SlotResources(-(-kind.gpu_milli // WHOLE_GPU), kind.cpus, kind.memory_mib, kind.disk_mib)


def drone_job(kind: DroneType, more: Mapping[str, object] = {}) -> Ad:
    """Return the job ad of a drone. ``more``: its attributes beside the usual ones."""
    return request(shape(kind), {"DroneType": kind.name, "DroneSite": kind.site, **more})


def could_host(slot: MachineSlot, kind: DroneType, job: Ad, requirements: str = "") -> bool:
    """Return True if an empty slot could host a drone. What its ad lacks refuses nothing, unless the admin asks."""
    arch = value(slot.ad, "Arch")
    gpus = slot.all.gpus
    devices = slot.gpus
    if kind.gpu_milli and devices:
        gpus = sum(_fits(device, "", kind) for device in devices)
    elif kind.gpu_milli and not _fits(slot.ad, "GPUs_", kind):
        gpus = 0
    return (
        slot.all.holds(shape(kind))
        and (not isinstance(arch, str) or arch.lower() == kind.arch.lower())
        and gpus >= shape(kind).gpus
        and (not requirements or classads.holds(requirements, job, slot.ad))
    )


def _fits(ad: Ad, prefix: str, kind: DroneType) -> bool:
    for name, least in (
        ("GlobalMemoryMb", kind.vram_mib * VRAM_TOLERANCE),
        ("Capability", kind.capability / 10),
        ("MaxSupportedVersion", kind.driver),
    ):
        found = classads.number(ad, prefix + name)
        if found is not None and found < least:
            return False
    if kind.vendor != NVIDIA and classads.number(ad, f"{prefix}Capability") is not None:
        return False
    model = value(ad, f"{prefix}DeviceName")
    if not kind.gpu_model or not isinstance(model, str):
        return True
    return re.search(device_pattern(kind.gpu_model), model, re.IGNORECASE) is not None


NOTICE_CONSTRAINT = (
    'SlotType =!= "Partitionable" && (State == "Preempting" || Activity == "Retiring" || Activity == "Vacating"'
    ' || (State == "Claimed" && (PreemptingRank =!= undefined || PreemptingOwner =!= undefined)))'
)
"""Slots that the site is taking back: mostly none, so asking for them costs nothing."""
NOTICE_PROJECTION = ("Name", "EnteredCurrentActivity", "MyCurrentTime", "LastHeardFrom")
_STALE_SLOT_S = 60.0
"""The slot of an ended drone may still be listed for this long, by our clock; one that is listed later exists."""


def notices(slot_ads: Iterable[Ad], ahead_s: float = 0.0) -> Mapping[str, float]:
    """Return the slots (of ``NOTICE_CONSTRAINT``), by name, that the site is taking back, and since when, by our clock.

    ``ahead_s``: how far the collector's clock is ahead of ours. Of the node's own clock only
    differences are used.
    """
    found = {}
    for ad in slot_ads:
        since = moment(ad, "EnteredCurrentActivity")
        now = moment(ad, "MyCurrentTime")
        age_s = max(0.0, now - since) if since and now else 0.0
        found[text(ad, "Name")] = moment(ad, "LastHeardFrom") - age_s - ahead_s
    return found


def carved(machines: Iterable[PoolMachine]) -> Mapping[str, frozenset[str]]:
    """Return the names of each machine's dynamic slots; machines whose ads do not list them are left out."""
    listed = ((machine.name, machine.carved) for machine in machines)
    return {
        name: frozenset(slot.name for slot in slots) for name, slots in listed if slots is not None
    }


def corrections(
    machines: Iterable[PoolMachine],
    drones: Collection[RemoteDrone],
    shapes: Mapping[str, SlotResources],
    owners: Iterable[tuple[str, SlotResources]] = (),
    users: Collection[str] = (),
    now: float | None = None,
) -> Mapping[str, SlotResources]:
    """Return by machine what is to be added to the free resources of its ads (and, negative, taken off).

    ``shapes``: of drone types by name. ``owners``: the slot names of the owner's running jobs and
    what each holds. ``users``: owners of our jobs.
    """
    now = time.time() if now is None else now
    ours = [
        drone
        for drone in drones
        if drone.state is RemoteState.RUNNING and drone.slot and drone.type in shapes
    ]
    running = {drone.slot: shapes[drone.type] for drone in ours} | dict(owners)
    ended_at = _ended_at(drones, running)
    by_machine: dict[str, list[tuple[str, SlotResources]]] = {}
    for name, amount in running.items():
        by_machine.setdefault(name.rpartition("@")[2], []).append((name, amount))
    found: dict[str, SlotResources] = {}
    for machine in machines:
        if (slots := machine.carved) is None:
            continue
        known = {slot.name for slot in slots}
        ours_once = [slot for slot in slots if slot.user in users]
        unseen = (amount for name, amount in by_machine.get(machine.name, ()) if name not in known)
        more = _freed(ours_once, ended_at, now) - sum(unseen, SlotResources())
        if more != SlotResources():
            found[machine.name] = more
    return found


def _ended_at(drones: Iterable[RemoteDrone], running: Collection[str]) -> Mapping[str, float]:
    """Return the ends of drones by slot, without slots that others run in; of several in one slot, the last."""
    ends = (
        (drone.end.at, drone.slot)
        for drone in drones
        if drone.end is not None and drone.slot not in running
    )
    return {slot: at for at, slot in sorted(ends)}


def _freed(
    slots: Iterable[DynamicSlot], ended_at: Mapping[str, float], now: float
) -> SlotResources:
    """Return what slots of our users hold whose drones have ended lately.

    One that began later is somebody else's, under the same name. (Two clocks: so it must be our
    user's too.)
    """
    amounts = []
    for slot in slots:
        at = ended_at.get(slot.name, 0.0)
        if slot.entered_at <= at and now - at <= _STALE_SLOT_S:
            amounts.append(slot.amount)
    return sum(amounts, SlotResources())
