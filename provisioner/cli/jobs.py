"""``provisioner jobs``: the jobs of the embedded overlay's queue."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated

import typer

from provisioner import formatting
from provisioner.cli.listing import Listing
from provisioner.cli.options import Pick, Show, Where, shared
from provisioner.cli.output import picked, present
from provisioner.cli.queue_rows import SCHEMA, JobQueue, QueuedJob, answer_of, columns, open_queue

app = typer.Typer(add_completion=False, rich_markup_mode=None)

MOST = 1_000_000


@app.command()
@shared
def jobs(
    where: Where,
    show: Show,
    pick: Pick,
    ids: Annotated[list[int] | None, typer.Argument(metavar="ID", help="Only these.", show_default=False)] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Those that have ended, too.")] = False,
) -> None:
    """List the jobs of the embedded queue.

    Without options those that have not ended. For a pool of HTCondor there is condor_q.

    \b
    Examples:
      provisioner jobs
      provisioner jobs --all --sort -ended_at --limit 20
      provisioner jobs 17 18 -o json
    """
    queue = open_queue(where)
    present(show, lambda: picked(job_listing(queue, ids or (), all_ or bool(ids), time.time()), pick))


def job_listing(queue: JobQueue, ids: list[int] | tuple[()], all_: bool, now: float) -> Listing[QueuedJob]:
    """The answer of ``provisioner jobs``."""
    found = list(answer_of(queue.jobs(ids=ids, limit=MOST)))
    if not all_:
        found = [j for j in found if str(j.state) in ("idle", "running", "held")]
    counts = Counter(str(j.state) for j in found)
    states = ", ".join(f"{n} {state}" for state, n in counts.most_common()) or "none"
    more = "" if all_ else "; --all for ended ones"
    return Listing(
        SCHEMA, columns(now), found, lambda j: str(j.id), f"{formatting.count(len(found), 'job')}: {states}{more}"
    )
