"""The newest views, cut into pieces that change at different rates, so that only what changed is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from provisioner import serialization
from provisioner.estimates import NO_ESTIMATES, Estimates
from provisioner.model import (
    CompletedJob,
    DroneId,
    DroneType,
    Policy,
    PolledOverlay,
    PolledSite,
    RemoteDrone,
    Slot,
    Snapshot,
)
from provisioner.store import Views

POLICY, TYPES, OVERLAY, SLOTS, SITE, REMOTE = "policy", "types", "overlay", "slots", "site", "remote"
COMPLETIONS, LEARNED = "completions", "estimates"

_KINDS: dict[str, Any] = {
    POLICY: Policy,
    TYPES: tuple[DroneType, ...],
    LEARNED: Estimates,
    OVERLAY: PolledOverlay,
    SLOTS: tuple[Slot, ...],
    COMPLETIONS: tuple[CompletedJob, ...],
    SITE: PolledSite,
    REMOTE: dict[DroneId, RemoteDrone],
}


class PieceKey(NamedTuple):
    kind: str
    name: str = ""
    """Of the site; empty for what belongs to none."""


@dataclass(frozen=True, slots=True)
class Piece:
    value: object
    taken_at: float = 0.0
    """Of the view; kept apart from ``value`` because it changes when nothing else does."""


def pieces_of(snapshot: Snapshot) -> dict[PieceKey, Piece]:
    """What ``snapshot`` saw and knew: the bulk (slots, jobs that are done, remote drones) apart from the rest."""
    overlay = snapshot.overlay
    pieces = {
        PieceKey(POLICY): Piece(snapshot.policy),
        PieceKey(TYPES): Piece(snapshot.types),
        PieceKey(LEARNED): Piece(snapshot.estimates),
    }
    if overlay.view is None:
        pieces[PieceKey(OVERLAY)] = Piece(overlay)
    else:
        bare = replace(overlay, view=replace(overlay.view, slots=(), completions=None, taken_at=0.0))
        pieces[PieceKey(OVERLAY)] = Piece(bare, overlay.view.taken_at)
        pieces[PieceKey(SLOTS)] = Piece(overlay.view.slots)
        if overlay.view.completions is not None:
            pieces[PieceKey(COMPLETIONS)] = Piece(overlay.view.completions)
    for name, reading in snapshot.sites.items():
        if reading.view is None:
            pieces[PieceKey(SITE, name)] = Piece(reading)
        else:
            bare_site = replace(reading, view=replace(reading.view, drones={}, taken_at=0.0))
            pieces[PieceKey(SITE, name)] = Piece(bare_site, reading.view.taken_at)
            pieces[PieceKey(REMOTE, name)] = Piece(reading.view.drones)
    return pieces


def encode(key: PieceKey, piece: Piece) -> bytes:
    return serialization.to_json(piece.value, _KINDS[key.kind]).encode()


def decode(key: PieceKey, body: bytes) -> Any:
    return serialization.from_json(_KINDS[key.kind], body)


def views_of(tick: int, at: float, pieces: Mapping[PieceKey, Piece]) -> Views:
    """The views put together again."""
    overlay: Any = pieces[PieceKey(OVERLAY)]
    reading: PolledOverlay = overlay.value
    if reading.view is not None:
        slots: Any = pieces[PieceKey(SLOTS)].value
        done = pieces.get(PieceKey(COMPLETIONS))
        completions: Any = done.value if done is not None else None
        view = replace(reading.view, slots=slots, completions=completions, taken_at=overlay.taken_at)
        reading = replace(reading, view=view)
    policy: Any = pieces[PieceKey(POLICY)].value
    types: Any = pieces[PieceKey(TYPES)].value
    known = pieces.get(PieceKey(LEARNED))
    estimates: Any = known.value if known is not None else NO_ESTIMATES
    return Views(tick, at, policy, types, reading, _sites_of(pieces), estimates)


def _sites_of(pieces: Mapping[PieceKey, Piece]) -> dict[str, PolledSite]:
    sites: dict[str, PolledSite] = {}
    for key, piece in pieces.items():
        if key.kind != SITE:
            continue
        reading: Any = piece.value
        if reading.view is not None:
            remote: Any = pieces[PieceKey(REMOTE, key.name)].value
            reading = replace(reading, view=replace(reading.view, drones=remote, taken_at=piece.taken_at))
        sites[key.name] = reading
    return sites
