"""Creation of servers: names resolved to ids, user data, the request for a server, and the starts of one site."""

from __future__ import annotations

import asyncio
import base64
import gzip
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from adapters.openstack.capacity import gpus_of
from adapters.openstack.registry import ServerNames, servers_of
from adapters.openstack.servers import Flavor, Server
from adapters.openstack.settings import OpenStackSiteConfig, OpenStackTypeConfig
from adapters.shared.housekeeping import side_by_side
from adapters.shared.parcel import (
    OURS,
    SYSTEM_PATH,
    UnfitError,
    files_function,
    packed,
    scripts,
    step,
    validated,
)
from adapters.shared.printing import printable
from adapters.shared.starts import Starts, done, failed, outcome_unknown, rejected
from provisioner import drone
from provisioner.config.messages import choices
from provisioner.config.units import format_size
from provisioner.interfaces import AdapterError, OutcomeUnknownError, RejectedError
from provisioner.model import WHOLE_GPU, DroneType, FaultKind, OrderResult, OrderResults, StartOrder
from provisioner.values import frozen

if TYPE_CHECKING:
    from adapters.openstack.nova import OpenStackCloud


_RESOLVED_FOR_S = 600.0
"""Lifetime of resolved names. A cloud changes rarely, and a rejected create clears them."""


@frozen
class ResolvedNames:
    """Ids of the names in the settings of one drone type."""

    flavor: str
    image: str
    networks: tuple[str, ...] | None = None
    """None: as the cloud sees fit, empty: none."""
    security_groups: tuple[str, ...] = ()
    """Ids, or names where no two have the same; empty: the project's default."""


class NameResolver:
    """Names in the settings, looked up when first needed, and again after a while. Raises what the cloud raises."""

    def __init__(
        self,
        cloud: OpenStackCloud,
        config: OpenStackSiteConfig,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cloud = cloud
        self._config = config
        self._clock = clock
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
        """Return the ids that servers of a drone type are made from. Raises RejectedError (CONFIG)."""
        async with self._lock:
            await self._refresh()
            if kind.name not in self._resolved:
                self._resolved[kind.name] = await self._resolve(kind)
            return self._resolved[kind.name]

    async def problems(self, kind: DroneType) -> Sequence[tuple[str, str]]:
        """Return problems of a drone type for an audit: setting and remedy."""
        flavor = (await self.flavors()).get(kind.name)
        found = (
            list(misfits(kind, flavor, self._config.server(kind.name)))
            if flavor is not None
            else []
        )
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
            raise _missing(
                "flavour", wanted.flavor, [each.name for each in self._flavors if not each.disabled]
            )
        for what, message in misfits(kind, flavor, wanted):
            if what != "gpus-unknown":
                raise RejectedError(message, FaultKind.CONFIG)
        image = await self._image(wanted.image, flavor)
        networks = (
            await self._ids("networks", wanted.networks) if wanted.networks is not None else None
        )
        groups = await self._ids("security_groups", wanted.security_groups)
        if wanted.key_pair and wanted.key_pair not in (pairs := await self._cloud.key_pairs()):
            raise _missing("key pair", wanted.key_pair, pairs)
        return ResolvedNames(flavor.id, image, networks, groups)

    async def _image(self, name_or_id: str, flavor: Flavor) -> str:
        images = await self._cloud.images(name_or_id)
        name = f"image `{_name(name_or_id)}`"
        usable = next((each for each in images if each.status.lower() == "active"), None)
        if usable is None:
            problem = (
                f"{name} cannot be used now: it is {printable(images[0].status, 40)}"
                if images
                else ""
            )
            raise RejectedError(problem or f"there is no {name} for this project", FaultKind.CONFIG)
        if usable.min_memory_mib > flavor.memory_mib:
            message = f"{name} wants {format_size(usable.min_memory_mib)} of memory"
            raise RejectedError(
                f"{message}: flavour `{_name(flavor.name)}` has less", FaultKind.CONFIG
            )
        return usable.id

    async def _ids(
        self, key: Literal["networks", "security_groups"], wanted: Sequence[str]
    ) -> tuple[str, ...]:
        """Return ids by ids or names. A name that several have matches none."""
        what = key.replace("_", " ").removesuffix("s")
        known = await self._cloud.names_by_id(key) if wanted else {}
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


def misfits(
    kind: DroneType, flavor: Flavor, wanted: OpenStackTypeConfig
) -> Iterator[tuple[str, str]]:
    """Yield where a flavour differs from its drone type: dimension (``gpus-unknown``: not told) and remedy."""
    name = f"flavour `{_name(flavor.name)}`"
    gpus = gpus_of(flavor.extra)
    wants = kind.gpu_milli // WHOLE_GPU
    if gpus is None:
        yield (
            "gpus-unknown",
            f"{name} does not tell how many GPUs it has; drone type `{kind.name}` has {wants}",
        )
    elif gpus != wants:
        yield (
            "gpus",
            f"{name} has {gpus} GPUs, drone type `{kind.name}` {wants}: change `gpus` or `flavor`",
        )
    disk_mib = flavor.disk_mib or kind.disk_mib
    disk = name  # 0: as large as the image
    if wanted.boot_volume is not None:
        disk_mib = wanted.boot_volume.size
        disk = "its boot volume"
    for setting, of, has, needs in (
        ("cpus", name, flavor.vcpus, kind.cpus),
        ("memory", name, flavor.memory_mib, kind.memory_mib),
        ("disk", disk, disk_mib, kind.disk_mib),
    ):
        if has < needs:
            there, wanted_here = (
                str(each) if setting == "cpus" else format_size(each) for each in (has, needs)
            )
            message = f"`{setting}` of {of} is {there}, of drone type `{kind.name}` {wanted_here}"
            yield setting, f"{message}: change `{setting}` or the flavour"


def _missing(what: str, name: str, known: Sequence[str]) -> RejectedError:
    options = choices(name, [_name(each) for each in known])
    return RejectedError(
        f"there is no {what} `{_name(name)}` for this project: {options}", FaultKind.CONFIG
    )


def _name(text: str) -> str:
    return printable(text, 80)


# ------------------------------------------------------------------------------------------------------------
# user data

MAX_USER_DATA = 65535
"""Nova takes no more, counted in base64 (compute API reference, "user_data")."""
_SET_BY_GUEST = frozenset({"DRONE_DIR", "HOME", "PROVISIONER_DRONE_ID"})


_GUEST: Mapping[str, str] = {"root": "", "PATH": SYSTEM_PATH, "setup_s": "900", "slack_s": "60"}
"""Variables of the script that tests set: what is before each path of the system; the limit of the
administrator's setup script; the time beyond its own limit that nothing takes longer than."""


def user_data(
    order: StartOrder, config: OpenStackSiteConfig, setup: bytes, guest: Mapping[str, str] = _GUEST
) -> bytes:
    """Return the script for one checked order, compressed as cloud-init accepts it, before base64.

    Raises UnfitError if it is too large for Nova.
    """
    bootstrap = order.bootstrap
    assert bootstrap is not None
    files = {**bootstrap.files, f"{OURS}/script": bootstrap.script}
    # `step` sets the environment and executes the drone. Its directory, PATH and tag exist.
    env = {**bootstrap.env, **config.env, **drone.environment(order)}
    own = {
        f"{OURS}/setup": setup,
        f"{OURS}/step": step({k: text for k, text in env.items() if k not in _SET_BY_GUEST}),
    }
    archive = gzip.compress(packed({**files, **own}), mtime=0)
    variables = {
        "drone_id": order.drone_id,
        "scratch": config.scratch.rstrip("/") or "/",
        "setup": "yes" if setup else "",
        "walltime_s": str(int(order.type.walltime_s)),
        "grace_s": str(round(order.grace_s)),
        **guest,
    }
    head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in variables.items())
    text = f"#!/bin/sh\n{head}{files_function(archive)}{scripts(__package__, 'guest.sh')}"
    script = gzip.compress(drone.without_comments(text.encode("ascii")), mtime=0)
    size = len(base64.b64encode(script))
    if size > MAX_USER_DATA:
        sizes = f"the drone's files {sum(map(len, files.values()))} bytes, the setup script {len(setup)} bytes"
        raise UnfitError(
            f"its user data are {size} bytes and may be {MAX_USER_DATA}, compressed: {sizes}"
        )
    return script


def server_request(
    order: StartOrder,
    config: OpenStackSiteConfig,
    names: ServerNames,
    ids: ResolvedNames,
    script: bytes,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return ``server`` and scheduler hints of POST /servers (microversion 2.52, or 2.67 with a volume type)."""
    wanted = config.server(order.type.name)
    body: dict[str, Any] = {
        "name": order.drone_id,
        "flavorRef": ids.flavor,
        "networks": "auto"
        if ids.networks is None
        else [{"uuid": each} for each in ids.networks] or "none",
        "metadata": {
            **wanted.metadata,
            **names.metadata(order.drone_id, order.type.name, order.epoch),
        },
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
            "volume_size": max(1, -(-wanted.boot_volume.size // 1024)),
            "delete_on_termination": True,
        }
        if wanted.boot_volume.type:
            volume["volume_type"] = wanted.boot_volume.type
        body["block_device_mapping_v2"] = [volume]
    # Nova gives them to the ports that it makes; without a network it makes none, and looks for
    # their names to no effect.
    if ids.security_groups and ids.networks != ():
        body["security_groups"] = [{"name": name} for name in ids.security_groups]
    special = {
        "key_name": wanted.key_pair or None,
        "availability_zone": wanted.availability_zone or None,
        "config_drive": wanted.config_drive,
    }
    body |= {key: value for key, value in special.items() if value is not None}
    hints = {"group": wanted.server_group} if wanted.server_group else {}
    return body, hints


_LATE_CREATE_S = 300.0
"""Time in which a create without an answer may still succeed: it waits in a proxy, or in Nova's own queue."""


class ServerCreation:
    """The starts of one site. One call at a time creates; what it creates is bounded by ``config.parallel``."""

    def __init__(
        self, cloud: OpenStackCloud, config: OpenStackSiteConfig, names: ServerNames
    ) -> None:
        self._cloud = cloud
        self._config = config
        self._names = names
        self.resolver = NameResolver(cloud, config)
        self.starts = Starts(names.site, _LATE_CREATE_S)

    async def start(self, orders: Sequence[StartOrder], known: Iterable[Server]) -> OrderResults:
        """Start drones. ``known`` are our servers as last seen: some may be in a cell that does not answer now."""
        drone_ids = [order.drone_id for order in orders]
        return await self.starts.run(
            drone_ids, lambda given_up: self._start(orders, known, given_up)
        )

    async def _start(
        self, orders: Sequence[StartOrder], known: Iterable[Server], given_up: asyncio.Event
    ) -> OrderResults:
        there = await servers_of(
            self._cloud, self._names, {order.drone_id for order in orders}, known
        )
        self.starts.there(there)
        path = self._config.setup
        try:
            setup = await asyncio.to_thread(path.read_bytes) if path is not None else b""
        except OSError as error:
            raise RejectedError(f"`setup` {path}: {error.strerror}", FaultKind.CONFIG) from None

        async def create(order: StartOrder) -> OrderResult:
            """Never raises: another may have got through."""
            if order.drone_id in there:
                return done(order.drone_id, there[order.drone_id][0].id)
            if self.starts.may_come(order.drone_id):
                return outcome_unknown(
                    order.drone_id, "an earlier create of it may still get through"
                )
            if given_up.is_set():
                return rejected(
                    order.drone_id, FaultKind.DOWN, "not asked for: there was no time left"
                )
            try:
                return done(order.drone_id, await self._create(order, setup))
            except OutcomeUnknownError as error:
                message = str(error)
            except AdapterError as error:
                if error.kind is FaultKind.CONFIG:
                    self.resolver.forget()  # what a name means may have changed
                return failed(order.drone_id, error)
            except Exception as error:  # a mistake of ours, with an unknown outcome
                message = f"{type(error).__name__}: {error}"
            self.starts.without_answer([order.drone_id])
            return outcome_unknown(order.drone_id, message)

        return await side_by_side(map(create, orders), self._config.parallel)

    async def _create(self, order: StartOrder, setup: bytes) -> str:
        """Create a server, and return its id. Raises UnfitError, and what the cloud raises."""
        validated(order, self._names.controller)
        ids = await self.resolver.resolved(order.type)
        script = user_data(order, self._config, setup)
        body, hints = server_request(order, self._config, self._names, ids, script)
        return await self._cloud.create(body, hints, deadline_s=self._config.create_deadline)
