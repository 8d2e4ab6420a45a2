"""Ads of a small site like those that a real startd and a real schedd send (23.9.6 and 25.14.1), as text."""

from __future__ import annotations

import classad2

from adapters.htcondor.classads import Ad

NOW = 1_795_262_424
A100 = ("A100-SXM4-40GB", 40326, 8.0)
V100S = ("Tesla V100S-PCIE-32GB", 32510, 7.0)
V100 = ("Tesla V100-SXM2-16GB", 16160, 7.0)


def pslot(
    machine: str = "topas-a100-1.etp.test",
    *,
    gpu: tuple[str, int, float] = A100,
    gpus: int = 8,
    others: tuple[tuple[str, int, float], ...] = (),
    cpus: int = 192,
    memory_mib: int = 1048576,
    disk_mib: int = 4_000_000,
    free: tuple[int, int, int] | None = None,
    start: str = "true",
    more: str = "",
) -> Ad:
    """A partitionable slot; ``free``: GPUs, CPUs and MiB left in it (the last GPUs of the list)."""
    devices = [gpu] * gpus + list(others)
    left = free or (len(devices), cpus, memory_mib)
    ids = [f"GPU-{at:08x}" for at in range(len(devices))]
    names = [f"GPUs_{each.replace('-', '_')}" for each in ids]
    lines = f"""
        MyType = "Machine"; Name = "slot1@{machine}"; Machine = "{machine}"; SlotType = "Partitionable";
        PartitionableSlot = true; State = "Unclaimed"; Activity = "Idle"; Arch = "X86_64"; OpSys = "LINUX";
        HasFileTransfer = true; CondorVersion = "$CondorVersion: 25.14.1 2026-10-16 PackageID: 25.14.1+dfsg-1 $";
        LastHeardFrom = {NOW}; MyCurrentTime = {NOW - 1}; TotalCpus = {cpus}.0; TotalSlotCpus = {cpus};
        TotalSlotMemory = {memory_mib}; TotalSlotDisk = {disk_mib * 1024}.0; Cpus = {left[1]}; Memory = {left[2]};
        Disk = {disk_mib * 1024}; Rank = 0.0; MaxJobRetirementTime = 0; MachineMaxVacateTime = 10 * 60; Start = {start}
    """.replace("\n", " ").split(";")
    if devices:
        lines += [
            f"TotalSlotGPUs = {len(devices)}",
            f"GPUs = {left[0]}",
            f'AssignedGPUs = "{",".join(ids)}"',
            f"AvailableGPUs = {{ {','.join(names[len(names) - left[0] :])} }}",
        ]
        lines += [
            f'{name} = [ Id = "{each}"; DeviceName = "{device}"; GlobalMemoryMb = {vram}; Capability = {capability}; ]'
            for name, each, (device, vram, capability) in zip(names, ids, devices, strict=True)
        ]
    return classad2.parseOne("\n".join([*lines, *more.splitlines()]), classad2.ParserType.Old)


def dynamic(
    machine: str, number: int, state: str = "Claimed", activity: str = "Busy", more: str = ""
) -> Ad:
    """A slot carved from the partitionable one. It repeats the machine's totals."""
    return classad2.parseOne(
        f'MyType = "Machine"\nName = "slot1_{number}@{machine}"\nMachine = "{machine}"\nSlotType = "Dynamic"\n'
        f'State = "{state}"\nActivity = "{activity}"\nCpus = 8\nMemory = 20480\nDisk = 1024\nGPUs = 1\n'
        f"TotalCpus = 192\nTotalSlotCpus = 8\nLastHeardFrom = {NOW}\nMyCurrentTime = {NOW - 1}\n"
        f"EnteredCurrentActivity = {NOW - 8}\n{more}",
        classad2.ParserType.Old,
    )


REQUIREMENTS = (
    '(TARGET.Arch == "X86_64") && (TARGET.OpSys == "LINUX") && (TARGET.Disk >= RequestDisk) && (TARGET.Memory >='
    " RequestMemory) && (TARGET.Cpus >= RequestCpus) && {gpus} && (TARGET.HasFileTransfer)"
)


def job(
    number: int,
    *,
    gpus: int = 1,
    cpus: int = 4,
    memory_mib: int = 8192,
    status: int = 1,
    universe: int = 5,
    at: int = NOW - 100,
    user: str = "student@etp.test",
    require_gpus: str = "",
    requirements: str = "",
    more: str = "",
) -> Ad:
    """A job as ``condor_submit`` writes it."""
    counted = "(countMatches(MY.RequireGPUs,TARGET.AvailableGPUs) >= RequestGPUs)"
    asks = counted if require_gpus else ("(TARGET.GPUs >= RequestGPUs)" if gpus else "true")
    lines = f"""
        MyType = "Job"; ClusterId = {number}; ProcId = 0; JobStatus = {status}; JobUniverse = {universe}; QDate = {at};
        User = "{user}"; RequestCpus = {cpus}; RequestMemory = {memory_mib}; RequestDisk = 1024
    """.replace("\n", " ").split(";")
    lines += [
        f"Requirements = {REQUIREMENTS.format(gpus=asks)}{' && ' + requirements if requirements else ''}"
    ]
    lines += [f"RequestGPUs = {gpus}"] if gpus else []
    lines += [f"RequireGPUs = {require_gpus}"] if require_gpus else []
    return classad2.parseOne("\n".join([*lines, *more.splitlines()]), classad2.ParserType.Old)
