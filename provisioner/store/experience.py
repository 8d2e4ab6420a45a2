"""What was learned as the document that the store keeps of it: JSON, an owner's use as run lengths, compressed."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, groupby, repeat
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from provisioner import serialization
from provisioner.estimates import UNKNOWN, EstimateSamples, SiteSamples, StartDelays
from provisioner.store import ExperienceUnread

FORM = 1
"""Of the document; another one when a field, or what a number stands for, changes its meaning."""

_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(gt=0, le=100_000)]
_Held = Annotated[int, Field(ge=UNKNOWN, le=1 << 53)]


@dataclass(frozen=True, slots=True)
class _Site:
    use: tuple[tuple[_Held, _Count], ...]
    """GPUs held in thousandths, and at how many steps on end."""
    used_at: _Amount
    gaps_s: tuple[_Amount, ...]
    taken: _Amount
    run_s: _Amount


@dataclass(frozen=True, slots=True)
class _Document:
    at: _Amount
    runs: Mapping[str, tuple[_Amount, ...]] = field(default_factory=dict)
    delays: Mapping[str, tuple[_Amount, _Amount]] = field(default_factory=dict)
    """Queue and boot, by drone type's key."""
    sites: Mapping[str, _Site] = field(default_factory=dict)
    seen: tuple[tuple[str, _Amount], ...] = ()


def written(experience: EstimateSamples) -> bytes:
    """The document of what was learned. Raises ``ValueError`` for what :func:`read` would not take: better now, while
    the document before it is there, than at the next start."""
    document = _Document(
        experience.at,
        experience.runs,
        {key: (each.queue_s, each.boot_s) for key, each in experience.delays.items()},
        {name: _site_written(site) for name, site in experience.sites.items()},
        tuple(sorted(experience.seen)),
    )
    text = serialization.to_json(document).encode()
    try:
        serialization.from_json(_Document, text)
    except ValidationError as error:
        raise ValueError(f"of what was learned, {_first(error)}") from error
    return zlib.compress(text, 1)


def read(path: Path, form: int, body: bytes) -> EstimateSamples:
    """What was learned, from its document. Raises :class:`ExperienceUnread`."""
    if form != FORM:
        raise _of_another(path, form)
    try:
        document = serialization.from_json(_Document, zlib.decompress(body))
    except ValidationError as error:
        raise _damaged(path, _first(error)) from error
    except (zlib.error, TypeError) as error:
        raise _damaged(path, str(error)) from error
    return EstimateSamples(
        document.at,
        document.runs,
        {key: StartDelays(*each) for key, each in document.delays.items()},
        {name: _site_read(site) for name, site in document.sites.items()},
        frozenset(document.seen),
    )


def _site_written(site: SiteSamples) -> _Site:
    lengths = tuple((held, sum(1 for _ in same)) for held, same in groupby(site.use_milli))
    return _Site(lengths, site.used_at, site.gaps_s, site.taken, site.run_s)


def _site_read(site: _Site) -> SiteSamples:
    use_milli = tuple(chain.from_iterable(repeat(held, count) for held, count in site.use))
    return SiteSamples(use_milli, site.used_at, site.gaps_s, site.taken, site.run_s)


def _first(error: ValidationError) -> str:
    """Where it is wrong first, and how."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}"[:200]


_NEXT = "learning starts anew, and in ten minutes takes its place"


def _of_another(path: Path, form: int) -> ExperienceUnread:
    other = "a newer" if form > FORM else "an older"
    return ExperienceUnread(
        f"store {path}: what was learned was written by {other} provisioner (form {form}, this one reads {FORM}): "
        f"{_NEXT}; to keep it, stop this controller before that and run the one that wrote it"
    )


def _damaged(path: Path, what: str) -> ExperienceUnread:
    return ExperienceUnread(
        f"store {path}: what was learned is damaged ({what}): {_NEXT}; to have it back, stop this controller "
        "and restore a backup of the store"
    )
