"""An order for a drone as a request for a server: what can be asked for at all, and the JSON that asks for it."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import shlex
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from adapters.openstack import registry
from adapters.openstack.capacity import gpus_of
from adapters.openstack.nova import Cloud
from adapters.openstack.records import Flavor, Image, Server
from adapters.openstack.registry import group_tag, named
from adapters.openstack.settings import BootVolume, OpenStackSiteConfig, OpenStackTypeConfig
from adapters.openstack.states import meaning
from adapters.shared.parcel import OURS, UnfitError, exports, packed, sendable
from adapters.shared.printing import printable
from adapters.shared.starts import Starts
from provisioner import drone
from provisioner.config.messages import choices
from provisioner.config.units import format_size
from provisioner.interfaces import AdapterError, OutcomeUnknownError, RejectedError
from provisioner.model import (
    WHOLE_GPU,
    DroneId,
    DroneType,
    Fault,
    FaultKind,
    OrderOutcome,
    OrderResult,
    RemoteState,
    StartOrder,
)

LARGEST_BODY = 114688
"""Bytes of a request that Nova reads (``max_request_body_size`` of oslo.middleware)."""
_GIB = 1024


@dataclass(frozen=True, slots=True)
class ResolvedNames:
    """Ids in this cloud of the names that the settings of one drone type contain."""

    flavor: str
    """Id."""
    image: str
    """Id."""
    networks: tuple[str, ...] | None = None
    """Ids; None: as the cloud sees fit, empty: none."""
    security_groups: tuple[str, ...] = ()
    """Ids, or names where no two have the same; empty: the project's default."""


def checked(order: StartOrder, controller: str) -> None:
    """Check that a server can be made of this order. Raises UnfitError."""
    kind, bootstrap = order.type, order.bootstrap
    if not registry.is_ours(order.drone_id, controller):
        raise UnfitError("not a drone id of this controller")
    if bootstrap is None:
        raise UnfitError("the order has no admission: nothing to run")
    if kind.gpu_milli % WHOLE_GPU or kind.gpu_milli < 0:
        raise UnfitError(f"{kind.gpu_milli / WHOLE_GPU:g} GPUs: a server has whole ones")
    if kind.cpus < 1 or kind.memory_mib < 1:
        raise UnfitError("a drone has a CPU and some memory at least")
    if kind.walltime_s < 0 or order.grace_s < 0:
        raise UnfitError("a drone cannot live, or leave, for less than no time")
    sendable(bootstrap)


def request(
    order: StartOrder, config: OpenStackSiteConfig, ids: ResolvedNames, user_data: bytes
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return ``server`` and scheduler hints of POST /servers (microversion 2.52, or 2.67 with a volume type).

    Raises UnfitError if Nova would not accept it.
    """
    kind, wanted = order.type, config.server(order.type.name)
    controller = order.drone_id.rsplit("-", 2)[0]
    body: dict[str, Any] = {
        "name": order.drone_id,
        "flavorRef": ids.flavor,
        "networks": _networks(ids),
        "metadata": {**wanted.metadata, **registry.metadata(order.drone_id, kind.name, controller, kind.site)},
        "tags": registry.tags(order.drone_id, controller, kind.site),
        "user_data": base64.b64encode(user_data).decode(),
    }
    if wanted.boot_volume is None:
        body["imageRef"] = ids.image
    else:
        body["block_device_mapping_v2"] = [_volume(wanted.boot_volume, ids.image)]
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
    size = len(json.dumps({"server": body, "os:scheduler_hints": hints}))
    if size > LARGEST_BODY:
        share = len(body["user_data"])
        raise UnfitError(
            f"the request is {size} bytes and may be {LARGEST_BODY}: user data {share}, the rest is metadata"
        )
    return body, hints


def _networks(ids: ResolvedNames) -> str | list[dict[str, str]]:
    if ids.networks is None:
        return "auto"
    return [{"uuid": network} for network in ids.networks] or "none"


def _volume(wanted: BootVolume, image: str) -> dict[str, Any]:
    volume: dict[str, Any] = {
        "boot_index": 0,
        "uuid": image,
        "source_type": "image",
        "destination_type": "volume",
        "volume_size": max(1, -(-wanted.size // _GIB)),
        "delete_on_termination": True,
    }
    if wanted.type:
        volume["volume_type"] = wanted.type
    return volume


_MAY_COME_S = 300.0
"""A create without an answer may still get through for so long: a request waits in a proxy, or in Nova's own queue."""
_LONGEST_SETUP = 256 * 1024


class ServerCreation:
    """The starts of one site. One call at a time creates; what it creates is bounded by ``config.parallel``."""

    def __init__(self, config: OpenStackSiteConfig, controller: str, site: str) -> None:
        self._config, self._controller, self._site = config, controller, site
        self._starts = Starts(site, _MAY_COME_S)

    async def start(
        self, cloud: Cloud, catalogue: NameResolver, orders: Sequence[StartOrder], known: Iterable[Server]
    ) -> Sequence[OrderResult]:
        """Start drones, as :meth:`provisioner.interfaces.Site.start`.

        ``known`` are our servers as last seen. Some may be in a cell that does not answer now.
        """
        receipts: dict[DroneId, OrderResult] = {}
        fit = []
        for order in orders:
            try:
                checked(order, self._controller)
                fit.append(order)
            except UnfitError as error:
                receipts[order.drone_id] = refused(order.drone_id, FaultKind.CONFIG, str(error))
        if fit:
            answers = await self._starts.run(
                [order.drone_id for order in fit],
                lambda given_up: self._started(cloud, catalogue, fit, known, given_up),
            )
            receipts |= {receipt.drone_id: receipt for receipt in answers}
        return [receipts[order.drone_id] for order in orders]

    async def settled(self, drone_ids: Collection[DroneId]) -> None:
        """Wait for creates of any of these drones."""
        await self._starts.settled(drone_ids)

    async def close(self) -> None:
        """Wait for creates under way."""
        await self._starts.close(self._config.create_deadline)

    async def _started(
        self,
        cloud: Cloud,
        catalogue: NameResolver,
        orders: Sequence[StartOrder],
        known: Iterable[Server],
        given_up: asyncio.Event,
    ) -> Sequence[OrderResult]:
        wanted = {order.drone_id for order in orders}
        there = await servers_of(cloud, self._controller, self._site, wanted, known)
        self._starts.there(there)
        setup = await asyncio.to_thread(_setup, self._config.setup)
        receipts = [OrderResult(drone_id, OrderOutcome.OK, servers[0].id) for drone_id, servers in there.items()]
        width = asyncio.Semaphore(self._config.parallel)
        tasks = []
        async with asyncio.TaskGroup() as group:
            for order in orders:
                if self._starts.may_come(order.drone_id):
                    receipts.append(unsure(order.drone_id, "an earlier create of it may still get through"))
                elif order.drone_id not in there:
                    tasks.append(group.create_task(self._one(cloud, catalogue, order, setup, given_up, width)))
        return [*receipts, *(task.result() for task in tasks)]

    async def _one(
        self,
        cloud: Cloud,
        catalogue: NameResolver,
        order: StartOrder,
        setup: bytes,
        given_up: asyncio.Event,
        width: asyncio.Semaphore,
    ) -> OrderResult:
        """Never raises: another may have got through."""
        try:
            async with width:
                if given_up.is_set():
                    return refused(order.drone_id, FaultKind.DOWN, "not asked for: there was no time left")
                ids = await catalogue.resolved(order.type)
                body, hints = request(order, self._config, ids, user_data(order, self._config, setup))
                server_id = await cloud.create(body, hints, deadline_s=self._config.create_deadline)
                return OrderResult(order.drone_id, OrderOutcome.OK, server_id)
        except UnfitError as error:
            return refused(order.drone_id, FaultKind.CONFIG, str(error))
        except OutcomeUnknownError as error:
            self._starts.without_answer([order.drone_id])
            return unsure(order.drone_id, str(error))
        except AdapterError as error:
            if error.kind is FaultKind.CONFIG:
                catalogue.forget()  # what a name means may have changed
            return refused(order.drone_id, error.kind, str(error))
        except Exception as error:  # a mistake of ours, and nobody knows how far it got
            self._starts.without_answer([order.drone_id])
            return unsure(order.drone_id, f"{type(error).__name__}: {error}")


async def servers_of(
    cloud: Cloud, controller: str, site: str, drone_ids: Collection[DroneId], known: Iterable[Server]
) -> Mapping[DroneId, Sequence[Server]]:
    """Return the servers of these drones that the cloud lists now, those with most to lose first.

    It takes one call and its pages. Servers in a cell that is down are not listed by tag (``registry.py``): they are
    taken as ``known``.
    """
    found: dict[DroneId, list[Server]] = {}
    silent = [server for server in known if server.status == "UNKNOWN"]
    listed = await cloud.servers(tag=group_tag(controller, site))
    for server in {server.id: server for server in (*silent, *listed)}.values():
        who = named(server, controller, site)
        if who is not None and who.drone_id in drone_ids and meaning(server).state is not RemoteState.ENDED:
            found.setdefault(who.drone_id, []).append(server)
    for servers in found.values():
        servers.sort(key=lambda each: (not each.launched_at, each.created_at, each.id))
    return found


def _setup(path: Path | None) -> bytes:
    if path is None:
        return b""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise RejectedError(f"`setup` {path}: {error.strerror}", FaultKind.CONFIG) from None
    if len(text) > _LONGEST_SETUP:
        raise RejectedError(f"`setup` {path}: {len(text)} bytes are more than a server can be sent", FaultKind.CONFIG)
    return text


def refused(drone_id: DroneId, kind: FaultKind, message: str) -> OrderResult:
    return OrderResult(drone_id, OrderOutcome.REJECTED, "", Fault(kind, printable(message, 300), time.time()))


def unsure(drone_id: DroneId, message: str) -> OrderResult:
    return OrderResult(
        drone_id, OrderOutcome.UNKNOWN, "", Fault(FaultKind.UNKNOWN, printable(message, 300), time.time())
    )


_STEADY_S = 600.0
"""Lifetime of resolved names. A cloud changes rarely, and a rejected create clears them."""


class NameResolver:
    """Asked when first needed, and again after a while. Raises what the cloud raises."""

    def __init__(self, cloud: Cloud, config: OpenStackSiteConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._cloud, self._config, self._clock = cloud, config, clock
        self._asking = asyncio.Lock()
        self._flavors: Sequence[Flavor] = ()
        self._resolved: dict[str, ResolvedNames] = {}
        self._until = 0.0

    def forget(self) -> None:
        """Ask anew when next needed."""
        self._until = 0.0

    async def flavors(self) -> Mapping[str, Flavor]:
        """By drone type; those that the cloud does not have are missing."""
        async with self._asking:
            await self._fresh()
            return {
                name: found
                for name, own in self._config.types.items()
                if (found := _flavor(self._flavors, own.flavor)) is not None
            }

    async def resolved(self, kind: DroneType) -> ResolvedNames:
        """Return the ids that servers of a drone type are made from.

        Raises RejectedError (CONFIG) if the cloud lacks one, or if the flavour is too small for the type.
        """
        async with self._asking:
            await self._fresh()
            if kind.name not in self._resolved:
                self._resolved[kind.name] = await self._found(kind)
            return self._resolved[kind.name]

    async def troubles(self, kind: DroneType) -> Sequence[tuple[str, str]]:
        """Return problems of a drone type for an audit: setting and remedy."""
        async with self._asking:
            await self._fresh()
        wanted = self._config.server(kind.name)
        flavor = _flavor(self._flavors, wanted.flavor)
        found = list(misfits(kind, flavor, wanted)) if flavor is not None else []
        try:
            await self.resolved(kind)
        except RejectedError as error:
            if not found:
                found.append(("options", str(error)))
        return found

    async def _fresh(self) -> None:
        if self._clock() >= self._until:
            self._flavors = await self._cloud.flavors()
            self._resolved.clear()
            self._until = self._clock() + _STEADY_S

    async def _found(self, kind: DroneType) -> ResolvedNames:
        wanted = self._config.server(kind.name)
        flavor = _flavor(self._flavors, wanted.flavor)
        if flavor is None:
            raise _missing("flavour", wanted.flavor, [each.name for each in self._flavors])
        for what, message in misfits(kind, flavor, wanted):
            if what != "gpus-unknown":
                raise RejectedError(message, FaultKind.CONFIG)
        image = _usable(await self._cloud.images(wanted.image), wanted.image)
        if image.min_memory_mib > flavor.memory_mib:
            message = f"image `{_name(wanted.image)}` wants {format_size(image.min_memory_mib)} of memory"
            raise RejectedError(f"{message}: flavour `{_name(flavor.name)}` has less", FaultKind.CONFIG)
        networks: tuple[str, ...] | None = None
        if wanted.networks is not None:
            known = await self._cloud.networks() if wanted.networks else {}
            networks = tuple(_identity("network", name, known) for name in wanted.networks)
        groups: tuple[str, ...] = ()
        if wanted.security_groups:
            known = await self._cloud.security_groups()
            groups = tuple(_identity("security group", name, known) for name in wanted.security_groups)
        if wanted.key_pair and wanted.key_pair not in (pairs := await self._cloud.key_pairs()):
            raise _missing("key pair", wanted.key_pair, pairs)
        return ResolvedNames(flavor.id, image.id, networks, groups)


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


def _flavor(flavors: Sequence[Flavor], name_or_id: str) -> Flavor | None:
    """Return a flavour by id, else by its unique name."""
    by = [each for each in flavors if each.id == name_or_id] or [each for each in flavors if each.name == name_or_id]
    return next((each for each in by if not each.disabled), None)


def _usable(images: Sequence[Image], name: str) -> Image:
    """Return the newest image that can be booted from."""
    usable = next((each for each in images if each.status.lower() == "active"), None)
    if usable is not None:
        return usable
    if images:
        what = printable(images[0].status, 40)
        raise RejectedError(f"image `{_name(name)}` cannot be used now: it is {what}", FaultKind.CONFIG)
    raise RejectedError(f"there is no image `{_name(name)}` for this project", FaultKind.CONFIG)


def _identity(what: str, name: str, known: Mapping[str, str]) -> str:
    """Return the id of an object by its id or its name. A name that several have matches none."""
    if name in known:
        return name
    ids = [each for each, own in known.items() if own == name]
    if len(ids) > 1:
        message = f"{len(ids)} of this cloud's {what}s are called `{_name(name)}`: write the id of one"
        raise RejectedError(message, FaultKind.CONFIG)
    if not ids:
        raise _missing(what, name, list(known.values()))
    return ids[0]


def _missing(what: str, name: str, known: Sequence[str]) -> RejectedError:
    names = [_name(each) for each in known]
    return RejectedError(
        f"there is no {what} `{_name(name)}` for this project: {choices(name, names)}", FaultKind.CONFIG
    )


def _name(told: str) -> str:
    return printable(told, 80)


LARGEST = 65535
"""Nova takes no more, counted in base64 (compute API reference, "user_data")."""
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class Guest:
    """Properties of the machine that the script assumes; tests set them."""

    root: str = ""
    """Before each path of the system."""
    path: str = _PATH
    setup_s: int = 900
    """The admin's setup script is ended after so long."""
    slack_s: int = 60
    """Beyond what it has been granted, nothing takes longer."""


def user_data(order: StartOrder, config: OpenStackSiteConfig, setup: bytes, guest: Guest = Guest()) -> bytes:
    """Return the script for one checked order, before base64.

    ``setup`` is the administrator's script, or empty. Raises UnfitError if it is too large for Nova.
    """
    archive = gzip.compress(_archive(order, config, setup), mtime=0)
    told = {
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
    lines = [f"{name}={shlex.quote(value)}" for name, value in told.items()]
    files = f"files() {{\n    base64 -d <<'END_OF_FILES'\n{base64.encodebytes(archive).decode()}END_OF_FILES\n}}\n"
    text = ("\n".join(["#!/bin/sh", *lines, files]) + _body()).encode("ascii")
    size = len(base64.b64encode(text))
    if size > LARGEST:
        what = {"the drone's files": _files(order), "the setup script": {"setup": setup}}
        sizes = ", ".join(f"{name} {sum(map(len, content.values()))} bytes" for name, content in what.items())
        raise UnfitError(f"its user data are {size} bytes and may be {LARGEST}, compressed: {sizes}")
    return text


@cache
def _body() -> str:
    shared = resources.files("adapters.shared").joinpath("tagged.sh").read_text()
    return shared + resources.files(__package__).joinpath("guest.sh").read_text()


def _files(order: StartOrder) -> Mapping[str, bytes]:
    assert order.bootstrap is not None
    return {**order.bootstrap.files, f"{OURS}/script": order.bootstrap.script}


def _archive(order: StartOrder, config: OpenStackSiteConfig, setup: bytes) -> bytes:
    """Return the drone's directory as an archive."""
    return packed({**_files(order), f"{OURS}/setup": setup, f"{OURS}/step": _step(order, config)})


def _step(order: StartOrder, config: OpenStackSiteConfig) -> bytes:
    """Return the lines that set the environment and execute the drone. Its directory, PATH and tag exist."""
    assert order.bootstrap is not None
    env = {**order.bootstrap.env, **config.env, **drone.environment(order)}
    said_by_the_guest = {"DRONE_DIR", "HOME", "PROVISIONER_DRONE_ID"}
    lines = exports({name: value for name, value in env.items() if name not in said_by_the_guest})
    return "\n".join([*lines, f"exec sh {OURS}/script", ""]).encode("utf-8", "surrogateescape")
