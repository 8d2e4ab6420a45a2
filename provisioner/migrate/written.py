"""Our YAML as text: blocks of keys with remarks, every value in a form that our strict reader takes for what it is."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provisioner.config.strict_yaml import AmbiguousScalarError, scalar
from provisioner.formatting import sanitize

Scalar = str | int | float | bool

_PLAIN = re.compile(r"[A-Za-z0-9_./+][A-Za-z0-9_./+@=:% -]*")
_REMARK_COLUMN = 34


class Quoted(str):
    """A text that is written in quotes, whatever is in it."""


class Block:
    """A mapping that is being written, or nothing but remarks."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.keys: set[str] = set()

    def put(self, key: str, value: Scalar | Sequence[Scalar] | Block, remark: str = "") -> None:
        """``key: value``. A key that is there already is left alone."""
        if key in self.keys:
            return
        self.keys.add(key)
        name = _text(key)
        match value:
            case Block() if value.keys:
                self.lines += [f"{name}:", *(f"  {line}" if line else "" for line in value.lines)]
            case Block():
                self.lines += [f"{name}: {{}}", *(f"  {line}" for line in value.lines)]
            case str() | bool() | int() | float():
                self._line(f"{name}: {_text(value)}", remark)
            case _ if value:
                self.lines += [f"{name}:", *(f"  - {_text(item)}" for item in value)]
            case _:
                self._line(f"{name}: []", remark)

    def remark(self, text: str) -> None:
        """A line of its own."""
        self.lines.append(f"# {sanitize(text, 160)}".rstrip())

    def space(self) -> None:
        """An empty line."""
        self.lines.append("")

    def _line(self, line: str, remark: str) -> None:
        self.lines.append(f"{line:<{_REMARK_COLUMN}}# {sanitize(remark, 160)}" if remark else line)

    def __str__(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def wanted(what: str) -> str:
    """What stands where only the operator knows the value: `provisioner check` takes it for a mistake, at its line."""
    return f"<{what}>"


def _text(value: Scalar) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:g}" if isinstance(value, float) else str(value)
        case _:
            return value if not isinstance(value, Quoted) and _is_plain(value) else _quoted(value)


def _is_plain(text: str) -> bool:
    if not _PLAIN.fullmatch(text) or ": " in text or text[-1] in ": ":
        return False
    try:
        return isinstance(scalar(text), str)
    except AmbiguousScalarError:
        return False


def _quoted(text: str) -> str:
    return '"' + "".join(_escaped(c) for c in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else f"\\U{ord(char):08X}"
