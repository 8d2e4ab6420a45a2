"""The hosts with GPUs as nodes: all that each has, as the operator tells, less what the servers hold that we can see.

Nova tells a project no host's name, only an id made of that and the project's (``nova/utils.py``, generate_hostid):
who knows the names knows the ids. Servers of further projects on these hosts are not seen; where there are any, the
operator tells hosts with what is left of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from adapters.openstack.records import Flavor, Limits, Server
from adapters.openstack.registry import TYPE
from adapters.openstack.settings import HostConfig, OpenStackSiteConfig
from provisioner.model import WHOLE_GPU, DroneType, Node

_MOST_NOTICES = 5


@dataclass(frozen=True, slots=True)
class FlavorSize:
    """Resources that one server holds of its host, or would hold."""

    gpu_milli: int = 0
    cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0

    def __add__(self, other: FlavorSize) -> FlavorSize:
        return FlavorSize(
            self.gpu_milli + other.gpu_milli,
            self.cpus + other.cpus,
            self.memory_mib + other.memory_mib,
            self.disk_mib + other.disk_mib,
        )

    def within(self, node: Node) -> bool:
        """Return whether the node, if it were empty, has as much."""
        return (
            self.gpu_milli <= node.gpu_milli
            and self.cpus <= node.cpus
            and self.memory_mib <= node.memory_mib
            and self.disk_mib <= node.disk_mib
        )


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The hosts, and what a person should know of them."""

    nodes: tuple[Node, ...] = ()
    notices: tuple[str, ...] = ()


def host_id(project: str, name: str) -> str:
    """Return the id of a host for a project."""
    return hashlib.sha224((project + name).encode()).hexdigest()


def places(hosts: Iterable[HostConfig], projects: Iterable[str]) -> Mapping[str, str]:
    """Return the hosts' names by the ids that they have to these projects.

    An empty project is one that is not known yet.
    """
    names = [name for host in hosts for name in host.names]
    return {host_id(project, name): name for project in filter(None, projects) for name in names}


def size_of(server: Server) -> FlavorSize:
    """Of what its flavour tells. One that asks for GPUs and does not say how many has one at least."""
    flavor = server.flavor
    if flavor is None:
        return FlavorSize()
    gpus = gpus_of(flavor.extra)
    milli = WHOLE_GPU * (1 if gpus is None else gpus)
    return FlavorSize(milli, flavor.vcpus, flavor.memory_mib, flavor.disk_mib)


def nodes(
    config: OpenStackSiteConfig,
    types: Sequence[DroneType],
    ours: Iterable[Server],
    others: Iterable[Server],
    places: Mapping[str, str],
) -> Occupancy:
    """Return one node for each host.

    ``ours`` are our drones' servers. ``others`` are all other servers seen, of our project and of the owner's; a
    server may be in both. A server that is on no host yet holds nothing. One that is off or being deleted holds its
    place until it is gone.
    """
    by_name = {kind.name: kind for kind in types}
    from_volume = {name for name in by_name if name in config.types and config.server(name).boot_volume is not None}
    sizes = {server.id: (server, size_of(server)) for server in others}
    mine = {server.id: (server, _drone_size(server, by_name, from_volume)) for server in ours}
    sizes |= mine
    held: dict[str, FlavorSize] = {}
    for server, size in sizes.values():
        if name := places.get(server.host_id):
            held[name] = held.get(name, FlavorSize()) + size
    elsewhere = sum(1 for server, _ in mine.values() if server.host_id and server.host_id not in places)
    found = tuple(
        _node(host, name, types, from_volume, held.get(name, FlavorSize()))
        for host in config.hosts
        for name in host.names
    )
    notices = []
    if elsewhere and found:
        notices.append(f"{elsewhere} of our servers are on hosts that `hosts` does not name")
    uncounted = sorted({s.flavor.name for s, _ in sizes.values() if s.flavor and gpus_of(s.flavor.extra) is None})
    notices += [f"flavor {name} does not tell how many GPUs it has: one is counted" for name in uncounted]
    return Occupancy(found, tuple(notices[:_MOST_NOTICES]))


def _drone_size(server: Server, types: Mapping[str, DroneType], from_volume: Collection[str]) -> FlavorSize:
    """GPUs as its type says; the rest as its server has it, which may be more than its drone uses."""
    kind = types.get(server.metadata.get(TYPE, ""))
    if kind is None:
        return size_of(server)
    if server.flavor is None:
        return _type_size(kind, from_volume)
    flavor = server.flavor
    disk_mib = 0 if kind.name in from_volume else flavor.disk_mib
    return FlavorSize(kind.gpu_milli, flavor.vcpus, flavor.memory_mib, disk_mib)


def _type_size(kind: DroneType, from_volume: Collection[str]) -> FlavorSize:
    return FlavorSize(kind.gpu_milli, kind.cpus, kind.memory_mib, 0 if kind.name in from_volume else kind.disk_mib)


def _node(
    host: HostConfig, name: str, types: Iterable[DroneType], from_volume: Collection[str], held: FlavorSize
) -> Node:
    whole = Node(
        name=name,
        types=(),
        gpu_milli=host.gpus * WHOLE_GPU,
        cpus=host.cpus,
        memory_mib=host.memory,
        disk_mib=host.disk,
        free_gpu_milli=0,
        free_cpus=0,
        free_memory_mib=0,
        free_disk_mib=0,
    )
    could = [
        kind.name
        for kind in types
        if (not host.types or kind.name in host.types) and _type_size(kind, from_volume).within(whole)
    ]
    return replace(
        whole,
        types=tuple(could),
        free_gpu_milli=max(0, whole.gpu_milli - held.gpu_milli),
        free_cpus=max(0, whole.cpus - held.cpus),
        free_memory_mib=max(0, whole.memory_mib - held.memory_mib),
        free_disk_mib=max(0, whole.disk_mib - held.disk_mib),
    )


_RESOURCES = re.compile(r"resources[A-Za-z0-9_-]{0,64}:(?P<name>[A-Z0-9_]{1,255})")
_PLAIN = frozenset({"VGPU", "PGPU"})
_ALIASES = "pci_passthrough:alias"
_PROFILE = "accel:device_profile"
_MODEL = re.compile(
    r"gpu|nvidia|tesla|quadro|geforce|[gr]tx|instinct|pci_10de_|pci_1002_"
    r"|(?<![a-z0-9])(a|b|h|l|mi|p|t|v|gh|gb)\d{1,3}[a-z]?(?![0-9])",
    re.IGNORECASE,
)
"""Words that operators use for GPUs: the word, the maker, the PCI vendor's id, or the model."""
_ELSE = re.compile(
    r"nic|net|eth|sr-?iov|vf|(?<![a-z])(ib|cx\d|hca|roce|rdma|mlx\w*|mellanox|ssd|nvme|disk|qat|usb|audio)(?![a-z])"
    r"|infiniband|connectx|bluefield|quickassist|crypto|fpga",
    re.IGNORECASE,
)
_MOST = 64


def gpus_of(extra: Mapping[str, str]) -> int | None:
    """Return whole GPUs, and shares that the flavour calls GPUs; None if their number is unknown.

    It is unknown where a flavour asks for GPUs by a device profile, which only Cyborg can resolve, or by an invalid
    number. An alias that is plausibly a GPU counts as one unless the flavour names another GPU alias.
    """
    found: int = 0
    for key, told in extra.items():
        named = _RESOURCES.fullmatch(key)
        if named is not None and (named["name"] in _PLAIN or _is_custom_gpu(named["name"])):
            count = _number(told)
            if count is None:
                return None
            found += count
    aliases = list(_aliases(extra.get(_ALIASES, "")))
    clear = [count for name, count in aliases if _MODEL.search(name)]
    counts = clear or [count for name, count in aliases if not found and not _ELSE.search(name)]
    if None in counts or (extra.get(_PROFILE) and not counts and not found):
        return None
    return found + sum(filter(None, counts))


def _is_custom_gpu(name: str) -> bool:
    """``CUSTOM_GPU_H100``, ``CUSTOM_NVIDIA_A100``, ``CUSTOM_PCI_10DE_2330``, ``CUSTOM_BAREMETAL_GPU``."""
    return name.startswith("CUSTOM_") and _MODEL.search(name.removeprefix("CUSTOM_")) is not None


def _aliases(text: str) -> Iterator[tuple[str, int | None]]:
    """``h100:2,ib:1`` -> (h100, 2), (ib, 1)."""
    for each in filter(None, text.split(",")):
        name, _, count = each.strip().rpartition(":")
        yield name, _number(count)


def _number(text: str) -> int | None:
    text = text.strip()
    return min(int(text), _MOST) if text.isascii() and text.isdecimal() and len(text) <= 9 else None


def allowed(limits: Limits, flavors: Mapping[str, Flavor]) -> Mapping[str, int] | None:
    """Return how many more servers the quota allows by drone type; None without any limit.

    The numbers are alternatives. Nova has no quota for GPUs, so this alone never tells that there is room. Servers in
    ERROR or shut off count as used until they are deleted. Another create may come in between: Nova then accepts the
    server and puts it into ERROR (fault 413).
    """
    lefts = (
        _left(limits.instances, limits.instances_used),
        _left(limits.cpus, limits.cpus_used),
        _left(limits.memory_mib, limits.memory_used_mib),
    )
    if all(left is None for left in lefts):
        return None
    counts: dict[str, int] = {}
    for name, flavor in flavors.items():
        sizes = (1, flavor.vcpus, flavor.memory_mib)
        fits = [left // size for left, size in zip(lefts, sizes, strict=True) if left is not None and size > 0]
        if fits:
            counts[name] = min(fits)
    return counts


def _left(limit: int, used: int) -> int | None:
    """None: unlimited (-1). An operator may have lowered a limit below what is used."""
    return None if limit < 0 else max(0, limit - used)
