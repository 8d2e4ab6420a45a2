"""``provisioner estimates``: what experience tells the planner, and a way to forget some of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from provisioner import formatting
from provisioner.cli.estimate_rows import Known, learned_document
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.options import Show, Where, nothing_before, shared
from provisioner.cli.output import note, present
from provisioner.cli.resolve import named
from provisioner.cli.where import open_record
from provisioner.estimates import EstimateSamples, owner_of
from provisioner.store import Reader

app = typer.Typer(add_completion=False, rich_markup_mode=None)

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Of this user: run times by size, too.")]


@app.callback(invoke_without_command=True)
@shared
def estimates(ctx: typer.Context, where: Where, show: Show, user: User = None) -> None:
    """Tell what was learned: run times by user, delays by drone type, and of each site its owner and its idle gaps.

    As the controller kept it last: it does so about every ten minutes and at its end. What the planner makes of it
    (an owner's rises, idle time-outs) is as of the newest tick. `estimates forget` makes it forget some of it.

    \b
    Examples:
      provisioner estimates
      provisioner estimates --user anna
      provisioner estimates -o json | jq '.sites[] | {site, rise_1h_gpu_milli, idle_s}'
    """
    if ctx.invoked_subcommand is not None:
        nothing_before(ctx)
        return
    _must_be_names("user", [user] if user is not None else [], "leave it away for all users")
    reader = open_record(where)
    present(show, lambda: learned_document(known(reader, user or ""), time.time()))


def known(reader: Reader, user: str) -> Known:
    """What is on record of it. Raises :class:`Failure` for a user of whom nothing is known."""
    experience, views, asked = reader.experience(), reader.views(), reader.forgets()
    if user and experience is not None:
        _user_must_be_known(experience, user)
    return Known(experience, views.estimates if views else None, asked, user)


@app.command("forget")
@shared
def forget(
    where: Where,
    reason: Annotated[str, typer.Option("--reason", "-r", metavar="TEXT", help="Why; it is recorded as an event.")],
    user: Annotated[
        list[str] | None,
        typer.Option("--user", metavar="NAME", help="This user's run times, and with them those of all; repeatable."),
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option("--site", metavar="NAME", help="This site's owner, gaps and delays; repeatable."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All of it.")] = False,
) -> None:
    """Forget something that was learned, so that it is learned anew: an owner who has changed, a user's new code.

    Recorded now; the controller does it within a minute, or when one runs. Drones and jobs on record stay. Run times
    of all users taken together have a user's among them, so they go with his: ten jobs later they are known anew.

    \b
    Examples:
      provisioner estimates forget --site topas --reason "the owner's group has moved to another cluster"
      provisioner estimates forget --user anna --user bert --reason "new framework, jobs run ten times faster"
      provisioner estimates forget --all --reason "moved to new machines"
    """
    from provisioner.cli.ask import operator

    users, sites = list(dict.fromkeys(user or ())), list(dict.fromkeys(site or ()))
    what = [f"user:{name}" for name in users] + [f"site:{name}" for name in sites]
    if not reason.strip():
        raise Failure("--reason must not be empty: it is recorded as an event", code=Exit.USAGE)
    if all_ is bool(what):
        raise Failure("forget what? --all, or some with --user and --site", code=Exit.USAGE)
    _must_be_names("user", users, "name a user, or use --all")
    _must_be_names("site", sites, "name a site, or use --all")
    reader = open_record(where)
    _must_be_known(reader, users, sites)
    for each in ["all"] if all_ else what:
        reader.forget(each, reason=reason, by=operator(), at=time.time())
        note(f"recorded: to forget {each}")
    if reader.holder() is None:
        note("no controller runs: it will be done when one does")


def _must_be_names(option: str, names: Sequence[str], instead: str) -> None:
    """Raises :class:`Failure` for an empty one, as of a variable that is not set: it would mean everybody."""
    if not all(name.strip() for name in names):
        raise Failure(f"--{option} must not be empty: {instead}", code=Exit.USAGE)


def _must_be_known(reader: Reader, users: Sequence[str], sites: Sequence[str]) -> None:
    """Raises :class:`Failure` for the first name of which nothing is on record: a misspelling would forget nothing."""
    experience = reader.experience() if users or sites else EstimateSamples(0.0)
    if experience is None:
        raise Failure("nothing learned is on record yet: the controller keeps it every ten minutes and at its end")
    for name in users:
        _user_must_be_known(experience, name)
    places = {*experience.sites, *(key.partition("/")[0] for key in experience.delays)}
    for name in sites:
        if name not in places:
            raise Failure(
                f"nothing is known of site {formatting.sanitize(name, 80)}; known: {named(sorted(places)) or 'none'}"
            )


def _user_must_be_known(experience: EstimateSamples, name: str) -> None:
    if not any(owner_of(key) == name for key in experience.runs):
        raise Failure(f"nothing is known of the jobs of user {formatting.sanitize(name, 80)}")
