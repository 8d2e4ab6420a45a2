"""``provisioner plan``, ``snapshot`` and ``replay``: plan on the record or a file, save what a tick knew."""

from __future__ import annotations

import difflib
import json
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from provisioner import descriptions, formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.model import Breaker, Plan, Snapshot, Start, StateChange
from provisioner.reasons import Reason
from provisioner.store.reader import Reader

SNAPSHOT_SCHEMA = "provisioner.snapshot/1"
PLAN_SCHEMA = "provisioner.plan/1"
T = TypeVar("T")


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

    with opt.reported(ValueError, prefix=f"{path}: not JSON: "):
        tree: Any = json.loads(
            sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8-sig")
        )
    envelope = tree if isinstance(tree, dict) else {}
    if envelope.get("schema") not in (None, schema):
        raise opt.VerbError(
            f"{path}: schema {str(envelope['schema'])[:80]!r}, but this version reads {schema}"
        )
    try:
        return from_json(kind, json.dumps(envelope.get(key, tree)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "top"
        problem = f"{place}: {first['msg']} ({error.error_count()} in all)"
        raise opt.VerbError(f"{path}: not a {key}: {problem}") from None


PLAN_ACTIONS = ("start", "drain", "stop", "stop-orphan", "move", "breaker", "refuse")


class PlanRow(NamedTuple):
    """Line of a plan. ``subject``: what is acted on, a drone type or what a refusal is about."""

    action: str
    subject: str
    number: int
    reason: Reason | None
    text: str
    drones: tuple[str, ...] = ()


def plan_rows(plan: Plan) -> list[PlanRow]:
    """Return the lines of a plan: actions (starts alike in one), changes of state and breakers, then refusals."""

    def row(action: str, subject: str, reason: Reason, drone: str, how: str = "") -> PlanRow:
        return PlanRow(action, subject, 1, reason, how + reason.describe(), (drone,))

    def step(move: StateChange) -> str:
        return f"{move.was.value if move.was else 'new'} -> {move.drone.state.value}: "

    starts: defaultdict[tuple[str, str], list[Start]] = defaultdict(list)
    for start in plan.starts:
        starts[start.drone.type, start.reason.describe()].append(start)
    return [
        *(
            PlanRow(
                "start", kind, len(alike), alike[0].reason, why, tuple(s.drone.id for s in alike)
            )
            for (kind, why), alike in starts.items()
        ),
        *(
            row("drain", d.drone.type, d.reason, d.drone.id, f"{d.mode.value}: ")
            for d in plan.drains
        ),
        *(
            row("stop", s.drone.type, s.reason, s.drone.id, "without notice: " * s.kill)
            for s in plan.stops
        ),
        *(row("stop-orphan", o.site, o.reason, o.drone_id) for o in plan.orphans),
        *(row("move", m.drone.type, m.reason, m.drone.id, step(m)) for m in plan.moves),
        *(PlanRow("breaker", b.scope, 1, None, breaker_words(b)) for b in plan.breakers),
        *(
            PlanRow("refuse", r.subject, r.count, r.reason, r.reason.describe())
            for r in plan.refusals
        ),
    ]


def breaker_words(breaker: Breaker) -> str:
    """Return the state of a circuit breaker, until when, and why."""
    why = f": {formatting.excerpt(breaker.fault.message)}" if breaker.fault else ""
    until = f" until {formatting.iso(breaker.until)}" if breaker.until else ""
    words = "on shared GPUs" if breaker.user else descriptions.BREAKER_WORDS[breaker.state]
    return f"{breaker.state.value}{until}, {words}{why}"


def _drone_range(row: PlanRow) -> str:
    if len(row.drones) < 2:
        return "".join(row.drones)
    return f"{row.drones[0]} .. {row.drones[-1].rpartition('-')[2]}"


PLAN_TINTS = {
    "start": "green",
    "drain": "yellow",
    "stop": "red",
    "stop-orphan": "red",
    "refuse": "dim",
}
PLAN_COLUMNS = (
    out.text("action", "What is done.", level=0, choices=PLAN_ACTIONS, tint=PLAN_TINTS),
    out.ident("subject", "Drone type, site, scope, or what a refusal is about.", least=14),
    out.whole("count", "Drones, or jobs that a refusal is about.", "number", level=0),
    out.items("drones", "Ids of the drones.", level=0, show=_drone_range, least=14),
    out.words("text", "Why, in words.", head="WHY", least=24),
    out.data("reason", "Why, as data.", convert=out.reason_data, null=True),
)
PLAN_FACTS = (
    out.whole("tick", "Number of the tick.", level=1),
    out.time_at("at", "The time that the plan is for.", level=1),
    out.flag("acts", "Is anything started, drained or stopped?"),
)


def plan_document(plan: Plan, origin: str) -> out.Document:
    """Return a plan with its lines for people and as a whole for ``replay --expect``. ``origin``: its source."""
    from provisioner.serialization import to_plain

    schema, title = "provisioner.plan-items/1", f"Plan for tick {plan.tick}"
    rows = out.Listing(
        schema, PLAN_COLUMNS, plan_rows(plan), lambda r: f"{r.action}:{r.subject}", title=title
    )
    return out.Document(
        PLAN_SCHEMA,
        PLAN_FACTS,
        plan,
        {"items": rows},
        main="items",
        name=f"{plan.tick}",
        raw={"plan": to_plain(plan)},
        scope=f"{origin}: {plan_summary(plan)}",
    )


def plan_summary(plan: Plan) -> str:
    """Return ``3 starts, 1 drain, 0 stops, 2 refusals``."""
    stops = len(plan.stops) + len(plan.orphans)
    counts = {
        "start": len(plan.starts),
        "drain": len(plan.drains),
        "stop": stops,
        "refusal": len(plan.refusals),
    }
    return ", ".join(formatting.count(n, noun) for noun, n in counts.items())


class PlanDifference(NamedTuple):
    """Line in which two plans differ. ``why`` is of the other plan, or of the first if only that has it."""

    action: str
    subject: str
    drone: str
    before: int
    after: int
    why: str

    @property
    def change(self) -> str:
        return (
            "why" if self.before == self.after else "more" if self.after > self.before else "less"
        )


def plan_differences(before: Plan, after: Plan) -> list[PlanDifference]:
    old, new = _plan_lines(before), _plan_lines(after)
    found = []
    for key in sorted({*old, *new}, key=lambda k: (PLAN_ACTIONS.index(k[0]), k)):
        (was, why_before), (now, why_after) = old.get(key, (0, "")), new.get(key, (0, ""))
        if was != now or why_before != why_after:
            found.append(PlanDifference(*key, was, now, why_after or why_before))
    return found


def _plan_lines(plan: Plan) -> dict[tuple[str, str, str], tuple[int, str]]:
    """Return count and reasons by action, subject and drone.

    New drones have no id to compare: another plan gives the same one to another type.
    """
    rows: defaultdict[tuple[str, str, str], list[PlanRow]] = defaultdict(list)
    for row in plan_rows(plan):
        rows[row.action, row.subject, "" if row.action == "start" else "".join(row.drones)].append(
            row
        )
    return {
        key: (sum(row.number for row in found), "; ".join(dict.fromkeys(row.text for row in found)))
        for key, found in rows.items()
    }


CHANGES = {"more": "green", "less": "yellow", "why": ""}
DIFFERENCE_COLUMNS = (
    out.text(
        "change",
        "More or less of it, or another reason.",
        level=0,
        choices=tuple(CHANGES),
        tint=CHANGES,
    ),
    out.text("action", "What is done.", level=0, choices=PLAN_ACTIONS),
    out.ident("subject", "Drone type, site, scope, or what a refusal is about.", least=14),
    out.ident("drone", "Id of the drone, of what concerns one on record.", least=14),
    out.whole("before", "Drones, or jobs that a refusal is about, in the plan as it is.", level=0),
    out.whole("after", "The same in the other plan.", level=0),
    out.words(
        "why", "The other plan's reason; of what it does no more, the first one's.", least=24
    ),
)
DIFFERENCE_FACTS = (
    out.flag("same", "Are the plans the same?", lambda differences: not differences),
)


def plan_diff_document(before: Plan, after: Plan, origin: str) -> out.Document:
    """Return both plans for machines, and for people where they differ. ``origin``: what was asked."""
    from provisioner.serialization import to_plain

    found, title = plan_differences(before, after), f"Plan for tick {before.tick}, otherwise"
    schema, count = "provisioner.plan-diff-items/1", formatting.count(len(found), "difference")
    rows = out.Listing(
        schema, DIFFERENCE_COLUMNS, found, lambda d: f"{d.action}:{d.subject}", title=title
    )
    return out.Document(
        "provisioner.plan-diff/1",
        DIFFERENCE_FACTS,
        found,
        {"items": rows},
        main="items",
        raw={"before": to_plain(before), "after": to_plain(after)},
        scope=f"{origin}: {plan_summary(after)} instead of {plan_summary(before)}; {count}",
    )


@out.answering
def plan(reader: Reader, *, query: opt.Query) -> out.Document:
    """Say what the next tick would do, and why.

    A dry run on the newest recorded views: nothing is asked or changed. The same pure function decides as in the
    controller. `replay` decides on a saved snapshot, or on that of a recorded tick.

    \b
    Examples:
      provisioner plan -o wide
      provisioner plan -o json | jq '.items[] | select(.action == "refuse") | {subject, text}'
    """
    from provisioner.planner.safeguards import safe_plan

    seen = kept_snapshot(reader, None)
    return plan_document(
        safe_plan(seen).plan, f"dry run on the record at {formatting.iso(seen.now)}"
    )


SNAPSHOTS_SCHEMA = "provisioner.snapshots/1"


@opt.shared
def snapshot(
    query: opt.Query,
    tick: Annotated[
        int | None, opt.tick_option("Of this recorded tick; else as the next one begins.")
    ] = None,
    to: Annotated[Path | None, opt.option("FILE", "Write here instead of stdout.")] = None,
    list_: Annotated[
        bool, opt.switch("Only list the ticks with snapshots, and what each did.", "--list")
    ] = False,
) -> None:
    """Write a snapshot as JSON.

    Job classes, slots, site views, drones and policy at one time: all that a decision depends on. Snapshots are
    kept of the newest ticks that did something (store.snapshots in the configuration). They name owners of jobs,
    hosts and drones, but hold no secret. A snapshot is always JSON: -o and the options that go with it are for --list.

    \b
    Examples:
      provisioner snapshot --list
      provisioner snapshot --tick 1742 | gzip > tick-1742.json.gz
    """
    reader = opt.open_record(query)
    if list_:
        out.present(query, lambda: _kept_ticks(reader))
        return
    written = snapshot_text(kept_snapshot(reader, tick))
    if to is None:
        sys.stdout.write(written)
    else:
        to.write_text(written, encoding="utf-8")
        out.note(f"{to}: {len(written)} bytes")


SAME = "the same as a later tick"
SNAPSHOT_COLUMNS = (
    out.whole("tick", "Number of the tick.", level=0),
    out.time_at("at", "When it was.", level=0),
    out.whole("starts", "Drones started.", lambda p: len(p.starts)),
    out.whole("drains", "Drones asked to leave.", lambda p: len(p.drains)),
    out.whole("stops", "Drones stopped.", lambda p: len(p.stops) + len(p.orphans)),
    out.text(
        "did",
        "What was done, in words.",
        lambda p: plan_summary(p) if p.acts else SAME,
        level=0,
        least=20,
    ),
)


def _kept_ticks(reader: Reader) -> out.Listing:
    kept = reader.kept_snapshots()
    plans = {plan.tick: plan for plan in reader.plans(limit=len(kept), acting=True)} if kept else {}
    rows = []
    # of a tick whose plan was made again later, the record has the last plan only
    for tick in kept:
        saved = None if tick in plans else reader.snapshot(tick)
        rows.append(plans.get(tick) or Plan(tick, saved.now if saved else 0.0))
    scope = f"{formatting.count(len(kept), 'snapshot')} kept"
    return out.Listing(SNAPSHOTS_SCHEMA, SNAPSHOT_COLUMNS, rows, lambda p: str(p.tick), scope)


def kept_snapshot(reader: Reader, tick: int | None) -> Snapshot:
    """Return the snapshot of a tick, or that with which the next one begins. Raises :class:`VerbError`."""
    found = reader.snapshot(tick)
    if found is not None:
        return found
    if tick is None:
        raise opt.VerbError("no tick is on record yet: `provisioner run` makes the first")
    kept = reader.kept_snapshots()
    near = ", ".join(map(str, sorted(sorted(kept, key=lambda n: abs(n - tick))[:5])))
    raise opt.VerbError(
        f"no snapshot of tick {tick} is kept; {f'nearest: {near}' if near else 'none is'}",
        "only ticks that did something leave one, and only the newest are kept",
    )


MAX_LINES_SHOWN = 40
_WHAT_IF_HELP = (
    "Decide as if this were so ('horeka down', 'topas gpus=20'), and show what differs; repeatable."
)


@opt.shared
def replay(
    query: opt.Query,
    file: Annotated[Path | None, opt.argument("FILE", "A snapshot; - is stdin.")] = None,
    expect: Annotated[
        Path | None, opt.option("PLANFILE", "Compare with this plan; exit 3 if it differs.")
    ] = None,
    tick: Annotated[
        int | None, opt.tick_option("This recorded tick; compare with its recorded plan.")
    ] = None,
    policy: Annotated[
        Path | None, opt.option("CONFIG", "Decide by this file, and show what differs.")
    ] = None,
    what_if: Annotated[list[str] | None, opt.option("QUESTION", _WHAT_IF_HELP)] = None,
) -> None:
    """Decide again on a saved snapshot.

    Same snapshot, same plan: with --expect or --tick, exit 3 where the plan differs from the expected or recorded one.
    With --policy or --what-if the plan is compared with the one that would be made then: nothing is asked or changed.

    \b
    Examples:
      provisioner replay snapshot.json --expect plan.json
      provisioner replay snapshot.json --policy new.yaml
      provisioner replay --tick 1742 --what-if 'horeka down' --what-if 'topas price=2'
    """
    from provisioner.planner.safeguards import safe_plan
    from provisioner.store import without_refreshes

    if (policy or what_if) and expect is not None:
        raise opt.VerbError(
            "--expect is for the plan as it is: leave out --policy and --what-if",
            code=opt.Exit.USAGE,
        )
    if (file is None) == (tick is None):
        raise opt.VerbError(
            "name a snapshot FILE, or a recorded tick with --tick N", code=opt.Exit.USAGE
        )
    reader = opt.open_record(query) if file is None else None
    snapshot = (
        kept_snapshot(reader, tick) if reader is not None else read_snapshot(file or Path("-"))
    )
    expected = _read_file(expect, Plan, "plan", PLAN_SCHEMA) if expect else None
    origin = str(file or f"tick {tick}")
    if policy or what_if:
        _compare_plans(query, snapshot, origin, policy, what_if or [])
        return
    again = safe_plan(snapshot).plan
    out.present(
        query, lambda: plan_document(again, f"replay of {origin} at {formatting.iso(snapshot.now)}")
    )
    if expected is not None:
        _require_same(expected, again)
    elif reader is not None:  # the record keeps a plan without refreshes
        plans = reader.plans(limit=1_000_000, since=snapshot.now - 1.0, acting=True)
        recorded = next((plan for plan in plans if plan.tick == tick), None)
        if recorded is None:
            raise opt.VerbError(f"the plan of tick {tick} is not on record")
        _require_same(recorded, without_refreshes(again))


def _compare_plans(
    show: opt.Show, snapshot: Snapshot, origin: str, policy: Path | None, what_if: list[str]
) -> None:
    """Show the plan for ``snapshot`` beside the one under another policy or in another world."""
    from provisioner.config import load
    from provisioner.planner.safeguards import safe_plan
    from provisioner.simulator.what_if import QuestionError, on_snapshot, read

    changed, notes = snapshot, list[str]()
    if policy is not None:
        settings, known = load(policy, connects=False), {kind.key for kind in snapshot.types}
        unseen = [name for name in settings.policy.sites if name not in snapshot.sites]
        notes += [
            f"{name}: no look at it is in the snapshot, so nothing starts there" for name in unseen
        ]
        unjudged = "the jobs' own requirements were never judged against it, only their numbers"
        notes += [f"{kind.key}: {unjudged}" for kind in settings.types if kind.key not in known]
        changed = replace(snapshot, policy=settings.policy, types=settings.types)
    with opt.reported(QuestionError, code=opt.Exit.USAGE):
        questions = [read(each, sorted(changed.policy.sites)) for each in what_if]
        otherwise, more = on_snapshot(changed, questions)
    asked = ", ".join([*([f"by {policy}"] if policy else []), *what_if])
    before, after = (safe_plan(each).plan for each in (snapshot, otherwise))
    out.present(show, lambda: plan_diff_document(before, after, f"{origin} {asked}"))
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
    raise opt.VerbError("the plan differs:", *islice(changed, MAX_LINES_SHOWN), code=opt.Exit.UNMET)
