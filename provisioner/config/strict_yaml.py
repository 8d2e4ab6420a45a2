"""Strict YAML: plain values with their positions, and a problem for whatever YAML readers disagree on.

Refused with a repair: duplicate keys, ``yes/no/on/off``, sexagesimals, octals and other bases,
dates, infinities, tags, missing values, keys that are not text. Anchors, aliases and ``<<`` are
supported, within limits.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from provisioner.config import Problem
from provisioner.values import define, factory

CORE_TAG = "tag:yaml.org,2002:"
Tree = None | bool | int | float | str | list["Tree"] | dict[str, "Tree"]
Steps = tuple[str | int, ...]
"""Keys and indices that lead from the root to a value."""

_MAX_FILE_BYTES = 4 * 1024 * 1024
_MAX_VALUES = 50_000
"""Most values in one file, those of aliases and ``<<`` counted at each use: one or two seconds of reading."""
_MAX_DEPTH = 50
"""Most levels of nesting, those of aliases and ``<<`` included: far below the limit of the interpreter's stack."""
_MAX_PROBLEMS = 100
"""Most problems reported for one file: a file of another program would have thousands."""


class Position(NamedTuple):
    """A position in a file; line and column count from 1."""

    line: int
    col: int


@define
class YamlDocument:
    """The content of a file with the position of each key and value.

    ``broken`` values are None in the tree and already have a problem.
    """

    file: str
    text: str = ""
    tree: dict[str, Tree] = factory(dict)
    is_mapping: bool = False
    """True if the file could be read and holds a mapping."""
    keys: dict[Steps, Position] = factory(dict)
    values: dict[Steps, Position] = factory(dict)
    broken: set[Steps] = factory(set)
    problems: list[Problem] = factory(list)
    warnings: list[Problem] = factory(list)
    failures: list[Problem] = factory(list)
    """Settings that are valid but cannot work now. The controller starts all the same."""

    @property
    def is_full(self) -> bool:
        """Return whether no further problem is reported."""
        return len(self.problems) > _MAX_PROBLEMS

    def complain(self, spot: Position, message: str) -> None:
        """Add a problem, on one line even if the message quotes control characters of the file."""
        if self.is_full:
            return
        if len(self.problems) == _MAX_PROBLEMS:
            message = f"more than {_MAX_PROBLEMS} problems: the rest is omitted. Fix these first"
        self.problems.append(
            Problem(self.file, *spot, "".join(c if c.isprintable() else " " for c in message))
        )

    def complain_at(self, steps: Steps, message: str) -> None:
        """Add a problem with the value at ``steps``."""
        self.complain(self.value_position(steps), message)

    def complain_at_key(self, steps: Steps, message: str) -> None:
        """Add a problem with the key at ``steps``."""
        self.complain(self.key_position(steps), message)

    def warn(self, steps: Steps, message: str) -> None:
        """Add a warning about the value at ``steps``."""
        self.warnings.append(Problem(self.file, *self.value_position(steps), f"warning: {message}"))

    def fail(self, steps: Steps, message: str) -> None:
        """Add that the value at ``steps`` is valid and cannot work now."""
        self.failures.append(Problem(self.file, *self.key_position(steps), message))

    def in_order(self) -> list[Problem]:
        """Return each problem once, in the order of the file."""
        return sorted(dict.fromkeys(self.problems), key=lambda problem: (problem.line, problem.col))

    def value_position(self, steps: Steps) -> Position:
        """Return the position of the value; for a missing one, that of its nearest parent."""
        return self.values.get(steps) or self.key_position(steps)

    def key_position(self, steps: Steps) -> Position:
        """Return the position of the key of the value; for a missing one, that of its nearest parent."""
        places = (
            self.keys.get(steps[:n]) or self.values.get(steps[:n])
            for n in range(len(steps), -1, -1)
        )
        return next(filter(None, places), Position(1, 1))


def read(path: Path) -> YamlDocument:
    """Return the mapping in ``path``. What is wrong with the file, or its absence, is in ``problems``."""
    document = YamlDocument(str(path))
    text = text_of(path, document)
    if text is not None:
        document.text = text
        parse(text, document)
    return document


def text_of(path: Path, document: YamlDocument) -> str | None:
    """Return the text in ``path``; None, with a problem, if it cannot be read, is too large or is not UTF-8."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
        if len(raw) <= _MAX_FILE_BYTES:
            return raw.decode("utf-8-sig")
        document.complain(Position(1, 1), "is larger than 4 MiB: is this a configuration file?")
    except OSError as error:
        known = {
            IsADirectoryError: "is a directory: name the file in it",
            FileNotFoundError: "no such file",
        }
        document.complain(
            Position(1, 1), known.get(type(error), f"cannot be read: {error.strerror}")
        )
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8", "replace")
        byte = raw[error.start]
        document.complain(
            _spot_at(before, len(before)), f"byte 0x{byte:02x} is not UTF-8: save the file as UTF-8"
        )
    return None


def _spot_at(text: str, index: int) -> Position:
    return Position(text.count("\n", 0, index) + 1, index - (text.rfind("\n", 0, index) + 1) + 1)


class YamlTooLargeError(Exception):
    """A file with more values or levels of nesting than the limits allow."""


def _within_bounds(nodes: int, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise YamlTooLargeError(
            f"nested too deeply: more than {_MAX_DEPTH} levels. Check brackets and aliases"
        )
    if nodes > _MAX_VALUES:
        raise YamlTooLargeError(
            f"too large: more than {_MAX_VALUES} values with its aliases. Check that this is a configuration"
        )


class _BoundedLoader(yaml.SafeLoader):
    """A composer of nodes within the limits; it leaves plain scalars unresolved."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own name)

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.nodes = self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next node. Raises :class:`YamlTooLargeError`."""
        self.nodes += 1
        self.depth += 1
        _within_bounds(self.nodes, self.depth)
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def parse(text: str, document: YamlDocument) -> None:
    """Fill ``document`` from ``text``."""
    tree = built(text, TreeBuilder(document))
    if isinstance(tree, dict):
        document.tree = tree
        document.is_mapping = True
    elif not document.problems:
        what = "is empty: write a mapping" if tree is None else "expected a mapping at the top,"
        document.complain(
            document.value_position(()), f"{what} such as `controller: kit` or `site: local`"
        )


def built(text: str, builder: TreeBuilder) -> Any:
    """Return the tree that ``builder`` makes of ``text``; None if it is empty or, with a problem, not YAML."""
    document = builder.document
    try:
        node = yaml.compose(text, Loader=_BoundedLoader)
        return None if node is None else builder.value(node, ())
    except yaml.reader.ReaderError as error:
        number = ord(text[error.position])
        document.complain(
            _spot_at(text, error.position), f"character U+{number:04X} is not allowed: remove it"
        )
    except yaml.MarkedYAMLError as error:
        text = " ".join(f"{error.context or ''} {error.problem or ''}".split())
        begins_there = any(sign in text for sign in ("flow", "end of stream", "expected ':'"))
        mark = (begins_there and error.context_mark) or error.problem_mark or error.context_mark
        remedy = next(
            (remedy for fragment, remedy in _REMEDIES if fragment in text), f"not YAML: {text}"
        )
        document.complain(_position(mark), remedy)
    except YamlTooLargeError as error:
        document.complain(Position(1, 1), str(error))
    return None


def _position(mark: yaml.Mark | None) -> Position:
    return Position(1, 1) if mark is None else Position(mark.line + 1, mark.column + 1)


_REMEDIES = (
    ("flow sequence", "unclosed `[`: write `[a, b]`"),
    ("flow mapping", "unclosed `{`: write `{a: 1, b: 2}`"),
    ("found character '\\t'", "a tab cannot indent or begin a value: use spaces"),
    (
        "mapping values are not allowed here",
        "unexpected `:`: align the keys, and quote text that contains `: `",
    ),
    ("could not find expected ':'", "missing `:` after a key: write `key: value`"),
    ("found unexpected end of stream", "unclosed quote: close it"),
    ("found undefined alias", "undefined alias: define the anchor `&name` above it"),
    ("found duplicate anchor", "duplicate anchor: choose another name"),
    ("expected a single document", "second document (`---`): a file holds one document"),
    ("but found another document", "second document (`---`): a file holds one document"),
    (
        "found unknown escape character",
        "unknown escape in double quotes: use single quotes, or `\\\\`",
    ),
    ("cannot start any token", "this character cannot begin a value: put the value in quotes"),
    ("expected <block end>", "inconsistent indentation: align it with the lines above"),
)
"""Fragments of PyYAML's messages, with what to write."""


class TreeBuilder:
    """Builder of plain values from composed nodes, with the position of each."""

    def __init__(self, document: YamlDocument) -> None:
        self.document = document
        self.active: set[int] = set()
        self.nodes = 0

    def value(self, node: yaml.Node, steps: Steps) -> Any:
        """Return the value of ``node``, which is at ``steps``. Raises :class:`YamlTooLargeError`."""
        self.nodes += 1
        _within_bounds(self.nodes, len(steps))
        self.document.values[steps] = _position(node.start_mark)
        if id(node) in self.active:
            return self.broken(steps, "recursive alias: write the value out")
        if not self.accepts_tag(node, steps):
            return self.broken(
                steps, f"tag `{node.tag.replace(CORE_TAG, '!!')}` is not supported: remove it"
            )
        self.active.add(id(node))
        try:
            if isinstance(node, yaml.ScalarNode):
                return self.scalar(node, steps)
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item, (*steps, n)) for n, item in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)
            return self.mapping(node, steps)
        finally:
            self.active.discard(id(node))

    def broken(self, steps: Steps, message: str) -> Tree:
        """Report a value that cannot be used. It is None in the tree."""
        self.document.broken.add(steps)
        self.document.complain(self.document.values[steps], message)
        return None

    def accepts_tag(self, node: yaml.Node, steps: Steps) -> bool:
        return node.tag in (f"{CORE_TAG}str", f"{CORE_TAG}seq", f"{CORE_TAG}map")

    def scalar(self, node: yaml.ScalarNode, steps: Steps) -> Tree:
        try:
            return _scalar(node)
        except ValueError as error:
            return self.broken(steps, str(error))

    def mapping(self, node: yaml.MappingNode, steps: Steps) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            spot = _position(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                self.document.complain(spot, "expected a key: a plain word, not a list or mapping")
                continue
            key = self.key(key_node)
            if key == "<<" and key_node.style is None:
                merged.append(value_node)
            elif key is None:
                self.document.complain(
                    spot, f'key `{key_node.value}` is not text: write `"{key_node.value}"`'
                )
            elif key not in tree or self.replaces(key, spot, steps):
                self.document.keys[(*steps, key)] = spot
                tree[key] = self.value(value_node, (*steps, key))
        for source in merged:
            self.merge(source, tree, steps, 1)
        return tree

    def key(self, node: yaml.ScalarNode) -> str | None:
        """Return the text of a key; None if it is not text."""
        try:
            key = _scalar(node)
        except ValueError:
            return None
        return key if isinstance(key, str) else None

    def replaces(self, key: str, spot: Position, steps: Steps) -> bool:
        """Return whether a duplicate key replaces the first one."""
        first = self.document.keys[(*steps, key)].line
        self.document.complain(spot, f"duplicate key `{key}` (first defined on line {first})")
        return False

    def merge(self, source: yaml.Node, tree: dict[str, Any], steps: Steps, depth: int) -> None:
        """Add the keys of ``source`` (``<<``) that ``tree`` lacks, with their positions in ``source``."""
        self.nodes += 1
        _within_bounds(self.nodes, len(steps) + depth)
        if isinstance(source, yaml.SequenceNode):
            for one in source.value:
                self.merge(one, tree, steps, depth + 1)
            return
        if not isinstance(source, yaml.MappingNode) or id(source) in self.active:
            self.document.complain(
                _position(source.start_mark), "`<<` needs a mapping: write `<<: *anchor`"
            )
            return
        pairs = {
            key.value: (key, value)
            for key, value in source.value
            if isinstance(key, yaml.ScalarNode)
        }
        for key, (key_node, value_node) in pairs.items():
            self.nodes += 1
            if key == "<<":
                self.merge(value_node, tree, steps, depth + 1)
            elif key not in tree:
                self.document.keys[(*steps, key)] = _position(key_node.start_mark)
                tree[key] = self.value(value_node, (*steps, key))


_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE)
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?")
_IN_YAML11 = (
    (re.compile(r"(?i:yes|on|y|true)"), "a boolean", "`true`"),
    (re.compile(r"(?i:no|off|n|false)"), "a boolean", "`false`"),
    (
        re.compile(r"[-+]?([0-9]+):([0-5]?[0-9])(:[0-5]?[0-9])*(\.[0-9]*)?"),
        "a base-60 number",
        r"`\1h\2m`",
    ),
    (re.compile(r"[-+]?0+([0-9_]+)"), "an octal number", r"`\1`"),
    (
        re.compile(r"[-+]?(0[xob][0-9a-fA-F_]+|[0-9][0-9_]*(\.[0-9_]*)?)"),
        "a number",
        "decimal digits",
    ),
    (
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.)([eE][-+]?[0-9]+)?"),
        "a number",
        "digits on both sides of the point",
    ),
)
"""Forms of a plain scalar that YAML readers, or people, interpret differently; with what to write."""


def scalar(text: str) -> bool | int | float | str:
    """Return the value of an unquoted scalar. The ValueError for an ambiguous one names the remedy."""
    if text in ("true", "false"):
        return text == "true"
    if _INT.fullmatch(text):
        if len(text) > 18:
            raise ValueError("number out of range: too many digits")
        return int(text)
    if _FLOAT.fullmatch(text):
        if not math.isfinite(float(text)):
            raise ValueError(f"`{text}` is out of range: write a smaller number")
        return float(text)
    if text in ("", "~") or text.lower() == "null":
        raise ValueError("missing value: write one, or remove the key")
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(
            f"`{text}` is not a finite number: write a number, or remove the key for no limit"
        )
    if _DATE.fullmatch(text):
        raise ValueError(f'ambiguous value `{text}` (a date in YAML 1.1): write `"{text}"`')
    for form, meaning, remedy in _IN_YAML11:
        if found := form.fullmatch(text):
            written = found.expand(remedy)
            raise ValueError(
                f'ambiguous value `{text}` ({meaning} in YAML 1.1): write {written}, or `"{text}"` for text'
            )
    return text


_PLAIN = re.compile(r"[A-Za-z0-9_./+~][A-Za-z0-9_./+@=:% -]*")


def is_plain_text(text: str) -> bool:
    """Return whether ``text``, written without quotes, is read back unchanged."""
    if not _PLAIN.fullmatch(text) or ": " in text or text[-1] in ": ":
        return False
    try:
        return isinstance(scalar(text), str)
    except ValueError:
        return False


def _scalar(node: yaml.ScalarNode) -> bool | int | float | str:
    """Return the value of a scalar. Raises ValueError as :func:`scalar`, and for escapes that are not a character."""
    if node.style is None:
        return scalar(node.value)
    try:
        node.value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"`\\u{ord(node.value[error.start]):04x}` is not a character: remove it"
        ) from None
    return str(node.value)
