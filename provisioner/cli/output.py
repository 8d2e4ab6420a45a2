"""Answers as values, rows with typed columns, and their forms: results on stdout, everything else on stderr."""

from __future__ import annotations

import inspect
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field, replace
from functools import partial, wraps
from itertools import accumulate, zip_longest
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TextIO

import typer

from provisioner import formatting
from provisioner.cli import options as opt
from provisioner.cli.options import Exit, Format, Pick, Show, VerbError, unknown
from provisioner.formatting import iso, sanitize
from provisioner.values import frozen

if TYPE_CHECKING:
    from provisioner.store.reader import Reader

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

    def plain(self, columns: Sequence[Column] = ()) -> list[dict[str, Cell]]:
        """Return the rows as JSON values, by default of all columns."""
        columns = columns or self.columns
        keys = [column.key for column in columns]
        cells = zip(*(column.cells(self.rows) for column in columns), strict=True)
        return [dict(zip(keys, row, strict=True)) for row in cells]


@frozen
class Document:
    """Facts about one thing and lists that belong to it."""

    schema: str
    facts: Sequence[Column]
    of: Any
    parts: Mapping[str, Listing] = field(default_factory=dict)
    scope: str = ""
    name: str = ""
    main: str = ""
    """The part that csv, jsonl and name give; empty: jsonl gives the document, csv and name do not apply."""
    raw: Mapping[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the document as JSON values."""
        (facts,) = Listing("", self.facts, [self.of]).plain()
        return {
            "schema": self.schema,
            **facts,
            **{key: part.plain() for key, part in self.parts.items()},
            **self.raw,
        }


@frozen
class Rendered:
    """Answer whose form the web service has made."""

    text: str
    scope: str


Answer = Listing | Document


def as_facts(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns of a list as the facts of a document: those with a title of a fact are for people."""
    return tuple(
        replace(c, level=0 if c.fact else 2, spare=0, head=c.fact or c.head) for c in columns
    )


def picked(listing: Listing, pick: Pick) -> Listing:
    """Return ``listing`` sorted and cut as asked. Rows without a value come last in both orders."""
    rows = list(listing.rows)
    for key in reversed(
        [k for k in (pick.sort or "").split(",") if k.strip().removeprefix("-").strip()]
    ):
        (column,) = chosen_columns(listing.columns, key.removeprefix("-"))
        valued = list(zip(column.cells(rows), rows, strict=True))
        known = [v for v in valued if v[0] is not None]
        known.sort(key=lambda v: _sort_key(v[0]), reverse=key.startswith("-"))
        rows = [row for _, row in known] + [row for value, row in valued if value is None]
    scope, more, total = listing.scope, "", len(rows) if listing.total is None else listing.total
    if pick.limit is not None and total > pick.limit:
        scope = f"{scope}; {pick.limit} of {total} shown" if scope else scope
        rows = rows[: pick.limit]
        more = listing.cursor(rows[-1]) if listing.cursor and rows and not pick.sort else ""
    return replace(listing, rows=rows, scope=scope, more=more)


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


@frozen
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


def present(
    show: Show, make: Callable[[], Answer | Rendered], clock: Callable[[], float] | None = None
) -> None:
    """Show what ``make`` answers; with ``--watch`` again and again until interrupted.

    With ``--watch`` a record that cannot be read for a while (a full disk, a new version) is only
    reported.
    """
    from provisioner.store import StoreError

    while True:
        try:
            with one_moment(clock or time.time):
                _present_once(make(), show)
        except StoreError as error:
            if not show.watch:
                raise
            note(f"{iso(now())}  {error}")
        if not show.watch:
            return
        time.sleep(show.interval)


def answering(build: Callable[..., Answer]) -> Callable[..., Any]:
    """Return the verb that shows the answer of ``build(reader, *, query, ...)``."""
    parameters = list(inspect.signature(build, eval_str=True).parameters.values())
    context = inspect.Parameter(
        "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )

    @wraps(build)
    def verb(ctx: typer.Context, **given: Any) -> tuple[Answer, Show] | None:
        return (
            None
            if opt.verb_follows(ctx)
            else answered(ctx, given["query"], partial(build, **given))
        )

    verb.__signature__ = inspect.Signature([context, *parameters[1:]])  # type: ignore[attr-defined]
    return opt.shared(verb)


def answered(
    ctx: typer.Context, query: opt.Query | opt.ListQuery, build: Callable[[Reader], Answer]
) -> tuple[Answer, Show] | None:
    """Show the answer that ``build`` makes from the record, or that the service at ``--url`` gives.

    In the web service, whose context has a reader as its ``obj``, return the answer and the options
    of its form.
    """
    if ctx.obj is not None:
        return build(ctx.obj), query
    if query.url is not None:
        from provisioner.cli import remote

        present(query, lambda: remote.answer(ctx, query))
        return None
    reader = opt.open_record(query)
    present(query, lambda: build(reader), reader.now)
    return None


def _present_once(answer: Answer | Rendered, show: Show) -> None:
    written, scope = (
        io.StringIO(),
        answer.scope if show.output.for_people and not show.no_header else "",
    )
    if show.watch and scope:
        scope = f"{iso(now())}  {scope}"
    if isinstance(answer, Rendered):
        written.write(answer.text)
    else:
        write(answer, show, Page.of(show), written)
    text = written.getvalue()
    if show.watch and show.output.for_people and sys.stdout.isatty():
        text = f"\x1b[H\x1b[2J{_one_screen(text, scope)}"
    print(text, end="", flush=True)
    note(*filter(None, [scope]))


def _one_screen(text: str, scope: str) -> str:
    """Return the top of ``text``, as much as fits on the terminal above its line of scope."""
    columns, rows = shutil.get_terminal_size()
    room = rows - 1 - -(-text_width(scope) // columns)  # the last row is for the cursor
    lines = text.splitlines(keepends=True)
    if len(lines) <= room:
        return text
    return (
        "".join(lines[: room - 1])
        + f"... {len(lines) - room + 1} more lines: enlarge the terminal\n"
    )


def write(answer: Answer, show: Show, page: Page, out: TextIO) -> None:
    """Write ``answer`` in the form of ``show`` to ``out``."""
    if isinstance(answer, Document):
        if not answer.main or not (
            show.columns or show.output in (Format.CSV, Format.NAME, Format.JSONL)
        ):
            _write_document(answer, show, page, out)
            return
        answer = answer.parts[answer.main]
    columns = chosen_columns(answer.columns, show.columns) if show.columns else answer.columns
    match show.output:
        case Format.TABLE | Format.WIDE:
            shown = (
                [replace(c, spare=0) for c in columns] if show.columns else _shown(columns, show)
            )
            lines = table_lines(shown, answer.rows, page, header=not show.no_header)
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
    match show.output:
        case Format.TABLE | Format.WIDE:
            out.writelines(f"{line}\n" for line in _document_lines(document, show, page))
        case Format.NAME if document.name:
            out.write(f"{sanitize(document.name)}\n")
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


FORMULA_STARTS = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Spreadsheets compute cells that begin so, and users name their jobs: an apostrophe makes them text."""


def _csv_cell(value: Cell) -> str | int | float:
    if isinstance(value, str):
        text = sanitize(value)
        return f"'{text}" if text.lstrip().startswith(FORMULA_STARTS) else text
    if value is None:
        return ""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else dumps(value)


def _write_tree(tree: dict[str, Any], show: Show, out: TextIO) -> None:
    if show.output is Format.YAML:
        import yaml

        out.write("---\n" if show.watch else "")
        yaml.dump(
            json.loads(dumps(tree)),
            out,
            Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper),
            sort_keys=False,
        )
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
        return json.dumps(
            json.loads(json.dumps(tree), parse_constant=lambda constant: None), **form
        )


def _shown(columns: Sequence[Column], show: Show) -> list[Column]:
    return [c for c in columns if c.level <= (show.output is Format.WIDE)]


def _document_lines(document: Document, show: Show, page: Page) -> list[str]:
    texts = {c.title.lower(): c.texts([document.of])[0] for c in _shown(document.facts, show)}
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
                _shown(part.columns, show), part.rows, page, header=not show.no_header
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
        self.column, self.texts = column, [column.title] * header + texts
        self.empty = all(text == "-" for text in texts)
        self.width = max(map(text_width, self.texts), default=0)
        self.tints = None
        if color and column.tint:
            self.tints = [""] * header + [column.tint.get(column.of(row), "") for row in rows]

    def padded(self) -> list[str]:
        """Return the cells in the width, the lines of each separated by newlines."""
        column, width = self.column, self.width
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
    gap, blanks, lines = " " * COLUMN_GAP, [" " * column.width for column in table], []
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
    """Return the columns to show.

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
