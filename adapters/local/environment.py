"""The environment of a drone: little of the controller's, the operator's, the overlay's, and the contract's on top."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from adapters.local.allotment import Allotment
from adapters.local.config import Config
from adapters.local.host import Gpu
from adapters.local.processes import TAG
from provisioner import drone
from provisioner.model import Bootstrap, StartOrder

_INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
"""No more: the controller's environment may hold secrets, and drones run other people's jobs."""


def drone_environment(
    order: StartOrder, bootstrap: Bootstrap, allotment: Allotment, directory: Path, config: Config, gpus: Sequence[Gpu]
) -> dict[str, str]:
    inherited = {name: value for name in _INHERITED if (value := os.environ.get(name)) is not None}
    contract = {
        **drone.environment(order),
        TAG: order.drone_id,
        "DRONE_DIR": str(directory),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order in which nvidia-smi numbers devices
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, sorted(allotment.gpus))),
    }
    pretended = [gpu.simulate for gpu in gpus if gpu.index in allotment.gpus and gpu.simulate is not None]
    if pretended:
        # As many as this host has: of those the discovery takes the ones in CUDA_VISIBLE_DEVICES.
        contract["DRONE_GPU_SIMULATE"] = f"{pretended[0]},{len(gpus)}"
    return {"PATH": os.defpath, **inherited, **config.env, **bootstrap.env, **contract}
