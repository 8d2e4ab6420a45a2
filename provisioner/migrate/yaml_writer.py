"""A writer of YAML: blocks of keys with comments, every value in a form that our strict reader reads back."""

from __future__ import annotations

from collections.abc import Sequence

from provisioner.config.strict_yaml import is_plain_text
from provisioner.formatting import sanitize

Scalar = str | int | float | bool

_REMARK_COLUMN = 34


class QuotedText(str):
    """A text that is always written in quotes."""


class YamlBlock:
    """A mapping to be written, or only comments."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.keys: set[str] = set()

    def put(self, key: str, value: Scalar | Sequence[Scalar] | YamlBlock, remark: str = "") -> None:
        """Add ``key: value``, unless the key is present."""
        if key in self.keys:
            return
        self.keys.add(key)
        name = _text(key)
        match value:
            case YamlBlock() if value.keys:
                self.lines += [f"{name}:", *(f"  {line}" if line else "" for line in value.lines)]
            case YamlBlock():
                self.lines += [f"{name}: {{}}", *(f"  {line}" for line in value.lines)]
            case str() | bool() | int() | float():
                self._line(f"{name}: {_text(value)}", remark)
            case _ if value:
                self.lines += [f"{name}:", *(f"  - {_text(item)}" for item in value)]
            case _:
                self._line(f"{name}: []", remark)

    def remark(self, text: str) -> None:
        """Add a comment line."""
        self.lines.append(f"# {sanitize(text, 160)}".rstrip())

    def space(self) -> None:
        """Add an empty line."""
        self.lines.append("")

    def _line(self, line: str, remark: str) -> None:
        self.lines.append(f"{line:<{_REMARK_COLUMN}}# {sanitize(remark, 160)}" if remark else line)

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
        case _:
            return value if not isinstance(value, QuotedText) and is_plain_text(value) else _quoted(value)


def _quoted(text: str) -> str:
    return '"' + "".join(_escaped(c) for c in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else f"\\U{ord(char):08X}"
