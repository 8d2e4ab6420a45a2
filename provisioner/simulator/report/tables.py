"""Tables of a report as HTML. Whatever text they are given is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from provisioner.simulator.report.figures import Difference, Spread
from provisioner.simulator.report.words import NOTHING, amount, change

Cell = str | float | Spread | Difference | None
MOST_ROWS = 200
"""More do not help a reader; the JSON form has them all."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A row that names the group of those below."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of each row is its heading."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...] | Heading]


def html_of(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.head)
    rows = "\n".join(_row(row, len(table.head)) for row in table.rows[:MOST_ROWS])
    left_out = len(table.rows) - MOST_ROWS
    more = f"; {left_out} more rows are in the JSON form" if left_out > 0 else ""
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{escape(table.caption)}"><table>\n'
        f"<caption>{escape(table.caption + more)}</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>"
    )


def _row(row: tuple[Cell, ...] | Heading, width: int) -> str:
    if isinstance(row, Heading):
        return f'<tr><th scope="rowgroup" colspan="{width}" class="group">{escape(row.text)}</th></tr>'
    first, *rest = row
    return f'<tr><th scope="row">{_cell(first)}</th>{"".join(f"<td>{_cell(cell)}</td>" for cell in rest)}</tr>'


def _cell(cell: Cell) -> str:
    match cell:
        case None:
            return NOTHING
        case str():
            return escape(cell)
        case Spread():
            return _number(cell.mean, amount(cell.mean)) + _deviation(cell)
        case Difference():
            better = f' <span class="aside">better in {cell.improved} of {cell.spread.count}</span>'
            return _number(cell.spread.mean, change(cell.spread.mean)) + _deviation(cell.spread) + better
        case _:
            return _number(cell, amount(cell))


def _number(value: float, text: str) -> str:
    """For people rounded, for programs as it is."""
    return f'<data value="{value!r}">{text}</data>'


def _deviation(spread: Spread) -> str:
    return f' <span class="aside">± {amount(spread.deviation)}</span>' if spread.count > 1 else ""
