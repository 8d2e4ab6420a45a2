"""Small makers of columns: times, ages, counts, sizes, with their units in the keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite
from typing import TypeVar

from provisioner import formatting
from provisioner.cli.listing import Column

Row = TypeVar("Row")


def moment(value: float) -> float | None:
    """A time for machines: seconds since the epoch (UTC); None for 0, which means never."""
    return value if value and isfinite(value) else None


def moments(values: Iterable[float]) -> list[float | None]:
    """:func:`moment` of many."""
    return [value if value and isfinite(value) else None for value in values]


def time_at(
    key: str, of: Callable[[Row], float], doc: str, *, level: int = 2, head: str = "", now: float | None = None
) -> Column[Row]:
    """A time: seconds since the epoch for machines, null for never; for people ISO-8601, or with ``now`` its age."""
    show = (lambda row: formatting.iso(of(row))) if now is None else (lambda row: formatting.ago(of(row), now))
    return Column(
        key,
        lambda row: moment(of(row)),
        f"{doc} Seconds since the epoch (UTC); null: never.",
        kind="number",
        null=True,
        show=show,
        level=level,
        head=head,
        right=now is not None,
        many=lambda rows: moments(map(of, rows)),
    )


def span_s(key: str, of: Callable[[Row], float | None], doc: str, *, level: int = 2, head: str = "") -> Column[Row]:
    """A duration in seconds; people get a short age."""

    def show(row: Row) -> str:
        value = of(row)
        return "-" if value is None else formatting.age(value)

    def many(rows: Iterable[Row]) -> list[float | None]:
        return [round(v, 3) if v is not None and isfinite(v) else None for v in map(of, rows)]

    return Column(
        key,
        lambda row: many([row])[0],
        doc,
        kind="number",
        null=True,
        show=show,
        level=level,
        head=head,
        right=True,
        many=many,
    )


def whole(
    key: str,
    of: Callable[[Row], int],
    doc: str,
    *,
    level: int = 2,
    head: str = "",
    show: Callable[[int], str] = str,
    spare: int = 0,
) -> Column[Row]:
    """A count or an amount in the unit of its key; people read it through ``show``."""
    return Column(
        key, of, doc, kind="integer", show=lambda row: show(of(row)), level=level, head=head, right=True, spare=spare
    )


def text(
    key: str,
    of: Callable[[Row], str],
    doc: str,
    *,
    level: int = 2,
    head: str = "",
    least: int = 0,
    tail: bool = False,
    spare: int = 0,
) -> Column[Row]:
    """A text; with ``least`` it may be shortened in tables, with ``spare`` left out of them."""
    return Column(key, of, doc, level=level, head=head, least=least, tail=tail, spare=spare)


def words(
    key: str, of: Callable[[Row], str], doc: str, *, level: int = 0, head: str = "", least: int, spare: int = 0
) -> Column[Row]:
    """A sentence: never cut, it goes on in further lines where a table is too wide."""
    return Column(key, of, doc, level=level, head=head, least=least, wrap=True, spare=spare)


def amount(mib: int) -> str:
    """MiB for people, ``-`` for none."""
    return formatting.size(mib) if mib else "-"
