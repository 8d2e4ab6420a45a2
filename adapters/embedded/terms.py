"""What a drone was told when it was started: the contract's environment and the overlay's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_MOST_SHARES = 32


class BadTerms(ValueError):
    """A variable is missing or makes no sense."""


@dataclass(frozen=True, slots=True)
class Terms:
    queue: Path
    drone_id: str
    site: str
    type: str
    directory: Path
    devices: tuple[str, ...]
    gpu_milli: int
    cpus: int
    memory_mib: int
    disk_mib: int
    vram_mib: int
    shares: int
    """As how many GPUs each of its GPUs is offered to small jobs."""
    joins: bool
    """Whether a job may have several shares of a GPU: not slices of MIG."""
    capability: int
    gpu_model: str
    idle_s: float
    grace_s: float
    walltime_s: float
    lease_s: float
    poll_s: float
    negotiation_s: float
    max_lost: int
    check: tuple[str, ...]
    check_deadline_s: float
    avoids: str
    """Users whose jobs it does not take, with commas between."""

    @classmethod
    def read(cls, env: Mapping[str, str]) -> Terms:
        try:
            return cls(
                queue=Path(env["EMBEDDED_QUEUE"]),
                drone_id=env["DRONE_ID"],
                site=env["DRONE_SITE"],
                type=env["DRONE_TYPE"],
                directory=Path(env["DRONE_DIR"]),
                devices=tuple(filter(None, env.get("CUDA_VISIBLE_DEVICES", "").split(","))),
                gpu_milli=int(env["DRONE_GPU_MILLI"]),
                cpus=int(env["DRONE_CPUS"]),
                memory_mib=int(env["DRONE_MEMORY_MIB"]),
                disk_mib=int(env["DRONE_DISK_MIB"]),
                vram_mib=int(env["DRONE_VRAM_MIB"]),
                shares=_shares(env["DRONE_SHARES"]),
                joins=env["DRONE_SHARING"] != "mig",
                capability=int(env["EMBEDDED_CAPABILITY"]),
                gpu_model=env["EMBEDDED_GPU_MODEL"],
                idle_s=float(env["DRONE_IDLE_S"]),
                grace_s=float(env["DRONE_GRACE_S"]),
                walltime_s=float(env["DRONE_WALLTIME_S"]),
                lease_s=float(env["EMBEDDED_LEASE_S"]),
                poll_s=float(env["EMBEDDED_POLL_S"]),
                negotiation_s=float(env["EMBEDDED_NEGOTIATION_S"]),
                max_lost=int(env["EMBEDDED_MAX_LOST"]),
                check=tuple(json.loads(env["EMBEDDED_CHECK"])),
                check_deadline_s=float(env["EMBEDDED_CHECK_DEADLINE_S"]),
                avoids=env.get("EMBEDDED_AVOIDS", ""),
            )
        except KeyError as error:
            raise BadTerms(f"{error.args[0]} is not set") from None
        except ValueError as error:
            raise BadTerms(str(error)) from None


def _shares(written: str) -> int:
    shares = int(written)
    if not 1 <= shares <= _MOST_SHARES:
        raise ValueError(f"DRONE_SHARES is {shares}: 1 to {_MOST_SHARES}")
    return shares
