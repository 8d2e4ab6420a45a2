"""Room in a cloud: hosts with GPUs as nodes, the project's quota, and the claims of the hardware's owner.

Nova tells a project no host's name, only an id made of that and the project's (``nova/utils.py``,
generate_hostid): who knows the names knows the ids. Servers of further projects on these hosts are
not seen; where there are any, the operator configures hosts with what is left of them.

Nova knows no queue: a create that finds no host becomes a server in ERROR, and only its owner tries
again. So one that found no room claims it for a while (``wait``) after it failed, that its owner
may try again and find it; then no more, or servers that were forgotten long ago, or made anew under
another name, would claim room without end. A server that was made anew under its own name claims
nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from adapters.openstack.registry import DRONE_KEY, TYPE_KEY
from adapters.openstack.servers import GONE, Flavor, Limits, Server, classify_fault
from adapters.openstack.settings import HostConfig, OpenStackOwnerConfig, OpenStackSiteConfig
from adapters.shared.printing import printable
from provisioner.model import WHOLE_GPU, DroneType, FaultKind, Node, OwnerDemand, OwnerLoad
from provisioner.resources import Resources

MAX_HOST_NOTICES = 5
MAX_OWNER_NOTICES = 10
_MAX_CLAIMS = 500
_MAX_NAMES_OF_SERVERS = 3


def _total(sizes: Iterable[Resources]) -> Resources:
    return Resources(*map(sum, zip(Resources(), *sizes, strict=True)))


# ----------------------------------------------------------------------------------------------------------------
# hosts


def host_id(project: str, name: str) -> str:
    """Return the id of a host for a project."""
    return hashlib.sha224((project + name).encode()).hexdigest()


def host_names(hosts: Iterable[HostConfig], projects: Iterable[str]) -> Mapping[str, str]:
    """Return the hosts' names by the ids that they have to these projects."""
    names = [name for host in hosts for name in host.names]
    return {host_id(project, name): name for project in projects for name in names}


def size_of(server: Server) -> Resources:
    """Return the size of a server's flavour. One that asks for an unknown number of GPUs has one at least."""
    flavor = server.flavor
    if flavor is None:
        return Resources()
    gpus = gpus_of(flavor.extra)
    return Resources(
        WHOLE_GPU * (1 if gpus is None else gpus), flavor.vcpus, flavor.memory_mib, flavor.disk_mib
    )


def _has_volume(config: OpenStackSiteConfig, kind: str) -> bool:
    """Return whether servers of a drone type boot from a volume: they hold no disk of their host."""
    return kind in config.types and config.server(kind).boot_volume is not None


def _type_sizes(config: OpenStackSiteConfig, types: Iterable[DroneType]) -> Mapping[str, Resources]:
    found = {}
    for kind in types:
        size = Resources.of(kind)
        found[kind.name] = size._replace(disk_mib=0) if _has_volume(config, kind.name) else size
    return found


def _drone_size(
    server: Server, config: OpenStackSiteConfig, type_sizes: Mapping[str, Resources]
) -> Resources:
    """Return the size of a drone's server: GPUs by the drone type.

    The rest is by the server, which may be more than its drone uses.
    """
    name = server.metadata.get(TYPE_KEY, "")
    own = type_sizes.get(name)
    size = size_of(server)
    if own is None:
        return size
    size = own if server.flavor is None else size._replace(gpu_milli=own.gpu_milli)
    return size._replace(disk_mib=0) if _has_volume(config, name) else size


def nodes(
    config: OpenStackSiteConfig,
    types: Sequence[DroneType],
    ours: Iterable[Server],
    others: Iterable[Server],
    hosts: Mapping[str, str],
) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """Return one node for each host, and notices about them for people.

    ``ours`` are our drones' servers. ``others`` are all other servers seen, of our project and of
    the owner's; a server may be in both. ``hosts`` are names by ids. A server that is on no host
    yet holds nothing. One that is off or being deleted holds its place until it is gone.
    """
    type_sizes = _type_sizes(config, types)
    sizes = {server.id: (server, size_of(server)) for server in others}
    sizes |= {server.id: (server, _drone_size(server, config, type_sizes)) for server in ours}
    held: dict[str, list[Resources]] = defaultdict(list)
    for server, size in sizes.values():
        if server.host_id in hosts:
            held[hosts[server.host_id]].append(size)
    found = []
    for host in config.hosts:
        whole = Resources(host.gpus * WHOLE_GPU, host.cpus, host.memory, host.disk)
        allowed_here = host.types or type_sizes
        fitting = tuple(
            name for name, size in type_sizes.items() if name in allowed_here and size.within(whole)
        )
        for name in host.names:
            free = (
                max(0, total - used) for total, used in zip(whole, _total(held[name]), strict=True)
            )
            found.append(Node(name, fitting, *whole, *free))
    seen = [server for server, _ in sizes.values()]
    elsewhere = sum(1 for server in ours if server.host_id and server.host_id not in hosts)
    notices = _host_notices(elsewhere if found else 0, seen)
    return tuple(found), tuple(islice(notices, MAX_HOST_NOTICES))


def _host_notices(elsewhere: int, seen: Iterable[Server]) -> Iterator[str]:
    """Yield notices. ``elsewhere``: servers of ours that are on other hosts."""
    if elsewhere:
        yield f"{elsewhere} drones are on hosts that `hosts` does not name"
    flavors = (each.flavor for each in seen if each.flavor)
    for name in sorted({flavor.name for flavor in flavors if gpus_of(flavor.extra) is None}):
        yield f"flavor {name} does not tell how many GPUs it has: one is counted"


# -----------------------------------------------------------------------------------------------------
# GPUs of flavours

_RESOURCES = re.compile(r"resources[A-Za-z0-9_-]{0,64}:(?P<name>[A-Z0-9_]{1,255})")
_MODEL = re.compile(
    r"gpu|nvidia|tesla|quadro|geforce|[gr]tx|instinct|pci_10de_|pci_1002_"
    r"|(?<![a-z0-9])(a|b|h|l|mi|p|t|v|gh|gb)\d{1,3}[a-z]?(?![0-9])",
    re.IGNORECASE,
)
"""Words that operators use for GPUs: the word, the maker, the PCI vendor's id, or the model."""
_OTHER_DEVICE = re.compile(
    r"nic|net|eth|sr-?iov|vf|(?<![a-z])(ib|cx\d|hca|roce|rdma|mlx\w*|mellanox|ssd|nvme|disk|qat|usb|audio)(?![a-z])"
    r"|infiniband|connectx|bluefield|quickassist|crypto|fpga",
    re.IGNORECASE,
)
_MAX_GPUS = 64


def gpus_of(extra: Mapping[str, str]) -> int | None:
    """Return whole GPUs, and shares that the flavour calls GPUs; None if their number is unknown.

    It is unknown where a flavour asks for GPUs by a device profile, which only Cyborg can resolve,
    or by an invalid number. An alias that is plausibly a GPU counts as one unless the flavour names
    another GPU alias.
    """
    names = {
        key: found["name"] for key in extra if (found := _RESOURCES.fullmatch(key)) is not None
    }
    resources = [_number(extra[key]) for key, name in names.items() if _is_gpu_class(name)]
    aliases = []
    for each in filter(None, extra.get("pci_passthrough:alias", "").split(",")):  # `h100:2,ib:1`
        name, _, count = each.strip().rpartition(":")
        aliases.append((name, _number(count)))
    counts = [count for name, count in aliases if _MODEL.search(name)]
    if not counts and not any(resources):
        counts = [count for name, count in aliases if not _OTHER_DEVICE.search(name)]
    counts += resources
    if None in counts or (extra.get("accel:device_profile") and not any(counts)):
        return None
    return sum(filter(None, counts))


def _is_gpu_class(name: str) -> bool:
    """``CUSTOM_GPU_H100``, ``CUSTOM_NVIDIA_A100``, ``CUSTOM_PCI_10DE_2330``, ``CUSTOM_BAREMETAL_GPU``."""
    custom = name.removeprefix("CUSTOM_")
    return name in ("VGPU", "PGPU") or (custom != name and _MODEL.search(custom) is not None)


def _number(text: str) -> int | None:
    text = text.strip()
    return (
        min(int(text), _MAX_GPUS)
        if text.isascii() and text.isdecimal() and len(text) <= 9
        else None
    )


# ----------------------------------------------------------------------------------------------------------------
# quota


def allowed(limits: Limits, flavors: Mapping[str, Flavor]) -> Mapping[str, int] | None:
    """Return how many more servers the quota allows by drone type; None without any limit.

    The numbers are alternatives. Nova has no quota for GPUs, so this alone never tells that there
    is room. Servers in ERROR or shut off count as used until they are deleted. Another create may
    come in between: Nova then accepts the server and puts it into ERROR (fault 413).
    """
    # -1 is unlimited; an operator may have lowered a limit below what is used.
    left = [None if limit < 0 else max(0, limit - used) for limit, used in limits]
    if all(each is None for each in left):
        return None
    counts: dict[str, int] = {}
    for name, flavor in flavors.items():
        sizes = (1, flavor.vcpus, flavor.memory_mib)
        fits = [
            room // size
            for room, size in zip(left, sizes, strict=True)
            if room is not None and size > 0
        ]
        if fits:
            counts[name] = min(fits)
    return counts


# ------------------------------------------------------------------------------------------------------------
# the owner


def owners(servers: Iterable[Server], owner: OpenStackOwnerConfig) -> Sequence[Server]:
    """Return those of a project's servers that come before us: not drones of any controller, and only named ones."""
    pattern = re.compile(owner.names)
    return [
        each for each in servers if DRONE_KEY not in each.metadata and pattern.search(each.name)
    ]


def claims(
    theirs: Sequence[Server],
    nodes: Sequence[Node],
    hosts: Mapping[str, str],
    owner: OpenStackOwnerConfig,
    now: float,
) -> tuple[tuple[OwnerDemand, ...], tuple[str, ...]]:
    """Return a claim for each size of waiting servers that some node could hold, and notices about the others.

    Those without a GPU claim nothing unless one like them is on one of our nodes: elsewhere in the
    cloud there are hosts for them, of which we do not know whether they are full.
    """
    with_cpu_servers = any(each.host_id in hosts and not size_of(each).gpu_milli for each in theirs)
    placed: dict[str, float] = defaultdict(float)
    """By name, when the newest was made of those that have a host or may yet find one."""
    for each in theirs:
        if each.host_id or each.launched_at or each.status == "BUILD":
            placed[each.name] = max(each.created_at, placed[each.name])
    groups: dict[Resources, list[Server]] = defaultdict(list)
    for server in theirs:
        size = size_of(server)
        if (size.gpu_milli or with_cpu_servers) and _waits(
            server, placed[server.name], owner.wait, now
        ):
            groups[size].append(server)
    found: list[OwnerDemand] = []
    impossible: list[str] = []
    for size, waiting in groups.items():
        could = tuple(node.name for node in nodes if size.within(Resources.of(node)))
        names = sorted({server.name for server in waiting})
        who = printable(
            ", ".join(names[:_MAX_NAMES_OF_SERVERS])
            + ", ..." * (len(names) > _MAX_NAMES_OF_SERVERS)
        )
        if could:
            since = min([now, *(server.created_at for server in waiting if server.created_at)])
            on = () if len(could) == len(nodes) else could
            request = {**size._asdict(), "since": since, "nodes": on, "who": who}
            found.append(OwnerDemand(len(waiting), **request))
        elif nodes:
            impossible.append(
                printable(
                    f"owner: {len(waiting)} servers ({who}) find no host with {size.gpu_milli // WHOLE_GPU}"
                    f" GPUs, {size.cpus} CPUs, {size.memory_mib} MiB and a disk of {size.disk_mib} MiB here even if all"
                    " were empty: no room is made for them",
                    400,
                )
            )
    found.sort(key=lambda claim: claim.since)
    return tuple(found[:_MAX_CLAIMS]), tuple(impossible[:MAX_OWNER_NOTICES])


def owner_load(theirs: Iterable[Server], hosts: Mapping[str, str]) -> OwnerLoad:
    """Return what the owner's servers hold of our nodes, those that are off included."""
    sizes = [size_of(each) for each in theirs if each.host_id in hosts and each.status not in GONE]
    return OwnerLoad(len(sizes), *_total(sizes)[:3])


def _waits(server: Server, made_anew_at: float, wait_s: float, now: float) -> bool:
    """Return whether a server waits for a host.

    Nova reports the present as the last change of a server that is on no host yet: that one waits
    since its creation.
    """
    if server.host_id or server.launched_at or server.task == "deleting":
        return False
    if server.status == "BUILD":
        return now - server.created_at <= wait_s
    if (
        server.status != "ERROR"
        or server.fault is None
        or classify_fault(server.fault) is not FaultKind.CAPACITY
    ):
        return False
    return (
        now - (server.updated_at or server.created_at) <= wait_s
        and made_anew_at <= server.created_at
    )
