"""Where the cluster's running configuration does not do what the policy and the drone types say.

Nothing is submitted: nodes, partitions and slurm.conf are read as slurmctld tells them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from adapters.shared.printing import printable
from adapters.slurm.blocking import Kept, kept, reserve_of
from adapters.slurm.capacity import DIMENSIONS, Kind, Misfit, admits, kinds, misfit, pool
from adapters.slurm.records import Partition, SlurmNode
from adapters.slurm.settings import SlurmSiteConfig
from provisioner.interfaces import AuditFinding
from provisioner.model import DroneType, Reserve, SitePolicy

_SECONDS = re.compile(r"(\d+)(?:\s*sec(?:onds)?)?")


def gaps(
    nodes: Sequence[SlurmNode],
    partitions: Sequence[Partition],
    configuration: Mapping[str, str],
    policy: SitePolicy,
    types: Sequence[DroneType],
    config: SlurmSiteConfig,
) -> tuple[AuditFinding, ...]:
    """Every gap that can be seen. ``configuration``: as :meth:`cluster.Cluster.configuration` tells it; what it leaves
    out is not judged."""
    hosted = kinds(types, partitions, config)
    return (
        *_partition_gaps(partitions, hosted),
        *_type_gaps(nodes, partitions, hosted),
        *_blocking_gaps(nodes, partitions, policy, hosted, config),
        *_grace_gaps(partitions, configuration, policy, hosted, config),
        *_memory_of_ends(configuration, policy, config),
    )


def _named(names: Sequence[str], most: int = 4) -> str:
    return printable(", ".join(names[:most]) + (", ..." if len(names) > most else "")) or "none"


# ---------------------------------------------------------------------------------------------------------- drone types


def _partition_gaps(partitions: Sequence[Partition], hosted: Sequence[Kind]) -> Iterator[AuditFinding]:
    known = {each.name: each for each in partitions}
    wanted = dict.fromkeys(name for kind in hosted for name in kind.where.partition.split(",") if name)
    for name in wanted:
        if name not in known:
            there = _named(sorted(known))
            yield AuditFinding(
                name, "partition", f"no such partition (there are: {there}); correct `options.partition`"
            )
        elif not known[name].up:
            yield AuditFinding(
                name, "partition", "the partition is down: drones wait in it until its admin sets it up again"
            )


def _type_gaps(
    nodes: Sequence[SlurmNode], partitions: Sequence[Partition], hosted: Sequence[Kind]
) -> Iterator[AuditFinding]:
    for kind in hosted:
        if not kind.partitions:
            continue  # told above
        said = f"drone type {kind.type.name}"
        life_s = kind.type.walltime_s
        up = [each for each in kind.partitions if each.up]
        if up and not any(admits(kind, each) for each in up):
            most_s = max(each.max_s for each in up)
            yield AuditFinding(
                ",".join(each.name for each in up),
                "walltime",
                f"{said} lives {life_s:.0f} s and MaxTime is {most_s:.0f} s: it would wait for ever or be refused;"
                f" write `walltime: {most_s / 3600:g}h` at most",
            )
        tried = [(node, misfit(kind, node)) for node in nodes if node.state != "FUTURE"]
        if tried and all(why is not None for _, why in tried):
            yield AuditFinding(
                kind.where.partition or "default", "types", f"{said}: no node could host one. {_nearest(tried)}"
            )
        mixed = [n.name for n in nodes if kind.gpus and misfit(kind, n) is None and _has_others(n, kind, hosted)]
        if mixed:
            yield AuditFinding(
                _named(mixed),
                "gpus",
                f"{said} shares nodes with a type that wants other GPUs of them: such a node is planned with one type"
                " of GPU at a time, that of which most is free",
            )
        if "exclusive" in kind.where.submit and any(_is_small(kind, n) for n in nodes if misfit(kind, n) is None):
            yield AuditFinding(
                kind.where.partition or "default",
                "exclusive",
                f"{said} takes whole nodes (`submit.exclusive`) and is smaller than they are: the rest lies idle; make"
                " it as large as the node",
            )


def _nearest(tried: Sequence[tuple[SlurmNode, Misfit | None]]) -> str:
    """The node that came furthest, and what it lacks."""
    failed = [(node, why) for node, why in tried if why is not None]
    node, why = max(failed, key=lambda pair: DIMENSIONS.index(pair[1].dimension))
    return printable(f"Nearest is {node.name}: {why.dimension} wanted {why.wanted}, there {why.offered}", 300)


def _has_others(node: SlurmNode, kind: Kind, hosted: Sequence[Kind]) -> bool:
    mine = pool(node, kind.gres)
    return any(each.gpus and misfit(each, node) is None and not pool(node, each.gres) & mine for each in hosted)


def _is_small(kind: Kind, node: SlurmNode) -> bool:
    return kind.gpus < sum(node.gpus.values())


# ------------------------------------------------------------------------------------------------------------- blocking


def _blocking_gaps(
    nodes: Sequence[SlurmNode],
    partitions: Sequence[Partition],
    policy: SitePolicy,
    hosted: Sequence[Kind],
    config: SlurmSiteConfig,
) -> Iterator[AuditFinding]:
    known = {each.name: each for each in partitions}
    gpu_kinds = [kind for kind in hosted if kind.gpus]
    repair = f"`provisioner render blocking --site {policy.site}` prints what can be done"
    if config.transport == "native":
        repair += " (but pyslurm does not tell RestrictedCoresPerGPU: see `scontrol show node` first)"
    for node in nodes:
        gpus = sum(node.gpus.values())
        if not gpus or not any(misfit(kind, node) is None for kind in gpu_kinds):
            continue
        reserve = reserve_of([node.name], policy.blocking)
        through = [known[name] for name in node.partitions if name in known and known[name].up]
        if reserve is not None:
            yield from _reserve_gaps(node, gpus, reserve, through, repair)
        elif node.restricted_cores_per_gpu and any(not k.gpus and misfit(k, node) is None for k in hosted):
            yield AuditFinding(
                node.name,
                "cpus",
                f"the node keeps {node.restricted_cores_per_gpu} cores per free GPU (RestrictedCoresPerGPU) and"
                " `blocking` does not say so: CPU drones would be asked for and wait; write the same into `blocking`",
            )
    for pattern in dict.fromkeys(p for reserve in policy.blocking for p in reserve.nodes):
        if not any(fnmatchcase(node.name, pattern) for node in nodes):
            there = _named([node.name for node in nodes if node.gpus], 3)
            yield AuditFinding(
                pattern, "nodes", f"no node has such a name (there are: {there}); correct `blocking.nodes`"
            )


def _reserve_gaps(
    node: SlurmNode, gpus: int, reserve: Reserve, through: Sequence[Partition], repair: str
) -> Iterator[AuditFinding]:
    threads = node.threads_per_core or 1
    asked = kept(reserve, node.cpus, threads, node.memory_mib, gpus)
    if asked is None:
        yield AuditFinding(
            node.name,
            "cpus" if gpus * reserve.cpus >= node.cpus else "memory",
            f"{gpus} GPUs cannot keep {reserve.cpus} CPUs and {reserve.memory_mib} MiB each of {node.cpus} CPUs and"
            f" {node.memory_mib} MiB: write less into `blocking` for it",
        )
        return
    open_cpus = [each.name for each in through if _kept_cpus(node, gpus, threads, each) < gpus * reserve.cpus]
    if reserve.cpus and open_cpus:
        keeps = min(_kept_cpus(node, gpus, threads, each) for each in through)
        yield AuditFinding(
            node.name,
            "cpus",
            f"{gpus} free GPUs keep {keeps} of {node.cpus} CPUs, wanted {gpus * reserve.cpus}: jobs without GPU may"
            f" have the rest through {_named(open_cpus)}; {repair}",
        )
    yield from _memory_gaps(node, gpus, threads, reserve, asked, through, repair)
    if reserve.disk_mib:
        yield AuditFinding(node.name, "disk", "Slurm keeps no disk: leave `disk` out of `blocking`, or live with it")


def _kept_cpus(node: SlurmNode, gpus: int, threads: int, partition: Partition) -> int:
    """What jobs without GPU cannot have of the node through this partition, while all of its GPUs are free."""
    by_partition = node.cpus - partition.max_cpus_per_node if partition.max_cpus_per_node else 0
    return max(gpus * node.restricted_cores_per_gpu * threads, by_partition, 0)


def _memory_gaps(
    node: SlurmNode, gpus: int, threads: int, reserve: Reserve, asked: Kept, through: Sequence[Partition], repair: str
) -> Iterator[AuditFinding]:
    """The limit per CPU, times the CPUs that they can have, is the memory that jobs without GPU can have."""
    wanted = gpus * reserve.memory_mib
    most = {
        each.name: min(node.memory_mib, (node.cpus - _kept_cpus(node, gpus, threads, each)) * per_cpu_mib)
        if (per_cpu_mib := each.max_memory_per_cpu_mib)
        else node.memory_mib
        for each in through
    }
    loose = [name for name, mib in most.items() if node.memory_mib - mib < wanted]
    if reserve.memory_mib and loose:
        keeps = node.memory_mib - max(most.values())
        yield AuditFinding(
            node.name,
            "memory",
            f"{gpus} free GPUs keep {keeps} of {node.memory_mib} MiB, wanted {wanted}: jobs without GPU may have the"
            f" rest through {_named(loose)} (MaxMemPerCPU={asked.memory_per_cpu_mib} there would keep it); {repair}",
        )


# ---------------------------------------------------------------------------------------------------------------- grace


def _grace_gaps(
    partitions: Sequence[Partition],
    configuration: Mapping[str, str],
    policy: SitePolicy,
    hosted: Sequence[Kind],
    config: SlurmSiteConfig,
) -> Iterator[AuditFinding]:
    kill_wait_s = seconds(configuration.get("KillWait", ""))
    promised = f"`timeouts.grace` says {policy.grace_s:.0f} s: drones would promise their jobs time that they have not"
    if kill_wait_s is not None and kill_wait_s < policy.grace_s:
        yield AuditFinding(
            "slurm.conf",
            "grace",
            f"a drone that is asked to leave is killed {kill_wait_s} s after SIGTERM (KillWait), {promised}; write"
            f" `grace: {kill_wait_s}s`, or have KillWait raised",
        )
    ours = {each.name: each for kind in hosted for each in kind.partitions}
    by_qos = "qos" in configuration.get("PreemptType", "")
    tells = bool(configuration.get("PreemptType") or configuration.get("PreemptMode"))
    for each in ours.values():
        mode = preempt_mode(each, partitions, configuration)
        if mode == "" and config.owner is not None and tells and not by_qos:
            yield AuditFinding(
                each.name,
                "preemption",
                "Slurm takes no drone's place in this partition for the owner: his jobs wait until drones have been"
                f" asked to leave; `provisioner render blocking --site {policy.site}` prints how it would",
            )
        if mode in ("SUSPEND", "GANG"):
            yield AuditFinding(
                each.name,
                "preemption",
                f"a preempted drone is suspended (PreemptMode={each.preempt_mode or mode}): its jobs stand still and"
                " its pool believes it dead; have PreemptMode=CANCEL set for the partition",
            )
        got_s = each.grace_s + (kill_wait_s or 0)
        if mode in ("CANCEL", "REQUEUE") and kill_wait_s is not None and got_s < policy.grace_s and not by_qos:
            yield AuditFinding(
                each.name,
                "grace",
                f"a preempted drone is killed {got_s:.0f} s after SIGTERM, up to 30 s more (GraceTime"
                f" {each.grace_s:.0f} s, KillWait {kill_wait_s} s), {promised}",
            )


def preempt_mode(partition: Partition, partitions: Sequence[Partition], configuration: Mapping[str, str]) -> str:
    """What happens to jobs of a partition when others want their nodes: ``CANCEL``, ``REQUEUE``, ...; "" for nothing,
    as far as partitions decide it. (What QOS decide cannot be seen here.)"""
    if "partition_prio" not in configuration.get("PreemptType", ""):
        return ""
    higher = any(each.tier > partition.tier and set(each.nodes) & set(partition.nodes) for each in partitions)
    told = (partition.preempt_mode or configuration.get("PreemptMode", "")).upper()
    modes = [mode for mode in re.split(r"[,\s]+", told) if mode not in ("", "OFF", "(NULL)")]
    if not higher or not modes:
        return ""
    return next((mode for mode in modes if mode != "GANG"), "GANG")


def _memory_of_ends(
    configuration: Mapping[str, str], policy: SitePolicy, config: SlurmSiteConfig
) -> Iterator[AuditFinding]:
    age_s = seconds(configuration.get("MinJobAge", ""))
    kept_in = configuration.get("AccountingStorageType")
    without = config.accounting is False or (kept_in is not None and ("none" in kept_in or kept_in in ("", "(null)")))
    if age_s is not None and age_s < policy.view_max_age_s and without:
        yield AuditFinding(
            "slurm.conf",
            "ends",
            f"slurmctld forgets a job {age_s} s after its end (MinJobAge), a look may be {policy.view_max_age_s:.0f} s"
            " old and there is no accounting to ask: how a drone ended may never be known; have MinJobAge raised to its"
            " default, 300",
        )


def seconds(text: str) -> int | None:
    """``30 sec`` as ``scontrol show config`` prints it; None for anything else."""
    found = _SECONDS.fullmatch(text.strip())
    return int(found[1]) if found else None
