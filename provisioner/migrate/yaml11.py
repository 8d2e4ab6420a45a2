"""YAML 1.1, as TARDIS reads it, with the line of each value. Tags stay text: no object is constructed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from provisioner.config.strict_yaml import CORE_TAG, Position, Steps, TreeBuilder, YamlDocument, built

Value = None | bool | int | float | str | list["YamlValue"] | dict[str, "YamlValue"]

_RESOLVER = yaml.SafeLoader("")


@dataclass(frozen=True, slots=True)
class YamlValue:
    """A value with its line."""

    value: Value
    line: int
    """Line of its key, or of the value in a list; counts from 1."""
    tag: str = ""
    """``!SSHExecutor``, also for COBalD's ``__type__: package.SSHExecutor``; empty for plain values."""

    @property
    def text(self) -> str | None:
        """Return a plain scalar as text; None for anything else."""
        if self.tag or self.value is None or isinstance(self.value, list | dict):
            return None
        return ("true" if self.value else "false") if isinstance(self.value, bool) else str(self.value)

    @property
    def number(self) -> float | None:
        """Return a plain finite number, also one in quotes; None for anything else."""
        if self.tag or isinstance(self.value, bool) or not isinstance(self.value, int | float | str):
            return None
        try:
            number = float(self.value)
        except (ValueError, OverflowError):
            return None
        return number if math.isfinite(number) else None

    def whole(self, most: int) -> int | None:
        """Return a whole number from 1 to ``most``; None for anything else."""
        number = self.number
        return int(number) if number is not None and number == int(number) and 1 <= number <= most else None

    @property
    def items(self) -> list[YamlValue]:
        """Return the items of a plain list; of anything else none."""
        return self.value if isinstance(self.value, list) and not self.tag else []


@dataclass(frozen=True, slots=True)
class YamlFile:
    """The content of a file."""

    root: YamlValue
    oddities: list[tuple[int, str]]
    """Lines that are valid YAML and probably not intended, with the explanation."""


def read(text: str, document: YamlDocument) -> YamlFile | None:
    """Return the mapping in ``text``; None, with the problems in ``document``, if it is not one."""
    builder = _Yaml11Builder(document)
    root: YamlValue | None = built(text, builder)
    if root is None or not isinstance(root.value, dict):
        if not document.problems:
            what = "is empty" if root is None else "expected a mapping at the top, with `Sites` and `BatchSystem`"
            document.complain(Position(root.line if root else 1, 1), what)
        return None
    return None if document.problems else YamlFile(root, builder.oddities)


def walk(setting: YamlValue) -> Iterator[YamlValue]:
    """Yield ``setting`` and everything in it."""
    yield setting
    if isinstance(setting.value, list):
        for one in setting.value:
            yield from walk(one)
    elif isinstance(setting.value, dict):
        for one in setting.value.values():
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
        self.oddities.append((spot.line, f"duplicate key `{key}`: the last one counts, as in TARDIS"))
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
    text, tag = str(node.value), node.tag
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
