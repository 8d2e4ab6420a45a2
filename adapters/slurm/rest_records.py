"""JSON of slurmrestd as records. A missing or odd field counts as empty; what identifies a job must be there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from adapters.slurm.records import (
    BASE_JOB_STATES,
    BASE_NODE_STATES,
    Partition,
    Reservation,
    SlurmJob,
    SlurmNode,
    expand_hostlist,
    gpus_per_node,
    parse_gpus,
    parse_tres,
    split_state,
)
from adapters.slurm.states import UNFINISHED_STATES
from provisioner.interfaces import UnavailableError

JsonObject = Mapping[str, Any]

_REST_JOB_ID = re.compile(r"(\d{1,10})(?:_(\d{1,10}|\*))?(?:\+\d{1,10})?")


@dataclass(frozen=True, slots=True)
class RestJobState:
    """A line of ``jobs/state/``.

    A waiting task has the number of its array, a started one a number of its own, which says nothing of the array:
    ``1_3`` (waiting) becomes ``6_3``. An array all of which was cancelled before it began is ``1_*``.
    """

    number: int
    task: int | None
    state: str
    flags: frozenset[str]
    all_tasks: bool = False


@dataclass(frozen=True, slots=True)
class RestJobDetails:
    """A record of ``job/{id}``: one job, one started task, or all waiting tasks of an array."""

    number: int
    array: int
    """0 for no array."""
    task: int | None
    """None for the waiting tasks of an array, all in one."""
    job: SlurmJob


# -------------------------------------------------------------------------------------------------------------- fields


def _number(value: object) -> float | None:
    """Return ``{set, infinite, number}`` or a plain number; None if it is missing or infinite."""
    if isinstance(value, dict):
        if not value.get("set") or value.get("infinite"):
            return None
        value = value.get("number")
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _float(value: object) -> float:
    return float(_number(value) or 0)


def _int(value: object) -> int:
    return int(_number(value) or 0)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _object(value: object) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _words(value: object) -> list[str]:
    """Return a list of words, or the words of a text with commas; older versions write one state as a text."""
    found = value if isinstance(value, list) else _text(value).split(",")
    return [word for word in found if isinstance(word, str) and word]


def _states(value: object) -> list[str]:
    return [word.upper() for word in _words(value)]


def _nodes(value: object) -> tuple[str, ...]:
    try:
        return expand_hostlist(",".join(_words(value)))
    except ValueError as error:
        raise UnavailableError(f"slurmrestd reports an invalid list of nodes: {error}") from None


# ---------------------------------------------------------------------------------------------------------------- jobs


def parse_job_state(record: JsonObject) -> RestJobState:
    """Return a line of ``jobs/state/``. UnavailableError if it is invalid: the listing would not be complete."""
    found = _REST_JOB_ID.fullmatch(str(record.get("job_id")))
    state, flags = split_state(_states(record.get("state")), BASE_JOB_STATES)
    if not found or not state:
        raise UnavailableError("slurmrestd reports the state of a job in an unknown format")
    task = int(found[2]) if found[2] and found[2] != "*" else None
    return RestJobState(int(found[1]), task, state, flags, all_tasks=found[2] == "*")


def parse_job_details(record: JsonObject) -> RestJobDetails:
    """Return a record of ``job/{id}``."""
    if not _int(record.get("job_id")):
        raise UnavailableError("slurmrestd reports a job without its number")
    number, array = _int(record["job_id"]), _int(record.get("array_job_id"))
    # None for no array, and for an array's waiting tasks, all in one
    task = _number(record.get("array_task_id")) if array else None
    times = [record.get(key) for key in ("submit_time", "start_time", "end_time", "time_limit")]
    job = _job(record, array, task, record.get("job_state"), record.get("state_reason"), times)
    count = max(1, _int(record.get("node_count")))
    tres = _text(record.get("tres_req_str"))
    total = parse_tres(tres).get("cpu", "")
    cpus = max(1, -(-(int(total) if total.isdecimal() else _int(record.get("cpus"))) // count))
    per_cpu = _number(record.get("memory_per_cpu"))
    job = replace(
        job,
        reason="" if job.state == "RUNNING" else job.reason,
        user=_text(record.get("user_name")),
        preempted_at=_float(record.get("preempt_time")),
        node_count=count,
        cpus=cpus,
        memory_mib=int(per_cpu * cpus) if per_cpu else _int(record.get("memory_per_node")),
        gpus=parse_gpus(_text(record.get("tres_per_node"))) or gpus_per_node(parse_gpus(tres), count),
        required_nodes=_nodes(record.get("required_nodes")),
    )
    return RestJobDetails(number, array, None if task is None else int(task), job)


def parse_accounted_job(record: JsonObject) -> SlurmJob:
    """Return a job of the accounting database."""
    times, array, state = (_object(record.get(key)) for key in ("time", "array", "state"))
    found = [times.get(key) for key in ("submission", "start", "end", "limit")]
    job = _job(
        record,
        _int(array.get("job_id")),
        _number(array.get("task_id")),
        state.get("current"),
        state.get("reason"),
        found,
    )
    return replace(job, user=_text(_object(record.get("association")).get("user")) or _text(record.get("user")))


def _job(
    record: JsonObject, array: int, task: float | None, states: object, reason: object, times: Sequence[object]
) -> SlurmJob:
    """Return the fields that slurmctld and accounting report, under the same name or under others."""
    state, flags = split_state(_states(states), BASE_JOB_STATES)
    exit_code = {} if state in UNFINISHED_STATES else _object(record.get("exit_code"))
    code, signal = _number(exit_code.get("return_code")), _object(exit_code.get("signal"))
    submitted_at, started_at, ends_at, limit_minutes = map(_float, times)
    return SlurmJob(
        remote_id=f"{array}_{task:.0f}" if array and task is not None else str(_int(record.get("job_id"))),
        name=_text(record.get("name")),
        state=state,
        flags=flags,
        reason="" if reason == "None" else _text(reason),
        account=_text(record.get("account")),
        partition=_text(record.get("partition")),
        qos=_text(record.get("qos")),
        submitted_at=submitted_at,
        started_at=started_at,
        ends_at=ends_at,
        limit_s=60 * limit_minutes,
        nodes=_nodes(record.get("nodes")),
        exit_code=None if code is None else int(code),
        signal=_int(signal.get("id", signal.get("signal_id"))),
        restarts=_int(record.get("restart_cnt")),
    )


# ---------------------------------------------------------------------------------------------------------- the cluster


def parse_node(record: JsonObject) -> SlurmNode:
    """Return a record of ``nodes/``."""
    if not _text(record.get("name")):
        raise UnavailableError("slurmrestd reports a node without a name")
    state, flags = split_state(_states(record.get("state")), BASE_NODE_STATES)
    return SlurmNode(
        name=record["name"],
        state=state or "UNKNOWN",
        flags=flags,
        partitions=tuple(_words(record.get("partitions"))),
        features=tuple(_words(record.get("active_features"))) or tuple(_words(record.get("features"))),
        cpus=_int(record.get("cpus")),
        used_cpus=_int(record.get("alloc_cpus")),
        memory_mib=_int(record.get("real_memory")),
        used_memory_mib=_int(record.get("alloc_memory")),
        gpus=parse_gpus(_text(record.get("gres"))),
        used_gpus=parse_gpus(_text(record.get("gres_used"))),
        reason=_text(record.get("reason")),
        threads_per_core=_int(record.get("threads")),
        # `gpu_spec` names the reserved cores: without them none is, whatever is configured
        restricted_cores_per_gpu=_int(record.get("res_cores_per_gpu")) if record.get("gpu_spec") else 0,
    )


def parse_partition(record: JsonObject) -> Partition:
    """Return a record of ``partitions/``."""
    if not _text(record.get("name")):
        raise UnavailableError("slurmrestd reports a partition without a name")
    maximums = _object(record.get("maximums"))
    return Partition(
        name=record["name"],
        up=_states(_object(record.get("partition")).get("state"))[:1] == ["UP"],
        nodes=_nodes(_object(record.get("nodes")).get("configured")),
        max_s=60 * _float(maximums.get("time")),
        tier=_int(_object(record.get("priority")).get("tier")),
        grace_s=_float(record.get("grace_time")),
        max_memory_per_cpu_mib=_int(maximums.get("partition_memory_per_cpu")),
        max_memory_per_node_mib=_int(maximums.get("partition_memory_per_node")),
        max_cpus_per_node=_int(maximums.get("cpus_per_node")),
        default="DEFAULT" in _states(record.get("flags")),  # reported by 26.05 only
    )


def parse_reservation(record: JsonObject) -> Reservation:
    """Return a record of ``reservations/``."""
    return Reservation(
        name=_text(record.get("name")),
        starts_at=_float(record.get("start_time")),
        ends_at=_float(record.get("end_time")),
        nodes=_nodes(record.get("node_list")),
        flags=frozenset(_states(record.get("flags"))),
        users=tuple(_words(record.get("users"))),
        accounts=tuple(_words(record.get("accounts"))),
    )


def parse_configuration(body: JsonObject) -> Mapping[str, str]:
    """Return slurm.conf as ``scontrol show config`` prints it, as far as it is reported, and the server's version."""
    meta = _object(body.get("meta"))
    server, plugin = _object(meta.get("slurm")), _object(meta.get("plugin"))
    about = {
        "SLURM_VERSION": _text(server.get("release")),
        "ClusterName": _text(server.get("cluster")),
        "AccountingStorageType": _text(plugin.get("accounting_storage")),
    }
    settings = {name: _setting(name, value) for name, value in _object(body.get("slurm_conf")).items()}
    return {name: value for name, value in {**about, **settings}.items() if value}


_SETTINGS_IN_SECONDS = ("KillWait", "MinJobAge")


def _setting(name: str, value: object) -> str:
    if isinstance(value, list):
        return ",".join(word for word in value if isinstance(word, str))
    if isinstance(value, bool):
        return "Yes" if value else "No"
    if isinstance(value, dict) and not value.get("set"):
        return ""
    if (count := _number(value)) is not None:
        return f"{count:g} sec" if name in _SETTINGS_IN_SECONDS else f"{count:.0f}"
    return _text(value)
