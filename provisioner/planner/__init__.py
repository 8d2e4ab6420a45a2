"""The pure core: a snapshot in, a plan with reasons out. No clock, no I/O, no randomness; an import contract checks it.

First believe or doubt what was seen (:mod:`guard`), then say what became of each drone (:mod:`life`), what the owners
of the hardware get (:mod:`owner`, :mod:`victims`), what waiting jobs lack (:mod:`demand`), which drones come
late (:mod:`late`), which classes no drone of a type gets jobs of (:mod:`trials`), what is started for them
(:mod:`place`) in which order (:mod:`orders`) or taken back into service (:mod:`resume`), whose turn it is
(:mod:`fairness`), what is kept warm (:mod:`headroom`, :mod:`warm`), within which limits (:mod:`room`), and who must
leave (:mod:`restore`, :mod:`retire`), as jobs fail in them too (:mod:`eaters`). :mod:`check` judges the result and
shares no code with any of them.
"""

from __future__ import annotations

from dataclasses import replace

from provisioner.model import Plan, Snapshot
from provisioner.planner import guard, life, place, retire, trials
from provisioner.planner.demand import Ledger
from provisioner.planner.eaters import Eaters
from provisioner.planner.owner import Ground
from provisioner.planner.restore import restore
from provisioner.planner.scene import Scene

__all__ = ["decide"]


def decide(snapshot: Snapshot) -> Plan:
    """What should change now, and why. Same snapshot, same plan."""
    trust = guard.trust(snapshot)
    moves = life.observe_all(snapshot, trust)
    breakers = trials.judged(snapshot, moves, guard.breakers(snapshot, moves, trust.sifted.others.values()))
    scene = Scene.of(snapshot, trust, moves, breakers)
    eaters = Eaters.of(scene)
    breakers = {**breakers, **eaters.breakers}
    plan = Plan(
        tick=snapshot.tick,
        at=snapshot.now,
        moves=tuple(moves),
        breakers=tuple(b for b in breakers.values() if snapshot.breakers.get(b.scope) != b),
    )
    ground = Ground.of(scene)
    placed = place.place(scene, ground, Ledger.of(scene))
    leavers = [*ground.leavers, *restore(scene, ground, placed.roomless)]
    plan = replace(plan, patience=tuple(ground.patience))
    return scene.finished(plan, retire.retire(scene, leavers, placed, eaters), placed)
