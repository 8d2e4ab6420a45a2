"""Events of the controller and steps of drones, as a list and for the stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from heapq import merge
from itertools import islice
from typing import Annotated, Any, NamedTuple

from provisioner import formatting
from provisioner.answers.columns import (
    Listing,
    data,
    ident,
    now,
    picked,
    reason_data,
    text,
    time_at,
    whole,
    words,
)
from provisioner.answers.errors import parsed
from provisioner.answers.query import ListQuery, option, question
from provisioner.model import DroneState
from provisioner.reasons import Reason
from provisioner.store import Event, Transition
from provisioner.store.reader import Reader

EVENTS_SCHEMA = "provisioner.events/1"
NO_LIMIT = 10**9
EVENT_SENTENCES = {
    "breaker.reset": "{by} lifted the bans of {scopes}: {reason}",
    "clock.caught_up": "the clock of the controller agrees with that of the host again",
    "clock.doubted": "the clock of the host differs from the record by {drift_s:.0f} s: {advice}",
    "clock.set": "the clock of the controller was set by {by_s:.0f} s: {advice}",
    "clock.stepped": "the clock of the host was set by {drift_s:.0f} s; the controller follows slowly",
    "clock.trusted": "the clock of the host is used again; it differs from the record by {drift_s:.0f} s",
    "config.rejected": "the changed configuration was refused: {problems}",
    "config.reloaded": "the changed configuration is in force: {changes}",
    "controller.twin_found": "another controller of this name is running (record {record}): {evidence}",
    "controller.twin_gone": "the other controller of this name has ended (record {records})",
    "credential.expires": "{credential} of {used_by}: {why}",
    "credential.renewed": "{credential} of {used_by} was replaced",
    "credential.unusable": "{credential} of {used_by} cannot be used: {why}",
    "drain.failed": "outcome of the order to drain {drone} unknown: {why}",
    "drain.rejected": "order to drain {drone} refused: {why}",
    "drone.black_hole": "{drone} is draining because jobs fail in it one after the other: {why}",
    "drone.stopped_elsewhere": "another program stopped {drone} at {site}: {why}",
    "estimates.forgotten": "{by} deleted the estimates of {what}: {reason}",
    "estimates.reset": "the recorded estimates cannot be read, so estimation starts again: {message}",
    "gpus.underused": "{job_class}: {why}",
    "job.collateral": "a neighbour in {drone} ended job {job} of {user}: {why}",
    "job.faulted": "job {job} of {user} faulted in {drone}: {why}",
    "lease.epoch_went_back": "the database has lost transactions: {evidence}",
    "orphan.adopted": "{drone} was put on record: {why}",
    "orphan.found": "{drones} drones are not on record: {ids}",
    "orphan.stop_ordered": "{drone} at {site} is not on record and is stopped: {why}",
    "past_runs.recovered": "{runs} runs of the last {hours} hours were read from histories, after an outage",
    "plan.accepted": "all parts of the plan are valid again",
    "plan.rejected": "parts of a plan were refused: {faults}; not carried out: {left_out}",
    "request.recorded": "{by} requested {kind} of {of}: {reason}",
    "slots.not_removed": "the pool did not remove the slots of dead drones: {why}",
    "store.outdated": "sites list drone {newest_serial}, newer than the record knows: {advice}",
}
"""Sentences about recorded events, with the fields of each."""


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


def of_event(event: Event) -> Happening:
    try:
        text = EVENT_SENTENCES[event.name].format_map(event.fields)
    except (KeyError, ValueError):  # of another release
        text = ", ".join(f"{key} {value}" for key, value in event.fields.items())
    return Happening(event.at, "event", event.name, text, fields=event.fields)


EVENT_COLUMNS = (
    time_at("at", "When.", level=0),
    text("kind", "Step of a drone, or event.", level=1, choices=("step", "event")),
    text("name", "The state that was entered, or the event's name.", level=0, least=20),
    ident("drone", "The drone; empty for events.", least=16),
    words("text", "Reason or description.", head="WHY", least=24),
    text("was", "State before.", null=True),
    data("reason", "Reason as data; null for events.", convert=reason_data, null=True),
    data("fields", "Of an event.", null=True),
    whole("tick", "Number of the tick; null for events.", null=True, level=1),
)


class EventsQuery(ListQuery):
    """Events and steps of a time."""

    since: Annotated[
        str, option("AGE", "List entries of this period: 30m, 4h, 2d; all: everything.")
    ] = "1h"
    after: Annotated[
        str | None, option("A.B", "List only entries after this position of the stream.")
    ] = None

    @property
    def start(self) -> float:
        """Return the time of the oldest event to show. Raises :class:`VerbError`."""
        from provisioner.durations import parse_duration

        if self.since == "all":
            return 0.0
        return now() - parsed(parse_duration, "--since", self.since)

    @property
    def begin(self) -> StreamPosition:
        """Return the position in the stream after which events are shown. Raises :class:`VerbError`."""
        if not self.after:
            return StreamPosition()
        return parsed(StreamPosition.parsed, "--after", self.after)


@question("events", "/events", lambda: [Listing(EVENTS_SCHEMA, EVENT_COLUMNS, ())])
def events(reader: Reader, query: EventsQuery) -> Listing:
    """List recorded events.

    These are every step of every drone with its reason, and the events of the controller.

    \b
    Examples:
      provisioner events --since 4h
      provisioner events --follow -o jsonl | jq 'select(.name == "failed")'
    """
    start = query.start
    begin = query.begin
    since = query.since
    # one more: does it go on?
    page = None if query.limit is None or query.sort else min(query.limit, NO_LIMIT) + 1
    found = happenings(reader, start, begin, page, by_time=not query.after)
    total = (
        len(found) if page is None or len(found) < page else reader.count_happenings(start, *begin)
    )
    back = "everything on record" if since == "all" else f"of the last {since}; --since for more"
    scope = f"{formatting.count(total, 'entry', 'entries')}, {back}"
    listing = Listing(EVENTS_SCHEMA, EVENT_COLUMNS, found, lambda h: h.name, scope, total=total)
    if query.after:
        listing = replace(listing, cursor=lambda happening: str(happening.position))
    return picked(listing, query.sort, query.limit)


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
    events = [(event.id, of_event(event)) for event in found_events]
    found = list[Happening]()
    position = after
    for number, happening in islice(
        merge(steps, events, key=lambda numbered: numbered[1].at), most
    ):
        position = position._replace(**{happening.kind: number})
        found.append(happening._replace(position=position))
    return found
