"""Lists and documents as values: rows with typed columns, from which every form of output and its schema follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from provisioner.formatting import sanitize

Row = TypeVar("Row")

Cell = str | int | float | bool | None | Sequence[Any] | Mapping[str, Any]
"""What a machine gets: JSON values."""


@dataclass(frozen=True)  # with slots, Column[Row](...) cannot be called before Python 3.12
class Column(Generic[Row]):
    """One column. ``of`` is for machines and always there; ``show`` is for people."""

    key: str
    """Its stable name in JSON; carries the unit (``_s``, ``_at``, ``_mib``, ``gpu_milli``)."""
    of: Callable[[Row], Cell]
    doc: str
    kind: str = "string"
    """JSON type: string, integer, number, boolean, array, object."""
    null: bool = False
    head: str = ""
    show: Callable[[Row], str] | None = None
    level: int = 2
    """0: in tables; 1: in wide ones; 2: for machines and by --columns."""
    least: int = 0
    """May be shortened to this many characters; 0: never shortened."""
    wrap: bool = False
    """Goes on in further lines instead of being cut."""
    tail: bool = False
    """Shorten in the middle and keep the end, which tells ids apart."""
    right: bool = False
    spare: int = 0
    """Left out of a table that has no room for it or nothing in it; of several the larger first. 0: never."""
    tint: Callable[[Row], str] | None = None
    choices: tuple[str, ...] = ()
    many: Callable[[Sequence[Row]], list[Any]] | None = None
    """``of`` of many rows, where that can be had at less than a call per row."""

    def cells(self, rows: Sequence[Row]) -> list[Any]:
        """``of`` of many rows."""
        return self.many(rows) if self.many else list(map(self.of, rows))

    @property
    def title(self) -> str:
        return self.head or self.key.upper()

    def text(self, row: Row) -> str:
        """The cell for people: one clean line, ``-`` for nothing."""
        return _text(self.show(row) if self.show else self.of(row))

    def texts(self, rows: Sequence[Row]) -> list[str]:
        """:meth:`text` of many rows."""
        of = self.show or self.of
        return [_text(of(row)) for row in rows]


def _text(value: Cell) -> str:
    if isinstance(value, str):
        return (value if value.isascii() and value.isprintable() else sanitize(value)) or "-"
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence):
        return ", ".join(sanitize(str(v)) for v in value) or "-"
    return sanitize(str(value))


@dataclass(frozen=True)
class Listing(Generic[Row]):
    """Rows of one kind. ``scope`` says in one line what is and is not in it."""

    schema: str
    columns: tuple[Column[Row], ...]
    rows: Sequence[Row]
    name: Callable[[Row], str]
    scope: str = ""
    unknown: str | None = None
    """Of a part of a document that may be unknown, why it is: null for machines. Empty: it is known."""

    def plain(self, keys: Sequence[str] = ()) -> list[dict[str, Cell]]:
        columns = [(c.key, c.of) for c in self.columns if not keys or c.key in keys]
        return [{key: of(row) for key, of in columns} for row in self.rows]


@dataclass(frozen=True, slots=True)
class Document:
    """Facts about one thing and lists that belong to it."""

    schema: str
    facts: Listing[Any]
    """Exactly one row."""
    parts: Mapping[str, Listing[Any]] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    """Of the parts, for people; a part without a title is not shown to them."""
    main: str = ""
    """The part that csv, jsonl and name give; empty: jsonl gives the document, csv and name do not apply."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """For machines only, as it is."""
    scope: str = ""

    def plain(self) -> dict[str, Any]:
        (facts,) = self.facts.plain()
        parts = {key: None if part.unknown else part.plain() for key, part in self.parts.items()}
        return {"schema": self.schema, **facts, **parts, **self.raw}


def json_schema(answer: Listing[Any] | Document) -> dict[str, Any]:
    """JSON Schema of what ``-o json`` writes for ``answer``, whatever its rows."""
    common = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": answer.schema, "type": "object"}
    version = {"schema": {"const": answer.schema}}
    if isinstance(answer, Listing):
        return common | _object(version | {"items": {"type": "array", "items": row_schema(answer.columns)}})
    facts = row_schema(answer.facts.columns)["properties"]
    parts = {
        k: {"type": "array" if p.unknown is None else ["array", "null"], "items": row_schema(p.columns)}
        for k, p in answer.parts.items()
    }
    raw = {k: {"type": "object"} for k in answer.raw}
    return common | _object(version | facts | parts | raw)


def row_schema(columns: Sequence[Column[Any]]) -> dict[str, Any]:
    """JSON Schema of one item."""
    return {"type": "object"} | _object({c.key: _cell_schema(c) for c in columns})


def _cell_schema(column: Column[Any]) -> dict[str, Any]:
    kind: str | list[str] = [column.kind, "null"] if column.null else column.kind
    return {"type": kind, "description": column.doc} | ({"enum": list(column.choices)} if column.choices else {})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"properties": properties, "required": list(properties), "additionalProperties": False}
