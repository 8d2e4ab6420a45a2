"""Plans with and without the planner's memory, in random worlds that go on: they must be equal.

``python -m benchmarks.with_memory 10000`` plays so many worlds of ten ticks. Objects stay the same
from tick to tick unless something in them changes, or by chance. Views become invalid, types and
policies change, and some plans are not carried out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from benchmarks.ticks import World
from provisioner.model import (
    Fault,
    FaultKind,
    OverlayView,
    Plan,
    RemoteState,
    Slot,
    SlotState,
    Snapshot,
)
from provisioner.planner import decide
from provisioner.planner.settled import SettledDrones

TICKS = 10
T = TypeVar("T")
_OF_SLOTS: dict[str, Sequence[Any]] = {
    "state": tuple(SlotState),
    "heard_at": (0.0, 1_795_000_000.0),
    "free_gpu_milli": (0, 500, 1000),
    "jobs": (0, 1, 2, 1 << 53),
    "jobs_started": (0, 3, 4),
    "work_at": (0.0, 1_794_990_000.0),
    "retires_at": (0.0, 1_795_003_000.0),
    "name": ("", "slot1@else"),
    "owner": ("", "group1", "group2"),
    "begun_at": (0.0, 1_794_000_000.0, 1_794_999_000.0),
    "job_cpus": (0, 1, 2),
    "optional_jobs": (0, 1),
}
_OF_LISTINGS: dict[str, Sequence[Any]] = {
    "state": tuple(RemoteState),
    "remote_id": ("", "9"),
    "node": ("", "n1"),
    "reason": ("", "why"),
    "notice_at": (0.0, 1_795_000_000.0),
}
_OF_RECORDS: dict[str, Sequence[Any]] = {
    "jobs": (0, 1, 2),
    "drain_refusal": ("", "no"),
    "idle_at": (0.0, 1_795_000_000.0),
    "missing_at": (0.0, 1_795_000_000.0),
    "gpu_milli": (0, 1000, 2000),
    "heard_at": (0.0, 1_795_000_000.0),
    "started_at": (0.0, 1_794_913_000.0, 1_794_990_000.0),
}


def compare(seed: int) -> int:
    """Play one world; return the number of drones recognised by the memory. Raises AssertionError if plans differ."""
    rng, memory, recognised = Random(seed), SettledDrones(), 0
    alive = rng.randint(1, 40)
    world = World.of(
        jobs=rng.randint(0, 200), classes=rng.randint(1, 8), types=rng.randint(1, 6), alive=alive
    )
    walltime_s = rng.choice((86_400.0, 86_400.0, 700.0, 800.0))  # some drones are about to end
    world.types = tuple(replace(kind, walltime_s=walltime_s) for kind in world.types)
    world.policy = replace(world.policy, max_drones=alive + rng.choice((-1, 1, alive)))
    begun: dict[str, tuple[Slot, Slot]] = {}
    for _ in range(TICKS):
        world.anew = rng.random() < 0.1
        snapshot = _disturbed(rng, _working(rng, world.snapshot(), begun))
        before = dict(memory)
        with_it, without = decide(snapshot, memory), decide(snapshot)
        assert with_it == without, f"seed {seed}: {_difference(with_it, without)}"
        recognised += sum(before.get(i) == known for i, known in memory.items())
        if rng.random() < 0.9:
            world.carry_out(with_it)
        world.now += rng.choice((0.0, 0.0, 0.0, 285.0, 4_000.0))
    return recognised


def _working(rng: Random, snapshot: Snapshot, begun: dict[str, tuple[Slot, Slot]]) -> Snapshot:
    """Give slots an owner and a start time of their jobs, the same for the same slot."""
    view = snapshot.overlay.view
    assert view is not None
    for slot in view.slots:
        if slot.drone_id not in begun or begun[slot.drone_id][0] is not slot:
            runs = {
                "owner": rng.choice(("group1", "group3", "x")),
                "begun_at": slot.work_at + rng.randint(0, 9),
            }
            begun[slot.drone_id] = (
                slot,
                replace(slot, job_gpu_milli=1000, job_cpus=rng.randint(1, 2), **runs),
            )
    return _with_view(snapshot, slots=tuple(begun[slot.drone_id][1] for slot in view.slots))


def _disturbed(rng: Random, snapshot: Snapshot) -> Snapshot:
    """Change little or much of a snapshot; the objects of the rest stay the same."""
    view, share = snapshot.overlay.view, rng.choice((0.0, 0.0, 0.05, 0.3))
    assert view is not None
    slots = [
        _changed(rng, slot, _OF_SLOTS) if rng.random() < share else slot for slot in view.slots
    ]
    slots = [slot for slot in slots if rng.random() > share / 10]
    if slots and rng.random() < share:
        slots.append(_changed(rng, rng.choice(slots), _OF_SLOTS))  # a second slot of one drone
    snapshot = _with_view(snapshot, slots=tuple(slots))
    if rng.random() < 0.05:
        broken = (
            {"view": None}
            if rng.random() < 0.5
            else {"fault": Fault(FaultKind.DOWN, "away", snapshot.now)}
        )
        snapshot = replace(snapshot, overlay=replace(snapshot.overlay, **broken))
    sites = dict(snapshot.sites)
    for name, polled in snapshot.sites.items():
        assert polled.view is not None
        listed = polled.view.drones.items()
        drones = {
            i: _changed(rng, d, _OF_LISTINGS) if rng.random() < share else d for i, d in listed
        }
        drones = {i: d for i, d in drones.items() if rng.random() > share / 10}
        taken_at = snapshot.now - rng.choice((3.0,) * 20 + (1e6,))
        sites[name] = replace(
            polled,
            view=replace(polled.view, drones=drones, taken_at=taken_at),
            busy=rng.random() < 0.05,
        )
    records = {
        i: _changed(rng, d, _OF_RECORDS) if rng.random() < share / 4 else d
        for i, d in snapshot.drones.items()
    }
    snapshot = replace(
        snapshot,
        sites=sites,
        drones={i: d for i, d in records.items() if rng.random() > share / 10},
    )
    if rng.random() < 0.05:
        snapshot = replace(
            snapshot, policy=replace(snapshot.policy, slot_max_age_s=rng.choice((60.0, 900.0)))
        )
    if rng.random() < 0.05:
        types = [
            replace(kind, walltime_s=rng.choice((0.0, 7_200.0, 86_400.0)))
            for kind in snapshot.types
        ]
        snapshot = replace(snapshot, types=tuple(types[rng.random() < 0.5 :]))
    return snapshot


def _with_view(snapshot: Snapshot, **changes: Any) -> Snapshot:
    view = snapshot.overlay.view
    assert isinstance(view, OverlayView)
    return replace(snapshot, overlay=replace(snapshot.overlay, view=replace(view, **changes)))


def _changed(rng: Random, value: T, fields: dict[str, Sequence[Any]]) -> T:
    name = rng.choice(list(fields))
    return replace(value, **{name: rng.choice(fields[name])})  # type: ignore[type-var]


def _difference(one: Plan, other: Plan) -> str:
    parts = (
        name for name in one.__dataclass_fields__ if getattr(one, name) != getattr(other, name)
    )
    return "; ".join(f"{name}: {getattr(one, name)} != {getattr(other, name)}" for name in parts)[
        :2000
    ]


def worlds(first: int, count: int) -> Iterator[int]:
    """Play worlds; yield the number of drones recognised by the memory of each."""
    return map(compare, range(first, first + count))


def main() -> None:
    """Play the worlds, and print what was compared."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    recognised = sum(worlds(0, count))
    print(
        f"{count} worlds, {count * TICKS} plans equal; {recognised} times a drone was recognised as unchanged"
    )


if __name__ == "__main__":
    main()
