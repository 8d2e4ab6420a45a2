"""``provisioner leader``: which of several members leads."""

from __future__ import annotations

from provisioner.answers.status import resignation
from provisioner.cli import options as opt
from provisioner.cli.drones import record_request
from provisioner.model import RequestKind

leader_app = opt.verbs(no_args_is_help=True)


@leader_app.callback()
def leader() -> None:
    """Change which of several members leads.

    `provisioner status` shows them.
    """


@leader_app.command("resign")
@opt.shared
def resign(where: opt.Where, reason: opt.EventReason = "") -> None:
    """Have the leader hand over to a standby that is ready, as before an upgrade of its host.

    The leader does this at its next tick, after its orders have been answered. Without a standby that is ready the
    request is refused (exit 3).

    \b
    Examples:
      provisioner leader resign --reason "kernel update"
    """
    if where.url is not None:
        from provisioner.cli import remote

        return remote.post(where, "/leader/resign", reason=reason)
    reader = opt.open_record(where)
    return record_request(reader, RequestKind.RESIGN, [], reason, resignation(reader))
