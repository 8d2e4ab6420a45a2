"""The environment of a drone: little of the controller's, the operator's, the overlay's, and the contract's on top."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from adapters.local_site.allotment import Allotment
from adapters.local_site.config import Config
from adapters.local_site.host import Gpu
from adapters.local_site.processes import TAG
from provisioner.model import WHOLE_GPU, Admission, StartOrder

_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
"""No more: the controller's environment may hold secrets, and drones run other people's jobs."""


def drone_environment(
    order: StartOrder, admission: Admission, allotment: Allotment, directory: Path, config: Config, gpus: Sequence[Gpu]
) -> dict[str, str]:
    kind = order.type
    inherited = {name: value for name in _INHERITED if (value := os.environ.get(name)) is not None}
    contract = {
        TAG: order.drone_id,
        "DRONE_ID": order.drone_id,
        "DRONE_SITE": kind.site,
        "DRONE_TYPE": kind.name,
        "DRONE_GPUS": str(-(-kind.gpu_milli // WHOLE_GPU)),
        "DRONE_GPU_MILLI": str(kind.gpu_milli),
        "DRONE_CPUS": str(kind.cpus),
        "DRONE_MEMORY_MIB": str(kind.memory_mib),
        "DRONE_DISK_MIB": str(kind.disk_mib),
        "DRONE_VRAM_MIB": str(kind.vram_mib),
        "DRONE_IDLE_S": str(round(order.idle_timeout_s)),
        "DRONE_GRACE_S": str(round(order.grace_s)),
        "DRONE_WALLTIME_S": str(int(kind.walltime_s)),
        "DRONE_DIR": str(directory),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order in which nvidia-smi numbers devices
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, sorted(allotment.gpus))),
    }
    pretended = [gpu.simulate for gpu in gpus if gpu.index in allotment.gpus and gpu.simulate is not None]
    if pretended:
        # As many as this host has: of those the discovery takes the ones in CUDA_VISIBLE_DEVICES.
        contract["DRONE_GPU_SIMULATE"] = f"{pretended[0]},{len(gpus)}"
    return {"PATH": os.defpath, **inherited, **config.env, **admission.env, **contract}
