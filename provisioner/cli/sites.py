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
        str | None, opt.option("NAME", "Reset only this drone type of the site.", "--type")
    ] = None,
    reason: opt.EventReason = "",
) -> None:
    """End the ban of a site or drone type after a repair, or delete the faults of a user.

    The controller does this at its next tick. If the site still fails, it is banned again, at first for the shortest
    time. user:NAME is the subject of `shared-gpu-faults` in `provisioner status`: the controller deletes the faults of
    this user's jobs on shared GPUs, and their jobs get shared GPUs again.

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
        out.note(f"{scope} is not banned: nothing to do")
        return None
    again = f"use {', '.join(map(str, troubled))} again"
    what = f"forget the faults of {name}" if scope.user else again
    return record_request(reader, RequestKind.RESET, [DroneId(str(scope))], reason, what)


@sites_app.command("disable")
@opt.shared
def disable_site(where: opt.Where, name: SiteName, reason: opt.EventReason) -> None:
    """Start no drone at a site until `sites enable`; its drones keep running. Survives restarts.

    \b
    Examples:
      provisioner sites disable topas --reason "cooling is being repaired"
    """
    _ask_site(where, RequestKind.DISABLE, name, reason)


@sites_app.command("enable")
@opt.shared
def enable_site(where: opt.Where, name: SiteName, reason: opt.EventReason = "") -> None:
    """Start drones again at a site that `sites disable` disabled.

    \b
    Examples:
      provisioner sites disable topas --reason "network" && provisioner sites enable topas
    """
    _ask_site(where, RequestKind.ENABLE, name, reason)


@sites_app.command("adopt-orphans")
@opt.shared
def adopt_orphans(where: opt.Where, name: SiteName, reason: opt.EventReason = "") -> None:
    """Record the orphans at a site as drones: the controller uses, drains and counts them.

    Orphans have this controller's name and are not on record, for example after the restore of an old backup. The
    controller does this at its next tick.

    \b
    Examples:
      provisioner sites adopt-orphans topas --reason "the record was lost"
    """
    _ask_site(where, RequestKind.ADOPT_ORPHANS, name, reason)


@sites_app.command("stop-orphans")
@opt.shared
def stop_orphans(where: opt.Where, name: SiteName, reason: opt.EventReason = "") -> None:
    """Stop the orphans at a site: drones of this controller's name that are not on record. Their jobs are requeued.

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
