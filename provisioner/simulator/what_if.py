"""Questions of the kind "what if" as a line of words, and snapshots and worlds changed by them.

SITE down                   away, for good
SITE down 2d..3d            away from 2 days after the begin until 3 days after it; `2d` alone: from then on
SITE gpus=20                so many GPUs there, and its limit with them
SITE max_gpus=20            the limit alone; likewise `max_drones=20`
SITE price=2                the operator's factor on its prices
SITE queue*2                waits in its queue take twice as long; likewise `boot`
SITE owner=none             nobody else's GPUs any more
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil

from provisioner.config.messages import choices
from provisioner.config.units import parse_duration
from provisioner.formatting import count
from provisioner.model import WHOLE_GPU, DroneType, Fault, FaultKind, Policy, PolledSite, SitePolicy, Snapshot
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.faults import HardwareFault, HardwareFaultKind
from provisioner.simulator.loop import Fixed
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world_file import WorldPlan

NUMBERS = ("gpus", "max_gpus", "max_drones", "price")
"""Keys set to a number with ``=``; whole numbers but for the price and ``max_gpus``."""
FACTORS = ("queue", "boot")
"""Durations multiplied with ``*``."""
_WHOLE = frozenset({"gpus", "max_drones"})
_MOST = 1e6
_QUESTIONS = (*NUMBERS, *FACTORS, "owner", "down")
QUESTION_FORMS = "`SITE down`, `SITE down 2d..3d`, `SITE gpus=20`, `SITE price=2`, `SITE queue*2` or `SITE owner=none`"


class QuestionError(Exception):
    """A question that is not understood, or that cannot be asked here; the text says what to write instead."""


@dataclass(frozen=True, slots=True)
class SiteOutage:
    """A site is away for a time, counted from the begin; without an end for good."""

    site: str
    from_s: float = 0.0
    until_s: float | None = None


@dataclass(frozen=True, slots=True)
class ChangedNumber:
    """One of :data:`NUMBERS` has another value at a site."""

    site: str
    key: str
    value: float


@dataclass(frozen=True, slots=True)
class ScaledDuration:
    """One of :data:`FACTORS` takes so many times as long at a site."""

    site: str
    key: str
    factor: float


@dataclass(frozen=True, slots=True)
class OwnerRemoved:
    """A site has no owner who comes first."""

    site: str


Question = SiteOutage | ChangedNumber | ScaledDuration | OwnerRemoved


def read(text: str, sites: Iterable[str]) -> Question:
    """Parse the question in ``text`` about one of ``sites``. Raises QuestionError."""
    known = list(sites)
    site, _, rest = " ".join(text.split()).partition(" ")
    if site not in known:
        raise QuestionError(f"`{text}`: no site `{site}` here: {choices(site, known)}")
    if down := re.fullmatch(r"down(?: (\S+?)(?:\.\.(\S+))?)?", rest):
        return _down(text, site, *down.groups())
    if not (change := re.fullmatch(r"(\w+) ?([=*]) ?(\S+)", rest)):
        word = re.match(r"\w*", rest)
        near = (
            choices(word[0], _QUESTIONS)
            if word and word[0] and word[0] not in _QUESTIONS
            else f"write {QUESTION_FORMS}"
        )
        raise QuestionError(f"`{text}` is not understood: {near}")
    key, sign, value = change.groups()
    if key == "owner" and sign == "=":
        if value != "none":
            raise QuestionError(f"`{text}`: write `{site} owner=none`")
        return OwnerRemoved(site)
    if sign == "=" and key in NUMBERS:
        return ChangedNumber(site, key, _number(text, value, whole=key in _WHOLE))
    if sign == "*" and key in FACTORS:
        return ScaledDuration(site, key, _number(text, value))
    if key in NUMBERS or key in FACTORS:
        raise QuestionError(f"`{text}`: write `{site} {key}{'=' if key in NUMBERS else '*'}{value}`")
    raise QuestionError(f"`{text}`: nothing is known of `{key}`: {choices(key, _QUESTIONS)}")


def _down(text: str, site: str, begin: str | None, end: str | None) -> SiteOutage:
    try:
        from_s = parse_duration(begin) if begin else 0.0
        until_s = parse_duration(end) if end else None
    except ValueError as error:
        raise QuestionError(f"`{text}`: {error}") from None
    if until_s is not None and until_s <= from_s:
        raise QuestionError(f"`{text}`: {end} is not after {begin}")
    return SiteOutage(site, from_s, until_s)


def _number(text: str, value: str, *, whole: bool = False) -> float:
    try:
        number = float(int(value) if whole else float(value))
    except ValueError:
        raise QuestionError(f"`{text}`: `{value}` is no {'whole ' if whole else ''}number") from None
    if not 0 <= number < _MOST:
        raise QuestionError(f"`{text}`: a number from 0 to a million is wanted")
    return number


FOREVER_S = 10 * 365 * 86400.0


def changed(plan: WorldPlan, question: Question) -> WorldPlan:
    """``plan`` as it would be. Raises QuestionError for a change that changes nothing, or that cannot be made."""
    facility = next(each for each in plan.facilities if each.name == question.site)
    match question:
        case SiteOutage(site, from_s, until_s):
            to_s = FOREVER_S if until_s is None else until_s
            return replace(
                plan,
                hardware_faults=(
                    *plan.hardware_faults,
                    HardwareFault(HardwareFaultKind.DOWNTIME, from_s, to_s - from_s, site),
                ),
            )
        case ChangedNumber(_, "gpus", value):
            facility = _gpus(facility, int(value))
        case ChangedNumber(_, key, value):
            facility = _limited(facility, key, value)
        case ScaledDuration(_, key, factor):
            facility = _slower(facility, key, factor)
        case OwnerRemoved(site):
            if facility.owner is None:
                raise QuestionError(f"`{site} owner=none`: {site} has no owner: a world file may give it one (--world)")
            facility = replace(facility, owner=None)
    return replace(plan, facilities=tuple(facility if f.name == facility.name else f for f in plan.facilities))


# ------------------------------------------------------------------------------------------------------------ numbers


def _gpus(facility: Facility, wanted: int) -> Facility:
    """So many GPUs, each pool its share; limits of site and types go along in proportion, up as well as down."""
    question = f"{facility.name} gpus={wanted}"
    total = sum(pool.nodes * pool.gpus_per_node for pool in facility.pools)
    if not total:
        raise QuestionError(f"`{question}`: {facility.name} has no GPUs to begin with")
    cut = _cut(facility, wanted / total, wanted, question)
    kept = tuple(_sized(pool, cut[pool.name]) for pool in facility.pools if cut[pool.name] or not pool.gpus_per_node)
    there = {pool.name for pool in kept}
    types = tuple(kind for kind in facility.types if _pool_of(facility, kind) in there)
    policy, ratio = facility.policy, wanted / total
    return replace(
        facility,
        pools=kept,
        types=tuple(_with_room_for(kind, ratio) for kind in types),
        policy=replace(
            policy,
            max_drones=max(policy.max_drones, wanted),
            max_gpu_milli=wanted * WHOLE_GPU if policy.max_gpu_milli is not None else None,
            max_pending=max(policy.max_pending, round(policy.max_pending * ratio)),
        ),
    )


def _pool_of(facility: Facility, kind: DroneType) -> str:
    return facility.serves.get(kind.name, facility.pools[0].name)


def _with_room_for(kind: DroneType, ratio: float) -> DroneType:
    if kind.max_drones is None or not kind.gpu_milli:
        return kind
    return replace(kind, max_drones=ceil(kind.max_drones * ratio))


def _cut(facility: Facility, ratio: float, wanted: int, question: str) -> dict[str, int]:
    """GPUs of each pool: where drones have several GPUs, a multiple of that, and the rest where they have one."""
    size = dict.fromkeys((pool.name for pool in facility.pools), 1)
    for kind in facility.types:
        name = _pool_of(facility, kind)
        size[name] = max(size[name], ceil(kind.gpu_milli / WHOLE_GPU))
    had = {pool.name: pool.nodes * pool.gpus_per_node for pool in facility.pools}
    cut = {name: round(gpus * ratio / size[name]) * size[name] for name, gpus in had.items() if size[name] > 1}
    rest, single = wanted - sum(cut.values()), {name: had[name] for name in had if name not in cut}
    if rest < 0 or (rest and not any(single.values())):
        raise QuestionError(f"`{question}`: drones there have {max(size.values())} GPUs: write a multiple of that")
    return cut | _shares(rest, single)


def _shares(gpus: int, had: dict[str, int]) -> dict[str, int]:
    """``gpus`` split in proportion; what rounding leaves goes to the largest remainders."""
    exact = {name: gpus * there / max(1, sum(had.values())) for name, there in had.items()}
    cut = {name: int(share) for name, share in exact.items()}
    for name in sorted(cut, key=lambda name: (cut[name] - exact[name], name))[: gpus - sum(cut.values())]:
        cut[name] += 1
    return cut


def _sized(pool: GpuPool, gpus: int) -> GpuPool:
    """With so many GPUs, in nodes as large as they were if that comes out even."""
    if not pool.gpus_per_node:
        return pool
    per_node = next((n for n in range(pool.gpus_per_node, 0, -1) if gpus % n == 0), 1)
    part = per_node / pool.gpus_per_node
    return replace(
        pool,
        gpus_per_node=per_node,
        nodes=gpus // per_node,
        cpus_per_node=int(pool.cpus_per_node * part),
        memory_mib_per_node=int(pool.memory_mib_per_node * part),
    )


def _limited(facility: Facility, key: str, value: float) -> Facility:
    policy = facility.policy
    match key:
        case "price":
            policy = replace(policy, price=value)
        case "max_drones":
            policy = replace(policy, max_drones=int(value))
        case _:
            policy = replace(policy, max_gpu_milli=round(value * WHOLE_GPU))
    return replace(facility, policy=policy)


# -------------------------------------------------------------------------------------------------------------- habits


def _slower(facility: Facility, key: str, factor: float) -> Facility:
    behaviours = (facility.behaviour, *facility.behaviour_of.values())
    if all(getattr(behaviour, key) == Fixed(0.0) for behaviour in behaviours):
        raise QuestionError(
            f"`{facility.name} {key}*{factor:g}`: it takes no time there to begin with: a world file tells how long "
            f"(--world)"
        )
    others = {name: _stretched(behaviour, key, factor) for name, behaviour in facility.behaviour_of.items()}
    return replace(facility, behaviour=_stretched(facility.behaviour, key, factor), behaviour_of=others)


def _stretched(behaviour: SiteBehaviour, key: str, factor: float) -> SiteBehaviour:
    return replace(behaviour, **{key: getattr(behaviour, key).times(factor)})


@dataclass(frozen=True, slots=True)
class ChangedSnapshot:
    """A snapshot as it would be, and what of the question its moment cannot show."""

    snapshot: Snapshot
    notes: tuple[str, ...] = ()


def on_snapshot(snapshot: Snapshot, questions: Sequence[Question]) -> ChangedSnapshot:
    """All of ``questions``, one after the other. Raises QuestionError for those that one moment has no answer to."""
    notes: list[str] = []
    for question in questions:
        match question:
            case SiteOutage(site, 0.0, None):
                snapshot = _without(snapshot, site, notes)
            case SiteOutage(site):
                raise QuestionError(f"a snapshot is one moment: write `{site} down`, or ask `provisioner simulate`")
            case ScaledDuration(site, key):
                raise QuestionError(f"a snapshot is one moment, `{site} {key}` takes time: ask `provisioner simulate`")
            case ChangedNumber(site):
                snapshot = _numbered(snapshot, question, notes)
            case OwnerRemoved(site):
                snapshot = _unowned(snapshot, site)
    return ChangedSnapshot(snapshot, tuple(notes))


def _without(snapshot: Snapshot, site: str, notes: list[str]) -> Snapshot:
    """As if ``site`` had been away for long: none of its drones is left, and it does not answer."""
    there = {drone_id for drone_id, drone in snapshot.drones.items() if drone.site == site}
    overlay = snapshot.overlay
    if overlay.view is not None:
        running = sum(slot.jobs for slot in overlay.view.slots if slot.drone_id in there)
        if running:
            notes.append(f"{count(running, 'job')} that run at {site} are not counted as waiting again")
        slots = tuple(slot for slot in overlay.view.slots if slot.drone_id not in there)
        overlay = replace(overlay, view=replace(overlay.view, slots=slots))
    away = PolledSite(site, None, Fault(FaultKind.DOWN, "away, as was asked", snapshot.now))
    return replace(
        snapshot,
        overlay=overlay,
        drones={drone_id: drone for drone_id, drone in snapshot.drones.items() if drone_id not in there},
        sites={**snapshot.sites, site: away},
        requests=tuple(r for r in snapshot.requests if not there.intersection(r.drone_ids)),
    )


def _numbered(snapshot: Snapshot, question: ChangedNumber, notes: list[str]) -> Snapshot:
    site, value = question.site, question.value
    match question.key:
        case "price":
            return replace(snapshot, policy=_with(snapshot.policy, site, price=value))
        case "max_drones":
            return replace(snapshot, policy=_with(snapshot.policy, site, max_drones=int(value)))
        case key:
            if key == "gpus":
                notes.append(f"{site}: its limit is {value:g} GPUs; what it showed to be free stays as it was seen")
            milli = round(value * WHOLE_GPU)
            return replace(snapshot, policy=_with(snapshot.policy, site, max_gpu_milli=milli))


def _unowned(snapshot: Snapshot, site: str) -> Snapshot:
    reading = snapshot.sites.get(site)
    if reading is None or reading.view is None:
        return snapshot
    return replace(snapshot, sites={**snapshot.sites, site: replace(reading, view=replace(reading.view, claims=()))})


def _with(policy: Policy, site: str, **changes: object) -> Policy:
    was = policy.sites.get(site, SitePolicy(site))
    return replace(policy, sites={**policy.sites, site: replace(was, **changes)})  # type: ignore[arg-type]
