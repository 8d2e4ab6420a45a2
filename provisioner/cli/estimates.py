"""``provisioner estimates forget``: forget some of what was learned."""

from __future__ import annotations

from typing import Annotated

from provisioner.answers.errors import UsageError, VerbError
from provisioner.answers.estimates import NOTHING_KEPT, require_known
from provisioner.cli import options as opt, output as out
from provisioner.cli.drones import operator
from provisioner.cli.questions import question_app

estimates_app = question_app("estimates")


@estimates_app.command("forget")
@opt.shared
def forget(
    where: opt.Where,
    reason: opt.EventReason,
    user: Annotated[
        list[str] | None, opt.option("NAME", "Run times of this user and of all; repeatable.")
    ] = None,
    site: Annotated[
        list[str] | None, opt.option("NAME", "This site's owner, gaps and delays; repeatable.")
    ] = None,
    all_: Annotated[bool, opt.switch("All of it.", "--all")] = False,
) -> None:
    """Remove estimates that do not apply any more: an owner who has changed, a user's new code.

    The controller does it within a minute, or when it starts. Drones and jobs on record stay. Run times of all users
    together contain those of each user, so they are removed too. They are known again after ten jobs.

    \b
    Examples:
      provisioner estimates forget --user anna --user bert --reason "new framework, jobs run ten times faster"
    """
    users = list(dict.fromkeys(user or ()))
    sites = list(dict.fromkeys(site or ()))
    what = [f"user:{name}" for name in users] + [f"site:{name}" for name in sites]
    if not reason.strip():
        raise UsageError("--reason must not be empty: it is recorded as an event")
    if all_ is bool(what):
        raise UsageError("forget what? --all, or some with --user and --site")
    reader = opt.open_record(where)
    if not all_:
        samples = reader.estimate_samples()
        if samples is None:
            raise VerbError(NOTHING_KEPT)
        require_known(samples, users, sites)
    for each in ["all"] if all_ else what:
        reader.ask_estimate_reset(each, reason=reason, by=operator(), at=reader.now())
        out.note(f"recorded: to forget {each}")
    if reader.holder() is None:
        out.note("no controller runs: it will be done when one does")
