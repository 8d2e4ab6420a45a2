"""The report of an import: a finding for each key of the old configuration, and a reader that overlooks none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from provisioner.formatting import sanitize
from provisioner.migrate.yaml11 import YamlValue

_LONGEST_TEXT = 600


class ImportOutcome(StrEnum):
    """The outcome for one key."""

    CONVERTED = "converted"
    CHANGED = "changed"
    """In our files, with another meaning."""
    DROPPED = "no counterpart"
    NEEDED = "needs you"
    """Missing in the old configuration, or not importable as it is."""


@dataclass(frozen=True, slots=True)
class ImportFinding:
    """The outcome for one key, with its explanation."""

    verdict: ImportOutcome
    file: str
    line: int
    """Counts from 1."""
    key: str
    """Dotted path from the top of the file."""
    ours: str
    """``FILE: key`` in our files, or empty."""
    text: str
    """The conversion that was made, and the remedy."""


@dataclass(slots=True)
class ImportReport:
    """The findings about one file, in the order of the import."""

    file: str
    found: list[ImportFinding] = field(default_factory=list)

    def converted(self, line: int, key: str, ours: str, text: str = "") -> None:
        self._add(ImportOutcome.CONVERTED, line, key, ours, text or "taken over")

    def changed(self, line: int, key: str, ours: str, text: str) -> None:
        self._add(ImportOutcome.CHANGED, line, key, ours, text)

    def dropped(self, line: int, key: str, text: str) -> None:
        self._add(ImportOutcome.DROPPED, line, key, "", text)

    def needed(self, line: int, key: str, ours: str, text: str) -> None:
        self._add(ImportOutcome.NEEDED, line, key, ours, text)

    def _add(self, verdict: ImportOutcome, line: int, key: str, ours: str, text: str) -> None:
        self.found.append(
            ImportFinding(
                verdict, self.file, line, sanitize(key, 160), sanitize(ours, 160), sanitize(text, _LONGEST_TEXT)
            )
        )


class KeyReader:
    """A mapping whose keys are taken one by one, so that none is overlooked.

    ``path`` is its name in findings. A value that is not a plain mapping is reported and has no keys.
    """

    def __init__(self, setting: YamlValue | None, path: str, notes: ImportReport, line: int = 1) -> None:
        self.path, self.notes = path, notes
        self.line = setting.line if setting is not None else line
        self.is_there = setting is not None and isinstance(setting.value, dict)
        self._left: dict[str, YamlValue] = {}
        if setting is not None and isinstance(setting.value, dict):
            if not setting.tag:
                self._left = dict(setting.value)
        elif setting is not None and setting.value is not None:
            notes.needed(setting.line, path, "", "expected a mapping: nothing of it could be imported")

    def take(self, key: str) -> YamlValue | None:
        """Return the value of ``key``, once."""
        return self._left.pop(key, None)

    def peek(self, key: str) -> YamlValue | None:
        """Return the value of ``key`` without taking it."""
        return self._left.get(key)

    def line_of(self, setting: YamlValue | None) -> int:
        """Return the line of ``setting``; of the mapping, if it is missing."""
        return setting.line if setting is not None else self.line

    def below(self, key: str) -> KeyReader:
        """Return a reader of the mapping at ``key``."""
        return KeyReader(self.take(key), self.name(key), self.notes, self.line)

    def name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def left(self) -> Iterator[tuple[str, YamlValue]]:
        """Yield the keys that were not taken."""
        rest, self._left = self._left, {}
        yield from rest.items()

    def drop(self, why: dict[str, str]) -> None:
        """Report keys without a counterpart, with the reasons."""
        for key, text in why.items():
            setting = self.take(key)
            if setting is not None:
                self.notes.dropped(setting.line, self.name(key), text)

    def drop_rest(self, text: str) -> None:
        for key, setting in self.left():
            self.notes.dropped(setting.line, self.name(key), text)
