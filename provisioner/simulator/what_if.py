"""Questions of the kind "what if" as a line of words, and snapshots and worlds changed by them.

SITE down                   away, for good SITE down 2d..3d            away from 2 days after the
begin until 3 days after it; `2d` alone: from then on SITE gpus=20                so many GPUs
there, and its limit with them SITE max_gpus=20            the limit alone; likewise `max_drones=20`
SITE price=2                the operator's factor on its prices SITE queue*2                waits in
its queue take twice as long; likewise `boot` SITE owner=none             nobody else's GPUs any
more
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from provisioner.config.messages import choices
from provisioner.durations import parse_duration
from provisioner.formatting import count
from provisioner.model import WHOLE_GPU, Fault, FaultKind, PolledSite, SitePolicy, Snapshot
from provisioner.simulator.drones import HardwareFault, HardwareFaultKind
from provisioner.simulator.loop import Fixed
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world_file import WorldPlan
from provisioner.values import frozen

SIGNS = {"gpus": "=", "max_gpus": "=", "max_drones": "=", "price": "=", "queue": "*", "boot": "*"}
"""Keys that are set to a number with ``=``, and durations that are multiplied with ``*``."""
_WHOLE = frozenset({"gpus", "max_drones"})
_MOST = 1e6
_KEYS = (*SIGNS, "owner", "down")
_FORMS = "`SITE down`, `SITE down 2d..3d`, `SITE gpus=20`, `SITE price=2`, `SITE queue*2` or `SITE owner=none`"
FOREVER_S = 10 * 365 * 86400.0


class QuestionError(Exception):
    """A question that is not understood, or that cannot be asked here; the text says what to write instead."""


@frozen
class Question:
    site: str
    key: str
    """One of :data:`SIGNS`, ``owner`` or ``down``."""
    value: float = 0.0
    """The number or factor; of ``down``: its begin, in seconds."""
    until_s: float = FOREVER_S


def read(text: str, sites: Sequence[str]) -> Question:
    """Parse the question in ``text`` about one of ``sites``. Raises QuestionError."""
    site, _, rest = " ".join(text.split()).partition(" ")
    if site not in sites:
        raise QuestionError(f"`{text}`: no site `{site}` here: {choices(site, sites)}")
    if down := re.fullmatch(r"down(?: (\S+?)(?:\.\.(\S+))?)?", rest):
        return _down(text, site, *down.groups())
    if not (change := re.fullmatch(r"(\w+) ?([=*]) ?(\S+)", rest)):
        word = re.findall(r"^\w+", rest)
        near = choices(word[0], _KEYS) if word and word[0] not in _KEYS else f"write {_FORMS}"
        raise QuestionError(f"`{text}` is not understood: {near}")
    key, sign, value = change.groups()
    if key == "owner":
        if sign + value != "=none":
            raise QuestionError(f"`{text}`: write `{site} owner=none`")
        return Question(site, key)
    if key not in SIGNS:
        raise QuestionError(f"`{text}`: nothing is known of `{key}`: {choices(key, _KEYS)}")
    if sign != SIGNS[key]:
        raise QuestionError(f"`{text}`: write `{site} {key}{SIGNS[key]}{value}`")
    try:
        number = float(int(value) if key in _WHOLE else float(value))
    except ValueError:
        raise QuestionError(
            f"`{text}`: `{value}` is no {'whole ' if key in _WHOLE else ''}number"
        ) from None
    if not 0 <= number < _MOST:
        raise QuestionError(f"`{text}`: a number from 0 to a million is wanted")
    return Question(site, key, number)


def _down(text: str, site: str, begin: str | None, end: str | None) -> Question:
    try:
        from_s = parse_duration(begin) if begin else 0.0
        until_s = parse_duration(end) if end else FOREVER_S
    except ValueError as error:
        raise QuestionError(f"`{text}`: {error}") from None
    if until_s <= from_s:
        raise QuestionError(f"`{text}`: {end} is not after {begin}")
    return Question(site, "down", from_s, until_s)


def _with_number(policy: SitePolicy, question: Question) -> SitePolicy:
    match question.key:
        case "price":
            return replace(policy, price=question.value)
        case "max_drones":
            return replace(policy, max_drones=int(question.value))
        case _:
            return replace(policy, max_gpu_milli=round(question.value * WHOLE_GPU))


def changed(plan: WorldPlan, question: Question) -> WorldPlan:
    """Return the changed ``plan``. Raises QuestionError for a change that changes nothing, or that cannot be made."""
    site = question.site
    facility = next(each for each in plan.facilities if each.name == site)
    match question.key:
        case "down":
            for_s = question.until_s - question.value
            downtime = HardwareFault(HardwareFaultKind.DOWNTIME, question.value, for_s, site)
            return replace(plan, hardware_faults=(*plan.hardware_faults, downtime))
        case "gpus":
            facility = _with_gpus(facility, int(question.value))
        case "queue" | "boot":
            facility = _slower(facility, question.key, question.value)
        case "owner":
            if facility.owner is None:
                raise QuestionError(
                    f"`{site} owner=none`: {site} has no owner: a world file may give it one (--world)"
                )
            facility = replace(facility, owner=None)
        case _:
            facility = replace(facility, policy=_with_number(facility.policy, question))
    return replace(
        plan, facilities=tuple(facility if each.name == site else each for each in plan.facilities)
    )


def _with_gpus(facility: Facility, wanted: int) -> Facility:
    """Give a site so many GPUs, each pool its share; limits of site and types go along in proportion."""
    total = sum(pool.gpus for pool in facility.pools)
    if not total:
        raise QuestionError(
            f"`{facility.name} gpus={wanted}`: {facility.name} has no GPUs to begin with"
        )
    ratio = wanted / total
    policy = facility.policy
    gpus = _shares(facility, wanted)
    types = []
    for kind in facility.types:
        if not kind.gpu_milli:
            types.append(kind)
        elif gpus[facility.pool_of(kind)]:
            most = kind.max_drones and ceil(kind.max_drones * ratio)
            types.append(replace(kind, max_drones=most))
    policy = replace(
        policy,
        max_drones=max(policy.max_drones, wanted),
        max_gpu_milli=wanted * WHOLE_GPU if policy.max_gpu_milli is not None else None,
        max_pending=max(policy.max_pending, round(policy.max_pending * ratio)),
    )
    pools = tuple(
        _sized(pool, gpus[pool.name]) for pool in facility.pools if gpus[pool.name] or not pool.gpus
    )
    return replace(facility, pools=pools, types=tuple(types), policy=policy)


def _shares(facility: Facility, wanted: int) -> dict[str, int]:
    """Return the GPUs of each pool: where drones have several, a multiple of that; the rest where they have one."""
    size = dict.fromkeys((pool.name for pool in facility.pools), 1)
    for kind in facility.types:
        name = facility.pool_of(kind)
        size[name] = max(size[name], ceil(kind.gpu_milli / WHOLE_GPU))
    shares = {}
    left = wanted
    had_left = sum(pool.gpus for pool in facility.pools)
    for pool in sorted(facility.pools, key=lambda pool: -size[pool.name]):
        each = size[pool.name]
        shares[pool.name] = each * min(
            left // each, round(left * pool.gpus / max(1, had_left) / each)
        )
        left = left - shares[pool.name]
        had_left = had_left - pool.gpus
    if left:
        question = f"`{facility.name} gpus={wanted}`"
        raise QuestionError(
            f"{question}: drones there have {max(size.values())} GPUs: write a multiple of that"
        )
    return shares


def _sized(pool: GpuPool, gpus: int) -> GpuPool:
    """Return a pool of so many GPUs, in nodes as large as they were if that comes out even."""
    if not pool.gpus:
        return pool
    per_node = next((n for n in range(pool.gpus_per_node, 0, -1) if gpus % n == 0), 1)
    part = per_node / pool.gpus_per_node
    return GpuPool(
        pool.name,
        per_node,
        gpus // per_node,
        int(pool.cpus_per_node * part),
        int(pool.memory_mib_per_node * part),
    )


def _slower(facility: Facility, key: str, factor: float) -> Facility:
    behaviours = {"": facility.behaviour, **facility.behaviour_of}
    if all(getattr(behaviour, key) == Fixed(0.0) for behaviour in behaviours.values()):
        question = f"`{facility.name} {key}*{factor:g}`"
        raise QuestionError(
            f"{question}: it takes no time there to begin with: a world file tells how long (--world)"
        )
    for name, behaviour in behaviours.items():
        behaviours[name] = replace(behaviour, **{key: getattr(behaviour, key).times(factor)})
    return replace(facility, behaviour=behaviours.pop(""), behaviour_of=behaviours)


def on_snapshot(snapshot: Snapshot, questions: Sequence[Question]) -> tuple[Snapshot, list[str]]:
    """Apply ``questions``; return also notes on what one moment cannot show.

    Raises QuestionError for questions that one moment has no answer to.
    """
    notes: list[str] = []
    for question in questions:
        site = question.site
        key = question.key
        polled = snapshot.sites.get(site)
        if key == "down":
            if question.value or question.until_s != FOREVER_S:
                raise QuestionError(
                    f"a snapshot is one moment: write `{site} down`, or ask `provisioner simulate`"
                )
            snapshot = _without(snapshot, site, notes)
        elif SIGNS.get(key) == "*":
            raise QuestionError(
                f"a snapshot is one moment, `{site} {key}` takes time: ask `provisioner simulate`"
            )
        elif key != "owner":
            if key == "gpus":
                limit = f"{site}: its limit is {question.value:g} GPUs"
                notes.append(f"{limit}; what it showed to be free stays as it was seen")
            policy = snapshot.policy.sites.get(site, SitePolicy(site))
            sites = {**snapshot.policy.sites, site: _with_number(policy, question)}
            snapshot = replace(snapshot, policy=replace(snapshot.policy, sites=sites))
        elif polled is not None and polled.view is not None:
            unclaimed = replace(polled, view=replace(polled.view, claims=()))
            snapshot = replace(snapshot, sites={**snapshot.sites, site: unclaimed})
    return snapshot, notes


def _without(snapshot: Snapshot, site: str, notes: list[str]) -> Snapshot:
    """Return the snapshot as if ``site`` had been away for long: no drone of it is left, and it does not answer."""
    there = {drone_id for drone_id, drone in snapshot.drones.items() if drone.site == site}
    overlay = snapshot.overlay
    if overlay.view is not None:
        running = sum(slot.jobs for slot in overlay.view.slots if slot.drone_id in there)
        if running:
            notes.append(
                f"{count(running, 'job')} that run at {site} are not counted as waiting again"
            )
        slots = tuple(slot for slot in overlay.view.slots if slot.drone_id not in there)
        overlay = replace(overlay, view=replace(overlay.view, slots=slots))
    away = PolledSite(site, None, Fault(FaultKind.DOWN, "away, as was asked", snapshot.now))
    return replace(
        snapshot,
        overlay=overlay,
        drones={
            drone_id: drone for drone_id, drone in snapshot.drones.items() if drone_id not in there
        },
        sites={**snapshot.sites, site: away},
        requests=tuple(r for r in snapshot.requests if not there.intersection(r.drone_ids)),
    )
