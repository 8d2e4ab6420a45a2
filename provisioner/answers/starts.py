"""Starts: the drones requested in each hour, by drone type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from provisioner import formatting
from provisioner.answers.columns import Listing, ident, now, picked, span_s, time_at, whole
from provisioner.answers.errors import parsed
from provisioner.answers.query import ListQuery, option, question
from provisioner.model import Drone, DroneState, TypeKey
from provisioner.store.reader import Reader

STARTS_SCHEMA = "provisioner.starts/1"
HOUR_S = 3600.0


class StartsRow(NamedTuple):
    """Drones of one type that were requested within one hour."""

    type: TypeKey
    hour_at: float
    drones: Sequence[Drone]

    @property
    def joined_after_s(self) -> float | None:
        waits_s = sorted(d.joined_at - d.requested_at for d in self.drones if d.joined_at)
        return waits_s[len(waits_s) // 2] if waits_s else None


STARTS_COLUMNS = (
    ident("type", "Drone type, as site/name.", least=12),
    time_at("hour_at", "Begin of the hour.", level=0, head="HOUR"),
    whole("starts", "Drones requested.", lambda row: len(row.drones), level=0),
    whole(
        "joined",
        "Those that joined.",
        lambda row: sum(d.joined_at > 0 for d in row.drones),
        level=0,
    ),
    whole(
        "failed",
        "Those that failed.",
        lambda row: sum(d.state is DroneState.FAILED for d in row.drones),
        level=0,
    ),
    span_s(
        "joined_after_s",
        "Median time from the order to the pool, seconds; null: none joined.",
        head="JOINED AFTER",
    ),
)


@dataclass(frozen=True, kw_only=True)
class StartsQuery(ListQuery):
    """Starts of a time."""

    since: Annotated[str, option("AGE", "Go back this far: 4h, 2d.")] = "1d"


@question("starts", "/starts", lambda: [Listing(STARTS_SCHEMA, STARTS_COLUMNS, ())])
def starts(reader: Reader, query: StartsQuery) -> Listing:
    """Count the drones that were requested in each hour, by drone type.

    \b
    Examples:
      provisioner starts --since 2d --sort -failed
    """
    from provisioner.durations import parse_duration

    begin = now() - parsed(parse_duration, "--since", query.since)
    found: dict[tuple[float, TypeKey], list[Drone]] = defaultdict(list)
    for drone in reader.drones(ended=None):
        if drone.requested_at >= begin:
            found[drone.requested_at // HOUR_S * HOUR_S, drone.type].append(drone)
    rows = [StartsRow(key, hour_at, found[hour_at, key]) for hour_at, key in sorted(found)]
    total = formatting.count(sum(len(row.drones) for row in rows), "start")
    scope = f"{total} of the last {query.since}; --since for more"
    listing = Listing(STARTS_SCHEMA, STARTS_COLUMNS, rows, lambda row: row.type, scope)
    return picked(listing, query.sort, query.limit)
