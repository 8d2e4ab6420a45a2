"""What the operator wrote: strict YAML in, frozen :class:`Settings` out, every mistake with file, line and repair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.model import DroneType, Policy, SitePolicy


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """Where the record is kept, and for how long."""

    path: Path
    keep_s: float = 30 * 86400.0
    """Ended drones, plans, events and jobs that are done are forgotten when they are older than this."""
    snapshots: int = 50
    """Full snapshots kept, of the newest ticks that acted."""


@dataclass(frozen=True, slots=True)
class OverlaySpec:
    adapter: str
    options: Any
    """An instance of the adapter's own ``Config``."""


@dataclass(frozen=True, slots=True)
class SiteSpec:
    name: str
    adapter: str
    options: Any
    """An instance of the adapter's own ``Config``."""
    types: tuple[DroneType, ...]
    policy: SitePolicy
    path: Path


@dataclass(frozen=True, slots=True)
class Settings:
    """A whole, valid configuration."""

    path: Path
    controller: str
    store: StoreSpec
    overlay: OverlaySpec
    sites: tuple[SiteSpec, ...]
    policy: Policy
    interval_s: float
    """Longest pause between two ticks."""
    active_interval_s: float
    """Pause while something is on its way."""
    carbon_g_per_kwh: float | None = None
    """CO2 of the grid; None: not told."""
    warnings: tuple[Problem, ...] = ()
    """What is valid but probably not meant; for the log and for ``check``."""

    @property
    def types(self) -> tuple[DroneType, ...]:
        return tuple(t for s in self.sites for t in s.types)


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration file; lines and columns count from 1."""

    file: str
    line: int
    col: int
    message: str
    """What is wrong, and what to write instead; for a warning it says so itself."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}: {self.message}"


class ConfigErrors(Exception):
    """Everything that is wrong with a configuration, at once."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


# Below, since they are made of the classes above.
from provisioner.config.reading import check as check  # noqa: E402
from provisioner.config.reading import load as load  # noqa: E402
from provisioner.config.reading import warnings as warnings  # noqa: E402
from provisioner.config.reload import Change as Change  # noqa: E402
from provisioner.config.reload import changes as changes  # noqa: E402
