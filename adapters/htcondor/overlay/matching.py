"""Matching of jobs with drone types, by the job's own expressions against the slot ad that the type would show.

The slot ad is a template made from the drone type; what slots of the type really advertised takes
its place once one has arrived. Both sides' Requirements count, as in a negotiation, and RequireGPUs
must hold for as many GPUs as asked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from adapters.htcondor import classad2, classads
from adapters.htcondor.classads import (
    Ad,
    evaluated_number,
    expression,
    holds,
    number,
    source,
    value,
)
from adapters.shared.printing import printable
from provisioner.gpu_models import canonical, driver_name
from provisioner.model import NVIDIA, WHOLE_GPU, DroneType, Sharing, UnmetRequirement
from provisioner.values import frozen

DIMENSION_ORDER = classads.attribute_names(
    """
    gpus vram capability driver gpu-model cpus memory disk arch walltime requirements start
    """
)
"""Dimensions in the order in which they are reported: the GPU first."""

_DIMENSION_OF = {
    "globalmemorymb": "vram",
    "capability": "capability",
    "maxsupportedversion": "driver",
    "driverversion": "driver",
    "runtimeversion": "driver",
    "devicename": "gpu-model",
    "deviceuuid": "gpu-model",
    "gpus": "gpus",
    "availablegpus": "gpus",
    "cpus": "cpus",
    "memory": "memory",
    "disk": "disk",
    "arch": "arch",
}
_GPU_PREFIX = re.compile(r"^(target\.)?(gpus_|cuda)?")
_BOUND = re.compile(r"(?:TARGET\.)?(?:GPUs_|CUDA)?(\w+) (>=|>) (.+)", re.IGNORECASE | re.DOTALL)
_MOST_GPUS = 256  # GPU ads that a template carries at most
WITHIN_LIMITS = (
    "MY.Cpus > 0 && (TARGET.RequestCpus ?: 1) <= MY.Cpus && MY.Memory > 0 && TARGET.RequestMemory <= MY.Memory"
    " && MY.Disk > 0 && TARGET.RequestDisk <= MY.Disk"
    " && (TARGET.RequestGPUs is undefined || MY.GPUs >= TARGET.RequestGPUs)"
)
STATED_WALLTIME = (
    "(TARGET.AllowedJobDuration ?: (TARGET.AllowedExecuteDuration ?: "
    "((TARGET.MaxWallTimeMins * 60) ?: 0)))"
)
ASKED_SHARE = "(TARGET.GpuMilli ?: 1000)"
_ASSIGNED = re.compile(r"^\s*(\w+)\s*=((?:[^\n\\]|\\(?!\n)|\\\n)*)$", re.MULTILINE)
"""A line of an HTCondor configuration, with the lines that continue it."""
_OWN_START = re.compile(r"\$\(START\)", re.IGNORECASE)
_MY = re.compile(r"\bMY\.(\w+)", re.IGNORECASE)


@frozen
class ReceivedSlot:
    """The ad that a slot of a drone type really advertised, as expressions; allocation left out."""

    ad: Mapping[str, str]
    gpus: tuple[Mapping[str, str], ...] = ()


def start(kind: DroneType) -> str:
    """Return START of a drone as ``provisioner/drone/condor_drone.sh`` writes it, without its health and its end."""
    talks = "(TARGET.InteractiveJob =!= True || MY.SshToJob)"
    if not kind.gpu_milli:
        return f"(TARGET.RequestGPUs ?: 0) == 0 && {talks}"
    rests = (
        ("MY.Cpus - (TARGET.RequestCpus ?: 1)", kind.kept_cpus),
        ("MY.Memory - quantize(TARGET.RequestMemory ?: 128, 128)", kind.kept_memory_mib),
        ("MY.Disk - (TARGET.RequestDisk ?: 0)", kind.kept_disk_mib * 1024),
    )
    left = "(MY.GPUs - TARGET.RequestGPUs)"
    share = min(kind.gpu_milli, WHOLE_GPU) // kind.shares
    if kind.vram_pool:
        pooled = f"max({{{kind.vram_mib // kind.shares}, TARGET.RequestGPUMem ?: 0}})"
        asks = f"({ASKED_SHARE} <= {share} || (TARGET.RequestGPUMem ?: 0) > 0)"
        wants = f"(TARGET.RequestGPUs ?: 0) == 1 && {asks} && MY.GPUMem >= {pooled}"
        keeps = [
            f"({rest}) * {kind.vram_mib} >= {kept} * (MY.GPUMem - {pooled})"
            for rest, kept in rests
            if kept
        ]
    elif share == WHOLE_GPU:
        wants = "(TARGET.RequestGPUs ?: 0) >= 1"
        keeps = [f"{rest} >= {kept} * {left}" for rest, kept in rests if kept]
    else:
        wants = f"(TARGET.RequestGPUs ?: 0) == 1 && {ASKED_SHARE} <= {share}"
        keeps = [
            f"({rest}) * {WHOLE_GPU} >= {kept * share} * {left}" for rest, kept in rests if kept
        ]
    if kind.limits_part:
        wants += f" && (TARGET.GPUsMinMemory ?: 0) <= {kind.vram_mib}"
    if kind.sharing is Sharing.MPS:
        wants += ' && (TARGET.GpuApi ?: "cuda") == "cuda"'
    return " && ".join([wants, *keeps, talks])


def operator_start(drone_config: str, built_in: str, slot: Ad) -> str:
    """Return START of a drone with the operator's lines in its configuration.

    Where that refers to macros, or to attributes of the slot that are not known yet, it cannot be
    predicted: ``built_in`` alone is returned, and the pool has the last word.
    """
    assigned = [
        (found[1], found[2].replace("\\\n", " ").strip())
        for found in _ASSIGNED.finditer(drone_config)
    ]
    text = built_in
    for name, written in assigned:
        if name.lower() == "start":
            text = f"({text})".join(_OWN_START.split(written))
    if text == built_in or "$(" in text or expression(text) is None:
        return built_in
    own = {name.lower() for name, _ in assigned} | {name.lower() for name in _MY.findall(text)}
    unknown = [
        name for name in classads.references(text, slot) if name.lower() in own and name not in slot
    ]
    return built_in if unknown else text


def template(kind: DroneType, received: ReceivedSlot | None = None, drone_config: str = "") -> Ad:
    """Return the ad of an empty drone of this type: its partitionable slot."""
    devices = min(math.ceil(kind.gpu_milli / WHOLE_GPU) * kind.shares, _MOST_GPUS)
    ad = classad2.ClassAd(
        {
            "MyType": "Machine",
            "TargetType": "Job",
            "SlotType": "Partitionable",
            "PartitionableSlot": True,
            "State": "Unclaimed",
            "Activity": "Idle",
            "Name": "slot1@template",
            "Arch": kind.arch,
            "OpSys": "LINUX",
            "CondorVersion": "$CondorVersion: 23.0.0 2023-09-29 BuildID: template $",
            "HasFileTransfer": True,
            "HasJobDeferral": True,
            # no drone shares a file system or accounts with the pool
            "FileSystemDomain": "drone.invalid",
            "UidDomain": "drone.invalid",
            "SiteName": kind.site,
            "DroneType": kind.name,
            "DroneReady": True,
            "SshToJob": True,
            "GpuViewTrue": True,
            "DroneShares": kind.shares,
            "DroneSharing": kind.sharing.value,
            **({"GpuVendor": kind.vendor, "GpuTarget": kind.gpu_target} if kind.gpu_milli else {}),
            "Cpus": kind.cpus,
            "Memory": kind.memory_mib,
            "Disk": kind.disk_mib * 1024,
        }
    )
    if devices:  # what a drone publishes on a node with Python and NVIDIA's library
        ad["VramEnforced"] = "mps" if kind.sharing is Sharing.MPS and kind.vram_mib else "watched"
    if kind.vram_pool:
        _put(
            ad, {name: str(kind.vram_mib) for name in ("GPUMem", "TotalGPUMem", "TotalSlotGPUMem")}
        )
    gpu = _gpu_template(kind) if devices else {}
    gpus: tuple[Mapping[str, str], ...] = (gpu,) * devices
    _put(ad, {f"GPUs_{name}": text for name, text in gpu.items()})
    if received is not None:
        _put(ad, received.ad)
        # a slice of MIG is a device; a GPU that is shared otherwise is one, listed several times
        gpus = received.gpus * (1 if kind.sharing is Sharing.MIG else kind.shares) or gpus
    for at, properties in enumerate(gpus):
        device = classad2.ClassAd({"Id": f"GPU-{at}"})
        _put(device, properties)
        ad[f"GPUs_GPU_{at}"] = device
    names = ",".join(f"GPUs_GPU_{at}" for at in range(len(gpus)))
    _put(ad, {"AvailableGPUs": f"{{{names}}}", "GPUs": str(len(gpus))})
    for name in ("Cpus", "Memory", "Disk", "GPUs"):
        _put(ad, {f"Total{name}": source(ad, name), f"TotalSlot{name}": source(ad, name)})
    lives = f" && {STATED_WALLTIME} <= {kind.longest_job_s:.0f}" if kind.walltime_s else ""
    _put(ad, {"WithinResourceLimits": WITHIN_LIMITS, **kind.published, **kind.ad})
    if not any(name.lower() == "start" for name in kind.ad):
        _put(ad, {"Start": operator_start(drone_config, start(kind) + lives, ad)})
    _put(ad, {"Requirements": "Start && WithinResourceLimits"})
    return ad


def _gpu_template(kind: DroneType) -> dict[str, str]:
    """Return the properties of one GPU, or share of one, as far as the type has them."""
    version = f"{kind.driver // 1000}.{kind.driver % 1000 // 10}"
    known = {
        "ECCEnabled": "true",
        "GlobalMemoryMb": str(kind.vram_mib // kind.shares) if kind.vram_mib else "",
        "Capability": f"{kind.capability / 10:.1f}" if kind.capability else "",
        "DeviceName": classad2.quote(driver_name(kind.gpu_model, kind.vendor))
        if kind.gpu_model
        else "",
        "MaxSupportedVersion": str(kind.driver) if kind.driver else "",
        "DriverVersion": version if kind.driver else "",
    }
    return {name: text for name, text in known.items() if text}


def _put(ad: Ad, attributes: Mapping[str, str]) -> None:
    """Set attributes from their expressions; what does not parse is an error value, as in HTCondor's configuration."""
    for name, text in attributes.items():
        ad[name] = expression(text) or expression("error")


_AMOUNTS_ASKED = {
    "RequestGPUs": "GPUs",
    "RequestCpus": "Cpus",
    "RequestMemory": "Memory",
    "RequestDisk": "Disk",
}


def unmet_requirement(job: Ad, slot: Ad) -> UnmetRequirement | None:
    """Return the first dimension in which a job ad does not fit a slot ad; None if the two match."""
    return _first(_unmet(job, slot))


def unmet_beside_amounts(job: Ad, slot: Ad) -> UnmetRequirement | None:
    """Return the first requirement that would be unmet if the job asked for no more than the slot has."""
    asked = {name: evaluated_number(name, job, slot) for name in _AMOUNTS_ASKED}
    there = {name: number(slot, offered) or 0 for name, offered in _AMOUNTS_ASKED.items()}
    less = {
        name: int(there[name])
        for name, amount in asked.items()
        if amount is not None and amount > there[name]
    }
    found = _unmet(classad2.ClassAd({**{name: job.lookup(name) for name in job}, **less}), slot)
    return _first([each for each in found if not each.is_amount])


def _first(found: list[UnmetRequirement]) -> UnmetRequirement | None:
    """Return the first by dimension. One dimension counts once; other requirements count as often as they differ."""
    if not found:
        return None
    kinds = {
        each.requested if each.dimension == "requirements" else each.dimension for each in found
    }
    return replace(
        min(found, key=lambda each: DIMENSION_ORDER.index(each.dimension)), others=len(kinds) - 1
    )


def _unmet(job: Ad, slot: Ad) -> list[UnmetRequirement]:
    """Return all requirements of the two ads that are unmet; none if they match."""
    wants = source(job, "Requirements") or "true"
    asked = evaluated_number("RequestGPUs", job, slot) or 0
    gpus_fit = "RequireGPUs" not in job or _gpus_with("MY.RequireGPUs", job, slot) >= asked
    if gpus_fit and holds(wants, job, slot) and holds("Requirements", slot, job):
        return []
    gpus = list(_gpu_clauses(job, slot))
    # the clause that counts GPUs is left out if a GPU clause is reported
    plain = (clause for clause in clauses(wants) if not (gpus and "countmatches" in clause.lower()))
    own = (_described(clause, job, slot) for clause in plain if not holds(clause, job, slot))
    found = [*_numbers(job, slot), *gpus, *own, *_start_clauses(job, slot)]
    return found or [
        UnmetRequirement("requirements", printable(source(job, "Requirements")), "not met")
    ]


def _gpus_with(clause: str, job: Ad, slot: Ad) -> float:
    return evaluated_number(f"countMatches({clause}, TARGET.AvailableGPUs)", job, slot) or 0


def _numbers(job: Ad, slot: Ad) -> Iterator[UnmetRequirement]:
    for dimension, wanted, offered, unit in (
        ("gpus", "RequestGPUs", "GPUs", ""),
        ("cpus", "RequestCpus", "Cpus", ""),
        ("memory", "RequestMemory", "Memory", " MiB"),
        ("disk", "RequestDisk", "Disk", " KiB"),
        ("vram", "RequestGPUMem", "GPUMem", " MiB in a pool"),
    ):
        asked = evaluated_number(wanted, job, slot)
        there = number(slot, offered) or 0
        if asked is None and not source(job, wanted):
            continue
        if asked is None or asked > there:
            requested = "undefined" if asked is None else f"{asked:.15g}{unit}"
            yield UnmetRequirement(dimension, requested, f"{there:.15g}{unit}")


def _gpu_clauses(job: Ad, slot: Ad) -> Iterator[UnmetRequirement]:
    """Yield clauses of RequireGPUs that fewer GPUs meet than are asked for."""
    require = source(job, "RequireGPUs")
    wanted = number(job, "RequestGPUs") or 0
    if not require or _gpus_with("MY.RequireGPUs", job, slot) >= wanted:
        return
    missed = [clause for clause in clauses(require) if _gpus_with(clause, job, slot) < wanted]
    yield from (_described(clause, job, slot, gpu=True) for clause in missed)
    if not missed:  # each is met by some GPU, all of them by too few
        yield UnmetRequirement(
            "requirements", printable(require), f"fewer than {wanted:g} GPUs meet all of it"
        )


def _start_clauses(job: Ad, slot: Ad) -> Iterator[UnmetRequirement]:
    for clause in clauses(source(slot, "Start")):
        limit = clause.rpartition("<= ")[2]
        if holds(clause, slot, job):
            continue
        if STATED_WALLTIME in clause:
            asked = evaluated_number(STATED_WALLTIME, slot, job) or 0
            yield UnmetRequirement("walltime", f"{asked:.0f} s", f"{limit} s")
        elif clause.startswith(ASKED_SHARE):
            asked, share = (
                (evaluated_number(each, slot, job) or 0) / WHOLE_GPU
                for each in (ASKED_SHARE, limit)
            )
            yield UnmetRequirement("gpus", f"{asked:g}", f"shares of {share:g}, one to a job")
        else:
            yield UnmetRequirement("start", printable(clause), "false for this job")


def _described(clause: str, job: Ad, slot: Ad, gpu: bool = False) -> UnmetRequirement:
    """Return a failing clause for people: with its numbers where it is a plain bound, else as written."""
    names = sorted(classads.references(clause, job))
    bare = (_GPU_PREFIX.sub("", name.lower()) for name in names)
    dimensions = [_DIMENSION_OF[name] for name in bare if name in _DIMENSION_OF]
    dimension = min(dimensions, key=DIMENSION_ORDER.index, default="requirements")
    looked_at = bound(clause, job)
    if looked_at and dimension in ("vram", "capability", "driver"):
        name, least = looked_at
        there = number(slot, f"GPUs_{name}")
        vendor = value(slot, "GpuVendor")
        available = _with_unit(dimension, there)
        if there is None and dimension != "vram" and isinstance(vendor, str) and vendor != NVIDIA:
            available = f"none: {printable(vendor, 20)} GPUs have no CUDA"
        return UnmetRequirement(dimension, _with_unit(dimension, least), available)
    if dimension in ("gpu-model", "arch"):
        found = str(
            value(slot, "GPUs_DeviceName" if dimension == "gpu-model" else "Arch") or "unknown"
        )
        return UnmetRequirement(dimension, printable(clause), printable(found))
    values = []
    for name in names:
        plain = name.partition(".")[2] if name.upper().startswith("TARGET.") else name
        shown = value(slot, f"GPUs_{plain}" if gpu else plain)
        values.append(f"{plain}={'unknown' if shown is None else shown}")
    return UnmetRequirement(dimension, printable(clause), printable(", ".join(values) or "false"))


def bound(clause: str, job: Ad) -> tuple[str, float] | None:
    """Return attribute and least value of a clause such as ``Capability >= 7.0``; None for other clauses."""
    parts = _BOUND.fullmatch(clause)
    if not parts:
        return None
    least = evaluated_number(parts[3], job, classad2.ClassAd())
    return None if least is None else (parts[1], least)


def _with_unit(dimension: str, amount: float | None) -> str:
    if amount is None:
        return "unknown"
    if dimension == "vram":
        return f"{amount:.15g} MiB"
    if dimension == "driver" and amount >= 1000:
        return f"CUDA {int(amount) // 1000}.{int(amount) % 1000 // 10}"
    return f"{amount:.1f}"


_MAX_SPLIT_LENGTH = 20_000
_CLAUSE_TOKEN = re.compile(
    r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|&&|\|\||[()\[\]{}?]|[^"\'&|()\[\]{}?]+|.', re.DOTALL
)


def clauses(source_text: str) -> Iterator[str]:
    """Yield the parts of ``a && b && (c && d)``: a, b, c, d. A part that is no conjunction is left whole."""
    todo = [source_text]
    while todo:
        text = todo.pop().strip()
        parts = [""]
        depth = 0
        outside = []  # what is in no parentheses
        for token in _CLAUSE_TOKEN.findall(text) if len(text) <= _MAX_SPLIT_LENGTH else ():
            depth += (token in "([{") - (token in ")]}")
            outside += [token] if depth == 0 else []
            if depth == 0 and token == "&&":
                parts.append("")
            else:
                parts[-1] += token
        if text.startswith("(") and outside == [")"]:
            todo.append(text[1:-1])
        elif len(parts) == 1 or "||" in outside or "?" in outside:
            # weaker than && on either side: not a conjunction
            yield text
        else:
            todo += reversed(parts)


_ALLOCATION = re.compile(
    r"(start|requirements|rank|state|activity|name|machine|myaddress|startdipaddr|addressv1|entered.*|child.*|job.*|total.*"
    r"|my(currenttime|type)|lastheard.*|update.*|remote.*|client.*|.*loadavg|monitorself.*|recent.*|daemon.*|numdynamic.*"
    r"|claim.*|activation.*|expected.*|retirement.*|clock.*|.*idle|drone.*|cpus|memory|disk|gpus|availablegpus|assigned.*"
    r"|offline.*|draining.*|drain.*|within.*|authenticat.*|public.*|capability|.*domain|targettype|slotid|slottype.*"
    r"|condorscratchdir|collector_host_string|utsname.*|hardwareaddress|subnetmask|isowner|virtualmemory|numpids)",
    re.IGNORECASE,
)
_LONGEST_LEARNT = 2000


def received(slot: Ad) -> ReceivedSlot:
    """Return what a real slot ad shows about its drone type: hardware and software, not its present state."""
    learnt: dict[str, str] = {}
    gpus: list[Mapping[str, str]] = []
    for name in slot:
        text = source(slot, name)
        of_gpus = name.lower().startswith("gpus_")
        found = value(slot, name) if of_gpus else None
        if isinstance(found, classad2.ClassAd) and len(gpus) < _MOST_GPUS:
            gpus.append(
                {
                    key: source(found, key)
                    for key in found
                    if len(source(found, key)) <= _LONGEST_LEARNT
                }
            )
        elif isinstance(found, str | int | float):
            learnt[name] = text[:_LONGEST_LEARNT]
        elif not of_gpus and not _ALLOCATION.fullmatch(name) and len(text) <= _LONGEST_LEARNT:
            learnt[name] = text
    for name in ("Cpus", "Memory"):  # what is free of a disk is the node's, not the type's
        total = number(slot, f"TotalSlot{name}")
        if total is not None and total > 0:
            learnt[name] = f"{int(total)}"
    return ReceivedSlot(learnt, tuple(gpus))


def differences(kind: DroneType, got: ReceivedSlot) -> tuple[str, ...]:
    """Return a line for everything that arrived less than ordered."""
    ordered = template(kind)
    arrived = template(kind, got)
    lines = []
    for name, unit, slack in (
        ("GPUs", "", 1.0),
        ("GPUs_GlobalMemoryMb", " MiB", 0.95),
        ("GPUs_Capability", "", 1.0),
        ("Cpus", "", 1.0),
        ("Memory", " MiB", 0.95),
    ):
        wanted = number(ordered, name)
        there = number(arrived, name)
        if wanted and there is not None and there < wanted * slack:
            lines.append(
                f"drone type {kind.key}: ordered {name} {wanted:.15g}{unit}, received {there:.15g}{unit}"
            )
    wanted_model = value(ordered, "GPUs_DeviceName")
    model = value(arrived, "GPUs_DeviceName")
    if (
        isinstance(wanted_model, str)
        and isinstance(model, str)
        and canonical(wanted_model) != canonical(model)
    ):
        lines.append(
            f"drone type {kind.key}: ordered GPU {printable(wanted_model)}, received {printable(model)}"
        )
    return tuple(lines)
