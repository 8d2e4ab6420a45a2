"""Sanitizing of what adapters report: times on the controller's clock, valid numbers and texts.

Adapters validate what they read; this is for what slips through. One NaN in one listing must neither stop the planner
nor make the whole tick unrecordable: it is replaced by the value for "unknown", and the view's notices say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter, is_
from typing import Any, TypeVar

from provisioner.model import (
    CompletedJob,
    DroneId,
    Eviction,
    Group,
    JobClass,
    JobFailure,
    Node,
    OrderResult,
    OverlayView,
    OwnerDemand,
    OwnerLoad,
    RemoteDrone,
    RemoteEnd,
    SiteView,
    Slot,
    TypeKey,
    UnmetRequirement,
)

MAX_NUMBER = 1 << 53
"""The largest whole number that every part of the way, down to JSON and SQL, holds exactly."""
MAX_TEXT_CHARS = 4000
"""Characters of one text."""
CLOCK_TOLERANCE_S = 1.0
"""A host clock that is off by less was not set by anybody."""
ENDS_KEPT_S = 1200.0
"""Ends of jobs are remembered for so long after an overlay has told them last: longer than one tells of them."""
_SIGNED = ("priority", "int")
"""The one whole number that may be less than 0, and its type."""
_TIME_SUFFIXES = ("at", "since")

T = TypeVar(
    "T",
    Slot,
    JobClass,
    Eviction,
    CompletedJob,
    JobFailure,
    Group,
    OverlayView,
    RemoteDrone,
    RemoteEnd,
    Node,
    OwnerDemand,
    OwnerLoad,
    SiteView,
)
View = TypeVar("View", SiteView, OverlayView)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The names of one kind of value's whole numbers, other numbers and texts."""

    counts: tuple[str, ...]
    reals: tuple[str, ...]
    texts: tuple[str, ...]
    read: Callable[[Any], tuple[Any, ...]]
    """Return the values of all of them."""

    @classmethod
    def of(cls, kind: type) -> _Shape:
        types = {f.name: str(f.type) for f in fields(kind) if f.name != "taken_at" and (f.name, f.type) != _SIGNED}
        counts, reals, texts = (tuple(n for n, t in types.items() if t == of) for of in ("int", "float", "str"))
        # One attribute alone would not come as a tuple.
        return cls(counts, reals, texts, attrgetter(*counts, *reals, *texts, "__class__"))

    def plain(self, values: tuple[Any, ...]) -> bool:
        """Return True if nothing is to be repaired, quickly: views have tens of thousands of entries."""
        whole, some = len(self.counts), len(self.counts) + len(self.reals)
        numbers = values[:some]
        if numbers and not (min(numbers) >= 0 and max(numbers) < MAX_NUMBER and sum(numbers) >= 0):  # NaN is neither
            return False
        if type(sum(values[:whole])) is not int:
            return False
        return all(text.isascii() and len(text) <= MAX_TEXT_CHARS for text in values[some:-1])


_SHAPES = {kind: _Shape.of(kind) for kind in T.__constraints__}


class _Repair:
    """Repair of one view; notes what had to be repaired."""

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s if abs(ahead_s) > CLOCK_TOLERANCE_S else 0.0
        self.repaired: list[tuple[str, str]] = []
        """The field and the value."""

    def values(self, values: tuple[T, ...] | None, repair: Callable[[T], T | None]) -> tuple[T, ...] | None:
        """Return all values, each sanitized by ``repair``; None stays None, and valid values stay the same objects."""
        if not values:
            return values
        valid = [new for value in values if (new := repair(value)) is not None]
        return values if len(valid) == len(values) and all(map(is_, valid, values)) else tuple(valid)

    def drones(self, listed: Mapping[DroneId, RemoteDrone]) -> Mapping[DroneId, RemoteDrone]:
        """Return a site's drones, sanitized, by id: the site's own key says which drone it is."""
        found = (self.drone(d if d.drone_id == key else replace(d, drone_id=key)) for key, d in listed.items())
        return {drone.drone_id: drone for drone in found if drone is not None}

    def overlay(self, view: OverlayView) -> dict[str, Any]:
        """Return the sanitized parts of an overlay's view."""
        return {
            "slots": self.values(view.slots, self.slot),
            "classes": self.once(self.values(view.classes, self.job) or ()),
            "evictions": self.values(view.evictions, self.eviction),
            "completions": self.values(view.completions, self.completion),
            "groups": self.values(view.groups, self.group),
            "mishaps": self.values(view.mishaps, self.mishap),
        }

    def site(self, view: SiteView) -> dict[str, Any]:
        """Return the sanitized parts of a site's view."""
        return {
            "drones": self.drones(view.drones),
            "nodes": self.values(view.nodes, self.node),
            "claims": self.values(view.claims, self.claim),
            "owner_runs": None if view.owner_runs is None else self.value(view.owner_runs, "the owner's load"),
            "free": self.by_type("free", view.free),
            "quota": self.by_type("quota", view.quota),
            "free_gpu_milli": self.amount("site", "free_gpu_milli", view.free_gpu_milli),
        }

    def once(self, classes: tuple[JobClass, ...]) -> tuple[JobClass, ...]:
        """Return the classes without a second one of the same id.

        That one would be planned for with the shape of the other.
        """
        first = {job.id: job for job in reversed(classes)}
        if len(first) == len(classes):
            return classes
        again = [job for job in classes if first[job.id] is not job]
        # the adapter makes the ids: this one is for operators
        self.repaired += [("overlay", f"class {job.id}: a second one of this id") for job in again]
        return tuple(job for job in classes if first[job.id] is job)

    def value(self, value: T, name: str) -> T:
        """Return ``value`` with its numbers and texts repaired; itself where nothing is to be repaired."""
        shape = _SHAPES[type(value)]
        seen = shape.read(value)
        if not self.ahead_s and shape.plain(seen):
            return value
        new: dict[str, Any] = {}
        for field, number in zip(shape.counts + shape.reals, seen, strict=False):
            sound = int(_number(number)) if field in shape.counts else _number(number)
            if sound != number:
                self.repaired.append((name, f"{field} = {str(number)[:40]}"))
            shift = self.ahead_s if sound and field.endswith(_TIME_SUFFIXES) else 0.0
            new[field] = max(0.0, sound - shift) if shift else sound
        for field in shape.texts:
            new[field] = held(getattr(value, field))
        return replace(value, **new)

    def is_id(self, drone_id: str) -> bool:
        """Return True if the controller can have given this id; other drones are none of ours."""
        ours = drone_id.isascii() and len(drone_id) <= 63
        if not ours:
            self.repaired.append(("id of a drone", f"{drone_id[:40]!a}"))
        return ours

    def slot(self, slot: Slot) -> Slot | None:
        return self.value(slot, f"slot {slot.drone_id}") if self.is_id(slot.drone_id) else None

    def job(self, job: JobClass) -> JobClass:
        before = len(self.repaired)
        if type(job.priority) is not int or abs(job.priority) > MAX_NUMBER:
            job = replace(job, priority=0)
        refuses = _refuses(job.refuses)
        job = job if refuses is job.refuses else replace(job, refuses=refuses)
        sound = self.value(job, f"class {job.id}")
        odd = [what for _, what in self.repaired[before:] if what.startswith(_REQUESTS)]
        return replace(sound, invalid=f"{odd[0]} is no amount") if odd and not sound.invalid else sound

    def eviction(self, eviction: Eviction) -> Eviction | None:
        return self.value(eviction, f"eviction from {eviction.drone_id}") if self.is_id(eviction.drone_id) else None

    def mishap(self, mishap: JobFailure) -> JobFailure | None:
        return self.value(mishap, f"failed job in {mishap.drone_id}") if self.is_id(mishap.drone_id) else None

    def completion(self, completion: CompletedJob) -> CompletedJob:
        if completion.drone_id is not None and not self.is_id(completion.drone_id):
            completion = replace(completion, drone_id=None)
        return self.value(completion, f"end of job {held(completion.job_id)}")

    def group(self, group: Group) -> Group:
        name = f"group {held(group.name)}"
        quota_milli = self.amount(name, "quota_milli", group.quota_milli)
        return self.value(group if quota_milli is group.quota_milli else replace(group, quota_milli=quota_milli), name)

    def drone(self, drone: RemoteDrone) -> RemoteDrone | None:
        if not self.is_id(drone.drone_id):
            return None
        sound = self.value(drone, f"drone {drone.drone_id}")
        if sound.end is None:
            return sound
        end = self.value(sound.end, f"end of drone {drone.drone_id}")
        return sound if end is sound.end else replace(sound, end=end)

    def node(self, node: Node) -> Node:
        sound = self.value(node, f"node {held(node.name)}")
        types = _names(node.types)
        return sound if types is node.types else replace(sound, types=types)

    def claim(self, claim: OwnerDemand) -> OwnerDemand:
        sound = self.value(claim, "claim")
        nodes = _names(claim.nodes)
        return sound if nodes is claim.nodes else replace(sound, nodes=nodes)

    def by_type(self, part: str, counts: Mapping[str, int] | None) -> Mapping[str, int] | None:
        """Return the counts of drones by type in a new mapping, 0 for invalid ones."""
        if counts is None:
            return None
        sound = {held(name): int(_number(count)) for name, count in counts.items()}
        if sound != counts:
            odd = [(n, count) for n, count in counts.items() if int(_number(count)) != count]
            self.repaired += [(part, f"{n[:40]} = {str(count)[:40]}") for n, count in odd]
        return sound

    def amount(self, name: str, field: str, value: int | None) -> int | None:
        """Return an optional whole number; None if it is invalid."""
        if value is None or (type(value) is int and 0 <= value <= MAX_NUMBER):
            return value
        self.repaired.append((name, f"{field} = {str(value)[:40]}"))
        return None

    def notices(self, own: tuple[str, ...]) -> tuple[str, ...]:
        """Return the adapter's ``own`` notices, and one of the values that had to be repaired."""
        return self._with_repaired(own, [each for each in self.repaired if not each[0].startswith(_OF_USERS)])

    def remarks(self, own: tuple[str, ...]) -> tuple[str, ...]:
        """Return the adapter's ``own`` remarks, and one of the repaired values that come from users' jobs."""
        return self._with_repaired(own, [each for each in self.repaired if each[0].startswith(_OF_USERS)])

    @staticmethod
    def _with_repaired(own: tuple[str, ...], repaired: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        told = tuple(map(held, own)) if own else own
        if not repaired:
            return told
        some = "; ".join(f"{name}: {what}" for name, what in repaired[:3])
        return (*told, held(f"{len(repaired)} values that cannot be: {some}"))


_OF_USERS = ("class ", "claim", "end of job ", "eviction ", "failed job ")
"""Values that jobs determine: what is odd in them needs no operator."""
_REQUESTS = ("gpu_milli", "cpus", "memory_mib", "disk_mib", "vram_mib", "capability", "driver", "walltime_s")


class Sanitizer:
    """Sanitizer of the views of one adapter. It remembers the times that each end of a job was given first.

    An overlay reports each end in many polls, and while the host's clock is off the drift changes at every poll: the
    same end would be another one each time.
    """

    def __init__(self) -> None:
        self._reported: tuple[CompletedJob, ...] = ()
        self._given: tuple[CompletedJob, ...] = ()
        """The result for each of the reported ones."""
        self._known: dict[tuple[str, float], CompletedJob] = {}
        """By job and reported end; empty unless the clock was off when one of them was reported."""

    def sanitized(self, view: View, began: float, ahead_s: float) -> View:
        """Return ``view`` with valid values only and its times on the controller's clock.

        ``began`` is the time of the call; the view's age counts from then, as the answer says nothing of what happened
        since. ``ahead_s`` is the lead of the host's clock, by which adapters read time, over the controller's.
        """
        repair = _Repair(ahead_s)
        taken_at = _number(view.taken_at)
        if isinstance(view, OverlayView):
            parts, valid = repair.overlay(view), repair.value(view, "overlay")
            parts["completions"] = self._as_first_given(view, parts["completions"], repair.ahead_s)
        else:
            parts, valid = repair.site(view), repair.value(view, "site")
        return replace(
            valid,
            **parts,
            taken_at=min(taken_at - repair.ahead_s, began) if taken_at else began,
            notices=repair.notices(view.notices),
            remarks=repair.remarks(view.remarks),
        )

    def _as_first_given(
        self, view: OverlayView, given: tuple[CompletedJob, ...] | None, ahead_s: float
    ) -> tuple[CompletedJob, ...] | None:
        """Return ``given`` with the times that each end was given first."""
        if view.completions is None or given is None:
            return given
        if ahead_s or self._known:
            oldest = view.taken_at - ENDS_KEPT_S
            known = {key: each for key, each in self._known.items() if key[1] >= oldest}
            known |= {(one.job_id, one.ended_at): each for one, each in zip(self._reported, self._given, strict=True)}
            keys = [(one.job_id, one.ended_at) for one in view.completions]
            given = tuple(known.get(key, each) for key, each in zip(keys, given, strict=True))
            off = ahead_s or any(one is not each for one, each in zip(view.completions, given, strict=True))
            self._known = known if off else {}
        self._reported, self._given = view.completions, given
        return given


def sanitize_result(receipt: OrderResult) -> OrderResult:
    """Return ``receipt`` with valid values: a result that cannot be recorded would be tried again for ever."""
    fault = receipt.fault
    if fault is not None:
        fault = replace(fault, message=held(fault.message), at=_number(fault.at))
    return replace(receipt, remote_id=held(receipt.remote_id), fault=fault)


def _refuses(refuses: Mapping[TypeKey, UnmetRequirement]) -> Mapping[TypeKey, UnmetRequirement]:
    """Return ``refuses`` itself where there is nothing to mend: most classes share a few."""
    texts = (text for key, each in refuses.items() for text in (key, each.dimension, each.requested, each.available))
    if all(text.isascii() and len(text) <= MAX_TEXT_CHARS for text in texts):
        return refuses
    return {
        TypeKey(held(key)): UnmetRequirement(held(each.dimension), held(each.requested), held(each.available))
        for key, each in refuses.items()
    }


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return valid names; ``names`` itself where nothing is to be repaired: a claim may name every node of a site."""
    joined = "".join(names)
    return names if joined.isascii() and len(joined) <= MAX_TEXT_CHARS else tuple(map(held, names))


def _number(value: float) -> float:
    """Return 0 (unknown) for what is no amount and no time; the largest recordable number for what is more."""
    if not value > 0 or value == float("inf"):
        return 0 if isinstance(value, int) else 0.0
    return value if value <= MAX_NUMBER else type(value)(MAX_NUMBER)


def held(value: str) -> str:
    """Return ``value`` as text of limited length that JSON and SQL can hold."""
    if value.isascii() and len(value) <= MAX_TEXT_CHARS:
        return value
    return value[:MAX_TEXT_CHARS].encode(errors="replace").decode()
