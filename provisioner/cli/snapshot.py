"""``provisioner snapshot``: save what a tick knew, to replay it elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from provisioner import say
from provisioner.cli.exits import Failure
from provisioner.cli.options import LARGEST_TICK, Where, shared
from provisioner.cli.output import note
from provisioner.cli.where import open_record
from provisioner.model import Snapshot
from provisioner.store import Reader

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
@shared
def snapshot(
    where: Where,
    tick: Annotated[
        int | None, typer.Option("--tick", metavar="N", min=0, max=LARGEST_TICK,
                                        help="Of this recorded tick; else as the next one begins.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here instead of stdout.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Only list the ticks whose snapshots are kept.")] = False,
) -> None:
    """Write a snapshot as JSON.

    Job classes, slots, site views, drones and policy at one time: all that a decision depends on. Snapshots are
    kept of the newest ticks that did something (store.snapshots in the configuration). They name owners of jobs,
    hosts and drones, but hold no secret.

    \b
    Examples:
      provisioner snapshot -o snapshot.json
      provisioner snapshot --list
      provisioner snapshot --tick 1742 | gzip > tick-1742.json.gz
    """
    reader = open_record(where)
    if list_:
        kept = reader.kept_snapshots()
        sys.stdout.write("".join(f"{n}\n" for n in kept))
        note(f"{say.count(len(kept), 'snapshot')} kept")
        return
    from provisioner.cli.files import snapshot_text, write_whole

    text = snapshot_text(kept_snapshot(reader, tick))
    if output is None:
        sys.stdout.write(text)
    else:
        write_whole(output, text)
        note(f"{output}: {len(text)} bytes")


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
