"""JSON documents in the store: the newest views in parts, and the samples of the estimates."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, repeat
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError

from provisioner import serialization
from provisioner.estimates import NO_ESTIMATES, UNKNOWN, Estimates, EstimateSamples, SiteSamples, StartDelays
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
from provisioner.store import EstimatesUnreadableError, Views

# -------------------------------------------------------------------------------------------------- the newest views

POLICY, TYPES, OVERLAY, SLOTS, SITE, REMOTE = "policy", "types", "overlay", "slots", "site", "remote"
COMPLETIONS, ESTIMATES = "completions", "estimates"

_PART_TYPES: dict[str, Any] = {
    POLICY: Policy,
    TYPES: tuple[DroneType, ...],
    ESTIMATES: Estimates,
    OVERLAY: PolledOverlay,
    SLOTS: tuple[Slot, ...],
    COMPLETIONS: tuple[CompletedJob, ...],
    SITE: PolledSite,
    REMOTE: dict[DroneId, RemoteDrone],
}


class ViewPartKey(NamedTuple):
    """The name of one part of the views."""

    kind: str
    site: str = ""
    """Empty for what belongs to no site."""


@dataclass(frozen=True, slots=True)
class ViewPart:
    """A part of the views that is written as a whole when it changes."""

    value: Any
    taken_at: float = 0.0
    """Time of the view; kept apart from ``value`` because it changes when nothing else does."""


def split_views(snapshot: Snapshot) -> dict[ViewPartKey, ViewPart]:
    """Return the views of ``snapshot`` in parts that change at different rates: the bulk apart from the rest."""
    overlay = snapshot.overlay
    parts = {
        ViewPartKey(POLICY): ViewPart(snapshot.policy),
        ViewPartKey(TYPES): ViewPart(snapshot.types),
        ViewPartKey(ESTIMATES): ViewPart(snapshot.estimates),
    }
    if overlay.view is None:
        parts[ViewPartKey(OVERLAY)] = ViewPart(overlay)
    else:
        rest = replace(overlay, view=replace(overlay.view, slots=(), completions=None, taken_at=0.0))
        parts[ViewPartKey(OVERLAY)] = ViewPart(rest, overlay.view.taken_at)
        parts[ViewPartKey(SLOTS)] = ViewPart(overlay.view.slots)
        if overlay.view.completions is not None:
            parts[ViewPartKey(COMPLETIONS)] = ViewPart(overlay.view.completions)
    for name, polled in snapshot.sites.items():
        if polled.view is None:
            parts[ViewPartKey(SITE, name)] = ViewPart(polled)
        else:
            rest_of_site = replace(polled, view=replace(polled.view, drones={}, taken_at=0.0))
            parts[ViewPartKey(SITE, name)] = ViewPart(rest_of_site, polled.view.taken_at)
            parts[ViewPartKey(REMOTE, name)] = ViewPart(polled.view.drones)
    return parts


def join_views(tick: int, at: float, parts: Mapping[ViewPartKey, ViewPart]) -> Views:
    """Return the views of the parts that :func:`split_views` made."""
    overlay = parts[ViewPartKey(OVERLAY)]
    polled: PolledOverlay = overlay.value
    if polled.view is not None:
        view = replace(
            polled.view,
            slots=parts[ViewPartKey(SLOTS)].value,
            completions=parts.get(ViewPartKey(COMPLETIONS), ViewPart(None)).value,
            taken_at=overlay.taken_at,
        )
        polled = replace(polled, view=view)
    sites: dict[str, PolledSite] = {}
    for key, part in parts.items():
        if key.kind == SITE:
            site: PolledSite = part.value
            if site.view is not None:
                remote = parts[ViewPartKey(REMOTE, key.site)].value
                site = replace(site, view=replace(site.view, drones=remote, taken_at=part.taken_at))
            sites[key.site] = site
    return Views(
        tick,
        at,
        parts[ViewPartKey(POLICY)].value,
        parts[ViewPartKey(TYPES)].value,
        polled,
        sites,
        parts.get(ViewPartKey(ESTIMATES), ViewPart(NO_ESTIMATES)).value,
    )


def pack_part(key: ViewPartKey, part: ViewPart) -> bytes:
    """Return the compressed JSON of a part."""
    return zlib.compress(serialization.to_json(part.value, _PART_TYPES[key.kind]).encode(), 1)


def unpack_part(key: ViewPartKey, body: bytes, taken_at: float) -> ViewPart:
    """Return the part that :func:`pack_part` wrote."""
    return ViewPart(serialization.from_json(_PART_TYPES[key.kind], zlib.decompress(body)), taken_at)


# -------------------------------------------------------------------------------------------- samples of the estimates

ESTIMATES_FORMAT = 1
"""Format of the document; another one when a field, or what a number stands for, changes its meaning."""

_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(gt=0, le=100_000)]
_Held = Annotated[int, Field(ge=UNKNOWN, le=1 << 53)]


@dataclass(frozen=True, slots=True)
class _SiteDocument:
    use: tuple[tuple[_Held, _Count], ...]
    """GPUs held in thousandths, and the number of consecutive samples."""
    used_at: _Amount
    gaps_s: tuple[_Amount, ...]
    taken: _Amount
    run_s: _Amount


@dataclass(frozen=True, slots=True)
class _EstimatesDocument:
    at: _Amount
    runs: Mapping[str, tuple[_Amount, ...]] = field(default_factory=dict)
    delays: Mapping[str, tuple[_Amount, _Amount]] = field(default_factory=dict)
    """Queue and boot time, by drone type's key."""
    sites: Mapping[str, _SiteDocument] = field(default_factory=dict)
    seen: tuple[tuple[str, _Amount], ...] = ()


def pack_estimates(samples: EstimateSamples) -> bytes:
    """Return the document of ``samples``.

    Raises ``ValueError`` for values that :func:`unpack_estimates` would reject: better now, while the document before
    it exists, than at the next start.
    """
    document = _EstimatesDocument(
        samples.at,
        samples.runs,
        {key: (each.queue_s, each.boot_s) for key, each in samples.delays.items()},
        {name: _pack_site(site) for name, site in samples.sites.items()},
        tuple(sorted(samples.seen)),
    )
    text = serialization.to_json(document).encode()
    try:
        serialization.from_json(_EstimatesDocument, text)
    except ValidationError as error:
        raise ValueError(f"estimates, {_first_problem(error)}") from error
    return zlib.compress(text, 1)


def unpack_estimates(path: Path, version: int, body: bytes) -> EstimateSamples:
    """Return the samples of a document of the store at ``path``. Raises :class:`EstimatesUnreadableError`."""
    if version != ESTIMATES_FORMAT:
        other = "a newer" if version > ESTIMATES_FORMAT else "an older"
        raise EstimatesUnreadableError(
            f"store {path}: the estimates were written by {other} provisioner (format {version}, this one reads "
            f"{ESTIMATES_FORMAT}): {_CONSEQUENCE}; to keep them, stop this controller before that and run the one that "
            "wrote them"
        )
    try:
        document = serialization.from_json(_EstimatesDocument, zlib.decompress(body))
    except (ValidationError, zlib.error, TypeError) as error:
        problem = _first_problem(error) if isinstance(error, ValidationError) else str(error)
        raise EstimatesUnreadableError(
            f"store {path}: the estimates are damaged ({problem}): {_CONSEQUENCE}; to have them back, stop this "
            "controller and restore a backup of the store"
        ) from error
    return EstimateSamples(
        document.at,
        document.runs,
        {key: StartDelays(*each) for key, each in document.delays.items()},
        {name: _unpack_site(site) for name, site in document.sites.items()},
        frozenset(document.seen),
    )


_CONSEQUENCE = "estimation starts again, and in ten minutes replaces them"


def _pack_site(site: SiteSamples) -> _SiteDocument:
    lengths = tuple((held, sum(1 for _ in same)) for held, same in groupby(site.use_milli))
    return _SiteDocument(lengths, site.used_at, site.gaps_s, site.taken, site.run_s)


def _unpack_site(site: _SiteDocument) -> SiteSamples:
    use_milli = tuple(chain.from_iterable(repeat(held, count) for held, count in site.use))
    return SiteSamples(use_milli, site.used_at, site.gaps_s, site.taken, site.run_s)


def _first_problem(error: ValidationError) -> str:
    """Return the place of the first invalid value and what is wrong with it."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}"[:200]
