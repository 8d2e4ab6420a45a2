"""Answers as values, rows with typed columns, and their forms: results on stdout, everything else on stderr."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def age_s(key: str, doc: str, of: Any, now: float, **more: Any) -> Column:
    """Return a column of the time since a moment, in seconds; null where ``of`` is 0 (never)."""
    more = {"unit": lambda at: formatting.ago(at, now)} | more
    return number(key, doc, of, null=True, convert=lambda at: rounded(max(0.0, now - at)) if at else None, **more)


def time_at(key: str, doc: str, of: Any = "", **more: Any) -> Column:
    """Return a column of times: seconds since the epoch, null for 0 (never); people get ISO-8601."""
    doc = f"{doc} Seconds since the epoch (UTC); null: never."
    more = {"unit": iso} | more
    return number(key, doc, of, null=True, convert=lambda at: at if at and isfinite(at) else None, **more)


def reason_data(reason: Any) -> Any:
    """Return a reason as JSON values."""
    from provisioner.reasons import Reason
    from provisioner.serialization import to_plain

    return None if reason is None else to_plain(reason, Reason)


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


def _sort_key(value: Cell) -> tuple[float, str]:
    return (float(value), "") if isinstance(value, bool | int | float) else (0.0, str(value))


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
        plain = show.no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        width = shutil.get_terminal_size((0, 0)).columns or None  # COLUMNS, or that of a terminal
        return cls(None if show.output is Format.WIDE else width, sys.stdout.isatty() and not plain)


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
            note(f"{iso(time.time())}  {error}")
        if not show.watch:
            return
        time.sleep(show.interval)


def _present_once(answer: Answer, show: Show, page: Page) -> None:
    scope = answer.scope if show.output.for_people and not show.no_header else ""
    if show.watch and scope:
        scope = f"{iso(time.time())}  {scope}"
    written = io.StringIO()
    write(answer, show, page, written)
    text = written.getvalue()
    if show.watch and show.output.for_people and sys.stdout.isatty():
        text = "\x1b[H\x1b[2J" + _one_screen(text, scope)
    sys.stdout.write(text)
    sys.stdout.flush()
    if scope:
        note(scope)


_COLOR_CODE = re.compile(r"\x1b\[[0-9;]*m")


def _one_screen(text: str, scope: str) -> str:
    """Return the top of ``text``, as much as fits on the terminal above its line of scope."""
    columns, rows = shutil.get_terminal_size()

    def height(line: str) -> int:
        return max(1, -(-text_width(_COLOR_CODE.sub("", line)) // columns))

    lines = text.splitlines(keepends=True)
    heights = [height(line.rstrip("\n")) for line in lines]
    room = rows - 1 - (height(scope) if scope else 0)
    if sum(heights) <= room:
        return text
    kept = sum(total < room for total in accumulate(heights))  # one row is for the last line
    return "".join(lines[:kept]) + f"... {len(lines) - kept} more lines: enlarge the terminal\n"


# --------------------------------------------------------------------------------------------------------------- forms


def write(answer: Answer, show: Show, page: Page, out: TextIO) -> None:
    """Write ``answer`` in the form of ``show`` to ``out``."""
    if isinstance(answer, Document):
        if not answer.main or not (show.columns or show.output in (Format.CSV, Format.NAME, Format.JSONL)):
            _write_document(answer, show, page, out)
            return
        answer = answer.parts[answer.main]
    columns = chosen_columns(answer.columns, show.columns) if show.columns else answer.columns
    match show.output:
        case Format.TABLE | Format.WIDE:
            lines = _table(answer, show, page, [replace(c, spare=0) for c in columns] if show.columns else None)
            out.writelines(f"{line}\n" for line in lines)
        case Format.NAME:
            out.writelines(f"{sanitize(answer.name(row))}\n" for row in answer.rows)
        case Format.CSV:
            _write_csv(columns, answer.rows, show, out)
        case Format.JSONL:
            out.writelines(f"{dumps(row)}\n" for row in answer.plain(columns))
        case Format.JSON if not show.watch:
            # One row per line: a diff of two lists shows the rows that differ.
            rows = ",\n  ".join(dumps(row, separators=None) for row in answer.plain(columns))
            body = f"\n  {rows}\n" if answer.rows else ""
            out.write(f'{{"schema": {dumps(answer.schema)}, "items": [{body}]}}\n')
        case _:
            _write_tree({"schema": answer.schema, "items": answer.plain(columns)}, show, out)


def _write_document(document: Document, show: Show, page: Page, out: TextIO) -> None:
    if show.columns:
        raise VerbError("--columns is for lists; this answer is a document", code=Exit.USAGE)
    name = sanitize(document.facts.name(document.facts.rows[0]))
    match show.output:
        case Format.TABLE | Format.WIDE:
            out.writelines(f"{line}\n" for line in _document_lines(document, show, page))
        case Format.NAME if name:
            out.write(f"{name}\n")
        case Format.NAME | Format.CSV:
            advice = "this answer takes table, wide, json, jsonl, yaml"
            raise VerbError(f"{show.output.value} is for lists; {advice}", code=Exit.USAGE)
        case _:
            _write_tree(document.plain(), show, out)


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
        case str():
            return sanitize(value)
        case int() | float() if not isinstance(value, bool):
            return value
        case _:
            return dumps(value)


def _write_tree(tree: dict[str, Any], show: Show, out: TextIO) -> None:
    if show.output is Format.YAML:
        import yaml

        out.write("---\n" if show.watch else "")
        yaml.dump(json.loads(dumps(tree)), out, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
    elif show.watch or show.output is Format.JSONL:
        out.write(f"{dumps(tree)}\n")
    else:
        out.write(f"{dumps(tree, indent=2, separators=None)}\n")


def dumps(tree: object, **form: Any) -> str:
    """Return JSON, compact by default, with null for what JSON cannot say: infinity and not-a-number."""
    form = {"separators": (",", ":")} | form
    try:
        return json.dumps(tree, allow_nan=False, **form)
    except ValueError:
        return json.dumps(json.loads(json.dumps(tree), parse_constant=lambda constant: None), **form)


def _table(listing: Listing, show: Show, page: Page, columns: Sequence[Column] | None = None) -> list[str]:
    if columns is None:
        columns = _for_people(listing, show)
    return table_lines(columns, listing.rows, width=page.width, header=not show.no_header, color=page.color)


def _for_people(listing: Listing, show: Show) -> list[Column]:
    return [c for c in listing.columns if c.level <= (show.output is Format.WIDE)]


def _document_lines(document: Document, show: Show, page: Page) -> list[str]:
    facts = {c.title.lower(): c.texts(document.facts.rows)[0] for c in _for_people(document.facts, show)}
    facts = {title: value for title, value in facts.items() if value != "-"}
    indent = max(map(len, facts), default=0) + COLUMN_GAP
    room = 1_000_000 if page.width is None else max(page.width - indent, 20)
    lines = []
    for title, value in facts.items():
        first, *rest = wrapped(value, room)
        lines += [f"{title:<{indent}}{first}", *(" " * indent + line for line in rest)]
    for key, title in document.titles.items():
        part = document.parts[key]
        heading = title if part.rows or ": " in title else f"{title}: {part.unknown or 'none'}"
        lines += [""] if lines else []
        lines += [_painted(heading, "bold" if page.color else ""), *(_table(part, show, page) if part.rows else ())]
    return lines


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
        columns, cells, titles = [columns[i] for i in kept], [cells[i] for i in kept], [titles[i] for i in kept]
        widths = _fitted(columns, [widths[i] for i in kept], width)
    shown = [_padded(c, column, has, rows, color) for c, column, has in zip(columns, cells, widths, strict=True)]
    gap, blanks = " " * COLUMN_GAP, [" " * has for has in widths]
    lines = []
    if header:
        heads = [_padded(replace(c, wrap=False), [t], w)[0] for c, t, w in zip(columns, titles, widths, strict=True)]
        lines.append(_painted(gap.join(heads).rstrip(), "bold" if color else ""))
    for row in zip(*shown, strict=True):
        if "\n" not in (line := gap.join(row)):
            lines.append(line.rstrip())
            continue
        for parts in zip_longest(*(cell.split("\n") for cell in row)):
            line = gap.join(blank if part is None else part for part, blank in zip(parts, blanks, strict=True))
            lines.append(line.rstrip())
    return lines


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
        while over > 0 and (wide := [i for i in loose if widths[i] > columns[i].least]):
            widths[max(wide, key=widths.__getitem__)] -= 1
            over -= 1
    return widths


def _padded(
    column: Column, texts: Sequence[str], width: int, rows: Sequence[Any] = (), color: bool = False
) -> list[str]:
    """Return the cells of a column in ``width``, the lines of each separated by newlines."""
    is_amount = column.kind in ("integer", "number") and not column.key.endswith("at")  # a time
    pad = str.rjust if is_amount else str.ljust
    tint = column.tint.get if color and column.tint and rows else None
    if tint is None and all(map(str.isascii, texts)) and max(map(len, texts), default=0) <= width:
        return [pad(text, width) for text in texts]
    tints = [tint(column.of(row), "") for row in rows] if tint else [""] * len(texts)
    found = []
    for text, tinted in zip(texts, tints, strict=True):
        lines = wrapped(text, width) if column.wrap else [shorten(text, width, tail=column.tail)]
        found.append("\n".join(_painted(pad(line, width + len(line) - text_width(line)), tinted) for line in lines))
    return found


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
