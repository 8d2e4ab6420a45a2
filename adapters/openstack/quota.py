"""How many more drones of each type the project's quota allows: servers, CPUs and memory."""

from __future__ import annotations

from collections.abc import Mapping

from adapters.openstack.records import Flavor, Limits


def allowed(limits: Limits, flavors: Mapping[str, Flavor]) -> Mapping[str, int] | None:
    """By drone type, what ``flavors`` are by drone type; alternatives. None where the project has no limit at all: GPUs
    are none of Nova's quotas, so this alone never tells that there is room.

    Servers in ERROR and those that are shut off count as used until they are deleted. Another's create may come in
    between: Nova then takes the server and puts it into ERROR (fault 413).
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
