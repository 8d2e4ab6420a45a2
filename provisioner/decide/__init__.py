"""The pure core: a snapshot in, a plan with reasons out. No clock, no I/O, no randomness; an import contract checks it.

First believe or doubt what was seen (:mod:`guard`), then say what became of each drone (:mod:`life`), who must leave
(:mod:`retire`), what waiting jobs lack (:mod:`demand`) and what is started for them (:mod:`place`). :mod:`check`
judges the result and shares no code with any of them.
"""

from __future__ import annotations

from provisioner.decide import guard, life, place, retire
from provisioner.decide.demand import Ledger
from provisioner.decide.scene import Scene
from provisioner.model import Plan, Snapshot

__all__ = ["decide"]


def decide(snapshot: Snapshot) -> Plan:
    """What should change now, and why. Same snapshot, same plan."""
    trust = guard.trust(snapshot)
    moves = life.observe_all(snapshot, trust)
    breakers = guard.breakers(snapshot, moves)
    scene = Scene.of(snapshot, trust, moves, breakers)
    plan = Plan(
        tick=snapshot.tick,
        at=snapshot.now,
        moves=tuple(moves),
        breakers=tuple(b for b in breakers.values() if snapshot.breakers.get(b.scope) != b),
    )
    return scene.finished(plan, retire.retire(scene), place.place(scene, Ledger.of(scene)))
