"""Lists and documents of the command line as tables and facts of a page: texts, links and colours."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from markupsafe import Markup

from provisioner.answers.columns import Column, Document, Listing, chosen_columns, picked
from provisioner.answers.errors import parsed
from provisioner.model import Drone

TINTS = {"red": "bad", "yellow": "warn", "green": "good", "blue": "info", "dim": "faint"}
"""Class in the style sheet by the tint of a column."""
TABLE_PARAMETERS = ("sort", "limit", "columns")
"""Parameters of an address that sort and cut the main table of its page."""
PAGE_OF_SUBJECT = {
    "site": "/sites/",
    "type": "/drones?type=",
    "drone": "/drone/",
    "class": "/class/",
    "vo": "/?vo=",
    "service": "/services/",
}
"""Begin of the address of a page by the kind of what it is about."""


class PageCell(NamedTuple):
    """Cell of a table, or value of a fact."""

    text: str
    tint: str = ""
    href: str = ""
    parts: Mapping[str, int] | None = None
    """Amounts that a bar shows in place of the text, by their class in the style sheet."""


class PageHead(NamedTuple):
    """Heading of a column, or name of a fact."""

    text: str
    doc: str
    kind: str = ""
    """Class in the style sheet: ``amount``, ``name``, ``text``, or empty."""
    href: str = ""
    """Address of the page sorted by this column; empty: it cannot be sorted."""
    order: str = ""
    """``ascending``, ``descending``, or empty where another column gives the order."""


class PageTable(NamedTuple):
    """Table of a page. ``title`` stands above it, and alone if there are no rows."""

    title: str
    heads: Sequence[PageHead]
    rows: Sequence[Sequence[PageCell]]
    groups: Mapping[int, Sequence[PageCell]] = {}
    """Cells of the heading above a row, by the number of the row."""


def page_table(listing: Listing, query: Mapping[str, str] | None = None) -> PageTable:
    """Return a list as a table. ``query``: the parameters of the page, which sort the table and choose its columns.

    Raises :class:`VerbError` for a column that the list does not have.
    """
    columns = [c for c in listing.columns if c.level <= 0]
    if query is not None:
        limit = parsed(row_limit, "limit", query["limit"]) if query.get("limit") else None
        listing = picked(listing, query.get("sort"), limit)
        columns = (
            chosen_columns(listing.columns, query["columns"]) if query.get("columns") else columns
        )
    cells = [(column, _cells(column, listing.rows)) for column in columns]
    shown = [
        (c, found) for c, found in cells if not c.spare or any(cell.text != "-" for cell in found)
    ]
    rows = list(zip(*(found for _, found in shown), strict=True))
    title = listing.title if listing.rows or ": " in listing.title else f"{listing.title}: none"
    if (listing.total or 0) > len(rows):
        title = f"{title}, {len(rows)} of {listing.total} rows"
    return PageTable(title, [_head(column, query) for column, _ in shown], rows)


def grouped(table: PageTable) -> PageTable:
    """Return a table in which each cell of the last column is once the heading of its rows."""
    found: dict[PageCell, list[Sequence[PageCell]]] = {}
    for *row, heading in table.rows:
        found.setdefault(heading, []).append(row)
    groups: dict[int, Sequence[PageCell]] = {}
    rows: list[Sequence[PageCell]] = []
    for heading, of_heading in found.items():
        groups[len(rows)] = (heading,)
        rows += of_heading
    return PageTable(table.title, table.heads[:-1], rows, groups)


def row_limit(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ValueError("write a number, as in limit=20")
    return int(text)


def facts(document: Document) -> list[tuple[PageHead, PageCell]]:
    """Return the facts of a document that people see and that have a value."""
    columns = [c for c in document.facts if c.level <= 0]
    found = [(PageHead(spelled(c.title), c.doc), _cells(c, [document.of])[0]) for c in columns]
    return [(head, cell) for head, cell in found if cell.text != "-"]


def _head(column: Column, query: Mapping[str, str] | None) -> PageHead:
    is_amount = column.kind in ("integer", "number") and not column.key.endswith("at")  # a time
    kind = "amount" if is_amount else "name" if column.tail else "text" if column.wrap else ""
    if query is None or column.kind in ("array", "object"):
        return PageHead(spelled(column.title), column.doc, kind)
    now = query.get("sort", "")
    order = {column.key: "ascending", f"-{column.key}": "descending"}.get(now, "")
    turned = column.key if now == f"-{column.key}" or not (is_amount or order) else f"-{column.key}"
    return PageHead(
        spelled(column.title), column.doc, kind, "?" + urlencode({**query, "sort": turned}), order
    )


def spelled(title: str) -> str:
    """Return a heading of the terminal (``GPUS``, ``TAKEN BACK``) as one of a page."""
    return re.sub(
        r"(?i)\b(gpu|cpu|ram|vram|vo)(?=s?\b)", lambda word: word[0].upper(), title.capitalize()
    )


def _cells(column: Column, rows: Sequence[Any]) -> list[PageCell]:
    tints = column.tint or {}
    cells = []
    for text, row in zip(column.texts(rows), rows, strict=True):
        value = column.of(row)
        named = value if isinstance(value, str) else ""
        parts = value if column.key == "share" else None
        cells.append(
            PageCell(
                text, TINTS.get(tints.get(named, ""), ""), _link_of(column.key, row, named), parts
            )
        )
    return cells


def _link_of(key: str, row: Any, name: str) -> str:
    """Return the address of the page about what a cell names; empty: there is none."""
    kind = key.removeprefix("for_")
    if key in ("subject", "view"):
        kind, _, name = name.partition(":")
    elif key == "id":
        kind = "drone" if isinstance(row, Drone) else "class"
    return address(PAGE_OF_SUBJECT[kind], name) if name and kind in PAGE_OF_SUBJECT else ""


PAGE_OF_COMMAND = {
    "provisioner drones show": ("drone", "/drone/"),
    "provisioner sites show": ("site", "/sites/"),
    "provisioner explain class": ("class", "/class/"),
    "provisioner explain service": ("service", "/services/"),
    "provisioner demand": ("what waits", "/#waiting"),
    "provisioner status": ("Now", "/"),
}
"""Words and begin of the address of a page that answers as a command does."""


def sentence(text: str) -> Markup:
    """Return a sentence in which a command in backticks is a link to its page, or code if there is none."""
    made = Markup()
    for n, part in enumerate(text.split("`")):
        made += _command(part) if n % 2 else part
    return made


def _command(text: str) -> Markup:
    for command, (words, page) in PAGE_OF_COMMAND.items():
        if text.startswith(command):
            name = text.removeprefix(command).strip()
            link = address(page, name) if name else page
            return Markup('<a href="{}">{}</a>').format(link, f"{words} {name}".strip())
    return Markup("<code>{}</code>").format(text)


def address(page: str, name: str) -> str:
    """Return the address of the page of one thing, such as ``/job/schedd%23204.17``."""
    return page + quote(name, safe="")
