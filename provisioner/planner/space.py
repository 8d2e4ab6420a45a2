"""Amounts of the four things that jobs and drones take, and how often one amount goes into another under blocking."""

from __future__ import annotations

from typing import NamedTuple

from provisioner.model import WHOLE_GPU

UNTOLD_MIB = 1 << 50
"""Stands for a disk size that nobody tells."""


class Space(NamedTuple):
    """GPUs, CPUs, RAM and disk: what something needs, or what is left somewhere."""

    gpu_milli: int = 0
    cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0

    def plus(self, other: Space, times: int = 1) -> Space:
        """``times`` times ``other`` more (or, negative, less)."""
        return Space(
            self.gpu_milli + times * other.gpu_milli,
            self.cpus + times * other.cpus,
            self.memory_mib + times * other.memory_mib,
            self.disk_mib + times * other.disk_mib,
        )


NOTHING = Space()
ENDLESS = 1 << 60


def times(each: Space, free: Space, kept: Space = NOTHING) -> int:
    """How often ``each`` goes into ``free`` so that every GPU that then is left keeps ``kept``; the binding dimension
    decides. (``kept.gpu_milli`` is not used.) What asks for nothing goes into nothing."""
    most = often(*each, *free)
    return most if kept is NOTHING else sparing(most, each, free, kept)


def sparing(most: int, each: Space, free: Space, kept: Space) -> int:
    """At most ``most`` times, and so that every GPU of ``free`` that then is left keeps ``kept``."""
    if not free.gpu_milli or most <= 0:
        return most
    for need, there, keep in zip(each[1:], free[1:], kept[1:], strict=True):
        # there - n * need >= keep * (GPUs left): each one eats so much into what is kept.
        eats = need * WHOLE_GPU - keep * each.gpu_milli
        if keep and eats > 0:
            most = min(most, (there * WHOLE_GPU - keep * free.gpu_milli) // eats)
    return max(0, most)


def often(
    gpu_milli: int,
    cpus: int,
    memory_mib: int,
    disk_mib: int,
    in_gpu_milli: int,
    in_cpus: int,
    in_memory_mib: int,
    in_disk_mib: int,
) -> int:
    """How often the first four amounts go into the second four, nothing kept. (A hundred thousand times in one decision
    at a large site: no object is made for it.)"""
    most = ENDLESS
    if gpu_milli >= WHOLE_GPU:
        most = in_gpu_milli // gpu_milli
    elif gpu_milli:
        per_gpu = WHOLE_GPU // gpu_milli  # a share lies on one device
        most = in_gpu_milli // WHOLE_GPU * per_gpu + in_gpu_milli % WHOLE_GPU // gpu_milli
    if cpus > 0 and in_cpus // cpus < most:
        most = in_cpus // cpus
    if memory_mib > 0 and in_memory_mib // memory_mib < most:
        most = in_memory_mib // memory_mib
    if disk_mib > 0 and in_disk_mib // disk_mib < most:
        most = in_disk_mib // disk_mib
    return max(0, most) if most != ENDLESS else 0
