"""Resources of this host for drones, detected or declared, and their allocation in whole milli-GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from adapters.local.config import LocalSiteConfig
from provisioner.gpu_models import canonical
from provisioner.interfaces import UnavailableError
from provisioner.model import WHOLE_GPU, DroneType, FaultKind
from provisioner.values import define, factory, frozen

PROBE_TIMEOUT_S = 20.0


@frozen
class LocalGpu:
    """One device. ``index`` is ``nvidia-smi``'s (order of PCI bus), ``capability`` is times ten."""

    index: int
    model: str
    vram_mib: int
    capability: int
    simulate: int | None = None


@frozen
class LocalHost:
    cpus: int
    memory_mib: int
    disk_mib: int
    gpus: tuple[LocalGpu, ...]
    notices: tuple[str, ...] = ()


def survey(config: LocalSiteConfig) -> LocalHost:
    """Return the resources of this host, as the configuration limits them. Raises :class:`UnavailableError`."""
    host = declared_host(config, config.root)
    if config.gpus != "auto":
        return host
    gpus, notices = _probe()
    return replace(host, gpus=gpus, notices=notices)


def declared_host(config: LocalSiteConfig, root: Path) -> LocalHost:
    """Return this host with the GPUs that the configuration declares. ``root``: a path on the disk for drones."""
    specs = (
        () if config.gpus == "auto" else [spec for spec in config.gpus for _ in range(spec.count)]
    )
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return LocalHost(
        cpus=config.cpus,
        memory_mib=memory_mib if config.memory is None else config.memory,
        disk_mib=disk_mib(root) if config.disk is None else config.disk,
        gpus=tuple(
            LocalGpu(index, s.model, s.vram, s.capability, s.simulate)
            for index, s in enumerate(specs)
        ),
    )


def disk_mib(root: Path) -> int:
    """Return the size of the file system of ``root``. Raises :class:`UnavailableError`."""
    try:
        system = os.statvfs(root)
    except OSError as error:
        raise UnavailableError(f"{root}: {error.strerror}", FaultKind.NODE) from error
    return system.f_blocks * system.f_frsize // (1 << 20)


def _probe() -> tuple[tuple[LocalGpu, ...], tuple[str, ...]]:
    """Return the GPUs that ``nvidia-smi`` lists, and notices. A driver that fails is a fault of this node."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return (), ("no nvidia-smi on this host: it has no GPUs for drones",)
    fields = "index,name,memory.total,compute_cap"
    try:
        asked = subprocess.Popen(
            [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        stdout, stderr = asked.communicate(timeout=PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        asked.kill()  # and no wait: one that hangs in the driver does not end
        raise UnavailableError(
            f"nvidia-smi did not answer within {PROBE_TIMEOUT_S:g} s", FaultKind.NODE
        ) from error
    except OSError as error:
        raise UnavailableError(f"nvidia-smi: {error}", FaultKind.NODE) from error
    return _listed(asked.returncode, stdout, stderr)


def _listed(
    status: int,
    stdout: str,
    stderr: str,
) -> tuple[tuple[LocalGpu, ...], tuple[str, ...]]:
    """Return the GPUs of an answer, and a notice for each other line (a bad GPU, a warning): none spoils another.

    Whether a lost GPU changes the exit status depends on the driver. Raises
    :class:`UnavailableError` if no GPU is readable.
    """
    gpus: list[LocalGpu] = []
    notices: list[str] = []
    for line in filter(None, map(str.strip, stdout.splitlines())):
        gpu = _parse(line)
        if gpu is None:
            unused = ". This GPU is not used" if re.match(r"\d+,", line) else ""
            notices.append(f"nvidia-smi: {line[:200]}{unused}")
            continue
        gpus.append(gpu)
        if not gpu.vram_mib:
            notices.append(
                f"nvidia-smi knows no memory size of GPU {gpu.index}: VRAM is not compared"
            )
    output = " ".join(f"{stdout} {stderr}".split())[:200]
    if not gpus and "no devices were found" in output.lower():
        return (), ("nvidia-smi finds no devices: this host has no GPUs for drones",)
    if not gpus and (status or notices):
        raise UnavailableError(f"nvidia-smi failed with status {status}: {output}", FaultKind.NODE)
    return tuple(gpus), tuple(notices)


def _parse(line: str) -> LocalGpu | None:
    """Parse a line like ``0, NVIDIA A100-SXM4-40GB, 40960, 8.0``; None if it describes no GPU.

    Numbers that the driver does not know are words in brackets, and count as unknown: ``[N/A]``. A
    GPU whose answer is an error (``[Unknown Error]``, ``[GPU is lost]``) is no usable one.
    """
    index, *rest = (part.strip() for part in line.split(","))
    if not index.isdecimal() or len(rest) != 3 or "error" in line.lower() or "lost" in line.lower():
        return None
    model, vram, capability = rest
    if model == "[N/A]":
        model = ""
    if model.startswith("["):  # a state in place of the name: [GPU requires reset]
        return None
    return LocalGpu(int(index), model, int(_number(vram)), round(_number(capability) * 10))


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else 0.0


_COUNT_LIMIT = 10_000
"""Limit of the count for types that request no resource."""


@frozen
class HostAllocation:
    """Resources that one drone holds. ``gpus``: milli-GPU by device index."""

    cpus: int
    memory_mib: int
    disk_mib: int
    gpus: Mapping[int, int] = factory(dict)


@define
class FreeHostResources:
    """Resources of a host that no drone holds."""

    cpus: int
    memory_mib: int
    disk_mib: int
    gpus: tuple[LocalGpu, ...]
    free_milli: dict[int, int]

    @classmethod
    def of(
        cls,
        host: LocalHost,
        held: Iterable[HostAllocation] = (),
    ) -> FreeHostResources:
        room = cls(
            host.cpus,
            host.memory_mib,
            host.disk_mib,
            host.gpus,
            {gpu.index: WHOLE_GPU for gpu in host.gpus},
        )
        for allocation in held:
            room.take(allocation)
        return room

    def take(self, allocation: HostAllocation) -> None:
        self.cpus -= allocation.cpus
        self.memory_mib -= allocation.memory_mib
        self.disk_mib -= allocation.disk_mib
        for index, milli in allocation.gpus.items():
            if index in self.free_milli:  # a device may have gone since
                self.free_milli[index] -= milli

    def find(self, kind: DroneType) -> HostAllocation | str:
        """Return an allocation for a drone of this type, without taking it, or the first resource that is short."""
        for what, wanted, free in (
            ("CPUs", kind.cpus, self.cpus),
            ("memory (MiB)", kind.memory_mib, self.memory_mib),
            ("disk (MiB)", kind.disk_mib, self.disk_mib),
        ):
            if wanted > free:
                return f"{what} {wanted} > {max(free, 0)}"
        gpus = self._devices(kind)
        if sum(gpus.values()) < kind.gpu_milli:
            return self._gpu_shortage(kind)
        return HostAllocation(kind.cpus, kind.memory_mib, kind.disk_mib, gpus)

    def count(self, kind: DroneType) -> int:
        """Return how many drones of this type would fit, if no others were started."""
        trial = replace(self, free_milli=dict(self.free_milli))
        for count in range(_COUNT_LIMIT):
            found = trial.find(kind)
            if isinstance(found, str):
                return count
            trial.take(found)
        return _COUNT_LIMIT

    def _devices(self, kind: DroneType) -> dict[int, int]:
        """Choose whole devices, then the fullest that still holds the rest: fewer if there is no room for all."""
        whole, rest = divmod(kind.gpu_milli, WHOLE_GPU)
        free = {gpu.index: self.free_milli[gpu.index] for gpu in self.gpus if _suits(gpu, kind)}
        devices = dict.fromkeys(
            [index for index, milli in free.items() if milli == WHOLE_GPU][:whole], WHOLE_GPU
        )
        enough = [
            (milli, index)
            for index, milli in free.items()
            if index not in devices and milli >= rest > 0
        ]
        return devices | ({min(enough)[1]: rest} if enough else {})

    def _gpu_shortage(self, kind: DroneType) -> str:
        words = [f"{kind.gpu_milli / WHOLE_GPU:g}", kind.gpu_model]
        words += [f"with {kind.vram_mib} MiB"] * bool(kind.vram_mib)
        words += [f"capability {kind.capability / 10:g}"] * bool(kind.capability)
        suiting = [gpu for gpu in self.gpus if _suits(gpu, kind)]
        free = sum(self.free_milli[gpu.index] for gpu in suiting)
        have = sorted({f"{gpu.model or 'GPU'} {gpu.vram_mib} MiB" for gpu in self.gpus})
        there = (
            f"{free / WHOLE_GPU:g} of {len(suiting)} free"
            if suiting
            else f"none like it ({', '.join(have)})"
        )
        return f"GPUs: {' '.join(filter(None, words))} wanted, {there if have else 'this host has none'}"


def _suits(gpu: LocalGpu, kind: DroneType) -> bool:
    """Return True if a device meets the type's requirements. Unknown values, on either side, are not compared."""
    return (
        (not kind.gpu_model or not gpu.model or canonical(gpu.model) == canonical(kind.gpu_model))
        and (not gpu.vram_mib or gpu.vram_mib >= kind.vram_mib)
        and (not gpu.capability or gpu.capability >= kind.capability)
    )
