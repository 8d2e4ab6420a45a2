"""How drones have ended: out of what was asked of them, what their console said, and what was done with their servers.

Nova alone tells only that a server is off or gone. Its record of actions (os-instance-actions, kept after the server
is deleted) says by whom: us, another user, or nobody, which is Nova itself as it finds that a guest has gone off
(``stop``, _sync_instance_power_state). The first of these that ended the run counts. What comes later does not: a drone
that has left by itself is stopped by Nova and then deleted by us; one that an operator stops says its last word, too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

from adapters.openstack.records import Server, ServerAction
from adapters.openstack.states import CRASHED_GUEST, GONE, LONGEST, SHUT_DOWN_GUEST, meaning
from adapters.shared.printing import printable
from provisioner.model import DroneId, EndKind, FaultKind, RemoteEnd, RemoteState

_REMEMBERED_S = 86400.0
_MOST = 20_000

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
_GOES_ON = "resume"
"""Takes a suspension back; a paused guest has never ended."""


def end_of(
    server: Server,
    asked: bool,
    verdict: GuestExitReport | None,
    actions: Sequence[ServerAction] | None,
    our_user: str,
    now: float,
    *,
    output: str = "",
) -> RemoteEnd:
    """Return the end of the drone in ``server``, as last known.

    ``asked``: this controller has stopped it. ``actions``: newest first; None if unknown. ``output``: the end of its
    console output.
    """
    first = _first(actions or ())
    words = printable(verdict.words if verdict is not None else _never_ran(server), LONGEST)
    if (first is None and asked) or (first is not None and bool(our_user) and first.user == our_user):
        how = RemoteEnd(EndKind.STOPPED, 0.0, None, f"stopped on our request{f': {words}' if words else ''}")
    elif (taken := _taken(server, first)) is not None:
        how = taken
    elif verdict is not None:
        how = RemoteEnd(EndKind.EXITED, 0.0, verdict.exit_code, words)
    else:
        how = _without_a_word(server, first, output)
    told_at = first.at if first is not None else 0.0
    at = min(told_at or server.terminated_at or server.updated_at or now, now)
    return replace(how, at=at, message=printable(how.message, LONGEST))


def _never_ran(server: Server) -> str:
    """Why, in Nova's words: it was stopped for that, and it is what a person wants to read at its end."""
    return server.fault.message.strip() if server.fault is not None and not server.launched_at else ""


def _taken(server: Server, first: ServerAction | None) -> RemoteEnd | None:
    """Its end, if somebody at the cloud brought it about: whatever its drone said as it left."""
    if first is None:
        means = meaning(server)
        return RemoteEnd(EndKind.PREEMPTED, 0.0, None, f"it {means.why}") if means.taken else None
    if first.action == "evacuate":
        return RemoteEnd(EndKind.FAULT, 0.0, None, "its host failed, and it was evacuated", FaultKind.NODE)
    if not first.user:
        return None
    how = f"{_ENDING[first.action]} it: {first.action} by user {printable(first.user, 64)}"
    return RemoteEnd(EndKind.PREEMPTED, 0.0, None, f"somebody at the cloud {how}")


def _without_a_word(server: Server, first: ServerAction | None, output: str) -> RemoteEnd:
    """Where the console is read (``output``) a guest that went off without a verdict did not end in order."""
    means = meaning(server)
    if means.state is RemoteState.STOPPED and means.fault is not None:
        return RemoteEnd(EndKind.FAULT, 0.0, None, means.why, means.fault)
    if server.power == CRASHED_GUEST:
        return RemoteEnd(EndKind.FAULT, 0.0, None, "its guest has crashed", FaultKind.NODE)
    if first is not None and first.action != "stop":
        return RemoteEnd(EndKind.FAULT, 0.0, None, f"its cloud itself {_ENDING[first.action]} it", FaultKind.UNKNOWN)
    if first is None and server.status != "SHUTOFF" and server.power != SHUT_DOWN_GUEST:
        return RemoteEnd(EndKind.FAULT, 0.0, None, "deleted by somebody", FaultKind.UNKNOWN)
    if output:
        return RemoteEnd(EndKind.FAULT, 0.0, None, "it went off without a last word of its drone", FaultKind.NODE)
    return RemoteEnd(EndKind.EXITED, 0.0, None, "its guest has shut down, and its console tells nothing")


def is_deleted(server: Server, actions: Sequence[ServerAction], asked: bool) -> bool:
    """Return whether a server that is not listed any more is gone.

    One that is deleted before Nova has put it on a host leaves no trace: then only our own request tells.
    """
    told = server.status in GONE or any(each.action == "delete" for each in actions)
    return told or (asked and not actions and not server.launched_at)


def _first(actions: Sequence[ServerAction]) -> ServerAction | None:
    """Return the action that ended its run."""
    first: ServerAction | None = None
    for each in reversed(actions):
        if first is None and each.action in _ENDING:
            first = each
        elif first is not None and first.action == "suspend" and each.action == _GOES_ON:
            first = None
    return first


class EndedServers:
    """Ends of drones. An end that was recorded once does not change, whatever happens to its server later.

    ``keep_s``: how long it is kept after the server is gone.
    """

    def __init__(self, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s, self._clock = keep_s, clock
        self._asked: dict[DroneId, float] = {}
        self._known: dict[DroneId, tuple[RemoteEnd, float]] = {}
        """And when its server was last there, or when the end was made out."""

    @property
    def known(self) -> Mapping[DroneId, RemoteEnd]:
        return {drone_id: end for drone_id, (end, _) in self._known.items()}

    @property
    def asked(self) -> Collection[DroneId]:
        """Whom this controller has asked to leave."""
        return self._asked.keys()

    def ask(self, drone_ids: Iterable[DroneId]) -> None:
        """To be called before the cloud is. Of one whose end is known this says nothing: that is cleared away."""
        now = self._clock()
        self._asked |= {drone_id: now for drone_id in drone_ids if drone_id not in self._known}

    def unasked(self, drone_ids: Iterable[DroneId]) -> None:
        """Record that the cloud has not carried out the request."""
        for drone_id in drone_ids:
            self._asked.pop(drone_id, None)

    def make_out(
        self,
        drone_id: DroneId,
        server: Server,
        verdict: GuestExitReport | None,
        actions: Sequence[ServerAction] | None,
        our_user: str,
        now: float,
        *,
        output: str = "",
    ) -> RemoteEnd:
        """Return the recorded end of a drone, or determine it from all sources."""
        if drone_id not in self._known:
            asked = drone_id in self._asked
            found = end_of(server, asked, verdict, actions, our_user, now, output=output)
            self._known[drone_id] = found, self._clock()
        return self._known[drone_id][0]

    def forget(self, there: Collection[DroneId]) -> None:
        """Forget old ends. ``there``: drones of which the cloud still has a server."""
        now = self._clock()
        self._asked = {d: at for d, at in self._asked.items() if d in there or at > now - _REMEMBERED_S}
        kept = {d: (end, now if d in there else at) for d, (end, at) in self._known.items()}
        self._known = {d: each for d, each in list(kept.items())[-_MOST:] if each[1] > now - self._keep_s}


LARGEST_TAIL = 16 * 1024
_LONGEST_WORDS = 300
_LONGEST_LINE = 1000
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
_TOKEN = re.compile(r"eyJ[A-Za-z0-9_=-]{12,}[A-Za-z0-9_.=-]*")
_SAID_BY = r"(?:\[ *[0-9.]+\] *)?(?:[A-Za-z0-9_.@-]{1,64}\[[0-9]+\]: )?"
"""The kernel's clock, and which process it was: before each line that a service says on the console."""
_VERDICT = rf"{_SAID_BY}=== drone %s exit=([0-9]{{1,3}}) (.*) ===\s*"
_OUTCOME = re.compile(r"(?:^| )reason=(?P<reason>\S+)")
_WHY = re.compile(r"(?:^| )why=(?P<why>\S+)")


@dataclass(frozen=True, slots=True)
class GuestExitReport:
    """End of a drone."""

    exit_code: int
    """``docs/reference/drone.md``; 69: the server is not fit for a drone, 70: its files did not arrive, 128 and more:
    a signal."""
    words: str


def verdict(console: str, drone_id: DroneId) -> GuestExitReport | None:
    """Return the last exit report of this drone on a console; None if there is none."""
    wanted = re.compile(_VERDICT % re.escape(drone_id))
    found = [match for line in _lines(console) if (match := wanted.fullmatch(line))]
    if not found:
        return None
    return GuestExitReport(int(found[-1][1]), _in_words(found[-1][2]))


def _in_words(told: str) -> str:
    reason, why = _OUTCOME.search(told), _WHY.search(told)
    if reason is not None:
        told = reason["reason"] + (f": {unquote(why['why'])}" if why else "")
    return printable(_TOKEN.sub("(token)", told.strip()), _LONGEST_WORDS)


def tail(console: str, lines: int) -> str:
    """Return the last ``lines`` lines for people: plain characters, no tokens, at most 16 KiB."""
    kept = [line[:_LONGEST_LINE].rstrip() for line in _lines(_TOKEN.sub("(token)", console))]
    text = "\n".join([line for line in kept if line][-lines:] if lines > 0 else [])
    cut = text.encode(errors="replace")
    if len(cut) <= LARGEST_TAIL:
        return cut.decode()
    return cut[-LARGEST_TAIL:].decode(errors="ignore").partition("\n")[2]


def _lines(console: str) -> Iterator[str]:
    """Without what steers a terminal. A carriage return begins a line, as a terminal would show it."""
    for line in re.split(r"\r*\n|\r", _ESCAPE.sub("", console)):
        yield "".join(c if c.isprintable() else " " if c == "\t" else "?" for c in line)
