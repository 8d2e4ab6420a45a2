"""The plan of a world as it would be: the answer of simulations to "what if"."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from provisioner.model import WHOLE_GPU, DroneType
from provisioner.simulator.body import Habits
from provisioner.simulator.draws import Draw, Fixed, LogNormal, Uniform
from provisioner.simulator.faults import Blow, BlowKind
from provisioner.simulator.site import Facility, GpuPool
from provisioner.simulator.what_if import Down, Number, Question, QuestionError, Times, Unowned
from provisioner.simulator.worldplan import WorldPlan

FOR_EVER_S = 10 * 365 * 86400.0


def changed(plan: WorldPlan, question: Question) -> WorldPlan:
    """``plan`` as it would be. Raises QuestionError for a change that changes nothing, or that cannot be made."""
    facility = next(each for each in plan.facilities if each.name == question.site)
    match question:
        case Down(site, from_s, until_s):
            to_s = FOR_EVER_S if until_s is None else until_s
            return replace(plan, blows=(*plan.blows, Blow(BlowKind.DOWNTIME, from_s, to_s - from_s, site)))
        case Number(_, "gpus", value):
            facility = _gpus(facility, int(value))
        case Number(_, key, value):
            facility = _limited(facility, key, value)
        case Times(_, key, factor):
            facility = _slower(facility, key, factor)
        case Unowned(site):
            if facility.series is None:
                raise QuestionError(f"`{site} owner=none`: {site} has no owner: a world file may give it one (--world)")
            facility = replace(facility, series=None)
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
    if all(getattr(habits, key) == Fixed(0.0) for habits in (facility.habits, *facility.habits_of.values())):
        raise QuestionError(
            f"`{facility.name} {key}*{factor:g}`: it takes no time there to begin with: a world file tells how long "
            f"(--world)"
        )
    others = {name: _stretched(habits, key, factor) for name, habits in facility.habits_of.items()}
    return replace(facility, habits=_stretched(facility.habits, key, factor), habits_of=others)


def _stretched(habits: Habits, key: str, factor: float) -> Habits:
    if key == "queue":
        return replace(habits, queue=_times(habits.queue, factor))
    return replace(habits, boot=_times(habits.boot, factor))


def _times(draw: Draw, factor: float) -> Draw:
    match draw:
        case Fixed(value_s):
            return Fixed(value_s * factor)
        case Uniform(low_s, high_s):
            return Uniform(low_s * factor, high_s * factor)
        case LogNormal(median_s, sigma, most_s):
            return LogNormal(max(1e-3, median_s * factor), sigma, most_s * factor)
