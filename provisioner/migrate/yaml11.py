"""YAML 1.1, as TARDIS reads it, with the line of each value. Tags stay text: no object is constructed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from provisioner.config.strict_yaml import Position, YamlDocument, composed

Value = None | bool | int | float | str | list["YamlValue"] | dict[str, "YamlValue"]

_MAX_VALUES = 50_000
_CORE = "tag:yaml.org,2002:"
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

    @property
    def items(self) -> list[YamlValue]:
        """Return the items of a plain list; of anything else none."""
        return self.value if isinstance(self.value, list) and not self.tag else []


@dataclass(slots=True)
class YamlFile:
    """The content of a file."""

    root: YamlValue
    oddities: list[tuple[int, str]] = field(default_factory=list)
    """Lines that are valid YAML and probably not intended, with the explanation."""


def read(text: str, document: YamlDocument) -> YamlFile | None:
    """Return the mapping in ``text``; None, with the problems in ``document``, if it is not one."""
    node = composed(text, document)
    if node is None:
        if not document.problems:
            document.complain(Position(1, 1), "is empty")
        return None
    builder = _ValueBuilder(document)
    try:
        root = builder.value(node, node.start_mark.line + 1)
    except _TooManyValuesError:
        document.complain(Position(1, 1), f"aliases expand to more than {_MAX_VALUES} values")
        return None
    if not document.problems and not isinstance(root.value, dict):
        document.complain(Position(root.line, 1), "expected a mapping at the top, with `Sites` and `BatchSystem`")
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


class _TooManyValuesError(Exception):
    """Aliases that expand to more values than the limit."""


class _ValueBuilder:
    def __init__(self, document: YamlDocument) -> None:
        self.document = document
        self.oddities: list[tuple[int, str]] = []
        self.active: set[int] = set()
        self.count = 0

    def value(self, node: yaml.Node, line: int) -> YamlValue:
        self.count += 1
        if self.count > _MAX_VALUES:
            raise _TooManyValuesError
        if id(node) in self.active:
            self.complain(node, "recursive alias: write the value out")
            return YamlValue(None, line)
        self.active.add(id(node))
        try:
            return self.inner(node, line)
        finally:
            self.active.discard(id(node))

    def inner(self, node: yaml.Node, line: int) -> YamlValue:
        tag = "" if node.tag.startswith(_CORE) and "/" not in node.tag else node.tag.replace(_CORE, "!!")
        match node:
            case yaml.ScalarNode():
                return YamlValue((node.value or None) if tag else self.scalar(node), line, tag)
            case yaml.SequenceNode():
                return YamlValue([self.value(item, _line(item)) for item in node.value], line, tag)
            case yaml.MappingNode():
                return self.mapping(node, line, tag)
            case _:
                raise AssertionError(node)

    def scalar(self, node: yaml.ScalarNode) -> Value:
        value = _scalar(node)
        if isinstance(value, int | float) and ":" in str(node.value):
            self.oddities.append(
                (_line(node), f"`{node.value}` without quotes is the number {value:g} to YAML 1.1, and so to TARDIS")
            )
        return value

    def mapping(self, node: yaml.MappingNode, line: int, tag: str) -> YamlValue:
        found: dict[str, YamlValue] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.complain(key_node, "expected a key: a plain word, not a list or mapping")
                continue
            key = str(key_node.value)
            if key == "<<" and key_node.style is None:
                merged.append(value_node)
                continue
            if key in found:
                self.oddities.append((_line(key_node), f"duplicate key `{key}`: the last one counts, as in TARDIS"))
            found[key] = self.value(value_node, _line(key_node))
        for source in merged:
            self.merge(source, found)
        kind = found.get("__type__")
        if not tag and kind is not None and isinstance(kind.value, str):
            del found["__type__"]
            tag = "!" + kind.value.rpartition(".")[2]
        return YamlValue(found, line, tag)

    def merge(self, source: yaml.Node, found: dict[str, YamlValue]) -> None:
        for one in source.value if isinstance(source, yaml.SequenceNode) else [source]:
            setting = self.value(one, _line(one))
            if not isinstance(setting.value, dict):
                self.complain(one, "`<<` needs a mapping: write `<<: *anchor`")
                continue
            for key, value in setting.value.items():
                found.setdefault(key, value)

    def complain(self, node: yaml.Node, message: str) -> None:
        self.document.complain(Position(_line(node), node.start_mark.column + 1), message)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _scalar(node: yaml.ScalarNode) -> Value:
    """Return the value of a scalar in YAML 1.1; a date or an invalid number stays text."""
    text, tag = str(node.value), node.tag
    if tag == f"{_CORE}str" and node.style is None:
        tag = str(_RESOLVER.resolve(yaml.ScalarNode, text, (True, False)))  # type: ignore[no-untyped-call]
    try:
        match tag.removeprefix(_CORE):
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
