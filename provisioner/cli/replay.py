"""``provisioner replay``: decide again on a saved snapshot and compare: same snapshot, same plan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from provisioner import say
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.options import Show, Where, shared
from provisioner.cli.output import note, present
from provisioner.cli.where import open_record
from provisioner.model import Plan, Snapshot

app = typer.Typer(add_completion=False, rich_markup_mode=None)

MOST_SHOWN = 20


@app.command()
@shared
def replay(
    where: Where,
    show: Show,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A snapshot; - is stdin.", show_default=False)
    ] = None,
    expect: Annotated[
        Path | None, typer.Option("--expect", metavar="PLANFILE", help="Compare with this plan; exit 3 if it differs.")
    ] = None,
    tick: Annotated[
        int | None,
        typer.Option("--tick", metavar="N", help="Replay this recorded tick and compare with its recorded plan."),
    ] = None,
) -> None:
    """Decide again on a saved snapshot.

    Same snapshot, same plan: with --expect or --tick, exit 3 where the plan differs from the expected or recorded one.

    \b
    Examples:
      provisioner replay snapshot.json
      provisioner replay snapshot.json --expect plan.json
      provisioner replay --tick 1742
    """
    from provisioner.decide import decide

    snapshot, expected, origin = _inputs(where, file, expect, tick)
    again = decide(snapshot)
    from provisioner.cli.plan_rows import plan_document

    present(show, lambda: plan_document(again, f"replay of {origin} at {say.iso(snapshot.now)}"))
    if expected is not None:
        compare(expected, again if expect is not None else _as_recorded(again))


def _inputs(
    where: Where, file: Path | None, expect: Path | None, tick: int | None
) -> tuple[Snapshot, Plan | None, str]:
    """What to decide on, what should come of it if that is known, and where both are from."""
    from provisioner.cli.files import read_plan, read_snapshot

    if (file is None) == (tick is None):
        raise Failure("name a snapshot FILE, or a recorded tick with --tick N", code=Exit.USAGE)
    if file is not None:
        return read_snapshot(file), read_plan(expect) if expect else None, str(file)
    from provisioner.cli.snapshot import kept_snapshot

    assert tick is not None
    reader = open_record(where)
    snapshot = kept_snapshot(reader, tick)
    if expect is not None:
        return snapshot, read_plan(expect), f"tick {tick}"
    plans = [p for p in reader.plans(limit=1_000_000, since=snapshot.now - 1.0, acting=True) if p.tick == tick]
    if not plans:
        raise Failure(f"the plan of tick {tick} is not on record")
    return snapshot, plans[0], f"tick {tick}"


def _as_recorded(plan: Plan) -> Plan:
    """The record keeps of a plan what is worth keeping."""
    from provisioner.store.changes import news

    return news(plan)


def compare(expected: Plan, again: Plan) -> None:
    """Tell the differences on stderr. Raises :class:`Failure` with :attr:`Exit.UNMET` if there are any."""
    from provisioner.codec import to_plain

    found = list(differences(to_plain(expected), to_plain(again)))
    if not found:
        note("the plan is the same")
        return
    more = [f"and {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else []
    raise Failure(
        f"the plan differs in {say.count(len(found), 'place')} (expected -> now):", *found[:MOST_SHOWN], *more,
        code=Exit.UNMET,
    )  # fmt: skip


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Each place where two trees of JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list):
        for i in range(max(len(old), len(new))):
            left, right = (side[i] if i < len(side) else None for side in (old, new))
            yield from differences(left, right, f"{path}[{i}]")
    elif old != new:
        yield f"  {path}: {_brief(old)} -> {_brief(new)}"


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
