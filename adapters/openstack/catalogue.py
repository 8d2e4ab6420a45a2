"""What the settings name, as this cloud calls it: flavours, images, networks, security groups; and whether they fit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from adapters.openstack.cloud import Cloud
from adapters.openstack.creation import Resolved
from adapters.openstack.gpus import gpus_of
from adapters.openstack.records import Flavor, Image
from adapters.openstack.settings import OpenStackSiteConfig, TypeOptions
from adapters.shared.printing import printable
from provisioner.config.messages import choices
from provisioner.config.units import format_size
from provisioner.interfaces import RejectedError
from provisioner.model import WHOLE_GPU, DroneType, FaultKind

_STEADY_S = 600.0
"""What is in a cloud changes rarely, and a create that is refused makes us ask anew."""


class Catalogue:
    """Asked when first needed, and again after a while. Raises what the cloud raises."""

    def __init__(self, cloud: Cloud, config: OpenStackSiteConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._cloud, self._config, self._clock = cloud, config, clock
        self._asking = asyncio.Lock()
        self._flavors: Sequence[Flavor] = ()
        self._resolved: dict[str, Resolved] = {}
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

    async def resolved(self, kind: DroneType) -> Resolved:
        """What servers of a drone type are made of. RejectedError (CONFIG) where the cloud has no such thing, or the
        flavour is too small for the type."""
        async with self._asking:
            await self._fresh()
            if kind.name not in self._resolved:
                self._resolved[kind.name] = await self._found(kind)
            return self._resolved[kind.name]

    async def troubles(self, kind: DroneType) -> Sequence[tuple[str, str]]:
        """What is wrong with a drone type here: which setting, and what to do about it. For an audit."""
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

    async def _found(self, kind: DroneType) -> Resolved:
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
        return Resolved(flavor.id, image.id, networks, groups)


def misfits(kind: DroneType, flavor: Flavor, wanted: TypeOptions) -> Iterator[tuple[str, str]]:
    """Where a flavour is not what its drone type says: dimension, and what to do. ``gpus-unknown``: its extra specs do
    not tell, so it is for a person to know."""
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
    """An id comes before a name; names of flavours are unique."""
    by = [each for each in flavors if each.id == name_or_id] or [each for each in flavors if each.name == name_or_id]
    return next((each for each in by if not each.disabled), None)


def _usable(images: Sequence[Image], name: str) -> Image:
    """The newest of those that can be booted from."""
    usable = next((each for each in images if each.status.lower() == "active"), None)
    if usable is not None:
        return usable
    if images:
        what = printable(images[0].status, 40)
        raise RejectedError(f"image `{_name(name)}` cannot be used now: it is {what}", FaultKind.CONFIG)
    raise RejectedError(f"there is no image `{_name(name)}` for this project", FaultKind.CONFIG)


def _identity(what: str, name: str, known: Mapping[str, str]) -> str:
    """The id of a thing by its id or its name. A name that several have means none of them."""
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
