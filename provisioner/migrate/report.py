"""The report of an import: a finding for each key of the old configuration, and a reader that overlooks none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from provisioner.formatting import sanitize
from provisioner.migrate.yaml11 import YamlValue
from provisioner.migrate.yaml_writer import Scalar, YamlBlock, placeholder

T = TypeVar("T", bound=Scalar)

_MAX_FINDING_CHARS = 600


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
                verdict, self.file, line, sanitize(key, 160), sanitize(ours, 160), sanitize(text, _MAX_FINDING_CHARS)
            )
        )


class KeyReader:
    """A mapping whose keys are taken one by one, so that none is overlooked.

    ``path`` is its name in findings. A value that is not a plain mapping is reported and has no keys. A finding about
    a missing key, or about the empty one, has the line of the mapping.
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
        self._lines = {key: value.line for key, value in self._left.items()}

    def take(self, key: str) -> YamlValue | None:
        """Return the value of ``key``, once."""
        return self._left.pop(key, None)

    def peek(self, key: str) -> YamlValue | None:
        """Return the value of ``key`` without taking it."""
        return self._left.get(key)

    def below(self, key: str) -> KeyReader:
        """Return a reader of the mapping at ``key``."""
        return KeyReader(self.take(key), self.name(key), self.notes, self.line)

    def name(self, key: str) -> str:
        return ".".join(part for part in (self.path, key) if part)

    def line_of(self, key: str) -> int:
        return self._lines.get(key, self.line)

    def converted(self, key: str, ours: str, text: str = "") -> None:
        self.notes.converted(self.line_of(key), self.name(key), ours, text)

    def changed(self, key: str, ours: str, text: str) -> None:
        self.notes.changed(self.line_of(key), self.name(key), ours, text)

    def dropped(self, key: str, text: str) -> None:
        self.notes.dropped(self.line_of(key), self.name(key), text)

    def needed(self, key: str, ours: str, text: str) -> None:
        self.notes.needed(self.line_of(key), self.name(key), ours, text)

    def put(
        self,
        block: YamlBlock,
        key: str,
        ours: str,
        read: Callable[[YamlValue], T | None],
        *,
        what: str,
        text: str = "",
        remedy: str = "",
    ) -> T | None:
        """Write the value of ``key`` into ``block`` at ``ours``, or a placeholder for ``what``, and report it.

        Return the value.
        """
        setting, name = self.take(key), ours.rpartition(".")[2]
        value = read(setting) if setting is not None else None
        if value is None:
            block.put(name, placeholder(what))
            self.needed(key, ours, remedy or f"write it: {what}")
        else:
            block.put(name, value)
            self.converted(key, ours, text)
        return value

    def left(self) -> Iterator[tuple[str, YamlValue]]:
        """Yield the keys that were not taken."""
        rest, self._left = self._left, {}
        yield from rest.items()

    def drop(self, why: Mapping[str, str]) -> None:
        """Report keys without a counterpart, with the reasons."""
        for key, text in why.items():
            if self.take(key) is not None:
                self.dropped(key, text)

    def drop_rest(self, text: str) -> None:
        for key, _ in self.left():
            self.dropped(key, text)
