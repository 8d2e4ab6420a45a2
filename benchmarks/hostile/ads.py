"""Job and slot ads as any user of a pool can write them, read by the HTCondor overlay's own adapter."""

from __future__ import annotations

from random import Random

import classad2

from adapters.htcondor.overlay.affiliation import Affiliation
from adapters.htcondor.overlay.job_classes import QueueWait, group, job_class
from adapters.htcondor.overlay.slots import slots_view
from provisioner.model import DroneId, JobClass, Slot

_NUMBERS = (
    "0",
    "1",
    "-1",
    "8",
    "0.2",
    "1e308",
    "1/0",
    "undefined",
    "error",
    '"text"',
    "2147483648",
    "9223372036854775807",
    "ifThenElse(random(2) > 0, 1, 1)",
    "MemoryUsage",
    "{1,2}",
    "[a=1]",
    "-9223372036854775808",
    'real("INF")',
    'real("NaN")',
)
_EXPRESSIONS = (
    "true",
    "false",
    "undefined",
    "error",
    "TARGET.Nothing >= 5",
    "GPUs_Capability >= 1e9",
    "my.Requirements",
)
_REQUESTS = (
    "RequestCpus",
    "RequestMemory",
    "RequestDisk",
    "RequestGPUs",
    "GpuMilli",
    "GpuDuty",
    "GpuWidth",
    "JobPrio",
    "AllowedJobDuration",
    "AllowedExecuteDuration",
    "MaxWallTimeMins",
    "GPUsMinMemory",
)
_SLOTS = (
    "Cpus",
    "Memory",
    "Disk",
    "GPUs",
    "JobStarts",
    "NumDynamicSlots",
    "NumDynamicSlotsTime",
    "LastHeardFrom",
    "MyCurrentTime",
    "EnteredCurrentState",
    "DroneRetiresAt",
    "DaemonStartTime",
    "GPUs_GlobalMemoryMb",
    "GPUs_Capability",
    "TotalSlotGPUs",
    "DroneShares",
    "SlotID",
)


def classes(rng: Random) -> tuple[JobClass, ...]:
    """Return the classes of up to four groups of jobs."""
    found = []
    for number in range(rng.randint(0, 4)):
        lines = [
            f"JobStatus={rng.choice((1, 1, 1, 2, 5))}",
            f"JobCount={rng.choice((1, 3, 40))}",
            f'JobIds="{number}.0"',
            f'Owner="{rng.choice(("mallory", "u1", "all"))}"',
            "QDate=1769999000",
            f"Requirements={rng.choice(_EXPRESSIONS)}",
        ]
        lines += [f"{name}={rng.choice(_NUMBERS)}" for name in _REQUESTS if rng.random() < 0.5]
        of = Affiliation("AccountingGroup", "")
        made = group(classad2.ClassAd(f"[{';'.join(lines)}]"), "schedd", of)
        if made is not None:
            found.append(
                job_class(
                    made.key, [made], rng.randint(0, 2), QueueWait(1769999000.0, 1769999000.0)
                )
            )
    return tuple(found)


def slots(rng: Random, drones: list[DroneId], controller: str) -> tuple[Slot, ...]:
    """Return the slots of ads that name these drones, as whoever holds a drone's token can forge them."""
    ads = []
    for number, drone_id in enumerate(drones):
        state = rng.choice(("Claimed", "Unclaimed", ""))
        lines = [
            f'DroneId="{drone_id}"',
            f'Name="slot{number}@x"',
            f'State="{state}"',
            f"Start={rng.choice(_EXPRESSIONS)}",
            "LastHeardFrom=1769999990",
        ]
        lines += [f"{name}={rng.choice(_NUMBERS)}" for name in _SLOTS if rng.random() < 0.6]
        ads.append(classad2.ClassAd(f"[{';'.join(lines)}]"))
    return slots_view(ads, controller, lambda at: at).slots
