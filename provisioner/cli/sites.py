"""``provisioner sites``: list them with breaker, drones, limits and the owner's jobs; show one node by node."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from provisioner import say
from provisioner.cli.listing import Listing
from provisioner.cli.options import Pick, Show, Where, nothing_before, shared
from provisioner.cli.output import picked, present
from provisioner.cli.site_rows import SCHEMA, WEEK_S, SiteRow, columns, site_note, site_rows
from provisioner.cli.where import open_record
from provisioner.store import Reader

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
@shared
def sites(ctx: typer.Context, where: Where, show: Show, pick: Pick) -> None:
    """List the sites, or show one.

    Breaker, live drones and limits, free places, the owner's jobs, how often places were taken back in the last 7 days,
    age of the view, and what is wrong. `sites show NAME` tells of one node by node.

    \b
    Examples:
      provisioner sites
      provisioner sites -o wide --sort -drones
      provisioner sites -o json | jq '.items[] | select(.claims > 0) | {site, claims, claims_gpu_milli}'
    """
    if ctx.invoked_subcommand is not None:
        nothing_before(ctx)
        return
    reader = open_record(where)
    present(show, lambda: picked(site_listing(reader, time.time()), pick))


@app.command("show")
@shared
def show_site(
    where: Where, show: Show, name: Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.")]
) -> None:
    """Tell all of one site: its nodes, the owner's jobs that wait, and how often it takes places back.

    Of each node what is free, what of that is kept for its free GPUs (blocking), and how many drones of ours are there.

    \b
    Examples:
      provisioner sites show topas
      provisioner sites show topas -o csv --columns node,free_gpu_milli,free_cpus,kept_cpus
      provisioner sites show topas -o json | jq '.hazards[] | {scope, preempted, per_1000_h}'
    """
    from provisioner.cli.site_show import shown_site

    reader = open_record(where)
    present(show, lambda: shown_site(reader, name, time.time()))


def site_listing(reader: Reader, now: float) -> Listing[SiteRow]:
    """The answer of ``provisioner sites``."""
    views = reader.views()
    rows = site_rows(views, reader.breakers(), reader.drones(), reader.hazards(now - WEEK_S, now), WEEK_S)
    if views is None:
        scope = f"{say.count(len(rows), 'site')}; no tick is on record yet"
    else:
        runs = "" if reader.holder() else "; no controller runs: as last recorded"
        scope = f"{say.count(len(rows), 'site')} as of tick {views.tick}, {say.ago(views.at, now)} ago{runs}"
    return Listing(SCHEMA, columns(now), rows, lambda s: s.name, scope)


__all__ = ["SiteRow", "app", "columns", "site_listing", "site_note", "site_rows"]
