"""What an adapter saw, taken over: its times on the controller's clock, and nothing in it that is no number or no text.

Adapters judge what they read; this is for what slips through. One NaN in one listing must neither stop the planner nor
make the whole tick unrecordable: it is set to what stands for "not told", and the view's notices say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, TypeVar

from provisioner.model import (
    Claim,
    DroneId,
    Eviction,
    JobClass,
    Node,
    OverlayView,
    OwnerLoad,
    Receipt,
    RemoteDrone,
    RemoteEnd,
    SiteView,
    Slot,
)

LARGEST = 1 << 53
"""The largest whole number that every part of the way, down to JSON and SQL, holds exactly."""
LONGEST = 4000
"""Characters of one text."""
SAME_S = 1.0
"""A host clock that is off by less was not set by anybody."""
_SIGNED = ("priority",)
_TIMES = ("at", "since")

_KINDS = (Slot, JobClass, Eviction, RemoteDrone, RemoteEnd, Node, Claim, OwnerLoad, SiteView, OverlayView)

T = TypeVar("T", Slot, JobClass, Eviction, RemoteDrone, RemoteEnd, Node, Claim, OwnerLoad, SiteView, OverlayView)
View = TypeVar("View", SiteView, OverlayView)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The names of one kind of value's whole numbers, other numbers and texts."""

    counts: tuple[str, ...]
    reals: tuple[str, ...]
    texts: tuple[str, ...]
    read: Callable[[Any], tuple[Any, ...]]

    @classmethod
    def of(cls, kind: type) -> _Shape:
        types = {f.name: str(f.type) for f in fields(kind) if f.name not in ("taken_at", *_SIGNED)}
        counts, reals, texts = (tuple(n for n, t in types.items() if t == of) for of in ("int", "float", "str"))
        # One attribute alone would not come as a tuple.
        return cls(counts, reals, texts, attrgetter(*counts, *reals, *texts, "__class__"))

    def plain(self, values: tuple[Any, ...]) -> bool:
        """Whether there is nothing to mend, quickly: views have tens of thousands of entries."""
        whole, some = len(self.counts), len(self.counts) + len(self.reals)
        numbers = values[:some]
        if numbers and not (min(numbers) >= 0 and max(numbers) < LARGEST and sum(numbers) >= 0):  # NaN is neither
            return False
        if type(sum(values[:whole])) is not int:
            return False
        return all(text.isascii() and len(text) <= LONGEST for text in values[some:-1])


_SHAPES = {kind: _Shape.of(kind) for kind in _KINDS}


class _Border:
    """Takes over one view; notes what it had to mend."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s if abs(ahead_s) > SAME_S else 0.0
        self.mended: list[tuple[str, str]] = []
        """Of what, and which value."""

    def value(self, value: T, name: str) -> T:
        """``value`` itself where there is nothing to mend."""
        shape = _SHAPES[type(value)]
        seen = shape.read(value)
        if not self.ahead_s and shape.plain(seen):
            return value
        new: dict[str, Any] = {}
        for field, number in zip(shape.counts + shape.reals, seen, strict=False):
            sound = int(_number(number)) if field in shape.counts else _number(number)
            if sound != number:
                self.mended.append((name, f"{field} = {str(number)[:40]}"))
            shift = self.ahead_s if sound and field.endswith(_TIMES) else 0.0
            new[field] = max(0.0, sound - shift) if shift else sound
        for field in shape.texts:
            new[field] = held(getattr(value, field))
        return replace(value, **new)

    def job(self, job: JobClass) -> JobClass:
        before = len(self.mended)
        if type(job.priority) is not int or abs(job.priority) > LARGEST:
            job = replace(job, priority=0)
        sound = self.value(job, f"class {job.id}")
        odd = [what for _, what in self.mended[before:] if what.startswith(_REQUESTS)]
        return replace(sound, invalid=f"{odd[0]} is no amount") if odd and not sound.invalid else sound

    def drone(self, drone_id: DroneId, drone: RemoteDrone) -> RemoteDrone:
        if drone.drone_id != drone_id:
            drone = replace(drone, drone_id=drone_id)
        sound = self.value(drone, f"drone {drone_id}")
        if sound.end is None:
            return sound
        end = self.value(sound.end, f"end of drone {drone.drone_id}")
        return sound if end is sound.end else replace(sound, end=end)

    def node(self, node: Node) -> Node:
        sound = self.value(node, f"node {held(node.name)}")
        types = _names(node.types)
        return sound if types is node.types else replace(sound, types=types)

    def claim(self, claim: Claim) -> Claim:
        sound = self.value(claim, "claim")
        nodes = _names(claim.nodes)
        return sound if nodes is claim.nodes else replace(sound, nodes=nodes)

    def notices(self, own: tuple[str, ...]) -> tuple[str, ...]:
        told = tuple(held(notice) for notice in own)
        if not self.mended:
            return told
        some = "; ".join(f"{name}: {what}" for name, what in self.mended[:3])
        return (*told, held(f"{len(self.mended)} values that cannot be: {some}"))


_REQUESTS = ("gpu_milli", "cpus", "memory_mib", "disk_mib", "vram_mib", "capability", "driver", "walltime_s")


def taken_over(view: View, began: float, ahead_s: float) -> View:
    """``view`` as the controller may use it. ``began``: when it was asked for; its age counts from then, for the answer
    says nothing of what happened since. ``ahead_s``: how far the host's clock, by which adapters tell time, is ahead of
    the controller's."""
    border = _Border(ahead_s)
    told = _number(view.taken_at)
    taken_at = min(told - border.ahead_s, began) if told else began
    if isinstance(view, OverlayView):
        slots = tuple(border.value(s, f"slot {s.drone_id}") for s in view.slots if _is_id(s.drone_id, border))
        classes = tuple(map(border.job, view.classes))
        evictions = view.evictions
        if evictions is not None:
            ours = (e for e in evictions if _is_id(e.drone_id, border))
            evictions = tuple(border.value(e, f"eviction from {e.drone_id}") for e in ours)
        view = border.value(view, "overlay")
        notices = border.notices(view.notices)
        return replace(view, taken_at=taken_at, slots=slots, classes=classes, evictions=evictions, notices=notices)
    drones = {i: border.drone(i, d) for i, d in view.drones.items() if _is_id(i, border)}
    nodes = tuple(map(border.node, view.nodes))
    claims = tuple(map(border.claim, view.claims))
    owner_runs = None if view.owner_runs is None else border.value(view.owner_runs, "the owner's load")
    free = _free(view.free, border)
    view = border.value(view, "site")
    return replace(
        view,
        taken_at=taken_at,
        drones=drones,
        nodes=nodes,
        claims=claims,
        owner_runs=owner_runs,
        free=free,
        notices=border.notices(view.notices),
    )


def receipt_taken_over(receipt: Receipt) -> Receipt:
    """An answer that cannot be recorded would be tried again for ever."""
    fault = receipt.fault
    if fault is not None:
        fault = replace(fault, message=held(fault.message), at=_number(fault.at))
    return replace(receipt, remote_id=held(receipt.remote_id), fault=fault)


def _is_id(drone_id: str, border: _Border) -> bool:
    """Whether it can be an id that we gave: what cannot is none of ours."""
    ours = drone_id.isascii() and len(drone_id) <= 63
    if not ours:
        border.mended.append(("id of a drone", f"{drone_id[:40]!a}"))
    return ours


def _free(free: Mapping[str, int] | None, border: _Border) -> Mapping[str, int] | None:
    if free is None:
        return None
    sound = {name: int(_number(count)) for name, count in free.items()}
    border.mended += [("free", f"{n[:40]} = {str(free[n])[:40]}") for n in free if sound[n] != free[n]]
    return {held(name): count for name, count in sound.items()}


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    """``names`` itself where there is nothing to mend: a claim may name every node of a site."""
    joined = "".join(names)
    return names if joined.isascii() and len(joined) <= LONGEST else tuple(map(held, names))


def _number(value: float) -> float:
    """Not told (0) for what is no amount and no time; the largest that can be held for what is more."""
    if not value > 0 or value == float("inf"):
        return 0 if isinstance(value, int) else 0.0
    return value if value <= LARGEST else type(value)(LARGEST)


def held(value: str) -> str:
    """``value`` as text that JSON and SQL can hold, and not a book."""
    if value.isascii() and len(value) <= LONGEST:
        return value
    return value[:LONGEST].encode(errors="replace").decode()
