"""Sanitizing of what adapters report: times on the controller's clock, valid numbers and texts.

Adapters validate what they read; this is for what slips through. One NaN in one listing must neither stop the planner
nor make the whole tick unrecordable: it is replaced by the value for "unknown", and the view's notices say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter, eq, is_
from typing import Any, TypeVar, cast

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

LARGEST = 1 << 53
"""The largest whole number that every part of the way, down to JSON and SQL, holds exactly."""
LONGEST = 4000
"""Characters of one text."""
SAME_S = 1.0
"""A host clock that is off by less was not set by anybody."""
ENDS_KEPT_S = 1200.0
"""Ends of jobs are remembered for so long after an overlay has told them last: longer than one tells of them."""
_SIGNED = ("priority", "int")
"""The one whole number that may be less than 0, and its type."""
_TIMES = ("at", "since")

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
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class _Shape:
    """The names of one kind of value's whole numbers, other numbers and texts."""

    counts: tuple[str, ...]
    reals: tuple[str, ...]
    texts: tuple[str, ...]
    read: Callable[[Any], tuple[Any, ...]]
    names: tuple[str, ...]
    """Values of all fields, in their order."""
    others: Callable[[Any], tuple[Any, ...]]
    """All fields but the time at which it was taken."""
    make: Callable[..., Any]

    @classmethod
    def of(cls, kind: type) -> _Shape:
        types = {f.name: str(f.type) for f in fields(kind) if f.name != "taken_at" and (f.name, f.type) != _SIGNED}
        counts, reals, texts = (tuple(n for n, t in types.items() if t == of) for of in ("int", "float", "str"))
        # One attribute alone would not come as a tuple.
        read, names = attrgetter(*counts, *reals, *texts, "__class__"), tuple(f.name for f in fields(kind))
        others = attrgetter("__class__", *(name for name in names if name != "taken_at"))
        return cls(counts, reals, texts, read, names, others, kind)

    def with_parts(self, value: V, parts: Mapping[str, object]) -> V:
        """Return ``value`` with other parts; itself where they are its own.

        (``replace`` takes twice as long, and each poll needs it.)
        """
        if all(getattr(value, name) is part for name, part in parts.items()):
            return value
        return cast(V, self.make(*[parts[n] if n in parts else getattr(value, n) for n in self.names]))

    def plain(self, values: tuple[Any, ...]) -> bool:
        """Return True if nothing is to be repaired, quickly: views have tens of thousands of entries."""
        whole, some = len(self.counts), len(self.counts) + len(self.reals)
        numbers = values[:some]
        if numbers and not (min(numbers) >= 0 and max(numbers) < LARGEST and sum(numbers) >= 0):  # NaN is neither
            return False
        if type(sum(values[:whole])) is not int:
            return False
        return all(text.isascii() and len(text) <= LONGEST for text in values[some:-1])


_SHAPES = {kind: _Shape.of(kind) for kind in T.__constraints__}


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a view that has crossed: its slots, its drones, ..."""

    told: object
    taken: Any
    sound: Mapping[int, object]
    """The values in which there was nothing to mend, by identity, which is theirs for as long as they are kept here."""
    whole: bool
    """True if those were all of them."""


_NEW = _Part(None, None, {}, whole=False)


class _Crossing:
    """One view on its way; notes what had to be mended, and what is sound."""

    def __init__(self, ahead_s: float, known: Mapping[str, _Part]) -> None:
        self.ahead_s = ahead_s if abs(ahead_s) > SAME_S else 0.0
        self.known = {} if self.ahead_s else known
        self.parts: dict[str, _Part] = {}
        self.mended: list[tuple[str, str]] = []
        """The field and the value."""

    def all(self, part: str, values: tuple[T, ...] | None, take: Callable[[T], T | None]) -> tuple[T, ...] | None:
        """Return all values of one part, sanitized by ``take``; None stays None.

        The very values that were sound at the poll before still are.
        """
        if not values:
            return values
        before = self.known.get(part, _NEW)
        if before.told is values and before.whole:
            self.parts[part] = before
            return values
        sound: dict[int, object] = {}
        taken = [new for value in values if (new := self._one(value, take, before.sound, sound)) is not None]
        whole = len(sound) == len(values)
        self.parts[part] = _Part(values, None, sound, whole)
        return values if whole else tuple(taken)

    def drones(self, listed: Mapping[DroneId, RemoteDrone]) -> Mapping[DroneId, RemoteDrone]:
        """Return a site's drones, sanitized, by id; a listing of the same drones as before gives the same mapping."""
        before = self.known.get("drones", _NEW)
        if before.whole and len(listed) == len(before.taken):
            same = all(map(is_, listed.values(), before.taken.values())) and all(map(eq, listed, before.taken))
            if same:
                self.parts["drones"] = before
                return cast(Mapping[DroneId, RemoteDrone], before.taken)
        sound: dict[int, object] = {}
        taken: dict[DroneId, RemoteDrone] = {}
        for drone_id, told in listed.items():
            drone = told if told.drone_id == drone_id else replace(told, drone_id=drone_id)
            new = self._one(drone, self.drone, before.sound, sound)
            if new is not None:
                taken[drone_id] = new
        self.parts["drones"] = _Part(None, taken, sound, whole=len(sound) == len(listed))
        return taken

    @staticmethod
    def _one(
        value: T, take: Callable[[T], T | None], known: Mapping[int, object], sound: dict[int, object]
    ) -> T | None:
        key = id(value)
        taken = value if known.get(key) is value else take(value)
        if taken is value:
            sound[key] = value
        return taken

    def overlay(self, view: OverlayView) -> dict[str, Any]:
        """Return the sanitized parts of an overlay's view."""
        return {
            "slots": self.all("slots", view.slots, self.slot),
            "classes": self.once(self.all("classes", view.classes, self.job) or ()),
            "evictions": self.all("evictions", view.evictions, self.eviction),
            "completions": self.all("completions", view.completions, self.completion),
            "groups": self.all("groups", view.groups, self.group),
            "mishaps": self.all("mishaps", view.mishaps, self.mishap),
        }

    def site(self, view: SiteView) -> dict[str, Any]:
        """Return the sanitized parts of a site's view."""
        return {
            "drones": self.drones(view.drones),
            "nodes": self.all("nodes", view.nodes, self.node),
            "claims": self.all("claims", view.claims, self.claim),
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
        self.mended += [("overlay", f"class {job.id}: a second one of this id") for job in again]
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
                self.mended.append((name, f"{field} = {str(number)[:40]}"))
            shift = self.ahead_s if sound and field.endswith(_TIMES) else 0.0
            new[field] = max(0.0, sound - shift) if shift else sound
        for field in shape.texts:
            new[field] = held(getattr(value, field))
        return replace(value, **new)

    def is_id(self, drone_id: str) -> bool:
        """Return True if the controller can have given this id; other drones are none of ours."""
        ours = drone_id.isascii() and len(drone_id) <= 63
        if not ours:
            self.mended.append(("id of a drone", f"{drone_id[:40]!a}"))
        return ours

    def slot(self, slot: Slot) -> Slot | None:
        return self.value(slot, f"slot {slot.drone_id}") if self.is_id(slot.drone_id) else None

    def job(self, job: JobClass) -> JobClass:
        before = len(self.mended)
        if type(job.priority) is not int or abs(job.priority) > LARGEST:
            job = replace(job, priority=0)
        refuses = _refuses(job.refuses)
        job = job if refuses is job.refuses else replace(job, refuses=refuses)
        sound = self.value(job, f"class {job.id}")
        odd = [what for _, what in self.mended[before:] if what.startswith(_REQUESTS)]
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
            self.mended += [(part, f"{n[:40]} = {str(count)[:40]}") for n, count in odd]
        return sound

    def amount(self, name: str, field: str, value: int | None) -> int | None:
        """Return an optional whole number; None if it is invalid."""
        if value is None or (type(value) is int and 0 <= value <= LARGEST):
            return value
        self.mended.append((name, f"{field} = {str(value)[:40]}"))
        return None

    def notices(self, own: tuple[str, ...]) -> tuple[str, ...]:
        """Return the adapter's ``own`` notices, and one of the values that had to be repaired."""
        return self._and_mended(own, [each for each in self.mended if not each[0].startswith(_OF_USERS)])

    def remarks(self, own: tuple[str, ...]) -> tuple[str, ...]:
        """Return the adapter's ``own`` remarks, and one of the repaired values that come from users' jobs."""
        return self._and_mended(own, [each for each in self.mended if each[0].startswith(_OF_USERS)])

    @staticmethod
    def _and_mended(own: tuple[str, ...], mended: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        told = tuple(map(held, own)) if own else own
        if not mended:
            return told
        some = "; ".join(f"{name}: {what}" for name, what in mended[:3])
        return (*told, held(f"{len(mended)} values that cannot be: {some}"))


_OF_USERS = ("class ", "claim", "end of job ", "eviction ", "failed job ")
"""Values that jobs determine: what is odd in them needs no operator."""
_REQUESTS = ("gpu_milli", "cpus", "memory_mib", "disk_mib", "vram_mib", "capability", "driver", "walltime_s")


class _Ends:
    """Ends of jobs with the times that they were given first.

    An overlay reports each end at many polls, and while the host's clock is off the drift changes at every poll: the
    same end would be another one each time.
    """

    def __init__(self) -> None:
        self.told: tuple[CompletedJob, ...] = ()
        self.taken: tuple[CompletedJob, ...] = ()
        """Return the result for each of ``told``."""
        self.known: dict[tuple[str, float], CompletedJob] = {}
        """By job and end as told; empty unless the clock was off when one of them crossed."""

    def as_first_told(
        self, view: OverlayView, taken: tuple[CompletedJob, ...] | None, ahead_s: float
    ) -> tuple[CompletedJob, ...] | None:
        """Return ``taken`` with the times that each end was given first."""
        if view.completions is None or taken is None:
            return taken
        if ahead_s or self.known:
            oldest = view.taken_at - ENDS_KEPT_S
            known = {key: each for key, each in self.known.items() if key[1] >= oldest}
            known |= {(one.job_id, one.ended_at): each for one, each in zip(self.told, self.taken, strict=True)}
            keys = [(one.job_id, one.ended_at) for one in view.completions]
            taken = tuple(known.get(key, each) for key, each in zip(keys, taken, strict=True))
            off = ahead_s or any(one is not each for one, each in zip(view.completions, taken, strict=True))
            self.known = known if off else {}
        self.told, self.taken = view.completions, taken
        return taken


class Sanitizer:
    """Sanitizer of the views of one adapter. It remembers the newest one: an adapter may give the same values again."""

    def __init__(self) -> None:
        self._parts: Mapping[str, _Part] = {}
        self._told: SiteView | OverlayView | None = None
        """The newest, if there was nothing to mend in it."""
        self._taken: Any = None
        """The result of that."""
        self._ends = _Ends()

    def sanitized(self, view: View, began: float, ahead_s: float) -> View:
        """Return ``view`` with valid values only and its times on the controller's clock.

        ``began`` is the time of the call; the view's age counts from then, as the answer says nothing of what happened
        since. ``ahead_s`` is the lead of the host's clock, by which adapters read time, over the controller's.
        """
        crossing = _Crossing(ahead_s, self._parts)
        told = _number(view.taken_at)
        taken_at = min(told - crossing.ahead_s, began) if told else began
        if self._told is not None and not crossing.ahead_s and self._unchanged(view, crossing):
            self._taken = _SHAPES[type(view)].with_parts(self._taken, {"taken_at": taken_at})
            return cast(View, self._taken)
        if isinstance(view, OverlayView):
            parts, sound = crossing.overlay(view), crossing.value(view, "overlay")
            parts["completions"] = self._ends.as_first_told(view, parts["completions"], crossing.ahead_s)
        else:
            parts, sound = crossing.site(view), crossing.value(view, "site")
        self._parts = crossing.parts
        parts["notices"], parts["remarks"] = crossing.notices(view.notices), crossing.remarks(view.remarks)
        if view.taken_at != taken_at:
            parts["taken_at"] = taken_at
        taken = _SHAPES[type(view)].with_parts(sound, parts)
        untouched = not crossing.mended and not crossing.ahead_s and all(part.whole for part in crossing.parts.values())
        self._told, self._taken = (view, taken) if untouched else (None, None)
        return taken

    def _unchanged(self, view: SiteView | OverlayView, crossing: _Crossing) -> bool:
        """Return True if ``view`` equals the one before, also where an adapter may have changed that in place.

        Then nothing is to be sanitized again.
        """
        assert self._told is not None
        others = _SHAPES[type(view)].others
        if others(view) != others(self._told):  # quick: what is the very same is not compared in depth
            return False
        if isinstance(view, OverlayView):
            return True
        counts = view.free == self._taken.free and view.quota == self._taken.quota
        return counts and crossing.drones(view.drones) is self._taken.drones


def sanitize_result(receipt: OrderResult) -> OrderResult:
    """Return ``receipt`` with valid values: a result that cannot be recorded would be tried again for ever."""
    fault = receipt.fault
    if fault is not None:
        fault = replace(fault, message=held(fault.message), at=_number(fault.at))
    return replace(receipt, remote_id=held(receipt.remote_id), fault=fault)


def _refuses(refuses: Mapping[TypeKey, UnmetRequirement]) -> Mapping[TypeKey, UnmetRequirement]:
    """Return ``refuses`` itself where there is nothing to mend: most classes share a few."""
    texts = (text for key, each in refuses.items() for text in (key, each.dimension, each.requested, each.available))
    if all(text.isascii() and len(text) <= LONGEST for text in texts):
        return refuses
    return {
        TypeKey(held(key)): UnmetRequirement(held(each.dimension), held(each.requested), held(each.available))
        for key, each in refuses.items()
    }


def _names(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return valid names; ``names`` itself where nothing is to be repaired: a claim may name every node of a site."""
    joined = "".join(names)
    return names if joined.isascii() and len(joined) <= LONGEST else tuple(map(held, names))


def _number(value: float) -> float:
    """Return 0 (unknown) for what is no amount and no time; the largest recordable number for what is more."""
    if not value > 0 or value == float("inf"):
        return 0 if isinstance(value, int) else 0.0
    return value if value <= LARGEST else type(value)(LARGEST)


def held(value: str) -> str:
    """Return ``value`` as text of limited length that JSON and SQL can hold."""
    if value.isascii() and len(value) <= LONGEST:
        return value
    return value[:LONGEST].encode(errors="replace").decode()
