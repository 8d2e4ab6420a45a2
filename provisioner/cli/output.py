"""Write an answer in the form that was asked for: results on stdout, everything else on stderr."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import isfinite
from typing import Any, TextIO, TypeVar

from provisioner.cli import table
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.forms import Format, Pick, Show
from provisioner.cli.listing import Cell, Column, Document, Listing
from provisioner.formatting import iso, sanitize

Row = TypeVar("Row")
Answer = Listing[Any] | Document


@dataclass(frozen=True, slots=True)
class Page:
    """Where and how people read."""

    width: int | None
    """Columns; None: as wide as the widest row. So is a table in a pipe, for `grep` and `awk` must get whole rows."""
    color: bool

    @classmethod
    def of(cls, show: Show) -> Page:
        tty = sys.stdout.isatty()
        color = tty and not show.no_color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        width = shutil.get_terminal_size().columns if tty else _columns_wanted()
        return cls(None if show.output is Format.WIDE else width, color)


def _columns_wanted() -> int | None:
    """Return the width that COLUMNS asks for, None without one."""
    wanted = os.environ.get("COLUMNS", "")
    return int(wanted) if wanted.isascii() and wanted.isdecimal() and 0 < int(wanted) < 10_000 else None


def note(*lines: str) -> None:
    """Tell the person at the terminal, on stderr."""
    for line in lines:
        print(sanitize(line), file=sys.stderr)


def present(show: Show, make: Callable[[], Answer]) -> None:
    """Show what ``make`` answers; with ``--watch`` again and again until interrupted."""
    page = Page.of(show)
    while True:
        answer = _made(make, show)
        if answer is None:
            time.sleep(show.interval)
            continue
        scope = answer.scope if show.output.for_people and not show.no_header else ""
        scope = _stamp(scope) if scope and show.watch else scope
        if show.watch and show.output.for_people and sys.stdout.isatty():
            sys.stdout.write("\x1b[H\x1b[2J" + _one_screen(answer, show, page, scope))
        else:
            write(answer, show, page, sys.stdout)
        sys.stdout.flush()
        if scope:
            note(scope)
        if not show.watch:
            return
        time.sleep(show.interval)


def _one_screen(answer: Answer, show: Show, page: Page, scope: str) -> str:
    """Return the answer as far as it fits on the terminal above its line of scope: the top is kept."""
    columns, rows = shutil.get_terminal_size()
    out = io.StringIO()
    write(answer, show, page, out)
    lines = out.getvalue().splitlines(keepends=True)
    heights = [_rows_of(_ANSI.sub("", line.rstrip("\n")), columns) for line in lines]
    room = rows - 1 - (_rows_of(scope, columns) if scope else 0)
    if sum(heights) <= room:
        return "".join(lines)
    kept = sum(total < room for total in accumulate(heights))  # one row is for the last line
    return "".join(lines[:kept]) + f"... {len(lines) - kept} more lines: enlarge the terminal\n"


def _rows_of(line: str, columns: int) -> int:
    return max(1, -(-table.wide(line) // max(columns, 1)))


_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def _made(make: Callable[[], Answer], show: Show) -> Answer | None:
    """Return what ``make`` answers. With ``--watch`` a record that cannot be read for a while (a full disk, a new
    version) ends nothing: it is reported, and None is returned."""
    from provisioner.store import StoreError

    try:
        return make()
    except StoreError as error:
        if not show.watch:
            raise
        note(_stamp(str(error)))
        return None


def _stamp(scope: str) -> str:
    return f"{iso(time.time())}  {scope}"


def picked(listing: Listing[Row], pick: Pick) -> Listing[Row]:
    """``listing`` sorted and cut as asked. What has no value comes last, either way round."""
    rows = list(listing.rows)
    for key in reversed([k for k in (pick.sort or "").split(",") if k]):
        (column,) = chosen(listing.columns, key.removeprefix("-"))
        down = key.startswith("-")
        valued = [(column.of(row), row) for row in rows]
        known = [v for v in valued if v[0] is not None]
        known.sort(key=lambda v: _sortable(v[0]), reverse=down)
        rows = [row for _, row in known] + [row for value, row in valued if value is None]
    scope = listing.scope
    if pick.limit is not None and len(rows) > pick.limit:
        scope = f"{scope}; {pick.limit} of {len(rows)} shown" if scope else scope
        rows = rows[: pick.limit]
    return Listing(listing.schema, listing.columns, rows, listing.name, scope)


def _sortable(value: Cell) -> tuple[int, float, str]:
    match value:
        case bool() | int() | float():
            return (0, float(value), "")
        case _:
            return (1, 0.0, str(value))


def chosen(columns: Sequence[Column[Row]], names: str) -> list[Column[Row]]:
    """The columns that are named, by JSON key or by table heading. Raises :class:`Failure` with the nearest name."""
    known = {c.key: c for c in columns} | {
        c.title.lower(): c for c in columns if c.title.lower() not in {d.key for d in columns}
    }
    found = []
    for name in filter(None, (n.strip().lower() for n in names.split(","))):
        if name not in known:
            raise Failure(f"no column {name!r}{_nearest(name, list(known))}", _all_of(columns), code=Exit.USAGE)
        found.append(known[name])
    return found


def _nearest(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _all_of(columns: Sequence[Column[Row]]) -> str:
    return "columns: " + ", ".join(c.key for c in columns)


# --------------------------------------------------------------------------------------------------------------- forms


def write(answer: Answer, show: Show, page: Page, out: TextIO) -> None:
    """``answer`` in the form of ``show`` on ``out``."""
    if isinstance(answer, Listing):
        _write_listing(answer, show, page, out)
    elif answer.main and (show.columns or show.output in (Format.CSV, Format.NAME, Format.JSONL)):
        _write_listing(answer.parts[answer.main], show, page, out)
    elif show.columns:
        raise Failure("--columns is for lists; this answer is a document", code=Exit.USAGE)
    else:
        _write_document(answer, show, page, out)


def _write_listing(listing: Listing[Any], show: Show, page: Page, out: TextIO) -> None:
    columns = [replace(c, spare=0) for c in chosen(listing.columns, show.columns)] if show.columns else None
    match show.output:
        case Format.TABLE | Format.WIDE:
            level = 0 if show.output is Format.TABLE else 1
            shown = columns or [c for c in listing.columns if c.level <= level]
            text = table.lines(shown, listing.rows, width=page.width, header=not show.no_header, color=page.color)
            out.write("".join(f"{line}\n" for line in text))
        case Format.NAME:
            out.write("".join(f"{sanitize(listing.name(row))}\n" for row in listing.rows))
        case Format.CSV:
            _write_csv(columns or listing.columns, listing.rows, show, out)
        case Format.JSONL:
            out.write("".join(f"{line}\n" for line in _json_lines(listing, columns, _COMPACT)))
        case Format.JSON if show.watch:
            out.write(f"{_json_tree(listing, columns, _COMPACT)}\n")
        case Format.JSON:
            out.write(f"{_json_tree(listing, columns, _SPACED)}\n")
        case Format.YAML:
            _write_tree(json.loads(_json_tree(listing, columns, _COMPACT)), show, out)


def _json_tree(listing: Listing[Any], columns: Sequence[Column[Any]] | None, encoder: json.JSONEncoder) -> str:
    """A list as JSON. Spaced, with one row per line: a diff of two lists shows the rows that differ."""
    lines = _json_lines(listing, columns, encoder)
    head, items = encoder.encode({"schema": listing.schema}), encoder.encode("items")
    if encoder is _COMPACT:
        return f"{head[:-1]},{items}:[{','.join(lines)}]}}"
    body = ",\n  ".join(lines)
    return f"{head[:-1]}, {items}: [" + (f"\n  {body}\n" if lines else "") + "]}"


def _json_lines(listing: Listing[Any], columns: Sequence[Column[Any]] | None, encoder: json.JSONEncoder) -> list[str]:
    """Each row as JSON. Made column by column, which for many rows takes a third of the time."""
    shown = columns or listing.columns
    names = [encoder.encode(c.key).replace("%", "%%") for c in shown]
    form = "{" + encoder.item_separator.join(f"{name}{encoder.key_separator}%s" for name in names) + "}"
    return [form % cells for cells in zip(*(_json_cells(c, listing.rows, encoder) for c in shown), strict=True)]


def _json_cells(column: Column[Any], rows: Sequence[Any], encoder: json.JSONEncoder) -> list[str]:
    cells = column.cells(rows)
    if not cells or column.kind in ("array", "object"):
        return [_encoded(cell, encoder) for cell in cells]
    # One call for all: within a cell that is no list, a newline is always escaped.
    return _encoded(cells, _BY_LINES)[1:-1].split("\n")


def _write_csv(columns: Sequence[Column[Any]], rows: Sequence[Any], show: Show, out: TextIO) -> None:
    import csv

    writer = csv.writer(out, lineterminator="\n")
    if not show.no_header:
        writer.writerow([c.key for c in columns])
    for row in rows:
        writer.writerow([_csv_cell(c.of(row)) for c in columns])


def _csv_cell(value: Cell) -> str | int | float:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return sanitize(value)
        case int() | float():
            return value
        case _:
            return dumps(value)


def _write_tree(tree: dict[str, Any], show: Show, out: TextIO) -> None:
    if show.output is Format.YAML:
        import yaml

        out.write("---\n" if show.watch else "")
        yaml.dump(json.loads(dumps(tree)), out, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
    else:
        out.write(dumps(tree, indent=not show.watch) + "\n")


def dumps(tree: object, *, indent: bool = False) -> str:
    """JSON, with null for what JSON cannot say: infinity and not-a-number."""
    return _encoded(tree, _INDENTED if indent else _COMPACT)


def _encoded(tree: object, encoder: json.JSONEncoder) -> str:
    try:
        return encoder.encode(tree)
    except ValueError:
        return encoder.encode(_finite(tree))


_COMPACT = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_SPACED = json.JSONEncoder(allow_nan=False)
_BY_LINES = json.JSONEncoder(separators=("\n", ":"), allow_nan=False)
_INDENTED = json.JSONEncoder(indent=2, allow_nan=False)


def _finite(tree: object) -> object:
    match tree:
        case float():
            return tree if isfinite(tree) else None
        case dict():
            return {key: _finite(value) for key, value in tree.items()}
        case list() | tuple():
            return [_finite(value) for value in tree]
        case _:
            return tree


def _write_document(document: Document, show: Show, page: Page, out: TextIO) -> None:
    match show.output:
        case Format.JSON | Format.YAML:
            _write_tree(document.plain(), show, out)
        case Format.JSONL:
            out.write(dumps(document.plain()) + "\n")
        case Format.NAME:
            (name,) = [sanitize(document.facts.name(row)) for row in document.facts.rows]
            if not name:
                raise Failure("name is for lists; this answer takes table, wide, json, jsonl, yaml", code=Exit.USAGE)
            out.write(f"{name}\n")
        case Format.CSV:
            raise Failure("csv is for lists; this answer takes table, wide, json, jsonl, yaml", code=Exit.USAGE)
        case Format.TABLE | Format.WIDE:
            out.write("".join(f"{line}\n" for line in _text(document, show, page)))


def _text(document: Document, show: Show, page: Page) -> list[str]:
    level = 0 if show.output is Format.TABLE else 1
    (row,) = document.facts.rows
    facts = [(c.title.lower(), c.text(row)) for c in document.facts.columns if c.level <= level]
    facts = [(title, text) for title, text in facts if text != "-"]
    indent = max((len(title) for title, _ in facts), default=0) + table.GAP
    text = [line for title, value in facts for line in _fact(title, value, indent, page.width)]
    for key, title in document.titles.items():
        part = document.parts[key]
        shown = [c for c in part.columns if c.level <= level]
        body = table.lines(shown, part.rows, width=page.width, header=not show.no_header, color=page.color)
        heading = title if part.rows or ": " in title else f"{title}: {part.unknown or 'none'}"
        text += ["", table.paint(heading, "bold" if page.color else "")]
        text += body if part.rows else []
    return text[1:] if text and not facts else text


def _fact(title: str, value: str, indent: int, width: int | None) -> list[str]:
    import textwrap

    room = 10_000 if width is None else max(width - indent, 20) // (1 if value.isascii() else 2)
    first, *rest = textwrap.wrap(value, room, break_on_hyphens=False) or [""]
    return [f"{title:<{indent}}{first}", *(" " * indent + line for line in rest)]
