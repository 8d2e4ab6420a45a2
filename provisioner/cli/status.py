"""``provisioner status`` and ``events``: one screen of the whole, and what happened."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import merge
from itertools import islice
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

from provisioner import formatting
from provisioner.cli import options as opt
from provisioner.cli import output as out
from provisioner.cli import troubles
from provisioner.cli.jobs import CLASS_COLUMNS, class_rows, newest_plan
from provisioner.cli.options import Format
from provisioner.cli.plan import plan_summary
from provisioner.cli.sites import SITE_COLUMNS, site_rows
from provisioner.cli.usage import RecordedUse, underused, use_fact, with_use
from provisioner.model import DroneState
from provisioner.reasons import Reason
from provisioner.store import Event, Transition
from provisioner.store.reader import Reader
from provisioner.usage import class_name

EVENTS_SCHEMA = "provisioner.events/1"
NO_LIMIT = 10**9


class StreamPosition(NamedTuple):
    """Position in the stream of steps and events: the newest number of each that was shown."""

    step: int = 0
    event: int = 0

    @classmethod
    def parsed(cls, text: str) -> StreamPosition:
        """Return the position of a text as ``12.7``. Raises ValueError."""
        found = re.fullmatch(r"([0-9]{1,18})\.([0-9]{1,18})", text)
        if found is None:
            raise ValueError(
                f"`{formatting.sanitize(text, 40)}` is no position: write two numbers as `12.7`"
            )
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.step}.{self.event}"


class Happening(NamedTuple):
    """Step of a drone, or event of the controller."""

    at: float
    kind: str
    name: str
    """State that was entered, or the event's name."""
    text: str
    drone: str = ""
    was: DroneState | None = None
    reason: Reason | None = None
    fields: Mapping[str, Any] | None = None
    tick: int | None = None
    position: StreamPosition = StreamPosition()
    """Place from which the stream goes on behind it."""


def _of_step(step: Transition) -> Happening:
    why = step.reason.describe()
    return Happening(
        step.at, "step", step.state.value, why, step.drone_id, step.was, step.reason, tick=step.tick
    )


def _of_event(event: Event) -> Happening:
    text = ", ".join(f"{key} {value}" for key, value in event.fields.items())
    return Happening(event.at, "event", event.name, text, fields=event.fields)


EVENT_COLUMNS = (
    out.time_at("at", "When.", level=0),
    out.text("kind", "step of a drone, or event.", level=1, choices=("step", "event")),
    out.text("name", "The state that was entered, or the event's name.", level=0, least=20),
    out.ident("drone", "The drone; empty for events.", least=16),
    out.words("text", "Why or what, in words.", head="WHY", least=24),
    out.text("was", "State before.", null=True),
    out.data("reason", "Why, as data; null for events.", convert=out.reason_data, null=True),
    out.data("fields", "Of an event.", null=True),
    out.whole("tick", "Number of the tick; null for events.", null=True, level=1),
)


@out.answering
def events(
    reader: Reader,
    *,
    query: opt.ListQuery,
    follow: Annotated[
        bool, opt.switch("Go on with what comes; jsonl for programs.", "--follow", "-f")
    ] = False,
    since: Annotated[
        str, opt.option("AGE", "Go back this far: 30m, 4h, 2d; all for everything.")
    ] = "1h",
    after: Annotated[
        str | None, opt.option("A.B", "Only what came after this position of the stream.")
    ] = None,
) -> out.Listing:
    """Tell what happened.

    Every step of every drone with its reason, and the events of the controller.

    \b
    Examples:
      provisioner events --since 4h
      provisioner events --follow -o jsonl | jq 'select(.name == "failed")'
    """
    from provisioner.durations import parse_duration

    start = 0.0 if since == "all" else out.now() - opt.parsed(parse_duration, "--since", since)
    begin = opt.parsed(StreamPosition.parsed, "--after", after) if after else StreamPosition()
    if follow:
        _follow(reader, query, start, begin)
    # one more: does it go on?
    page = None if query.limit is None or query.sort else min(query.limit, NO_LIMIT) + 1
    found = happenings(reader, start, begin, page, by_time=not after)
    total = (
        len(found) if page is None or len(found) < page else reader.count_happenings(start, *begin)
    )
    back = "everything on record" if since == "all" else f"of the last {since}; --since for more"
    scope = f"{formatting.count(total, 'entry', 'entries')}, {back}"
    listing = out.Listing(EVENTS_SCHEMA, EVENT_COLUMNS, found, lambda h: h.name, scope, total=total)
    return out.picked(
        replace(listing, cursor=(lambda h: str(h.position)) if after else None), query
    )


def _follow(
    reader: Reader, query: opt.ListQuery, start: float, position: StreamPosition
) -> NoReturn:
    """Print what happened, and what happens, until interrupted."""
    require_followable(query)
    while True:
        found = happenings(reader, start, position)
        position = found[-1].position if found else position
        for row in out.Listing(
            "", EVENT_COLUMNS, sorted(found, key=lambda happening: happening.at)
        ).plain():
            print(followed_line(row, query))
        sys.stdout.flush()
        time.sleep(query.interval)


def followed_line(row: Mapping[str, Any], show: opt.Show) -> str:
    """Return the line of an event for ``--follow``: a stream has no column widths."""
    if not show.output.for_people:
        return out.dumps(row)
    what = f"{row['drone']} {row['name']}: {row['text']}".lstrip()
    line = formatting.sanitize(f"{formatting.iso(row['at'])}  {what}")
    width = out.Page.of(show).width
    return line if width is None else out.shorten(line, width)


def require_followable(show: opt.Show) -> None:
    """Raise :class:`VerbError` for a form of output that cannot go on and on."""
    if not (show.output.for_people or show.output in (Format.JSONL, Format.JSON)):
        wrong = f"--follow gives table, wide or jsonl, not {show.output.value}"
        raise opt.VerbError(wrong, code=opt.Exit.USAGE)


def happenings(
    reader: Reader,
    start: float,
    after: StreamPosition,
    limit: int | None = None,
    *,
    by_time: bool = False,
) -> list[Happening]:
    """Return the steps and events since ``start`` and after a position; the first ``limit`` of them.

    They are by time; unless strictly ``by_time``, those of each kind keep the order in which they
    were recorded.
    """
    most = NO_LIMIT if limit is None else limit
    found_steps = reader.transitions(since=start, after=after.step, limit=most, by_time=by_time)
    found_events = reader.events(since=start, after=after.event, limit=most, by_time=by_time)
    steps = [(number, _of_step(step)) for number, step in found_steps]
    events = [(event.id, _of_event(event)) for event in found_events]
    found, position = list[Happening](), after
    for number, happening in islice(
        merge(steps, events, key=lambda numbered: numbered[1].at), most
    ):
        position = position._replace(**{happening.kind: number})
        found.append(happening._replace(position=position))
    return found


STATUS_SCHEMA = "provisioner.status/1"
MAX_EVENTS_SHOWN = 5
CHECK_UNKNOWN = 3
"""Exit code of ``--check`` for what cannot be found out, as monitoring plugins give it."""
MAX_SHOWN = 10
_SITE_COLUMNS = ("site", "breaker", "drones", "max_drones", "gpu_milli", "states", "owner", "note")
_DEMAND_KEYS = ("id", "waiting", "running", "drones", "oldest_s", "why")


@opt.shared
def status(
    ctx: typer.Context,
    query: opt.Query,
    check: Annotated[
        bool, opt.switch("One line and exit code of a monitoring plugin.", "--check")
    ] = False,
) -> Any:
    """Show the whole on one screen.

    Who runs, every trouble in one line, how old each view is, sites with breakers and drones, what waits and why, the
    last events of the controller. The exit code is 0 whatever is shown; with --check it tells the worst.

    \b
    Examples:
      provisioner status --watch --interval 5
      provisioner status -o json | jq '.views[] | select(.verdict != "fresh")'
    """
    if check:
        raise typer.Exit(_run_check(query))
    return out.answered(ctx, query, status_document)


def _run_check(where: opt.Where) -> int:
    """Print the line of ``--check`` and return its exit code. A record that cannot be read is UNKNOWN."""
    try:
        reader = opt.open_record(where)
        with out.one_moment(reader.now):
            return _print_check(facts_of(reader, bulk=False))
    except Exception as error:
        failure = opt.verb_error(error)
        if failure is None:
            raise
        print(
            formatting.sanitize(f"PROVISIONER UNKNOWN - {'; '.join(failure.lines)}").replace(
                "|", "/"
            )
        )
        return CHECK_UNKNOWN


def _print_check(facts: troubles.TroubleContext) -> int:
    drones, idle = len(facts.live), sum(c.waiting + c.fresh for c in facts.waiting)
    last_tick = out.ago(facts.views.at) if facts.views else "-"
    counts = f"{formatting.count(drones, 'drone')}, {formatting.count(idle, 'idle job')}"
    code, line = troubles.check_line(
        troubles.troubles(facts), f"{counts}, last tick {last_tick} ago"
    )
    print(f"{line} | drones={drones} idle_jobs={idle}")
    return code


def status_document(reader: Reader) -> out.Document:
    facts = facts_of(reader)
    views, plan, live, waiting = facts.views, facts.plan, facts.live, facts.waiting
    found = troubles.troubles(facts)
    shown_classes = class_rows(views, plan, live, waiting[:MAX_SHOWN])
    recent = [_of_event(event) for event in facts.events[-MAX_EVENTS_SHOWN:]]
    idle = formatting.count(sum(c.waiting + c.fresh for c in waiting), "job")
    scope = "no trouble on record"
    if found:
        nouns = {troubles.Severity.CRITICAL: "critical trouble"}
        severities = Counter(trouble.severity for trouble in found)
        numbers = ", ".join(
            formatting.count(number, nouns.get(each, each.value))
            for each, number in severities.items()
        )
        scope = f"{numbers}: {found[0].subject}: {found[0].text}"
    more = f", the largest {MAX_SHOWN} of {len(waiting)}" if len(waiting) > MAX_SHOWN else ""
    classes = formatting.count(len(waiting), "class", "classes")

    use = RecordedUse(reader, views)
    site_use = use.by("site")
    site_columns = with_use(SITE_COLUMNS, site_use, lambda row: row.name)
    class_columns = with_use(CLASS_COLUMNS, use.by("class"), lambda row: class_name(row.job))

    def part(
        title: str, columns: Sequence[out.Column], rows: Sequence[Any], *keys: str
    ) -> out.Listing:
        """Return a part; with ``keys`` people see only these columns."""
        shown = [replace(c, level=0 if c.key in keys else 2) for c in columns] if keys else columns
        return out.Listing("", shown, rows, title=title)

    return out.Document(
        STATUS_SCHEMA,
        (*STATUS_FACTS, use_fact(site_use)),
        facts,
        {
            "troubles": part(troubles.title(found), troubles.TROUBLE_COLUMNS, found),
            "views": part("Views", troubles.VIEW_COLUMNS, troubles.view_rows(views, out.now())),
            "credentials": part(
                "Credentials", troubles.CREDENTIAL_COLUMNS, views.credentials if views else ()
            ),
            "sites": part("Sites", site_columns, site_rows(reader, views, live), *_SITE_COLUMNS),
            "demand": part(
                f"Waiting: {idle} in {classes}{more}", class_columns, shown_classes, *_DEMAND_KEYS
            ),
            "events": part(
                "Last events of the controller", EVENT_COLUMNS, recent, "at", "name", "text"
            ),
        },
        scope=scope,
    )


def trouble_kinds(reader: Reader) -> list[tuple[str, str]]:
    """Return severity and kind of each trouble on record."""
    return [
        (each.severity.value, each.kind) for each in troubles.troubles(facts_of(reader, bulk=False))
    ]


def facts_of(reader: Reader, *, bulk: bool = True) -> troubles.TroubleContext:
    """Return the facts that the rules of troubles need, and the screen; without ``bulk`` those of the rules alone."""
    views, now, holder = reader.views(bulk=bulk), out.now(), reader.holder()
    # since then by this host's clock, which may have been set before or after that
    if holder is not None:
        holder = replace(holder, since=min(holder.since, holder.since - (time.time() - now)))
    classes = views.overlay.view.classes if views and views.overlay.view else ()
    return troubles.TroubleContext(
        now,
        holder,
        views,
        newest_plan(reader),
        list(reader.breakers().values()),
        sorted((c for c in classes if c.waiting or c.fresh), key=lambda c: -(c.waiting + c.fresh)),
        reader.recent_events(
            now - troubles.RECENT_TROUBLE_S, troubles.LASTING_EVENTS, MAX_EVENTS_SHOWN
        ),
        reader.drones(ended=True, states=[DroneState.FAILED, DroneState.JOIN_TIMEOUT], limit=50),
        reader.drones(),
        shutil.disk_usage(reader.path.parent).free,
        underused(reader, views),
        reader.is_shadow(),
        controller=reader.controller(),
    )


def _holder_words(facts: troubles.TroubleContext) -> str:
    name = f"{facts.controller}: " if facts.live else ""
    if (holder := facts.holder) is None:
        return f"{name}not running; what follows is as last recorded"
    shadow = "; a shadow, it starts nothing" if facts.shadow else ""
    return (
        f"{name}runs as process {holder.pid} on {holder.host} for {out.ago(holder.since)}{shadow}"
    )


def _tick_words(facts: troubles.TroubleContext) -> str:
    if facts.views is None:
        return "none yet"
    did = f"; last plan: {plan_summary(facts.plan)}" if facts.plan else ""
    return f"{facts.views.tick}, {out.ago(facts.views.at)} ago{did}"


STATUS_FACTS = (
    out.text("controller", "Name.", "controller"),
    out.flag(
        "running",
        "Does one run?",
        lambda facts: facts.holder is not None,
        head="controller",
        show=_holder_words,
    ),
    out.flag("shadow", "Is it a shadow, which starts nothing?"),
    out.whole("pid", "Its process; null: none runs.", "holder.pid", null=True),
    out.text("host", "Its host; null: none runs.", "holder.host", null=True),
    out.time_at("running_since_at", "Since when it runs.", "holder.since"),
    out.whole(
        "tick",
        "The newest; null: none yet.",
        "views.tick",
        null=True,
        head="newest tick",
        show=_tick_words,
    ),
    out.time_at("tick_at", "When it was.", "views.at"),
    out.whole(
        "live_drones", "Drones not confirmed gone.", lambda facts: len(facts.live), head="drones"
    ),
    out.whole(
        "max_drones",
        "Limit on them; null: unknown.",
        "views.policy.max_drones",
        null=True,
        head="limit of drones",
    ),
    out.gpus(
        "gpu_milli",
        "Thousandths of GPUs in them.",
        lambda facts: sum(d.gpu_milli for d in facts.live),
        head="gpus",
    ),
    out.whole(
        "max_gpu_milli", "Limit on those; null: none.", "views.policy.max_gpu_milli", null=True
    ),
)
