"""Answers as values: rows with typed columns, and documents of facts and lists."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from math import isfinite
from operator import attrgetter
from typing import Any

from provisioner import formatting
from provisioner.answers.errors import Exit, unknown
from provisioner.formatting import iso, sanitize
from provisioner.values import factory, frozen

_answered_at: ContextVar[float] = ContextVar("answered_at", default=0.0)


def now() -> float:
    """Return the time that all ages of one answer refer to, on the controller's clock."""
    return _answered_at.get() or time.time()


@contextmanager
def one_moment(clock: Callable[[], float]) -> Iterator[None]:
    """Have all ages of one answer refer to the same time. ``clock``: that of the record, as ``Reader.now``."""
    began = _answered_at.set(clock())
    try:
        yield
    finally:
        _answered_at.reset(began)


def ago(at: float) -> str:
    """Return how long ago ``at`` was, as a short age."""
    return formatting.ago(at, now())


Cell = str | int | float | bool | None | Sequence[Any] | Mapping[str, Any]
"""A JSON value."""


@frozen
class Column:
    """Column of a list, or fact of a document. ``show`` (of the row) or ``unit`` (of the value) is for people."""

    key: str
    """Stable name in JSON, with the unit (``_s``, ``_at``, ``_mib``, ``gpu_milli``)."""
    doc: str
    of: Any = ""
    """The value of a row for machines: a function, or a dotted path of attributes, by default the
    key. Where a part of the path is None it is null, or empty in a column of texts that are never
    null."""
    kind: str = "string"
    """JSON type: string, integer, number, boolean, array, object."""
    null: bool = False
    head: str = ""
    fact: str = ""
    """Title in a document that shows this column of a list as a fact."""
    show: Callable[[Any], str] | None = None
    unit: Callable[[Any], str] | None = None
    level: int = -1
    """0: in tables; 1: in wide ones; 2: for machines and by --columns. By default 0 with a heading, else 2."""
    least: int = 0
    """May be shortened to this many characters; 0: never shortened."""
    wrap: bool = False
    tail: bool = False
    """Shorten in the middle and keep the end, which distinguishes ids."""
    spare: int = 0
    """Left out of a table that has no room for it or nothing in it, the largest first. 0: never."""
    tint: Mapping[Any, str] | None = None
    choices: tuple[str, ...] = ()
    convert: Callable[[Any], Cell] | None = None
    """Makes the JSON value of what ``of`` gets."""

    def __post_init__(self) -> None:
        if self.level < 0:
            object.__setattr__(self, "level", 0 if self.head else 2)
        if isinstance(self.of, str):
            none = "" if self.kind == "string" and not self.null else None
            object.__setattr__(self, "of", _path_getter(self.of or self.key, none))

    @property
    def title(self) -> str:
        return self.head or self.key.upper()

    def cells(self, rows: Sequence[Any]) -> list[Any]:
        """Return the values of ``rows`` for machines."""
        found = list(map(self.of, rows))
        return found if self.convert is None else list(map(self.convert, found))

    def texts(self, rows: Sequence[Any]) -> list[str]:
        """Return the cells of ``rows`` for people: one clean line each, ``-`` if empty."""
        if self.show is not None:
            return [_text(self.show(row)) for row in rows]
        unit = self.unit or (lambda value: value)
        return [_text(None if (value := self.of(row)) is None else unit(value)) for row in rows]


def _path_getter(path: str, none: str | None) -> Callable[[Any], Any]:
    if "." not in path:
        return attrgetter(path)

    def get(row: Any) -> Any:
        for name in path.split("."):
            row = None if row is None else getattr(row, name)
        return none if row is None else row

    return get


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


def finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def rounded(value: float | None) -> float | None:
    return round(value, 3) if value is not None and isfinite(value) else None


text = partial(Column)
words = partial(Column, level=0, wrap=True)
"""Sentences: never cut, continued in further lines where a table is too wide."""
ident = partial(Column, level=0, least=8, tail=True)
"""Names and ids: shortened last, and in the middle."""
whole = partial(Column, kind="integer")
number = partial(Column, kind="number")
flag = partial(Column, kind="boolean")
items = partial(Column, kind="array")
data = partial(Column, kind="object")
gpus = partial(whole, unit=formatting.gpus)
"""Thousandths of GPUs."""
mib = partial(whole, unit=lambda mib: formatting.size(mib) if mib else "-")
span_s = partial(Column, kind="number", null=True, unit=formatting.age, convert=rounded)
"""Durations in seconds; people get a short age."""


age_s = partial(span_s, unit=ago, convert=lambda at: rounded(max(0.0, now() - at)) if at else None)
"""Time since a moment, in seconds; null where that is 0 (never)."""


def time_at(
    key: str, doc: str, of: Any = "", unit: Callable[[Any], str] = iso, **more: Any
) -> Column:
    """Return a column of times: seconds since the epoch, null for 0 (never); people get ISO-8601."""
    doc = f"{doc} Seconds since the epoch (UTC); null: never."
    return number(key, doc, of, null=True, unit=unit, convert=lambda at: finite(at or None), **more)


def reason_data(reason: Any) -> Any:
    """Return a reason as JSON values."""
    from provisioner.reasons import Reason
    from provisioner.serialization import to_plain

    return None if reason is None else to_plain(reason, Reason)


ROWS_AT_ONCE = 1000
"""Rows whose values are there at once: those of 100,000 drones take 300 MiB."""


@frozen
class Listing:
    """Rows of one kind, alone or as part of a document. ``scope`` says in one line what is and is not in it."""

    schema: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    name: Callable[[Any], str] = str
    scope: str = ""
    title: str = ""
    """Heading of a part; people are not shown a part without one."""
    cursor: Callable[[Any], str] | None = None
    """Returns what ``--after`` takes for the rows behind a row; None: the list does not go on."""
    more: str = ""
    """Cursor of the rows that a limit left out; empty: none."""
    total: int | None = None
    """Number of all rows where ``rows`` are only the first; None: these are all."""

    def plain(self, columns: Sequence[Column] = ()) -> Iterator[dict[str, Cell]]:
        """Yield the rows as JSON values, by default of all columns."""
        columns = columns or self.columns
        keys = [column.key for column in columns]
        for first in range(0, len(self.rows), ROWS_AT_ONCE):
            rows = self.rows[first : first + ROWS_AT_ONCE]
            cells = zip(*(column.cells(rows) for column in columns), strict=True)
            yield from (dict(zip(keys, row, strict=True)) for row in cells)


@frozen
class Document:
    """Facts about one thing and lists that belong to it."""

    schema: str
    facts: Sequence[Column]
    of: Any
    parts: Mapping[str, Listing] = factory(dict)
    scope: str = ""
    name: str = ""
    main: str = ""
    """The part that csv, jsonl and name give; empty: jsonl gives the document, csv and name do not apply."""
    raw: Mapping[str, Any] = factory(dict)

    def plain(self) -> dict[str, Any]:
        """Return the document as JSON values."""
        (facts,) = Listing("", self.facts, [self.of]).plain()
        return {
            "schema": self.schema,
            **facts,
            **{key: [*part.plain()] for key, part in self.parts.items()},
            **self.raw,
        }


Answer = Listing | Document


def as_facts(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns of a list as the facts of a document: those with a title of a fact are for people."""
    return tuple(
        replace(c, level=0 if c.fact else 2, spare=0, head=c.fact or c.head) for c in columns
    )


def shown_as(columns: Iterable[Column], key: str, show: Callable[[Any], str]) -> tuple[Column, ...]:
    """Return the columns, of which ``key`` shows people ``show`` of the row."""
    return tuple(replace(each, show=show) if each.key == key else each for each in columns)


def picked(listing: Listing, sort: str | None, limit: int | None) -> Listing:
    """Return ``listing`` sorted and cut as asked. Rows without a value come last in both orders."""
    rows = list(listing.rows)
    for key in reversed(
        [k for k in (sort or "").split(",") if k.strip().removeprefix("-").strip()]
    ):
        (column,) = chosen_columns(listing.columns, key.removeprefix("-"))
        valued = list(zip(column.cells(rows), rows, strict=True))
        known = [v for v in valued if v[0] is not None]
        known.sort(key=lambda v: _sort_key(v[0]), reverse=key.startswith("-"))
        rows = [row for _, row in known] + [row for value, row in valued if value is None]
    scope = listing.scope
    more = ""
    total = len(rows) if listing.total is None else listing.total
    if limit is not None and total > limit:
        scope = f"{scope}; {limit} of {total} shown" if scope else scope
        rows = rows[:limit]
        more = listing.cursor(rows[-1]) if listing.cursor and rows and not sort else ""
    return replace(listing, rows=rows, scope=scope, more=more, total=total)


def _sort_key(value: Cell) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, bool | int | float) else (0.0, str(value))


def chosen_columns(columns: Sequence[Column], names: str) -> list[Column]:
    """Return the columns that are named, by JSON key or head. Raises :class:`VerbError` with the nearest key."""
    known = {c.title.lower().replace(" ", "-"): c for c in reversed(columns) if c.level < 2}
    known |= {c.key: c for c in columns}
    found = []
    for name in filter(None, (n.strip().lower().replace(" ", "-") for n in names.split(","))):
        if name not in known:
            raise unknown("column", name, [c.key for c in columns], code=Exit.USAGE)
        found.append(known[name])
    return found
