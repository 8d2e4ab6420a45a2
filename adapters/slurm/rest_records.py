"""What slurmrestd's JSON says, in our records. A field that is missing or odd says nothing; what says who a job is must
be there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from adapters.slurm.records import Partition, Reservation, SlurmJob, SlurmNode, expand_hostlist, parse_gpus, parse_tres
from adapters.slurm.states import UNFINISHED_STATES
from provisioner.interfaces import UnavailableError

Record = Mapping[str, Any]

_JOB_BASES = frozenset(
    (
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
    )
)
_NODE_BASES = frozenset({"UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE", "INVALID"})
_ENTRY = re.compile(r"(\d{1,10})(?:_(\d{1,10}|\*))?(?:\+\d{1,10})?")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of ``jobs/state/``: Slurm's own number of the job, the task's number, and the state.

    A waiting task goes by the number of its array, a started one by a number of its own, which says nothing of the
    array: ``1_3`` (waiting) becomes ``6_3``. An array all of which was cancelled before it began is ``1_*``.
    """

    number: int
    task: int | None
    state: str
    flags: frozenset[str]
    all_tasks: bool = False


@dataclass(frozen=True, slots=True)
class Looked:
    """A job of slurmctld, looked at closely: one job, one started task, or all waiting tasks of an array."""

    number: int
    array: int
    """0: it is no array."""
    task: int | None
    """None of an array: its waiting tasks, all in one."""
    job: SlurmJob


def number(value: object) -> float | None:
    """``{set, infinite, number}`` or a plain number; None where there is none, or no end."""
    if isinstance(value, dict):
        if not value.get("set") or value.get("infinite"):
            return None
        value = value.get("number")
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _float(value: object) -> float:
    return float(number(value) or 0)


def _int(value: object) -> int:
    return int(number(value) or 0)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _record(value: object) -> Record:
    return value if isinstance(value, dict) else {}


def _words(value: object) -> list[str]:
    """A list of words, or one word as older versions write it."""
    found = value if isinstance(value, list) else [value]
    return [word.upper() for word in found if isinstance(word, str) and word]


def _nodes(value: object) -> tuple[str, ...]:
    if isinstance(value, list):
        value = ",".join(word for word in value if isinstance(word, str))
    try:
        return expand_hostlist(_text(value))
    except ValueError as error:
        raise UnavailableError(f"slurmrestd tells nodes that cannot be read: {error}") from None


def _base(value: object, bases: frozenset[str]) -> tuple[str, frozenset[str]]:
    words = _words(value)
    base = next((word for word in words if word in bases), words[0] if words else "")
    return base, frozenset(words) - {base}


# ---------------------------------------------------------------------------------------------------------------- jobs


def entry(record: Record) -> Entry:
    """UnavailableError for one that cannot be read: a listing that is not understood is not whole."""
    found = _ENTRY.fullmatch(str(record.get("job_id")))
    state, flags = _base(record.get("state"), _JOB_BASES)
    if not found or not state:
        raise UnavailableError("slurmrestd tells the state of a job in a way that is not known here")
    task = int(found[2]) if found[2] and found[2] != "*" else None
    return Entry(int(found[1]), task, state, flags, all_tasks=found[2] == "*")


def looked(record: Record) -> Looked:
    """A record of ``job/{id}``."""
    if not _int(record.get("job_id")):
        raise UnavailableError("slurmrestd tells of a job without its number")
    own, array = _int(record["job_id"]), _int(record.get("array_job_id"))
    task = _task(array, record.get("array_task_id"))
    count = max(1, _int(record.get("node_count")))
    asked = _text(record.get("tres_req_str"))
    told = parse_tres(asked).get("cpu", "")
    cpus = max(1, -(-(int(told) if told.isdecimal() else _int(record.get("cpus"))) // count))
    per_cpu = number(record.get("memory_per_cpu"))
    state, flags = _base(record.get("job_state"), _JOB_BASES)
    code, signal = _ending(record.get("exit_code"), state)
    job = SlurmJob(
        remote_id=_remote_id(own, array, task),
        name=_text(record.get("name")),
        state=state,
        flags=flags,
        reason="" if state == "RUNNING" else _reason(record.get("state_reason")),
        user=_text(record.get("user_name")),
        account=_text(record.get("account")),
        partition=_text(record.get("partition")),
        qos=_text(record.get("qos")),
        submitted_at=_float(record.get("submit_time")),
        started_at=_float(record.get("start_time")),
        ends_at=_float(record.get("end_time")),
        limit_s=60 * _float(record.get("time_limit")),
        preempted_at=_float(record.get("preempt_time")),
        nodes=_nodes(record.get("nodes")),
        exit_code=code,
        signal=signal,
        restarts=_int(record.get("restart_cnt")),
        node_count=count,
        cpus=cpus,
        memory_mib=int(per_cpu * cpus) if per_cpu else _int(record.get("memory_per_node")),
        gpus=parse_gpus(_text(record.get("tres_per_node"))) or _shared_out(parse_gpus(asked), count),
        required_nodes=_nodes(record.get("required_nodes")),
    )
    return Looked(own, array, task, job)


def accounted(record: Record) -> SlurmJob:
    """A record of the accounting database."""
    times, told = _record(record.get("time")), _record(record.get("array"))
    array = _int(told.get("job_id"))
    state = _record(record.get("state"))
    base, flags = _base(state.get("current"), _JOB_BASES)
    code, signal = _ending(record.get("exit_code"), base)
    return SlurmJob(
        remote_id=_remote_id(_int(record.get("job_id")), array, _task(array, told.get("task_id"))),
        name=_text(record.get("name")),
        state=base,
        flags=flags,
        reason=_reason(state.get("reason")),
        user=_text(_record(record.get("association")).get("user")) or _text(record.get("user")),
        account=_text(record.get("account")),
        partition=_text(record.get("partition")),
        qos=_text(record.get("qos")),
        submitted_at=_float(times.get("submission")),
        started_at=_float(times.get("start")),
        ends_at=_float(times.get("end")),
        limit_s=60 * _float(times.get("limit")),
        nodes=_nodes(record.get("nodes")),
        exit_code=code,
        signal=signal,
        restarts=_int(record.get("restart_cnt")),
    )


def _task(array: int, value: object) -> int | None:
    """Number of a task; None of what is no array, and of an array's waiting tasks, all in one."""
    task = number(value) if array else None
    return None if task is None else int(task)


def _remote_id(own: int, array: int, task: int | None) -> str:
    return str(own) if not array or task is None else f"{array}_{task}"


def _reason(value: object) -> str:
    return "" if value in (None, "None") else _text(value)


def _ending(value: object, state: str) -> tuple[int | None, int]:
    """Exit status and signal of a job that ended."""
    if state in UNFINISHED_STATES:
        return None, 0
    told = _record(value)
    code, signal = number(told.get("return_code")), _record(told.get("signal"))
    return None if code is None else int(code), _int(signal.get("id", signal.get("signal_id")))


def _shared_out(every: Mapping[str, int], nodes: int) -> Mapping[str, int]:
    return {kind: -(-count // nodes) for kind, count in every.items()}


# ---------------------------------------------------------------------------------------------------------- the cluster


def node(record: Record) -> SlurmNode:
    if not _text(record.get("name")):
        raise UnavailableError("slurmrestd tells of a node without a name")
    state, flags = _base(record.get("state"), _NODE_BASES)
    features = record.get("active_features")
    return SlurmNode(
        name=record["name"],
        state=state or "UNKNOWN",
        flags=flags,
        partitions=tuple(_list(record.get("partitions"))),
        features=tuple(_list(features)) or tuple(_list(record.get("features"))),
        cpus=_int(record.get("cpus")),
        used_cpus=_int(record.get("alloc_cpus")),
        memory_mib=_int(record.get("real_memory")),
        used_memory_mib=_int(record.get("alloc_memory")),
        gpus=parse_gpus(_text(record.get("gres"))),
        used_gpus=parse_gpus(_text(record.get("gres_used"))),
        reason=_text(record.get("reason")),
        threads_per_core=_int(record.get("threads")),
        # `gpu_spec` names the cores that are kept: without them none is, whatever is configured
        restricted_cores_per_gpu=_int(record.get("res_cores_per_gpu")) if record.get("gpu_spec") else 0,
    )


def _list(value: object) -> Iterable[str]:
    """A list, or its words with commas between them."""
    found = value if isinstance(value, list) else _text(value).split(",")
    return [word for word in found if isinstance(word, str) and word]


def partition(record: Record) -> Partition:
    if not _text(record.get("name")):
        raise UnavailableError("slurmrestd tells of a partition without a name")
    most = _record(record.get("maximums"))
    return Partition(
        name=record["name"],
        up=_words(_record(record.get("partition")).get("state"))[:1] == ["UP"],
        nodes=_nodes(_record(record.get("nodes")).get("configured")),
        max_s=60 * _float(most.get("time")),
        tier=_int(_record(record.get("priority")).get("tier")),
        grace_s=_float(record.get("grace_time")),
        max_memory_per_cpu_mib=_int(most.get("partition_memory_per_cpu")),
        max_memory_per_node_mib=_int(most.get("partition_memory_per_node")),
        max_cpus_per_node=_int(most.get("cpus_per_node")),
        default="DEFAULT" in _words(record.get("flags")),  # told by 26.05 only
    )


def reservation(record: Record) -> Reservation:
    return Reservation(
        name=_text(record.get("name")),
        starts_at=_float(record.get("start_time")),
        ends_at=_float(record.get("end_time")),
        nodes=_nodes(record.get("node_list")),
        flags=frozenset(_words(record.get("flags"))),
        users=tuple(_list(record.get("users"))),
        accounts=tuple(_list(record.get("accounts"))),
    )


def configuration(body: Record) -> Mapping[str, str]:
    """slurm.conf as ``scontrol show config`` prints it, as far as it is told; of any answer, who gives it."""
    meta = _record(body.get("meta"))
    server, plugin = _record(meta.get("slurm")), _record(meta.get("plugin"))
    about = {
        "SLURM_VERSION": _text(server.get("release")),
        "ClusterName": _text(server.get("cluster")),
        "AccountingStorageType": _text(plugin.get("accounting_storage")),
    }
    told = {name: _printed(name, value) for name, value in _record(body.get("slurm_conf")).items()}
    return {name: value for name, value in {**about, **told}.items() if value}


_IN_SECONDS = ("KillWait", "MessageTimeout", "MinJobAge", "SlurmctldTimeout", "SlurmdTimeout", "UnkillableStepTimeout")


def _printed(name: str, value: object) -> str:
    if isinstance(value, list):
        return ",".join(word for word in value if isinstance(word, str))
    if isinstance(value, bool):
        return "Yes" if value else "No"
    if isinstance(value, dict) and not value.get("set"):
        return ""
    if (count := number(value)) is not None:
        return f"{count:g} sec" if name in _IN_SECONDS else f"{count:.0f}"
    return _text(value)
