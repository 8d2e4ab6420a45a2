"""``provisioner snapshot``: save what a tick knew, to replay it elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from provisioner import formatting
from provisioner.cli.cells import text, time_at, whole
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.listing import Column, Listing
from provisioner.cli.options import LARGEST_TICK, Format, Show, Where, shared
from provisioner.cli.output import note, present
from provisioner.cli.plan_rows import in_brief
from provisioner.cli.where import open_record
from provisioner.model import Plan, Snapshot
from provisioner.store import Reader

app = typer.Typer(add_completion=False, rich_markup_mode=None)

SCHEMA = "provisioner.snapshots/1"


@app.command()
@shared
def snapshot(
    ctx: typer.Context,
    where: Where,
    show: Show,
    tick: Annotated[
        int | None,
        typer.Option(
            "--tick", metavar="N", min=0, max=LARGEST_TICK, help="Of this recorded tick; else as the next one begins."
        ),
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Write here instead of stdout.")] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Only list the ticks whose snapshots are kept, and what each did.")
    ] = False,
) -> None:
    """Write a snapshot as JSON.

    Job classes, slots, site views, drones and policy at one time: all that a decision depends on. Snapshots are
    kept of the newest ticks that did something (store.snapshots in the configuration). They name owners of jobs,
    hosts and drones, but hold no secret. A snapshot is always JSON: -o and the options that go with it are for --list.

    \b
    Examples:
      provisioner snapshot --to snapshot.json
      provisioner snapshot --list
      provisioner snapshot --tick 1742 | gzip > tick-1742.json.gz
    """
    reader = open_record(where)
    if list_:
        present(show, lambda: snapshot_listing(reader))
        return
    asked = getattr(ctx.get_parameter_source("output"), "name", "") == "COMMANDLINE"
    if show.watch or show.columns or (asked and show.output is not Format.JSON):
        advice = "-o, --columns and --watch are for --list; --to FILE writes to a file"
        raise Failure("a snapshot is written as JSON, whole and once", advice, code=Exit.USAGE)
    from provisioner.cli.files import snapshot_text, write_whole

    written = snapshot_text(kept_snapshot(reader, tick))
    if to is None:
        sys.stdout.write(written)
    else:
        write_whole(to, written)
        note(f"{to}: {len(written)} bytes")


def snapshot_listing(reader: Reader) -> Listing[Plan]:
    """The answer of ``provisioner snapshot --list``: the plans of the ticks whose snapshots are kept, oldest first."""
    kept = reader.kept_snapshots()
    plans = {plan.tick: plan for plan in reader.plans(limit=len(kept), acting=True)} if kept else {}
    rows = [plans.get(tick) or _repeated(reader, tick) for tick in kept]
    return Listing(SCHEMA, columns(), rows, lambda p: str(p.tick), f"{formatting.count(len(kept), 'snapshot')} kept")


def _repeated(reader: Reader, tick: int) -> Plan:
    """Return an empty plan for a tick whose plan was made again later: the record has the last time only."""
    found = reader.snapshot(tick)
    return Plan(tick, found.now if found else 0.0)


def columns() -> tuple[Column[Plan], ...]:
    """Values of a kept snapshot, by the plan that was made from it."""
    return (
        whole("tick", lambda p: p.tick, "Number of the tick.", level=0),
        time_at("at", lambda p: p.at, "When it was.", level=0),
        whole("starts", lambda p: len(p.starts), "Drones started."),
        whole("drains", lambda p: len(p.drains), "Drones asked to leave."),
        whole("stops", lambda p: len(p.stops) + len(p.orphans), "Drones stopped."),
        text(
            "did",
            lambda p: in_brief(p) if p.acts else "the same as a later tick",
            "What was done, in words.",
            level=0,
            least=20,
        ),
    )


def kept_snapshot(reader: Reader, tick: int | None) -> Snapshot:
    """The snapshot of a tick. Raises :class:`Failure` that names the nearest ones kept."""
    found = reader.snapshot(tick)
    if found is not None:
        return found
    if tick is None:
        raise Failure("no tick is on record yet: `provisioner run` makes the first")
    kept = reader.kept_snapshots()
    near = ", ".join(map(str, sorted(sorted(kept, key=lambda n: abs(n - tick))[:5])))
    raise Failure(
        f"no snapshot of tick {tick} is kept" + (f"; nearest: {near}" if near else "; none is"),
        "only ticks that did something leave one, and only the newest are kept",
    )
