"""What goes wrong, as data: spells on calls, and blows on hardware. Schedules are tuples, so they add up with ``+``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from provisioner.simulator.draws import keyed

OVERLAY = "overlay"
"""What the overlay is called in ``where``; sites go by their names."""


class Trouble(StrEnum):
    """What happens to one call. Where it says amount, :attr:`Spell.amount` is meant."""

    # refused or broken, nothing done
    DOWN = "down"
    DENIED = "denied"
    QUOTA = "quota"
    CAPACITY = "capacity"
    THROTTLED = "throttled"
    BUG = "bug"
    """The adapter raises something that is none of the four errors."""
    # acts: the wire
    ORDER_LOST = "order-lost"
    """Not carried out; Unsure."""
    ORDER_HANGS = "order-hangs"
    """Not carried out; no answer until the caller's deadline."""
    REPLY_LOST = "reply-lost"
    """Carried out; Unsure."""
    REPLY_HANGS = "reply-hangs"
    """Carried out; no answer until the caller's deadline."""
    REPLY_TORN = "reply-torn"
    """Carried out; a fraction (amount) of the receipts says unsure."""
    LATE = "late"
    """Carried out amount seconds after it was sent; never an answer."""
    TWICE = "twice"
    """Carried out, and once more amount seconds later."""
    SLOW = "slow"
    """The answer takes amount seconds longer."""
    # looks: hangs and lies
    HANG = "hang"
    EMPTY = "empty"
    PARTIAL = "partial"
    """A fraction (amount) of the drones or slots is not listed: the same ones for the whole spell."""
    STALE = "stale"
    """An old listing with a new date."""
    FREE_WRONG = "free-wrong"
    """The site says that amount drones of each type could start."""
    UNKNOWN_STATES = "unknown-states"


LIES = frozenset({Trouble.EMPTY, Trouble.PARTIAL, Trouble.STALE, Trouble.FREE_WRONG, Trouble.UNKNOWN_STATES})
ACTS = frozenset({"start", "stop", "drain", "bootstrap"})


@dataclass(frozen=True, slots=True)
class Spell:
    """Calls of ``verb`` to ``where`` meet ``trouble``, each with ``chance``, from ``from_s`` until ``to_s``."""

    trouble: Trouble
    where: str = "*"
    """A site, :data:`OVERLAY`, or ``*``."""
    verb: str = "*"
    """``poll``, ``start``, ``stop``, ``drain``, ``bootstrap``, ``act`` (any of the last four), or ``*``."""
    from_s: float = 0.0
    to_s: float = math.inf
    chance: float = 1.0
    amount: float = 0.0

    def covers(self, where: str, verb: str, now_s: float) -> bool:
        return (
            self.from_s <= now_s < self.to_s
            and self.where in ("*", where)
            and (self.verb in ("*", verb) or (self.verb == "act" and verb in ACTS))
        )


class BlowKind(StrEnum):
    NODE_FAILS = "node-fails"
    """A node takes its drones with it and is away for ``for_s``."""
    DOWNTIME = "downtime"
    """The whole site is away for ``for_s``; announced ``notice_s`` before."""
    NO_NEGOTIATION = "no-negotiation"
    """The pool makes no matches for ``for_s``."""


@dataclass(frozen=True, slots=True)
class Blow:
    """Something that happens to hardware or pool at ``at_s``, whoever calls."""

    kind: BlowKind
    at_s: float
    for_s: float
    where: str = OVERLAY
    node: int = 0
    notice_s: float = 0.0


def struck(seed: int, spells: Sequence[Spell], where: str, verb: str, call: int, now_s: float) -> Spell | None:
    """The first spell that hits call number ``call``; None for a call in peace."""
    for index, spell in enumerate(spells):
        if spell.covers(where, verb, now_s) and (
            spell.chance >= 1.0 or keyed(seed, "spell", index, where, verb, call).random() < spell.chance
        ):
            return spell
    return None


def rough_wire(seed: int, *, chance: float = 0.3, late_s: float = 40.0) -> tuple[Spell, ...]:
    """Orders lost, late and doubled, replies lost and torn: three kinds by seed, and one trouble with looks."""
    rng = keyed(seed, "rough wire")
    acts = [
        Spell(Trouble.ORDER_LOST, verb="act"),
        Spell(Trouble.ORDER_HANGS, verb="act"),
        Spell(Trouble.REPLY_LOST, verb="act"),
        Spell(Trouble.REPLY_HANGS, verb="act"),
        Spell(Trouble.REPLY_TORN, verb="start", amount=0.5),
        Spell(Trouble.LATE, verb="act", amount=rng.uniform(1.0, late_s)),
        Spell(Trouble.TWICE, verb="act", amount=rng.uniform(1.0, late_s)),
        Spell(Trouble.SLOW, verb="act", amount=rng.uniform(0.5, late_s)),
        Spell(Trouble.DOWN, verb="act"),
    ]
    looks = [
        Spell(Trouble.DOWN, verb="poll"),
        Spell(Trouble.HANG, verb="poll"),
        Spell(Trouble.SLOW, verb="poll", amount=rng.uniform(0.5, 15.0)),
        Spell(Trouble.BUG, verb="poll"),
    ]
    chosen = (*rng.sample(acts, 3), rng.choice(looks))
    return tuple(replace(spell, chance=rng.uniform(0.3, 1.0) * chance) for spell in chosen)
