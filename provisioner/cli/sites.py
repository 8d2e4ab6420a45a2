"""``provisioner sites``: lift bans, disable and enable, decide about orphans."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from provisioner.answers.errors import UsageError
from provisioner.answers.sites import site_request, troubled_scopes
from provisioner.cli import options as opt, output as out
from provisioner.cli.drones import record_request
from provisioner.cli.questions import question_app
from provisioner.model import DroneId, RequestKind

sites_app = question_app("sites")
SiteName = Annotated[str, opt.argument("SITE", "Name of the site.")]


@sites_app.command("reset")
@opt.shared
def reset_site(
    where: opt.Where,
    name: Annotated[str, opt.argument("SITE", "Name of the site, or user:NAME.")],
    type_: Annotated[
        str | None, opt.option("NAME", "Only this drone type of it.", "--type")
    ] = None,
    reason: opt.EventReason = "",
) -> None:
    """Use a banned site or drone type again, now: after a repair. With `user:NAME`, forget the faults of a user.

    It is recorded now and carried out at the controller's next tick. What still fails is banned again, for the shortest
    time first. A user is named as in `provisioner status` (`shared-gpu-faults`): the controller forgets the faults of
    their jobs on shared GPUs, and their jobs get shared GPUs again.

    \b
    Examples:
      provisioner sites reset topas && provisioner events --follow
      provisioner sites reset user:ann
    """
    if where.url is not None:
        from provisioner.cli import remote

        return remote.post(where, f"/sites/{quote(name, safe='')}/reset", reason=reason, type=type_)
    reader = opt.open_record(where)
    scope, troubled = troubled_scopes(reader, name, type_)
    if not troubled:
        out.note(f"{scope} is not banned: nothing was asked for")
        return None
    again = f"use {', '.join(map(str, troubled))} again"
    what = f"forget the faults of {name}" if scope.user else again
    return record_request(reader, RequestKind.RESET, [DroneId(str(scope))], reason, what)


@sites_app.command("disable")
@opt.shared
def disable_site(where: opt.Where, name: SiteName, reason: opt.EventReason) -> None:
    """Start no drone at a site until `sites enable`; drones there stay. It lasts across restarts of the controller.

    \b
    Examples:
      provisioner sites disable topas --reason "cooling is being repaired"
    """
    _ask_site(where, RequestKind.DISABLE, name, reason)


@sites_app.command("enable")
@opt.shared
def enable_site(where: opt.Where, name: SiteName, reason: opt.EventReason = "") -> None:
    """Use a site again that `sites disable` has disabled.

    \b
    Examples:
      provisioner sites disable topas --reason "network" && provisioner sites enable topas
    """
    _ask_site(where, RequestKind.ENABLE, name, reason)


@sites_app.command("adopt-orphans")
@opt.shared
def adopt_orphans(where: opt.Where, name: SiteName, reason: opt.EventReason = "") -> None:
    """Put drones of this controller's name that are not on record on it: they are used, drained and counted as others.

    For a record that was lost, or restored from an older backup. It is carried out at the controller's next tick.

    \b
    Examples:
      provisioner sites adopt-orphans topas --reason "the record was lost"
    """
    _ask_site(where, RequestKind.ADOPT_ORPHANS, name, reason)


@sites_app.command("stop-orphans")
@opt.shared
def stop_orphans(where: opt.Where, name: SiteName, reason: opt.EventReason = "") -> None:
    """Stop the drones of this controller's name at a site that are not on record. Their jobs end and run again.

    \b
    Examples:
      provisioner sites stop-orphans topas --reason "left by a test installation"
    """
    _ask_site(where, RequestKind.STOP_ORPHANS, name, reason)


def _ask_site(where: opt.Where, kind: RequestKind, name: str, reason: str) -> None:
    if kind is RequestKind.DISABLE and not reason.strip():
        raise UsageError("--reason must not be empty: it is shown with the site")
    if where.url is not None:
        from provisioner.cli import remote

        return remote.post(where, f"/sites/{quote(name, safe='')}/{kind.value}", reason=reason)
    reader = opt.open_record(where)
    return record_request(reader, kind, [DroneId(name)], reason, site_request(reader, kind, name))
