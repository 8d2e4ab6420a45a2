"""What is asked of a verb besides its own matter: where the record is, the form of the answer, which rows of a list.

Plain values without the parser of options, so that a verb can be asked without loading that
(:mod:`provisioner.cli.quick`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Format(StrEnum):
    """Forms of output. All but table and wide are for programs: never shortened, never coloured."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"

    @property
    def for_people(self) -> bool:
        return self in (Format.TABLE, Format.WIDE)


@dataclass(frozen=True, slots=True)
class Where:
    """Where the record and the configuration are."""

    config: Path | None = None
    store: Path | None = None


@dataclass(frozen=True, slots=True)
class Show:
    """How the answer is shown."""

    output: Format = Format.TABLE
    columns: str | None = None
    no_header: bool = False
    no_color: bool = False
    watch: bool = False
    interval: float = 2.0
    local: bool = False

    @property
    def local_times(self) -> bool:
        """True if times are shown in the local zone; those for programs never are."""
        return self.local and self.output.for_people


@dataclass(frozen=True, slots=True)
class Pick:
    """Which rows of a list, and in which order."""

    sort: str | None = None
    limit: int | None = None
