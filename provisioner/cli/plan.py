"""``provisioner plan``: what the next tick would do and why, from the record; nothing is asked or changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from provisioner import formatting
from provisioner.cli.exits import Failure
from provisioner.cli.listing import Document
from provisioner.cli.options import Show, Where, shared
from provisioner.cli.output import present
from provisioner.cli.where import open_record
from provisioner.model import Snapshot
from provisioner.store import Reader

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@shared
def plan(
    where: Where,
    show: Show,
    snapshot: Annotated[
        Path | None, typer.Option("--snapshot", metavar="FILE", help="Decide on this snapshot; - is stdin.")
    ] = None,
) -> None:
    """Say what the next tick would do, and why.

    A dry run on the newest recorded views: nothing is asked or changed. The same pure function decides as in the
    controller. -o json holds the whole plan for `replay --expect`.

    \b
    Examples:
      provisioner plan
      provisioner plan -o json > plan.json
      provisioner plan --snapshot snapshot.json -o wide
    """
    if snapshot is not None:
        from provisioner.cli.files import read_snapshot

        saved = read_snapshot(snapshot)
        present(show, lambda: planned(saved, f"dry run on {snapshot}"))
        return
    reader = open_record(where)
    present(show, lambda: planned(next_snapshot(reader), "dry run on the record"))


def next_snapshot(reader: Reader) -> Snapshot:
    """The snapshot as the next tick would begin. Raises :class:`Failure` while no tick is on record."""
    found = reader.snapshot()
    if found is None:
        raise Failure("no tick is on record yet: `provisioner run` makes the first")
    return found


def planned(snapshot: Snapshot, origin: str) -> Document:
    """The plan for a snapshot as a document."""
    from provisioner.cli.plan_rows import plan_document
    from provisioner.planner.safeguards import safe_plan

    return plan_document(safe_plan(snapshot).plan, f"{origin} at {formatting.iso(snapshot.now)}")
