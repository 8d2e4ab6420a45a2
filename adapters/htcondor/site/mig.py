"""Comparison of a pool's MIG instances with the layout in the site's file, by the GPU properties in slot ads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from adapters.htcondor import classads
from adapters.htcondor.classads import value
from adapters.htcondor.site.nodes import PoolMachine
from provisioner import mig
from provisioner.interfaces import AuditFinding
from provisioner.model import SitePolicy


def mig_gaps(machines: Sequence[PoolMachine], policy: SitePolicy) -> Iterator[AuditFinding]:
    """Yield nodes whose instances are not those of their layout.

    An ad has the memory of an instance and not its profile: profiles with the same memory are not
    told apart.
    """
    repair = f"run what `provisioner render mig --site {policy.site}` prints, or correct `mig`"
    for machine in machines:
        names = {machine.name, machine.name.partition(".")[0]}  # as in the rendered script
        entry = next(
            (e for e in policy.mig if any(fnmatchcase(name, n) for name in names for n in e.nodes)),
            None,
        )
        if entry is None or not machine.all.gpus:
            continue
        sizes_mib = [
            classads.number(device, "GlobalMemoryMb") or 0.0
            for slot in machine.slots
            for device in slot.gpus
            if "MIG-" in f"{value(device, 'DeviceUuid')} {value(device, 'Id')}".upper()
        ]
        wanted = Counter(map(mig.memory_gb, entry.layout))
        found = Counter(_nearest(size_mib, wanted) for size_mib in sizes_mib)
        gpus = len(sizes_mib) // len(entry.layout)
        if not sizes_mib:
            seen = f"{machine.all.gpus} GPUs, and no MIG instance in its slot ads"
        elif found != Counter({gb: n * gpus for gb, n in wanted.items()}):
            seen = "MIG instances of " + ", ".join(
                f"{size_mib:.0f} MiB" for size_mib in sorted(sizes_mib)[:16]
            )
        else:
            continue
        message = f"{seen}; `mig` promises {mig.counted(entry.layout)} of each {entry.gpu_model}: {repair}"
        yield AuditFinding(machine.name, "mig", message)


def _nearest(size_mib: float, wanted: Counter[int]) -> int:
    """Return the size in GB of these that an instance has; 0 if it has none. The driver keeps up to a tenth of it."""
    fitting = (gb for gb in wanted if 0.88 * gb <= size_mib / 1024 <= 1.02 * gb)
    return next(fitting, 0)
