"""The environment of a drone: little of the controller's, the operator's, the overlay's, and the contract's on top."""

from __future__ import annotations

import os
from pathlib import Path

from adapters.local_site.allotment import Allotment
from adapters.local_site.config import Config
from adapters.local_site.processes import TAG
from provisioner.model import WHOLE_GPU, Admission, StartOrder

_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
"""No more: the controller's environment may hold secrets, and drones run other people's jobs."""


def drone_environment(
    order: StartOrder, admission: Admission, allotment: Allotment, directory: Path, config: Config
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
    if config.simulate_gpus:
        contract["DRONE_GPU_SIMULATE"] = config.simulate_gpus
    return {"PATH": os.defpath, **inherited, **config.env, **admission.env, **contract}
