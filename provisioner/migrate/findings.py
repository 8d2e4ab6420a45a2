"""What became of each key of the old configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from provisioner.formatting import sanitize

_LONGEST_TEXT = 600


class Verdict(StrEnum):
    """How much of a key is left."""

    CONVERTED = "converted"
    CHANGED = "changed"
    """It is in our files, and means something else there."""
    DROPPED = "no counterpart"
    NEEDED = "needs you"
    """Ours wants to know what theirs did not say, or cannot be taken over as it is."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one key."""

    verdict: Verdict
    file: str
    line: int
    """From 1."""
    key: str
    """Dotted, from the top of the file."""
    ours: str
    """``FILE: key`` of ours, or nothing."""
    text: str
    """What happened to it, and what to do."""


@dataclass(slots=True)
class Notes:
    """Findings about one file, as they come."""

    file: str
    found: list[Finding] = field(default_factory=list)

    def converted(self, line: int, key: str, ours: str, text: str = "") -> None:
        self._add(Verdict.CONVERTED, line, key, ours, text or "taken over")

    def changed(self, line: int, key: str, ours: str, text: str) -> None:
        self._add(Verdict.CHANGED, line, key, ours, text)

    def dropped(self, line: int, key: str, text: str) -> None:
        self._add(Verdict.DROPPED, line, key, "", text)

    def needed(self, line: int, key: str, ours: str, text: str) -> None:
        self._add(Verdict.NEEDED, line, key, ours, text)

    def _add(self, verdict: Verdict, line: int, key: str, ours: str, text: str) -> None:
        self.found.append(
            Finding(verdict, self.file, line, sanitize(key, 160), sanitize(ours, 160), sanitize(text, _LONGEST_TEXT))
        )
