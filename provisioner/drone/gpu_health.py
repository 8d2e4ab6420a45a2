"""Health of a drone's GPUs, with one verdict per GPU that expires.

``gpu_check.sh`` runs it on the worker node: Python 3.7, the standard library and the driver's own
libraries, no CUDA toolkit. Findings, classes, settings and files: ``docs/reference/drone.md``, "GPU
health".
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from ctypes import (
    CDLL,
    addressof,
    byref,
    c_char_p,
    c_int,
    c_size_t,
    c_uint,
    c_uint64,
    c_ulonglong,
    c_void_p,
    create_string_buffer,
)
from datetime import datetime
from typing import Any

ENV = os.environ
DIR = os.path.join(ENV.get("DRONE_DIR", "."), "condor")
STATE, CONFIG, CHANGED = (
    os.path.join(DIR, name) for name in ("gpu_health.json", "gpus.conf", "gpus.changed")
)
VENDOR = ENV.get("DRONE_VENDOR") or "nvidia"
SMALL_MIB = 64
"""Allocation on a GPU that may get a job while the probe runs."""
FATAL_FINDINGS = ("ecc", "remap-failed")
"""The class of all other findings is reset; that of an Xid is a setting."""
HARDWARE_THROTTLE = {0x08: "hardware slowdown", 0x40: "thermal slowdown", 0x80: "power brake"}


def number(name: str, default: int) -> int:
    """Return a setting of the environment as an integer."""
    found = re.match(r"(\d+)(\.\d*)?$", ENV.get(name) or "")
    return int(found.group(1)) if found else default


def words(text: str) -> list[str]:
    """Return the words of a list with commas or blanks."""
    return [word for word in re.split(r"[\s,]+", text) if word]


def run(command: list[str], limit_s: float) -> str:
    """Return what a program prints on stdout; empty text if it is missing, fails or is late."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s
        )
        return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
    except (OSError, subprocess.SubprocessError):
        return ""


def read(*path: str) -> str:
    """Return the text of a file; empty text if it cannot be read. A job may have put a link or a pipe in its place."""
    flags = os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        with open(
            os.path.join(*path),
            errors="replace",
            opener=lambda name, mode: os.open(name, mode | flags),
        ) as file:
            return file.read(1 << 24).strip()
    except OSError:
        return ""


def write(path: str, text: str) -> None:
    """Replace a file in one step."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


# -------------------------------------------------------------------------------------------------------------
# devices


def pci_address(text: str) -> str:
    """Return a PCI address without its function and without leading zeros: tools differ in both, and in case."""
    found = re.search(r"(?:([0-9a-f]+):)?([0-9a-f]+):([0-9a-f]+)", text.lower())
    return ":".join(f"{int(part or '0', 16):x}" for part in found.groups()) if found else ""


def devices() -> dict[str, dict[str, str]]:
    """Return the drone's GPUs as HTCondor's discovery lists them: UUID and PCI address by id."""
    said = run(
        [
            ENV.get("DRONE_DISCOVERY", "condor_gpu_discovery"),
            *words(ENV.get("DRONE_DISCOVERY_OPTIONS", "")),
        ],
        50,
    )
    listed = re.search(r'^DetectedGPUs="(.*)"', said, re.MULTILINE)
    common = said.partition("Common=[")[2].partition("]")[0]
    found = {}
    for each in words(listed.group(1)) if listed else ():
        ad = re.search(rf'\[ *id="{re.escape(each)}";(.*)\]', said)
        values = dict(re.findall(r'(\w+)="([^"]*)"', common + (ad.group(1) if ad else "")))
        uuid = (
            each if each.startswith(("GPU-", "MIG-")) else f"GPU-{values.get('DeviceUuid', each)}"
        )
        found[each] = {"uuid": uuid, "pci": pci_address(values.get("DevicePciBusId", ""))}
    return found


def assigned() -> set[str]:
    """Return the ids of the GPUs that running jobs have."""
    directories = glob.glob(os.path.join(DIR, "execute", "dir_*"))
    # HTCondor 25, 23
    ads = (read(each, place, ".machine.ad") for each in directories for place in ("scratch", ""))
    lists = (re.search(r'^AssignedGPUs *= *"(.*)"', ad, re.MULTILINE | re.IGNORECASE) for ad in ads)
    return {each for found in lists if found for each in words(found.group(1))}


# -----------------------------------------------------------------------------------------------------------------
# Xid

_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+)(?!.*(?:\bNonfatal\b|\(None\)$))"
)
"""Old drivers leave ``PCI:`` out, new ones add the MIG instance. Links have a severity, Xid 154 has an action."""
_ISO_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,]\d+)? ?(Z|[+-]\d\d:?\d\d)?")
_SYSLOG_TIME = re.compile(r"([A-Z][a-z]{2} +\d{1,2})(?: \d{4})? (\d\d:\d\d:\d\d)")


def xid_class(xid: str) -> str:
    """Return the class of an Xid: fatal, reset, or empty for those that applications cause."""
    if xid in words(ENV.get("DRONE_XID_FATAL", "48,63,64,74,79,95,119,120")):
        return "fatal"
    reset = words(ENV.get("DRONE_XID_RESET", "other"))
    ignored = words(ENV.get("DRONE_XID_APPLICATION", "13,31,43,45,68,109"))
    return "reset" if xid in reset or ("other" in reset and xid not in ignored) else ""


def kernel_log() -> list[str] | None:
    """Return the kernel's messages, or None if this account may not read them."""
    blocks = []
    try:
        log = os.open(ENV.get("DRONE_KERNEL_LOG") or "/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return (
            run(
                ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic"], 20
            ).splitlines()
            or None
        )
    with contextlib.suppress(BlockingIOError), os.fdopen(log, "rb", 0) as file:
        while True:
            try:
                block = os.read(file.fileno(), 1 << 16)
            except BrokenPipeError:  # the kernel has overwritten the next message
                continue
            if not block:
                break
            blocks.append(block)
    return b"".join(blocks).decode(errors="replace").splitlines()


def logged_at(head: str, now: float) -> float | None:
    """Return the date before a message: ISO, syslog's without a year, ``dmesg -T``'s or seconds; local if without zone.

    None if there is none, or if it is more than a day in the future: that of a wrong clock.
    """
    iso = _ISO_TIME.search(head)
    old = _SYSLOG_TIME.search(head)
    texts = []
    if iso:
        form = "%Y-%m-%d %H:%M:%S %z" if iso.group(3) else "%Y-%m-%d %H:%M:%S None"
        texts = [" ".join(map(str, iso.groups()))]
    elif old:
        form = "%Y %b %d %H:%M:%S"
        next_year = datetime.fromtimestamp(now).year + 1
        # the latest that has come
        texts = [f"{next_year - back} {old.group(1)} {old.group(2)}" for back in range(10)]
    for text in texts:
        with contextlib.suppress(ValueError, OverflowError):
            at = datetime.strptime(text, form).timestamp()
            if at < now + 86400:
                return at
    unix = re.match(r"\d{9,10}\.\d+ ", head)
    return float(unix.group()) if unix else None


def message_age_s(line: str, seen: dict[str, float], now: float) -> float:
    """Return the age of a message by its own time, else since it was first seen here (``seen``: time by message)."""
    dated = logged_at(line.partition("NVRM")[0], now)
    if dated is not None:
        return max(0.0, now - dated)
    monotonic = re.match(r"\d+,\d+,(\d+),", line) or re.search(r"\[ *(\d+\.\d+)\].*NVRM", line)
    if monotonic:
        at = float(monotonic.group(1)) / (1 if "." in monotonic.group(1) else 1e6)
        uptime_s = time.clock_gettime(time.CLOCK_MONOTONIC)
        # Nobody corrects the clock of the kernel's messages, so it drifts. A later one is that of
        # an earlier boot.
        return max(0.0, uptime_s - at) if at < uptime_s * 1.001 + 1 else float("inf")
    return now - seen.setdefault(line[-200:], now)


def xid_verdicts(
    lines: Iterable[str], state: dict[str, Any], expiry_s: dict[str, int], now: float
) -> Iterator[tuple[str, str, str, float]]:
    """Yield id, class, text and expiry of the verdict on a GPU for each Xid in the kernel's log, if not expired."""
    old = state.get("seen", {})
    current = {}
    for line in lines:
        found = _XID.search(line)
        group = xid_class(found.group(2)) if found else ""
        if found and group:
            until = now - message_age_s(line, old, now) + expiry_s[group]
            current.update({key: old[key] for key in [line[-200:]] if key in old})
            for each, gpu in state["gpus"].items():
                if until > now and pci_address(found.group(1)) == gpu["pci"]:
                    yield each, group, f"Xid {found.group(2)}", until
    state["seen"] = current


# ---------------------------------------------------------------------------------------------------------------
# probe


class DriverLibrary:
    """A library of the driver. A call returns True if it succeeds; one that is ``needed`` raises OSError otherwise."""

    def __init__(self, name: str) -> None:
        self.library = CDLL(name)

    def __call__(self, name: str, *arguments: Any, needed: bool = False) -> bool:
        """Call a function; one that the library lacks fails."""
        function = getattr(self.library, name, None)
        code = function(*arguments) if function else -1
        if code and needed:
            raise OSError(f"{name}: {self.error(code) if function else 'not in this driver'}")
        return bool(code == 0)

    def error(self, code: int) -> str:
        """Return the driver's own text for an error code."""
        text = c_char_p()
        with contextlib.suppress(AttributeError):
            self.library.nvmlErrorString.restype = c_char_p
            text.value = self.library.nvmlErrorString(code)
        with contextlib.suppress(AttributeError):
            self.library.cuGetErrorName(code, byref(text))
        return f"{(text.value or b'error').decode(errors='replace')} ({code})"


def nvml_device(nvml: DriverLibrary, uuid: str) -> Any:
    """Return NVML's handle of the GPU with a UUID, or of the one that a MIG instance is part of. Raises OSError."""
    count = c_uint()
    gpu = c_void_p()
    name = create_string_buffer(96)
    if uuid.startswith("MIG-") and "/" not in uuid:
        instance = c_void_p()
        nvml("nvmlDeviceGetHandleByUUID", uuid.encode(), byref(instance), needed=True)
        nvml("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", instance, byref(gpu), needed=True)
        return gpu
    start = uuid.replace("MIG-", "").partition("/")[0].encode()
    nvml("nvmlDeviceGetCount_v2", byref(count), needed=True)
    for index in range(count.value):
        listed = nvml("nvmlDeviceGetHandleByIndex_v2", index, byref(gpu)) and nvml(
            "nvmlDeviceGetUUID", gpu, name, 96
        )
        if listed and name.value.startswith(start):
            return gpu
    raise OSError("the driver does not list it")


def nvml_findings(uuid: str, free_mib: int) -> Iterator[tuple[str, str]]:
    """Yield finding and text of what NVML reports of a GPU. ``free_mib``: VRAM that has to be free."""
    nvml = DriverLibrary("libnvidia-ml.so.1")
    nvml("nvmlInit_v2", needed=True)
    gpu = nvml_device(nvml, uuid)
    errors = c_ulonglong()
    memory = (c_ulonglong * 3)()
    if nvml("nvmlDeviceGetTotalEccErrors", gpu, 1, 0, byref(errors)) and errors.value:
        yield "ecc", f"{errors.value} uncorrectable memory errors"
    rows = [c_uint() for _ in range(4)]
    if nvml("nvmlDeviceGetRemappedRows", gpu, *map(byref, rows)):
        if rows[3].value:
            yield "remap-failed", "row remapping has failed"
        elif rows[2].value:
            yield "remap-pending", "row remapping is pending"
    throttled = ~0
    for wait_s in (0, 0.5):  # a momentary one is no fault
        time.sleep(wait_s)
        reasons = c_ulonglong()
        throttled &= (
            nvml("nvmlDeviceGetCurrentClocksThrottleReasons", gpu, byref(reasons)) and reasons.value
        )
    for text in (text for bit, text in HARDWARE_THROTTLE.items() if throttled & bit):
        yield "throttle", text
    width = c_uint()
    widest = c_uint()
    known = nvml("nvmlDeviceGetCurrPcieLinkWidth", gpu, byref(width))
    if (
        known
        and nvml("nvmlDeviceGetMaxPcieLinkWidth", gpu, byref(widest))
        and 0 < width.value < widest.value
    ):
        yield "pcie", f"PCIe width x{width.value} of x{widest.value}"
    if free_mib and nvml("nvmlDeviceGetMemoryInfo", gpu, memory) and memory[1] >> 20 < free_mib:
        yield "vram", f"{memory[1] >> 20} MiB of VRAM are free, {free_mib} are needed"


_KERNEL = """
.visible .entry %s(.param .u64 words, .param .u64 count, .param .u64 total) {
    .reg .pred %%p;
    .reg .b32 %%r<5>;
    .reg .b64 %%d<10>;
    ld.param.u64 %%d1, [words];
    ld.param.u64 %%d2, [count];
    ld.param.u64 %%d8, [total];
    cvta.to.global.u64 %%d1, %%d1;
    cvta.to.global.u64 %%d8, %%d8;
    mov.u32 %%r1, %%ctaid.x;
    mov.u32 %%r2, %%ntid.x;
    mov.u32 %%r3, %%tid.x;
    mov.u32 %%r4, %%nctaid.x;
    mul.wide.u32 %%d3, %%r1, %%r2;
    cvt.u64.u32 %%d4, %%r3;
    add.u64 %%d3, %%d3, %%d4;
    mul.wide.u32 %%d5, %%r4, %%r2;
    mov.u64 %%d9, 0;
NEXT:
    setp.ge.u64 %%p, %%d3, %%d2;
    @%%p bra DONE;
    shl.b64 %%d6, %%d3, 3;
    add.u64 %%d6, %%d1, %%d6;
    %s
    add.u64 %%d3, %%d3, %%d5;
    bra NEXT;
DONE:
    %s
    ret;
}
"""
PTX = (
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    + _KERNEL % ("fill", "st.global.u64 [%d6], %d3;", "")
    + _KERNEL
    % ("sum", "ld.global.u64 %d7, [%d6]; add.u64 %d9, %d9, %d7;", "red.global.add.u64 [%d8], %d9;")
)
"""Two kernels: ``words[i] = i``, and ``total`` plus the sum of all words. The driver compiles them for its GPU."""
_OUT_OF_MEMORY = 2


def cuda_findings(pci: str, mib: int) -> Iterator[tuple[str, str]]:
    """Yield a finding if ``mib`` of VRAM cannot be allocated, written by one kernel and read by another."""
    cuda = DriverLibrary("libcuda.so.1")
    device = c_int()
    count = c_int()
    context = c_void_p()
    cuda("cuInit", 0, needed=True)
    cuda("cuDeviceGetCount", byref(count), needed=True)
    for index in range(count.value):
        name = create_string_buffer(32)
        cuda("cuDeviceGet", byref(device), index, needed=True)
        listed = cuda("cuDeviceGetPCIBusId", name, 32, device)
        if count.value == 1 or (listed and pci_address(name.value.decode(errors="replace")) == pci):
            break
    else:
        yield "cuda", f"CUDA lists {count.value} devices, and not this one"
        return
    cuda("cuCtxCreate_v2", byref(context), 0, device, needed=True)
    data, total, answer, amount = (c_uint64(each) for each in (0, 0, 0, (mib << 20) // 8))
    code = cuda.library.cuMemAlloc_v2(byref(data), c_size_t(mib << 20))
    if code == _OUT_OF_MEMORY:
        free = c_size_t()
        there = c_size_t()
        cuda("cuMemGetInfo_v2", byref(free), byref(there))
        yield "vram", f"no {mib} MiB of VRAM: {free.value >> 20} of {there.value >> 20} are free"
        return
    if code:
        raise OSError(f"cuMemAlloc_v2: {cuda.error(code)}")
    cuda("cuMemAlloc_v2", byref(total), c_size_t(8), needed=True)
    cuda("cuMemsetD32_v2", total, 0, c_size_t(2), needed=True)
    module = c_void_p()
    kernel = c_void_p()
    cuda("cuModuleLoadDataEx", byref(module), PTX.encode(), 0, None, None, needed=True)
    arguments = (c_void_p * 3)(*(addressof(each) for each in (data, amount, total)))
    for entry in (b"fill", b"sum"):
        cuda("cuModuleGetFunction", byref(kernel), module, entry, needed=True)
        cuda("cuLaunchKernel", kernel, 1024, 1, 1, 256, 1, 1, 0, None, arguments, None, needed=True)
        cuda("cuCtxSynchronize", needed=True)
    cuda("cuMemcpyDtoH_v2", byref(answer), total, c_size_t(8), needed=True)
    expected = amount.value * (amount.value - 1) // 2 % (1 << 64)
    if answer.value != expected:
        yield (
            "cuda",
            f"a kernel read back {mib} MiB of VRAM with the sum {answer.value}, not {expected}",
        )


def sysfs_findings(card: str, vram_mib: int) -> Iterator[tuple[str, str]]:
    """Yield finding and text of what the kernel reports of an AMD or Intel GPU, in its directory below ``/sys``."""
    if not card:
        yield "driver", "the kernel does not list it"
        return
    total = read(card, "mem_info_vram_total")
    if total.isdigit() and int(total) >> 20 < vram_mib * 9 // 10:
        yield "vram", f"it has {int(total) >> 20} MiB of VRAM, {vram_mib} are promised"
    counts = (read(path) for path in glob.glob(os.path.join(card, "ras", "*_err_count")))
    errors = sum(
        int(count) for text in counts for count in re.findall(r"^ue: *(\d+)", text, re.MULTILINE)
    )
    if errors:
        yield "ecc", f"{errors} uncorrectable memory errors"
    width = read(card, "current_link_width")
    widest = read(card, "max_link_width")
    if width.isdigit() and widest.isdigit() and 0 < int(width) < int(widest):
        yield "pcie", f"PCIe width x{width} of x{widest}"


def probe(uuid: str, pci: str, card: str, mib: int, free_mib: int, vram_mib: int) -> None:
    """Print a line of JSON for each source of findings: its name and its findings. Runs in a process of its own."""
    sources: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
        "sysfs": lambda: sysfs_findings(card, vram_mib)
    }
    if VENDOR == "nvidia":
        sources = {"nvml": lambda: nvml_findings(uuid, free_mib)}
        if mib:
            sources["cuda"] = lambda: cuda_findings(pci, mib)
    for name, source in sources.items():
        findings: list[tuple[str, str]] = []
        try:
            findings.extend(source())
        except (OSError, AttributeError) as error:
            # there is still CUDA; mps_check.sh judges MPS
            if "libnvidia-ml" in str(error) or "_MPS_" in str(error):
                continue
            findings.append(("cuda" if name == "cuda" else "driver", str(error)))
        print(json.dumps([name, findings]), flush=True)


def cards(gpus: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return the directory below ``/sys`` of each AMD or Intel GPU: by PCI address, else in the order of devices."""
    found = {}
    for path in glob.glob(os.path.join(ENV.get("DRONE_SYS") or "/sys", "class/drm/card*/device")):
        if read(path, "vendor") == {"amd": "0x1002", "intel": "0x8086"}.get(VENDOR):
            found[pci_address(os.path.basename(os.path.realpath(path)))] = path
    ordered = [
        found[pci]
        for pci in sorted(found, key=lambda pci: [int(part, 16) for part in pci.split(":")])
    ]
    chosen = words(ENV.get("ROCR_VISIBLE_DEVICES") or ENV.get("HIP_VISIBLE_DEVICES") or "")
    if chosen and all(each.isdigit() for each in chosen):
        ordered = [ordered[int(each)] for each in chosen if int(each) < len(ordered)]
    by_order = dict(zip(gpus, ordered))  # noqa: B905 - not in Python 3.7
    return {
        each: (found if gpu["pci"] else by_order).get(gpu["pci"] or each, "")
        for each, gpu in gpus.items()
    }


# ------------------------------------------------------------------------------------------------------------
# verdicts


def requests(
    gpus: dict[str, dict[str, str]], offline: Iterable[str], first: bool
) -> dict[str, dict[str, Any]]:
    """Return the arguments of :func:`probe` for each GPU.

    It allocates most of the promised VRAM where no job can come: before HTCondor starts, and on a
    GPU that is offline. On one that may get a job it allocates little, and on one that has a job
    nothing.
    """
    shares = number("DRONE_SHARES", 1) if ENV.get("DRONE_SHARING") in ("mig", "mps") else 1
    most = number("DRONE_VRAM_MIB", 0) // shares * 9 // 10
    others_use_it = number("DRONE_GPU_MILLI", 1000) % 1000 != 0
    busy = assigned()
    places = cards(gpus)
    found = {}
    for each, gpu in gpus.items():
        full = (first or each in offline) and not others_use_it
        found[each] = {
            **gpu,
            "card": places[each],
            "mib": 0 if each in busy else max(SMALL_MIB, most) if full else SMALL_MIB,
            "free_mib": 0 if each in busy or others_use_it or shares > 1 else most,
            "vram_mib": number("DRONE_VRAM_MIB", 0),
        }
    return found


def mps_environment() -> dict[str, dict[str, str]]:
    """Return the environment of a client of the drone's MPS by GPU: an exclusive compute mode admits nothing else."""
    found = {}
    for at, each, uuid, _ in map(str.split, read(DIR, "mps", "gpus").splitlines()):
        found[each] = {
            "CUDA_MPS_PIPE_DIRECTORY": os.path.join(DIR, "mps", at),
            "CUDA_VISIBLE_DEVICES": uuid,
        }
    return found


def started_at(pid: int) -> str:
    """Return the start time of a process in the kernel's own units; empty text if it has ended."""
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""


def probe_all(
    asked: dict[str, dict[str, Any]], state: dict[str, Any]
) -> tuple[dict[str, Any], set[str]]:
    """Return the findings of each GPU, and the sources that answered. A probe that hangs is a finding.

    One that cannot be killed is left behind; its GPU gets no other before that has gone.
    """
    findings: dict[str, Any] = {each: [] for each in asked}
    stuck = {
        each: old for each, old in state.get("stuck", {}).items() if started_at(old[0]) == old[1]
    }
    running = {}
    sources = set()
    limit_s = number("DRONE_GPU_PROBE_S", 45)
    mps = mps_environment()
    for each, request in asked.items():
        if each in stuck:
            findings[each].append(["hung", "an earlier probe still hangs"])
            continue
        env = {
            **ENV,
            "CUDA_CACHE_DISABLE": "1",
            "CUDA_VISIBLE_DEVICES": request["uuid"],
            **mps.get(each, {}),
        }
        command = [sys.executable, os.path.abspath(__file__), json.dumps(request)]
        running[each] = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    late_at = time.monotonic() + limit_s
    for each, process in running.items():
        said = b""
        try:
            said = process.communicate(timeout=max(0.1, late_at - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            findings[each].append(["hung", f"no answer within {limit_s} s"])
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                said = process.communicate(timeout=1)[0]
        if process.returncode is None:
            began = started_at(process.pid)
            stuck.update({each: [process.pid, began]} if began else {})
        elif process.returncode > 0 or (process.returncode < 0 and not findings[each]):
            findings[each].append(["driver", f"the probe ended with status {process.returncode}"])
        for name, found in map(json.loads, said.splitlines()):
            sources.add(name)
            findings[each] += found
    state["stuck"] = stuck
    return findings, sources


def print_missing(found: int, wanted: int) -> None:
    """Print how many GPUs the site did not assign, and why if the driver knows."""
    why = ""
    if VENDOR == "nvidia":
        why = run([sys.executable, os.path.abspath(__file__), "driver"], 20).strip()
    visible = ENV.get("CUDA_VISIBLE_DEVICES", "all")
    print(f"the site assigned {found} of {wanted} GPUs: {visible}{'; ' if why else ''}{why}")


def probe_verdicts(
    findings: dict[str, Any], ignored: list[str], expiry_s: dict[str, int], now: float
) -> Iterator[tuple[str, str, str, float]]:
    """Yield GPU, group, text and end of the verdict of each finding that counts."""
    taken = assigned()  # a job that has come meanwhile uses the VRAM
    for each, found in findings.items():
        for kind, text in found:
            if kind not in ignored and not (each in taken and kind in ("vram", "cuda")):
                group = "fatal" if kind in FATAL_FINDINGS else "reset"
                yield each, group, text, now + expiry_s[group]


def main() -> int:
    """Judge each GPU, write the drone's configuration with those that are offline, print a line; 1 if none is good."""
    os.umask(0o077)
    state: dict[str, Any] = {}
    with contextlib.suppress(ValueError):
        state = json.loads(read(STATE) or "{}")
    first = "gpus" not in state and not os.path.exists(os.path.join(DIR, "etc", "condor_config"))
    now = time.time()
    gpus = state["gpus"] = state.get("gpus") or devices()  # which may hang by one GPU, so once
    wanted = number("DRONE_GPUS", 1) * (
        number("DRONE_SHARES", 1) if ENV.get("DRONE_SHARING") == "mig" else 1
    )
    if len(gpus) < wanted:
        print_missing(len(gpus), wanted)
        return 1
    expiry_s = {
        "reset": number("DRONE_GPU_RESET_S", 1800),
        "fatal": number("DRONE_GPU_FATAL_S", 86400),
    }
    ignored = words(ENV.get("DRONE_GPU_IGNORE", ""))
    verdicts = {each: old for each, old in state.get("verdicts", {}).items() if old[2] > now}
    findings, sources = probe_all(requests(gpus, verdicts, first), state)
    new = [*probe_verdicts(findings, ignored, expiry_s, now)]
    log = kernel_log() if VENDOR == "nvidia" and "xid" not in ignored else None
    if log is not None:
        new += xid_verdicts(log, state, expiry_s, now)
        if all(gpu["pci"] for gpu in gpus.values()):  # else it is not known whose
            sources.add("xid")
    for each, group, text, until in new:
        if each not in verdicts or until > verdicts[each][2]:
            verdicts[each] = [group, text, until]
    state["verdicts"] = verdicts
    write(STATE, json.dumps(state))
    checked = ",".join(sorted(sources))
    why = "; ".join(
        f"{each}: {verdicts[each][1]} ({verdicts[each][0]})" for each in sorted(verdicts)
    )
    why = re.sub(r"[^A-Za-z0-9 ,.:;()/=_+-]", "", why)[:500]
    config = f"OFFLINE_MACHINE_RESOURCE_GPUs = {', '.join(sorted(verdicts))}\nDroneGpusOffline = {len(verdicts)}\n"
    config += f'DroneGpusOfflineWhy = "{why}"\nDroneGpuCheck = "{checked}"\n'
    if config.strip() != read(CONFIG):
        write(CONFIG, config)
        write(CHANGED, "")
    good = len(gpus) - len(verdicts)
    print(f"{good} of {len(gpus)} GPUs are healthy ({checked}){'; ' if why else ''}{why}")
    return 0 if good else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["driver"]:
        try:
            DriverLibrary("libcuda.so.1")("cuInit", 0, needed=True)
        except OSError as error:
            print(error)
    elif sys.argv[1:]:
        probe(**json.loads(sys.argv[1]))
    else:
        sys.exit(main())
