"""Creation of servers: names resolved to ids, user data, the request for a server, and the starts of one site."""

from __future__ import annotations

import asyncio
import base64
import gzip
import shlex
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from adapters.openstack.capacity import gpus_of
from adapters.openstack.records import Flavor, Server
from adapters.openstack.registry import ServerNames
from adapters.openstack.settings import OpenStackSiteConfig, OpenStackTypeConfig
from adapters.openstack.states import server_phase
from adapters.shared.parcel import OURS, UnfitError, exports, packed, sendable
from adapters.shared.printing import printable
from adapters.shared.starts import Starts, outcome_unknown, rejected
from provisioner import drone
from provisioner.config.messages import choices
from provisioner.config.units import format_size
from provisioner.interfaces import AdapterError, OutcomeUnknownError, RejectedError
from provisioner.model import (
    WHOLE_GPU,
    DroneId,
    DroneType,
    FaultKind,
    OrderOutcome,
    OrderResult,
    RemoteState,
    StartOrder,
)

if TYPE_CHECKING:
    from adapters.openstack.nova import OpenStackCloud

T = TypeVar("T")

# ------------------------------------------------------------------------------------------------ names in this cloud

_RESOLVED_FOR_S = 600.0
"""Lifetime of resolved names. A cloud changes rarely, and a rejected create clears them."""


@dataclass(frozen=True, slots=True)
class ResolvedNames:
    """Ids in this cloud of the names that the settings of one drone type contain."""

    flavor: str
    image: str
    networks: tuple[str, ...] | None = None
    """None: as the cloud sees fit, empty: none."""
    security_groups: tuple[str, ...] = ()
    """Ids, or names where no two have the same; empty: the project's default."""


class NameResolver:
    """Names in the settings, looked up when first needed, and again after a while. Raises what the cloud raises."""

    def __init__(
        self, cloud: OpenStackCloud, config: OpenStackSiteConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cloud, self._config, self._clock = cloud, config, clock
        self._lock = asyncio.Lock()
        self._flavors: Sequence[Flavor] = ()
        self._resolved: dict[str, ResolvedNames] = {}
        self._until = 0.0

    def forget(self) -> None:
        """Look names up anew when next needed."""
        self._until = 0.0

    async def flavors(self) -> Mapping[str, Flavor]:
        """Return flavours by drone type; those that the cloud does not have are missing."""
        async with self._lock:
            await self._refresh()
            found = {name: self._flavor(own.flavor) for name, own in self._config.types.items()}
            return {name: flavor for name, flavor in found.items() if flavor is not None}

    async def resolved(self, kind: DroneType) -> ResolvedNames:
        """Return the ids that servers of a drone type are made from.

        Raises RejectedError (CONFIG) if the cloud lacks one, or if the flavour is too small for the type.
        """
        async with self._lock:
            await self._refresh()
            if kind.name not in self._resolved:
                self._resolved[kind.name] = await self._resolve(kind)
            return self._resolved[kind.name]

    async def problems(self, kind: DroneType) -> Sequence[tuple[str, str]]:
        """Return problems of a drone type for an audit: setting and remedy."""
        async with self._lock:
            await self._refresh()
        wanted = self._config.server(kind.name)
        flavor = self._flavor(wanted.flavor)
        found = list(misfits(kind, flavor, wanted)) if flavor is not None else []
        try:
            await self.resolved(kind)
        except RejectedError as error:
            found = found or [("options", str(error))]
        return found

    async def _refresh(self) -> None:
        if self._clock() >= self._until:
            self._flavors = await self._cloud.flavors()
            self._resolved.clear()
            self._until = self._clock() + _RESOLVED_FOR_S

    def _flavor(self, name_or_id: str) -> Flavor | None:
        """Return a flavour by id, else by its unique name."""
        by_id = [each for each in self._flavors if each.id == name_or_id]
        found = by_id or [each for each in self._flavors if each.name == name_or_id]
        return next((each for each in found if not each.disabled), None)

    async def _resolve(self, kind: DroneType) -> ResolvedNames:
        wanted = self._config.server(kind.name)
        flavor = self._flavor(wanted.flavor)
        if flavor is None:
            raise _missing("flavour", wanted.flavor, [each.name for each in self._flavors if not each.disabled])
        for what, message in misfits(kind, flavor, wanted):
            if what != "gpus-unknown":
                raise RejectedError(message, FaultKind.CONFIG)
        image = await self._image(wanted.image, flavor)
        networks: tuple[str, ...] | None = None
        if wanted.networks is not None:
            networks = await _ids("network", wanted.networks, self._cloud.networks)
        groups = await _ids("security group", wanted.security_groups, self._cloud.security_groups)
        if wanted.key_pair and wanted.key_pair not in (pairs := await self._cloud.key_pairs()):
            raise _missing("key pair", wanted.key_pair, pairs)
        return ResolvedNames(flavor.id, image, networks, groups)

    async def _image(self, name_or_id: str, flavor: Flavor) -> str:
        """Return the id of the newest image that can be booted from."""
        images, name = await self._cloud.images(name_or_id), f"image `{_name(name_or_id)}`"
        if not images:
            raise RejectedError(f"there is no {name} for this project", FaultKind.CONFIG)
        usable = next((each for each in images if each.status.lower() == "active"), None)
        if usable is None:
            status = printable(images[0].status, 40)
            raise RejectedError(f"{name} cannot be used now: it is {status}", FaultKind.CONFIG)
        if usable.min_memory_mib > flavor.memory_mib:
            message = f"{name} wants {format_size(usable.min_memory_mib)} of memory"
            raise RejectedError(f"{message}: flavour `{_name(flavor.name)}` has less", FaultKind.CONFIG)
        return usable.id


def misfits(kind: DroneType, flavor: Flavor, wanted: OpenStackTypeConfig) -> Iterator[tuple[str, str]]:
    """Yield where a flavour differs from its drone type: dimension and remedy.

    ``gpus-unknown``: its extra specs do not tell, so a person has to check.
    """
    name = f"flavour `{_name(flavor.name)}`"
    gpus, wants = gpus_of(flavor.extra), kind.gpu_milli // WHOLE_GPU
    if gpus is None:
        yield "gpus-unknown", f"{name} does not tell how many GPUs it has; drone type `{kind.name}` has {wants}"
    elif gpus != wants:
        yield "gpus", f"{name} has {gpus} GPUs, drone type `{kind.name}` {wants}: change `gpus` or `flavor`"
    if flavor.vcpus < kind.cpus:
        yield "cpus", f"{name} has {flavor.vcpus} CPUs, drone type `{kind.name}` {kind.cpus}: change `cpus` or `flavor`"
    if flavor.memory_mib < kind.memory_mib:
        sizes = f"{format_size(flavor.memory_mib)} of memory, drone type `{kind.name}` {format_size(kind.memory_mib)}"
        yield "memory", f"{name} has {sizes}: change `memory` or `flavor`"
    disk_mib = wanted.boot_volume.size if wanted.boot_volume is not None else flavor.disk_mib
    if 0 < disk_mib < kind.disk_mib:  # 0: as large as the image
        of = "its boot volume" if wanted.boot_volume is not None else name
        sizes = f"{format_size(disk_mib)} of disk, drone type `{kind.name}` {format_size(kind.disk_mib)}"
        yield "disk", f"{of} has {sizes}: change `disk` or the flavour"


async def _ids(
    what: str, wanted: Iterable[str], names_by_id: Callable[[], Awaitable[Mapping[str, str]]]
) -> tuple[str, ...]:
    """Return the ids of objects by their ids or names. A name that several have matches none."""
    known = await names_by_id() if wanted else {}
    found: list[str] = []
    for name in wanted:
        ids = [name] if name in known else [each for each, own in known.items() if own == name]
        if not ids:
            raise _missing(what, name, list(known.values()))
        if len(ids) > 1:
            message = f"{len(ids)} of this cloud's {what}s are called `{_name(name)}`: write the id of one"
            raise RejectedError(message, FaultKind.CONFIG)
        found += ids
    return tuple(found)


def _missing(what: str, name: str, known: Sequence[str]) -> RejectedError:
    options = choices(name, [_name(each) for each in known])
    return RejectedError(f"there is no {what} `{_name(name)}` for this project: {options}", FaultKind.CONFIG)


def _name(text: str) -> str:
    return printable(text, 80)


# ------------------------------------------------------------------------------------------------------------ user data

MAX_USER_DATA = 65535
"""Nova takes no more, counted in base64 (compute API reference, "user_data")."""
_GUEST_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_SET_BY_GUEST = frozenset({"DRONE_DIR", "HOME", "PROVISIONER_DRONE_ID"})


@dataclass(frozen=True, slots=True)
class Guest:
    """Properties of the machine that the script assumes; tests set them."""

    root: str = ""
    """Before each path of the system."""
    path: str = _GUEST_PATH
    setup_s: int = 900
    """Time limit of the administrator's setup script."""
    slack_s: int = 60
    """Beyond its own limit, nothing takes longer."""


def user_data(order: StartOrder, config: OpenStackSiteConfig, setup: bytes, guest: Guest = Guest()) -> bytes:
    """Return the script for one checked order, before base64.

    ``setup`` is the administrator's script, or empty. Raises UnfitError if it is too large for Nova.
    """
    assert order.bootstrap is not None
    files = {**order.bootstrap.files, f"{OURS}/script": order.bootstrap.script}
    # `step` sets the environment and executes the drone. Its directory, PATH and tag exist.
    env = {**order.bootstrap.env, **config.env, **drone.environment(order)}
    lines = exports({name: value for name, value in env.items() if name not in _SET_BY_GUEST})
    step = "\n".join([*lines, f"exec sh {OURS}/script", ""]).encode("utf-8", "surrogateescape")
    archive = gzip.compress(packed({**files, f"{OURS}/setup": setup, f"{OURS}/step": step}), mtime=0)
    variables = {
        "drone_id": order.drone_id,
        "scratch": config.scratch.rstrip("/") or "/",
        "setup": "yes" if setup else "",
        "walltime_s": str(int(order.type.walltime_s)),
        "grace_s": str(round(order.grace_s)),
        "setup_s": str(guest.setup_s),
        "slack_s": str(guest.slack_s),
        "root": guest.root,
        "PATH": guest.path,
    }
    head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    function = f"files() {{\n    base64 -d <<'END_OF_FILES'\n{base64.encodebytes(archive).decode()}END_OF_FILES\n}}\n"
    script = f"#!/bin/sh\n{head}{function}{_guest_script()}".encode("ascii")
    size = len(base64.b64encode(script))
    if size > MAX_USER_DATA:
        sizes = f"the drone's files {sum(map(len, files.values()))} bytes, the setup script {len(setup)} bytes"
        raise UnfitError(f"its user data are {size} bytes and may be {MAX_USER_DATA}, compressed: {sizes}")
    return script


@cache
def _guest_script() -> str:
    shared = resources.files("adapters.shared").joinpath("tagged.sh").read_text()
    return shared + resources.files(__package__).joinpath("guest.sh").read_text()


# ---------------------------------------------------------------------------------------------------------- the request

_GIB_MIB = 1024


def check_order(order: StartOrder, names: ServerNames) -> None:
    """Check that a server can be made of this order. Raises UnfitError."""
    bootstrap = order.bootstrap
    if not names.is_ours(order.drone_id):
        raise UnfitError("not a drone id of this controller")
    if bootstrap is None:
        raise UnfitError("the order has no admission: nothing to run")
    sendable(bootstrap)


def server_request(
    order: StartOrder, config: OpenStackSiteConfig, ids: ResolvedNames, script: bytes
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return ``server`` and scheduler hints of POST /servers (microversion 2.52, or 2.67 with a volume type).

    ``script`` is its user data.
    """
    kind, wanted = order.type, config.server(order.type.name)
    names = ServerNames(order.drone_id.rsplit("-", 2)[0], kind.site)
    body: dict[str, Any] = {
        "name": order.drone_id,
        "flavorRef": ids.flavor,
        "networks": "auto" if ids.networks is None else [{"uuid": each} for each in ids.networks] or "none",
        "metadata": {**wanted.metadata, **names.metadata(order.drone_id, kind.name)},
        "tags": names.tags(order.drone_id),
        "user_data": base64.b64encode(script).decode(),
    }
    if wanted.boot_volume is None:
        body["imageRef"] = ids.image
    else:
        volume: dict[str, Any] = {
            "boot_index": 0,
            "uuid": ids.image,
            "source_type": "image",
            "destination_type": "volume",
            "volume_size": max(1, -(-wanted.boot_volume.size // _GIB_MIB)),
            "delete_on_termination": True,
        }
        if wanted.boot_volume.type:
            volume["volume_type"] = wanted.boot_volume.type
        body["block_device_mapping_v2"] = [volume]
    # Nova gives them to the ports that it makes; without a network it makes none, and looks for their names in vain.
    if ids.security_groups and ids.networks != ():
        body["security_groups"] = [{"name": name} for name in ids.security_groups]
    if wanted.key_pair:
        body["key_name"] = wanted.key_pair
    if wanted.availability_zone:
        body["availability_zone"] = wanted.availability_zone
    if wanted.config_drive is not None:
        body["config_drive"] = wanted.config_drive
    hints = {"group": wanted.server_group} if wanted.server_group else {}
    return body, hints


# --------------------------------------------------------------------------------------------------------------- starts

_LATE_CREATE_S = 300.0
"""Time in which a create without an answer may still succeed: it waits in a proxy, or in Nova's own queue."""


class ServerCreation:
    """The starts of one site. One call at a time creates; what it creates is bounded by ``config.parallel``."""

    def __init__(self, config: OpenStackSiteConfig, names: ServerNames) -> None:
        self._config, self._names = config, names
        self.starts = Starts(names.site, _LATE_CREATE_S)

    async def start(
        self, cloud: OpenStackCloud, resolver: NameResolver, orders: Sequence[StartOrder], known: Iterable[Server]
    ) -> Sequence[OrderResult]:
        """Start drones, as :meth:`provisioner.interfaces.Site.start`.

        ``known`` are our servers as last seen. Some may be in a cell that does not answer now.
        """
        results: dict[DroneId, OrderResult] = {}
        fit = []
        for order in orders:
            try:
                check_order(order, self._names)
                fit.append(order)
            except UnfitError as error:
                results[order.drone_id] = rejected(order.drone_id, FaultKind.CONFIG, str(error))
        if fit:
            started = await self.starts.run(
                [order.drone_id for order in fit],
                lambda given_up: self._start(cloud, resolver, fit, known, given_up),
            )
            results |= {result.drone_id: result for result in started}
        return [results[order.drone_id] for order in orders]

    async def close(self) -> None:
        """Wait for creates under way."""
        await self.starts.close(self._config.create_deadline)

    async def _start(
        self,
        cloud: OpenStackCloud,
        resolver: NameResolver,
        orders: Sequence[StartOrder],
        known: Iterable[Server],
        given_up: asyncio.Event,
    ) -> Sequence[OrderResult]:
        wanted = {order.drone_id for order in orders}
        there = await servers_of(cloud, self._names, wanted, known)
        self.starts.there(there)
        setup = await asyncio.to_thread(_read_setup, self._config.setup)
        results = [OrderResult(drone_id, OrderOutcome.OK, servers[0].id) for drone_id, servers in there.items()]

        async def create(order: StartOrder) -> OrderResult:
            """Never raises: another may have got through."""
            try:
                if given_up.is_set():
                    return rejected(order.drone_id, FaultKind.DOWN, "not asked for: there was no time left")
                ids = await resolver.resolved(order.type)
                body, hints = server_request(order, self._config, ids, user_data(order, self._config, setup))
                server_id = await cloud.create(body, hints, deadline_s=self._config.create_deadline)
                return OrderResult(order.drone_id, OrderOutcome.OK, server_id)
            except UnfitError as error:
                return rejected(order.drone_id, FaultKind.CONFIG, str(error))
            except OutcomeUnknownError as error:
                message = str(error)
            except AdapterError as error:
                if error.kind is FaultKind.CONFIG:
                    resolver.forget()  # what a name means may have changed
                return rejected(order.drone_id, error.kind, str(error))
            except Exception as error:  # a mistake of ours, with an unknown outcome
                message = f"{type(error).__name__}: {error}"
            self.starts.without_answer([order.drone_id])
            return outcome_unknown(order.drone_id, message)

        creates = []
        for order in orders:
            if self.starts.may_come(order.drone_id):
                results.append(outcome_unknown(order.drone_id, "an earlier create of it may still get through"))
            elif order.drone_id not in there:
                creates.append(create(order))
        return [*results, *await side_by_side(creates, self._config.parallel)]


async def side_by_side(calls: Iterable[Awaitable[T]], most: int) -> list[T]:
    """Await calls, ``most`` of them at a time, and return their results in order."""
    width = asyncio.Semaphore(most)

    async def one(call: Awaitable[T]) -> T:
        async with width:
            return await call

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(call)) for call in calls]
    return [task.result() for task in tasks]


async def servers_of(
    cloud: OpenStackCloud, names: ServerNames, drone_ids: Collection[DroneId], known: Iterable[Server]
) -> Mapping[DroneId, Sequence[Server]]:
    """Return the servers of these drones that the cloud lists now, those with most to lose first.

    It takes one call and its pages. Servers in a cell that is down are not listed by tag (``registry.py``): they are
    taken as ``known``.
    """
    found: dict[DroneId, list[Server]] = {}
    silent = [server for server in known if server.status == "UNKNOWN"]
    listed = await cloud.servers(tag=names.group_tag)
    for server in {server.id: server for server in (*silent, *listed)}.values():
        drone_id = names.drone_id(server)
        if drone_id is not None and drone_id in drone_ids and server_phase(server).state is not RemoteState.ENDED:
            found.setdefault(drone_id, []).append(server)
    for servers in found.values():
        servers.sort(key=lambda each: (not each.launched_at, each.created_at, each.id))
    return found


def _read_setup(path: Path | None) -> bytes:
    if path is None:
        return b""
    try:
        return path.read_bytes()
    except OSError as error:
        raise RejectedError(f"`setup` {path}: {error.strerror}", FaultKind.CONFIG) from None
