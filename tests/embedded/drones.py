"""Drones of the embedded overlay, run as a site would run them, with no site."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

from adapters.embedded import EmbeddedOverlayConfig
from provisioner.drone import environment
from provisioner.model import DroneId, DroneType, StartOrder
from provisioner.processes import end_tagged

CPU = DroneType("here", "cpu", gpu_milli=0, cpus=8, memory_mib=16384, disk_mib=100)
KIND = replace(CPU, name="pair", gpu_milli=2000, vram_mib=40960, capability=80, gpu_model="A100")


def config(path: Path, **others: object) -> EmbeddedOverlayConfig:
    return EmbeddedOverlayConfig.model_validate(
        {"path": str(path), "lease": "3s", "poll": "50ms", **others}
    )


class Drones:
    """Processes begun from admissions; each in a session of its own, as a site's launcher does it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.processes: dict[DroneId, subprocess.Popen[bytes]] = {}

    def directory(self, drone_id: DroneId) -> Path:
        return self._root / drone_id

    def begin(self, order: StartOrder) -> None:
        assert order.bootstrap is not None
        kind, directory = order.type, self.directory(order.drone_id)
        directory.mkdir(parents=True)
        script = directory / "script"
        script.write_bytes(order.bootstrap.script)
        env = {
            "PATH": os.environ["PATH"],
            **order.bootstrap.env,
            **environment(order),
            "PROVISIONER_DRONE_ID": order.drone_id,
            "DRONE_DIR": str(directory),
            "CUDA_VISIBLE_DEVICES": ",".join(str(n) for n in range(-(-kind.gpu_milli // 1000))),
        }
        with open(directory / "log", "wb") as log:
            self.processes[order.drone_id] = subprocess.Popen(
                ["sh", str(script)],
                env=env,
                cwd=directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def signal(self, drone_id: DroneId, number: signal.Signals) -> None:
        """To the worker itself: its script has become it."""
        self.processes[drone_id].send_signal(number)

    async def status(self, drone_id: DroneId, deadline_s: float = 20.0) -> int:
        """The exit status, once it has ended."""
        return await asyncio.to_thread(self.processes[drone_id].wait, deadline_s)

    def outcome(self, drone_id: DroneId) -> str:
        return (self.directory(drone_id) / "outcome").read_text().strip()

    def close(self) -> None:
        """End whatever a story left running, jobs among it. Other tests have drones of the same names."""
        for drone_id, process in self.processes.items():
            assert end_tagged(f"DRONE_DIR={self.directory(drone_id)}")
            process.wait(10)
