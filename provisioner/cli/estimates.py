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
        list[str] | None,
        opt.option("NAME", "Run times of this user and of all users together; repeatable."),
    ] = None,
    site: Annotated[
        list[str] | None,
        opt.option("NAME", "Owner, idle gaps and start delays of this site; repeatable."),
    ] = None,
    all_: Annotated[bool, opt.switch("All estimates.", "--all")] = False,
) -> None:
    """Remove estimates that no longer apply, for example after a change of the owner or of a user's code.

    The controller does this within a minute, or when it starts. Drones and jobs on record are not affected. With
    --user it also removes the run times of all users together, because they contain those of this user. New estimates
    need ten jobs.

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
        raise UsageError("nothing selected: write --all, --user or --site")
    reader = opt.open_record(where)
    if not all_:
        samples = reader.estimate_samples()
        if samples is None:
            raise VerbError(NOTHING_KEPT)
        require_known(samples, users, sites)
    for each in ["all"] if all_ else what:
        reader.ask_estimate_reset(each, reason=reason, by=operator(), at=reader.now())
        out.note(f"request recorded: forget {each}")
    if reader.holder() is None:
        out.note("no controller runs: the next one will carry it out")
