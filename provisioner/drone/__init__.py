"""Scripts that run on a worker node: POSIX shell, no dependency of ours. Handed out as bytes, because sites ship it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

from provisioner.model import WHOLE_GPU, StartOrder

_INCLUDE = re.compile(rb"^.*# @include (?P<name>[a-z_]+\.(?:sh|py))$", re.MULTILINE)


def script(name: str) -> bytes:
    """Return a drone's script, complete in one file: ``script("condor_drone.sh")``.

    A line that ends in ``# @include NAME`` is replaced by that file. Unreplaced it is a command that fails, so a
    script taken from the source tree as it is checks no GPU and therefore accepts no job.
    """
    text = resources.files(__package__).joinpath(name).read_bytes()
    return _INCLUDE.sub(lambda found: script(found["name"].decode()).rstrip(b"\n"), text)


def environment(order: StartOrder) -> Mapping[str, str]:
    """Return the environment that every drone gets, wherever it runs (``docs/reference/drone.md``).

    Its site adds ``DRONE_DIR`` and the GPUs of the drone; the overlay adds its part
    (:class:`provisioner.model.Bootstrap`).
    """
    kind = order.type
    return {
        "DRONE_ID": order.drone_id,
        "DRONE_SITE": kind.site,
        "DRONE_TYPE": kind.name,
        "DRONE_GPUS": str(-(-kind.gpu_milli // WHOLE_GPU)),
        "DRONE_GPU_MILLI": str(kind.gpu_milli),
        "DRONE_CPUS": str(kind.cpus),
        "DRONE_MEMORY_MIB": str(kind.memory_mib),
        "DRONE_DISK_MIB": str(kind.disk_mib),
        "DRONE_VRAM_MIB": str(kind.vram_mib),
        "DRONE_SHARING": kind.sharing.value,
        "DRONE_SHARES": str(kind.shares),
        **({"DRONE_VRAM_POOL": "1"} if kind.vram_pool else {}),
        "DRONE_KEPT_CPUS": str(kind.kept_cpus),
        "DRONE_KEPT_MEMORY_MIB": str(kind.kept_memory_mib),
        "DRONE_KEPT_DISK_MIB": str(kind.kept_disk_mib),
        "DRONE_IDLE_S": str(round(order.idle_timeout_s)),
        "DRONE_GRACE_S": str(round(order.grace_s)),
        "DRONE_WALLTIME_S": str(int(kind.walltime_s)),
    }
