"""Counters of a GPU by ``libnvidia-ml.so.1``: memory, energy, and the processes on it."""

from __future__ import annotations

import ctypes


class NvmlError(Exception):
    """A call of the library failed: the text has its name and code."""


class _Process(ctypes.Structure):
    """``nvmlProcessInfo_t`` of the calls that end in ``_v3``."""

    _fields_ = [
        *(("pid", ctypes.c_uint), ("bytes", ctypes.c_ulonglong)),
        *((name, ctypes.c_uint) for name in ("instance", "compute_instance")),
    ]


class _Utilization(ctypes.Structure):
    """``nvmlProcessUtilizationSample_t``; percent."""

    _fields_ = [
        *(("pid", ctypes.c_uint), ("time_us", ctypes.c_ulonglong)),
        *((name, ctypes.c_uint) for name in ("sm", "memory", "encoder", "decoder")),
    ]


MOST_SAMPLES = 4096
LISTINGS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses_v3",
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
}
MIB = 1 << 20


class Nvml:
    """The GPU of an index.

    Raises:
        OSError: there is no library.
        NvmlError: it finds no such GPU; or a later call failed.
    """

    def __init__(self, index: int) -> None:
        self._library, self.device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        self.call("nvmlInit_v2")
        self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(self.device))
        self.uuid = self._text("nvmlDeviceGetUUID", self.device)
        self.name = self._text("nvmlDeviceGetName", self.device)
        self.driver = self._text("nvmlSystemGetDriverVersion")

    def call(self, name: str, *arguments: object) -> None:
        function = getattr(self._library, name, None)
        if not function:
            raise NvmlError(f"{name} is not in this driver")
        if code := function(*arguments):
            raise NvmlError(f"{name} returned {code}")

    def _text(self, name: str, *device: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(96)
        self.call(name, *device, text, len(text))
        return text.value.decode()

    def energy_j(self) -> float:
        """Return the energy since the driver was loaded."""
        value = ctypes.c_ulonglong()
        self.call("nvmlDeviceGetTotalEnergyConsumption", self.device, ctypes.byref(value))
        return value.value / 1000

    def memory_mib(self) -> tuple[int, int]:
        """Return the used and the total memory."""
        memory = (ctypes.c_ulonglong * 3)()
        self.call("nvmlDeviceGetMemoryInfo", self.device, memory)
        total, _, used = memory
        return used // MIB, total // MIB

    def processes(self, listing: str) -> dict[int, int]:
        """Return the memory in MiB of each process in one of :data:`LISTINGS`."""
        found, count = (_Process * MOST_SAMPLES)(), ctypes.c_uint(MOST_SAMPLES)
        self.call(LISTINGS[listing], self.device, ctypes.byref(count), found)
        return {each.pid: each.bytes // MIB for each in found[: count.value]}

    def utilization(self) -> dict[int, int]:
        """Return the latest SM utilisation in percent of each process that worked lately."""
        found, count = (_Utilization * MOST_SAMPLES)(), ctypes.c_uint(MOST_SAMPLES)
        self.call(
            "nvmlDeviceGetProcessUtilization",
            self.device,
            found,
            ctypes.byref(count),
            ctypes.c_ulonglong(0),
        )
        latest = sorted(found[: count.value], key=lambda each: int(each.time_us))
        return {each.pid: each.sm for each in latest}
