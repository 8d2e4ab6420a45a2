"""``provisioner backup``, ``restore`` and ``store copy``: copies of the record."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from provisioner.answers.errors import UnmetError, VerbError
from provisioner.cli import options as opt, output as out
from provisioner.formatting import count, duration
from provisioner.model import Drone, DroneId, RemoteDrone, RemoteState, RequestKind
from provisioner.store.database import Place, database_of, place_of
from provisioner.store.file import copy_store
from provisioner.store.lock import held
from provisioner.store.reader import Reader
from provisioner.store.restore import restore_store

if TYPE_CHECKING:
    from provisioner.config import Settings, SiteConfig

SILENCE_S = 180.0
"""A controller of which nothing newer is known has ended: it records each tick, and starts drones."""
SITE_CONNECT_S = 10.0
"""Time for a site to connect, beside the deadline of its poll."""

Listing = Mapping[DroneId, RemoteDrone]


class Orphans(StrEnum):
    """Fate of the drones at the sites that a restored record does not know."""

    KEEP = "keep"
    ADOPT = "adopt"
    STOP = "stop"


ORPHAN_REQUESTS = {Orphans.ADOPT: RequestKind.ADOPT_ORPHANS, Orphans.STOP: RequestKind.STOP_ORPHANS}


@opt.shared
def backup(
    copy: Annotated[Path, opt.argument("FILE", "File of the copy; an older copy is replaced.")],
    where: opt.Where,
) -> None:
    """Copy the record to a file, also while the controller runs.

    The copy appears only when it is complete, so FILE is a valid record at any time. The timer unit provisioner-backup
    runs this verb each minute.

    \b
    Examples:
      provisioner backup /var/backups/provisioner/provisioner.db
    """
    copy_store(_file(opt.open_record(where).path), copy)


@opt.shared
def restore(
    copy: Annotated[Path, opt.argument("FILE", "Copy made by `provisioner backup`.")],
    path: opt.ConfigPath = None,
    orphans: Annotated[
        Orphans,
        opt.option(
            "FATE", "Action for drones at the sites that are not in the copy: keep, adopt or stop."
        ),
    ] = Orphans.KEEP,
    fenced: Annotated[
        bool,
        opt.switch(
            "Confirm that the host of the other controller is off or has no network.", "--fenced"
        ),
    ] = False,
) -> None:
    """Restore the record from a copy, on this host or on another one.

    Polls each site once and lists the drones that are not in the copy. Refuses if another controller may run: one
    holds the record on this host, the copy is less than three minutes old, or a drone that is not in the copy started
    in the last three minutes. --fenced skips the last two checks. An existing record is renamed, and no drone id is
    used twice. Start the controller afterwards.

    \b
    Examples:
      provisioner restore /mnt/standby/provisioner.db --orphans adopt && systemctl start provisioner
    """
    from provisioner import config
    from provisioner.cli.drones import operator

    settings = config.load(opt.config_path(opt.Where(config=path)))
    record = _copy_of(copy, settings.controller)
    target = _file(settings.record)
    if (holder := Reader(target).holder() if target.exists() else None) is not None:
        raise held(target, holder)
    listings = asyncio.run(_listings(settings))
    known = {drone.id for drone in record.drones()}
    unknown = {
        site: [
            each
            for each in listing.values()
            if each.drone_id not in known and each.state is not RemoteState.ENDED
        ]
        for site, listing in listings.items()
        if not isinstance(listing, str)
    }
    if not fenced:
        _refuse_beside_another(record, [each for found in unknown.values() for each in found])
    aside = restore_store(copy, target)
    for site, listing in listings.items():
        if isinstance(listing, str):
            out.note(f"site {site}: its drones are unknown: {listing}")
        elif unknown[site]:
            ids = ", ".join(sorted(each.drone_id for each in unknown[site]))
            out.note(f"site {site}: {count(len(unknown[site]), 'orphan')} ({orphans}): {ids}")
    if aside is not None:
        out.note(f"previous record: {aside}")
    if orphans in ORPHAN_REQUESTS:
        asked = Reader(target)
        sites = [DroneId(site) for site in listings]
        asked.ask(
            ORPHAN_REQUESTS[orphans],
            sites,
            reason="restored from a copy",
            by=operator(),
            at=asked.now(),
        )
    lost = sum(not _is_listed(drone, listings) for drone in record.drones())
    out.note(
        f"restored {target} with {count(len(known), 'live drone')}, of which {lost} are at no site any more: "
        "start the controller"
    )


store_app = opt.verbs(no_args_is_help=True)


@store_app.callback()
def store() -> None:
    """Move the record between a file and PostgreSQL."""


@store_app.command("copy")
@opt.shared
def copy_store_to(
    where: opt.Where,
    to: Annotated[
        str,
        opt.option(
            "PLACE", "File, or postgresql://ROLE@HOST/DATABASE.", "--to", show_default=False
        ),
    ],
    password_file: Annotated[
        Path | None, opt.option("FILE", "File with the password for --to.", "--to-password-file")
    ] = None,
) -> None:
    """Copy the record to another file or to PostgreSQL, and compare each table by a digest.

    Stop the controller first. A copy that was interrupted goes on where it ended. Then set `store:` in the
    configuration to the new place, and start the controller. Never start a controller on the old place again.

    \b
    Examples:
      provisioner store copy --to postgresql://provisioner@db.example.org/provisioner
      provisioner store copy --to /var/lib/provisioner/provisioner.db
    """
    from provisioner.store.copying import copy_record
    from provisioner.store.observations import SCHEMA

    record = opt.open_record(where)
    secret = {"file": password_file} if password_file is not None else None
    target = place_of(to, record.controller(), secret)
    for each in copy_record(record.database, database_of(target), SCHEMA):
        out.note(f"{each.table}: {count(each.rows, 'row')}, sha256 {each.digest[:16]}")
    out.note(f"copied {record.path} to {target}: set `store:` to it, and start the controller")


def _file(place: Place) -> Path:
    """Return the file of a record. Raises :class:`VerbError` if it is in PostgreSQL."""
    if isinstance(place, Path):
        return place
    raise VerbError(
        f"the record is in PostgreSQL: {place}",
        "back it up and restore it with pg_dump and pg_restore, or copy it with `provisioner store copy`",
    )


def _copy_of(copy: Path, controller: str) -> Reader:
    """Open a copy for reading. Raises :class:`VerbError` if it is not a record of this controller."""
    if not copy.is_file():
        raise VerbError(f"no copy of a record at {copy}")
    record = Reader(copy)
    if (owner := record.controller()) != controller:
        raise VerbError(
            f"{copy} is the record of controller {owner!r}, and the configuration is of {controller!r}: "
            "set `controller:` to the same name"
        )
    return record


def _refuse_beside_another(record: Reader, unknown: list[RemoteDrone]) -> None:
    """Raise :class:`UnmetError` while the controller that wrote the copy may live."""
    views = record.views()
    now = record.now()
    silent_s = now - views.at if views is not None else math.inf
    started = max(unknown, key=lambda each: each.started_at, default=None)
    if silent_s < SILENCE_S:
        evidence = f"the copy has a tick of {duration(silent_s)} ago"
    elif started is not None and now - started.started_at < SILENCE_S:
        ago = duration(now - started.started_at)
        evidence = f"{started.drone_id}, which is not in the copy, started {ago} ago"
    else:
        return
    raise UnmetError(
        f"another controller may live: {evidence}",
        f"stop it and try again after {duration(SILENCE_S)}; or, if its host is off or has no network, add --fenced",
    )


async def _listings(settings: Settings) -> dict[str, Listing | str]:
    """Return the drones that each site lists, or why it does not."""
    async with asyncio.TaskGroup() as group:
        tasks = {
            spec.name: group.create_task(_listing(spec, settings.controller))
            for spec in settings.sites
        }
    return {site: task.result() for site, task in tasks.items()}


async def _listing(spec: SiteConfig, controller: str) -> Listing | str:
    from provisioner import loader

    make = loader.site_adapter(spec.adapter)
    try:
        async with (
            asyncio.timeout(spec.policy.poll_deadline_s + SITE_CONNECT_S),
            make(spec.name, spec.options, spec.types, controller) as site,
        ):
            return (await site.poll()).drones
    except TimeoutError:
        return "no answer in time"
    except Exception as error:  # whatever an adapter raises is the answer to what was asked
        return " ".join(str(error).split()) or type(error).__name__


def _is_listed(drone: Drone, listings: Mapping[str, Listing | str]) -> bool:
    """Return False if the site of a drone answered and does not list it."""
    listing = listings.get(drone.site, "")
    return isinstance(listing, str) or drone.id in listing
