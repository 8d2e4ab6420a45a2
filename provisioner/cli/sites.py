"""``provisioner sites``: list them with breaker, drones, limits and the owner's jobs; show one node by node; lift
bans."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from provisioner import formatting
from provisioner.cli import complete
from provisioner.cli.exits import Failure
from provisioner.cli.listing import Listing
from provisioner.cli.options import Pick, Show, Where, nothing_before, shared
from provisioner.cli.output import note, picked, present
from provisioner.cli.resolve import known_sites, named
from provisioner.cli.site_rows import SCHEMA, WEEK_S, SiteRow, columns, site_note, site_rows
from provisioner.cli.where import open_record
from provisioner.model import DroneId, RequestKind
from provisioner.store import Reader

app = typer.Typer(cls=complete.Hints, add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
@shared
def sites(ctx: typer.Context, where: Where, show: Show, pick: Pick) -> None:
    """List the sites, show one, or use one again that is banned.

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
    where: Where,
    show: Show,
    name: Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.", autocompletion=complete.sites)],
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


@app.command("reset")
@shared
def reset_site(
    where: Where,
    name: Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.", autocompletion=complete.sites)],
    type_: Annotated[str | None, typer.Option("--type", metavar="NAME", help="Only this drone type of it.")] = None,
    reason: Annotated[
        str, typer.Option("--reason", "-r", metavar="TEXT", help="Why; it is recorded as an event.")
    ] = "",
) -> None:
    """Use a banned site or drone type again, now: after a repair.

    It is recorded now and carried out at the controller's next tick. What still fails is banned again, for the shortest
    time first.

    \b
    Examples:
      provisioner sites reset local
      provisioner sites reset local --type a100 --reason "HTCondor installed"
      provisioner sites reset topas && provisioner events --follow
    """
    from provisioner.cli.ask import operator

    reader = open_record(where)
    known_sites(reader, [name])
    scope = name
    if type_ is not None:
        scope = f"{name}/{type_.removeprefix(f'{name}/')}"
        _must_be_a_type(reader, scope)
    troubled = [
        s
        for s, b in reader.breakers().items()
        if b.failures and (s == scope or s.startswith((f"{scope}/", f"{scope}#")))
    ]
    if not troubled:
        note(f"{scope} is not banned: nothing was asked for")
        return
    number = reader.ask(RequestKind.RESET, [DroneId(scope)], reason=reason, by=operator(), at=time.time())
    note(f"request {number} recorded: use {', '.join(troubled)} again")
    if reader.holder() is None:
        note("no controller runs: it will be carried out when one does")


def _must_be_a_type(reader: Reader, key: str) -> None:
    """Raise :class:`Failure` for a drone type that is not configured: a misspelling would reset nothing."""
    views = reader.views()
    known = sorted(str(t.key) for t in views.types) if views else []
    if views is not None and key not in known:
        raise Failure(f"no drone type `{formatting.sanitize(key, 80)}`; known: {named(known) or 'none'}")


def site_listing(reader: Reader, now: float) -> Listing[SiteRow]:
    """The answer of ``provisioner sites``."""
    views = reader.views()
    rows = site_rows(views, reader.breakers(), reader.drones(), reader.hazards(now - WEEK_S, now), WEEK_S)
    if views is None:
        scope = f"{formatting.count(len(rows), 'site')}; no tick is on record yet"
    else:
        runs = "" if reader.holder() else "; no controller runs: as last recorded"
        scope = (
            f"{formatting.count(len(rows), 'site')} as of tick {views.tick}, {formatting.ago(views.at, now)} ago{runs}"
        )
    return Listing(SCHEMA, columns(now), rows, lambda s: s.name, scope)


__all__ = ["SiteRow", "app", "columns", "site_listing", "site_note", "site_rows"]
