"""Who gets which CPUs, memory, disk and GPU shares of this host: pure arithmetic in whole milli-GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from adapters.local.host import Gpu, Host
from provisioner.model import WHOLE_GPU, DroneType

_COUNT_LIMIT = 10_000
"""Enough for any host; a type that asks for nothing would fit for ever."""


@dataclass(frozen=True, slots=True)
class Allotment:
    """What one drone holds. ``gpus``: milli-GPU by device index."""

    cpus: int
    memory_mib: int
    disk_mib: int
    gpus: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The first thing that is short."""

    what: str
    wanted: str
    there: str

    def __str__(self) -> str:
        return f"{self.what}: {self.wanted} wanted, {self.there} there"

    def compared(self, where: str) -> str:
        """Return ``cpus 8 > 2 of this host`` for ``where`` "of this host"."""
        if self.what == "GPUs":
            return f"GPUs: {self.wanted} wanted, {self.there}"
        return f"{self.what} {self.wanted} > {self.there} {where}"


@dataclass(slots=True)
class Room:
    """What is left of a host."""

    cpus: int
    memory_mib: int
    disk_mib: int
    gpus: tuple[Gpu, ...]
    free_milli: dict[int, int]

    @classmethod
    def of(cls, host: Host, held: Iterable[Allotment] = ()) -> Room:
        room = cls(host.cpus, host.memory_mib, host.disk_mib, host.gpus, {gpu.index: WHOLE_GPU for gpu in host.gpus})
        for allotment in held:
            room.take(allotment)
        return room

    def take(self, allotment: Allotment) -> None:
        self.cpus -= allotment.cpus
        self.memory_mib -= allotment.memory_mib
        self.disk_mib -= allotment.disk_mib
        for index, milli in allotment.gpus.items():
            if index in self.free_milli:  # a device may have gone since
                self.free_milli[index] -= milli

    def find(self, kind: DroneType) -> Allotment | NoRoom:
        """An allotment for a drone of this type, which is not taken yet."""
        for what, wanted, there in (
            ("CPUs", kind.cpus, self.cpus),
            ("memory (MiB)", kind.memory_mib, self.memory_mib),
            ("disk (MiB)", kind.disk_mib, self.disk_mib),
        ):
            if wanted > there:
                return NoRoom(what, str(wanted), str(max(there, 0)))
        gpus = self._devices(kind)
        if gpus is None:
            return NoRoom("GPUs", _describe(kind), self._describe_free(kind))
        return Allotment(kind.cpus, kind.memory_mib, kind.disk_mib, gpus)

    def count(self, kind: DroneType) -> int:
        """How many drones of this type would fit at once, if no others were started."""
        trial = Room(self.cpus, self.memory_mib, self.disk_mib, self.gpus, dict(self.free_milli))
        for count in range(_COUNT_LIMIT):
            found = trial.find(kind)
            if isinstance(found, NoRoom):
                return count
            trial.take(found)
        return _COUNT_LIMIT

    def _devices(self, kind: DroneType) -> dict[int, int] | None:
        """Whole devices first, then the fullest device that still holds the rest: shares should leave whole GPUs."""
        whole, rest = divmod(kind.gpu_milli, WHOLE_GPU)
        fitting = [gpu.index for gpu in self.gpus if _suits(gpu, kind)]
        untouched = [index for index in fitting if self.free_milli[index] == WHOLE_GPU]
        if len(untouched) < whole:
            return None
        devices = dict.fromkeys(untouched[:whole], WHOLE_GPU)
        if rest:
            enough = [index for index in fitting if index not in devices and self.free_milli[index] >= rest]
            if not enough:
                return None
            devices[min(enough, key=lambda index: (self.free_milli[index], index))] = rest
        return devices

    def _describe_free(self, kind: DroneType) -> str:
        suiting = [gpu for gpu in self.gpus if _suits(gpu, kind)]
        if not suiting:
            have = sorted({f"{gpu.model or 'GPU'} {gpu.vram_mib} MiB" for gpu in self.gpus})
            return f"none like it ({', '.join(have) or 'no GPU at all'})"
        free = sum(self.free_milli[gpu.index] for gpu in suiting)
        return f"{free / WHOLE_GPU:g} of {len(suiting)} free"


def _suits(gpu: Gpu, kind: DroneType) -> bool:
    """What is not told, on either side, is not compared."""
    return (
        (not kind.gpu_model or not gpu.model or gpu.model == kind.gpu_model)
        and (not gpu.vram_mib or gpu.vram_mib >= kind.vram_mib)
        and (not gpu.capability or gpu.capability >= kind.capability)
    )


def _describe(kind: DroneType) -> str:
    words = [f"{kind.gpu_milli / WHOLE_GPU:g}", kind.gpu_model]
    if kind.vram_mib:
        words.append(f"with {kind.vram_mib} MiB")
    if kind.capability:
        words.append(f"capability {kind.capability / 10:g}")
    return " ".join(filter(None, words))
