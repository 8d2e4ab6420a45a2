"""A node as it would be if nobody used it: its slots' ads with everything given back, to judge jobs against."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import classad2

from adapters.shared.htcondor.ads import (
    LARGEST,
    Ad,
    as_number,
    evaluated,
    expression,
    moment,
    source,
    text,
    value,
    whole,
)

CONSTRAINT = 'SlotType =!= "Dynamic"'
"""The slots that stay: a partitionable slot tells what is left in it, and what of it was there at first."""

PROJECTION: tuple[str, ...] = ()
"""All attributes. Requirements of jobs and START may look at any of them, and one that was not asked for would be
taken for one that the node has not got: a node that could host a job would be left out without a word."""

_MOST_GPUS = 256
_BUSY_STATES = frozenset({"owner", "drained", "claimed", "matched", "preempting", "backfill", "delete"})
_CHILD = ("Name", "State", "Activity", "RemoteUser", "EnteredCurrentState", "GPUs", "Cpus", "Memory", "Disk")
_MOST_CARVED = 4096
_RESOURCES = ("Cpus", "Memory", "Disk", "GPUs")


@dataclass(frozen=True, slots=True)
class Amount:
    """Resources of a slot, a machine or a job; GPUs are whole devices, as HTCondor counts them."""

    gpus: int = 0
    cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.gpus + other.gpus,
            self.cpus + other.cpus,
            self.memory_mib + other.memory_mib,
            self.disk_mib + other.disk_mib,
        )

    def __sub__(self, other: Amount) -> Amount:
        return self + Amount(-other.gpus, -other.cpus, -other.memory_mib, -other.disk_mib)

    def holds(self, other: Amount) -> bool:
        return (
            self.gpus >= other.gpus
            and self.cpus >= other.cpus
            and self.memory_mib >= other.memory_mib
            and self.disk_mib >= other.disk_mib
        )


@dataclass(frozen=True, slots=True)
class Carved:
    """A dynamic slot as the partitionable slot's own ad tells it."""

    name: str
    user: str
    amount: Amount
    entered_at: float
    """When it came into its state, by the node's clock."""
    waits_for_its_job: bool
    """Claimed, and nothing runs in it yet."""


@dataclass(frozen=True, slots=True)
class Place:
    """One partitionable or static slot. ``ad`` is its ad with everything given back: the slot if nobody used it."""

    ad: Ad = field(repr=False)
    all: Amount
    free: Amount
    partitionable: bool
    carved: tuple[Carved, ...] | None = None
    """None where the ad does not tell."""

    @property
    def gpus(self) -> tuple[Ad, ...]:
        """Properties of each GPU, or none if the ad tells them for all together only."""
        named = (value(self.ad, name) for name in _device_names(self.ad))
        return tuple(device for device in named if isinstance(device, classad2.ClassAd))


@dataclass(frozen=True, slots=True)
class Host:
    """One machine of the site with its slots. Several slots of a machine are one node to the planner, but a job has to
    fit into one of them."""

    name: str
    places: tuple[Place, ...]

    @property
    def all(self) -> Amount:
        return sum((place.all for place in self.places), Amount())

    @property
    def free(self) -> Amount:
        return sum((place.free for place in self.places), Amount())

    @property
    def carved(self) -> tuple[Carved, ...] | None:
        """The slots in use; None where one of the places does not tell."""
        told = [place.carved for place in self.places]
        return None if None in told else tuple(slot for slots in told for slot in slots or ())


def hosts(slot_ads: Iterable[Ad], oldest_heard_at: float) -> tuple[Host, ...]:
    """The machines behind slot ads (those of ``CONSTRAINT``, with ``PROJECTION``), by name.

    Slots last heard from before ``oldest_heard_at``, by the collector's clock, are dead, though it may list them for
    a quarter of an hour more. Of two slots of one name the one that was heard last counts.
    """
    alive: dict[str, Ad] = {}
    for ad in slot_ads:
        if value(ad, "SlotType") == "Dynamic" or moment(ad, "LastHeardFrom") < oldest_heard_at:
            continue
        slot = text(ad, "Name")
        if slot not in alive or moment(alive[slot], "LastHeardFrom") < moment(ad, "LastHeardFrom"):
            alive[slot] = ad
    machines: dict[str, list[Place]] = {}
    for slot in sorted(alive):
        if machine := text(alive[slot], "Machine"):
            machines.setdefault(machine, []).append(_place(alive[slot]))
    return tuple(Host(name, tuple(places)) for name, places in sorted(machines.items()))


def _place(ad: Ad) -> Place:
    partitionable = value(ad, "SlotType") == "Partitionable" or value(ad, "PartitionableSlot") is True
    emptied = _emptied(ad)
    offered = _amount(ad) if partitionable or str(value(ad, "State")).lower() == "unclaimed" else Amount()
    free = offered if _serves(ad, partitionable) else Amount()
    return Place(emptied, _amount(emptied), free, partitionable, _carved(ad) if partitionable else None)


def _carved(ad: Ad) -> tuple[Carved, ...] | None:
    """Child* of the ad: lists of one length, an entry for each dynamic slot."""
    count = whole(ad, "NumDynamicSlots")
    columns = {name: value(ad, f"Child{name}") for name in _CHILD}
    lists = {name: found for name, found in columns.items() if isinstance(found, list) and len(found) == count}
    if count and not {"Name", "State"} <= lists.keys():
        return None

    def of(name: str, at: int) -> object:
        return lists[name][at] if name in lists else None

    def amount(name: str, at: int) -> int:
        return math.ceil(min(max(as_number(of(name, at)) or 0.0, 0.0), LARGEST))

    return tuple(
        Carved(
            name=str(of("Name", at))[:600],
            user=str(of("RemoteUser", at) or "")[:600],
            amount=Amount(amount("GPUs", at), amount("Cpus", at), amount("Memory", at), amount("Disk", at) // 1024),
            entered_at=as_number(of("EnteredCurrentState", at)) or 0.0,
            waits_for_its_job=(str(of("State", at)).lower(), str(of("Activity", at)).lower()) == ("claimed", "idle"),
        )
        for at in range(min(count, _MOST_CARVED))
    )


def _amount(ad: Ad) -> Amount:
    return Amount(whole(ad, "GPUs"), whole(ad, "Cpus"), whole(ad, "Memory"), whole(ad, "Disk") // 1024)


def _serves(ad: Ad, partitionable: bool) -> bool:
    """Whether the slot takes jobs at all now. (START need not hold without a job, and IS_OWNER may follow it.)"""
    state = str(value(ad, "State")).lower()
    if (
        value(ad, "Offline") is True
        or value(ad, "Draining") is True
        or str(value(ad, "Activity")).lower() == "retiring"
    ):
        return False
    return state == "unclaimed" if not partitionable else state not in _BUSY_STATES


def _emptied(ad: Ad) -> Ad:
    """A copy with all of the slot's resources back, unclaimed."""
    empty = classad2.ClassAd()
    empty.update(ad)
    for name in _RESOURCES:
        there = whole(ad, f"TotalSlot{name}") or whole(ad, name)
        if there or name != "GPUs":
            empty[name] = there
    if devices := _device_names(ad):
        empty["AvailableGPUs"] = expression("{" + ",".join(devices) + "}")
    empty["State"], empty["Activity"] = "Unclaimed", "Idle"
    return empty


def _device_names(ad: Ad) -> tuple[str, ...]:
    """``GPUs_<id>`` of each GPU of the slot. A repeated GPU (shares) is there as often as it is given out."""
    prefix = "gpus_"
    nested = {
        name.lower(): name
        for name in ad
        if name.lower().startswith(prefix) and isinstance(value(ad, name), classad2.ClassAd)
    }
    assigned = value(ad, "AssignedGPUs")
    ids = [each.strip() for each in assigned.split(",")] if isinstance(assigned, str) else []
    known = [nested[at] for each in ids if (at := prefix + each.lower().replace("-", "_")) in nested]
    return tuple((known or sorted(nested.values()))[:_MOST_GPUS])


# ---------------------------------------------------------------------------------------------------------- judgement


def request(amount: Amount, more: Mapping[str, object] = {}) -> Ad:
    """A job ad that asks for so much, and no more than that is known of it."""
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
    """Whether an expression is definitely false for a pair of ads; undefined and error are not. Empty: it is not."""
    return bool(source_text) and _falsehood(evaluated(expression(source_text), my, target))


def _falsehood(found: object) -> bool:
    return found is False or (not isinstance(found, bool) and as_number(found) == 0)


def start_of(place: Place) -> str:
    """The slot's START; "" where it does not tell."""
    return source(place.ad, "Start")


def devices_with(clause: str, job: Ad, place: Place) -> int | None:
    """How many GPUs of a place meet a clause of RequireGPUs; None if that cannot be said."""
    counted = evaluated(expression(f"countMatches({clause}, TARGET.AvailableGPUs)"), job, place.ad)
    found = as_number(counted)
    return None if found is None or not math.isfinite(found) else int(found)
