"""What Nova's word for the state of a server means to us: one table; a word that it does not hold means alive.

Sources: "Server concepts" of the compute API guide for the words; ``nova/api/openstack/common.py`` (_STATE_MAP) for how
they come of vm_state and task_state; ``nova/compute/api.py`` (check_instance_state) for what may be asked of a server
in which state; ``nova/compute/manager.py`` (_sync_instance_power_state) for what Nova does with a guest that went off.
Looked up in Nova 34.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from adapters.openstack.errors import of_server
from adapters.openstack.records import Server
from adapters.shared.printing import printable
from provisioner.model import FaultKind, RemoteState

LONGEST = 300

PAUSED_GUEST, SHUT_DOWN_GUEST, CRASHED_GUEST, SUSPENDED_GUEST = 3, 4, 6, 7
"""OS-EXT-STS:power_state (``nova/objects/fields.py``, InstancePowerState), as the hypervisor last told it."""
_RUNNING_GUEST = 1


class Way(Enum):
    """Way in which a server is stopped with notice. Without notice, all are deleted."""

    SHUT_DOWN = auto()
    """By os-stop: its guest is told. Nova takes that of an active server only on which nothing else is being done."""
    NONE = auto()
    """It is on its way already, and would only be cut short."""
    DELETE = auto()
    """There is no guest to tell, or Nova would not tell it now."""


@dataclass(frozen=True, slots=True)
class ServerPhase:
    """Phase of one server."""

    state: RemoteState
    why: str = ""
    """For people: why it does not simply wait or run."""
    way: Way = Way.DELETE
    taken: bool = False
    """Somebody at the cloud has taken back what it ran on."""
    leaving: bool = False
    """Somebody, ourselves perhaps, has it end."""
    fault: FaultKind | None = None
    """The fault: of a pending server its obstacle, of a stopped one its end."""
    final: bool = False
    """It waits, and will never start."""


_PENDING, _RUNNING, _UNKNOWN, _OVER, _ENDED = (
    RemoteState.PENDING,
    RemoteState.RUNNING,
    RemoteState.UNKNOWN,
    RemoteState.STOPPED,
    RemoteState.ENDED,
)

STATES: Mapping[str, ServerPhase] = {
    "ACTIVE": ServerPhase(_RUNNING, way=Way.SHUT_DOWN),
    "BUILD": ServerPhase(_PENDING, "is being built"),
    # The guest runs on while these go on.
    "PASSWORD": ServerPhase(_RUNNING, "its password is being set"),
    "MIGRATING": ServerPhase(_RUNNING, "is being moved to another host"),
    # Somebody does something with it, and what it was made of is still there: he may give it back. Its guest does not
    # run, or starts anew, and whether a drone is in it the pool says.
    "PAUSED": ServerPhase(_UNKNOWN, "was paused at its cloud"),
    "REBOOT": ServerPhase(_UNKNOWN, "is being rebooted"),
    "HARD_REBOOT": ServerPhase(_UNKNOWN, "is being rebooted"),
    "REBUILD": ServerPhase(_UNKNOWN, "is being rebuilt from its image"),
    "RESCUE": ServerPhase(_UNKNOWN, "runs a rescue image, by which somebody looks into it"),
    "RESIZE": ServerPhase(_UNKNOWN, "is being resized or moved, and off meanwhile"),
    "VERIFY_RESIZE": ServerPhase(_UNKNOWN, "was resized or moved, and waits for a yes"),
    "REVERT_RESIZE": ServerPhase(_UNKNOWN, "is moved back to where it was"),
    # It is off, by itself or by somebody (``ends.py``), and what it held is held still: SHUTOFF and SHELVED servers
    # keep their place on the host, all of them count against the quota, until they are deleted.
    "SHUTOFF": ServerPhase(_OVER, "has shut down"),
    "SUSPENDED": ServerPhase(_OVER, "was suspended at its cloud", taken=True),
    "SHELVED": ServerPhase(_OVER, "was shelved at its cloud", taken=True),
    "SHELVED_OFFLOADED": ServerPhase(_OVER, "was shelved at its cloud", taken=True),
    "ERROR": ServerPhase(_OVER, "is in error", fault=FaultKind.NODE),  # one that ran; see meaning() for the others
    # Told by ``changes-since`` alone. A soft-deleted one is off, out of the quota and out of all listings; what it held
    # on its host comes back when the cloud gets round to it (reclaim_instance_interval), or an administrator does.
    "DELETED": ServerPhase(_ENDED, "was deleted", way=Way.NONE),
    "SOFT_DELETED": ServerPhase(_ENDED, "was deleted", way=Way.NONE),
    # "Handling Down Cells" in the guide. The API says the same of a vm_state that it does not know.
    "UNKNOWN": ServerPhase(_UNKNOWN, "its part of the cloud (a cell) does not answer"),
}
"""All states of the compute API guide."""

GONE = frozenset(status for status, each in STATES.items() if each.state is _ENDED)

_LEAVING: Mapping[str, str] = {
    "deleting": "is being deleted",
    "soft-deleting": "is being deleted",
    "powering-off": "is being shut down",
    "suspending": "is being suspended",
    "shelving": "is being shelved",
    "shelving_image_pending_upload": "is being shelved",
    "shelving_image_uploading": "is being shelved",
    "shelving_offloading": "is being shelved",
}
"""Tasks (``nova/compute/task_states.py``) that end the run of a server which has one."""

_BY_POWER: Mapping[int, ServerPhase] = {
    SHUT_DOWN_GUEST: ServerPhase(_OVER, "its guest has shut down"),
    CRASHED_GUEST: ServerPhase(_OVER, "its guest has crashed", fault=FaultKind.NODE),
    PAUSED_GUEST: ServerPhase(_UNKNOWN, "its guest was paused by its hypervisor"),
    SUSPENDED_GUEST: ServerPhase(_UNKNOWN, "its guest was suspended by its hypervisor"),
}
"""Of an active server on which nothing is being done: Nova's look at its guests writes this down first, then stops
those that are off, crashed or suspended, and lets paused ones be."""


def meaning(server: Server) -> ServerPhase:
    """Return the phase of a server."""
    found = STATES.get(server.status)
    if found is None:
        status = printable(server.status, 60) or "none"
        return ServerPhase(_UNKNOWN, f"in a state that is not known here: {status}")
    match server.status:
        case "ERROR":
            found = _in_error(server)
        case "BUILD" if server.task:
            found = replace(found, why=printable(f"{found.why}: {server.task}", LONGEST))
        case "ACTIVE" if server.task:
            found = replace(found, why=printable(f"{server.task} goes on", LONGEST), way=Way.DELETE)
        case "ACTIVE":
            found = _BY_POWER.get(server.power, found)
    if server.task in _LEAVING and found.state is not _ENDED:
        return replace(found, why=_LEAVING[server.task], way=Way.NONE, leaving=True)
    return found


def _in_error(server: Server) -> ServerPhase:
    """Return the phase of a server in ERROR.

    One that was never launched waits in vain. Another is dead, unless the hypervisor says that its guest runs: a
    failed live migration leaves jobs at work in such a server.
    """
    words = printable(server.fault.message.strip(), LONGEST) if server.fault is not None else ""
    words = words or "in error, and its cloud does not say why"
    if not server.launched_at:
        kind = of_server(server.fault) if server.fault is not None else FaultKind.UNKNOWN
        return ServerPhase(_PENDING, words, fault=kind, final=True)
    if server.power == _RUNNING_GUEST:
        return ServerPhase(_UNKNOWN, printable(f"in error, and its guest runs: {words}", LONGEST))
    return replace(STATES["ERROR"], why=words)
