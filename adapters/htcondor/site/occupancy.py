"""One truth per job where the queue and the slots tell two: what a node really has free, and who has room already.

A node's slot ad comes by way of the collector, a moment later than the queue's word. Taken as they are, a drone that
has just begun leaves its GPU free for another (seen: 8 free GPUs, and up to four drones too many), and one that has
just gone leaves it taken, so that more are asked to make room (seen: twice as many as the owner needed). A
partitionable slot names the slots carved from it, in the same ad as what is left: that tells which jobs it knows of.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from adapters.htcondor.site.matching import Amount, Host
from adapters.htcondor.site.owner_queue import Group
from provisioner.model import RemoteDrone, RemoteState

_TOLD_WITHIN_S = 60.0
"""So long after a drone's end, by our clock, its slot may still be told; one that is told later is there."""


def carved(hosts: Iterable[Host]) -> Mapping[str, frozenset[str]]:
    """By machine, the names of the slots that its ads know; machines that do not tell are left out."""
    return {host.name: frozenset(slot.name for slot in slots) for host in hosts if (slots := host.carved) is not None}


def corrections(
    hosts: Iterable[Host],
    drones: Iterable[RemoteDrone],
    shapes: Mapping[str, Amount],
    owners: Iterable[tuple[str, Amount]] = (),
    users: Collection[str] = (),
    now: float | None = None,
) -> Mapping[str, Amount]:
    """By machine, what is to be added to the free amounts that its ads tell (and, negative, taken off).

    ``shapes``: of drone types by name. ``owners``: the slot names of the owner's running jobs and what each holds.
    ``users``: whose jobs ours are.
    """
    now = time.time() if now is None else now
    ours = list(drones)
    running = {drone.slot: shapes[drone.type] for drone in ours if _holds(drone) and drone.type in shapes}
    running |= dict(owners)
    ended = {
        drone.slot: drone.end.at
        for drone in ours
        if drone.end is not None and now - drone.end.at <= _TOLD_WITHIN_S and drone.slot not in running
    }
    by_machine: dict[str, list[tuple[str, Amount]]] = {}
    for name, amount in running.items():
        by_machine.setdefault(name.rpartition("@")[2], []).append((name, amount))
    found: dict[str, Amount] = {}
    for host in hosts:
        if host.carved is None:
            continue
        known = {slot.name for slot in host.carved}
        more = Amount()
        for slot in host.carved:
            # One that began later is somebody else's, under the same name. (Two clocks: so it must be our user's too.)
            if slot.user in users and slot.name in ended and slot.entered_at <= ended[slot.name]:
                more += slot.amount
        for name, amount in by_machine.get(host.name, ()):
            if name not in known:
                more -= amount
        if more != Amount():
            found[host.name] = more
    return found


def _holds(drone: RemoteDrone) -> bool:
    return drone.state is RemoteState.RUNNING and bool(drone.slot)


def slots_of(hosts: Iterable[Host]) -> frozenset[tuple[str, float]]:
    """The carved slots: name, and since when."""
    return frozenset((slot.name, slot.entered_at) for host in hosts for slot in host.carved or ())


def without_matched(
    groups: Sequence[Group], hosts: Iterable[Host], before: Collection[tuple[str, float]] | None = None
) -> list[Group]:
    """The owner's waiting jobs but for those that have a slot already: it is claimed by their user and large enough,
    and nothing runs in it yet; or, where their queue was read when there were but the slots ``before``, it is new."""
    ready = [
        slot
        for host in hosts
        for slot in host.carved or ()
        if slot.waits_for_its_job or (before is not None and (slot.name, slot.entered_at) not in before)
    ]
    waiting = [list(group.submitted) for group in groups]
    users = {slot.user for slot in ready}
    oldest = sorted((at, n) for n, group in enumerate(groups) if group.user in users for at in group.submitted)
    for at, n in oldest:
        if not ready:
            break
        mine = next((s for s in ready if s.user == groups[n].user and _is_room_for(s.amount, groups[n].size)), None)
        if mine is not None:
            ready.remove(mine)
            waiting[n].remove(at)
    return [replace(group, submitted=tuple(left)) for group, left in zip(groups, waiting, strict=True) if left]


def _is_room_for(amount: Amount, size: Amount) -> bool:
    """Disk is left aside: it is cut to what is there."""
    return amount.holds(replace(size, disk_mib=0))
