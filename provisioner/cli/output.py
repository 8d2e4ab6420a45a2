"""Write an answer in the form that was asked for: results on stdout, everything else on stderr."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import isfinite
from typing import Any, TextIO

from provisioner.cli.columns import Cell, Column, Document, Listing
from provisioner.cli.options import Exit, Format, Pick, Show, VerbError
from provisioner.formatting import iso, sanitize

Answer = Listing | Document

COLUMN_GAP = 2
ELLIPSIS = "..."
COLORS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}
_COLOR_CODE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Page:
    """Size and colours of what people read."""

    width: int | None
    """None: as wide as the widest row. So is a table in a pipe: `grep` and `awk` must get whole rows."""
    color: bool

    @classmethod
    def of(cls, show: Show) -> Page:
        tty = sys.stdout.isatty()
        color = tty and not show.no_color and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        width = shutil.get_terminal_size().columns if tty else _columns_variable()
        return cls(None if show.output is Format.WIDE else width, color)


def _columns_variable() -> int | None:
    wanted = os.environ.get("COLUMNS", "")
    return int(wanted) if wanted.isascii() and wanted.isdecimal() and 0 < int(wanted) < 10_000 else None


def note(*lines: str) -> None:
    """Write lines for the person at the terminal to stderr."""
    for line in lines:
        print(sanitize(line), file=sys.stderr)


def present(show: Show, make: Callable[[], Answer]) -> None:
    """Show what ``make`` answers; with ``--watch`` again and again until interrupted."""
    page = Page.of(show)
    while True:
        answer = _answer(make, show)
        if answer is None:
            time.sleep(show.interval)
            continue
        scope = answer.scope if show.output.for_people and not show.no_header else ""
        scope = _stamped(scope) if scope and show.watch else scope
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
    """Return the top of the answer, as much as fits on the terminal above its line of scope."""
    columns, rows = shutil.get_terminal_size()
    out = io.StringIO()
    write(answer, show, page, out)
    lines = out.getvalue().splitlines(keepends=True)
    heights = [_terminal_rows(_COLOR_CODE.sub("", line.rstrip("\n")), columns) for line in lines]
    room = rows - 1 - (_terminal_rows(scope, columns) if scope else 0)
    if sum(heights) <= room:
        return "".join(lines)
    kept = sum(total < room for total in accumulate(heights))  # one row is for the last line
    return "".join(lines[:kept]) + f"... {len(lines) - kept} more lines: enlarge the terminal\n"


def _terminal_rows(line: str, columns: int) -> int:
    return max(1, -(-text_width(line) // max(columns, 1)))


def _answer(make: Callable[[], Answer], show: Show) -> Answer | None:
    """Return what ``make`` answers.

    With ``--watch`` a record that cannot be read for a while (a full disk, a new version) is reported and None is
    returned.
    """
    from provisioner.store import StoreError

    try:
        return make()
    except StoreError as error:
        if not show.watch:
            raise
        note(_stamped(str(error)))
        return None


def _stamped(scope: str) -> str:
    return f"{iso(time.time())}  {scope}"


def picked(listing: Listing, pick: Pick) -> Listing:
    """Return ``listing`` sorted and cut as asked. Rows without a value come last in both orders."""
    rows = list(listing.rows)
    for key in reversed([k for k in (pick.sort or "").split(",") if k]):
        (column,) = chosen_columns(listing.columns, key.removeprefix("-"))
        valued = list(zip(column.cells(rows), rows, strict=True))
        known = [v for v in valued if v[0] is not None]
        known.sort(key=lambda v: _sort_key(v[0]), reverse=key.startswith("-"))
        rows = [row for _, row in known] + [row for value, row in valued if value is None]
    scope = listing.scope
    if pick.limit is not None and len(rows) > pick.limit:
        scope = f"{scope}; {pick.limit} of {len(rows)} shown" if scope else scope
        rows = rows[: pick.limit]
    return replace(listing, rows=rows, scope=scope)


def _sort_key(value: Cell) -> tuple[int, float, str]:
    if isinstance(value, bool | int | float):
        return (0, float(value), "")
    return (1, 0.0, str(value))


def chosen_columns(columns: Sequence[Column], names: str) -> list[Column]:
    """Return the columns that are named, by JSON key or heading. Raises :class:`VerbError` with the nearest name."""
    known = {c.title.lower(): c for c in columns} | {c.key: c for c in columns}
    found = []
    for name in filter(None, (n.strip().lower() for n in names.split(","))):
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, list(known), n=1)
            advice = f"; did you mean {near[0]!r}?" if near else ""
            every = "columns: " + ", ".join(c.key for c in columns)
            raise VerbError(f"no column {name!r}{advice}", every, code=Exit.USAGE)
        found.append(known[name])
    return found


# --------------------------------------------------------------------------------------------------------------- forms


def write(answer: Answer, show: Show, page: Page, out: TextIO) -> None:
    """Write ``answer`` in the form of ``show`` to ``out``."""
    if isinstance(answer, Listing):
        _write_listing(answer, show, page, out)
    elif answer.main and (show.columns or show.output in (Format.CSV, Format.NAME, Format.JSONL)):
        _write_listing(answer.parts[answer.main], show, page, out)
    elif show.columns:
        raise VerbError("--columns is for lists; this answer is a document", code=Exit.USAGE)
    else:
        _write_document(answer, show, page, out)


def _write_listing(listing: Listing, show: Show, page: Page, out: TextIO) -> None:
    columns = [replace(c, spare=0) for c in chosen_columns(listing.columns, show.columns)] if show.columns else None
    shown = columns or listing.columns
    match show.output:
        case Format.TABLE | Format.WIDE:
            _write_lines(_table(columns or _for_people(listing, show), listing.rows, show, page), out)
        case Format.NAME:
            _write_lines([sanitize(listing.name(row)) for row in listing.rows], out)
        case Format.CSV:
            _write_csv(shown, listing.rows, show, out)
        case Format.JSONL:
            _write_lines(_json_lines(shown, listing.rows, _COMPACT), out)
        case Format.JSON:
            out.write(_json_list(listing, shown, _COMPACT if show.watch else _SPACED) + "\n")
        case Format.YAML:
            _write_tree(json.loads(_json_list(listing, shown, _COMPACT)), show, out)


def _write_lines(lines: Sequence[str], out: TextIO) -> None:
    out.write("".join(f"{line}\n" for line in lines))


def _for_people(listing: Listing, show: Show) -> list[Column]:
    return [c for c in listing.columns if c.level <= (0 if show.output is Format.TABLE else 1)]


def _table(columns: Sequence[Column], rows: Sequence[Any], show: Show, page: Page) -> list[str]:
    return table_lines(columns, rows, width=page.width, header=not show.no_header, color=page.color)


def _json_list(listing: Listing, columns: Sequence[Column], encoder: json.JSONEncoder) -> str:
    """Return a list as JSON. Spaced, with one row per line: a diff of two lists shows the rows that differ."""
    lines = _json_lines(columns, listing.rows, encoder)
    head, items = encoder.encode({"schema": listing.schema}), encoder.encode("items")
    if encoder is _COMPACT:
        return f"{head[:-1]},{items}:[{','.join(lines)}]}}"
    body = ",\n  ".join(lines)
    return f"{head[:-1]}, {items}: [" + (f"\n  {body}\n" if lines else "") + "]}"


def _json_lines(columns: Sequence[Column], rows: Sequence[Any], encoder: json.JSONEncoder) -> list[str]:
    """Return each row as JSON. Made column by column, which for many rows takes a third of the time."""
    names = [encoder.encode(c.key).replace("%", "%%") for c in columns]
    form = "{" + encoder.item_separator.join(f"{name}{encoder.key_separator}%s" for name in names) + "}"
    return [form % cells for cells in zip(*(_json_cells(c, rows, encoder) for c in columns), strict=True)]


def _json_cells(column: Column, rows: Sequence[Any], encoder: json.JSONEncoder) -> list[str]:
    cells = column.cells(rows)
    if not cells or column.kind in ("array", "object"):
        return [_encoded(cell, encoder) for cell in cells]
    # One call for all: within a cell that is no list, a newline is always escaped.
    return _encoded(cells, _BY_LINES)[1:-1].split("\n")


def _write_csv(columns: Sequence[Column], rows: Sequence[Any], show: Show, out: TextIO) -> None:
    import csv

    writer = csv.writer(out, lineterminator="\n")
    if not show.no_header:
        writer.writerow([c.key for c in columns])
    writer.writerows(zip(*(map(_csv_cell, c.cells(rows)) for c in columns), strict=True))


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
    """Return JSON, with null for what JSON cannot say: infinity and not-a-number."""
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
        case Format.TABLE | Format.WIDE:
            _write_lines(_document_lines(document, show, page), out)
        case Format.NAME | Format.CSV:
            (name,) = [sanitize(document.facts.name(row)) for row in document.facts.rows]
            if show.output is Format.CSV or not name:
                advice = "this answer takes table, wide, json, jsonl, yaml"
                raise VerbError(f"{show.output.value} is for lists; {advice}", code=Exit.USAGE)
            out.write(f"{name}\n")


def _document_lines(document: Document, show: Show, page: Page) -> list[str]:
    (row,) = document.facts.rows
    facts = [(c.title.lower(), c.text(row)) for c in _for_people(document.facts, show)]
    facts = [(title, text) for title, text in facts if text != "-"]
    indent = max((len(title) for title, _ in facts), default=0) + COLUMN_GAP
    text = [line for title, value in facts for line in _fact_lines(title, value, indent, page.width)]
    for key, title in document.titles.items():
        part = document.parts[key]
        body = _table(_for_people(part, show), part.rows, show, page)
        heading = title if part.rows or ": " in title else f"{title}: {part.unknown or 'none'}"
        text += ["", _painted(heading, "bold" if page.color else "")]
        text += body if part.rows else []
    return text[1:] if text and not facts else text


def _fact_lines(title: str, value: str, indent: int, width: int | None) -> list[str]:
    import textwrap

    room = 10_000 if width is None else max(width - indent, 20) // (1 if value.isascii() else 2)
    first, *rest = textwrap.wrap(value, room, break_on_hyphens=False) or [""]
    return [f"{title:<{indent}}{first}", *(" " * indent + line for line in rest)]


# -------------------------------------------------------------------------------------------------------------- tables
# Not by rich: ids are shortened in the middle, whole columns give way, and 10,000 rows must take tenths of a second.

Layers = list[list[str]]
"""One column of a table: the first lines of all cells, the second lines, ... (a missing line is blank)."""


def table_lines(
    columns: Sequence[Column], rows: Sequence[Any], *, width: int | None, header: bool = True, color: bool = False
) -> list[str]:
    """Return a table as lines. With ``width`` cells are shortened until it fits; ``color``: with ANSI colours."""
    cells = [c.texts(rows) for c in columns]
    titles = [c.title if header else "" for c in columns]
    wants = [_widest([title, *column]) for title, column in zip(titles, cells, strict=True)]
    if width is not None:
        kept = _columns_with_room(columns, cells, wants, width)
        columns, cells = [columns[i] for i in kept], [cells[i] for i in kept]
        titles, wants = [titles[i] for i in kept], [wants[i] for i in kept]
    widths = wants if width is None else _fitted(columns, wants, width)
    layers = [
        _padded([column], has, c.right) if want <= has else _wrapped(c, column, has)
        for c, column, want, has in zip(columns, cells, wants, widths, strict=True)
    ]
    if color:
        layers = [_tinted(c, found, rows) for c, found in zip(columns, layers, strict=True)]
    body = _joined(layers, widths)
    if not header:
        return body
    head = [_pad(shorten(t, has), has, c.right) for t, has, c in zip(titles, widths, columns, strict=True)]
    first = (" " * COLUMN_GAP).join(head).rstrip()
    return [f"\x1b[1m{first}\x1b[0m" if color else first, *body]


def _columns_with_room(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], wants: Sequence[int], width: int
) -> list[int]:
    """Return the numbers of the columns to show.

    A column that may be spared is left out if it is empty or has no room: a sentence, if it could not even be wrapped;
    anything else, if another column would have to be cut.
    """
    kept = [i for i, c in enumerate(columns) if not c.spare or any(cell != "-" for cell in cells[i])]
    for i in sorted((i for i in kept if columns[i].spare), key=lambda i: -columns[i].spare):
        needs = [
            min(wants[k], columns[k].least) if columns[k].wrap or (columns[i].wrap and columns[k].least) else wants[k]
            for k in kept
        ]
        if sum(needs) + COLUMN_GAP * (len(kept) - 1) > width:
            kept.remove(i)
    return kept


def _fitted(columns: Sequence[Column], wants: Sequence[int], width: int) -> list[int]:
    """Return widths that fit ``width``: the widest columns that may be shortened give way first, ids last."""
    widths = list(wants)
    over = sum(widths) + COLUMN_GAP * (len(widths) - 1) - width
    for tails in (False, True):
        loose = [i for i, c in enumerate(columns) if c.least and c.tail == tails]
        while over > 0:
            widest = max((i for i in loose if widths[i] > columns[i].least), key=widths.__getitem__, default=None)
            if widest is None:
                break
            widths[widest] -= 1
            over -= 1
    return widths


def _joined(columns: Sequence[Layers], widths: Sequence[int]) -> list[str]:
    gap, height = " " * COLUMN_GAP, max(map(len, columns), default=0)
    if height == 1:
        return [gap.join(row).rstrip() for row in zip(*(layers[0] for layers in columns), strict=True)]
    blanks = [" " * has for has in widths]
    body = []
    for i in range(len(columns[0][0])):
        for k in range(height):
            parts = [c[k][i] if k < len(c) else blank for c, blank in zip(columns, blanks, strict=True)]
            line = gap.join(parts).rstrip()
            if line or not k:
                body.append(line)
    return body


def _wrapped(column: Column, texts: Sequence[str], width: int) -> Layers:
    blocks = [_cell_lines(column, text, width) for text in texts]
    height = max(map(len, blocks), default=1)
    layers = [[block[k] if k < len(block) else "" for block in blocks] for k in range(height)]
    return _padded(layers, width, column.right)


def _cell_lines(column: Column, text: str, width: int) -> list[str]:
    if text_width(text) <= width:
        return [text]
    if not column.wrap:
        return [shorten(text, width, tail=column.tail)]
    found = []
    while text_width(text) > width:
        front = _front(text, width)
        at = front.rfind(" ") if " " in front[1:] else len(front)
        found.append(text[:at].rstrip())
        text = text[at:].lstrip()
    return [*found, text] if text else found


def _padded(layers: Layers, width: int, right: bool) -> Layers:
    return [
        [text.rjust(width) if right else text.ljust(width) for text in layer]
        if all(map(str.isascii, layer))
        else [_pad(text, width, right) for text in layer]
        for layer in layers
    ]


def _pad(text: str, width: int, right: bool) -> str:
    blank = " " * (width - text_width(text))
    return blank + text if right else text + blank


def _tinted(column: Column, layers: Layers, rows: Sequence[Any]) -> Layers:
    if column.tint is None:
        return layers
    tints = [column.tint(row) for row in rows]
    return [[_painted(text, tint) for text, tint in zip(layer, tints, strict=True)] for layer in layers]


def _painted(text: str, color: str) -> str:
    return f"\x1b[{COLORS[color]}m{text}\x1b[0m" if color else text


def _widest(texts: Sequence[str]) -> int:
    return max(map(len if all(map(str.isascii, texts)) else text_width, texts))


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
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _front(text: str, width: int) -> str:
    if text.isascii():
        return text[:width]
    taken, kept = 0, []
    for char in text:
        taken += _char_width(char)
        if taken > width:
            break
        kept.append(char)
    return "".join(kept)
