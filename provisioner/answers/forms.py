"""Forms of answers: tables for people, JSON, YAML and CSV for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, zip_longest
from typing import Any, TextIO

from provisioner.answers.columns import Answer, Cell, Column, Document, chosen_columns
from provisioner.answers.errors import UsageError
from provisioner.answers.query import Format, Query
from provisioner.formatting import sanitize
from provisioner.values import frozen


@frozen
class Page:
    """Size and colours of what people read."""

    width: int | None = None
    """None: as wide as the widest row. So is a table in a pipe: `grep` and `awk` must get whole rows."""
    color: bool = False
    is_repeated: bool = False
    """The answer is one of many: JSON is a line, and YAML a document, of its own."""


def write(answer: Answer, query: Query, page: Page, out: TextIO) -> None:
    """Write ``answer`` in the form of ``query`` to ``out``."""
    if isinstance(answer, Document):
        if not answer.main or not (
            query.columns or query.output in (Format.CSV, Format.NAME, Format.JSONL)
        ):
            _write_document(answer, query, page, out)
            return
        answer = answer.parts[answer.main]
    columns = chosen_columns(answer.columns, query.columns) if query.columns else answer.columns
    match query.output:
        case Format.TABLE | Format.WIDE:
            shown = (
                [replace(c, spare=0) for c in columns] if query.columns else _shown(columns, query)
            )
            lines = table_lines(shown, answer.rows, page, header=not query.no_header)
            out.writelines(f"{line}\n" for line in lines)
        case Format.NAME:
            out.writelines(f"{sanitize(answer.name(row))}\n" for row in answer.rows)
        case Format.CSV:
            _write_csv(columns, answer.rows, query, out)
        case Format.JSONL:
            out.writelines(f"{dumps(row)}\n" for row in answer.plain(columns))
        case Format.JSON if not page.is_repeated:
            # One row per line: a diff of two lists shows the rows that differ.
            out.write(f'{{"schema": {dumps(answer.schema)}, "items": [')
            before = "\n  "
            for row in answer.plain(columns):
                out.write(f"{before}{dumps(row, separators=None)}")
                before = ",\n  "
            out.write("\n]}\n" if answer.rows else "]}\n")
        case _:
            _write_tree(
                {"schema": answer.schema, "items": [*answer.plain(columns)]}, query, page, out
            )


def _write_document(document: Document, query: Query, page: Page, out: TextIO) -> None:
    if query.columns:
        raise UsageError("--columns is for lists; this answer is a document")
    match query.output:
        case Format.TABLE | Format.WIDE:
            out.writelines(f"{line}\n" for line in _document_lines(document, query, page))
        case Format.NAME if document.name:
            out.write(f"{sanitize(document.name)}\n")
        case Format.NAME | Format.CSV:
            advice = "this answer takes table, wide, json, jsonl, yaml"
            raise UsageError(f"{query.output.value} is for lists; {advice}")
        case _:
            _write_tree(document.plain(), query, page, out)


def _write_csv(columns: Sequence[Column], rows: Sequence[Any], query: Query, out: TextIO) -> None:
    import csv

    writer = csv.writer(out, lineterminator="\n")
    if not query.no_header:
        writer.writerow([c.key for c in columns])
    writer.writerows(zip(*(map(_csv_cell, c.cells(rows)) for c in columns), strict=True))


FORMULA_STARTS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Spreadsheets compute cells that begin so, and users name their jobs: an apostrophe makes them text."""


def _csv_cell(value: Cell) -> str | int | float:
    if isinstance(value, str):
        text = sanitize(value)
        return f"'{text}" if text.lstrip().startswith(FORMULA_STARTS) else text
    if value is None:
        return ""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else dumps(value)


def _write_tree(tree: dict[str, Any], query: Query, page: Page, out: TextIO) -> None:
    if query.output is Format.YAML:
        import yaml

        out.write("---\n" if page.is_repeated else "")
        yaml.dump(
            json.loads(dumps(tree)),
            out,
            Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper),
            sort_keys=False,
        )
    elif page.is_repeated or query.output is Format.JSONL:
        out.write(f"{dumps(tree)}\n")
    else:
        out.write(f"{dumps(tree, indent=2, separators=None)}\n")


def dumps(tree: object, **form: Any) -> str:
    """Return JSON, compact by default, with null for what JSON cannot say: infinity and not-a-number."""
    form = {"separators": (",", ":")} | form
    try:
        return json.dumps(tree, allow_nan=False, **form)
    except ValueError:
        return json.dumps(
            json.loads(json.dumps(tree), parse_constant=lambda constant: None), **form
        )


def _shown(columns: Sequence[Column], query: Query) -> list[Column]:
    return [c for c in columns if c.level <= (query.output is Format.WIDE)]


def _document_lines(document: Document, query: Query, page: Page) -> list[str]:
    texts = {c.title.lower(): c.texts([document.of])[0] for c in _shown(document.facts, query)}
    facts = {title: text for title, text in texts.items() if text != "-"}
    indent = max(map(len, facts), default=0) + COLUMN_GAP
    room = 1_000_000 if page.width is None else max(page.width - indent, 20)
    lines = []
    for title, value in facts.items():
        first, *rest = wrapped(value, room)
        lines += [f"{title:<{indent}}{first}", *(" " * indent + line for line in rest)]
    for part in document.parts.values():
        if not part.title:
            continue
        heading = part.title if part.rows or ": " in part.title else f"{part.title}: none"
        lines += [""] if lines else []
        lines.append(_painted(heading, "bold" if page.color else ""))
        if part.rows:
            lines += table_lines(
                _shown(part.columns, query), part.rows, page, header=not query.no_header
            )
    return lines


# --------------------------------------------------------------------------------------------------------------
# tables Not by rich: ids are shortened in the middle, whole columns give way, and 10,000 rows must
# take tenths of a second.

COLUMN_GAP = 2
ELLIPSIS = "..."
COLORS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}


class _TableColumn:
    """Column of a table with its cells, the heading first, and their width."""

    def __init__(self, column: Column, rows: Sequence[Any], *, header: bool, color: bool) -> None:
        texts = column.texts(rows)
        self.column = column
        self.texts = [column.title] * header + texts
        self.empty = all(text == "-" for text in texts)
        self.width = max(map(text_width, self.texts), default=0)
        self.tints = None
        if color and column.tint:
            self.tints = [""] * header + [column.tint.get(column.of(row), "") for row in rows]

    def padded(self) -> list[str]:
        """Return the cells in the width, the lines of each separated by newlines."""
        column = self.column
        width = self.width
        is_amount = column.kind in ("integer", "number") and not column.key.endswith("at")  # a time
        pad = str.rjust if is_amount else str.ljust
        if (
            self.tints is None
            and all(map(str.isascii, self.texts))
            and max(map(len, self.texts), default=0) <= width
        ):
            return [pad(text, width) for text in self.texts]
        found = []
        for text, tint in zip(self.texts, self.tints or [""] * len(self.texts), strict=True):
            lines = (
                wrapped(text, width) if column.wrap else [shorten(text, width, tail=column.tail)]
            )
            found.append(
                "\n".join(
                    _painted(pad(line, width + len(line) - text_width(line)), tint)
                    for line in lines
                )
            )
        return found


def table_lines(
    columns: Sequence[Column], rows: Sequence[Any], page: Page, *, header: bool = True
) -> list[str]:
    """Return a table as lines; cells are shortened until it fits the page."""
    table = [_TableColumn(column, rows, header=header, color=page.color) for column in columns]
    if page.width is not None:
        table = _columns_with_room(table, page.width)
        _narrow(table, page.width)
    gap = " " * COLUMN_GAP
    blanks = [" " * column.width for column in table]
    lines = []
    for row in zip(*(column.padded() for column in table), strict=True):
        if "\n" not in (line := gap.join(row)):
            lines.append(line.rstrip())
            continue
        for parts in zip_longest(*(cell.split("\n") for cell in row)):
            line = gap.join(
                blank if part is None else part for part, blank in zip(parts, blanks, strict=True)
            )
            lines.append(line.rstrip())
    if header and page.color:
        lines[0] = _painted(lines[0], "bold")
    return lines


def _columns_with_room(table: Sequence[_TableColumn], width: int) -> list[_TableColumn]:
    """Return the columns to query.

    A column that may be spared is left out if it is empty or has no room: a sentence, if it could
    not even be wrapped; anything else, if another column would have to be cut.
    """
    kept = [each for each in table if not (each.column.spare and each.empty)]
    for spare in sorted(
        (each for each in kept if each.column.spare), key=lambda each: -each.column.spare
    ):
        needs = COLUMN_GAP * (len(kept) - 1)
        for each in kept:
            gives_way = each.column.wrap or (spare.column.wrap and each.column.least)
            needs += min(each.width, each.column.least) if gives_way else each.width
        if needs > width:
            kept.remove(spare)
    return kept


def _narrow(table: Sequence[_TableColumn], width: int) -> None:
    """Make a table fit: the widest columns that may be shortened give way first, ids last."""
    over = sum(each.width for each in table) + COLUMN_GAP * (len(table) - 1) - width
    for tails in (False, True):
        loose = [each for each in table if each.column.least and each.column.tail == tails]
        while over > 0 and (wide := [each for each in loose if each.width > each.column.least]):
            max(wide, key=lambda each: each.width).width -= 1
            over -= 1


def wrapped(text: str, width: int) -> list[str]:
    """Return ``text`` as lines of at most ``width`` columns."""
    found = []
    while text_width(text) > width:
        front = _front(text, width)
        at = front.rfind(" ") if " " in front[1:] else len(front)
        found.append(text[:at].rstrip())
        text = text[at:].lstrip()
    return [*found, text] if text or not found else found


def _painted(text: str, color: str) -> str:
    return f"\x1b[{COLORS[color]}m{text}\x1b[0m" if color else text


def shorten(text: str, width: int, *, tail: bool = False) -> str:
    """Return ``text`` in ``width`` columns, with dots for what is left out: at the end, or with ``tail`` inside."""
    if text_width(text) <= width:
        return text
    if width <= len(ELLIPSIS):
        return _front(text, width)
    keep = width - len(ELLIPSIS)
    if not tail:
        return _front(text, keep) + ELLIPSIS
    return _front(text, keep - keep // 2) + ELLIPSIS + _front(text[::-1], keep // 2)[::-1]


def text_width(text: str) -> int:
    """Return the columns that ``text`` takes on a terminal."""
    return len(text) if text.isascii() else sum(_char_widths(text))


def _char_widths(text: str) -> Iterator[int]:
    from rich.cells import cell_len

    return (1 if char.isascii() else cell_len(char) for char in text)


def _front(text: str, width: int) -> str:
    """Return the longest start of ``text`` that takes no more than ``width`` columns."""
    if text.isascii():
        return text[:width]
    return text[: sum(taken <= width for taken in accumulate(_char_widths(text)))]
