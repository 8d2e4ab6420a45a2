"""GPU monitor of a drone: use, VRAM and energy of each dynamic slot, in the form that HTCondor's startd reads.

Runs on worker nodes with Python 3.7 or newer and its standard library alone.
``docs/reference/drone.md`` documents it.
"""

from __future__ import annotations

import glob
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ctypes import (
    CDLL,
    Structure,
    byref,
    c_int,
    c_uint,
    c_ulonglong,
    c_void_p,
    create_string_buffer,
)
from typing import NamedTuple, Tuple

PERIOD_S = 2.0
SUSTAINED_S = 4.0
"""Time for which a job has to hold VRAM before it counts against its share."""
MIB = 1 << 20
MOST_SLOTS = 256

Slot = Tuple[int, int]
"""SlotID and DSlotId."""
Process = Tuple[int, int]
"""Process id, and start time in the kernel's units."""


class GpuProcess(NamedTuple):
    """A process on a device."""

    slot: Slot | None
    """Slot of its job; None for a process of somebody else."""
    use: float | None
    """Part of the interval in which it computed; None if the driver does not say."""
    vram_mib: float


class DeviceReading(NamedTuple):
    """One device over one interval. Its memory is unknown (None) where it is the host's."""

    seconds: float
    busy: float | None
    """Part of the interval in which the device computed; None if the driver does not say."""
    joules: float | None
    used_mib: float | None
    total_mib: float | None
    processes: Sequence[GpuProcess]


class SlotUsage(NamedTuple):
    """Resources that one slot used on one device in one interval."""

    gpu_seconds: float | None
    vram_mib: float | None
    joules: float | None


def divide(reading: DeviceReading, slots: Sequence[Slot], exclusive: bool) -> dict[Slot, SlotUsage]:
    """Divide the use of a device among the slots to which it, or a share of it, is assigned.

    The sum over the slots never exceeds the device. On an exclusive device everything is charged to
    its only slot. Else a slot is charged for its own processes. Where the driver has no figures by
    process, the slots with processes get equal parts. The energy follows the use; that of an idle
    device is divided equally.
    """
    whole = exclusive and len(slots) == 1
    own = {
        slot: [each for each in reading.processes if whole or each.slot == slot] for slot in slots
    }
    vram = {slot: sum(each.vram_mib for each in own[slot]) for slot in slots}
    together = max(sum(vram.values()), 1.0)
    # memory that processes share counts for each
    fit = min(1.0, (reading.total_mib or together) / together)
    busy = None if reading.busy is None else min(max(reading.busy, 0.0), 1.0)
    parts = {slots[0]: busy or 0.0} if whole else _parts(busy or 0.0, reading.processes, own)
    divided = {}
    for slot in slots:
        joules = reading.joules
        if joules is not None and not whole:
            joules *= parts[slot] / busy if busy else 1.0 / len(slots)
        gpu_seconds = None if busy is None else parts[slot] * reading.seconds
        held = reading.used_mib if whole and not reading.processes else vram[slot] * fit
        divided[slot] = SlotUsage(gpu_seconds, held, joules)
    return divided


def _parts(
    busy: float, processes: Sequence[GpuProcess], own: Mapping[Slot, Sequence[GpuProcess]]
) -> dict[Slot, float]:
    """Return the part of the interval that is charged to each slot of a shared device."""
    if any(each.use is not None for each in processes):
        together = sum(each.use or 0.0 for each in processes)
        # kernels of several processes overlap under MPS
        scale = min(1.0, busy / together) if together else 0.0
        return {slot: scale * sum(each.use or 0.0 for each in own[slot]) for slot in own}
    active = [slot for slot in own if own[slot]]
    others = any(each.slot not in own for each in processes)
    equal = busy / (len(active) + others) if active else busy / len(own)
    return {slot: equal if slot in active or not active else 0.0 for slot in own}


class SlotJob:
    """The job of a slot: its starter, its devices, and what it has used so far."""

    def __init__(self, slot: Slot, devices: Sequence[str]) -> None:
        self.slot = slot
        self.devices = devices
        self.joules = 0.0
        self._held: list[tuple[float, float]] = []

    def sustained(self, now: float, vram_mib: float) -> tuple[float, float]:
        """Record VRAM; return the least of the last SUSTAINED_S (0 before that), and the time of its first sample."""
        self._held.append((now, vram_mib))
        while len(self._held) > 1 and now - self._held[1][0] >= SUSTAINED_S:
            del self._held[0]
        first = self._held[0][0]
        return (min(mib for _, mib in self._held) if now - first >= SUSTAINED_S else 0.0), first


# -----------------------------------------------------------------------------------------------------
# the drone's jobs


_STARTER_SLOT = re.compile("\0(?:-a2?|--slot-name)\0slot([0-9]{1,9})_([0-9]{1,9})\0")


def jobs_in(execute: str, known: Mapping[int, SlotJob]) -> dict[int, SlotJob]:
    """Return jobs by the process id of their starter, from the starters' directories and the machine ads in them.

    A job can make such a directory and replace its ad. So a starter is a child of this process's
    parent, and its slot is that of its command line. One that names none there gets no slot that
    another has.
    """
    found: dict[int, SlotJob] = {}
    unnamed: dict[int, SlotJob] = {}
    for directory in glob.glob(os.path.join(execute, "dir_*")):
        pid = directory.rpartition("_")[2]
        if not pid.isdigit() or _parent_and_start(pid)[0] not in (os.getpid(), os.getppid()):
            continue
        if int(pid) in known:
            found[int(pid)] = known[int(pid)]
            continue
        # 25, 23
        ad = _machine_ad(directory + "/scratch/.machine.ad") or _machine_ad(
            directory + "/.machine.ad"
        )
        named = _STARTER_SLOT.search(_contents("/proc/%s/cmdline" % pid).decode(errors="replace"))
        slot, dynamic = named.groups() if named else (ad.get("slotid", "1"), ad.get("dslotid", ""))
        if slot.isdecimal() and dynamic.isdecimal() and "assignedgpus" in ad:
            devices = re.split(r"[,\s]+", ad["assignedgpus"].strip())
            (found if named else unnamed)[int(pid)] = SlotJob((int(slot), int(dynamic)), devices)
    taken = {job.slot for job in found.values()}
    return {**{pid: job for pid, job in unnamed.items() if job.slot not in taken}, **found}


def _machine_ad(path: str) -> dict[str, str]:
    """Return attributes of a machine ad by lower-case name. The job could have replaced the file, by a pipe even."""
    flags = os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        with open(
            path, errors="replace", opener=lambda name, mode: os.open(name, mode | flags)
        ) as file:
            text = file.read(1 << 20)
    except OSError:
        return {}
    lines = re.findall(
        r'^(SlotID|DSlotId|AssignedGPUs) = "?([^"\n]{0,4000})"?$',
        text,
        re.MULTILINE | re.IGNORECASE,
    )
    return {name.lower(): value for name, value in lines}


def owners(
    jobs: Mapping[int, SlotJob], before: Mapping[Process, SlotJob]
) -> dict[Process, SlotJob]:
    """Return the job of each process that is below a starter, or was (``before``) and has left its parents since.

    The environment of a process is no evidence: it may name the job of a neighbour.
    """
    running = {pid: _parent_and_start(pid) for pid in os.listdir("/proc") if jobs and pid.isdigit()}
    current = set(jobs.values())
    found = {}
    for pid, (_, started) in running.items():
        job = None
        at = pid
        passed = set()
        while job is None and at in running and at not in passed:
            passed.add(at)
            parent, began = running[at]
            job = jobs.get(int(at), before.get((int(at), began)))
            at = str(parent)
        if job in current:
            found[int(pid), started] = job
    return found


def left_behind(pid: int) -> bool:
    """Return True for a process of this account below no startd: a job left it, before it was seen below one."""
    try:
        left = os.stat("/proc/%d" % pid).st_uid == os.getuid()
    except OSError:
        return False
    at = pid
    while left and at > 1:
        at = _parent_and_start(str(at))[0]
        left = at != os.getppid()
    return left and not _contents("/proc/%d/comm" % pid).startswith(_MPS_SERVER)


def _parent_and_start(pid: str) -> tuple[int, int]:
    """Return the parent of a process, and its start in the kernel's units; zeros if it has ended."""
    words = _contents("/proc/%s/stat" % pid).rpartition(b")")[2].split()
    return (int(words[1]), int(words[19])) if len(words) > 19 else (0, 0)


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


# --------------------------------------------------------------------------------------------------------------
# drivers


class DeviceSample(NamedTuple):
    """State of one device as its driver reports it: ``processes`` has use and VRAM (MiB) by process id."""

    seconds: float
    busy: float | None
    joules: float | None
    used_mib: float | None
    total_mib: float | None
    processes: Mapping[int, tuple[float | None, float]]


class GpuDriver:
    """A vendor's way to read devices. ``sees_processes``: it has the VRAM of each process."""

    sees_processes = False

    def read(self, device: str, since: float, now: float) -> DeviceSample | None:
        """Return a device of HTCondor's name over the interval; None if it cannot be read."""
        raise NotImplementedError


class _ProcessInfo(Structure):
    _fields_ = [
        ("pid", c_uint),
        ("used", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    ]


class _OldProcessInfo(Structure):
    _fields_ = [("pid", c_uint), ("used", c_ulonglong)]


class _ProcessUse(Structure):
    _fields_ = [
        ("pid", c_uint),
        ("at", c_ulonglong),
        ("sm", c_uint),
        ("memory", c_uint),
        ("encoder", c_uint),
        ("decoder", c_uint),
    ]


class _Sample(Structure):
    _fields_ = [("at", c_ulonglong), ("value", c_ulonglong)]


class _Memory(Structure):
    _fields_ = [
        ("total", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    ]


class Nvml(GpuDriver):
    """NVIDIA's library. Raises OSError if it is missing or refuses to start."""

    MOST = 1024
    NOT_FOUND = 6
    UNKNOWN_FUNCTION = 13
    GONE = (1, 2, 15, 16)
    """Not initialized, no such device, lost, requires a reset."""

    def __init__(self) -> None:
        self._lib = CDLL("libnvidia-ml.so.1")
        status = self._call("nvmlInit_v2")
        if status:
            raise OSError("nvmlInit: error %d" % status)
        self._handles = dict(self._found())
        self._sampled: dict[str, int] = {}  # the latest sample that was counted, in microseconds
        self._energy: dict[str, tuple[int, float]] = {}
        self.sees_processes = any(
            self._memory(handle) is not None for handle in self._handles.values()
        )

    def _call(self, name: str, *arguments: object) -> int:
        function = getattr(self._lib, name, None)
        return self.UNKNOWN_FUNCTION if function is None else int(function(*arguments))

    def _found(self) -> Iterator[tuple[str, c_void_p]]:
        """Yield UUID and handle of each GPU and of each MIG instance that this account may see."""
        count = c_uint(0)
        instances = c_uint(0)
        self._call("nvmlDeviceGetCount_v2", byref(count))
        for index in range(count.value):
            gpu = c_void_p()
            if self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(gpu)):
                continue
            handles = [gpu]
            if self._call("nvmlDeviceGetMaxMigDeviceCount", gpu, byref(instances)):
                instances.value = 0
            for at in range(instances.value):
                instance = c_void_p()
                if not self._call(
                    "nvmlDeviceGetMigDeviceHandleByIndex",
                    gpu,
                    c_uint(at),
                    byref(instance),
                ):
                    handles.append(instance)
            for handle in handles:
                uuid = create_string_buffer(96)
                if not self._call("nvmlDeviceGetUUID", handle, uuid, c_uint(96)):
                    yield uuid.value.decode(), handle

    def read(self, device: str, since: float, now: float) -> DeviceSample | None:
        """Return a device, by its UUID or the beginning of it."""
        uuid = next((each for each in self._handles if each.startswith(device)), None)
        memory = _Memory()
        if uuid is None:
            return None
        handle = self._handles[uuid]
        status = self._call("nvmlDeviceGetMemoryInfo", handle, byref(memory))
        if status in self.GONE:
            return None
        before = self._sampled.get(uuid, 0)
        begin = before if now - before / 1e6 < 3 * PERIOD_S else int(since * 1e6)
        busy, seconds = self._busy(uuid, handle, begin, now - since)
        listed = self._memory(handle)
        use = self._use(handle, begin)
        held = listed or {}
        use = use and _of_mps_clients(use, self._mps_clients)
        processes = {
            pid: (None if use is None else use.get(pid, 0.0), held.get(pid, 0.0))
            for pid in set(held) | set(use or {})
        }
        joules = self._joules(uuid, handle, now)
        if status and (busy, joules, listed) == (None, None, None):
            return None
        used, total = (None, None) if status else (memory.used / MIB, memory.total / MIB)
        return DeviceSample(seconds, busy, joules, used, total, processes)

    def _busy(
        self, uuid: str, handle: c_void_p, begin: int, interval_s: float
    ) -> tuple[float | None, float]:
        """Return the part of the time in which a device computed, and the seconds that this covers."""
        samples = (_Sample * self.MOST)()
        count = c_uint(self.MOST)
        kind = c_int()
        where = (byref(kind), byref(count), samples)
        status = self._call("nvmlDeviceGetSamples", handle, 1, c_ulonglong(begin), *where)
        if status == self.NOT_FOUND:
            return 0.0, interval_s
        if status:  # a MIG instance has no such counter
            return None, interval_s
        at = begin
        busy = 0.0
        for sample in sorted(samples[: count.value], key=lambda each: int(each.at)):
            if sample.at > at:
                busy += (sample.at - at) * min(sample.value & 0xFFFFFFFF, 100) / 100.0
                at = sample.at
        if at == begin:
            return 0.0, interval_s
        self._sampled[uuid] = at
        return busy / (at - begin), (at - begin) / 1e6

    def _memory(self, handle: c_void_p) -> dict[int, float] | None:
        """Return VRAM in MiB by process, those of an MPS server too; None if the driver does not say."""
        found: dict[int, float] | None = None
        self._mps_clients: set[int] = set()
        for name in (
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetMPSComputeRunningProcesses",
        ):
            for version, kind in (
                ("_v3", _ProcessInfo),
                ("_v2", _ProcessInfo),
                ("", _OldProcessInfo),
            ):
                infos = (kind * self.MOST)()
                count = c_uint(self.MOST)
                status = self._call(name + version, handle, byref(count), infos)
                if status == 0:
                    found = {} if found is None else found
                    for each in infos[: count.value]:
                        if "MPS" in name:
                            self._mps_clients.add(each.pid)
                        if each.used != 2**64 - 1:  # "not available"
                            found[each.pid] = max(found.get(each.pid, 0.0), each.used / MIB)
                if status != self.UNKNOWN_FUNCTION:
                    break
        return found

    def _use(self, handle: c_void_p, begin: int) -> dict[int, float] | None:
        """Return the part of the time in which each process computed; None if the driver does not say."""
        samples = (_ProcessUse * self.MOST)()
        count = c_uint(self.MOST)
        arguments = (samples, byref(count), c_ulonglong(begin))
        status = self._call("nvmlDeviceGetProcessUtilization", handle, *arguments)
        if status:
            return {} if status == self.NOT_FOUND else None
        found: dict[int, list[int]] = {}
        for each in samples[: count.value]:
            if each.sm <= 100:
                found.setdefault(each.pid, []).append(each.sm)
        return {pid: sum(percents) / len(percents) / 100.0 for pid, percents in found.items()}

    def _joules(self, uuid: str, handle: c_void_p, now: float) -> float | None:
        """Return the energy since the last call; None if that was long ago, or if the driver does not say."""
        total = c_ulonglong(0)
        if self._call("nvmlDeviceGetTotalEnergyConsumption", handle, byref(total)):
            return None
        before, at = self._energy.get(uuid, (0, 0.0))
        self._energy[uuid] = (total.value, now)
        # of a job before
        return max(total.value - before, 0) / 1000.0 if now - at < 3 * PERIOD_S else None


def _of_mps_clients(use: dict[int, float], clients: set[int]) -> dict[int, float]:
    """Divide the use that NVML charges to the MPS server equally among its clients, which have no own figures."""
    servers = [
        pid
        for pid in use
        if pid not in clients and _contents("/proc/%d/comm" % pid).startswith(_MPS_SERVER)
    ]
    part = sum(use[pid] for pid in servers) / max(len(clients), 1)
    own = {pid: value for pid, value in use.items() if pid not in servers}
    return {**own, **{pid: own.get(pid, 0.0) + part for pid in clients}}


_MPS_SERVER = b"nvidia-cuda-mps"
"""Name of the server's process: the kernel cuts it to 15 characters."""


class AmdSysfs(GpuDriver):
    """AMD's kernel driver, which knows devices but no processes. Raises OSError if there is none."""

    def __init__(self, sysfs: str = "/sys") -> None:
        self._cards = [
            os.path.dirname(each)
            for each in glob.glob(sysfs + "/class/drm/card*/device/gpu_busy_percent")
        ]
        if not self._cards:
            raise OSError("no GPU in " + sysfs)

    def read(self, device: str, since: float, now: float) -> DeviceSample | None:
        """Return a device by its unique id, which HIP gives as a number or as the bytes of its digits."""
        wanted = re.sub(r"^gpu|[^0-9a-f]", "", device.lower())
        found = self._cards if len(self._cards) == 1 else []
        for card in self._cards:
            unique = _contents(card + "/unique_id").strip()
            if (
                wanted
                and unique
                and (unique.startswith(wanted.encode()) or unique.hex().startswith(wanted))
            ):
                found = [card]
        if not found:
            return None
        busy, used, total = (
            _number(found[0] + name, unit)
            for name, unit in (
                ("/gpu_busy_percent", 100),
                ("/mem_info_vram_used", MIB),
                ("/mem_info_vram_total", MIB),
            )
        )
        return (
            None if busy is used is None else DeviceSample(now - since, busy, None, used, total, {})
        )


def _number(path: str, unit: int) -> float | None:
    text = _contents(path).strip()
    return int(text) / unit if text.isdigit() else None


def driver() -> GpuDriver:
    """Return the driver of this node. Raises OSError if there is none."""
    try:
        return Nvml()
    except OSError:
        return AmdSysfs()


# --------------------------------------------------------------------------------------------------------------
# reports


class GpuMonitor:
    """Use of GPUs by the drone's slots, interval by interval. ``exclusive``: no device is shared by two slots."""

    def __init__(self, devices: GpuDriver, execute: str, exclusive: bool) -> None:
        self._devices = devices
        self._execute = execute
        self._exclusive = exclusive
        self._jobs: dict[int, SlotJob] = {}
        self._owners: dict[Process, SlotJob] = {}
        self.strays: dict[str, float] = {}
        """VRAM of processes that jobs left behind, on the devices of jobs and while there is some."""

    def usage(self, since: float, now: float) -> dict[Slot, tuple[SlotJob, SlotUsage] | None]:
        """Return jobs and their use in an interval by slot; None where a device of the job cannot be read."""
        self._jobs = jobs_in(self._execute, self._jobs)
        self._owners = owners(self._jobs, self._owners)
        slot_of = {pid: job.slot for (pid, _), job in self._owners.items()}
        on: dict[str, list[Slot]] = {}
        for job in self._jobs.values():
            for device in job.devices:
                on.setdefault(device, []).append(job.slot)
        used: dict[Slot, list[SlotUsage | None]] = {job.slot: [] for job in self._jobs.values()}
        before = self.strays
        self.strays = {}
        for device in {*on, *before}:
            slots = on.get(device, [])
            found = self._devices.read(device, since, now)
            shares: dict[Slot, SlotUsage] = {}
            if found is not None:
                processes = found.processes.items()
                left = [
                    mib for pid, (_, mib) in processes if pid not in slot_of and left_behind(pid)
                ]
                if slots or left:
                    self.strays[device] = sum(left)
            if found is not None and slots:
                reading = DeviceReading(
                    *found[:5], [GpuProcess(slot_of.get(pid), *held) for pid, held in processes]
                )
                shares = divide(reading, sorted(set(slots)), self._exclusive)
            for slot in slots:
                used[slot].append(shares.get(slot))
        jobs = {job.slot: job for job in self._jobs.values()}
        return {
            slot: None if None in each else (jobs[slot], _together(filter(None, each)))
            for slot, each in used.items()
        }


def _together(used: Iterable[SlotUsage]) -> SlotUsage:
    """Return the use of several devices; a sum of which a part is unknown is unknown."""
    return SlotUsage(*(None if None in each else sum(each) for each in zip(*used)))  # noqa: B905 - not in Python 3.7


def lines(
    slot: Slot, usage: SlotUsage, joules: float | None, held_mib: float = 0.0, since: float = 0.0
) -> Iterator[str]:
    """Yield the report of a slot: increments of its use, and the energy of its job so far."""
    yield "SlotMergeConstraint = TARGET.SlotID == %d && TARGET.DSlotId == %d" % slot
    if usage.gpu_seconds is not None:
        yield "UptimeGPUsSeconds = %.6f" % usage.gpu_seconds
    if usage.vram_mib is not None:
        yield "UptimeGPUsMemoryPeakUsage = %d" % round(usage.vram_mib)
    if joules is not None:
        yield "UptimeGPUsEnergyPeakUsage = %.1f" % joules
    yield "JobVramUsage = %d" % round(held_mib)
    yield "JobVramSince = %d" % since
    yield "- GPUsSlot%d_%d" % slot


def report(
    found: Mapping[Slot, tuple[SlotJob, SlotUsage] | None],
    slots: Iterable[Slot],
    idle: SlotUsage,
    now: float,
) -> None:
    """Print a report for each slot, zero for one without a job. A startd needs one from before a job began."""
    text: list[str] = []
    for slot in sorted({*slots, *found}):
        if slot not in found:
            text += lines(slot, idle, idle.joules)
            continue
        used = found[slot]
        if used is not None:
            job, usage = used
            job.joules += usage.joules or 0.0
            held, since = job.sustained(now, usage.vram_mib or 0.0)
            text += lines(
                slot,
                usage,
                None if usage.joules is None and not job.joules else job.joules,
                held,
                since,
            )
    print("\n".join(text), flush=True)


def main() -> int:
    """Report until the startd goes away; with ``strays`` also the VRAM that no job has.

    With ``probe``: exit 0, 2 (the driver shows no processes) or 1 (no driver).
    """
    if sys.argv[1:] == ["probe"]:
        try:
            # NVML's process ids are those of the first namespace. (A test may run in another.)
            initial = os.environ.get("DRONE_PID_NAMESPACE", "pid:[4026531836]")
            return (
                0 if driver().sees_processes and os.readlink("/proc/self/ns/pid") == initial else 2
            )
        except OSError as error:
            print(error)
            return 1
    of = os.environ
    gpus = int(of.get("DRONE_GPUS", "1"))
    shares = int(of.get("DRONE_SHARES", "1"))
    sliced = of.get("DRONE_SHARING") == "mig" or of.get("CUDA_VISIBLE_DEVICES", "").startswith(
        "MIG"
    )
    alone = shares == 1 and int(of.get("DRONE_GPU_MILLI", "1000")) % 1000 == 0
    slots = [(1, at) for at in range(1, min(gpus * shares, MOST_SLOTS) + 1)]
    idle = SlotUsage(None if sliced else 0.0, 0.0, 0.0)
    report({}, slots, idle, time.time())
    monitor = None
    before = time.time()
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(max(before + PERIOD_S - time.time(), 0.1))
        now = time.time()
        try:
            monitor = monitor or GpuMonitor(
                driver(), of["DRONE_DIR"] + "/condor/execute", sliced or alone
            )
        except OSError as error:  # silence, because zero would be taken for the truth
            print(error, file=sys.stderr, flush=True)
            time.sleep(30)
        else:
            found = monitor.usage(before, now)
            if sys.argv[1:] == ["strays"]:
                print("DroneStrayVram = %d\n- Strays" % sum(monitor.strays.values()))
            report(found, slots, idle, now)
        before = now
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)
