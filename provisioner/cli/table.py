"""Plain tables: aligned columns that fit a width, fast enough for ten thousand rows."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TypeVar

from provisioner.cli.listing import Column

Row = TypeVar("Row")

GAP = 2
ELLIPSIS = "..."
COLORS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}


def lines(
    columns: Sequence[Column[Row]], rows: Sequence[Row], *, width: int | None, header: bool = True, color: bool = False
) -> list[str]:
    """The table as lines. ``width``: shorten cells until it fits (None: never); ANSI colours only with ``color``."""
    cells = [c.texts(rows) for c in columns]
    titles = [c.title if header else "" for c in columns]
    wants = [_widest([title, *column]) for title, column in zip(titles, cells, strict=True)]
    if width is not None:
        kept = _with_room(columns, cells, wants, width)
        columns, cells = [columns[i] for i in kept], [cells[i] for i in kept]
        titles, wants = [titles[i] for i in kept], [wants[i] for i in kept]
    widths = wants if width is None else fit(columns, wants, width)
    columns_of_lines = [
        _padded([column], has, c.right) if want <= has else _blocks(c, column, has)
        for c, column, want, has in zip(columns, cells, wants, widths, strict=True)
    ]
    if color:
        columns_of_lines = [_tinted(c, found, rows) for c, found in zip(columns, columns_of_lines, strict=True)]
    body = _joined(columns_of_lines, widths)
    if not header:
        return body
    head = [_pad(shorten(t, has), has, c.right) for t, has, c in zip(titles, widths, columns, strict=True)]
    first = (" " * GAP).join(head).rstrip()
    return [f"\x1b[1m{first}\x1b[0m" if color else first, *body]


def _with_room(
    columns: Sequence[Column[Row]], cells: Sequence[Sequence[str]], wants: Sequence[int], width: int
) -> list[int]:
    """The columns to show, by number: without those that may be spared and say nothing, or for which there is no room:
    for a sentence, if it could not even be wrapped; for anything else, if another column would have to be cut."""
    kept = [i for i, c in enumerate(columns) if not c.spare or any(cell != "-" for cell in cells[i])]
    for i in sorted((i for i in kept if columns[i].spare), key=lambda i: -columns[i].spare):
        needs = [
            min(wants[k], columns[k].least) if columns[k].wrap or (columns[i].wrap and columns[k].least) else wants[k]
            for k in kept
        ]
        if sum(needs) + GAP * (len(kept) - 1) > width:
            kept.remove(i)
    return kept


Stack = list[list[str]]
"""One column as layers: the first lines of all cells, the second lines, ... (a cell without such a line is blank)."""


def _joined(stacks: Sequence[Stack], widths: Sequence[int]) -> list[str]:
    """Columns of layers as the lines of a table."""
    gap, height = " " * GAP, max(map(len, stacks), default=0)
    if height == 1:
        return [gap.join(row).rstrip() for row in zip(*(stack[0] for stack in stacks), strict=True)]
    blanks = [" " * has for has in widths]
    body = []
    for i in range(len(stacks[0][0])):
        for k in range(height):
            parts = [s[k][i] if k < len(s) else blank for s, blank in zip(stacks, blanks, strict=True)]
            line = gap.join(parts).rstrip()
            if line or not k:
                body.append(line)
    return body


def _blocks(column: Column[Row], texts: Sequence[str], width: int) -> Stack:
    cut = [_block(column, text, width) for text in texts]
    height = max(map(len, cut), default=1)
    layers = [[block[k] if k < len(block) else "" for block in cut] for k in range(height)]
    return _padded(layers, width, column.right)


def _padded(layers: Stack, width: int, right: bool) -> Stack:
    return [
        [text.rjust(width) if right else text.ljust(width) for text in layer]
        if all(map(str.isascii, layer))
        else [_pad(text, width, right) for text in layer]
        for layer in layers
    ]


def _tinted(column: Column[Row], stack: Stack, rows: Sequence[Row]) -> Stack:
    if column.tint is None:
        return stack
    tints = [column.tint(row) for row in rows]
    return [[paint(text, tint) for text, tint in zip(layer, tints, strict=True)] for layer in stack]


def _widest(texts: Sequence[str]) -> int:
    return max(map(len if all(map(str.isascii, texts)) else wide, texts))


def fit(columns: Sequence[Column[Row]], wants: Sequence[int], width: int) -> list[int]:
    """Widths that fit ``width``: the widest columns that may be shortened give way first, ids last."""
    widths = list(wants)
    over = sum(widths) + GAP * (len(widths) - 1) - width
    for tails in (False, True):
        loose = [i for i, c in enumerate(columns) if c.least and c.tail == tails]
        while over > 0:
            widest = max((i for i in loose if widths[i] > columns[i].least), key=widths.__getitem__, default=None)
            if widest is None:
                break
            widths[widest] -= 1
            over -= 1
    return widths


def shorten(text: str, width: int, *, tail: bool = False) -> str:
    """``text`` in ``width`` columns; what is left out shows as dots, in the middle with ``tail``."""
    if wide(text) <= width:
        return text
    if width <= len(ELLIPSIS):
        return _front(text, width)
    if not tail:
        return _front(text, width - len(ELLIPSIS)) + ELLIPSIS
    keep = width - len(ELLIPSIS)
    return _front(text, keep - keep // 2) + ELLIPSIS + _front(text[::-1], keep // 2)[::-1]


def wide(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def _columns_of(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _front(text: str, width: int) -> str:
    if text.isascii():
        return text[:width]
    taken, kept = 0, []
    for char in text:
        taken += _columns_of(char)
        if taken > width:
            break
        kept.append(char)
    return "".join(kept)


def _pad(text: str, width: int, right: bool) -> str:
    blank = " " * (width - wide(text))
    return blank + text if right else text + blank


def _block(column: Column[Row], text: str, width: int) -> list[str]:
    """One cell as the lines that it takes in ``width`` columns."""
    if wide(text) <= width:
        return [text]
    if not column.wrap:
        return [shorten(text, width, tail=column.tail)]
    found = []
    while wide(text) > width:
        front = _front(text, width)
        at = front.rfind(" ") if " " in front[1:] else len(front)
        found.append(text[:at].rstrip())
        text = text[at:].lstrip()
    return [*found, text] if text else found


def paint(text: str, color: str) -> str:
    """``text`` in a colour of :data:`COLORS`; as it is for an empty name."""
    return f"\x1b[{COLORS[color]}m{text}\x1b[0m" if color else text
