"""A configuration of TARDIS as it is read: YAML 1.1 with lines, and a reader of keys that reports on each of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import TypeVar

import yaml

from provisioner.config.strict_yaml import (
    CORE_TAG,
    Position,
    Steps,
    TreeBuilder,
    YamlDocument,
    built,
)
from provisioner.formatting import sanitize
from provisioner.migrate.yaml_writer import Scalar, YamlBlock, placeholder
from provisioner.values import define, factory, frozen

T = TypeVar("T", bound=Scalar)
Value = None | bool | int | float | str | list["YamlValue"] | dict[str, "YamlValue"]

_RESOLVER = yaml.SafeLoader("")


@frozen
class YamlValue:
    value: Value
    line: int
    """Line of its key, or of the value in a list; counts from 1."""
    tag: str = ""
    """``!SSHExecutor``, also for COBalD's ``__type__: package.SSHExecutor``; empty for plain values."""

    def __bool__(self) -> bool:
        """Return False for :data:`MISSING` alone."""
        return self.line > 0

    @property
    def kind(self) -> str:
        """``SSHExecutor`` for ``!TardisSSHExecutor`` and ``!SSHExecutor``; other tags unchanged."""
        return self.tag.removeprefix("!").removeprefix("Tardis")

    @property
    def text(self) -> str | None:
        """A plain scalar as text; None for anything else."""
        if self.tag or self.value is None or isinstance(self.value, list | dict):
            return None
        return (
            ("true" if self.value else "false") if isinstance(self.value, bool) else str(self.value)
        )

    @property
    def number(self) -> float | None:
        """A plain finite number, also one in quotes; None for anything else."""
        if (
            self.tag
            or isinstance(self.value, bool)
            or not isinstance(self.value, int | float | str)
        ):
            return None
        try:
            number = float(self.value)
        except (ValueError, OverflowError):
            return None
        return number if math.isfinite(number) else None

    def whole(self, most: int) -> int | None:
        """Return a whole number from 1 to ``most``; None for anything else."""
        number = self.number
        return (
            int(number)
            if number is not None and number == int(number) and 1 <= number <= most
            else None
        )

    @property
    def items(self) -> list[YamlValue]:
        """The items of a plain list; of anything else none."""
        return self.value if isinstance(self.value, list) and not self.tag else []


MISSING = YamlValue(None, 0)
"""Value of a key that is not there."""


def read(text: str, document: YamlDocument) -> tuple[YamlValue, list[tuple[int, str]]] | None:
    """Return the mapping in ``text``, and lines that are valid YAML and probably not intended, with the explanation.

    Return None, with the problems in ``document``, if it is not a mapping.
    """
    builder = _Yaml11Builder(document)
    root: YamlValue | None = built(text, builder)
    if root is None or not isinstance(root.value, dict):
        if not document.problems:
            what = (
                "is empty"
                if root is None
                else "expected a mapping at the top, with `Sites` and `BatchSystem`"
            )
            document.complain(Position(root.line if root else 1, 1), what)
        return None
    return None if document.problems else (root, builder.oddities)


def walk(setting: YamlValue) -> Iterator[YamlValue]:
    """Yield ``setting`` and everything in it."""
    value = setting.value
    yield setting
    for one in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from walk(one)


class _Yaml11Builder(TreeBuilder):
    """Builder that keeps tags, and takes keys, duplicates and scalars as TARDIS does."""

    def __init__(self, document: YamlDocument) -> None:
        super().__init__(document)
        self.oddities: list[tuple[int, str]] = []
        self.tags: dict[Steps, str] = {}

    def value(self, node: yaml.Node, steps: Steps) -> YamlValue:
        value = super().value(node, steps)
        position = self.document.keys.get(steps) or self.document.values[steps]
        return YamlValue(value, position.line, self.tags.get(steps, ""))

    def accepts_tag(self, node: yaml.Node, steps: Steps) -> bool:
        is_core = node.tag.startswith(CORE_TAG) and "/" not in node.tag
        self.tags[steps] = "" if is_core else node.tag.replace(CORE_TAG, "!!")
        return True

    def scalar(self, node: yaml.ScalarNode, steps: Steps) -> bool | int | float | str | None:
        if self.tags[steps]:
            return node.value or None
        value = _scalar(node)
        if isinstance(value, int | float) and ":" in str(node.value):
            meaning = f"`{node.value}` without quotes is the number {value:g} to YAML 1.1, and so to TARDIS"
            self.oddities.append((node.start_mark.line + 1, meaning))
        return value

    def key(self, node: yaml.ScalarNode) -> str:
        return str(node.value)

    def replaces(self, key: str, spot: Position, steps: Steps) -> bool:
        self.oddities.append(
            (spot.line, f"duplicate key `{key}`: the last one counts, as in TARDIS")
        )
        return True

    def mapping(self, node: yaml.MappingNode, steps: Steps) -> dict[str, YamlValue]:
        found = super().mapping(node, steps)
        kind = found.get("__type__")
        if kind is not None and isinstance(kind.value, str) and not self.tags[steps]:
            del found["__type__"]
            self.tags[steps] = "!" + kind.value.rpartition(".")[2]
        return found


def _scalar(node: yaml.ScalarNode) -> bool | int | float | str | None:
    """Return the value of a scalar in YAML 1.1; a date or an invalid number stays text."""
    text = str(node.value)
    tag = node.tag
    if tag == f"{CORE_TAG}str" and node.style is None:
        tag = str(_RESOLVER.resolve(yaml.ScalarNode, text, (True, False)))  # type: ignore[no-untyped-call]
    try:
        match tag.removeprefix(CORE_TAG):
            case "null":
                return None
            case "bool":
                return bool(_RESOLVER.construct_yaml_bool(node))
            case "int":
                return int(_RESOLVER.construct_yaml_int(node))
            case "float":
                return float(_RESOLVER.construct_yaml_float(node))
    except (ValueError, KeyError, OverflowError, IndexError):
        pass
    return text


_MAX_FINDING_CHARS = 600


class ImportOutcome(StrEnum):
    """The outcome for one key."""

    CONVERTED = "converted"
    CHANGED = "changed"
    """In our files, with another meaning."""
    DROPPED = "no counterpart"
    NEEDED = "needs you"
    """Missing in the old configuration, or not importable as it is."""


CONVERTED, CHANGED, DROPPED, NEEDED = ImportOutcome


@frozen
class ImportFinding:
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


@define
class ImportReport:
    """The findings about one file, in the order of the import."""

    file: str
    found: list[ImportFinding] = factory(list)

    def add(self, verdict: ImportOutcome, line: int, key: str, text: str, ours: str = "") -> None:
        key = sanitize(key, 160)
        ours = sanitize(ours, 160)
        text = sanitize(text or "taken over", _MAX_FINDING_CHARS)
        self.found.append(ImportFinding(verdict, self.file, line, key, ours, text))


_OF_SITE = ("MachineTypes", "MachineTypeConfiguration", "MachineMetaData")


class KeyReader:
    """A mapping whose keys are taken one by one, so that none is overlooked; ``path`` is its name in findings.

    A value that is not a plain mapping is reported and has no keys. A finding about a missing key,
    or about the empty one, has the line of the mapping.
    """

    def __init__(self, setting: YamlValue, path: str, notes: ImportReport, line: int = 1) -> None:
        self.path = path
        self.notes = notes
        self.line = setting.line or line
        self.is_there = isinstance(setting.value, dict)
        self._left: dict[str, YamlValue] = {}
        if isinstance(setting.value, dict):
            if not setting.tag:
                self._left = dict(setting.value)
        elif setting.value is not None:
            notes.add(
                NEEDED, setting.line, path, "expected a mapping: nothing of it could be imported"
            )
        self._lines = {key: value.line for key, value in self._left.items()}

    def take(self, key: str) -> YamlValue:
        """Return the value of ``key``, once."""
        return self._left.pop(key, MISSING)

    def peek(self, key: str) -> YamlValue:
        return self._left.get(key, MISSING)

    def below(self, key: str) -> KeyReader:
        return KeyReader(self.take(key), self.name(key), self.notes, self.line)

    def name(self, key: str) -> str:
        return ".".join(part for part in (self.path, key) if part)

    def line_of(self, key: str) -> int:
        return self._lines.get(key, self.line)

    def converted(self, key: str, ours: str, text: str = "") -> None:
        self.notes.add(CONVERTED, self.line_of(key), self.name(key), text, ours)

    def changed(self, key: str, ours: str, text: str) -> None:
        self.notes.add(CHANGED, self.line_of(key), self.name(key), text, ours)

    def dropped(self, key: str, text: str) -> None:
        self.notes.add(DROPPED, self.line_of(key), self.name(key), text)

    def needed(self, key: str, ours: str, text: str) -> None:
        self.notes.add(NEEDED, self.line_of(key), self.name(key), text, ours)

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
        """Write the value of ``key`` into ``block``, or a placeholder for ``what``, report it, and return it."""
        name = ours.rpartition(".")[2]
        value = read(self.take(key))
        if value is None:
            block.put(name, placeholder(what))
            self.needed(key, ours, remedy or f"write it: {what}")
        else:
            block.put(name, value)
            self.converted(key, ours, text)
        return value

    def left(self) -> Iterator[tuple[str, YamlValue]]:
        """Yield the keys that were not taken."""
        rest = self._left
        self._left = {}
        yield from rest.items()

    def drop(self, why: Mapping[str, str]) -> None:
        """Report keys without a counterpart, with the reason of each."""
        for key, text in why.items():
            if self.take(key):
                self.dropped(key, text)

    def drop_rest(self, text: str) -> None:
        for key, _ in self.left():
            if key in _OF_SITE:
                self.needed(
                    key,
                    "",
                    "at the wrong level: it belongs into the section that has the name of its site",
                )
                continue
            self.dropped(key, text)
