"""``provisioner replay``: decide again on a saved snapshot, as it is or as it would be, and compare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from provisioner import formatting
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.options import LARGEST_TICK, Show, Where, shared
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
        typer.Option(
            "--tick",
            metavar="N",
            min=0,
            max=LARGEST_TICK,
            help="Replay this recorded tick and compare with its recorded plan.",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", metavar="CONFIG", help="Decide by this configuration file, and show what differs."),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="QUESTION",
            help="Decide as if this were so ('horeka down', 'topas price=2', "
            "'topas gpus=20'), and show what differs; may be given again.",
        ),
    ] = None,
) -> None:
    """Decide again on a saved snapshot.

    Same snapshot, same plan: with --expect or --tick, exit 3 where the plan differs from the expected or recorded one.
    With --policy or --what-if the plan is compared with the one that would be made then: nothing is asked or changed.

    \b
    Examples:
      provisioner replay snapshot.json
      provisioner replay snapshot.json --expect plan.json
      provisioner replay --tick 1742
      provisioner replay snapshot.json --policy new.yaml
      provisioner replay --tick 1742 --what-if 'horeka down' --what-if 'topas price=2'
    """
    from provisioner.planner.safeguards import safe_plan

    if (policy or what_if) and expect is not None:
        raise Failure("--expect is for the plan as it is: leave out --policy and --what-if", code=Exit.USAGE)
    snapshot, expected, origin = _inputs(where, file, expect, tick)
    if policy or what_if:
        _otherwise(show, snapshot, origin, policy, what_if or [])
        return
    again = safe_plan(snapshot).plan
    from provisioner.cli.plan_rows import plan_document

    present(show, lambda: plan_document(again, f"replay of {origin} at {formatting.iso(snapshot.now)}"))
    if expected is not None:
        compare(expected, again if expect is not None else _as_recorded(again))


def _otherwise(show: Show, snapshot: Snapshot, origin: str, policy: Path | None, what_if: list[str]) -> None:
    """Show the plan for ``snapshot`` beside the one under another policy or in another world."""
    from provisioner.cli.plan_diff import plan_diff_document
    from provisioner.planner.safeguards import safe_plan
    from provisioner.simulator.what_if import QuestionError, on_snapshot, read

    changed, notes = _under(snapshot, policy) if policy else (snapshot, [])
    try:
        otherwise = on_snapshot(changed, [read(each, sorted(changed.policy.sites)) for each in what_if])
    except QuestionError as error:
        raise Failure(str(error), code=Exit.USAGE) from None
    asked = ", ".join([*([f"by {policy}"] if policy else []), *what_if])
    before, after = (safe_plan(each).plan for each in (snapshot, otherwise.snapshot))
    present(show, lambda: plan_diff_document(before, after, f"{origin} {asked}"))
    for line in (*notes, *otherwise.notes):
        note(line)


def _under(snapshot: Snapshot, config: Path) -> tuple[Snapshot, list[str]]:
    """``snapshot`` under the policy and with the drone types of a configuration, and what it cannot know of them."""
    from dataclasses import replace

    from provisioner.config import load

    settings = load(config, connects=False)
    notes = [
        f"{name}: no look at it is in the snapshot, so nothing starts there"
        for name in settings.policy.sites
        if name not in snapshot.sites
    ]
    known = {kind.key for kind in snapshot.types}
    notes += [
        f"{kind.key}: the jobs' own requirements were never judged against it, only their numbers"
        for kind in settings.types
        if kind.key not in known
    ]
    return replace(snapshot, policy=settings.policy, types=settings.types), notes


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
    from provisioner.serialization import to_plain

    found = list(differences(to_plain(expected), to_plain(again)))
    if not found:
        note("the plan is the same")
        return
    more = [f"and {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else []
    raise Failure(
        f"the plan differs in {formatting.count(len(found), 'place')} (expected -> now):",
        *found[:MOST_SHOWN],
        *more,
        code=Exit.UNMET,
    )


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
