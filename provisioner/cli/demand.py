"""``provisioner demand``: the job classes, what they need and why each waits."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from provisioner import formatting
from provisioner.cli.class_rows import SCHEMA, ClassRow, class_rows, columns
from provisioner.cli.listing import Listing
from provisioner.cli.options import Pick, Show, Where, shared
from provisioner.cli.output import picked, present
from provisioner.cli.where import open_record
from provisioner.model import Plan
from provisioner.store import Reader

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@shared
def demand(
    where: Where,
    show: Show,
    pick: Pick,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only classes with jobs that wait.")] = False,
) -> None:
    """List what waits, and why.

    A class is all jobs with identical requirements. The reason is the weightiest that the newest plan has; -o json has
    all of them as data, and `provisioner explain class ID` tells them in words.

    \b
    Examples:
      provisioner demand
      provisioner demand --waiting -o wide
      provisioner demand -o json | jq '.items[] | {id, waiting, why}'
    """
    reader = open_record(where)
    present(show, lambda: picked(class_listing(reader, time.time(), waiting=waiting), pick))


def class_listing(reader: Reader, now: float, *, waiting: bool = False) -> Listing[ClassRow]:
    """The answer of ``provisioner demand``."""
    views = reader.views()
    rows = class_rows(views, newest_plan(reader), reader.drones())
    if waiting:
        rows = [r for r in rows if r.job.waiting or r.job.fresh]
    if views is None:
        scope = "no tick is on record yet"
    elif views.overlay.view is None:
        message = views.overlay.fault.message if views.overlay.fault else "?"
        scope = f"the overlay was never seen: {formatting.sanitize(message)}"
    else:
        fault = (
            f"; newest look failed: {formatting.sanitize(views.overlay.fault.message, 120)}"
            if views.overlay.fault
            else ""
        )
        idle = sum(r.job.waiting + r.job.fresh for r in rows)
        only = " with waiting jobs" if waiting else ""
        scope = (
            f"{formatting.count(len(rows), 'class', 'classes')}{only}, {formatting.count(idle, 'idle job')}, as of "
            f"{formatting.ago(views.overlay.view.taken_at, now)} ago{fault}"
        )
    return Listing(SCHEMA, columns(now), rows, lambda c: c.job.id, scope)


def newest_plan(reader: Reader) -> Plan | None:
    """The plan of the newest tick on record."""
    plans = reader.plans(limit=1)
    return plans[-1] if plans else None
