"""Servers and other objects of a cloud as records, and what Nova's states, faults and rejections mean.

Times are seconds since the epoch, UTC; 0 where the cloud does not tell. Sizes are MiB; disk sizes
come in GiB. A field that is missing or invalid is left at its default; identities must be there.
Names of fields: compute API reference, "List Servers Detailed" and the like.

Sources of the states: "Server concepts" of the compute API guide; ``nova/api/openstack/common.py``
(_STATE_MAP) for how they come from vm_state and task_state; ``nova/compute/api.py``
(check_instance_state) for what may be asked of a server in which state; ``nova/compute/manager.py``
(_sync_instance_power_state) for what Nova does with a guest that went off.

Sources of the errors: Nova 34 (``nova/exception.py``; ``nova/compute/manager.py``:
``_build_and_run_instance`` and ``_build_resources``; statuses: ``create`` in
``nova/api/openstack/compute/servers.py``), neutron-lib (``exceptions``: OverQuota,
IpAddressGenerationFailure) and Cinder (``exception.py``: QuotaError and its children). They have
hardly changed since Pike. The shape of an error is in the compute API guide under "Faults".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum, auto
from typing import NamedTuple

from adapters.shared.json_records import Record, mapping, mappings, moment, number, text
from adapters.shared.printing import printable
from provisioner.interfaces import (
    AdapterError,
    AuthError,
    OutcomeUnknownError,
    RejectedError,
    UnavailableError,
)
from provisioner.model import FaultKind, RemoteState
from provisioner.values import factory, frozen

_OBJECT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}")


def is_id(value: object) -> bool:
    """Return whether it can be the id of an object, with which it is safe in an address."""
    return isinstance(value, str) and _OBJECT_ID.fullmatch(value) is not None


def identity(record: Record, what: str) -> str:
    """Return the id of an object. Raises UnavailableError without one."""
    if not is_id(found := text(record, "id")):
        raise UnavailableError(f"the cloud tells of a {what} without an id")
    return found


def _texts(value: object) -> Mapping[str, str]:
    return {key: each for key, each in mapping(value).items() if isinstance(each, str)}


def nova_time(at: float) -> str:
    """Format a time for Nova's filters. Nova takes whole seconds, so this is the second before."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ServerFault(NamedTuple):
    """Why a server is in ERROR, in Nova's words (compute API reference, "fault")."""

    code: int
    message: str


@frozen
class Flavor:
    """A flavour that the project may use, or the copy of one within a server (microversion 2.47), without its id."""

    name: str
    vcpus: int
    memory_mib: int
    disk_mib: int
    """Root disk; 0: as large as the image."""
    extra: Mapping[str, str] = factory(dict)
    id: str = ""
    """Any text (``m1.small``)."""
    disabled: bool = False


def parse_flavor(record: Record) -> Flavor:
    return Flavor(
        name=text(record, "name") or text(record, "original_name"),
        vcpus=number(record, "vcpus"),
        memory_mib=number(record, "ram"),
        disk_mib=number(record, "disk") * 1024,
        extra=_texts(record.get("extra_specs")),
        id=text(record, "id"),
        disabled=record.get("OS-FLV-DISABLED:disabled") is True,
    )


@frozen
class Server:
    """One server in a listing with details."""

    id: str
    name: str
    status: str
    """Upper case; UNKNOWN where its cell is down (2.69): then nearly everything else is missing."""
    task: str = ""
    """OS-EXT-STS:task_state: what is being done with it (``deleting``, ``powering-off``, ...); empty: nothing."""
    power: int = 0
    """OS-EXT-STS:power_state: 0 unknown, 1 running, 3 paused, 4 shut down, 6 crashed, 7 suspended."""
    created_at: float = 0.0
    updated_at: float = 0.0
    launched_at: float = 0.0
    terminated_at: float = 0.0
    host_id: str = ""
    """Host as its project sees it: sha224 of project id and host name (nova.utils.generate_hostid)."""
    flavor: Flavor | None = None
    metadata: Mapping[str, str] = factory(dict)
    fault: ServerFault | None = None
    volumes: tuple[str, ...] = ()
    """Ids of attached volumes that are to be deleted with it (``delete_on_termination``)."""


def parse_server(record: Record) -> Server:
    """Parse a server of a detailed listing. One of a cell that is down has little more than id and UNKNOWN."""
    flavor = mapping(record, "flavor")
    fault = record.get("fault")
    attached = mappings(record, "os-extended-volumes:volumes_attached")
    return Server(
        id=identity(record, "server"),
        name=text(record, "name"),
        status=text(record, "status").upper() or "UNKNOWN",
        task=text(record, "OS-EXT-STS:task_state"),
        power=number(record, "OS-EXT-STS:power_state"),
        created_at=moment(record, "created"),
        updated_at=moment(record, "updated"),
        launched_at=moment(record, "OS-SRV-USG:launched_at"),
        terminated_at=moment(record, "OS-SRV-USG:terminated_at"),
        host_id=text(record, "hostId"),
        flavor=parse_flavor(flavor) if "original_name" in flavor else None,
        metadata=_texts(record.get("metadata")),
        fault=ServerFault(number(fault, "code"), text(fault, "message"))
        if isinstance(fault, dict)
        else None,
        # An attachment that a person made is theirs.
        volumes=tuple(
            text(each, "id") for each in attached if each.get("delete_on_termination") is True
        ),
    )


class ServerAction(NamedTuple):
    """One thing that was done with a server (os-instance-actions)."""

    action: str
    """``create``, ``stop``, ``delete``, ``suspend``, ``shelve``, ..."""
    user: str
    """Id of who asked; empty where Nova did it by itself."""
    at: float = 0.0


def parse_action(record: Record) -> ServerAction:
    return ServerAction(
        text(record, "action"), text(record, "user_id"), moment(record, "start_time")
    )


class Limits(NamedTuple):
    """Limits of the project (GET /limits), each with its use; -1 is without limit."""

    instances: tuple[int, int]
    cpus: tuple[int, int]
    memory_mib: tuple[int, int]


def parse_limits(record: Record) -> Limits:
    """Parse ``limits.absolute``; what is unknown is not limited."""
    return Limits(
        (number(record, "maxTotalInstances", -1), number(record, "totalInstancesUsed")),
        (number(record, "maxTotalCores", -1), number(record, "totalCoresUsed")),
        (number(record, "maxTotalRAMSize", -1), number(record, "totalRAMUsed")),
    )


class Image(NamedTuple):
    id: str
    name: str
    status: str
    min_memory_mib: int
    created_at: float


def parse_image(record: Record) -> Image:
    return Image(
        id=identity(record, "image"),
        name=text(record, "name"),
        status=text(record, "status"),
        min_memory_mib=number(record, "min_ram"),
        created_at=moment(record, "created_at"),
    )


# -------------------------------------------------------------------------------------------------------------
# states

MAX_REASON = 300
"""Characters of a reason."""
PAUSED_GUEST, SHUT_DOWN_GUEST, CRASHED_GUEST, SUSPENDED_GUEST = 3, 4, 6, 7
"""OS-EXT-STS:power_state (``nova/objects/fields.py``, InstancePowerState), as the hypervisor last reported it."""
_RUNNING_GUEST = 1


class StopMethod(Enum):
    """Way in which a server is stopped with notice. Without notice, all are deleted."""

    SHUT_DOWN = auto()
    """By os-stop, which notifies its guest. Nova takes that of an active server only on which nothing else is done."""
    NONE = auto()
    """It is on its way already, and would only be cut short."""
    DELETE = auto()
    """There is no guest to notify, or Nova would not notify it now."""


@frozen
class ServerPhase:
    state: RemoteState
    why: str = ""
    """For people."""
    stop: StopMethod = StopMethod.DELETE
    taken: bool = False
    """Somebody at the cloud has taken back what it ran on."""
    leaving: bool = False
    """Somebody, ourselves perhaps, has it end."""
    fault: FaultKind | None = None
    """The fault: of a pending server its obstacle, of a stopped one its end."""
    final: bool = False
    """It waits, and will never start."""


_PENDING = RemoteState.PENDING
_RUNNING = RemoteState.RUNNING
_UNKNOWN = RemoteState.UNKNOWN
_OFF = RemoteState.STOPPED
_ENDED = RemoteState.ENDED

SERVER_STATES: Mapping[str, ServerPhase] = {
    "ACTIVE": ServerPhase(_RUNNING, stop=StopMethod.SHUT_DOWN),
    "BUILD": ServerPhase(_PENDING, "is being built"),
    # The guest runs on while these go on.
    "PASSWORD": ServerPhase(_RUNNING, "its password is being set"),
    "MIGRATING": ServerPhase(_RUNNING, "is being moved to another host"),
    # Somebody does something with it, and what it was made of is still there: they may give it
    # back. Its guest does not run, or starts anew, and whether a drone is in it the pool says.
    "PAUSED": ServerPhase(_UNKNOWN, "was paused at its cloud"),
    "REBOOT": ServerPhase(_UNKNOWN, "is being rebooted"),
    "HARD_REBOOT": ServerPhase(_UNKNOWN, "is being rebooted"),
    "REBUILD": ServerPhase(_UNKNOWN, "is being rebuilt from its image"),
    "RESCUE": ServerPhase(_UNKNOWN, "runs a rescue image, by which somebody looks into it"),
    "RESIZE": ServerPhase(_UNKNOWN, "is being resized or moved, and off meanwhile"),
    "VERIFY_RESIZE": ServerPhase(_UNKNOWN, "was resized or moved, and waits for a yes"),
    "REVERT_RESIZE": ServerPhase(_UNKNOWN, "is moved back to where it was"),
    # It is off, by itself or by somebody (``termination.py``), and what it held is held still:
    # SHUTOFF and SHELVED servers keep their place on the host, all of them count against the quota,
    # until they are deleted.
    "SHUTOFF": ServerPhase(_OFF, "has shut down"),
    "SUSPENDED": ServerPhase(_OFF, "was suspended at its cloud", taken=True),
    "SHELVED": ServerPhase(_OFF, "was shelved at its cloud", taken=True),
    "SHELVED_OFFLOADED": ServerPhase(_OFF, "was shelved at its cloud", taken=True),
    # one that ran; see server_phase() for the others
    "ERROR": ServerPhase(_OFF, "is in error", fault=FaultKind.NODE),
    # Told by ``changes-since`` alone. A soft-deleted one is off, out of the quota and out of all
    # listings; what it held on its host comes back when the cloud gets round to it
    # (reclaim_instance_interval), or an administrator does.
    "DELETED": ServerPhase(_ENDED, "was deleted", stop=StopMethod.NONE),
    "SOFT_DELETED": ServerPhase(_ENDED, "was deleted", stop=StopMethod.NONE),
    # "Handling Down Cells" in the guide. The API says the same of a vm_state that it does not know.
    "UNKNOWN": ServerPhase(_UNKNOWN, "its part of the cloud (a cell) does not answer"),
}
"""All states of the compute API guide."""

GONE = frozenset(status for status, phase in SERVER_STATES.items() if phase.state is _ENDED)
DELETING_TASKS = frozenset({"deleting", "soft-deleting"})

_ENDING_TASKS: Mapping[str, str] = {
    **dict.fromkeys(DELETING_TASKS, "is being deleted"),
    "powering-off": "is being shut down",
    "suspending": "is being suspended",
    "shelving": "is being shelved",
    "shelving_image_pending_upload": "is being shelved",
    "shelving_image_uploading": "is being shelved",
    "shelving_offloading": "is being shelved",
}
"""Tasks (``nova/compute/task_states.py``) that end the run of a server which has one."""

_BY_POWER: Mapping[int, ServerPhase] = {
    SHUT_DOWN_GUEST: ServerPhase(_OFF, "its guest has shut down"),
    CRASHED_GUEST: ServerPhase(_OFF, "its guest has crashed", fault=FaultKind.NODE),
    PAUSED_GUEST: ServerPhase(_UNKNOWN, "its guest was paused by its hypervisor"),
    SUSPENDED_GUEST: ServerPhase(_UNKNOWN, "its guest was suspended by its hypervisor"),
}
"""Power states of an active server without a task: Nova's periodic check of its guests writes this
first, then stops those that are off, crashed or suspended, and lets paused ones be."""


def server_phase(server: Server) -> ServerPhase:
    """Return the phase of a server. A status that the table lacks means that it is alive."""
    phase = SERVER_STATES.get(server.status)
    if phase is None:
        status = printable(server.status, 60) or "none"
        return ServerPhase(_UNKNOWN, f"in a state that is not known here: {status}")
    match server.status:
        case "ERROR":
            phase = _phase_in_error(server)
        case "BUILD" if server.task:
            phase = replace(phase, why=printable(f"{phase.why}: {server.task}", MAX_REASON))
        case "ACTIVE" if server.task:
            phase = replace(
                phase, why=printable(f"{server.task} goes on", MAX_REASON), stop=StopMethod.DELETE
            )
        case "ACTIVE":
            phase = _BY_POWER.get(server.power, phase)
    if server.task in _ENDING_TASKS and phase.state is not _ENDED:
        return replace(phase, why=_ENDING_TASKS[server.task], stop=StopMethod.NONE, leaving=True)
    return phase


def _phase_in_error(server: Server) -> ServerPhase:
    """Return the phase of a server in ERROR.

    One that was never launched never runs. Another is dead, unless the hypervisor says that its
    guest runs: a failed live migration leaves jobs at work in such a server.
    """
    words = printable(server.fault.message.strip(), MAX_REASON) if server.fault is not None else ""
    words = words or "in error, and its cloud does not say why"
    if not server.launched_at:
        kind = classify_fault(server.fault) if server.fault is not None else FaultKind.UNKNOWN
        return ServerPhase(_PENDING, words, fault=kind, final=True)
    if server.power == _RUNNING_GUEST:
        return ServerPhase(
            _UNKNOWN, printable(f"in error, and its guest runs: {words}", MAX_REASON)
        )
    return replace(SERVER_STATES["ERROR"], why=words)


# -------------------------------------------------------------------------------------------------
# the words of errors

_Patterns = Sequence[tuple[str, FaultKind]]

_REQUEST_LIMITS = (r"maximum number of metadata items|personality file", FaultKind.CONFIG)
"""Limits of one request, which no waiting mends; Nova counts them among quotas, so they are looked for first."""
_QUOTA_WORDS = (
    r"\bquotas?\b|\bOverQuota\b|\w+LimitExceeded"
    r"|maximum number of (instances|cores|ports|fixed ips|floating ips|volumes|gigabytes|security groups)"
)
_QUOTA = (_QUOTA_WORDS, FaultKind.QUOTA)
_CAPACITY = (
    r"no valid host|not enough hosts|exhausted all hosts|maximum number of retries|insufficient compute resources"
    r"|no fixed ip addresses available|no more ip addresses|instance group policy was violated"
    r"|pci device request .* failed|attempt to consume pci device|pci device .* instead of"
    r"|virtual functions of pf .* are not? free|not all virtual functions|failed to create allocations"
    r"|conflict was encountered attempting to (invoke the placement api|update resource provider)",
    FaultKind.CAPACITY,
)
"""Includes a race for the last GPU: the PCI claims on the host find it taken (``nova/exception.py``, Pci*)."""
_BAD_REQUEST = (
    r"(image|flavor|network|volume type|key ?pair|security group|snapshot|instance group|availability zone)\b.*"
    r"(could not be found|not found|is not available)"
    r"|can not find requested image|invalid key_name|image .* is (not active|unacceptable)|not authorized for image"
    r"|(disk|memory) is too small|disk would be too small|volume is smaller|only volume-backed servers"
    r"|number of disk devices|block device mapping is invalid|disk format|pci alias"
    r"|signature certificate|signature verif"
    r"|external network|requires a subnet|port_security_enabled|more than one possible network|no unique match"
    r"|multiple \w+ (groups )?(found|match)|unable to automatically allocate a network|scheduling failed:"
    r"|invalid input|user data|video memory|volume encryption is not supported|disk info",
    FaultKind.CONFIG,
)
# A service that all hosts depend on: another host would meet the same, and later it may be well.
_SHARED_SERVICE = (
    r"did not finish being created|connection to (cinder|glance|keystone|manila) .*failed|connection to neutron"
    r"|timed out waiting for a reply|unable to communicate with the placement api|could not fetch image",
    FaultKind.DOWN,
)
# The agent on that host did not plug or bind the port within vif_plugging_timeout; on another host
# it may.
_HOST_NETWORK = (
    r"failed to allocate the network|binding failed for port|virtual interface creation failed|port update failed",
    FaultKind.NODE,
)
# Somebody has locked it, on purpose: only a human knows why.
_LOCKED = (r"\bis locked\b", FaultKind.DENIED)

_REJECTED: _Patterns = (_REQUEST_LIMITS, _QUOTA, _CAPACITY, _BAD_REQUEST, _LOCKED)
"""Categories of rejected orders; the first row that matches counts."""
_IN_ERROR: _Patterns = (
    _REQUEST_LIMITS,
    _QUOTA,
    _CAPACITY,
    _SHARED_SERVICE,
    _HOST_NETWORK,
    _BAD_REQUEST,
)
"""Categories of servers in ERROR. A host's network comes before the bad request, whose words say `network`, too."""


def _matching(patterns: _Patterns, words: str) -> FaultKind | None:
    words = " ".join(words[:1000].split())
    return next(
        (kind for pattern, kind in patterns if re.search(pattern, words, re.IGNORECASE)), None
    )


def classify_fault(fault: ServerFault) -> FaultKind:
    """Return the kind of the fault of a server in ERROR.

    Words that no table knows come from a hypervisor (libvirt, a traceback's last line, "Failure
    prepping block device"): the fault is its host's. "Exhausted all hosts available for retrying"
    hides what each host reported; all that remains is that no host was left.
    """
    # the conductor counts again after the API has: two creates at a time meet there
    if fault.code == 413:
        return FaultKind.QUOTA
    return _matching(_IN_ERROR, fault.message) or FaultKind.NODE


def order_error(status: int, key: str, message: str, *, words: str) -> AdapterError:
    """Return the error to raise for a rejected order.

    ``key`` is the name of the fault in the body (``badRequest``, ``NeutronError``), ``message`` its
    words, ``words`` those to report. 500, 502 and 504 leave the outcome open: Nova may have
    recorded the server before something else failed, and a proxy may have passed the order on. 503
    comes from a service that did not accept it.
    """
    if status in (429, 413) and not re.search(_QUOTA_WORDS, message, re.IGNORECASE):
        # Without the key it is a proxy's word for a request that is too large.
        throttled = status == 429 or key == "overLimit"
        return RejectedError(words, FaultKind.THROTTLED if throttled else FaultKind.CONFIG)
    if status in (408, 503):
        return UnavailableError(words)
    if status == 501:
        return RejectedError(words, FaultKind.CONFIG)
    if status >= 500:
        return OutcomeUnknownError(words)
    if 300 <= status < 400:
        return UnavailableError(words, FaultKind.CONFIG)
    kind = _matching(_REJECTED, f"{key} {message}")
    if status == 401 or (status == 403 and kind is None):
        return AuthError(words)
    # What else conflicts passes: two that change one thing at a time.
    return RejectedError(words, kind or (FaultKind.CAPACITY if status == 409 else FaultKind.CONFIG))


def read_error(status: int, key: str, words: str) -> AdapterError:
    """Return the error to raise for a rejected read."""
    if status in (401, 403):
        return AuthError(words)
    throttled = status == 429 or (status, key) == (413, "overLimit")
    return UnavailableError(words, FaultKind.THROTTLED if throttled else None)


def fault_in(body: Record) -> tuple[str, str]:
    """Return the key of the fault in a body and its words; empty for an unknown shape.

    Shapes: ``{"badRequest": {"message": ...}}`` (Nova, Cinder), ``{"error": ...}`` (Keystone),
    ``{"NeutronError": {"type": ..., "message": ...}}``, ``{"errors": [{"detail": ...}]}`` (a wrong
    microversion).
    """
    for key, value in body.items():
        if isinstance(value, str) and key in ("error", "NeutronError", "message"):
            return key, value
        if fault := next(iter(mappings(value)), mapping(value)):
            words = next(
                filter(None, (text(fault, each) for each in ("message", "detail", "title"))), ""
            )
            kind = text(fault, "type")
            return key, f"{kind}: {words}" if kind else words
    return "", ""
