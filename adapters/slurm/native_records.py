"""What pyslurm's objects say, in our records. They are read by attribute only: no call of theirs, one crashes.

pyslurm says None for what is 0, also for the number of an array's task, and takes 128 off exit codes from 128 on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from adapters.slurm.records import Partition, Reservation, SlurmJob, SlurmNode, expand_hostlist, parse_tasks
from adapters.slurm.states import UNFINISHED_STATES
from provisioner.interfaces import UnavailableError

_BASES = {"CONFIGURING": "RUNNING", "STAGE_OUT": "COMPLETING"}
"""Where pyslurm tells a flag in the place of the base state: what that is as good as."""
_GRES = re.compile(r"(?:gres[/:])?gpu(?::([A-Za-z0-9_.-]+))?")


def remote_ids(job: Any) -> tuple[str, ...]:
    """As ``squeue -r`` calls what this record stands for: a job, a task, or all waiting tasks of an array."""
    if not job.array_id:
        return (str(job.id),)
    if job.array_tasks_waiting:
        try:
            tasks = parse_tasks(job.array_tasks_waiting)
        except ValueError as error:
            raise UnavailableError(f"pyslurm reports the tasks of an array in an unknown format: {error}") from None
        return tuple(f"{job.array_id}_{task}" for task in tasks)
    return (f"{job.array_id}_{job.array_task_id or 0}",)


def job(told: Any, remote_id: str, user: Callable[[int], str]) -> SlurmJob:
    """A job of slurmctld. ``user``: name of an account by its number."""
    state, flags = _state(told.state)
    count = max(1, told.num_nodes or 1)
    cpus = max(1, -(-(told.cpus or 1) // count))
    ended = state not in UNFINISHED_STATES
    return SlurmJob(
        remote_id=remote_id,
        name=told.name or "",
        state=state,
        flags=flags,
        reason=_reason(told.state_reason),
        user=user(told.user_id or 0),
        account=told.account or "",
        partition=told.partition or "",
        qos=told.qos or "",
        submitted_at=_number(told.submit_time),
        started_at=_number(told.start_time),
        ends_at=_number(told.end_time),
        limit_s=60 * _number(told.time_limit),
        preempted_at=_number(told.preempt_time),
        nodes=_nodes(told.allocated_nodes),
        exit_code=told.exit_code or 0 if ended else None,
        signal=told.exit_code_signal or 0 if ended else 0,
        restarts=told.requeue_count or 0,
        node_count=count,
        cpus=cpus,
        memory_mib=int(_number(told.memory_per_cpu) * cpus or _number(told.memory_per_node)),
        gpus=_wanted_gpus(told, count),
        required_nodes=_nodes(told.required_nodes),
    )


def accounted(told: Any) -> SlurmJob:
    """A job of the accounting database."""
    state, flags = _state(told.state)
    ended = state not in UNFINISHED_STATES
    return SlurmJob(
        remote_id=remote_ids(told)[0],
        name=told.name or "",
        state=state,
        flags=flags,
        reason=_reason(told.state_reason),
        user=told.user_name or "",
        account=told.account or "",
        partition=told.partition or "",
        qos=told.qos or "",
        submitted_at=_number(told.submit_time),
        started_at=_number(told.start_time),
        ends_at=_number(told.end_time),
        limit_s=60 * _number(told.time_limit),
        nodes=_nodes(told.nodelist),
        exit_code=told.exit_code or 0 if ended else None,
        signal=told.exit_code_signal or 0 if ended else 0,
        restarts=told.requeue_count or 0,
    )


def node(told: Any, used_gpus: Mapping[str, int] | None) -> SlurmNode:
    """``used_gpus``: by their type as its running jobs have them, where Slurm does not count them itself."""
    words = [word.rstrip("*~#!%$@^-") for word in (told.state or "UNKNOWN").upper().split("+")]
    gpus = gpus_of(told.configured_gres)
    used = gpus_of(told.allocated_gres, total=True)
    if set(used) == {""} and len(gpus) == 1:
        used = {kind: used[""] for kind in gpus}
    return SlurmNode(
        name=told.name,
        state=words[0],
        flags=frozenset(words[1:]),
        partitions=tuple(told.partitions or ()),
        features=tuple(told.active_features or told.available_features or ()),
        cpus=told.total_cpus or 0,
        used_cpus=told.allocated_cpus or 0,
        memory_mib=told.real_memory or 0,
        used_memory_mib=told.allocated_memory or 0,
        gpus=gpus,
        used_gpus=used if used_gpus is None else used_gpus,
        reason=told.reason or "",
        threads_per_core=told.threads_per_core or 0,
    )


def used_by(jobs: Sequence[SlurmJob], nodes: Mapping[str, Mapping[str, int]]) -> Mapping[str, Mapping[str, int]]:
    """GPUs that running jobs have, by node and type. ``nodes``: what each has; GPUs of no type are of its only one."""
    used: dict[str, dict[str, int]] = {name: {} for name in nodes}
    for each in jobs:
        if each.state == "PENDING":
            continue
        for name in each.nodes:
            for kind, count in each.gpus.items():
                have = nodes.get(name, {})
                its = next(iter(have)) if not kind and len(have) == 1 else kind
                used.setdefault(name, {})[its] = used.get(name, {}).get(its, 0) + count
    return used


def partition(told: Any) -> Partition:
    return Partition(
        name=told.name,
        up=told.state == "UP",
        nodes=_nodes(told.nodes),
        max_s=60 * _number(told.max_time),
        tier=told.priority_tier or 0,
        grace_s=_number(told.preemption_grace_time),
        preempt_mode=told.preempt_mode or "",
        max_memory_per_cpu_mib=int(_number(told.max_memory_per_cpu)),
        max_memory_per_node_mib=int(_number(told.max_memory_per_node)),
        max_cpus_per_node=int(_number(told.max_cpus_per_node)),
        default=bool(told.is_default),
    )


_RESERVED = {"MAINTENANCE": "MAINT", "IGNORE_RUNNING_JOBS": "IGNORE_JOBS"}
"""pyslurm's name of a flag -> Slurm's."""


def reservation(told: Any) -> Reservation:
    names = (flag.name for flag in type(told.flags) if flag in told.flags)
    return Reservation(
        name=told.name or "",
        starts_at=_number(told.start_time),
        ends_at=_number(told.end_time),
        nodes=_nodes(told.nodes),
        flags=frozenset(_RESERVED.get(name, name) for name in names),
        users=tuple(told.users or ()),
        accounts=tuple(told.accounts or ()),
    )


_SECONDS = {
    "KillWait": "kill_wait_time",
    "MinJobAge": "min_job_age",
    "SlurmdTimeout": "slurmd_timeout",
    "MessageTimeout": "message_timeout",
    "PreemptExemptTime": "preempt_exempt_time",
}
_WORDS = {
    "ClusterName": "cluster_name",
    "SLURM_VERSION": "version",
    "MaxArraySize": "max_array_size",
    "MaxJobCount": "max_job_count",
    "PreemptType": "preempt_type",
    "PreemptMode": "preempt_mode",
    "AccountingStorageType": "accounting_storage_type",
    "SchedulerType": "scheduler_type",
    "SelectType": "select_type",
}
_LISTS = {
    "PreemptParameters": "preempt_parameters",
    "SchedulerParameters": "scheduler_parameters",
    "AccountingStorageTRES": "accounting_storage_tres",
    "SelectTypeParameters": "select_type_parameters",
    "AccountingStorageEnforce": "accounting_storage_enforce",
    "PrivateData": "private_data",
}
"""What scontrol calls a setting -> what pyslurm does."""


def configuration(told: Any) -> Mapping[str, str]:
    found = {name: f"{_number(getattr(told, attribute)):g} sec" for name, attribute in _SECONDS.items()}
    for name, attribute in (*_WORDS.items(), *_LISTS.items()):
        value = getattr(told, attribute, None)
        if isinstance(value, dict):
            value = [key if item is None or item is True else f"{key}={item}" for key, item in value.items()]
        if isinstance(value, list | tuple):
            value = ",".join(str(item) for item in value)
        found[name] = "" if value is None else str(value)
    return {name: value for name, value in found.items() if value}


# ------------------------------------------------------------------------------------------------------------ readings


def gpus_of(gres: Mapping[str, Any] | None, *, total: bool = False) -> dict[str, int]:
    """GPUs by their type from ``{"gpu:a100": 4}``. ``total``: what is told without a type counts those with one too."""
    found: dict[str, int] = {}
    for name, count in (gres or {}).items():
        kind = _GRES.fullmatch(name)
        if kind is not None:
            number = count.get("count", 0) if isinstance(count, dict) else count
            found[kind[1] or ""] = found.get(kind[1] or "", 0) + int(number)
    if total and "" in found:
        found[""] -= sum(count for kind, count in found.items() if kind)
    return {kind: count for kind, count in found.items() if count > 0}


def _wanted_gpus(told: Any, nodes: int) -> Mapping[str, int]:
    per_node = gpus_of(told.gres_per_node)
    if per_node:
        return per_node
    tres = told.requested_tres
    if tres is None or not tres.gres:
        return {}
    every = gpus_of({str(name): getattr(item, "count", item) for name, item in tres.gres.items()}, total=True)
    return {kind: -(-count // nodes) for kind, count in every.items()}


def _state(word: str | None) -> tuple[str, frozenset[str]]:
    """Base state and flags: pyslurm tells one word, the flag's if there is one."""
    word = (word or "").upper()
    if word in _BASES:
        return _BASES[word], frozenset({word})
    return word, frozenset({word}) if word == "COMPLETING" else frozenset()


def _reason(word: str | None) -> str:
    return "" if word in (None, "None") else str(word)


def _number(value: object) -> float:
    """0 for what is not told and for what has no limit, which pyslurm says in words."""
    return float(value) if isinstance(value, int | float) else 0.0


def _nodes(text: str | None) -> tuple[str, ...]:
    try:
        return expand_hostlist(text or "")
    except ValueError as error:
        raise UnavailableError(f"pyslurm tells nodes that cannot be read: {error}") from None
