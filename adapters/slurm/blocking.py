"""The site's side of blocking, as lines of slurm.conf and gres.conf: what free GPUs keep, and who makes room for whom.

Slurm keeps cores for GPUs, and can be made to count memory in cores; the rest of a reserve it cannot keep, and the text
says so. What is printed was tried with 22.05, 24.11 and 26.05.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from textwrap import wrap

from adapters.slurm.records import expand_hostlist
from adapters.slurm.settings import NodeHardware, SlurmSiteConfig
from provisioner.model import WHOLE_GPU, DroneType, Reserve, ReserveWhen, SitePolicy

CPU_PARTITION = "cpu-beside-gpus"
CPU_TIER, DRONE_TIER, OWNER_TIER = 1, 2, 10
TICK_S = 30
"""slurmctld looks so often whether a limit or a grace is over."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a node keeps, in Slurm's own terms."""

    cores_per_gpu: int
    memory_per_cpu_mib: int
    """At most so much for each CPU of CPU-only jobs, so that their memory ends with their CPUs; 0: no limit needed."""


def kept(reserve: Reserve, cpus: int, threads_per_core: int, memory_mib: int, gpus: int) -> Kept | None:
    """How a node of this size keeps a reserve for each of its GPUs; None if it has no room for that."""
    cores = -(-reserve.cpus // max(1, threads_per_core))
    left_cpus = cpus - gpus * cores * max(1, threads_per_core)
    left_mib = memory_mib - gpus * reserve.memory_mib
    if left_cpus < 0 or left_mib < left_cpus:
        return None
    return Kept(cores, left_mib // left_cpus if reserve.memory_mib and left_cpus else 0)


def render(policy: SitePolicy, types: Iterable[DroneType], config: SlurmSiteConfig) -> str:
    """Configuration text that enforces ``policy.blocking`` and the owner's priority; the same for the same policy."""
    kinds = tuple(types)
    lines = [*_head(policy)]
    if policy.blocking:
        lines += _blocking(policy, config)
        lines += _cannot(policy)
        lines += _uncovered(policy, kinds)
    else:
        lines += ["# ==== Blocking: the site's file has no `blocking`, so nothing is kept for free GPUs.", ""]
    lines += _preemption(policy, kinds, config)
    return "\n".join([*lines, "# ==== end", ""])


def _said(text: str, indent: str = "") -> list[str]:
    return [f"# {indent}{line}" for line in wrap(text, 114 - len(indent), break_on_hyphens=False)]


def _head(policy: SitePolicy) -> Iterator[str]:
    yield from _said(
        f"Blocking and preemption for drones at site {policy.site}: `provisioner render blocking --site {policy.site}`."
        " Do not edit: change the site's file and print it again."
    )
    yield from _said(
        "Each part says which file it is for and where it goes. A part for slurm.conf can be put into a file of its own"
        " and included there. Then, with all files on all nodes: scontrol reconfigure. (If daemons are restarted"
        " instead: slurmd on the nodes, and slurmctld AFTER them, as it takes from their first word how GPUs lie on"
        " cores.)"
        " `scontrol show node` then has to name cores, as in `RestrictedCoresPerGPU=4(0-7,38-45)`: with `(null)` in the"
        " brackets nothing is kept."
    )
    yield ""


# ----------------------------------------------------------------------------------------------------------- blocking


def _blocking(policy: SitePolicy, config: SlurmSiteConfig) -> Iterator[str]:
    yield "# ==== Blocking"
    yield "#"
    yield from _said("What is kept of every GPU that is free, from jobs that do not use it:")
    for reserve in policy.blocking:
        yield from _said(_told(reserve), "  ")
    yield "#"
    if not config.hardware:
        yield from _formulas(config)
        return
    for hardware in config.hardware:
        yield from _of_hardware(hardware, policy)
    yield from _said(
        "The partitions through which GPU jobs (drones too) come to these nodes need a higher PriorityTier than that"
        f" partition, {DRONE_TIER} or more: with equal tiers a GPU job that waits makes the scheduler keep the whole"
        " node, and none starts although its cores are free."
    )
    yield from _said(
        "Jobs without a GPU that come through one of those meet RestrictedCoresPerGPU there too, but no limit of"
        " memory: have such jobs refused there (job_submit), or give it the same MaxMemPerCPU; a GPU job that wants"
        " more memory per CPU is then given, and charged, more CPUs."
    )
    yield ""


def _told(reserve: Reserve) -> str:
    sizes = [
        *([f"{reserve.cpus} CPUs"] if reserve.cpus else []),
        *([f"{reserve.memory_mib} MiB of memory"] if reserve.memory_mib else []),
        *([f"{reserve.disk_mib} MiB of disk"] if reserve.disk_mib else []),
    ]
    return f"{' '.join(reserve.nodes)}: {', '.join(sizes) or 'nothing'}"


def _formulas(config: SlurmSiteConfig) -> Iterator[str]:
    yield from _said(
        "The lines follow from the size of the nodes, which the site's file does not tell: write it under"
        " `options.hardware` and print this again. By hand, for each kind of node:"
    )
    yield "#   RestrictedCoresPerGPU = CPUs kept per GPU / ThreadsPerCore, rounded up"
    yield "#   MaxMemPerCPU = (RealMemory - GPUs * MiB kept per GPU) / (CPUs - GPUs * CPUs kept per GPU), rounded down"
    yield ""


def reserve_of(names: Sequence[str], reserves: Sequence[Reserve]) -> Reserve | None:
    """The first reserve for these nodes, if it is the same for all of them."""
    found = [next((r for r in reserves if any(fnmatchcase(name, p) for p in r.nodes)), None) for name in names]
    return found[0] if found and all(each == found[0] for each in found) else None


def _of_hardware(hardware: NodeHardware, policy: SitePolicy) -> Iterator[str]:
    nodes, gpus = hardware.nodes, hardware.gpus
    try:
        reserve = reserve_of(expand_hostlist(nodes), policy.blocking)
    except ValueError as error:
        yield from _said(f"!! `hardware`: {error}: nothing is printed for these nodes.")
        return
    if reserve is None:
        yield from _said(f"!! {nodes}: `blocking` has not one entry for all of them: write a `hardware` for each.")
        yield "#"
        return
    asked = kept(reserve, hardware.cpus, hardware.threads_per_core, hardware.memory, gpus)
    if asked is None:
        yield from _said(
            f"!! {nodes}: {gpus} GPUs cannot keep {_told(reserve).partition(': ')[2]} each of {hardware.cpus} CPUs and"
            f" {hardware.memory} MiB: nothing is printed for these nodes."
        )
        yield "#"
        return
    if asked.cores_per_gpu:
        yield from _cores(hardware, asked)
    if asked.memory_per_cpu_mib:
        yield from _memory(hardware, reserve, asked)


def _cores(hardware: NodeHardware, asked: Kept) -> Iterator[str]:
    yield f"# ---- slurm.conf, before the NodeName lines of {hardware.nodes}"
    yield from _said(
        "(or add the words to each of these lines; another NodeName=DEFAULT line, with"
        " RestrictedCoresPerGPU=0, ends it). Slurm 24.05 or newer; older ones refuse the whole file."
    )
    yield f"NodeName=DEFAULT RestrictedCoresPerGPU={asked.cores_per_gpu}"
    yield ""
    yield f"# ---- gres.conf, in the place of the lines for {hardware.nodes}"
    yield from _said(
        "Cores= has to be there, and on the boundaries of sockets: with GPUs bound to parts of a socket, as"
        " AutoDetect=nvml may find them, slurmctld 24.11 CRASHED at the first such job. Try it on a test system first;"
        " check the device files."
    )
    name, _, model = hardware.gres.partition(":")
    kind = f" Type={model}" if model else ""
    for first, last, low, high in _by_socket(hardware):
        files = f"/dev/nvidia{first}" if first == last else f"/dev/nvidia[{first}-{last}]"
        yield f"NodeName={hardware.nodes} Name={name}{kind} File={files} Cores={low}-{high}"
    yield ""


def _by_socket(hardware: NodeHardware) -> Iterator[tuple[int, int, int, int]]:
    """First and last GPU, first and last core: GPUs spread evenly over the sockets, or all of them over all."""
    sockets, cores = hardware.sockets, hardware.cores_per_socket
    if hardware.gpus % sockets:
        yield 0, hardware.gpus - 1, 0, sockets * cores - 1
        return
    each = hardware.gpus // sockets
    for socket in range(sockets):
        yield socket * each, (socket + 1) * each - 1, socket * cores, (socket + 1) * cores - 1


def _memory(hardware: NodeHardware, reserve: Reserve, asked: Kept) -> Iterator[str]:
    total_mib = hardware.memory - hardware.gpus * reserve.memory_mib
    yield f"# ---- slurm.conf, after the NodeName lines of {hardware.nodes}"
    yield from _said(
        "The partition for CPU-only jobs on these nodes; if you have one, add the last three words to its line. A job"
        f" that asks for more than {asked.memory_per_cpu_mib} MiB per CPU is given more CPUs, so CPU-only jobs run out"
        f" of CPUs before they have more than {total_mib} MiB of a node."
    )
    name = f"{CPU_PARTITION}-{hardware.gres.partition(':')[2]}".rstrip("-")
    yield (
        f"PartitionName={name} Nodes={hardware.nodes} State=UP PriorityTier={CPU_TIER}"
        f" PreemptMode=OFF MaxMemPerCPU={asked.memory_per_cpu_mib}"
    )
    yield ""


def _cannot(policy: SitePolicy) -> Iterator[str]:
    """What an admin would otherwise believe to be kept."""
    yield "# ==== What Slurm cannot do"
    yield "#"
    yield from _said(
        "- Memory per free GPU, as such: there is nothing like RestrictedCoresPerGPU for it. MaxMemPerCPU holds for the"
        " partition that has it, and for no other."
    )
    yield from _said(
        "- In 22.05 there is no RestrictedCoresPerGPU, and MaxMemPerCPU leaks: CPU-only jobs of much memory took all"
        " of a node in spite of it. MaxCPUsPerNode on the CPU partition (CPUs less what all GPUs keep) keeps the CPUs."
    )
    yield from _said(
        "- The CPUs are kept while the GPU is free, whichever it is; MaxMemPerCPU is the same whether GPUs are free or"
        " not."
    )
    if any(reserve.disk_mib for reserve in policy.blocking):
        yield from _said("- Disk: Slurm does not give it out (TmpDisk is compared, and never counted down). Not kept.")
    if any(reserve.when is ReserveWhen.GPU_DEMAND for reserve in policy.blocking):
        yield from _said(
            "- `when: gpu-demand`: these lines do not know whether GPU work waits. CPU drones that the provisioner asks"
            " for then wait in the queue: write `when: always`."
        )
    yield ""


def _uncovered(policy: SitePolicy, types: Sequence[DroneType]) -> Iterator[str]:
    """Drone types that no reserve covers: said where the admin reads."""
    for kind in types:
        gpus = -(-kind.gpu_milli // WHOLE_GPU)
        for what, asked, most in (
            ("CPUs", kind.cpus, max((r.cpus for r in policy.blocking), default=0)),
            ("MiB of memory", kind.memory_mib, max((r.memory_mib for r in policy.blocking), default=0)),
        ):
            if gpus and 0 < most * gpus < asked:
                yield from _said(
                    f"Drone type {kind.name} takes {asked / gpus:g} {what} per GPU and no reserve keeps that much"
                    f" ({most} at most): once CPU work has filled the rest of a node, its last free GPUs get no such"
                    " drone."
                )


# --------------------------------------------------------------------------------------------------------- preemption


def _preemption(policy: SitePolicy, types: Sequence[DroneType], config: SlurmSiteConfig) -> Iterator[str]:
    yield "# ==== Owner's priority"
    yield "#"
    if config.owner is None:
        yield from _said("The site's file names no owner (`options.owner`): drones are jobs like any others.")
        return
    grace_s = round(policy.grace_s)
    drones = dict.fromkeys(n for kind in types for n in config.where(kind.name).partition.split(",") if n)
    shared = [name for name in drones if name in config.owner.partitions]
    if shared:
        yield from _said(
            f"!! Drones go to the owner's own partition ({', '.join(shared)}): by partitions Slurm cannot tell who"
            " makes room. Give drones one of their own on the same nodes, or use PreemptType=preempt/qos with a QOS for"
            " drones that the owner's may preempt (sacctmgr: GraceTime and PreemptMode=cancel on it)."
        )
        return
    yield "# ---- slurm.conf"
    yield "PreemptType=preempt/partition_prio"
    yield "PreemptMode=CANCEL"
    yield from _said("Without it nothing is lost: the drone itself is a job step, and steps are told at once.")
    yield "PreemptParameters=send_user_signal"
    yield "#"
    yield from _said(
        f"On the PartitionName lines of {', '.join(config.owner.partitions)} (the owner):"
        f" PriorityTier={OWNER_TIER} PreemptMode=OFF"
    )
    yield from _said(
        f"On those of {', '.join(drones) or 'the drones'} (drones): PriorityTier={DRONE_TIER} PreemptMode=CANCEL"
        f" GraceTime={grace_s}"
    )
    yield from _said(
        f"SIGTERM then comes at once, the end {grace_s} s later and up to {TICK_S} s on top of that, as slurmctld looks"
        f" every {TICK_S} s; SIGKILL after KillWait more."
    )
