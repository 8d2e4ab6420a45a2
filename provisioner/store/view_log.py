"""Views on record as logs of changed entries, from which the newest views and those of kept snapshots are read.

Views consist of parts: the slots by drone, the job classes by id, the listed drones of a site, the policy, ...
Each part is a mapping of entries by key, and each tick writes the entries that have changed since the
tick before. A row of ``view_log`` is a batch of them: compressed JSON ``[entries, order]``, with null for
a removed entry, and ``heard_at`` alone for a slot that is else as it was; ``order`` are all keys where
new entries do not come last (of estimates never: their order does not matter). Once the changes take
more than half the bytes of the whole part, it is written whole again: this begins a new ``cycle``, the
number of its first row. The part as of a row is therefore the newest cycle up to it, applied in order.
A cycle that is neither the newest nor that of a kept snapshot is deleted.

What classes refuse is shared by many of them, and seldom changes while their numbers of jobs always do:
``refusals`` has each distinct mapping once, by the first of its classes, and ``refusing`` the name of that class.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress, filterfalse, islice
from operator import attrgetter, is_not
from sys import maxsize
from typing import Any, Final

from provisioner import model
from provisioner.estimates import NO_ESTIMATES, Estimates, OwnerGrowth
from provisioner.model import (
    Drone,
    JobClass,
    Policy,
    PolledOverlay,
    PolledSite,
    RemoteDrone,
    Slot,
    Snapshot,
)
from provisioner.store import Views
from provisioner.store.database import StoreConnection
from provisioner.store.tables import SlotWork, insert, pack, read_meta, unpack
from provisioner.values import all_but, define, factory

BATCH_ENTRIES: Final = 500
"""Entries in a row. Packing them holds the interpreter's lock for some milliseconds: the loop waits for it."""
WHOLE_ENTRIES: Final = 50_000
"""Entries after which further parts that are to be written whole wait for the next tick."""
NEWEST: Final = maxsize

_ENTRY_TYPES: dict[str, Any] = {
    "policy": Policy,
    "types": tuple[model.DroneType, ...],
    "estimates": Estimates,
    "runs": tuple[float, ...],
    "rises": OwnerGrowth,
    "credentials": tuple[model.Credential, ...],
    "taken_at": float,
    "overlay": PolledOverlay,
    "completions": tuple[model.CompletedJob, ...],
    "slots": Slot | float,
    "services": model.PolledServices,
    "servers": Slot | float,
    "classes": JobClass,
    "refusing": str,
    "refusals": dict[model.TypeKey, model.UnmetRequirement],
    "sites": PolledSite,
    "listed": RemoteDrone,
    "drones": Drone,
}
"""Types of entries, by the name of the part up to a slash."""
_ROWS = """
    FROM view_log WHERE name = ?1 AND seq <= ?2
    AND cycle = (SELECT max(cycle) FROM view_log WHERE name = ?1 AND cycle <= ?2) ORDER BY seq"""
_UNUSED = """
    SELECT cycle FROM (
        SELECT cycle, lead(cycle) OVER (PARTITION BY name ORDER BY cycle) AS next
        FROM (SELECT DISTINCT name, cycle FROM view_log) AS cycles
    ) AS following
    WHERE next IS NOT NULL AND NOT EXISTS (SELECT 1 FROM snapshots WHERE parts >= cycle AND parts < next)"""

Parts = Mapping[str, Mapping[Any, Any]]
_SERVICES = "/services"
"""Key of their view in ``taken_at``: no site has such a name."""
_OF_SLOTS = ("slots", "servers")
_ESTIMATED = ("runs", "rises")
"""Estimates by key, most of which stay as they are when others change."""
_POLLED = (Slot, JobClass, RemoteDrone, Drone)
"""Values that are the same objects as in the tick before where they are equal: there are many of them."""
_BUT_HEARD_AT = all_but(Slot, "heard_at")


@define
class _RecordedPart:
    """A part as it is on record."""

    cycle: int
    whole: int = 0
    """Bytes of the whole part as it was written."""
    written: int = 0
    """Bytes of that and of the changes since."""
    entries: Mapping[str, Any] = factory(dict)


class ViewLog:
    """Writer of parts that knows what is on record. A new one writes all of them whole.

    After a failed transaction it knows too much: go on with a new one.
    """

    def __init__(self) -> None:
        self._parts: dict[str, _RecordedPart] = {}

    def write(self, sql: StoreConnection, parts: Parts) -> int:
        """Write the changes of parts; others stay as they are. Return the number of the newest row."""
        (seq,) = sql.execute("SELECT coalesce(max(seq), 0) FROM view_log").fetchone()
        whole_entries = 0
        for name, now in parts.items():
            part = self._parts.get(name)
            if part is None or (part.written > 1.5 * part.whole and whole_entries < WHOLE_ENTRIES):
                part = self._parts[name] = _RecordedPart(seq + 1)
                whole_entries += len(now)
            changed, order = _changes(part.entries, now)
            items = iter(changed.items())
            starts = range(0, len(changed), BATCH_ENTRIES)
            bodies = [_packed(name, dict(islice(items, BATCH_ENTRIES))) for _ in starts]
            if (order and name not in _ESTIMATED) or not (changed or part.whole):
                bodies.append(_packed(name, {}, order))
            part.entries = now
            part.written += sum(map(len, bodies))
            part.whole = part.whole or part.written
            rows = [(number, name, part.cycle, body) for number, body in enumerate(bodies, seq + 1)]
            insert = "INSERT INTO view_log (seq, name, cycle, body) VALUES (?, ?, ?, ?)"
            sql.executemany(insert, rows)
            seq += len(rows)
        return int(seq)


def _changes(
    known: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the entries that are new or differ, and all keys unless new ones come last.

    An entry that is gone is None, and a slot that was only heard again the time of that.
    """
    # the sanitizer hands on the values of the poll before where they are equal
    other = compress(now.items(), map(is_not, map(known.get, now), now.values()))
    changed = dict[str, Any]()
    for key, entry in other:
        before = known.get(key)
        if before and isinstance(entry, Slot) and _BUT_HEARD_AT(before) == _BUT_HEARD_AT(entry):
            changed[key] = entry.heard_at
        elif isinstance(entry, _POLLED) or before != entry:
            changed[key] = entry
    new = [*filterfalse(known.__contains__, changed)]
    is_any_gone = len(known) + len(new) > len(now)
    gone = dict.fromkeys(filterfalse(now.__contains__, known) if is_any_gone else ())
    kept = filterfalse(gone.__contains__, known)
    return changed | gone, () if [*kept, *new] == [*now] else tuple(now)


def _packed(name: str, entries: Mapping[str, Any], order: tuple[str, ...] = ()) -> bytes:
    without = {0: {"__all__": {"refuses"}}} if name == "classes" else None
    return pack((entries, order), _kind(name), exclude=without)


def _kind(name: str) -> Any:
    entry = _ENTRY_TYPES[name.partition("/")[0]]
    return tuple[dict[str, entry | None], tuple[str, ...]]  # type: ignore[valid-type]


def delete_unused(sql: StoreConnection) -> None:
    """Delete the cycles from which neither the newest views nor a kept snapshot is read."""
    sql.execute(f"DELETE FROM view_log WHERE cycle IN ({_UNUSED})")


def parts_of(snapshot: Snapshot) -> dict[str, Mapping[Any, Any]]:
    """Return the parts of a snapshot's views by name, those that change most apart from the rest."""
    overlay = snapshot.overlay
    estimates = snapshot.estimates
    view = overlay.view or model.OverlayView(0.0)
    if overlay.view is not None:
        rest = replace(view, taken_at=0.0, classes=(), slots=(), completions=None)
        overlay = replace(overlay, view=rest)
    holders = dict[int, str]()
    refusing = {
        job.id: holders.setdefault(id(job.refuses), job.id) for job in view.classes if job.refuses
    }
    services = snapshot.services
    served = services.view or model.ServicesView(0.0)
    if services.view is not None:
        services = replace(services, view=replace(served, taken_at=0.0, slots=()))
    taken_at = {"": view.taken_at, _SERVICES: served.taken_at}
    sites = dict(snapshot.sites)
    parts: dict[str, Mapping[Any, Any]] = {}
    for name, polled in snapshot.sites.items():
        if polled.view is not None:
            taken_at[name] = polled.view.taken_at
            parts[f"listed/{name}"] = polled.view.drones
            sites[name] = replace(polled, view=replace(polled.view, taken_at=0.0, drones={}))
    return parts | {
        "policy": {"": snapshot.policy},
        "types": {"": snapshot.types},
        "estimates": {"": replace(estimates, runs={}, rises={})},
        "runs": estimates.runs,
        "rises": estimates.rises,
        "credentials": {"": snapshot.credentials},
        "taken_at": taken_at,
        "overlay": {"": overlay},
        "completions": {} if view.completions is None else {"": view.completions},
        "slots": _by_key(view.slots, "drone_id"),
        "classes": _by_key(view.classes, "id"),
        "services": {"": services},
        "servers": _by_key(served.slots, "drone_id"),
        "refusing": refusing,
        "refusals": {job.id: job.refuses for job in view.classes if refusing.get(job.id) == job.id},
        "sites": sites,
    }


def _by_key(values: Sequence[Any], name: str) -> dict[str, Any]:
    """Return values by a field, or by their places where two have the same value of that field."""
    keys = map(attrgetter(name), values)
    found = dict(zip(keys, values, strict=True))
    return found if len(found) == len(values) else {str(n): each for n, each in enumerate(values)}


def write_snapshot(sql: StoreConnection, snapshot: Snapshot, row: int, kept: int) -> None:
    """Write the rest of a snapshot whose parts are those as of a row of the log, and keep the newest snapshots."""
    rest = replace(
        snapshot,
        policy=Policy(),
        types=(),
        overlay=PolledOverlay(),
        services=model.PolledServices(),
        sites={},
        drones={},
        estimates=NO_ESTIMATES,
        credentials=(),
    )
    known = {"tick": snapshot.tick, "body": pack(rest), "parts": row}
    insert(sql, "snapshots", known, keys=("tick",))
    newest = "SELECT tick FROM snapshots ORDER BY tick DESC LIMIT ?"
    sql.execute(f"DELETE FROM snapshots WHERE tick NOT IN ({newest})", (kept,))


def read_snapshot(sql: StoreConnection, tick: int) -> Snapshot | None:
    """Return the snapshot of a tick, as long as it is kept."""
    found = sql.execute("SELECT body, parts FROM snapshots WHERE tick = ?", (tick,)).fetchone()
    if found is None:
        return None
    body, row = found
    rest = unpack(Snapshot, body)
    if row is None:
        return rest  # it was written before there was a log
    return replace(rest, drones=read_part(sql, "drones", row), **read_parts(sql, row))


def read_part(sql: StoreConnection, name: str, row: int = NEWEST) -> dict[Any, Any]:
    """Return the entries of a part as of a row of the log."""
    entries = dict[Any, Any]()
    for (body,) in sql.execute(f"SELECT body {_ROWS}", (name, row)):
        changed, order = unpack(_kind(name), body)
        for key, entry in changed.items():
            if entry is None:
                entries.pop(key, None)
            elif isinstance(entry, float) and name in _OF_SLOTS:
                # nobody has the slot yet; with 100,000 of them copies take as long as all else
                object.__setattr__(entries[key], "heard_at", entry)
            else:
                entries[key] = entry
        if order:
            entries = {key: entries[key] for key in order}
    return entries


def slot_work(sql: StoreConnection, of: model.DroneId | None = None) -> Iterator[SlotWork]:
    """Yield the work in the slots of the newest views, a batch at a time; ``of`` one drone or few beside it.

    100,000 slots take 0.4 s; all of them as JSON values would take 1.3 s and 200 MiB.
    """
    seen = set[str]()
    kind: Any = tuple[dict[str, SlotWork | float | None], tuple[str, ...]]
    for (body,) in sql.execute(f"SELECT body {_ROWS} DESC", ("slots", NEWEST)):
        if of is None or of.encode() in zlib.decompress(body):
            entries, _ = unpack(kind, body)
            found = {key: work for key, work in entries.items() if not isinstance(work, float)}
            yield from (work for key, work in found.items() if work and key not in seen)
            seen |= found.keys()


def with_refusals(
    sql: StoreConnection, classes: Iterable[JobClass], row: int = NEWEST
) -> tuple[JobClass, ...]:
    """Return job classes with the types that they refuse, as of a row of the log."""
    refusing, refusals = (read_part(sql, name, row) for name in ("refusing", "refusals"))
    return tuple(
        replace(job, refuses=refusals[refusing[job.id]]) if job.id in refusing else job
        for job in classes
    )


def _read_overlay(sql: StoreConnection, row: int, bulk: bool) -> PolledOverlay:
    overlay: PolledOverlay = read_part(sql, "overlay", row)[""]
    if overlay.view is None:
        return overlay
    classes = tuple(read_part(sql, "classes", row).values())
    view = replace(overlay.view, taken_at=read_part(sql, "taken_at", row)[""], classes=classes)
    if bulk:
        view = replace(
            view,
            slots=tuple(read_part(sql, "slots", row).values()),
            completions=read_part(sql, "completions", row).get(""),
            classes=with_refusals(sql, classes, row),
        )
    return replace(overlay, view=view)


def _read_services(sql: StoreConnection, row: int) -> model.PolledServices:
    services: model.PolledServices = read_part(sql, "services", row).get("", model.PolledServices())
    if services.view is None:
        return services
    slots = tuple(read_part(sql, "servers", row).values())
    taken_at = read_part(sql, "taken_at", row)[_SERVICES]
    return replace(services, view=replace(services.view, taken_at=taken_at, slots=slots))


def _read_sites(sql: StoreConnection, row: int, bulk: bool) -> dict[str, PolledSite]:
    sites: dict[str, PolledSite] = read_part(sql, "sites", row)
    taken_at = read_part(sql, "taken_at", row)
    for name, polled in sites.items():
        if polled.view is not None:
            drones = read_part(sql, f"listed/{name}", row) if bulk else {}
            view = replace(polled.view, taken_at=taken_at[name], drones=drones)
            sites[name] = replace(polled, view=view)
    return sites


def read_parts(sql: StoreConnection, row: int = NEWEST, *, bulk: bool = True) -> dict[str, Any]:
    """Return the fields that views and snapshots have in common, as of a row of the log.

    Without ``bulk`` slots, completions, listed drones and the types that classes refuse are left
    out, which are most of them.
    """
    single = ("policy", "types", "credentials")
    estimates: Estimates = read_part(sql, "estimates", row)[""]
    # an older record has all of them there
    of_keys = {name: read_part(sql, name, row) or getattr(estimates, name) for name in _ESTIMATED}
    return {name: read_part(sql, name, row)[""] for name in single} | {
        "estimates": replace(estimates, **of_keys),
        "overlay": _read_overlay(sql, row, bulk),
        "sites": _read_sites(sql, row, bulk),
        "services": _read_services(sql, row),
    }


def read_views(sql: StoreConnection) -> Views | None:
    """Return the newest views, of which :func:`read_parts` leaves out the bulk; None in a new store."""
    if not read_part(sql, "policy"):
        return None
    meta = read_meta(sql)
    return Views(int(meta["tick"]), float(meta["at"]), **read_parts(sql, bulk=False))
