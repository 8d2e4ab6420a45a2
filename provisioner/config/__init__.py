"""The configuration: strict YAML in, frozen :class:`Settings` out, every mistake with file, line and repair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.model import DroneType, Policy, SitePolicy


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Configuration of the store."""

    path: Path
    keep_s: float = 30 * 86400.0
    """Finished drones, plans, events and completed jobs that are older than this are deleted."""
    snapshots: int = 50
    """Full snapshots kept, of the newest ticks that acted."""


@dataclass(frozen=True, slots=True)
class OverlayConfig:
    """Configuration of the overlay."""

    adapter: str
    options: Any
    """An instance of the adapter's own ``Config``."""


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """Configuration of one site."""

    name: str
    adapter: str
    options: Any
    """An instance of the adapter's own ``Config``."""
    types: tuple[DroneType, ...]
    policy: SitePolicy
    path: Path


@dataclass(frozen=True, slots=True)
class Settings:
    """A complete, valid configuration."""

    path: Path
    controller: str
    store: StoreConfig
    overlay: OverlayConfig
    sites: tuple[SiteConfig, ...]
    policy: Policy
    interval_s: float
    """Longest pause between two ticks."""
    active_interval_s: float
    """Pause between two ticks while orders are in progress."""
    carbon_g_per_kwh: float | None = None
    """CO2 of the electricity; None if unknown."""
    warnings: tuple[Problem, ...] = ()
    """Settings that are valid but probably not intended; for the log and for ``check``."""

    @property
    def types(self) -> tuple[DroneType, ...]:
        """Return the drone types of all sites."""
        return tuple(t for s in self.sites for t in s.types)


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration file; lines and columns count from 1."""

    file: str
    line: int
    col: int
    message: str
    """The mistake and the remedy; a warning begins with ``warning: ``."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}: {self.message}"


class ConfigError(Exception):
    """All problems of a configuration."""

    def __init__(self, problems: list[Problem]) -> None:
        """Take every problem, in order."""
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


# Imported last: these modules use the classes above.
from provisioner.config.loading import check as check  # noqa: E402
from provisioner.config.loading import load as load  # noqa: E402
from provisioner.config.loading import load_site as load_site  # noqa: E402
from provisioner.config.loading import warnings as warnings  # noqa: E402
from provisioner.config.reload import ConfigChange as ConfigChange  # noqa: E402
from provisioner.config.reload import changes as changes  # noqa: E402
