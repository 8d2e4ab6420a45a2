"""Blocking and preemption: lines for slurm.conf and gres.conf, and the audit of the running configuration.

Slurm keeps cores for GPUs, and can be made to count memory in cores; it cannot keep the rest of a
reserve, and the printed text says so. The printed lines were tried with 22.05, 24.11 and 26.05. The
audit submits nothing: it reads nodes, partitions and slurm.conf as slurmctld reports them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from textwrap import wrap
from typing import NamedTuple

from adapters.shared.printing import printable
from adapters.slurm.capacity import MISMATCH_DIMENSIONS, SlurmDroneType
from adapters.slurm.records import Partition, SlurmNode, expand_hostlist
from adapters.slurm.settings import LIMIT_CHECK_INTERVAL_S, SlurmNodeHardware, SlurmSiteConfig
from provisioner.interfaces import AuditFinding
from provisioner.model import DroneType, Reserve, SitePolicy
from provisioner.values import frozen

CPU_PARTITION = "cpu-beside-gpus"
CPU_TIER = 1
DRONE_TIER = 2
OWNER_TIER = 10


class ReserveLimits(NamedTuple):
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


def reserve_of(names: Sequence[str], reserves: Sequence[Reserve]) -> Reserve | None:
    """Return the first reserve for these nodes, if it is the same for all of them."""
    found = [
        next((r for r in reserves if any(fnmatchcase(name, p) for p in r.nodes)), None)
        for name in names
    ]
    return found[0] if found and all(each == found[0] for each in found) else None


# --------------------------------------------------------------------------------------------------------------
# render


def render_blocking(policy: SitePolicy, types: Iterable[DroneType], config: SlurmSiteConfig) -> str:
    """Return configuration that enforces ``policy.blocking`` and the owner's priority."""
    lines = _comment(
        f"Blocking and preemption for drones at site {policy.site}: `provisioner render blocking --site {policy.site}`."
        " Do not edit: change the site's file and print it again.",
        "Put each part where its heading says, with all files on all nodes, and run: scontrol reconfigure. (If daemons"
        " are restarted instead: slurmd on the nodes, and slurmctld AFTER them, as it takes from their first word how"
        " GPUs lie on cores.) `scontrol show node` then has to name cores, as in"
        " `RestrictedCoresPerGPU=4(0-7,38-45)`: with `(null)` in the brackets nothing is kept.",
    )
    if policy.blocking:
        lines += ["", *_blocking(policy, config), *_limitations(policy)]
    else:
        lines += [
            "",
            "# ==== Blocking: the site's file has no `blocking`, so nothing is kept for free GPUs.",
            "",
        ]
    lines += _preemption(policy, types, config)
    return "\n".join([*lines, "# ==== end", ""])


def _comment(*paragraphs: str, indent: str = "") -> list[str]:
    lines = [
        line
        for text in paragraphs
        for line in wrap(text, 114 - len(indent), break_on_hyphens=False)
    ]
    return [f"# {indent}{line}" for line in lines]


def _blocking(policy: SitePolicy, config: SlurmSiteConfig) -> Iterator[str]:
    yield from ("# ==== Blocking", "#")
    yield from _comment("What is kept of every GPU that is free, from jobs that do not use it:")
    yield from _comment(
        *(f"{' '.join(each.nodes)}: {_amounts(each)}" for each in policy.blocking), indent="  "
    )
    yield "#"
    for hardware in config.hardware:
        yield from _hardware_lines(hardware, policy)
    if not config.hardware:
        yield from _comment(
            "The lines follow from the size of the nodes: write it under `options.hardware` and print this again."
        )
    yield from _comment(
        "The partitions through which GPU jobs (drones too) come to these nodes need a higher PriorityTier than that"
        f" of CPU-only jobs, {DRONE_TIER} or more: with equal tiers a GPU job that waits makes the scheduler keep the"
        " whole node, and none starts although its cores are free.",
        "Jobs without a GPU that come through one of those meet RestrictedCoresPerGPU there too, but no limit of"
        " memory: have such jobs refused there (job_submit), or give it the same MaxMemPerCPU; a GPU job that wants"
        " more memory per CPU is then given, and charged, more CPUs.",
    )
    yield ""


def _amounts(reserve: Reserve) -> str:
    amounts = {
        "CPUs": reserve.cpus,
        "MiB of memory": reserve.memory_mib,
        "MiB of disk": reserve.disk_mib,
    }
    return ", ".join(f"{amount} {unit}" for unit, amount in amounts.items() if amount) or "nothing"


def _hardware_lines(hardware: SlurmNodeHardware, policy: SitePolicy) -> Iterator[str]:
    nodes = hardware.nodes
    gpus = hardware.gpus
    size = f"{hardware.cpus} CPUs and {hardware.memory} MiB"
    reserve = limits = None
    problem = "`blocking` has not one entry for all of them: write a `hardware` for each"
    try:
        reserve = reserve_of(expand_hostlist(nodes), policy.blocking)
    except ValueError as error:
        problem = str(error)
    if reserve is not None:
        limits = reserve_limits(
            reserve, hardware.cpus, hardware.threads_per_core, hardware.memory, gpus
        )
        problem = f"{gpus} GPUs cannot keep {_amounts(reserve)} each of {size}"
    if reserve is None or limits is None:
        yield from (*_comment(f"!! {nodes}: {problem}: nothing is printed for these nodes."), "#")
        return
    if limits.cores_per_gpu:
        yield from _core_lines(hardware, limits.cores_per_gpu)
    if limits.memory_per_cpu_mib:
        yield f"# ---- slurm.conf, after the NodeName lines of {nodes}"
        yield from _comment(
            "The partition for CPU-only jobs on these nodes; if you have one, add the last three words to its line. A"
            f" job that asks for more than {limits.memory_per_cpu_mib} MiB per CPU is given more CPUs, so CPU-only jobs"
            f" run out of CPUs before they have more than {hardware.memory - gpus * reserve.memory_mib} MiB of a node."
        )
        name = f"{CPU_PARTITION}-{hardware.gres.partition(':')[2]}".rstrip("-")
        words = f"State=UP PriorityTier={CPU_TIER} PreemptMode=OFF MaxMemPerCPU={limits.memory_per_cpu_mib}"
        yield from (f"PartitionName={name} Nodes={nodes} {words}", "")


def _core_lines(hardware: SlurmNodeHardware, cores_per_gpu: int) -> Iterator[str]:
    yield f"# ---- slurm.conf, before the NodeName lines of {hardware.nodes}"
    yield from _comment(
        "(or add the words to each of these lines; another NodeName=DEFAULT line, with"
        " RestrictedCoresPerGPU=0, ends it). Slurm 24.05 or newer; older ones refuse the whole file."
    )
    yield from (f"NodeName=DEFAULT RestrictedCoresPerGPU={cores_per_gpu}", "")
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
    gpus = hardware.gpus // groups
    cores = hardware.sockets * hardware.cores_per_socket // groups
    for group in range(groups):
        first = group * gpus
        last = (group + 1) * gpus - 1
        files = f"/dev/nvidia{first}" if first == last else f"/dev/nvidia[{first}-{last}]"
        where = f"File={files} Cores={group * cores}-{(group + 1) * cores - 1}"
        yield f"NodeName={hardware.nodes} Name={name}{kind} {where}"
    yield ""


def _limitations(policy: SitePolicy) -> Iterator[str]:
    yield from ("# ==== What Slurm cannot do", "#")
    yield from _comment(
        "- Memory per free GPU, as such: there is nothing like RestrictedCoresPerGPU for it. MaxMemPerCPU holds for the"
        " partition that has it, and for no other, and is the same whether GPUs are free or not.",
        "- In 22.05 there is no RestrictedCoresPerGPU, and MaxMemPerCPU leaks: CPU-only jobs of much memory took all"
        " of a node in spite of it. MaxCPUsPerNode on the CPU partition (CPUs less what all GPUs keep) keeps the CPUs.",
    )
    if any(reserve.disk_mib for reserve in policy.blocking):
        yield "# - Disk: Slurm does not give it out (TmpDisk is compared, and never counted down). Not kept."
    yield ""


def _preemption(
    policy: SitePolicy, types: Iterable[DroneType], config: SlurmSiteConfig
) -> Iterator[str]:
    yield from ("# ==== Owner's priority", "#")
    if config.owner is None:
        yield from _comment(
            "The site's file names no owner (`options.owner`): drones are jobs like any others."
        )
        return
    grace_s = round(policy.grace_s)
    drones = dict.fromkeys(
        n for kind in types for n in config.options_for(kind.name).partition.split(",") if n
    )
    shared = [name for name in drones if name in config.owner.partitions]
    if shared:
        yield from _comment(
            f"!! Drones use the owner's own partition ({', '.join(shared)}): by partitions Slurm cannot tell who"
            " makes room. Give drones one of their own on the same nodes, or use PreemptType=preempt/qos with a QOS for"
            " drones that the owner's may preempt (sacctmgr: GraceTime and PreemptMode=cancel on it)."
        )
        return
    yield from ("# ---- slurm.conf", "PreemptType=preempt/partition_prio", "PreemptMode=CANCEL")
    yield from _comment(
        "Without it nothing is lost: the drone itself is a job step, and steps get the signal at once."
    )
    yield from ("PreemptParameters=send_user_signal", "#")
    owners = ", ".join(config.owner.partitions)
    yield from _comment(
        f"On the PartitionName lines of {owners} (the owner): PriorityTier={OWNER_TIER} PreemptMode=OFF",
        f"On those of {', '.join(drones) or 'the drones'} (drones): PriorityTier={DRONE_TIER} PreemptMode=CANCEL"
        f" GraceTime={grace_s}",
        f"SIGTERM then comes at once, the end {grace_s} s later and up to {LIMIT_CHECK_INTERVAL_S} s on top of that, as"
        f" slurmctld checks every {LIMIT_CHECK_INTERVAL_S} s; SIGKILL after KillWait more.",
    )


# ---------------------------------------------------------------------------------------------------------------
# audit


Gaps = Iterator[tuple[str, str, str]]
"""Differences of a cluster from the policy: the place, the respect, and the sentence."""


@frozen
class SlurmAudit:
    """Comparison of the running configuration, as far as it is reported, with the policy and the drone types."""

    nodes: Sequence[SlurmNode]
    partitions: Sequence[Partition]
    configuration: Mapping[str, str]
    policy: SitePolicy
    types: Sequence[SlurmDroneType]
    config: SlurmSiteConfig

    def gaps(self) -> Sequence[AuditFinding]:
        of_types = [gap for kind in self.types for gap in self._type_gaps(kind)]
        rest = (*self._blocking_gaps(), *self._grace_gaps(), *self._job_age_gaps())
        return [AuditFinding(*gap) for gap in (*self._partition_gaps(), *of_types, *rest)]

    def _partition_gaps(self) -> Gaps:
        named = {each.name: each for each in self.partitions}
        for name in dict.fromkeys(
            name for kind in self.types for name in kind.options.partition.split(",") if name
        ):
            if name not in named:
                there = _names(sorted(named))
                yield (
                    name,
                    "partition",
                    f"no such partition (there are: {there}); correct `options.partition`",
                )
            elif not named[name].up:
                yield (
                    name,
                    "partition",
                    "the partition is down: drones wait in it until its admin sets it up again",
                )
            elif (least := named[name].min_nodes) > 1:
                yield (
                    name,
                    "partition",
                    f"drones request one node and MinNodes is {least}: use another partition",
                )

    def _type_gaps(self, kind: SlurmDroneType) -> Gaps:
        if not kind.partitions:
            return  # _partition_gaps reports it
        label = f"drone type {kind.type.name}"
        up = [each for each in kind.partitions if each.up and each.min_nodes < 2]
        if up and not any(map(kind.admitted_by, up)):
            most_s = max(each.max_s for each in up)
            lives = f"{label} lives {kind.type.walltime_s:.0f} s and MaxTime is {most_s:.0f} s"
            repair = f"it would wait forever or be rejected; write `walltime: {most_s / 3600:g}h` at most"
            yield ",".join(each.name for each in up), "walltime", f"{lives}: {repair}"
        failed = [(node, kind.mismatch(node)) for node in self.nodes if node.state != "FUTURE"]
        misses = [
            (MISMATCH_DIMENSIONS.index(why.dimension), node.name, why)
            for node, why in failed
            if why
        ]
        if misses and len(misses) == len(failed):
            _, node_name, why = max(misses, key=lambda miss: miss[0])
            nearest = f"Nearest is {node_name}: {why.dimension} requested {why.requested}, available {why.available}"
            where = kind.options.partition or "default"
            yield where, "types", f"{label}: no node could host one. {printable(nearest, 300)}"
        yield from self._exclusive_gaps(kind)

    def _exclusive_gaps(self, kind: SlurmDroneType) -> Gaps:
        """Yield the first node that a drone gets as a whole without using all of it."""
        for node in self.nodes:
            part = kind.gpus < sum(node.gpus.values()) or (
                kind.type.cpus < node.cpus and not node.gpus
            )
            if part and kind.mismatch(node) is None and kind.exclusivity(node) == "NODE":
                gets = f"a drone of type {kind.type.name} gets the node as a whole and leaves GPUs or CPUs unused"
                repair = "write the size of the node into the type, or use a partition that shares its nodes"
                yield node.name, "exclusive", f"{gets}: {repair}"
                return

    def _blocking_gaps(self) -> Gaps:
        for node in self.nodes:
            hosted = [kind for kind in self.types if kind.mismatch(node) is None]
            if not any(node.gpus.values()) or not any(kind.gpus for kind in hosted):
                continue
            reserve = reserve_of([node.name], self.policy.blocking)
            if reserve is not None:
                yield from ((node.name, *gap) for gap in self._reserve_gaps(node, reserve))
            elif node.restricted_cores_per_gpu and any(not kind.gpus for kind in hosted):
                kept = f"the node keeps {node.restricted_cores_per_gpu} cores per free GPU (RestrictedCoresPerGPU)"
                why = "CPU drones would be asked for and wait; write the same into `blocking`"
                yield node.name, "cpus", f"{kept} and `blocking` does not say so: {why}"
        for pattern in dict.fromkeys(p for reserve in self.policy.blocking for p in reserve.nodes):
            if not any(fnmatchcase(node.name, pattern) for node in self.nodes):
                there = _names([node.name for node in self.nodes if node.gpus], 3)
                yield (
                    pattern,
                    "nodes",
                    f"no node has such a name (there are: {there}); correct `blocking.nodes`",
                )

    def _reserve_gaps(self, node: SlurmNode, reserve: Reserve) -> Iterator[tuple[str, str]]:
        """Compare what jobs without GPU can get through each partition while all GPUs of the node are free."""
        gpus = sum(node.gpus.values())
        threads = node.threads_per_core or 1
        cpus = gpus * reserve.cpus
        memory_mib = gpus * reserve.memory_mib
        limits = reserve_limits(reserve, node.cpus, threads, node.memory_mib, gpus)
        if limits is None:
            share = f"{reserve.cpus} CPUs and {reserve.memory_mib} MiB"
            size = f"{node.cpus} CPUs and"
            problem = f"{gpus} GPUs cannot keep {share} each of {size} {node.memory_mib} MiB"
            yield (
                "cpus" if cpus >= node.cpus else "memory",
                f"{problem}: write less into `blocking` for it",
            )
            return
        kept_cpus = {}
        kept_mib = {}
        for partition in self.partitions:
            if partition.name in node.partitions and partition.up:
                by_partition = node.cpus - (partition.max_cpus_per_node or node.cpus)
                kept = max(gpus * node.restricted_cores_per_gpu * threads, by_partition)
                kept_cpus[partition.name] = kept
                per_cpu_mib = partition.max_memory_per_cpu_mib
                most_mib = (node.cpus - kept) * per_cpu_mib if per_cpu_mib else node.memory_mib
                kept_mib[partition.name] = max(0, node.memory_mib - most_mib)
        repair = f"`provisioner render blocking --site {self.policy.site}` prints what can be done"
        if loose := [name for name, kept in kept_cpus.items() if kept < cpus]:
            found = f"{gpus} free GPUs keep {min(kept_cpus.values())} of {node.cpus} CPUs, requested {cpus}"
            yield (
                "cpus",
                f"{found}: jobs without GPU may have the rest through {_names(loose)}; {repair}",
            )
        if loose := [name for name, kept in kept_mib.items() if kept < memory_mib]:
            found = f"{gpus} free GPUs keep {min(kept_mib.values())} of {node.memory_mib} MiB, requested {memory_mib}"
            limit = f"MaxMemPerCPU={limits.memory_per_cpu_mib} there would keep it"
            yield (
                "memory",
                f"{found}: jobs without GPU may have the rest through {_names(loose)} ({limit}); {repair}",
            )
        if reserve.disk_mib:
            yield "disk", "Slurm keeps no disk: leave `disk` out of `blocking`, or live with it"

    def _grace_gaps(self) -> Gaps:
        grace_s = self.policy.grace_s
        kill_wait_s = self._seconds("KillWait")
        promised = f"`timeouts.grace` is {grace_s:.0f} s: drones would promise their jobs time that they do not have"
        if kill_wait_s is not None and kill_wait_s < grace_s:
            killed = (
                f"a drone that is asked to leave is killed {kill_wait_s} s after SIGTERM (KillWait)"
            )
            repair = f"write `grace: {kill_wait_s}s`, or have KillWait raised"
            yield "slurm.conf", "grace", f"{killed}, {promised}; {repair}"
        by_qos = "qos" in self.configuration.get("PreemptType", "")
        is_reported = bool(
            self.configuration.get("PreemptType") or self.configuration.get("PreemptMode")
        )
        for each in {each.name: each for kind in self.types for each in kind.partitions}.values():
            mode = self._preempt_mode(each)
            if mode == "" and self.config.owner is not None and is_reported and not by_qos:
                problem = "Slurm takes no drone's place in this partition for the owner: their jobs wait until drones"
                repair = (
                    f"`provisioner render blocking --site {self.policy.site}` prints how it would"
                )
                yield each.name, "preemption", f"{problem} have been asked to leave; {repair}"
            if mode in ("SUSPEND", "GANG"):
                problem = (
                    f"a preempted drone is suspended (PreemptMode={each.preempt_mode or mode})"
                )
                why = "its jobs stand still and its pool takes it for dead"
                yield (
                    each.name,
                    "preemption",
                    f"{problem}: {why}; have PreemptMode=CANCEL set for the partition",
                )
            got_s = each.grace_s + (kill_wait_s or 0)
            if (
                mode in ("CANCEL", "REQUEUE")
                and kill_wait_s is not None
                and got_s < grace_s
                and not by_qos
            ):
                killed = f"a preempted drone is killed {got_s:.0f} s after SIGTERM, or {LIMIT_CHECK_INTERVAL_S} s later"
                limits = f"GraceTime {each.grace_s:.0f} s, KillWait {kill_wait_s} s"
                yield each.name, "grace", f"{killed} ({limits}), {promised}"

    def _job_age_gaps(self) -> Gaps:
        age_s = self._seconds("MinJobAge")
        max_age_s = self.policy.view_max_age_s
        kept_in = self.configuration.get("AccountingStorageType", "unknown")
        if (
            age_s is not None
            and age_s < max_age_s
            and ("none" in kept_in or kept_in in ("", "(null)"))
        ):
            forgets = f"slurmctld forgets a job {age_s} s after its end (MinJobAge)"
            why = f"a poll may be {max_age_s:.0f} s old, and without accounting its end may never be known"
            yield (
                "slurm.conf",
                "ends",
                f"{forgets}: {why}; have MinJobAge raised to its default, 300",
            )

    def _preempt_mode(self, partition: Partition) -> str:
        """Return what preemption by partition (not by QOS) does to its jobs: ``CANCEL``, ...; "" if nothing."""
        by_partition = "partition_prio" in self.configuration.get("PreemptType", "")
        higher = [each for each in self.partitions if each.tier > partition.tier]
        modes_text = (partition.preempt_mode or self.configuration.get("PreemptMode", "")).upper()
        modes = [
            mode for mode in re.split(r"[,\s]+", modes_text) if mode not in ("", "OFF", "(NULL)")
        ]
        if (
            not by_partition
            or not modes
            or not any(set(each.nodes) & set(partition.nodes) for each in higher)
        ):
            return ""
        return next((mode for mode in modes if mode != "GANG"), "GANG")

    def _seconds(self, setting: str) -> int | None:
        """Return ``30 sec``, as ``scontrol show config`` prints it; None for anything else."""
        found = re.fullmatch(
            r"(\d+)(?:\s*sec(?:onds)?)?", self.configuration.get(setting, "").strip()
        )
        return int(found[1]) if found else None


def _names(names: Sequence[str], most: int = 4) -> str:
    return printable(", ".join(names[:most]) + (", ..." if len(names) > most else "")) or "none"
