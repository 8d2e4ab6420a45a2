"""Lists and documents of the command line as tables and facts of a page: texts, links, colours and bars."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from provisioner import formatting
from provisioner.cli import output as out
from provisioner.cli.options import Pick, VerbError
from provisioner.model import Drone

TINTS = {"red": "bad", "yellow": "warn", "green": "good", "blue": "info", "dim": "faint"}
"""Class in the style sheet by the tint of a column."""
PAGE_OF_SUBJECT = {"site": "/sites/", "type": "/sites/", "drone": "/drone/", "class": "/why?q=class:"}
_PAGE_OF_KEY = {
    key: PAGE_OF_SUBJECT[key.removeprefix("for_")] for key in ("site", "drone", "class", "for_class", "type")
}


class PageCell(NamedTuple):
    """Cell of a table, or fact of a document."""

    text: str
    tint: str = ""
    href: str = ""
    title: str = ""
    """The exact value of a time."""
    share: float | None = None
    """Length of the bar beside a number, of its full length; None: there is no bar."""


class PageHead(NamedTuple):
    text: str
    doc: str
    kind: str
    """Class in the style sheet: ``amount``, ``name``, or empty."""
    href: str
    """Address of the page sorted by this column; empty: it cannot be sorted."""
    order: str = ""
    """``ascending``, ``descending``, or empty where another column gives the order."""


class PageTable(NamedTuple):
    """Table of a page. ``title`` stands above it, and alone if there are no rows."""

    title: str
    heads: Sequence[PageHead]
    rows: Sequence[Sequence[PageCell]]


class PageFact(NamedTuple):
    key: str
    title: str
    doc: str
    cell: PageCell


def page_table(
    listing: out.Listing,
    query: Mapping[str, str] | None = None,
    bars: Sequence[str] = (),
) -> PageTable:
    """Return a list as a table. ``query``: the parameters of the page, which sort the table and choose its columns.

    ``bars``: keys of amounts that get a bar, in relation to the largest. Parts of one, as percents, always have one.
    Raises :class:`VerbError` for a column that the list does not have.
    """
    columns = [c for c in listing.columns if c.level <= 0]
    if query is not None:
        limit = query.get("limit", "")
        if limit and not (limit.isascii() and limit.isdecimal() and len(limit) < 10):
            raise VerbError(f"limit={formatting.sanitize(limit, 20)} is not a number: write limit=20")
        listing = out.picked(listing, Pick(query.get("sort"), int(limit) if limit else None))
        columns = out.chosen_columns(listing.columns, query["columns"]) if query.get("columns") else columns
    cells = [(column, _cells(column, listing.rows, column.key in bars)) for column in columns]
    shown = [(c, found) for c, found in cells if not c.spare or any(cell.text != "-" for cell in found)]
    rows = list(zip(*(found for _, found in shown), strict=True))
    title = listing.title if listing.rows or ": " in listing.title else f"{listing.title}: none"
    return PageTable(title, [_head(column, query) for column, _ in shown], rows)


def facts(document: out.Document, *leave_out: str) -> list[PageFact]:
    """Return the facts of a document that people see and that have a value."""
    columns = [c for c in document.facts if c.level <= 0 and c.key not in leave_out]
    columns = [replace(c, unit=_moment_and_age) if _is_time(c) else c for c in columns]
    found = [PageFact(c.key, spelled(c.title), c.doc, _cells(c, [document.of])[0]) for c in columns]
    return [fact for fact in found if fact.cell.text != "-"]


def _head(column: out.Column, query: Mapping[str, str] | None) -> PageHead:
    is_amount = column.kind in ("integer", "number") and not _is_time(column)
    kind = "amount" if is_amount else "name" if column.tail else ""
    if query is None or column.kind in ("array", "object"):
        return PageHead(spelled(column.title), column.doc, kind, "")
    now = query.get("sort", "")
    order = {column.key: "ascending", f"-{column.key}": "descending"}.get(now, "")
    turned = column.key if now == f"-{column.key}" or not (is_amount or order) else f"-{column.key}"
    return PageHead(spelled(column.title), column.doc, kind, "?" + urlencode({**query, "sort": turned}), order)


def spelled(title: str) -> str:
    """Return a heading of the terminal (``GPUS``, ``TAKEN BACK``) as one of a page."""
    return re.sub(r"(?i)\b(gpu|cpu|vram)(?=s?\b)", lambda word: word[0].upper(), title.capitalize())


def _is_time(column: out.Column) -> bool:
    return column.key == "at" or column.key.endswith("_at")


def _cells(column: out.Column, rows: Sequence[Any], bar: bool = False) -> list[PageCell]:
    texts = (
        replace(column, unit=WRITTEN_OUT.get(column.unit, column.unit)).texts(rows)
        if column.unit
        else column.texts(rows)
    )
    values = [column.of(row) for row in rows]
    tints = column.tint or {}
    whole = max((v for v in values if isinstance(v, int | float)), default=0) if bar else 1.0
    cells = []
    for text, value, row in zip(texts, values, rows, strict=True):
        is_part = (bar or text.endswith("%")) and isinstance(value, int | float) and whole > 0
        tint = TINTS.get(tints.get(value, ""), "") if isinstance(value, str) else ""
        exact = formatting.iso(value) if _is_time(column) and value else ""
        cells.append(
            PageCell(text, tint, link_of(column, row, value), exact, min(1.0, value / whole) if is_part else None)
        )
    return cells


def _moment_and_age(at: float) -> str:
    return f"{moment(at)} ({formatting.duration(out.now() - at)} ago)" if 0 < at <= out.now() else moment(at)


def moment(at: float) -> str:
    """Return a time (UTC) as ``27 Nov 08:41:10``, or with the year if it is another one than now."""
    if not at:
        return "-"
    try:
        when, now = (datetime.fromtimestamp(each, UTC) for each in (at, out.now()))
    except (ValueError, OverflowError, OSError):
        return "-"
    return f"{when:%-d %b %H:%M:%S}" if when.year == now.year else f"{when:%-d %b %Y %H:%M}"


WRITTEN_OUT: Mapping[Callable[[Any], str] | None, Callable[[Any], str]] = {
    formatting.age: formatting.duration,
    out.ago: lambda at: formatting.duration(out.now() - at) if at else "-",
    formatting.iso: moment,
}
"""Units of the terminal, and what a page has instead."""


def link_of(column: out.Column, row: Any, value: Any) -> str:
    """Return the address of the page about what a cell names; empty: there is none."""
    if not isinstance(value, str) or not value:
        return ""
    if column.key in ("subject", "view"):
        kind, _, name = value.partition(":")
        if kind in PAGE_OF_SUBJECT and name:
            return address(PAGE_OF_SUBJECT[kind], name.partition("/")[0] if kind == "type" else name)
        return ""
    if column.key == "id":
        return address("/drone/" if isinstance(row, Drone) else "/why?q=class:", value)
    name = value.partition("/")[0] if column.key == "type" else value
    return address(_PAGE_OF_KEY[column.key], name) if column.key in _PAGE_OF_KEY else ""


def address(page: str, name: str) -> str:
    """Return the address of the page of one thing, such as ``/job/schedd%23204.17``."""
    return page + quote(name, safe="")
