"""``provisioner snapshot`` and ``replay``: save what a tick knew, and plan on it again."""

from __future__ import annotations

import difflib
import json
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from provisioner import formatting
from provisioner.answers.columns import Listing
from provisioner.answers.errors import Exit, T, UnmetError, UsageError, VerbError, reported
from provisioner.answers.plan import (
    PLAN_SCHEMA,
    SNAPSHOT_COLUMNS,
    SNAPSHOT_SCHEMA,
    SNAPSHOTS_SCHEMA,
    kept_snapshot,
    plan_diff_document,
    plan_document,
)
from provisioner.answers.query import Query
from provisioner.cli import options as opt, output as out
from provisioner.descriptions import ClassNames
from provisioner.model import Plan, Snapshot
from provisioner.store.reader import Reader


def snapshot_text(snapshot: Snapshot) -> str:
    """Return a snapshot as the JSON of ``provisioner snapshot``."""
    from provisioner import __version__
    from provisioner.serialization import to_plain

    tree = {"schema": SNAPSHOT_SCHEMA, "version": __version__, "snapshot": to_plain(snapshot)}
    return json.dumps(tree, indent=1) + "\n"


def read_snapshot(path: Path) -> Snapshot:
    """Return the snapshot in a file, with or without the envelope. Raises :class:`VerbError`."""
    return _read_file(path, Snapshot, "snapshot", SNAPSHOT_SCHEMA)


def _read_file(path: Path, kind: type[T], key: str, schema: str) -> T:
    from pydantic import ValidationError

    from provisioner.serialization import from_json

    with reported(ValueError, prefix=f"{path}: not JSON: "):
        tree: Any = json.loads(
            sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8-sig")
        )
    envelope = tree if isinstance(tree, dict) else {}
    if envelope.get("schema") not in (None, schema):
        raise VerbError(
            f"{path}: schema {str(envelope['schema'])[:80]!r}, but this version reads {schema}"
        )
    try:
        return from_json(kind, json.dumps(envelope.get(key, tree)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "top"
        problem = f"{place}: {first['msg']} ({error.error_count()} in all)"
        raise VerbError(f"{path}: not a {key}: {problem}") from None


@opt.shared
def snapshot(
    query: Query,
    host: opt.Host,
    tick: Annotated[
        int | None,
        opt.tick_option("Number of a recorded tick; default: the state before the next tick."),
    ] = None,
    to: Annotated[
        Path | None, opt.option("FILE", "File for the snapshot; default: stdout.")
    ] = None,
    list_: Annotated[
        bool, opt.switch("List the ticks with snapshots and their actions instead.", "--list")
    ] = False,
) -> None:
    """Write a snapshot as JSON.

    A snapshot has all inputs of a decision: job classes, slots, site views, drones and policy at one time. The record
    keeps those of the newest ticks with actions (store.snapshots in the configuration). They name owners of jobs,
    hosts and drones, but contain no secret. A snapshot is always JSON; -o and the options of tables are for --list.

    \b
    Examples:
      provisioner snapshot --list
      provisioner snapshot --tick 1742 | gzip > tick-1742.json.gz
    """
    reader = opt.open_record(host)
    if list_:
        out.present(query, host, lambda: _kept_ticks(reader))
        return
    written = snapshot_text(kept_snapshot(reader, tick))
    if to is None:
        sys.stdout.write(written)
    else:
        to.write_text(written, encoding="utf-8")
        out.note(f"{to}: {len(written)} bytes")


def _kept_ticks(reader: Reader) -> Listing:
    kept = reader.kept_snapshots()
    plans = {plan.tick: plan for plan in reader.plans(limit=len(kept), acting=True)} if kept else {}
    rows = []
    # of a tick whose plan was made again later, the record has the last plan only
    for tick in kept:
        saved = None if tick in plans else reader.snapshot(tick)
        rows.append(plans.get(tick) or Plan(tick, saved.now if saved else 0.0))
    scope = f"{formatting.count(len(kept), 'snapshot')} kept"
    return Listing(SNAPSHOTS_SCHEMA, SNAPSHOT_COLUMNS, rows, lambda p: str(p.tick), scope)


MAX_LINES_SHOWN = 40
_WHAT_IF_HELP = "Plan under this assumption ('horeka down', 'topas gpus=20'), and show the differences; repeatable."


@opt.shared
def replay(
    query: Query,
    host: opt.Host,
    file: Annotated[Path | None, opt.argument("FILE", "Snapshot file; -: stdin.")] = None,
    expect: Annotated[
        Path | None, opt.option("PLANFILE", "Compare with this saved plan; exit 3 if it differs.")
    ] = None,
    tick: Annotated[
        int | None, opt.tick_option("Use this recorded tick, and compare with its recorded plan.")
    ] = None,
    policy: Annotated[
        Path | None, opt.option("CONFIG", "Plan with this configuration, and show the differences.")
    ] = None,
    what_if: Annotated[list[str] | None, opt.option("QUESTION", _WHAT_IF_HELP)] = None,
) -> None:
    """Recompute the plan of a saved snapshot.

    The same snapshot gives the same plan. With --expect or --tick, exit 3 if the plan differs from the expected or
    recorded one. With --policy or --what-if, compare the plan with the one under these changes. No site is contacted
    and nothing is changed.

    \b
    Examples:
      provisioner replay snapshot.json --expect plan.json
      provisioner replay snapshot.json --policy new.yaml
      provisioner replay --tick 1742 --what-if 'horeka down' --what-if 'topas price=2'
    """
    from provisioner.planner.safeguards import safe_plan
    from provisioner.store import without_refreshes

    if (policy or what_if) and expect is not None:
        raise UsageError("--expect does not work with --policy and --what-if: remove it")
    if (file is None) == (tick is None):
        raise UsageError("name a snapshot FILE, or a recorded tick with --tick N")
    reader = opt.open_record(host) if file is None else None
    snapshot = (
        kept_snapshot(reader, tick) if reader is not None else read_snapshot(file or Path("-"))
    )
    expected = _read_file(expect, Plan, "plan", PLAN_SCHEMA) if expect else None
    origin = str(file or f"tick {tick}")
    if policy or what_if:
        _compare_plans(query, host, snapshot, origin, policy, what_if or [])
        return
    again = safe_plan(snapshot).plan
    names = ClassNames(snapshot.overlay.view)
    replayed = f"replay of {origin} at {formatting.iso(snapshot.now)}"
    out.present(query, host, lambda: plan_document(again, replayed, names))
    if expected is not None:
        _require_same(expected, again)
    elif reader is not None:  # the record keeps a plan without refreshes
        plans = reader.plans(limit=1_000_000, since=snapshot.now - 1.0, acting=True)
        recorded = next((plan for plan in plans if plan.tick == tick), None)
        if recorded is None:
            raise VerbError(f"the plan of tick {tick} is not on record")
        _require_same(recorded, without_refreshes(again))


def _compare_plans(
    query: Query,
    host: opt.Host,
    snapshot: Snapshot,
    origin: str,
    policy: Path | None,
    what_if: list[str],
) -> None:
    """Show the plan for ``snapshot`` beside the one under another policy or in another world."""
    from provisioner.config import load
    from provisioner.planner.safeguards import safe_plan
    from provisioner.simulator.what_if import QuestionError, on_snapshot, read

    changed = snapshot
    notes = list[str]()
    if policy is not None:
        settings = load(policy, connects=False)
        known = {kind.key for kind in snapshot.types}
        unseen = [name for name in settings.policy.sites if name not in snapshot.sites]
        notes += [
            f"{name}: the snapshot has no view of it, so no drone starts there" for name in unseen
        ]
        unjudged = "the jobs' own requirements were never judged against it, only their numbers"
        notes += [f"{kind.key}: {unjudged}" for kind in settings.types if kind.key not in known]
        changed = replace(snapshot, policy=settings.policy, types=settings.types)
    with reported(QuestionError, code=Exit.USAGE):
        questions = [read(each, sorted(changed.policy.sites)) for each in what_if]
        otherwise, more = on_snapshot(changed, questions)
    asked = ", ".join([*([f"by {policy}"] if policy else []), *what_if])
    before, after = (safe_plan(each).plan for each in (snapshot, otherwise))
    names = ClassNames(snapshot.overlay.view)
    out.present(query, host, lambda: plan_diff_document(before, after, f"{origin} {asked}", names))
    out.note(*notes, *more)


def _require_same(expected: Plan, again: Plan) -> None:
    from provisioner.serialization import to_plain

    old, new = (
        json.dumps(to_plain(plan), indent=1, sort_keys=True).splitlines()
        for plan in (expected, again)
    )
    if old == new:
        out.note("the plan is the same")
        return
    changed = difflib.unified_diff(old, new, "expected", "now", lineterm="", n=1)
    raise UnmetError("the plan differs:", *islice(changed, MAX_LINES_SHOWN))
