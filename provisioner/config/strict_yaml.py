"""YAML without surprises: plain values with the place of each, and a problem for whatever YAML readers disagree on.

Refused with a repair: duplicate keys, ``yes/no/on/off``, sexagesimals, octals and other bases, dates, infinities,
tags, missing values, keys that are not text. Anchors, aliases and ``<<`` are understood, within a bound.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import yaml

from provisioner.config import Problem

Tree = None | bool | int | float | str | list["Tree"] | dict[str, "Tree"]
Steps = tuple[str | int, ...]
"""Keys and indices that lead from the root to a value."""

_LARGEST_FILE = 4 * 1024 * 1024
_MOST_NODES = 50_000
"""Values in one file, those of aliases and ``<<`` counted wherever they are used: a second or two of reading."""
_DEEPEST = 50
"""Levels of nesting, those of aliases and ``<<`` included: far below what the interpreter's stack holds."""
_MOST_PROBLEMS = 100
"""Problems reported for one file: a file of another program would have thousands."""


class Spot(NamedTuple):
    """A place in a file; both count from 1."""

    line: int
    col: int


@dataclass(slots=True)
class Document:
    """What a file says, and where it says it. ``broken`` values are None in the tree and have a problem already."""

    file: str
    tree: dict[str, Tree] = field(default_factory=dict)
    is_mapping: bool = False
    """Whether there is anything to judge: the file could be read, and holds a mapping."""
    keys: dict[Steps, Spot] = field(default_factory=dict)
    values: dict[Steps, Spot] = field(default_factory=dict)
    broken: set[Steps] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """True if no further problem is reported."""
        return len(self.problems) > _MOST_PROBLEMS

    def complain(self, spot: Spot, message: str) -> None:
        """Add a problem in one line, whatever the file has in it that the message quotes."""
        if self.is_full:
            return
        if len(self.problems) == _MOST_PROBLEMS:
            message = f"more than {_MOST_PROBLEMS} problems: the others are left out. Repair these first"
        line = "".join(c if c.isprintable() else " " for c in message)
        self.problems.append(Problem(self.file, spot.line, spot.col, line))

    def complain_at(self, steps: Steps, message: str) -> None:
        """A problem with the value at ``steps``."""
        self.complain(self.value_spot(steps), message)

    def value_spot(self, steps: Steps) -> Spot:
        """Where the value stands; for one that is not there, where its nearest surroundings begin."""
        return self._spot(steps, self.values)

    def key_spot(self, steps: Steps) -> Spot:
        """Where the key of the value stands."""
        return self._spot(steps, self.keys)

    def _spot(self, steps: Steps, first: dict[Steps, Spot]) -> Spot:
        if steps in first:
            return first[steps]
        for n in range(len(steps), -1, -1):
            spot = self.keys.get(steps[:n]) or self.values.get(steps[:n])
            if spot is not None:
                return spot
        return Spot(1, 1)


def read(path: Path) -> Document:
    """The mapping in ``path``. Never raises for what is in the file or for the file's absence: see ``problems``."""
    document = Document(str(path))
    text = text_of(path, document)
    if text is not None:
        parse(text, document)
    return document


def text_of(path: Path, document: Document) -> str | None:
    """What is in ``path``; None, with a problem, if that cannot be had or is no text of a reasonable size."""
    try:
        with path.open("rb") as file:
            raw = file.read(_LARGEST_FILE + 1)
    except IsADirectoryError:
        document.complain(Spot(1, 1), "is a directory: name the file in it")
    except FileNotFoundError:
        document.complain(Spot(1, 1), "no such file")
    except OSError as error:
        document.complain(Spot(1, 1), f"cannot be read: {error.strerror}")
    else:
        return _decoded(raw, document)
    return None


def _decoded(raw: bytes, document: Document) -> str | None:
    if len(raw) > _LARGEST_FILE:
        document.complain(Spot(1, 1), "is larger than 4 MiB: is this a configuration file?")
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8", "replace")
        byte = raw[error.start]
        document.complain(_spot_at(before, len(before)), f"byte 0x{byte:02x} is not UTF-8: save the file as UTF-8")
        return None


def _spot_at(text: str, index: int) -> Spot:
    return Spot(text.count("\n", 0, index) + 1, index - (text.rfind("\n", 0, index) + 1) + 1)


class _TooMuch(Exception):
    """A file with more values, or more levels of them, than any configuration has."""


def _within_bounds(nodes: int, depth: int) -> None:
    """Raise :class:`_TooMuch` beyond either bound."""
    if depth > _DEEPEST:
        raise _TooMuch(f"nested too deeply: more than {_DEEPEST} levels. Check the brackets and the aliases")
    if nodes > _MOST_NODES:
        raise _TooMuch(
            f"too large: more than {_MOST_NODES} values with its aliases. Check that this is a configuration"
        )


class _Loader(yaml.SafeLoader):
    """Composes nodes only, within bounds; what a plain scalar means is decided here, not by YAML 1.1."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own name)

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.nodes = self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next node. Raises :class:`_TooMuch`."""
        self.nodes += 1
        self.depth += 1
        _within_bounds(self.nodes, self.depth)
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def parse(text: str, document: Document) -> None:
    """Fill ``document`` from ``text``."""
    node = composed(text, document)
    if node is not None or not document.problems:
        _fill(document, node)


def composed(text: str, document: Document) -> yaml.Node | None:
    """The nodes of ``text``, scalars unresolved and tags unused. None if it is empty or, with a problem, no YAML."""
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.reader.ReaderError as error:
        number = ord(text[error.position])
        document.complain(_spot_at(text, error.position), f"character U+{number:04X} is not allowed: remove it")
    except yaml.MarkedYAMLError as error:
        document.complain(*_syntax(error))
    except _TooMuch as error:
        document.complain(Spot(1, 1), str(error))
    return None


def _fill(document: Document, node: yaml.Node | None) -> None:
    if node is None:
        document.complain(Spot(1, 1), "is empty: a mapping such as `controller: kit` or `site: local` is wanted")
        return
    if not isinstance(node, yaml.MappingNode):
        document.complain(_mark(node), "a mapping such as `controller: kit` or `site: local` is wanted at the top")
        return
    try:
        tree = _Builder(document).value(node, ())
    except _TooMuch as error:
        document.complain(Spot(1, 1), str(error))
    else:
        if not isinstance(tree, dict):
            return  # a tag on the whole file: complained of already
        document.tree, document.is_mapping = tree, True


def _mark(node: yaml.Node) -> Spot:
    return Spot(node.start_mark.line + 1, node.start_mark.column + 1)


# -------------------------------------------------------------------------------------------------------- syntax errors

_REPAIRS = (
    ("found character '\\t'", "a tab cannot indent or begin a value: use spaces"),
    ("mapping values are not allowed here", "unexpected `:`: indent keys alike, and quote a text that holds `: `"),
    ("could not find expected ':'", "a key without `:`: write `key: value`"),
    ("found unexpected end of stream", "a quote is opened here and never closed: close it"),
    ("found undefined alias", "the alias has no anchor above it: write `&name` there"),
    ("found duplicate anchor", "the anchor is there already: choose another name"),
    ("expected a single document", "a second document begins (`---`): one file holds one"),
    ("but found another document", "a second document begins (`---`): one file holds one"),
    ("found unknown escape character", "unknown escape in double quotes: use single quotes, or `\\\\`"),
    ("cannot start any token", "this character cannot begin a value: put the value in quotes"),
    ("expected <block end>", "is indented differently from the lines above that it belongs to: align it"),
)


def _syntax(error: yaml.MarkedYAMLError) -> tuple[Spot, str]:
    what = " ".join(str(error.problem or error.context or "cannot be understood").split())
    mark = error.problem_mark or error.context_mark
    context = error.context or ""
    if error.context_mark is not None and any(
        sign in f"{context} {what}" for sign in ("flow", "end of stream", "expected ':'")
    ):
        mark = error.context_mark
    spot = Spot(mark.line + 1, mark.column + 1) if mark is not None else Spot(1, 1)
    if "flow sequence" in context:
        return spot, "`[` is opened here and not closed properly: write `[a, b]`"
    if "flow mapping" in context:
        return spot, "`{` is opened here and not closed properly: write `{a: 1, b: 2}`"
    for fragment, repair in _REPAIRS:
        if fragment in what:
            return spot, repair
    return spot, f"not YAML: {what}"


# ------------------------------------------------------------------------------------------------------------- building


class _Builder:
    """Turns composed nodes into plain values, noting where each stands."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.active: set[int] = set()
        self.nodes = 0

    def value(self, node: yaml.Node, steps: Steps) -> Tree:
        self.nodes += 1
        _within_bounds(self.nodes, len(steps))
        self.document.values[steps] = _mark(node)
        if id(node) in self.active:
            self.broken(node, steps, "an alias of something that holds itself: write it out")
            return None
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.rpartition(":")[2] not in ("str", "seq", "map"):
            self.broken(node, steps, f"the tag `{_plain_tag(node.tag)}` is not used here: remove it")
            return None
        self.active.add(id(node))
        try:
            return self.inner(node, steps)
        finally:
            self.active.discard(id(node))

    def inner(self, node: yaml.Node, steps: Steps) -> Tree:
        match node:
            case yaml.ScalarNode():
                try:
                    return scalar(node.value) if node.style is None else _text(node.value)
                except Surprise as surprise:
                    self.broken(node, steps, str(surprise))
                    return None
            case yaml.SequenceNode():
                return [self.value(item, (*steps, n)) for n, item in enumerate(node.value)]
            case yaml.MappingNode():
                return self.mapping(node, steps)
            case _:
                raise AssertionError(node)

    def broken(self, node: yaml.Node, steps: Steps, message: str) -> None:
        self.document.broken.add(steps)
        self.document.complain(_mark(node), message)

    def mapping(self, node: yaml.MappingNode, steps: Steps) -> dict[str, Tree]:
        tree: dict[str, Tree] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            spot, key = _mark(key_node), self.key(key_node)
            if key is None:
                continue
            if key == "<<" and key_node.style is None:
                merged.append(value_node)
            elif key in tree:
                first = self.document.keys[(*steps, key)].line
                self.document.complain(spot, f"`{key}` is there already, in line {first}: remove one of them")
            else:
                self.document.keys[(*steps, key)] = spot
                tree[key] = self.value(value_node, (*steps, key))
        for source in merged:
            self.merge(source, tree, steps, 1)
        return tree

    def merge(self, source: yaml.Node, tree: dict[str, Tree], steps: Steps, depth: int) -> None:
        """Take from ``source`` the keys that ``tree`` lacks (``<<``); they stand where they stand in ``source``."""
        self.nodes += 1
        _within_bounds(self.nodes, len(steps) + depth)
        if isinstance(source, yaml.SequenceNode):
            for one in source.value:
                self.merge(one, tree, steps, depth + 1)
            return
        if not isinstance(source, yaml.MappingNode) or id(source) in self.active:
            self.document.complain(_mark(source), "`<<` takes in another mapping: write `<<: *anchor`")
            return
        for key_node, value_node in source.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            self.nodes += 1
            if key == "<<":
                self.merge(value_node, tree, steps, depth + 1)
            elif isinstance(key, str) and key not in tree:
                self.document.keys[(*steps, key)] = _mark(key_node)
                tree[key] = self.value(value_node, (*steps, key))

    def key(self, node: yaml.Node) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self.document.complain(_mark(node), "a key is wanted here: a plain word, not a list or mapping")
            return None
        try:
            key = scalar(node.value) if node.style is None else _text(node.value)
        except Surprise:
            key = None
        if not isinstance(key, str):
            self.document.complain(_mark(node), f'as a key, `{node.value}` is not text: write `"{node.value}"`')
            return None
        return key


def _plain_tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


# -------------------------------------------------------------------------------------------------------------- scalars


class Surprise(ValueError):
    """A plain scalar that YAML readers, or people, take for different things."""


_TRUE, _FALSE = {"yes", "on", "y", "true"}, {"no", "off", "n", "false"}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_OCTAL = re.compile(r"[-+]?0[0-9_]+")
_OTHER_BASE = re.compile(r"[-+]?0[xob][0-9a-fA-F_]+")
_UNDERSCORES = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?")
_BARE_POINT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.)([eE][-+]?[0-9]+)?")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE)


def scalar(text: str) -> bool | int | float | str:
    """What an unquoted scalar means. Raises :class:`Surprise` with a repair where that is not plain to everybody."""
    if text in ("true", "false"):
        return text == "true"
    if _INT.fullmatch(text):
        return _whole(text)
    if _FLOAT.fullmatch(text):
        return _finite(text)
    _surprise(text)
    return text


def _text(text: str) -> str:
    """Return a quoted scalar. Raises :class:`Surprise` for escapes that stand for no character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Surprise(f"`\\u{ord(text[error.start]):04x}` is not a character: remove it") from None
    return text


def _whole(text: str) -> int:
    if len(text) > 18:
        raise Surprise("the number is beyond all reason: are there digits too many?")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Surprise(f"`{text}` is beyond all reason: write a smaller number")
    return number


def _surprise(text: str) -> None:
    if text in ("", "~") or text.lower() == "null":
        raise Surprise("a value is missing: write one, or leave the key out")
    if text.lower() in _TRUE | _FALSE:
        meant = "true" if text.lower() in _TRUE else "false"
        raise Surprise(f'`{text}` is a truth value to some and text to others: write `{meant}`, or `"{text}"` for text')
    if _SEXAGESIMAL.fullmatch(text):
        hours, minutes = text.split(":")[:2]
        raise Surprise(f'`{text}` is a number of base 60 to some: write `{hours}h{minutes}m`, or `"{text}"` for text')
    if _OCTAL.fullmatch(text):
        number = text.lstrip("+-0") or "0"
        raise Surprise(f'`{text}` is an octal number to some: write `{number}`, or `"{text}"` for text')
    if _OTHER_BASE.fullmatch(text) or _UNDERSCORES.fullmatch(text) or _BARE_POINT.fullmatch(text):
        raise Surprise(f'`{text}` is a number to some: write {_decimal(text)}, or `"{text}"` for text')
    if _DATE.fullmatch(text):
        raise Surprise(f'`{text}` is a date to some: write `"{text}"`')
    if _NOT_FINITE.fullmatch(text):
        raise Surprise(f"`{text}` is not a finite number: write a number, or leave the key out for no limit")


def _decimal(text: str) -> str:
    try:
        number = int(text, 0) if _OTHER_BASE.fullmatch(text) else float(text.replace("_", ""))
    except ValueError:
        return "a decimal number"
    return f"`{number:g}`" if isinstance(number, float) and abs(number) < 1e6 else f"`{int(number)}`"
