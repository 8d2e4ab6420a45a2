"""A writer of YAML: blocks of keys with comments, every value in a form that our strict reader reads back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Union

from provisioner.config.strict_yaml import is_plain_text
from provisioner.formatting import sanitize

Scalar = str | int | float | bool
Writable = Union[Scalar, Sequence[Scalar], Mapping[str, "Writable"], "YamlBlock"]

_REMARK_COLUMN = 34


class QuotedText(str):
    """A text that is always written in quotes."""


class YamlBlock:
    """A mapping to be written, or only comments."""

    def __init__(self, values: Mapping[str, Writable] | None = None) -> None:
        self.lines: list[str] = []
        self.keys: set[str] = set()
        for key, value in (values or {}).items():
            self.put(key, value)

    def put(self, key: str, value: Writable, remark: str = "") -> None:
        """Add ``key: value``, unless the key is present."""
        if key in self.keys:
            return
        self.keys.add(key)
        name = _text(key)
        if isinstance(value, Mapping):
            value = YamlBlock(value)
        if isinstance(value, YamlBlock):
            self.lines.append(f"{name}:" if value.keys else f"{name}: {{}}")
            self.lines += [f"  {line}".rstrip() for line in value.lines]
        elif isinstance(value, Scalar):
            line = f"{name}: {_text(value)}"
            self.lines.append(
                f"{line:<{_REMARK_COLUMN}}# {sanitize(remark, 160)}" if remark else line
            )
        else:
            self.lines.append(f"{name}:" if value else f"{name}: []")
            self.lines += [f"  - {_text(item)}" for item in value]

    def remark(self, text: str) -> None:
        self.lines.append(f"# {sanitize(text, 160)}".rstrip())

    def space(self) -> None:
        self.lines.append("")

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def placeholder(what: str) -> str:
    """Return the text for a value that only the operator knows: `provisioner check` reports it at its line."""
    return f"<{what}>"


def _text(value: Scalar) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:g}" if isinstance(value, float) else str(value)
    if not isinstance(value, QuotedText) and is_plain_text(value):
        return value
    escaped = (
        f"\\{c}" if c in '"\\' else c if c.isprintable() else f"\\U{ord(c):08X}" for c in value
    )
    return f'"{"".join(escaped)}"'
