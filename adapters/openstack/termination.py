"""Ends of drones: how each has ended, what its console said, and the ports and volumes that its server left behind.

Nova alone tells only that a server is off or gone. Its record of actions (os-instance-actions, kept after the server
is deleted) names who did it: us, another user, or nobody, which is Nova itself as it finds that a guest has gone off
(``stop``, _sync_instance_power_state). The first of these that ended the run counts. What comes later does not: a drone
that has left by itself is stopped by Nova and then deleted by us; one that an operator stops writes its exit report,
too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from adapters.openstack.records import Server, ServerAction
from adapters.openstack.states import CRASHED_GUEST, GONE, MAX_REASON, SHUT_DOWN_GUEST, server_phase
from adapters.shared.printing import printable
from provisioner.model import DroneId, EndKind, FaultKind, RemoteEnd, RemoteState

if TYPE_CHECKING:
    from adapters.openstack.nova import OpenStackCloud

_REQUEST_KEPT_S = 86400.0
_MAX_SERVERS = 20_000
"""Ends that are known, and deleted servers that may have left something."""

_ENDING: Mapping[str, str] = {
    "stop": "stopped",
    "delete": "deleted",
    "suspend": "suspended",
    "shelve": "shelved",
    "shelveOffload": "shelved",
    "reboot": "rebooted",
    "rebuild": "rebuilt",
    "rescue": "rescued",
    "resize": "resized",
    "migrate": "moved",  # a cold one: the guest is shut down
    "evacuate": "evacuated",
}
"""Actions (``nova/compute/instance_actions.py``) after which a guest does not go on where it was."""


@dataclass(frozen=True, slots=True)
class EndEvidence:
    """Facts about the end of a drone."""

    server: Server
    """As last known."""
    actions: Sequence[ServerAction] | None = None
    """Newest first; None if unknown."""
    report: GuestExitReport | None = None
    output: str = ""
    """The end of its console output."""


def end_of(evidence: EndEvidence, asked: bool, our_user: str, now: float) -> RemoteEnd:
    """Return the end of a drone. ``asked``: this controller has stopped it."""
    server, report = evidence.server, evidence.report
    first = _ending_action(evidence.actions or ())
    words = report.words if report is not None else ""
    if report is None and server.fault is not None and not server.launched_at:
        words = server.fault.message.strip()  # it was stopped for that: why it never ran, in Nova's words
    words = printable(words, MAX_REASON)
    if (first is None and asked) or (first is not None and bool(our_user) and first.user == our_user):
        end = RemoteEnd(EndKind.STOPPED, 0.0, None, f"stopped on our request{f': {words}' if words else ''}")
    elif (taken := _taken(server, first)) is not None:
        end = taken
    elif report is not None:
        end = RemoteEnd(EndKind.EXITED, 0.0, report.exit_code, words)
    else:
        end = _end_without_report(server, first, evidence.output)
    reported_at = first.at if first is not None else 0.0
    at = min(reported_at or server.terminated_at or server.updated_at or now, now)
    return replace(end, at=at, message=printable(end.message, MAX_REASON))


def _ending_action(actions: Sequence[ServerAction]) -> ServerAction | None:
    """Return the action that ended the run of a server.

    ``resume`` takes a suspension back; a paused guest has never ended.
    """
    first: ServerAction | None = None
    for each in reversed(actions):
        if first is None and each.action in _ENDING:
            first = each
        elif first is not None and (first.action, each.action) == ("suspend", "resume"):
            first = None
    return first


def _taken(server: Server, first: ServerAction | None) -> RemoteEnd | None:
    """Return the end if somebody at the cloud brought it about, whatever its drone wrote as it left."""
    if first is None:
        phase = server_phase(server)
        return RemoteEnd(EndKind.PREEMPTED, 0.0, None, f"it {phase.why}") if phase.taken else None
    if first.action == "evacuate":
        return RemoteEnd(EndKind.FAULT, 0.0, None, "its host failed, and it was evacuated", FaultKind.NODE)
    if not first.user:
        return None
    action = f"{_ENDING[first.action]} it: {first.action} by user {printable(first.user, 64)}"
    return RemoteEnd(EndKind.PREEMPTED, 0.0, None, f"somebody at the cloud {action}")


def _end_without_report(server: Server, first: ServerAction | None, output: str) -> RemoteEnd:
    """Return the end of a drone without an exit report.

    Where the console is read (``output``) a guest that went off without one did not end in order.
    """
    phase = server_phase(server)
    fault = FaultKind.UNKNOWN
    if phase.state is RemoteState.STOPPED and phase.fault is not None:
        why, fault = phase.why, phase.fault
    elif server.power == CRASHED_GUEST:
        why, fault = "its guest has crashed", FaultKind.NODE
    elif first is not None and first.action != "stop":
        why = f"its cloud itself {_ENDING[first.action]} it"
    elif first is None and server.status != "SHUTOFF" and server.power != SHUT_DOWN_GUEST:
        why = "deleted by somebody"
    elif output:
        why, fault = "it went off without a last word of its drone", FaultKind.NODE
    else:
        return RemoteEnd(EndKind.EXITED, 0.0, None, "its guest has shut down, and its console tells nothing")
    return RemoteEnd(EndKind.FAULT, 0.0, None, why, fault)


def is_deleted(server: Server, actions: Sequence[ServerAction], asked: bool) -> bool:
    """Return whether a server that is not listed any more is gone.

    One that is deleted before Nova has put it on a host leaves no trace: then only our own request tells.
    """
    recorded = server.status in GONE or any(each.action == "delete" for each in actions)
    return recorded or (asked and not actions and not server.launched_at)


class EndedServers:
    """Ends of drones. An end that was recorded once does not change, whatever happens to its server later.

    ``keep_s``: how long it is kept after the server is gone.
    """

    def __init__(self, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s, self._clock = keep_s, clock
        self._asked: dict[DroneId, float] = {}
        self._known: dict[DroneId, tuple[RemoteEnd, float]] = {}
        """Each with the time when its server was last there, or when the end was determined."""

    @property
    def known(self) -> Mapping[DroneId, RemoteEnd]:
        return {drone_id: end for drone_id, (end, _) in self._known.items()}

    @property
    def asked(self) -> Collection[DroneId]:
        """Drones that this controller has asked to leave."""
        return self._asked.keys()

    def ask(self, drone_ids: Iterable[DroneId]) -> None:
        """Record a request, before the cloud is called. For a drone whose end is known it only clears its server."""
        now = self._clock()
        self._asked |= {drone_id: now for drone_id in drone_ids if drone_id not in self._known}

    def unasked(self, drone_id: DroneId) -> None:
        """Record that the cloud has not carried out the request."""
        self._asked.pop(drone_id, None)

    def determine(self, drone_id: DroneId, evidence: EndEvidence, our_user: str, now: float) -> RemoteEnd:
        """Return the recorded end of a drone, or determine it."""
        if drone_id not in self._known:
            self._known[drone_id] = end_of(evidence, drone_id in self._asked, our_user, now), self._clock()
        return self._known[drone_id][0]

    def forget(self, there: Collection[DroneId]) -> None:
        """Forget old ends. ``there``: drones of which the cloud still has a server."""
        now = self._clock()
        self._asked = {d: at for d, at in self._asked.items() if d in there or at > now - _REQUEST_KEPT_S}
        kept = {d: (end, now if d in there else at) for d, (end, at) in self._known.items()}
        self._known = {d: each for d, each in list(kept.items())[-_MAX_SERVERS:] if each[1] > now - self._keep_s}


# ------------------------------------------------------------------------------------------------------------- consoles

MAX_TAIL_BYTES = 16 * 1024
_MAX_LINE = 1000
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
_POOL_TOKEN = re.compile(r"eyJ[A-Za-z0-9_=-]{12,}[A-Za-z0-9_.=-]*")
_LINE_PREFIX = r"(?:\[ *[0-9.]+\] *)?(?:[A-Za-z0-9_.@-]{1,64}\[[0-9]+\]: )?"
"""The kernel's clock, and which process it was: before each line that a service writes on the console."""
_REPORT_LINE = rf"{_LINE_PREFIX}=== drone %s exit=([0-9]{{1,3}}) (.*) ===\s*"
_REPORT_REASON = re.compile(r"(?:^| )reason=(?P<reason>\S+)")
_REPORT_WHY = re.compile(r"(?:^| )why=(?P<why>\S+)")


@dataclass(frozen=True, slots=True)
class GuestExitReport:
    """End of a drone as its guest reports it on the console."""

    exit_code: int
    """``docs/reference/drone.md``; 69: the server is not fit for a drone, 70: its files did not arrive, 128 and more:
    a signal."""
    words: str


def exit_report(console: str, drone_id: DroneId) -> GuestExitReport | None:
    """Return the last exit report of this drone on a console; None if there is none."""
    pattern = re.compile(_REPORT_LINE % re.escape(drone_id))
    found = [match for line in _lines(console) if (match := pattern.fullmatch(line))]
    if not found:
        return None
    words = found[-1][2]
    if (reason := _REPORT_REASON.search(words)) is not None:
        why = _REPORT_WHY.search(words)
        words = reason["reason"] + (f": {unquote(why['why'])}" if why else "")
    return GuestExitReport(int(found[-1][1]), printable(_POOL_TOKEN.sub("(token)", words.strip()), MAX_REASON))


def tail(console: str, lines: int) -> str:
    """Return the last ``lines`` lines for people: plain characters, no tokens, at most 16 KiB."""
    kept = [line[:_MAX_LINE].rstrip() for line in _lines(_POOL_TOKEN.sub("(token)", console))]
    text = "\n".join([line for line in kept if line][-lines:] if lines > 0 else [])
    cut = text.encode(errors="replace")
    if len(cut) <= MAX_TAIL_BYTES:
        return cut.decode()
    return cut[-MAX_TAIL_BYTES:].decode(errors="ignore").partition("\n")[2]


def _lines(console: str) -> Iterator[str]:
    """Yield lines without what steers a terminal. A carriage return begins a line, as a terminal would show it."""
    for line in re.split(r"\r*\n|\r", _ESCAPE.sub("", console)):
        yield "".join(c if c.isprintable() else " " if c == "\t" else "?" for c in line)


# ------------------------------------------------------------------------------------------- what servers leave behind

_DELETABLE = ("available", "error", "error_deleting")
"""Statuses in which Cinder deletes a volume."""
_RETRY_S = 60.0
"""Time until a cleanup that failed is tried again."""
_LATE_S = 300.0
"""Time after the end of a server in which Nova and Cinder may still clean up themselves."""


class ResourceCleanup:
    """Deletion of ports and volumes that Nova made for deleted servers and did not delete.

    Only what belonged to one of our servers is deleted. Such leftovers eat quotas, until nothing more can be started.
    ``every_s`` is the interval; 0 disables it.
    """

    def __init__(self, every_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._pending: dict[str, tuple[Server, float]] = {}
        """Each with the time since when it is known to be gone."""
        self._done: set[str] = set()
        self._next_at = 0.0

    def due(self, gone: Mapping[str, Server]) -> bool:
        """Return whether a cleanup is due. ``gone``: our servers that a poll did not list any more."""
        now = self._clock()
        self._done &= gone.keys()
        for server_id, server in gone.items():
            if server.status in GONE and server_id not in self._done and len(self._pending) < _MAX_SERVERS:
                self._pending.setdefault(server_id, (server, now))
        return bool(self._every_s and self._pending) and now >= self._next_at

    async def run(self, cloud: OpenStackCloud) -> None:
        """Look for leftovers and delete them. If ``cloud`` raises, the next attempt is soon."""
        now = self._clock()
        self._next_at = now + min(_RETRY_S, self._every_s)
        servers = {server_id: server for server_id, (server, _) in self._pending.items()}
        attached = {volume for server in servers.values() for volume in server.volumes}
        ports, volumes = await cloud.ports(), await cloud.volumes()
        for port, server_id in ports.items():
            if server_id in servers:
                await cloud.delete_port(port)
        for volume, status in volumes.items():
            if volume in attached and status in _DELETABLE:
                await cloud.delete_volume(volume)
        self._done |= {server_id for server_id, (_, since) in self._pending.items() if since <= now - _LATE_S}
        self._pending = {server_id: each for server_id, each in self._pending.items() if server_id not in self._done}
        self._next_at = now + self._every_s
