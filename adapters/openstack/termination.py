"""Ends of drones: how each has ended, what its console said, and the ports and volumes that its server left behind.

Nova alone tells only that a server is off or gone. Its record of actions (os-instance-actions, kept
after the server is deleted) names who did it: us, another user, or nobody, which is Nova itself as
it finds that a guest has gone off (``stop``, _sync_instance_power_state). The first of these that
ended the run counts. What comes later does not: a drone that has left by itself is stopped by Nova
and then deleted by us; one that an operator stops writes its exit report, too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from adapters.openstack import servers
from adapters.openstack.servers import GONE, MAX_REASON, Server, ServerAction, server_phase
from adapters.shared.printing import drone_report, printable, without_tokens
from provisioner.model import DroneId, EndKind, FaultKind, RemoteEnd, RemoteState

if TYPE_CHECKING:
    from adapters.openstack.nova import OpenStackCloud

_ENDING = frozenset(
    {
        *(
            "stop",
            "delete",
            "suspend",
            "shelve",
            "shelveOffload",
            "reboot",
            "rebuild",
            "rescue",
            "resize",
        ),
        *("migrate", "evacuate"),  # a cold migration: the guest is shut down
    }
)
"""Actions (``nova/compute/instance_actions.py``) after which a guest does not go on where it was."""


def end_of(
    server: Server,
    actions: Sequence[ServerAction],
    report: GuestExitReport | None = None,
    output: str = "",
    *,
    asked: bool,
    our_user: str,
    now: float,
) -> RemoteEnd:
    """Return the end of a drone.

    ``server`` is as last known. ``actions``: newest first; empty where they are hidden. ``output``:
    the end of its console. ``asked``: this controller has stopped it.
    """
    first = _ending_action(actions)
    words = report.words if report is not None else ""
    if report is None and server.fault is not None and not server.launched_at:
        # it was stopped for that: why it never ran, in Nova's words
        words = server.fault.message.strip()
    words = printable(words, MAX_REASON)
    if (first is None and asked) or (
        first is not None and bool(our_user) and first.user == our_user
    ):
        end = RemoteEnd(
            EndKind.STOPPED, 0.0, None, f"stopped by the controller{f': {words}' if words else ''}"
        )
    elif (taken := _taken(server, first)) is not None:
        end = taken
    elif report is not None:
        end = RemoteEnd(EndKind.EXITED, 0.0, report.exit_code, words)
    else:
        end = _end_without_report(server, first, output)
    reported_at = first.at if first is not None else 0.0
    at = min(reported_at or server.terminated_at or server.updated_at or now, now)
    return replace(end, at=at, message=printable(end.message, MAX_REASON))


def _ending_action(actions: Sequence[ServerAction]) -> ServerAction | None:
    """Return the action that ended the run of a server. A paused guest has never ended."""
    first: ServerAction | None = None
    for each in reversed(actions):
        if first is None and each.action in _ENDING:
            first = each
        elif first is not None and (first.action, each.action) == ("suspend", "resume"):
            first = None
    return first


def _taken(server: Server, first: ServerAction | None) -> RemoteEnd | None:
    if first is None:
        phase = server_phase(server)
        return RemoteEnd(EndKind.PREEMPTED, 0.0, None, f"it {phase.why}") if phase.taken else None
    if first.action == "evacuate":
        return RemoteEnd(
            EndKind.FAULT, 0.0, None, "its host failed, and it was evacuated", FaultKind.NODE
        )
    if not first.user:
        return None
    action = f"{first.action} by user {printable(first.user, 64)}"
    return RemoteEnd(EndKind.PREEMPTED, 0.0, None, f"somebody at the cloud ended it: {action}")


def _end_without_report(server: Server, first: ServerAction | None, output: str) -> RemoteEnd:
    # A guest that went off without a report did not end in order, if the console is read
    # (``output``).
    phase = server_phase(server)
    fault = FaultKind.UNKNOWN
    if phase.state is RemoteState.STOPPED and phase.fault is not None:
        why = phase.why
        fault = phase.fault
    elif server.power == servers.CRASHED_GUEST:
        why = "its guest has crashed"
        fault = FaultKind.NODE
    elif first is not None and first.action != "stop":
        why = f"its cloud itself ended it: {first.action}"
    elif first is None and server.status != "SHUTOFF" and server.power != servers.SHUT_DOWN_GUEST:
        why = "deleted by somebody"
    elif output:
        why = "it shut down without an exit status of its drone"
        fault = FaultKind.NODE
    else:
        return RemoteEnd(
            EndKind.EXITED, 0.0, None, "its guest has shut down, and its console tells nothing"
        )
    return RemoteEnd(EndKind.FAULT, 0.0, None, why, fault)


def is_deleted(server: Server, actions: Sequence[ServerAction], asked: bool) -> bool:
    """Return whether a server that is not listed any more is gone."""
    recorded = server.status in GONE or any(each.action == "delete" for each in actions)
    # One that is deleted before Nova has put it on a host leaves no trace: then only our own
    # request tells.
    return recorded or (asked and not actions and not server.launched_at)


# -------------------------------------------------------------------------------------------------------------
# consoles

MAX_TAIL_BYTES = 16 * 1024
_MAX_LINE = 1000
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
_LINE_PREFIX = r"(?:\[ *[0-9.]+\] *)?(?:[A-Za-z0-9_.@-]{1,64}\[[0-9]+\]: )?"
"""The kernel's clock, and which process it was: before each line that a service writes on the console."""
_REPORT_LINE = rf"{_LINE_PREFIX}=== drone %s exit=([0-9]{{1,3}}) (.*) ===\s*"


class GuestExitReport(NamedTuple):
    """End of a drone as its guest reports it on the console; the exit codes are in ``docs/reference/drone.md``."""

    exit_code: int
    words: str


def exit_report(console: str, drone_id: DroneId) -> GuestExitReport | None:
    """Return the last exit report of this drone on a console; None if there is none."""
    pattern = re.compile(_REPORT_LINE % re.escape(drone_id))
    found = [match for line in _lines(console) if (match := pattern.fullmatch(line))]
    if not found:
        return None
    return GuestExitReport(int(found[-1][1]), drone_report(found[-1][2], MAX_REASON))


def tail(console: str, lines: int) -> str:
    """Return the last ``lines`` lines for people: plain characters, no tokens, at most 16 KiB."""
    kept = [line[:_MAX_LINE].rstrip() for line in _lines(without_tokens(console))]
    text = "\n".join([line for line in kept if line][-lines:] if lines > 0 else []).encode(
        errors="replace"
    )
    cut = text[-MAX_TAIL_BYTES:].decode(errors="ignore")
    return cut if len(text) <= MAX_TAIL_BYTES else cut.partition("\n")[2]


def _lines(console: str) -> Iterator[str]:
    """Yield lines without what steers a terminal. A carriage return begins a line, as a terminal would show it."""
    for line in re.split(r"\r*\n|\r", _ESCAPE.sub("", console)):
        yield "".join(c if c.isprintable() else " " if c == "\t" else "?" for c in line)


# ------------------------------------------------------------------------------------------- what
# servers leave behind

_DELETABLE = ("available", "error", "error_deleting")
"""Statuses in which Cinder deletes a volume."""
_RETRY_S = 60.0
"""Time until a cleanup that failed is tried again."""
_LATE_S = 300.0
"""Time after the end of a server in which Nova and Cinder may still clean up themselves."""


class ResourceCleanup:
    """Deletion of ports and volumes that Nova made for servers of ours and did not delete: they would eat up quotas.

    ``every_s`` is the interval; 0 disables it.
    """

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._pending: dict[str, tuple[Server, float]] = {}
        """Each with the time since when it is known to be gone."""
        self._done: set[str] = set()
        self._next_at = 0.0

    def due(self, gone: Mapping[str, Server]) -> bool:
        """Return whether a cleanup is due. ``gone``: our servers that a poll did not list any more."""
        now = self._clock()
        self._done &= gone.keys()
        for server_id, server in gone.items():
            if server.status in GONE and server_id not in self._done:
                self._pending.setdefault(server_id, (server, now))
        return bool(self._every_s and self._pending) and now >= self._next_at

    async def run(self, cloud: OpenStackCloud) -> None:
        """Delete what is left. If ``cloud`` raises, the next attempt is soon."""
        now = self._clock()
        self._next_at = now + min(_RETRY_S, self._every_s)
        gone = {server_id: server for server_id, (server, _) in self._pending.items()}
        attached = {volume for server in gone.values() for volume in server.volumes}
        volumes = await cloud.volumes()
        ports = await cloud.ports()
        for port, server_id in ports.items():
            if server_id in gone:
                await cloud.delete_port(port)
        for volume, status in volumes.items():
            if volume in attached and status in _DELETABLE:
                await cloud.delete_volume(volume)
        self._done |= {
            server_id for server_id, (_, since) in self._pending.items() if since <= now - _LATE_S
        }
        self._pending = {
            server_id: each
            for server_id, each in self._pending.items()
            if server_id not in self._done
        }
        self._next_at = now + self._every_s
