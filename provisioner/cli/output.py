"""Answers as values, rows with typed columns, and their forms: results on stdout, everything else on stderr."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from itertools import accumulate, zip_longest
from math import isfinite
from operator import attrgetter
from typing import Any, TextIO

from provisioner import formatting
from provisioner.cli.options import Exit, Format, Pick, Show, VerbError
from provisioner.formatting import iso, sanitize

Cell = str | int | float | bool | None | Sequence[Any] | Mapping[str, Any]
"""A JSON value."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a list, or one fact of a document.

    ``of`` gets the value of a row for machines: a function, or a dotted path of attributes, by default the key; it
    leads to None (to the empty text, in a column of texts that are never null) where a part of it is None. ``show``
    (of the row) or ``unit`` (of the value) makes the text for people.
    """

    key: str
    """Stable name in JSON, with the unit (``_s``, ``_at``, ``_mib``, ``gpu_milli``)."""
    doc: str
    of: Any = ""
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
    """Continues in further lines instead of being cut."""
    tail: bool = False
    """Shorten in the middle and keep the end, which distinguishes ids."""
    right: bool | None = None
    """By default numbers."""
    spare: int = 0
    """Left out of a table that has no room for it or nothing in it, the largest first. 0: never."""
    tint: Mapping[Any, str] | None = None
    """Colours by value."""
    choices: tuple[str, ...] = ()
    convert: Callable[[Any], Cell] | None = None
    """Makes the JSON value of what ``of`` gets."""

    def __post_init__(self) -> None:
        if self.level < 0:
            object.__setattr__(self, "level", 0 if self.head else 2)
        if self.right is None:
            object.__setattr__(self, "right", self.kind in ("integer", "number"))
        if isinstance(self.of, str):
            none = "" if self.kind == "string" and not self.null else None
            object.__setattr__(self, "of", _path_getter(self.of or self.key, none))

    def cells(self, rows: Sequence[Any]) -> list[Any]:
        """Return the values of ``rows`` for machines."""
        found = list(map(self.of, rows))
        return found if self.convert is None else list(map(self.convert, found))

    @property
    def title(self) -> str:
        return self.head or self.key.upper()

    def texts(self, rows: Sequence[Any]) -> list[str]:
        """Return the cells of ``rows`` for people: one clean line each, ``-`` if empty."""
        if self.show is not None:
            return [_text(self.show(row)) for row in rows]
        if self.unit is not None:
            return [_text(None if (value := self.of(row)) is None else self.unit(value)) for row in rows]
        return [_text(self.of(row)) for row in rows]


def _path_getter(path: str, none: str | None) -> Callable[[Any], Any]:
    if "." not in path:
        return attrgetter(path)
    names = path.split(".")

    def get(row: Any) -> Any:
        for name in names:
            if row is None:
                return none
            row = getattr(row, name)
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


def rounded(value: float | None) -> float | None:
    return round(value, 3) if value is not None and isfinite(value) else None


text = partial(Column)
words = partial(Column, level=0, wrap=True)
"""Sentences: never cut, continued in further lines where a table is too wide."""
whole = partial(Column, kind="integer")
number = partial(Column, kind="number")
flag = partial(Column, kind="boolean")
items = partial(Column, kind="array")
data = partial(Column, kind="object")
span_s = partial(Column, kind="number", null=True, unit=formatting.age, convert=rounded)
"""Durations in seconds; people get a short age."""


def age_s(key: str, doc: str, of: Any, now: float, **more: Any) -> Column:
    """Return a column of the time since a moment, in seconds; null where ``of`` is 0 (never)."""
    more = {"unit": lambda at: formatting.ago(at, now)} | more
    return number(key, doc, of, null=True, convert=lambda at: rounded(max(0.0, now - at)) if at else None, **more)


def time_at(key: str, doc: str, of: Any = "", **more: Any) -> Column:
    """Return a column of times; people get ISO-8601."""
    doc = f"{doc} Seconds since the epoch (UTC); null: never."
    more = {"unit": iso} | more
    return number(key, doc, of, null=True, right=False, convert=moment, **more)


def moment(value: float) -> float | None:
    """Return a time for machines: None for 0, which means never."""
    return value if value and isfinite(value) else None


def reason_data(reason: Any) -> Any:
    """Return a reason as JSON values."""
    from provisioner.reasons import Reason
    from provisioner.serialization import to_plain

    return None if reason is None else to_plain(reason, Reason)


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

    def plain(self, columns: Sequence[Column] | None = None) -> list[dict[str, Cell]]:
        """Return the rows as JSON values, by default of all columns."""
        columns = columns or self.columns
        keys = [column.key for column in columns]
        cells = zip(*(column.cells(self.rows) for column in columns), strict=True)
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


Answer = Listing | Document


def as_facts(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns of a list as the facts of a document: those with a title of a fact are for people."""
    return tuple(replace(c, level=0 if c.fact else 2, spare=0, head=c.fact or c.head) for c in columns)


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
            near = get_close_matches(name, list(known), n=1)
            advice = f"; did you mean {near[0]!r}?" if near else ""
            every = "columns: " + ", ".join(c.key for c in columns)
            raise VerbError(f"no column {name!r}{advice}", every, code=Exit.USAGE)
        found.append(known[name])
    return found


# ------------------------------------------------------------------------------------------------------------- present


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
    """Show what ``make`` answers; with ``--watch`` again and again until interrupted.

    With ``--watch`` a record that cannot be read for a while (a full disk, a new version) is only reported.
    """
    from provisioner.store import StoreError

    page = Page.of(show)
    while True:
        try:
            _present_once(make(), show, page)
        except StoreError as error:
            if not show.watch:
                raise
            note(_stamped(str(error)))
        if not show.watch:
            return
        time.sleep(show.interval)


def _present_once(answer: Answer, show: Show, page: Page) -> None:
    scope = answer.scope if show.output.for_people and not show.no_header else ""
    scope = _stamped(scope) if scope and show.watch else scope
    if show.watch and show.output.for_people and sys.stdout.isatty():
        sys.stdout.write("\x1b[H\x1b[2J" + _one_screen(answer, show, page, scope))
    else:
        write(answer, show, page, sys.stdout)
    sys.stdout.flush()
    if scope:
        note(scope)


def _stamped(scope: str) -> str:
    return f"{iso(time.time())}  {scope}"


_COLOR_CODE = re.compile(r"\x1b\[[0-9;]*m")


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
    chosen = [replace(c, spare=0) for c in chosen_columns(listing.columns, show.columns)] if show.columns else None
    columns = chosen or listing.columns
    match show.output:
        case Format.TABLE | Format.WIDE:
            _write_lines(_table(chosen or _for_people(listing, show), listing.rows, show, page), out)
        case Format.NAME:
            _write_lines([sanitize(listing.name(row)) for row in listing.rows], out)
        case Format.CSV:
            _write_csv(columns, listing.rows, show, out)
        case Format.JSONL:
            _write_lines(map(dumps, listing.plain(columns)), out)
        case Format.JSON if not show.watch:
            # One row per line: a diff of two lists shows the rows that differ.
            rows = ",\n  ".join(_encoded(row, _SPACED) for row in listing.plain(columns))
            body = f"\n  {rows}\n" if listing.rows else ""
            out.write(f'{{"schema": {_encoded(listing.schema, _SPACED)}, "items": [{body}]}}\n')
        case _:
            _write_tree({"schema": listing.schema, "items": listing.plain(columns)}, show, out)


def _write_lines(lines: Iterable[str], out: TextIO) -> None:
    out.write("".join(f"{line}\n" for line in lines))


def _for_people(listing: Listing, show: Show) -> list[Column]:
    return [c for c in listing.columns if c.level <= (0 if show.output is Format.TABLE else 1)]


def _table(columns: Sequence[Column], rows: Sequence[Any], show: Show, page: Page) -> list[str]:
    return table_lines(columns, rows, width=page.width, header=not show.no_header, color=page.color)


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


_COMPACT = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_SPACED = json.JSONEncoder(allow_nan=False)
_INDENTED = json.JSONEncoder(indent=2, allow_nan=False)


def dumps(tree: object, *, indent: bool = False) -> str:
    """Return JSON, with null for what JSON cannot say: infinity and not-a-number."""
    return _encoded(tree, _INDENTED if indent else _COMPACT)


def _encoded(tree: object, encoder: json.JSONEncoder) -> str:
    try:
        return encoder.encode(tree)
    except ValueError:
        return encoder.encode(json.loads(json.dumps(tree), parse_constant=lambda constant: None))


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
    columns = _for_people(document.facts, show)
    facts = [(c.title.lower(), c.texts(document.facts.rows)[0]) for c in columns]
    facts = [(title, text) for title, text in facts if text != "-"]
    indent = max((len(title) for title, _ in facts), default=0) + COLUMN_GAP
    lines = [line for title, value in facts for line in _fact_lines(title, value, indent, page.width)]
    for key, title in document.titles.items():
        part = document.parts[key]
        heading = title if part.rows or ": " in title else f"{title}: {part.unknown or 'none'}"
        lines += ["", _painted(heading, "bold" if page.color else "")]
        lines += _table(_for_people(part, show), part.rows, show, page) if part.rows else []
    return lines[1:] if lines and not facts else lines


def _fact_lines(title: str, value: str, indent: int, width: int | None) -> list[str]:
    room = 10_000 if width is None else max(width - indent, 20) // (1 if value.isascii() else 2)
    first, *rest = textwrap.wrap(value, room, break_on_hyphens=False) or [""]
    return [f"{title:<{indent}}{first}", *(" " * indent + line for line in rest)]


# -------------------------------------------------------------------------------------------------------------- tables
# Not by rich: ids are shortened in the middle, whole columns give way, and 10,000 rows must take tenths of a second.

COLUMN_GAP = 2
ELLIPSIS = "..."
COLORS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}


def table_lines(
    columns: Sequence[Column], rows: Sequence[Any], *, width: int | None, header: bool = True, color: bool = False
) -> list[str]:
    """Return a table as lines. With ``width`` cells are shortened until it fits; ``color``: with ANSI colours."""
    cells = [c.texts(rows) for c in columns]
    titles = [c.title if header else "" for c in columns]
    widths = [max(map(text_width, [title, *column])) for title, column in zip(titles, cells, strict=True)]
    if width is not None:
        kept = _columns_with_room(columns, cells, widths, width)
        columns, cells = [columns[i] for i in kept], [cells[i] for i in kept]
        titles, widths = [titles[i] for i in kept], [widths[i] for i in kept]
        widths = _fitted(columns, widths, width)
    shown = [_padded(c, column, has, rows, color) for c, column, has in zip(columns, cells, widths, strict=True)]
    gap, blanks = " " * COLUMN_GAP, [" " * has for has in widths]
    body = []
    for row in zip(*shown, strict=True):
        if "\n" not in (line := gap.join(row)):
            body.append(line.rstrip())
            continue
        for parts in zip_longest(*(cell.split("\n") for cell in row)):
            line = gap.join(blank if part is None else part for part, blank in zip(parts, blanks, strict=True))
            body.append(line.rstrip())
    if not header:
        return body
    head = [
        _padded(replace(c, wrap=False, tail=False), [t], has)[0]
        for c, t, has in zip(columns, titles, widths, strict=True)
    ]
    return [_painted(gap.join(head).rstrip(), "bold" if color else ""), *body]


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


def _padded(
    column: Column, texts: Sequence[str], width: int, rows: Sequence[Any] = (), color: bool = False
) -> list[str]:
    """Return the cells of a column in ``width``, the lines of each separated by newlines."""
    pad = str.rjust if column.right else str.ljust
    tint = column.tint.get if color and column.tint else None
    if tint is None and all(map(str.isascii, texts)) and max(map(len, texts), default=0) <= width:
        return [pad(text, width) for text in texts]
    tints = [tint(column.of(row), "") for row in rows] if tint else [""] * len(texts)
    return [
        "\n".join(
            _painted(pad(line, width + len(line) - text_width(line)), color)
            for line in _cell_lines(column, text, width)
        )
        for text, color in zip(texts, tints, strict=True)
    ]


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
