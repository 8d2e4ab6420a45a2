"""Records of servers, flavours, limits, ports and volumes. Frozen values.

Times are seconds since the epoch, UTC; 0 where the cloud does not tell. Sizes are MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServerFault:
    """Why a server is in ERROR, in Nova's words (compute API reference, "fault")."""

    code: int
    message: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerFlavor:
    """The flavour within a server (microversion 2.47): a copy, without its id."""

    name: str
    vcpus: int
    memory_mib: int
    disk_mib: int
    extra: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Server:
    """One server in a listing with details."""

    id: str
    name: str
    status: str
    """Upper case, as told; UNKNOWN where its cell is down (2.69): then nearly everything else is missing."""
    task: str = ""
    """OS-EXT-STS:task_state: what is being done with it (``deleting``, ``powering-off``, ...); empty: nothing."""
    power: int = 0
    """OS-EXT-STS:power_state: 0 not told, 1 running, 3 paused, 4 shut down, 6 crashed, 7 suspended."""
    created_at: float = 0.0
    updated_at: float = 0.0
    launched_at: float = 0.0
    terminated_at: float = 0.0
    host_id: str = ""
    """Host as its project sees it: sha224 of project id and host name (nova.utils.generate_hostid)."""
    project: str = ""
    flavor: ServerFlavor | None = None
    tags: frozenset[str] = frozenset()
    metadata: Mapping[str, str] = field(default_factory=dict)
    fault: ServerFault | None = None
    volumes: tuple[str, ...] = ()
    """Ids of attached volumes that are to be deleted with it (``delete_on_termination``)."""


@dataclass(frozen=True, slots=True)
class Flavor:
    """One flavour that the project may use."""

    id: str
    name: str
    vcpus: int
    memory_mib: int
    disk_mib: int
    """Root disk; 0: as large as the image."""
    ephemeral_mib: int
    extra: Mapping[str, str] = field(default_factory=dict)
    disabled: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the project (GET /limits) and its use; -1 is without limit."""

    instances: int
    instances_used: int
    cpus: int
    cpus_used: int
    memory_mib: int
    memory_used_mib: int


@dataclass(frozen=True, slots=True)
class Image:
    id: str
    name: str
    status: str
    min_disk_mib: int = 0
    min_memory_mib: int = 0
    created_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Port:
    """A port of a network (Neutron)."""

    id: str
    device_id: str
    """Server that it is or was of."""
    device_owner: str
    status: str = ""


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume (Cinder)."""

    id: str
    status: str
    servers: tuple[str, ...] = ()
    """Servers that it is attached to, as Cinder has it."""


@dataclass(frozen=True, slots=True)
class ServerAction:
    """One thing that was done with a server (os-instance-actions)."""

    action: str
    """``create``, ``stop``, ``delete``, ``suspend``, ``shelve``, ..."""
    user: str
    """Id of who asked; empty where Nova did it by itself."""
    project: str
    at: float = 0.0
