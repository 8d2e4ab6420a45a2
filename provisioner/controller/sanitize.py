"""Sanitizing of what adapters report: times on the controller's clock, valid numbers and texts.

Adapters validate what they read; this is for what slips through. One NaN in one listing must
neither stop the planner nor make the whole tick unrecordable: it is replaced by the value for
"unknown", and the view's notices say so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, TypeVar

from provisioner import model
from provisioner.model import (
    CompletedJob,
    JobClass,
    Node,
    OrderResult,
    OverlayView,
    RemoteDrone,
    ServicesView,
    SiteView,
    Slot,
)
from provisioner.values import T, frozen

MAX_NUMBER = 1 << 53
"""The largest whole number that every part of the way, down to JSON and SQL, holds exactly."""
MAX_TEXT_CHARS = 4000
"""Characters of one text."""
CLOCK_TOLERANCE_S = 1.0
"""A host clock that is off by less was not set by anybody."""
ENDS_KEPT_S = 1200.0
"""Ends of jobs are remembered for so long, which is longer than an overlay reports them."""
_TIME_SUFFIXES = ("at", "since")
_NAMES: dict[type, str] = {
    OverlayView: "overlay",
    Slot: "slot {0.drone_id}",
    JobClass: "class {0.id:.8}",
    model.UnmetRequirement: "class",
    model.Eviction: "eviction from {0.drone_id}",
    CompletedJob: "end of job {0.job_id}",
    model.JobFailure: "failed job in {0.drone_id}",
    model.Group: "group {0.name}",
    model.OtherDrones: "drones of others",
    SiteView: "site",
    RemoteDrone: "drone {0.drone_id}",
    model.RemoteEnd: "end of {1.drone_id}",
    Node: "node {0.name}",
    model.OwnerDemand: "claim",
    model.OwnerLoad: "the owner's load",
    ServicesView: "services",
    model.ServiceView: "service {0.name:.40}",
    model.ModelUse: "model {0.model:.40}",
}
"""The values of views, and their names for operators; ``1`` is the value that contains it."""
_OF_USERS = ("class", "claim", "end of job ", "eviction ", "failed job ")
"""Names of values that jobs determine: what is odd in them needs no operator."""
_REQUESTS = (
    "gpu_milli",
    "cpus",
    "memory_mib",
    "disk_mib",
    "vram_mib",
    "capability",
    "driver",
    "walltime_s",
)
_AS_THEY_ARE = {"drone_id", "taken_at", "notices", "remarks", "exit_code"}
"""Fields that are repaired otherwise, and one that may be less than 0."""
_FOUND_BY: dict[type, Callable[[Any], object]] = {
    Slot: attrgetter("drone_id"),
    JobClass: attrgetter("id"),
    CompletedJob: attrgetter("job_id"),
    Node: attrgetter("name"),
    model.ServiceView: attrgetter("name"),
}
"""Keys by which a value is found in the view before; others are compared with the same object alone."""
_NESTED = re.compile(rf"(tuple|Mapping|{'|'.join(kind.__name__ for kind in _NAMES)})\b")

View = TypeVar("View", SiteView, OverlayView, ServicesView)


@frozen
class _Shape:
    """The names of one kind of value's fields, by how they are repaired."""

    counts: tuple[str, ...]
    reals: tuple[str, ...]
    texts: tuple[str, ...]
    amounts: tuple[str, ...]
    """Optional whole numbers."""
    nested: tuple[str, ...]
    """Other values, or tuples or mappings of them."""
    read: Callable[[Any], tuple[Any, ...]]
    """Return the values of all counts, reals and texts."""

    @classmethod
    def of(cls, kind: type) -> _Shape:
        types = {
            each.name: str(each.type) for each in fields(kind) if each.name not in _AS_THEY_ARE
        }
        if kind is JobClass:
            del types["priority"]  # may be less than 0
        wanted = ("int", "float", "str", "int | None")
        counts, reals, texts, amounts = (
            tuple(n for n, t in types.items() if t == of) for of in wanted
        )
        nested = tuple(name for name, of in types.items() if _NESTED.match(of))
        # One attribute alone would not come as a tuple.
        read = attrgetter(*counts, *reals, *texts, "__class__", "__class__")
        return cls(counts, reals, texts, amounts, nested, read)

    def plain(self, values: tuple[Any, ...]) -> bool:
        """Return True if nothing is to be repaired, quickly: views have tens of thousands of entries."""
        whole = len(self.counts)
        some = len(self.counts) + len(self.reals)
        numbers = values[:some]
        # NaN is neither
        if numbers and not (min(numbers) >= 0 and max(numbers) < MAX_NUMBER and sum(numbers) >= 0):
            return False
        if type(sum(values[:whole])) is not int:
            return False
        texts = "".join(values[some:-2])
        return texts.isascii() and len(texts) <= MAX_TEXT_CHARS


_SHAPES = {kind: _Shape.of(kind) for kind in _NAMES}


def _repaired_request(job: JobClass, odd: Sequence[str]) -> dict[str, Any]:
    """Return a priority that is a number, and why the request is invalid if an amount of it is odd."""
    new: dict[str, Any] = {}
    if type(job.priority) is not int or abs(job.priority) > MAX_NUMBER:
        new["priority"] = 0
    if odd and odd[0].startswith(_REQUESTS) and not job.invalid:
        new["invalid"] = f"{odd[0]} is no amount"
    return new


class _Repair:
    """Repair of one view; notes what had to be repaired.

    A part that equals its part of the view before is replaced by that one, which is sound. The same
    object in two views tells planner and store that there is no news of it.
    """

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s
        self.repaired: list[tuple[str, str]] = []
        """The name of the value, and what was wrong with it."""

    def value(self, value: T, before: T | None, within: object = None) -> T | None:
        """Return ``before`` if ``value`` equals it, else ``value`` repaired, or None if it has no valid drone id."""
        return before if value == before else self._repaired(value, before, within)

    def _repaired(self, value: T, before: T | None, within: object) -> T | None:
        drone_id = getattr(value, "drone_id", None)
        if drone_id is not None and not (drone_id.isascii() and len(drone_id) <= 63):
            # one that the controller cannot have given
            self.repaired.append(("id of a drone", f"{drone_id[:40]!a}"))
            if not isinstance(value, CompletedJob):
                return None
            value = replace(value, drone_id=None)
        shape = _SHAPES[type(value)]
        odd: list[str] = []
        new = self._numbers_and_texts(value, shape, odd)
        for field in shape.amounts:
            amount = getattr(value, field)
            if amount is not None and not (type(amount) is int and 0 <= amount <= MAX_NUMBER):
                odd.append(f"{field} = {str(amount)[:40]}")
                new[field] = None
        if isinstance(value, JobClass):
            new |= _repaired_request(value, odd)
        self.repaired += [(_NAMES[type(value)].format(value, within), what) for what in odd]
        for field in shape.nested:
            part = getattr(value, field)
            after = self._nested(value, field, part, getattr(before, field, None))
            if after is not part:
                new[field] = after
        return replace(value, **new) if new else value  # type: ignore[type-var]

    def _numbers_and_texts(self, value: object, shape: _Shape, odd: list[str]) -> dict[str, Any]:
        """Return the fields with counts, times and texts, where any has to change; note in ``odd`` what was wrong."""
        seen = shape.read(value)
        if not self.ahead_s and shape.plain(seen):
            return {}
        new: dict[str, Any] = {}
        for field, number in zip(shape.counts + shape.reals, seen, strict=False):
            sound = int(_number(number)) if field in shape.counts else _number(number)
            if sound != number:
                odd.append(f"{field} = {str(number)[:40]}")
            shift = self.ahead_s if sound and field.endswith(_TIME_SUFFIXES) else 0.0
            new[field] = max(0.0, sound - shift) if shift else sound
        return new | {field: limited_text(getattr(value, field)) for field in shape.texts}

    def _nested(self, within: object, field: str, part: Any, before: Any) -> Any:
        """Return a field that contains other values, repaired; that of the view before where both are equal."""
        match part:
            case None | ():
                return part
            case tuple() | Mapping() if part == before:
                return before
            case tuple():
                return self._tuple(within, part, before or ())
            case Mapping():
                return self._mapping(within, field, part, before or {})
            case _:
                return self.value(part, before, within)

    def _tuple(
        self, within: object, part: tuple[Any, ...], before: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        if isinstance(part[0], str):
            return tuple(map(limited_text, part))
        key = _FOUND_BY.get(type(part[0]), id)
        known = dict(zip(map(key, before), before, strict=True))
        pairs = zip(part, map(known.get, map(key, part)), strict=True)
        found = [each if each is old else self.value(each, old, within) for each, old in pairs]
        return tuple(filter(None, found))

    def _mapping(
        self, within: object, field: str, part: Mapping[Any, Any], before: Mapping[Any, Any]
    ) -> Mapping[Any, Any]:
        sound = {}
        for key, each in part.items():
            old = before.get(key)
            if each is old:
                sound[key] = each
                continue
            if isinstance(each, RemoteDrone) and each.drone_id != key:
                each = replace(each, drone_id=key)
            new = self._mapping_value(field, key, each, old, within)
            if new is not None:
                sound[limited_text(key)] = new
        # those of a view may be changed in place by its adapter; others are shared by many values
        of_view = isinstance(within, SiteView | OverlayView | ServicesView)
        return part if not of_view and sound == part else sound

    def _mapping_value(self, field: str, key: str, value: Any, before: Any, within: object) -> Any:
        if isinstance(value, str):
            return limited_text(value)
        if type(value) in _SHAPES:
            return self.value(value, before, within)
        number = _number(value)
        sound = number if field == "priorities" else int(number)
        if sound != value:
            self.repaired.append((field, f"{key[:40]} = {str(value)[:40]}"))
        return sound

    def unique_classes(self, classes: tuple[JobClass, ...]) -> tuple[JobClass, ...]:
        """Return the classes without a second one of an id: it would be planned for with the shape of the other."""
        first = {job.id: job for job in reversed(classes)}
        again = [job for job in classes if first[job.id] is not job]
        # the adapter makes the ids: this one is for operators
        self.repaired += [
            ("overlay", f"class {job.id:.8}: a second one of this id") for job in again
        ]
        return tuple(job for job in classes if first[job.id] is job) if again else classes

    def notices(self, own: tuple[str, ...], *, of_users: bool) -> tuple[str, ...]:
        """Return the adapter's ``own`` notices or remarks, and one of the values that had to be repaired."""
        repaired = [each for each in self.repaired if each[0].startswith(_OF_USERS) is of_users]
        some = "; ".join(f"{name}: {what}" for name, what in repaired[:3])
        more = (f"{len(repaired)} values that cannot be: {some}",) if repaired else ()
        return tuple(map(limited_text, (*own, *more)))


class Sanitizer:
    """Sanitizer of the views of one adapter. It remembers the times that each end of a job was given first.

    An overlay reports each end in many polls, and while the host's clock is off the drift changes
    at every poll: the same end would be another one each time.
    """

    def __init__(self) -> None:
        self._reported: tuple[CompletedJob, ...] = ()
        self._given: tuple[CompletedJob, ...] = ()
        """The result for each of the reported ones."""
        self._known: dict[tuple[str, float], CompletedJob] = {}
        """By job and reported end; empty unless the clock was off when one of them was reported."""
        self._before: Any = None
        """The previous view, as it was repaired."""

    def sanitized(self, view: View, began: float, ahead_s: float) -> View:
        """Return ``view`` with valid values only and its times on the controller's clock.

        ``began`` is the time of the call; the view's age counts from then, as the answer says
        nothing of what happened since. ``ahead_s`` is the lead of the host's clock, by which
        adapters read time, over the controller's.
        """
        repair = _Repair(ahead_s if abs(ahead_s) > CLOCK_TOLERANCE_S else 0.0)
        taken_at = _number(view.taken_at)
        before: View | None = None if repair.ahead_s else self._before
        sound = repair.value(view, before)
        assert sound is not None
        self._before = sound
        if isinstance(sound, OverlayView):
            completions = self._as_first_given(view, sound.completions, repair.ahead_s)
            sound = replace(
                sound, classes=repair.unique_classes(sound.classes), completions=completions
            )
        return replace(
            sound,
            taken_at=min(taken_at - repair.ahead_s, began) if taken_at else began,
            notices=repair.notices(view.notices, of_users=False),
            remarks=repair.notices(view.remarks, of_users=True),
        )

    def _as_first_given(
        self, view: OverlayView, given: tuple[CompletedJob, ...] | None, ahead_s: float
    ) -> tuple[CompletedJob, ...] | None:
        if view.completions is None or given is None:
            return given
        if ahead_s or self._known:
            oldest = view.taken_at - ENDS_KEPT_S
            known = {key: each for key, each in self._known.items() if key[1] >= oldest}
            known |= {
                (one.job_id, one.ended_at): each
                for one, each in zip(self._reported, self._given, strict=True)
            }
            keys = [(one.job_id, one.ended_at) for one in view.completions]
            given = tuple(known.get(key, each) for key, each in zip(keys, given, strict=True))
            off = ahead_s or any(
                one is not each for one, each in zip(view.completions, given, strict=True)
            )
            self._known = known if off else {}
        self._reported = view.completions
        self._given = given
        return given


def sanitize_result(receipt: OrderResult) -> OrderResult:
    """Return ``receipt`` with valid values: a result that cannot be recorded would be tried again without end."""
    fault = receipt.fault
    if fault is not None:
        fault = replace(fault, message=limited_text(fault.message), at=_number(fault.at))
    return replace(receipt, remote_id=limited_text(receipt.remote_id), fault=fault)


def _number(value: float) -> float:
    """Return 0 (unknown) for what is no amount and no time; the largest recordable number for what is more."""
    if not value > 0 or value == float("inf"):
        return 0 if isinstance(value, int) else 0.0
    return value if value <= MAX_NUMBER else type(value)(MAX_NUMBER)


def limited_text(value: str) -> str:
    """Return ``value`` as text of limited length that JSON and SQL can hold."""
    if value.isascii() and len(value) <= MAX_TEXT_CHARS:
        return value
    return value[:MAX_TEXT_CHARS].encode(errors="replace").decode()
