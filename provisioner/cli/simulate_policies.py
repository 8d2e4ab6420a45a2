"""What ``provisioner simulate`` replays side by side: one policy or several, in the world that is or would be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner import formatting
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.output import note

if TYPE_CHECKING:
    from provisioner.simulator.replay import Misfits, Replay
    from provisioner.simulator.traces import Trace
    from provisioner.simulator.world_file import WorldPlan


@dataclass(frozen=True, slots=True)
class Asked:
    """Which policies are to be replayed in which world."""

    config: Path
    world: Path | None
    policy: Path | None
    what_if: tuple[str, ...]
    compare: tuple[Path, ...]


def replays_of(asked: Asked, trace: Trace) -> list[Replay]:
    """What is replayed side by side: what is, and what would be."""
    configs = [*(asked.compare or (asked.config,)), *([asked.policy] if asked.policy else [])]
    if twice := next((config for n, config in enumerate(configs) if config in configs[:n]), None):
        raise Failure(f"{twice} is named twice: there is nothing to compare", code=Exit.USAGE)
    names = _names(configs)
    replays = [_replay(config, name, asked.world, trace) for config, name in zip(configs, names, strict=True)]
    if not asked.what_if:
        return replays
    worlds = [_world_if(each.world, asked.what_if, trace.span_s) for each in replays]
    words = ", ".join(asked.what_if)
    others = [replace(r, world=w, policy=f"{r.policy}, {words}") for r, w in zip(replays, worlds, strict=True)]
    # A change is compared with what is; where two policies are compared, both undergo it.
    return others if asked.compare else [replays[0], others[-1]]


def _world_if(world: WorldPlan, questions: Sequence[str], span_s: float) -> WorldPlan:
    """``world`` as it would be; what comes after the last submission is told to matter little."""
    from provisioner.simulator.what_if import Down, QuestionError, changed, read

    try:
        for text in questions:
            question = read(text, [facility.name for facility in world.facilities])
            world = changed(world, question)
            if isinstance(question, Down) and question.from_s > span_s:
                note(f"--what-if: {text}: by then the last job has come: it does so after {formatting.age(span_s)}")
    except QuestionError as error:
        raise Failure(f"--what-if: {error}", code=Exit.USAGE) from None
    return world


def _names(configs: Sequence[Path]) -> list[str]:
    """As little of each path as tells them apart."""
    parts = [config.absolute().parts for config in configs]
    least = next((n for n in range(1, max(map(len, parts))) if len({each[-n:] for each in parts}) == len(parts)), 0)
    return [str(Path(*each[-least:])) for each in parts]


def _replay(config: Path, name: str, world: Path | None, trace: Trace) -> Replay:
    from provisioner.config import ConfigError, load
    from provisioner.simulator.replay import PATIENCE_S, Replay
    from provisioner.simulator.world_file import world_of

    settings = load(config, connects=False)
    try:
        plan = world_of(settings, world, span_s=trace.span_s + PATIENCE_S)
    except ConfigError as error:
        raise Failure(
            *map(str, error.problems), "the world file's keys: docs/how-to/simulate.md", code=Exit.UNMET
        ) from None
    return Replay(
        policy=name,
        trace=trace.name,
        jobs=trace.jobs,
        world=plan,
        rules=settings.policy,
        interval_s=settings.interval_s,
        active_interval_s=settings.active_interval_s,
        carbon_g_per_kwh=settings.carbon_g_per_kwh,
    )


def misfits(replays: Sequence[Replay]) -> list[str]:
    """Jobs that no drone type fits, by what they ask for: a line, or one for each policy where they differ."""
    told = {replay.policy: _misfits(replay) for replay in replays}
    if len(set(told.values())) == 1:
        return [line for line in set(told.values()) if line]
    return [f"{policy}: {line or 'all jobs fit some drone type'}" for policy, line in told.items()]


def _misfits(replay: Replay) -> str:
    sizes = replay.misfits()
    if not sizes:
        return ""
    told = ", ".join(f"{alike.jobs:,} of {alike.label}{_lack(alike)}" for alike in sizes[:3])
    more = f" and {len(sizes) - 3} more sizes" if len(sizes) > 3 else ""
    number = formatting.count(sum(alike.jobs for alike in sizes), "job")
    return f"{number} of {len(replay.jobs):,} fit no drone type and wait for ever: {told}{more}"


def _lack(alike: Misfits) -> str:
    """Return what the nearest type lacks: ``(cpus 16 > 8 of farm/gpu)``."""
    if not alike.dimension:
        return ""
    amount = {"gpus": formatting.gpus, "vram": formatting.size, "memory": formatting.size, "disk": formatting.size}.get(
        alike.dimension
    )
    if alike.dimension == "gpu_model":
        return f" (gpu_model {alike.wanted[0]} is not {alike.offered or 'told'} of {alike.nearest})"
    wanted = max(alike.wanted, key=float)
    most, offered = (amount(int(text)) if amount else text for text in (wanted, alike.offered))
    upto = "up to " if len(alike.wanted) > 1 else ""
    return f" ({alike.dimension} {upto}{most} > {offered} of {alike.nearest})"
