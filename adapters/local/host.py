"""What this host has for drones: CPUs, memory, disk and GPUs, looked up or declared."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from adapters.local.config import Config, GpuSpec
from provisioner.interfaces import UnavailableError
from provisioner.model import FaultKind

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device. ``index`` is ``nvidia-smi``'s (order of PCI bus), ``capability`` is times ten."""

    index: int
    model: str
    vram_mib: int
    capability: int
    simulate: int | None = None


@dataclass(frozen=True, slots=True)
class Host:
    cpus: int
    memory_mib: int
    disk_mib: int
    gpus: tuple[Gpu, ...]
    notices: tuple[str, ...] = ()


def survey(config: Config) -> Host:
    """This host as the configuration sees it. Blocks for up to ``probe_deadline``; raises :class:`UnavailableError`."""
    notices: tuple[str, ...] = ()
    if config.gpus == "auto":
        gpus, notices = _probe(config.probe_deadline)
    else:
        gpus = declared(config.gpus)
    return Host(
        cpus=config.cpus,
        memory_mib=config.memory if config.memory is not None else memory_mib(),
        disk_mib=config.disk if config.disk is not None else disk_mib(config.root),
        gpus=gpus,
        notices=notices,
    )


def declared(specs: tuple[GpuSpec, ...]) -> tuple[Gpu, ...]:
    """Return the devices that a configuration declares."""
    each = [spec for spec in specs for _ in range(spec.count)]
    return tuple(Gpu(index, s.model, s.vram, s.capability, s.simulate) for index, s in enumerate(each))


def memory_mib() -> int:
    """Field ``MemTotal`` of ``/proc/meminfo``, which is in KiB."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    raise UnavailableError("/proc/meminfo names no MemTotal")


def disk_mib(root: Path) -> int:
    """Return the size of the file system of ``root``. Raises :class:`UnavailableError`."""
    try:
        system = os.statvfs(root)
    except OSError as error:
        raise UnavailableError(f"{root}: {error.strerror}", FaultKind.NODE) from error
    return system.f_blocks * system.f_frsize // _MIB


def _probe(deadline_s: float) -> tuple[tuple[Gpu, ...], tuple[str, ...]]:
    """The GPUs that ``nvidia-smi`` lists. A driver that fails or hangs is a fault of this node, not "no GPUs"."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), ("no nvidia-smi on this host: it has no GPUs for drones",)
    fields = "index,name,memory.total,compute_cap"
    try:
        answer = subprocess.run(
            [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=True,
        )
        return tuple(_parse(line) for line in answer.stdout.splitlines() if line.strip()), ()
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"nvidia-smi did not answer within {deadline_s:g} s", FaultKind.NODE) from error
    except subprocess.CalledProcessError as error:
        said = " ".join(f"{error.stdout} {error.stderr}".split())[:200]
        if "no devices were found" in said.lower():
            return (), ("nvidia-smi finds no devices: this host has no GPUs for drones",)
        raise UnavailableError(f"nvidia-smi failed with status {error.returncode}: {said}", FaultKind.NODE) from error
    except (OSError, ValueError) as error:
        raise UnavailableError(f"nvidia-smi: {error}", FaultKind.NODE) from error


def _parse(line: str) -> Gpu:
    """``0, NVIDIA A100-SXM4-40GB, 40960, 8.0``."""
    index, model, vram, capability = (part.strip() for part in line.split(","))
    major, _, minor = capability.partition(".")
    return Gpu(
        int(index), model.removeprefix("NVIDIA ").replace(" ", "-"), int(vram), int(major) * 10 + int(minor or 0)
    )
