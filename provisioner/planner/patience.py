"""How many of an owner's waiting jobs get room at once: all, until room that was made for them stands unused.

A queue may wait for other reasons than ours: a limit on running jobs, a quota, a licence. Room that such a queue does
not take is given back to those who would use it, but for a little, which shows when things change.
"""

from __future__ import annotations

from dataclasses import replace

from provisioner.model import OwnerClaimBackoff

PATIENCE_S = 600.0
"""So long may free room stand for the owner without any of it being taken: ten negotiation cycles."""
LEAST = 2
"""Jobs that keep getting room after that."""


def offer(known: OwnerClaimBackoff | None) -> int | None:
    """To how many jobs room is offered at once; None for all."""
    return known.offer or None if known else None


def after(
    known: OwnerClaimBackoff | None, site: str, waiting: int, standing: int, coming: int, now: float
) -> OwnerClaimBackoff | None:
    """What to remember of this tick. ``standing``: jobs for which room is free; ``coming``: those for which it is being
    made; both of ``waiting``. None once nothing waits."""
    if not waiting:
        return None
    known = known or OwnerClaimBackoff(site)
    if not standing:
        # All that was offered has been taken: more next time.
        grown = 2 * known.offer if known.offer and not coming else known.offer
        return replace(known, standing=0, since=0.0, offer=0 if grown >= waiting else grown)
    if not known.since or standing < known.standing:
        return replace(known, standing=standing, since=now)
    if now - known.since > PATIENCE_S:
        return replace(known, standing=min(standing, LEAST), offer=LEAST)
    return replace(known, standing=standing)
