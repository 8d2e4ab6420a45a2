"""Records of servers, flavours, images and limits, and their parsing from the services' JSON.

Times are seconds since the epoch, UTC; 0 where the cloud does not tell. Sizes are MiB; disk sizes come in GiB. A field
that is missing or invalid is left at its default; identities must be there. Names of fields: compute API reference,
"List Servers Detailed" and the like.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from provisioner.interfaces import UnavailableError

Record = Mapping[str, Any]

_GIB_IN_MIB = 1024
_OBJECT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}")
"""Ids that go into addresses of ours: UUIDs, with or without dashes."""
_MAX_NUMBER = 2**53


def mapping(value: object) -> Record:
    """Return a JSON object; an empty one instead of anything else."""
    return value if isinstance(value, dict) else {}


def mappings(value: object) -> list[Record]:
    """Return the JSON objects in a list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def is_id(value: object) -> bool:
    """Return whether it can be the id of a server, a port, a volume or an image."""
    return isinstance(value, str) and _OBJECT_ID.fullmatch(value) is not None


def identity(record: Record, what: str) -> str:
    """Return the id of an object. Raises UnavailableError without one."""
    if not is_id(found := text(record, "id")):
        raise UnavailableError(f"the cloud tells of a {what} without an id")
    return found


def text(record: Record, key: str) -> str:
    value = record.get(key)
    return value if isinstance(value, str) else ""


def number(record: Record, key: str, default: int = 0) -> int:
    value = record.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_NUMBER else default


def texts(value: object) -> Mapping[str, str]:
    """Return a mapping of texts; other values are left out."""
    return {key: each for key, each in mapping(value).items() if isinstance(each, str)}


def instant(record: Record, key: str) -> float:
    """``2026-11-21T23:00:00Z``, or without a zone, as Nova and Glance write what else is UTC."""
    try:
        at = datetime.fromisoformat(text(record, key))
        return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def moment(at: float) -> str:
    """Format a time for Nova's filters. Nova takes whole seconds, so this is the second before."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# -------------------------------------------------------------------------------------------------------------- servers


@dataclass(frozen=True, slots=True)
class ServerFault:
    """Why a server is in ERROR, in Nova's words (compute API reference, "fault")."""

    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Flavor:
    """A flavour that the project may use, or the copy of one within a server (microversion 2.47), without its id."""

    name: str
    vcpus: int
    memory_mib: int
    disk_mib: int
    """Root disk; 0: as large as the image."""
    extra: Mapping[str, str] = field(default_factory=dict)
    id: str = ""
    """Any text (``m1.small``)."""
    disabled: bool = False


def parse_flavor(record: Record) -> Flavor:
    return Flavor(
        name=text(record, "name") or text(record, "original_name"),
        vcpus=number(record, "vcpus"),
        memory_mib=number(record, "ram"),
        disk_mib=number(record, "disk") * _GIB_IN_MIB,
        extra=texts(record.get("extra_specs")),
        id=text(record, "id"),
        disabled=record.get("OS-FLV-DISABLED:disabled") is True,
    )


@dataclass(frozen=True, slots=True)
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
    tags: frozenset[str] = frozenset()
    metadata: Mapping[str, str] = field(default_factory=dict)
    fault: ServerFault | None = None
    volumes: tuple[str, ...] = ()
    """Ids of attached volumes that are to be deleted with it (``delete_on_termination``)."""


def parse_server(record: Record) -> Server:
    """Parse a server of a detailed listing. One of a cell that is down has little more than id and UNKNOWN."""
    flavor, fault, tags = mapping(record.get("flavor")), record.get("fault"), record.get("tags")
    attached = mappings(record.get("os-extended-volumes:volumes_attached"))
    return Server(
        id=identity(record, "server"),
        name=text(record, "name"),
        status=text(record, "status").upper() or "UNKNOWN",
        task=text(record, "OS-EXT-STS:task_state"),
        power=number(record, "OS-EXT-STS:power_state"),
        created_at=instant(record, "created"),
        updated_at=instant(record, "updated"),
        launched_at=instant(record, "OS-SRV-USG:launched_at"),
        terminated_at=instant(record, "OS-SRV-USG:terminated_at"),
        host_id=text(record, "hostId"),
        flavor=parse_flavor(flavor) if "original_name" in flavor else None,
        tags=frozenset(each for each in tags if isinstance(each, str)) if isinstance(tags, list) else frozenset(),
        metadata=texts(record.get("metadata")),
        fault=ServerFault(number(fault, "code"), text(fault, "message")) if isinstance(fault, dict) else None,
        # Those that go with the server: what a person has attached is theirs.
        volumes=tuple(
            each["id"] for each in attached if is_id(each.get("id")) and each.get("delete_on_termination") is True
        ),
    )


@dataclass(frozen=True, slots=True)
class ServerAction:
    """One thing that was done with a server (os-instance-actions)."""

    action: str
    """``create``, ``stop``, ``delete``, ``suspend``, ``shelve``, ..."""
    user: str
    """Id of who asked; empty where Nova did it by itself."""
    at: float = 0.0


def parse_action(record: Record) -> ServerAction:
    return ServerAction(text(record, "action"), text(record, "user_id"), instant(record, "start_time"))


# ----------------------------------------------------------------------------------------------------------- the others


class Limits(NamedTuple):
    """Limits of the project (GET /limits), each with its use; -1 is without limit."""

    instances: tuple[int, int]
    cpus: tuple[int, int]
    memory_mib: tuple[int, int]


def parse_limits(record: Record) -> Limits:
    """Parse ``limits.absolute``; what is unknown is not limited."""
    keys = (
        ("maxTotalInstances", "totalInstancesUsed"),
        ("maxTotalCores", "totalCoresUsed"),
        ("maxTotalRAMSize", "totalRAMUsed"),
    )
    return Limits(*((number(record, limit, -1), number(record, used)) for limit, used in keys))


@dataclass(frozen=True, slots=True)
class Image:
    id: str
    name: str
    status: str
    min_memory_mib: int = 0
    created_at: float = 0.0


def parse_image(record: Record) -> Image:
    return Image(
        id=identity(record, "image"),
        name=text(record, "name"),
        status=text(record, "status"),
        min_memory_mib=number(record, "min_ram"),
        created_at=instant(record, "created_at"),
    )
