"""Lists and documents as values: rows with typed columns, from which every output format and its schema follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from operator import attrgetter
from typing import Any

from provisioner import formatting

Cell = str | int | float | bool | None | Sequence[Any] | Mapping[str, Any]
"""A JSON value."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a list, or one fact of a document.

    ``of`` gets the value of a row for machines: a function, or a dotted path of attributes, by default the key; it
    leads to None where a part is None. ``show`` (of the row) or ``unit`` (of the value) makes the text for people.
    """

    key: str
    """Stable name in JSON, with the unit (``_s``, ``_at``, ``_mib``, ``gpu_milli``)."""
    doc: str
    of: Any = ""
    kind: str = "string"
    """JSON type: string, integer, number, boolean, array, object."""
    null: bool = False
    head: str = ""
    show: Callable[[Any], str] | None = None
    unit: Callable[[Any], str] | None = None
    level: int = -1
    """0: in tables; 1: in wide ones; 2: for machines and by --columns. By default 0 with a heading, else 2."""
    least: int = 0
    """May be shortened to this many characters; 0: never shortened."""
    wrap: bool = False
    """Continues in further lines instead of being cut."""
    tail: bool = False
    """Shorten in the middle and keep the end, which distinguishes ids."""
    right: bool = False
    spare: int = 0
    """Left out of a table that has no room for it or nothing in it, the largest first. 0: never."""
    tint: Callable[[Any], str] | None = None
    choices: tuple[str, ...] = ()
    convert: Callable[[Any], Cell] | None = None
    """Makes the JSON value of what ``of`` gets."""

    def __post_init__(self) -> None:
        if self.level < 0:
            object.__setattr__(self, "level", 0 if self.head else 2)
        if isinstance(self.of, str):
            object.__setattr__(self, "of", _path_getter(self.of or self.key))

    def cells(self, rows: Sequence[Any]) -> list[Any]:
        """Return the values of ``rows`` for machines."""
        found = list(map(self.of, rows))
        return found if self.convert is None else list(map(self.convert, found))

    def cell(self, row: Any) -> Cell:
        """Return the value of ``row`` for machines."""
        found: Cell = self.cells([row])[0]
        return found

    @property
    def title(self) -> str:
        return self.head or self.key.upper()

    def text(self, row: Any) -> str:
        """Return the cell for people: one clean line, ``-`` for nothing."""
        return self.texts([row])[0]

    def texts(self, rows: Sequence[Any]) -> list[str]:
        """Return the cells of ``rows`` for people."""
        if self.show is not None:
            return [_text(self.show(row)) for row in rows]
        if self.unit is not None:
            return [_text(None if (value := self.of(row)) is None else self.unit(value)) for row in rows]
        return [_text(self.of(row)) for row in rows]


def _path_getter(path: str) -> Callable[[Any], Any]:
    """Return a function that follows ``path``, to None where a part of it is None."""
    if "." not in path:
        return attrgetter(path)
    names = path.split(".")

    def get(row: Any) -> Any:
        for name in names:
            if row is None:
                return None
            row = getattr(row, name)
        return row

    return get


def _text(value: Cell) -> str:
    if isinstance(value, str):
        return (value if value.isascii() and value.isprintable() else formatting.sanitize(value)) or "-"
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence):
        return ", ".join(formatting.sanitize(str(v)) for v in value) or "-"
    return formatting.sanitize(str(value))


def text(key: str, doc: str, of: Any = "", **more: Any) -> Column:
    """Return a column of short texts; with ``least`` it may be shortened in tables."""
    return Column(key, doc, of, **more)


def words(key: str, doc: str, of: Any = "", *, level: int = 0, **more: Any) -> Column:
    """Return a column of sentences: never cut, continued in further lines where a table is too wide."""
    return Column(key, doc, of, level=level, wrap=True, **more)


def whole(key: str, doc: str, of: Any = "", **more: Any) -> Column:
    """Return a column of integers."""
    return Column(key, doc, of, kind="integer", right=True, **more)


def number(key: str, doc: str, of: Any = "", **more: Any) -> Column:
    """Return a column of numbers."""
    return Column(key, doc, of, kind="number", right=True, **more)


def flag(key: str, doc: str, of: Any = "", **more: Any) -> Column:
    """Return a column of yes or no."""
    return Column(key, doc, of, kind="boolean", **more)


def items(key: str, doc: str, of: Any = "", **more: Any) -> Column:
    """Return a column of lists."""
    return Column(key, doc, of, kind="array", **more)


def data(key: str, doc: str, of: Any = "", **more: Any) -> Column:
    """Return a column of objects."""
    return Column(key, doc, of, kind="object", **more)


def time_at(key: str, doc: str, of: Any = "", *, now: float | None = None, **more: Any) -> Column:
    """Return a column of times: for people ISO-8601, or with ``now`` their age."""

    def unit(at: float) -> str:
        return formatting.iso(at) if now is None else formatting.ago(at, now)

    doc = f"{doc} Seconds since the epoch (UTC); null: never."
    kind = {"kind": "number", "null": True, "right": now is not None}
    return Column(key, doc, of, **kind, unit=unit, convert=moment, **more)  # type: ignore[arg-type]


def moment(value: float) -> float | None:
    """Return a time for machines: None for 0, which means never."""
    return value if value and isfinite(value) else None


def span_s(key: str, doc: str, of: Any = "", **more: Any) -> Column:
    """Return a column of durations in seconds; people get a short age."""
    return Column(key, doc, of, kind="number", null=True, right=True, unit=formatting.age, convert=_rounded, **more)


def _rounded(value: float | None) -> float | None:
    return round(value, 3) if value is not None and isfinite(value) else None


def amount(mib: int) -> str:
    """Return MiB for people, ``-`` for none."""
    return formatting.size(mib) if mib else "-"


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows of one kind. ``scope`` says in one line what is and is not in it."""

    schema: str
    columns: tuple[Column, ...]
    rows: Sequence[Any]
    name: Callable[[Any], str]
    scope: str = ""
    unknown: str | None = None
    """Why a part of a document is unknown, which is null for machines. Empty: it may be, but is known."""

    def plain(self) -> list[dict[str, Cell]]:
        """Return the rows as JSON values."""
        keys = [column.key for column in self.columns]
        cells = zip(*(column.cells(self.rows) for column in self.columns), strict=True)
        return [dict(zip(keys, row, strict=True)) for row in cells]


@dataclass(frozen=True, slots=True)
class Document:
    """Facts about one thing and lists that belong to it."""

    schema: str
    facts: Listing
    """Exactly one row."""
    parts: Mapping[str, Listing] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    """Titles of the parts, for people; a part without a title is not shown to them."""
    main: str = ""
    """The part that csv, jsonl and name give; empty: jsonl gives the document, csv and name do not apply."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """For machines only, as it is."""
    scope: str = ""

    def plain(self) -> dict[str, Any]:
        """Return the document as JSON values."""
        (facts,) = self.facts.plain()
        parts = {key: None if part.unknown else part.plain() for key, part in self.parts.items()}
        return {"schema": self.schema, **facts, **parts, **self.raw}


def json_schema(answer: Listing | Document) -> dict[str, Any]:
    """Return the JSON Schema of what ``-o json`` writes for ``answer``, whatever its rows."""
    common = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": answer.schema, "type": "object"}
    version = {"schema": {"const": answer.schema}}
    if isinstance(answer, Listing):
        return common | _object(version | {"items": {"type": "array", "items": _row_schema(answer.columns)}})
    facts = _row_schema(answer.facts.columns)["properties"]
    parts = {
        key: {"type": "array" if part.unknown is None else ["array", "null"], "items": _row_schema(part.columns)}
        for key, part in answer.parts.items()
    }
    raw = {key: {"type": "object"} for key in answer.raw}
    return common | _object(version | facts | parts | raw)


def _row_schema(columns: Sequence[Column]) -> dict[str, Any]:
    return {"type": "object"} | _object({c.key: _cell_schema(c) for c in columns})


def _cell_schema(column: Column) -> dict[str, Any]:
    kind: str | list[str] = [column.kind, "null"] if column.null else column.kind
    return {"type": kind, "description": column.doc} | ({"enum": list(column.choices)} if column.choices else {})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"properties": properties, "required": list(properties), "additionalProperties": False}
