"""Blocking and preemption: lines for slurm.conf and gres.conf, and the audit of the running configuration.

Slurm keeps cores for GPUs, and can be made to count memory in cores; it cannot keep the rest of a reserve, and the
printed text says so. The printed lines were tried with 22.05, 24.11 and 26.05. The audit submits nothing: it reads
nodes, partitions and slurm.conf as slurmctld reports them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from textwrap import wrap

from adapters.shared.printing import printable
from adapters.slurm.capacity import MISMATCH_DIMENSIONS, SlurmDroneType, resolve_types
from adapters.slurm.records import Partition, SlurmNode, expand_hostlist
from adapters.slurm.settings import LIMIT_CHECK_INTERVAL_S, SlurmNodeHardware, SlurmSiteConfig
from provisioner.interfaces import AuditFinding
from provisioner.model import WHOLE_GPU, DroneType, Reserve, ReserveWhen, SitePolicy

CPU_PARTITION = "cpu-beside-gpus"
CPU_TIER, DRONE_TIER, OWNER_TIER = 1, 2, 10


@dataclass(frozen=True, slots=True)
class ReserveLimits:
    """Resources that a node reserves for its GPUs, in Slurm's terms."""

    cores_per_gpu: int
    memory_per_cpu_mib: int
    """MaxMemPerCPU of CPU-only jobs, so that their memory ends with their CPUs; 0 if no limit is needed."""


def reserve_limits(
    reserve: Reserve, cpus: int, threads_per_core: int, memory_mib: int, gpus: int
) -> ReserveLimits | None:
    """Return how a node of this size keeps a reserve for each of its GPUs; None if it is too small."""
    cores = -(-reserve.cpus // max(1, threads_per_core))
    left_cpus = cpus - gpus * cores * max(1, threads_per_core)
    left_mib = memory_mib - gpus * reserve.memory_mib
    if left_cpus < 0 or left_mib < left_cpus:
        return None
    return ReserveLimits(cores, left_mib // left_cpus if reserve.memory_mib and left_cpus else 0)


def render_blocking(policy: SitePolicy, types: Iterable[DroneType], config: SlurmSiteConfig) -> str:
    """Return configuration that enforces ``policy.blocking`` and the owner's priority; equal for equal policies."""
    all_types = tuple(types)
    lines = _comment(
        f"Blocking and preemption for drones at site {policy.site}: `provisioner render blocking --site {policy.site}`."
        " Do not edit: change the site's file and print it again.",
        "Each part says which file it is for and where it goes. A part for slurm.conf can be put into a file of its own"
        " and included there. Then, with all files on all nodes: scontrol reconfigure. (If daemons are restarted"
        " instead: slurmd on the nodes, and slurmctld AFTER them, as it takes from their first word how GPUs lie on"
        " cores.)"
        " `scontrol show node` then has to name cores, as in `RestrictedCoresPerGPU=4(0-7,38-45)`: with `(null)` in the"
        " brackets nothing is kept.",
    )
    lines.append("")
    if policy.blocking:
        lines += _blocking(policy, config)
        lines += _limitations(policy)
        lines += _uncovered_types(policy, all_types)
    else:
        lines += ["# ==== Blocking: the site's file has no `blocking`, so nothing is kept for free GPUs.", ""]
    lines += _preemption(policy, all_types, config)
    return "\n".join([*lines, "# ==== end", ""])


def _comment(*paragraphs: str, indent: str = "") -> list[str]:
    lines = [line for text in paragraphs for line in wrap(text, 114 - len(indent), break_on_hyphens=False)]
    return [f"# {indent}{line}" for line in lines]


# ----------------------------------------------------------------------------------------------------------- blocking


def _blocking(policy: SitePolicy, config: SlurmSiteConfig) -> Iterator[str]:
    yield from ("# ==== Blocking", "#")
    yield from _comment("What is kept of every GPU that is free, from jobs that do not use it:")
    yield from _comment(*(f"{' '.join(each.nodes)}: {_amounts(each)}" for each in policy.blocking), indent="  ")
    yield "#"
    if not config.hardware:
        yield from _comment(
            "The lines follow from the size of the nodes, which the site's file does not tell: write it under"
            " `options.hardware` and print this again. By hand, for each kind of node:"
        )
        yield "#   RestrictedCoresPerGPU = CPUs kept per GPU / ThreadsPerCore, rounded up"
        memory = "(RealMemory - GPUs * MiB kept per GPU) / (CPUs - GPUs * CPUs kept per GPU)"
        yield f"#   MaxMemPerCPU = {memory}, rounded down"
        yield ""
        return
    for hardware in config.hardware:
        yield from _hardware_lines(hardware, policy)
    yield from _comment(
        "The partitions through which GPU jobs (drones too) come to these nodes need a higher PriorityTier than that"
        f" partition, {DRONE_TIER} or more: with equal tiers a GPU job that waits makes the scheduler keep the whole"
        " node, and none starts although its cores are free.",
        "Jobs without a GPU that come through one of those meet RestrictedCoresPerGPU there too, but no limit of"
        " memory: have such jobs refused there (job_submit), or give it the same MaxMemPerCPU; a GPU job that wants"
        " more memory per CPU is then given, and charged, more CPUs.",
    )
    yield ""


def _amounts(reserve: Reserve) -> str:
    amounts = {"CPUs": reserve.cpus, "MiB of memory": reserve.memory_mib, "MiB of disk": reserve.disk_mib}
    return ", ".join(f"{amount} {unit}" for unit, amount in amounts.items() if amount) or "nothing"


def reserve_of(names: Sequence[str], reserves: Sequence[Reserve]) -> Reserve | None:
    """Return the first reserve for these nodes, if it is the same for all of them."""
    found = [next((r for r in reserves if any(fnmatchcase(name, p) for p in r.nodes)), None) for name in names]
    return found[0] if found and all(each == found[0] for each in found) else None


def _hardware_lines(hardware: SlurmNodeHardware, policy: SitePolicy) -> Iterator[str]:
    nodes, gpus = hardware.nodes, hardware.gpus
    try:
        reserve = reserve_of(expand_hostlist(nodes), policy.blocking)
    except ValueError as error:
        yield from _comment(f"!! `hardware`: {error}: nothing is printed for these nodes.")
        return
    if reserve is None:
        yield from _comment(f"!! {nodes}: `blocking` has not one entry for all of them: write a `hardware` for each.")
        yield "#"
        return
    limits = reserve_limits(reserve, hardware.cpus, hardware.threads_per_core, hardware.memory, gpus)
    if limits is None:
        yield from _comment(
            f"!! {nodes}: {gpus} GPUs cannot keep {_amounts(reserve)} each of {hardware.cpus} CPUs and"
            f" {hardware.memory} MiB: nothing is printed for these nodes."
        )
        yield "#"
        return
    if limits.cores_per_gpu:
        yield from _cores(hardware, limits)
    if limits.memory_per_cpu_mib:
        yield from _memory(hardware, reserve, limits)


def _cores(hardware: SlurmNodeHardware, limits: ReserveLimits) -> Iterator[str]:
    yield f"# ---- slurm.conf, before the NodeName lines of {hardware.nodes}"
    yield from _comment(
        "(or add the words to each of these lines; another NodeName=DEFAULT line, with"
        " RestrictedCoresPerGPU=0, ends it). Slurm 24.05 or newer; older ones refuse the whole file."
    )
    yield f"NodeName=DEFAULT RestrictedCoresPerGPU={limits.cores_per_gpu}"
    yield ""
    yield f"# ---- gres.conf, in the place of the lines for {hardware.nodes}"
    yield from _comment(
        "Cores= has to be there, and on the boundaries of sockets: with GPUs bound to parts of a socket, as"
        " AutoDetect=nvml may find them, slurmctld 24.11 CRASHED at the first such job. Try it on a test system first;"
        " check the device files."
    )
    name, _, model = hardware.gres.partition(":")
    kind = f" Type={model}" if model else ""
    # GPUs spread evenly over the sockets, or all over all.
    groups = 1 if hardware.gpus % hardware.sockets else hardware.sockets
    gpus, cores = hardware.gpus // groups, hardware.sockets * hardware.cores_per_socket // groups
    for group in range(groups):
        first, last = group * gpus, (group + 1) * gpus - 1
        files = f"/dev/nvidia{first}" if first == last else f"/dev/nvidia[{first}-{last}]"
        where = f"File={files} Cores={group * cores}-{(group + 1) * cores - 1}"
        yield f"NodeName={hardware.nodes} Name={name}{kind} {where}"
    yield ""


def _memory(hardware: SlurmNodeHardware, reserve: Reserve, limits: ReserveLimits) -> Iterator[str]:
    total_mib = hardware.memory - hardware.gpus * reserve.memory_mib
    yield f"# ---- slurm.conf, after the NodeName lines of {hardware.nodes}"
    yield from _comment(
        "The partition for CPU-only jobs on these nodes; if you have one, add the last three words to its line. A job"
        f" that asks for more than {limits.memory_per_cpu_mib} MiB per CPU is given more CPUs, so CPU-only jobs run out"
        f" of CPUs before they have more than {total_mib} MiB of a node."
    )
    name = f"{CPU_PARTITION}-{hardware.gres.partition(':')[2]}".rstrip("-")
    yield (
        f"PartitionName={name} Nodes={hardware.nodes} State=UP PriorityTier={CPU_TIER}"
        f" PreemptMode=OFF MaxMemPerCPU={limits.memory_per_cpu_mib}"
    )
    yield ""


def _limitations(policy: SitePolicy) -> Iterator[str]:
    """Yield what an administrator would otherwise believe to be kept."""
    yield from ("# ==== What Slurm cannot do", "#")
    yield from _comment(
        "- Memory per free GPU, as such: there is nothing like RestrictedCoresPerGPU for it. MaxMemPerCPU holds for the"
        " partition that has it, and for no other.",
        "- In 22.05 there is no RestrictedCoresPerGPU, and MaxMemPerCPU leaks: CPU-only jobs of much memory took all"
        " of a node in spite of it. MaxCPUsPerNode on the CPU partition (CPUs less what all GPUs keep) keeps the CPUs.",
        "- The CPUs are kept while the GPU is free, whichever it is; MaxMemPerCPU is the same whether GPUs are free or"
        " not.",
    )
    if any(reserve.disk_mib for reserve in policy.blocking):
        yield from _comment(
            "- Disk: Slurm does not give it out (TmpDisk is compared, and never counted down). Not kept."
        )
    if any(reserve.when is ReserveWhen.GPU_DEMAND for reserve in policy.blocking):
        yield from _comment(
            "- `when: gpu-demand`: these lines do not know whether GPU work waits. CPU drones that the provisioner asks"
            " for then wait in the queue: write `when: always`."
        )
    yield ""


def _uncovered_types(policy: SitePolicy, types: Sequence[DroneType]) -> Iterator[str]:
    """Yield drone types that no reserve covers."""
    most_cpus = max(reserve.cpus for reserve in policy.blocking)
    most_mib = max(reserve.memory_mib for reserve in policy.blocking)
    for kind in types:
        gpus = -(-kind.gpu_milli // WHOLE_GPU)
        for what, asked, most in (("CPUs", kind.cpus, most_cpus), ("MiB of memory", kind.memory_mib, most_mib)):
            if gpus and 0 < most * gpus < asked:
                yield from _comment(
                    f"Drone type {kind.name} takes {asked / gpus:g} {what} per GPU and no reserve keeps that much"
                    f" ({most} at most): once CPU work has filled the rest of a node, its last free GPUs get no such"
                    " drone."
                )


# --------------------------------------------------------------------------------------------------------- preemption


def _preemption(policy: SitePolicy, types: Sequence[DroneType], config: SlurmSiteConfig) -> Iterator[str]:
    yield from ("# ==== Owner's priority", "#")
    if config.owner is None:
        yield from _comment("The site's file names no owner (`options.owner`): drones are jobs like any others.")
        return
    grace_s = round(policy.grace_s)
    drones = dict.fromkeys(n for kind in types for n in config.options_for(kind.name).partition.split(",") if n)
    shared = [name for name in drones if name in config.owner.partitions]
    if shared:
        yield from _comment(
            f"!! Drones use the owner's own partition ({', '.join(shared)}): by partitions Slurm cannot tell who"
            " makes room. Give drones one of their own on the same nodes, or use PreemptType=preempt/qos with a QOS for"
            " drones that the owner's may preempt (sacctmgr: GraceTime and PreemptMode=cancel on it)."
        )
        return
    yield from ("# ---- slurm.conf", "PreemptType=preempt/partition_prio", "PreemptMode=CANCEL")
    yield from _comment("Without it nothing is lost: the drone itself is a job step, and steps get the signal at once.")
    yield from ("PreemptParameters=send_user_signal", "#")
    yield from _comment(
        f"On the PartitionName lines of {', '.join(config.owner.partitions)} (the owner):"
        f" PriorityTier={OWNER_TIER} PreemptMode=OFF",
        f"On those of {', '.join(drones) or 'the drones'} (drones): PriorityTier={DRONE_TIER} PreemptMode=CANCEL"
        f" GraceTime={grace_s}",
        f"SIGTERM then comes at once, the end {grace_s} s later and up to {LIMIT_CHECK_INTERVAL_S} s on top of that, as"
        f" slurmctld checks every {LIMIT_CHECK_INTERVAL_S} s; SIGKILL after KillWait more.",
    )


# --------------------------------------------------------------------------------------------------------------- audit

_SECONDS_SETTING = re.compile(r"(\d+)(?:\s*sec(?:onds)?)?")


class SlurmAudit:
    """Comparison of the running configuration with the policy and the drone types of the site.

    ``configuration``: see :meth:`adapters.slurm.records.SlurmClient.configuration`; missing settings are not checked.
    """

    def __init__(
        self,
        nodes: Sequence[SlurmNode],
        partitions: Sequence[Partition],
        configuration: Mapping[str, str],
        policy: SitePolicy,
        types: Sequence[DroneType],
        config: SlurmSiteConfig,
    ) -> None:
        self.nodes, self.partitions, self.configuration = nodes, partitions, configuration
        self.policy, self.types, self.config = policy, resolve_types(types, partitions, config), config

    def gaps(self) -> tuple[AuditFinding, ...]:
        """Return where the running configuration does not do what the policy and the drone types say."""
        types = [kind for kind in self.types if kind.partitions]  # _partition_gaps reports the others
        of_types = [gap for kind in types for gap in self._type_gaps(kind)]
        rest = (*self._blocking_gaps(), *self._grace_gaps(), *self._job_age_gaps())
        return (*self._partition_gaps(), *of_types, *rest)

    def _partition_gaps(self) -> Iterator[AuditFinding]:
        known = {each.name: each for each in self.partitions}
        for name in dict.fromkeys(name for kind in self.types for name in kind.options.partition.split(",") if name):
            if name not in known:
                problem = f"no such partition (there are: {_names(sorted(known))}); correct `options.partition`"
                yield AuditFinding(name, "partition", problem)
            elif not known[name].up:
                problem = "the partition is down: drones wait in it until its admin sets it up again"
                yield AuditFinding(name, "partition", problem)

    def _type_gaps(self, kind: SlurmDroneType) -> Iterator[AuditFinding]:
        label, where = f"drone type {kind.type.name}", kind.options.partition or "default"
        up = [each for each in kind.partitions if each.up]
        if up and not any(map(kind.admitted_by, up)):
            most_s = max(each.max_s for each in up)
            yield AuditFinding(
                ",".join(each.name for each in up),
                "walltime",
                f"{label} lives {kind.type.walltime_s:.0f} s and MaxTime is {most_s:.0f} s: it would wait forever or be"
                f" rejected; write `walltime: {most_s / 3600:g}h` at most",
            )
        tried = [(node, kind.mismatch(node)) for node in self.nodes if node.state != "FUTURE"]
        hosts = [node for node, why in tried if why is None]
        if failed := [(node, why) for node, why in tried if why is not None and not hosts]:
            node, why = max(failed, key=lambda pair: MISMATCH_DIMENSIONS.index(pair[1].dimension))
            nearest = f"Nearest is {node.name}: {why.dimension} requested {why.requested}, available {why.available}"
            yield AuditFinding(where, "types", f"{label}: no node could host one. {printable(nearest, 300)}")
        if mixed := [node.name for node in hosts if kind.gpus and self._hosts_other_gpus(node, kind)]:
            yield AuditFinding(
                _names(mixed),
                "gpus",
                f"{label} shares nodes with a type that needs other GPUs of them: such a node is planned with one type"
                " of GPU at a time, that of which most is free",
            )
        if "exclusive" in kind.options.submit and any(kind.gpus < sum(node.gpus.values()) for node in hosts):
            yield AuditFinding(
                where,
                "exclusive",
                f"{label} takes whole nodes (`submit.exclusive`) and is smaller than they are: the rest stays idle;"
                " make it as large as the node",
            )

    def _hosts_other_gpus(self, node: SlurmNode, kind: SlurmDroneType) -> bool:
        own = kind.gpu_types(node)
        others = [each for each in self.types if each.gpus and each.mismatch(node) is None]
        return any(own.isdisjoint(each.gpu_types(node)) for each in others)

    # -------------------------------------------------------------------------------------------------------- blocking

    def _blocking_gaps(self) -> Iterator[AuditFinding]:
        known = {each.name: each for each in self.partitions}
        for node in self.nodes:
            hosted = [kind for kind in self.types if kind.mismatch(node) is None]
            if not any(node.gpus.values()) or not any(kind.gpus for kind in hosted):
                continue
            reserve = reserve_of([node.name], self.policy.blocking)
            if reserve is not None:
                through = [known[name] for name in node.partitions if name in known and known[name].up]
                yield from self._reserve_gaps(node, reserve, through)
            elif node.restricted_cores_per_gpu and any(not kind.gpus for kind in hosted):
                yield AuditFinding(
                    node.name,
                    "cpus",
                    f"the node keeps {node.restricted_cores_per_gpu} cores per free GPU (RestrictedCoresPerGPU) and"
                    " `blocking` does not say so: CPU drones would be asked for and wait; write the same into"
                    " `blocking`",
                )
        for pattern in dict.fromkeys(p for reserve in self.policy.blocking for p in reserve.nodes):
            if not any(fnmatchcase(node.name, pattern) for node in self.nodes):
                there = _names([node.name for node in self.nodes if node.gpus], 3)
                problem = f"no node has such a name (there are: {there}); correct `blocking.nodes`"
                yield AuditFinding(pattern, "nodes", problem)

    def _reserve_gaps(self, node: SlurmNode, reserve: Reserve, through: Sequence[Partition]) -> Iterator[AuditFinding]:
        """Compare what jobs without GPU can get through each partition while all GPUs of the node are free.

        Their memory ends with their CPUs, where the partition limits it per CPU.
        """
        gpus, threads = sum(node.gpus.values()), node.threads_per_core or 1
        limits = reserve_limits(reserve, node.cpus, threads, node.memory_mib, gpus)
        if limits is None:
            yield AuditFinding(
                node.name,
                "cpus" if gpus * reserve.cpus >= node.cpus else "memory",
                f"{gpus} GPUs cannot keep {reserve.cpus} CPUs and {reserve.memory_mib} MiB each of {node.cpus} CPUs and"
                f" {node.memory_mib} MiB: write less into `blocking` for it",
            )
            return
        repair = f"`provisioner render blocking --site {self.policy.site}` prints what can be done"
        if self.config.transport == "native":
            repair += " (but pyslurm does not tell RestrictedCoresPerGPU: see `scontrol show node` first)"
        kept_cpus, kept_mib = {}, {}
        for each in through:
            by_partition = node.cpus - each.max_cpus_per_node if each.max_cpus_per_node else 0
            kept = max(gpus * node.restricted_cores_per_gpu * threads, by_partition, 0)
            per_cpu_mib = each.max_memory_per_cpu_mib
            kept_cpus[each.name] = kept
            kept_mib[each.name] = max(0, node.memory_mib - (node.cpus - kept) * per_cpu_mib) if per_cpu_mib else 0
        if reserve.cpus and (loose := [name for name, kept in kept_cpus.items() if kept < gpus * reserve.cpus]):
            yield AuditFinding(
                node.name,
                "cpus",
                f"{gpus} free GPUs keep {min(kept_cpus.values())} of {node.cpus} CPUs, requested"
                f" {gpus * reserve.cpus}: jobs without GPU may have the rest through {_names(loose)}; {repair}",
            )
        requested = gpus * reserve.memory_mib
        if loose := [name for name, kept in kept_mib.items() if kept < requested]:
            yield AuditFinding(
                node.name,
                "memory",
                f"{gpus} free GPUs keep {min(kept_mib.values())} of {node.memory_mib} MiB, requested {requested}: jobs"
                f" without GPU may have the rest through {_names(loose)} (MaxMemPerCPU={limits.memory_per_cpu_mib}"
                f" there would keep it); {repair}",
            )
        if reserve.disk_mib:
            problem = "Slurm keeps no disk: leave `disk` out of `blocking`, or live with it"
            yield AuditFinding(node.name, "disk", problem)

    # ----------------------------------------------------------------------------------------------------------- grace

    def _grace_gaps(self) -> Iterator[AuditFinding]:
        grace_s, kill_wait_s = self.policy.grace_s, parse_seconds(self.configuration.get("KillWait", ""))
        promised = f"`timeouts.grace` is {grace_s:.0f} s: drones would promise their jobs time that they do not have"
        if kill_wait_s is not None and kill_wait_s < grace_s:
            yield AuditFinding(
                "slurm.conf",
                "grace",
                f"a drone that is asked to leave is killed {kill_wait_s} s after SIGTERM (KillWait), {promised}; write"
                f" `grace: {kill_wait_s}s`, or have KillWait raised",
            )
        by_qos = "qos" in self.configuration.get("PreemptType", "")
        is_reported = bool(self.configuration.get("PreemptType") or self.configuration.get("PreemptMode"))
        for each in {each.name: each for kind in self.types for each in kind.partitions}.values():
            mode = preempt_mode(each, self.partitions, self.configuration)
            if mode == "" and self.config.owner is not None and is_reported and not by_qos:
                yield AuditFinding(
                    each.name,
                    "preemption",
                    "Slurm takes no drone's place in this partition for the owner: their jobs wait until drones have"
                    f" been asked to leave; `provisioner render blocking --site {self.policy.site}` prints how it"
                    " would",
                )
            if mode in ("SUSPEND", "GANG"):
                yield AuditFinding(
                    each.name,
                    "preemption",
                    f"a preempted drone is suspended (PreemptMode={each.preempt_mode or mode}): its jobs stand still"
                    " and its pool takes it for dead; have PreemptMode=CANCEL set for the partition",
                )
            got_s = each.grace_s + (kill_wait_s or 0)
            if mode in ("CANCEL", "REQUEUE") and kill_wait_s is not None and got_s < grace_s and not by_qos:
                yield AuditFinding(
                    each.name,
                    "grace",
                    f"a preempted drone is killed {got_s:.0f} s after SIGTERM, up to {LIMIT_CHECK_INTERVAL_S} s more"
                    f" (GraceTime {each.grace_s:.0f} s, KillWait {kill_wait_s} s), {promised}",
                )

    def _job_age_gaps(self) -> Iterator[AuditFinding]:
        age_s, max_age_s = parse_seconds(self.configuration.get("MinJobAge", "")), self.policy.view_max_age_s
        kept_in = self.configuration.get("AccountingStorageType")
        without = kept_in is not None and ("none" in kept_in or kept_in in ("", "(null)"))
        if age_s is not None and age_s < max_age_s and (without or self.config.accounting is False):
            yield AuditFinding(
                "slurm.conf",
                "ends",
                f"slurmctld forgets a job {age_s} s after its end (MinJobAge), a poll may be {max_age_s:.0f} s old and"
                " there is no accounting to ask: how a drone ended may never be known; have MinJobAge raised to its"
                " default, 300",
            )


def _names(names: Sequence[str], most: int = 4) -> str:
    return printable(", ".join(names[:most]) + (", ..." if len(names) > most else "")) or "none"


def preempt_mode(partition: Partition, partitions: Sequence[Partition], configuration: Mapping[str, str]) -> str:
    """Return what preemption by partition does to the jobs of one: ``CANCEL``, ``REQUEUE``, ...; "" if nothing.

    Preemption by QOS cannot be seen here.
    """
    if "partition_prio" not in configuration.get("PreemptType", ""):
        return ""
    higher = any(each.tier > partition.tier and set(each.nodes) & set(partition.nodes) for each in partitions)
    modes_text = (partition.preempt_mode or configuration.get("PreemptMode", "")).upper()
    modes = [mode for mode in re.split(r"[,\s]+", modes_text) if mode not in ("", "OFF", "(NULL)")]
    if not higher or not modes:
        return ""
    return next((mode for mode in modes if mode != "GANG"), "GANG")


def parse_seconds(text: str) -> int | None:
    """Return ``30 sec``, as ``scontrol show config`` prints it, in seconds; None for anything else."""
    found = _SECONDS_SETTING.fullmatch(text.strip())
    return int(found[1]) if found else None
