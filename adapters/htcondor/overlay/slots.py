"""Slots of our drones by startd ads. Anyone with a drone's token writes those: nothing in them is trusted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace

from adapters.htcondor import classads
from adapters.htcondor.classads import Ad, moment, source, text, value, whole
from adapters.shared.printing import printable
from provisioner.model import WHOLE_GPU, Blame, DroneId, JobFailure, Slot, SlotState, TypeKey
from provisioner.settings import MOST_SHARES
from provisioner.sharing import share_milli
from provisioner.values import frozen

OUR_SLOTS = 'DroneId isnt undefined && SlotType isnt "Dynamic"'
"""A drone's partitionable slot tells all: what is free, how many slots were carved from it and what they do."""
_TEXTS = classads.attribute_names(
    "Name DroneId SiteName DroneType State Activity GPUs_DeviceName RemoteOwner"
)
_MAX_TEXT = 1000
"""Characters of a text in a slot ad: a poll with a hundred forged ads of a megabyte each takes too long."""

SLOT_PROJECTION = classads.attribute_names(
    """
    Name DroneId SiteName DroneType SlotType SlotID State Activity ChildState NumDynamicSlots NumDynamicSlotsTime
    Cpus Memory Disk GPUs LastHeardFrom MyCurrentTime JobStarts EnteredCurrentState Start DroneReady DroneHealthy
    Draining DroneDraining DroneRetiresAt DaemonStartTime GPUs_DeviceName GPUs_GlobalMemoryMb GPUs_Capability
    TotalSlotGPUs GPUMem TotalSlotGPUMem DroneShares TotalGPUs DroneGpusOffline DroneFaults DroneStrayVram
    RemoteOwner ChildRemoteOwner
    """
)

DRONE_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def ours(identities: str = "") -> str:
    """Return the constraint for slots of drones. Ads with huge texts stay in the collector.

    So do ads that another drone's identity has sent. ``identities``: the identity that each drone
    has, with ``{drone}`` for its id. (What none of them has sent is of a drone whose token does not
    have its id.)
    """
    limits = dict.fromkeys(_TEXTS, _MAX_TEXT) | {"DroneFaults": 4 * _MAX_TEXT}
    short = " && ".join(f"(size({name}) <= {limit}) isnt false" for name, limit in limits.items())
    return f"{OUR_SLOTS} && {short}" + (f" && !({forged(identities)})" if identities else "")


def forged(identities: str) -> str:
    """Return the expression that is true of an ad with the id of one drone and the sender of another."""
    before, _, after = identities.partition("{drone}")
    of_a_drone = f"{before}[a-z0-9][a-z0-9-]*{after}".replace(".", "[.]")
    return (
        f'AuthenticatedIdentity isnt strcat("{before}", DroneId, "{after}")'
        f' && regexp("^{of_a_drone}$", AuthenticatedIdentity) is true'
    )


_CLAIMED = frozenset({"claimed", "matched", "preempting"})
_MAX_SLOT_NOTICES = 20
_MAX_SLOTS_PER_DRONE = 1000  # limit per drone: no node has more GPUs, and sums stay sensible


@frozen
class DroneSlot:
    """The slot of a drone, and what else its ads tell: one ad, or all of one startd together."""

    slot: Slot
    type: TypeKey
    # when its startd started, by its own clock: tells two startds with one drone id apart
    started: float
    slot_id: int
    device_milli: int  # share of a real GPU that each GPU of the slot is, in thousandths
    ad_name: str = field(repr=False)
    users: frozenset[str] = frozenset()  # owners of the claims that it shows
    faults: tuple[JobFailure, ...] = ()  # faults on its shared GPUs, by the drone's word


@frozen
class SlotsView:
    """Slots of our drones, with notices about other ads, and remarks that need no operator."""

    drones: tuple[DroneSlot, ...]
    notices: tuple[str, ...]
    remarks: tuple[str, ...] = ()

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(each.slot for each in self.drones)


def slots_view(
    ads: Iterable[Ad], controller: str, to_our_clock: Callable[[float], float]
) -> SlotsView:
    """Return one slot per drone of this controller, by ads of :func:`ours`, and a line for each odd ad."""
    found: dict[DroneId, list[DroneSlot]] = {}
    notices: list[str] = []
    strangers = 0
    for ad in ads:
        drone_id = value(ad, "DroneId")
        if not isinstance(drone_id, str) or not DRONE_ID.fullmatch(drone_id):
            shown = printable(drone_id if isinstance(drone_id, str) else source(ad, "DroneId"), 60)
            notices.append(f"slot {text(ad, 'Name', 60)!r} ignored: {shown!r} is not a drone id")
        elif not drone_id.startswith(f"{controller}-"):
            strangers += 1
        else:
            found.setdefault(DroneId(drone_id), []).append(
                _drone_slot(ad, DroneId(drone_id), to_our_clock)
            )
    drones = []
    for drone_id, seen in sorted(found.items()):
        newest = max(seen, key=lambda s: (s.slot.heard_at, s.started))
        same = sorted((s for s in seen if s.started == newest.started), key=lambda s: s.slot_id)[
            :_MAX_SLOTS_PER_DRONE
        ]
        if len(same) < len(seen):
            notices.append(
                f"drone {drone_id}: {len(seen) - len(same)} older slots under its id ignored"
            )
        drones.append(_together(same))
    if len(notices) > _MAX_SLOT_NOTICES:
        notices[_MAX_SLOT_NOTICES - 1 :] = [
            f"and {len(notices) - _MAX_SLOT_NOTICES + 1} more oddities of slots"
        ]
    remarks = (f"{strangers} slots belong to drones of other controllers",) if strangers else ()
    return SlotsView(tuple(drones), tuple(notices), remarks)


_CLOCK_STEP_S = 60.0  # clocks that are less than about half of this apart are taken for the same


def _drone_slot(ad: Ad, drone_id: DroneId, to_our_clock: Callable[[float], float]) -> DroneSlot:
    heard = moment(ad, "LastHeardFrom")
    jobs = _claims(ad)
    heard_at = to_our_clock(heard) if heard > 0 else 0.0
    # since when nothing is carved from the slot: of the startd's own clock only differences are
    # used
    changed = (
        "NumDynamicSlotsTime" if value(ad, "SlotType") == "Partitionable" else "EnteredCurrentState"
    )
    now = moment(ad, "MyCurrentTime") or heard
    idle_s = max(0.0, now - (moment(ad, changed) or moment(ad, "EnteredCurrentState") or now))
    capability = classads.number(ad, "GPUs_Capability") or 0
    shares = min(max(1, whole(ad, "DroneShares")), MOST_SHARES)
    part = whole(ad, "DroneGpuMilli")
    device_milli = part if shares == 1 and 0 < part < WHOLE_GPU else share_milli(shares)
    slot = Slot(
        drone_id=drone_id,
        state=_state(ad, jobs),
        heard_at=heard_at,
        free_gpu_milli=_free_gpu_milli(ad, device_milli, shares),
        free_cpus=whole(ad, "Cpus"),
        free_memory_mib=whole(ad, "Memory"),
        free_disk_mib=whole(ad, "Disk") // 1024,
        jobs=jobs,
        jobs_started=whole(ad, "JobStarts"),
        idle_since=max(0.0, heard_at - idle_s) if jobs == 0 and heard_at else 0.0,
        retires_at=_by_our_clock(ad, float(whole(ad, "DroneRetiresAt")), heard_at),
        name=text(ad, "Name"),
        gpu_model=text(ad, "GPUs_DeviceName", 80),
        vram_mib=whole(ad, "GPUs_GlobalMemoryMb"),
        capability=round(capability * 10) if 0 < capability < 100 else 0,
        gpus_offline=min(whole(ad, "DroneGpusOffline"), whole(ad, "TotalSlotGPUs")),
    )
    children = value(ad, "ChildRemoteOwner")
    owners = [
        value(ad, "RemoteOwner"),
        *(children[:_MAX_SLOTS_PER_DRONE] if isinstance(children, list) else ()),
    ]
    return DroneSlot(
        slot=slot,
        type=TypeKey(f"{text(ad, 'SiteName', 63)}/{text(ad, 'DroneType', 63)}"),
        started=moment(ad, "DaemonStartTime"),
        slot_id=whole(ad, "SlotID"),
        device_milli=device_milli,
        ad_name=text(ad, "Name", 600),
        # without their domains: as ``Owner`` of a job has them
        users=frozenset(
            printable(each.partition("@")[0], 80) for each in owners if isinstance(each, str)
        )
        - {""},
        faults=tuple(_faults(ad, drone_id, heard_at)),
    )


def _by_our_clock(ad: Ad, at: float, heard_at: float) -> float:
    """Return a time of the startd on our clock, in whole minutes of difference between the clocks.

    Ads are under way for seconds, and a time that changes with each of them would be news of each
    drone at each poll.
    """
    told_at = moment(ad, "MyCurrentTime")
    if not (at and told_at and heard_at):
        return at
    return max(0.0, at + round((heard_at - told_at) / _CLOCK_STEP_S) * _CLOCK_STEP_S)


_FAULT = re.compile(
    r"([1-9][0-9]{8,10})\|([A-Za-z0-9@._:/-]{1,120}#[0-9]{1,10}\.[0-9]{1,10})#[0-9]{1,12}"
    r"\|([A-Za-z0-9@._-]{1,80})\|(faulted|collateral)"
)
_FAULT_CAUSES = {
    "faulted": (Blame.JOB, "faulted on a shared GPU"),
    "collateral": (Blame.COLLATERAL, "ended by the fault of a neighbour on a shared GPU"),
}


def _faults(ad: Ad, drone_id: DroneId, heard_at: float) -> Iterator[JobFailure]:
    """Yield the faults that a drone reports. Malformed records are ignored."""
    for record in text(ad, "DroneFaults", 4 * _MAX_TEXT).split(" ")[-10:]:
        if found := _FAULT.fullmatch(record):
            blame, cause = _FAULT_CAUSES[found[4]]
            at = _by_our_clock(ad, float(found[1]), heard_at)
            user = found[3].partition("@")[0]
            yield JobFailure(drone_id, found[2], at, user, cause, blame)


def _free_gpu_milli(ad: Ad, device_milli: int, shares: int) -> int:
    """Return the slot's GPUs less the shares, or parts of VRAM, that jobs have. Remainders of rounding are left out."""
    if pool_mib := whole(ad, "TotalSlotGPUMem"):
        return min(WHOLE_GPU, whole(ad, "GPUMem") * WHOLE_GPU // pool_mib)
    each = device_milli
    free = whole(ad, "GPUs")
    if shares == 1:
        return free * each
    there = whole(ad, "TotalSlotGPUs")
    # GPUs that are offline are in the slot's total
    there = max(free, min(there, whole(ad, "TotalGPUs") or there))
    return max(0, there // shares * WHOLE_GPU - (there - free) * each)


def _claims(ad: Ad) -> int:
    """Return the number of claims in the slot. Claimed and idle is claimed: its job may be on the way."""
    if value(ad, "SlotType") != "Partitionable":
        return int(is_claimed(ad))
    children = value(ad, "ChildState")
    claimed = 0
    if isinstance(children, list):
        claimed = sum(isinstance(state, str) and state.lower() in _CLAIMED for state in children)
    return max(claimed, min(whole(ad, "NumDynamicSlots"), 10_000))


def is_claimed(ad: Ad) -> bool:
    return classads.slot_state(ad)[0] in _CLAIMED


def _state(ad: Ad, jobs: int) -> SlotState:
    state, activity = classads.slot_state(ad)
    ordered = value(ad, "Draining") is True or value(ad, "DroneDraining") is True
    if ordered or state == "drained" or activity == "retiring":
        return SlotState.DRAINING
    if jobs:
        return SlotState.BUSY
    asks_the_job = any(
        name.lower().startswith("target.") for name in classads.references(source(ad, "Start"))
    )
    refuses = value(ad, "DroneReady") is False or value(ad, "DroneHealthy") is False
    refuses = refuses or whole(ad, "DroneStrayVram") > 0
    refuses = refuses or (not asks_the_job and value(ad, "Start") is False)  # whatever the job
    return SlotState.CHECKING if refuses or state == "owner" else SlotState.IDLE


def _together(seen: list[DroneSlot]) -> DroneSlot:
    """Return the slots of one startd as one: a drone may offer a slot per GPU."""
    if len(seen) == 1:
        return seen[0]
    slots = [s.slot for s in seen]
    jobs = sum(s.jobs for s in slots)
    states = {s.state for s in slots}
    all_of_it = replace(
        slots[0],
        state=next(
            (s for s in (SlotState.DRAINING, SlotState.BUSY, SlotState.IDLE) if s in states),
            slots[0].state,
        ),
        heard_at=max(s.heard_at for s in slots),
        free_gpu_milli=sum(s.free_gpu_milli for s in slots),
        gpus_offline=max(s.gpus_offline for s in slots),
        free_cpus=sum(s.free_cpus for s in slots),
        free_memory_mib=sum(s.free_memory_mib for s in slots),
        free_disk_mib=sum(s.free_disk_mib for s in slots),
        jobs=jobs,
        jobs_started=max(s.jobs_started for s in slots),
        idle_since=0.0 if jobs else max(s.idle_since for s in slots),
    )
    users = frozenset[str]().union(*(each.users for each in seen))
    faults = tuple(dict.fromkeys(fault for each in seen for fault in each.faults))
    return replace(seen[0], slot=all_of_it, users=users, faults=faults)
