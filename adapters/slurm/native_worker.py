"""pyslurm at work, in a worker process: it blocks, holds the interpreter lock, and may end its process.

The interpreter may have nothing but pyslurm and, by its path, our own packages: nothing else is imported. pyslurm's
objects are read by attribute only: one of their methods crashes. pyslurm has None for 0, also for the number of an
array's task, and subtracts 128 from exit codes from 128 on.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from adapters.shared.printing import printable
from adapters.slurm.native import PYSLURM_REQUIRED
from adapters.slurm.options import UnsupportedOptionError, convert_options
from adapters.slurm.records import (
    Partition,
    Reservation,
    SlurmJob,
    SlurmNode,
    SlurmSubmission,
    expand_hostlist,
    fold_job_ids,
    format_ranges,
    gpus_per_node,
    parse_gpus,
    parse_tasks,
)
from adapters.slurm.states import UNFINISHED_STATES, query_error, refusal_error
from provisioner.interfaces import RejectedError, UnavailableError
from provisioner.model import FaultKind

_PYSLURM_JOB_ENVIRONMENT = {"SLURM_EXPORT_ENV": "NIL"}
"""The environment of jobs: that of ``sbatch --export=NIL``. (pyslurm passes everything on if this is empty.)"""
_SIGKILL, _STEPS_ONLY = 9, 1 << 2
_PYSLURM_NOTHING_TO_CANCEL = ("Invalid job id specified", "Job/step already completing or completed")
_PYSLURM_ACTIVE_STATES = frozenset({"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING"})

T = TypeVar("T")


class NativeWorker:
    """Serves the calls of :class:`adapters.slurm.native.SlurmNativeClient`."""

    def __init__(self) -> None:
        os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"
        configured = os.environ.get("SLURM_CONF", "")
        hide_from_jobs()
        self._pyslurm = _import_pyslurm()
        self._libslurm = _libslurm()
        self._libslurm.slurm_api_version.restype = ctypes.c_long
        check_release(self._pyslurm.__version__, self._libslurm.slurm_api_version() >> 16)
        _check_configuration(self._libslurm, configured)
        self._pyslurm.slurm_init()  # without a configuration this process ends, with a message to the parent

    # ---------------------------------------------------------------------------------------------------- questions

    def own_jobs(self) -> list[SlurmJob]:
        uid = os.getuid()
        return [job for each in self._jobs() if each.user_id == uid for job in convert_jobs(each)]

    def active_jobs(self, partitions: Collection[str]) -> list[SlurmJob]:
        found = (each for each in self._jobs() if each.state in _PYSLURM_ACTIVE_STATES)
        wanted = (each for each in found if not set((each.partition or "").split(",")).isdisjoint(partitions))
        return [job for each in wanted for job in convert_jobs(each)]

    def ended_jobs(self, remote_ids: Collection[str], since: float) -> list[SlurmJob] | None:
        """Return these jobs, or all of ours that ended since then; None where there is no accounting."""
        if not self.configuration().get("AccountingStorageType", "").endswith("slurmdbd"):
            return None
        uid, database = os.getuid(), self._pyslurm.db
        numbers = sorted({int(each.partition("_")[0]) for each in remote_ids})
        query = {"ids": numbers} if numbers else {"users": [uid], "start_time": int(since)}
        found = self._query(lambda: database.Jobs.load(database.JobFilter(**query)), "the accounting database")
        jobs = [convert_accounted_job(each) for each in found.values() if each.user_id == uid]
        return [job for job in jobs if job.state != "PENDING" and (not remote_ids or job.remote_id in remote_ids)]

    def nodes(self) -> list[SlurmNode]:
        found = list(self._query(self._pyslurm.Nodes.load).values())
        if "gres/gpu" in self.configuration().get("AccountingStorageTRES", "").split(","):
            return [convert_node(each, None) for each in found]
        # Slurm reports a node's allocated GPUs to pyslurm only where they are accounted for.
        placed = [job for each in self._jobs() if each.allocated_nodes for job in convert_jobs(each)]
        gpus = {each.name: count_gpus(each.configured_gres) for each in found}
        used = used_gpus_by_node([job for job in placed if job.state in _PYSLURM_ACTIVE_STATES], gpus)
        return [convert_node(each, used.get(each.name, {})) for each in found]

    def partitions(self) -> list[Partition]:
        return [convert_partition(each) for each in self._query(self._pyslurm.Partitions.load).values()]

    def reservations(self) -> list[Reservation]:
        return [convert_reservation(each) for each in self._query(self._pyslurm.Reservations.load).values()]

    def configuration(self) -> Mapping[str, str]:
        return convert_configuration(self._query(self._pyslurm.slurmctld.Config.load))

    def _jobs(self) -> list[Any]:
        return list(self._query(self._pyslurm.Jobs.load).values())

    def _query(self, question: Callable[[], T], server: str = "slurmctld") -> T:
        try:
            return question()
        except self._pyslurm.PyslurmError as error:
            raise query_error(f"{server}: {error}") from None

    # -------------------------------------------------------------------------------------------------------- orders

    def ready(self) -> None:
        """Do nothing: this object exists once everything is ready."""

    def submit(self, submission: SlurmSubmission) -> int | str:
        """Return the job id, or a message if slurmctld was certainly not asked."""
        try:
            return int(self._pyslurm.JobSubmitDescription(**job_description(submission)).submit())
        except self._pyslurm.PyslurmError as error:
            refusal = refusal_error(str(error))
            if isinstance(refusal, UnavailableError):
                return str(refusal)
            raise refusal from None
        except (ValueError, TypeError, OverflowError, AttributeError) as error:  # before anything was sent
            raise RejectedError(f"pyslurm: {printable(str(error), 300)}", FaultKind.CONFIG) from None

    def cancel(self, remote_ids: Sequence[str], kill: bool) -> None:
        """Cancel jobs by the library's own call, as scancel does. A failed one does not spare the others.

        pyslurm knows jobs by number only, and the number of one task is that of its whole array. With ``kill`` the
        drone, a step, gets SIGKILL first, if there is one.
        """
        failures = []
        for remote_id in fold_job_ids(remote_ids):
            if kill:
                self._libslurm.slurm_kill_job2(remote_id.encode(), _SIGKILL, _STEPS_ONLY, None)
            ctypes.set_errno(0)
            if self._libslurm.slurm_kill_job2(remote_id.encode(), _SIGKILL, 0, None) != 0:
                message = self._pyslurm.core.error.slurm_strerror(ctypes.get_errno())
                if message not in _PYSLURM_NOTHING_TO_CANCEL:
                    failures.append(refusal_error(f"{remote_id}: {message}"))
        if failures:
            raise failures[0]


# ------------------------------------------------------------------------------------------------------ initialization


def hide_from_jobs() -> None:
    """Remove SLURM_* from ``os.environ``, but keep it for the library.

    pyslurm passes such variables on to jobs, a token too.
    """
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        os.putenv(name, os.environ.pop(name))
    os.putenv("SLURM_BITSTR_LEN", "0")  # else the tasks of a long array end with "..."


def _unusable(message: str) -> UnavailableError:
    return UnavailableError(message, FaultKind.CONFIG)


def _import_pyslurm() -> Any:
    try:
        return import_module("pyslurm")
    except ModuleNotFoundError as error:
        if error.name != "pyslurm":
            raise
        raise _unusable(PYSLURM_REQUIRED) from None
    except ImportError as error:  # built with another libslurm than there is now
        why = f"{printable(str(error), 300)}. It is built for one release of Slurm: {PYSLURM_REQUIRED}"
        raise _unusable(f"pyslurm does not load: {why}") from None


def _libslurm() -> ctypes.CDLL:
    """Return the very library that pyslurm has loaded."""
    everything = ctypes.CDLL(None, use_errno=True)
    if not hasattr(everything, "slurm_kill_job2"):
        raise _unusable(f"pyslurm is installed without libslurmfull.so: {PYSLURM_REQUIRED}")
    return everything


def check_release(pyslurm_version: str, api: int) -> None:
    """Check that pyslurm is for the installed release: structures differ between releases.

    ``api``: the library's own number, one more with each release: 41 is that of 24.05.

    Raises:
        UnavailableError: (CONFIG) pyslurm is not for this library.
    """
    numbers = re.match(r"(\d+)\.(\d+)", pyslurm_version)
    built_for = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    steps = api - 41
    installed = (24 + steps // 2, 11 if steps % 2 else 5)
    if built_for != installed:
        one, other = (f"{year}.{month:02}" for year, month in (built_for, installed))
        releases = f"is for Slurm {one}, and the libslurm of this host is of {other}"
        raise _unusable(f"pyslurm {pyslurm_version} {releases}: {PYSLURM_REQUIRED}")


def _check_configuration(libslurm: ctypes.CDLL, configured: str) -> None:
    """Check that slurm.conf exists: without it libslurm waits a minute, and then ends the process.

    Where one may come over the network the library finds that out itself, which is quick. ``configured``: SLURM_CONF.
    """
    default = ctypes.c_char_p.in_dll(libslurm, "default_slurm_config_file").value or b"/etc/slurm/slurm.conf"
    if configured and not os.path.exists(configured):
        raise _unusable(f"slurm.conf is missing: SLURM_CONF={printable(configured)} does not exist")
    if not configured and os.path.lexists(default) and not os.path.exists(default):
        raise _unusable(f"slurm.conf is missing: {printable(os.fsdecode(default))} is a dangling link")


def job_description(submission: SlurmSubmission) -> Mapping[str, object]:
    """Return a submission as attributes of pyslurm's job description."""
    try:
        options = convert_options(submission.options, "native")
    except UnsupportedOptionError as error:
        raise RejectedError(str(error), FaultKind.CONFIG) from None
    attributes: dict[str, object] = {
        "profile_types": "none",  # by default pyslurm requests all of them
        **options,
        "name": submission.name,
        "script": submission.script.decode("utf-8", "surrogateescape"),
        "nodes": 1,
        "ntasks": 1,
        "cpus_per_task": submission.cpus,
        "is_requeueable": False,
        "environment": dict(_PYSLURM_JOB_ENVIRONMENT),
        "working_directory": "/",
        "standard_output": submission.output,
    }
    if submission.tasks:
        attributes["array"] = format_ranges(submission.tasks)
    if submission.memory_mib:
        attributes["memory_per_node"] = submission.memory_mib
    if submission.minutes:
        attributes["time_limit"] = submission.minutes
    if submission.notice_s:
        attributes["signal"] = {"signal": 15, "time": submission.notice_s, "batch_only": True}
    return attributes


# ------------------------------------------------------------------------------------------------------------- records

_PYSLURM_BASE_STATES = {"CONFIGURING": "RUNNING", "STAGE_OUT": "COMPLETING"}
"""Flags that pyslurm reports in place of the base state, and an equivalent base state."""


def convert_jobs(record: Any) -> Iterator[SlurmJob]:
    """Yield the jobs of one record of slurmctld: a job, a task, or all waiting tasks of an array."""
    ids = _remote_ids(record)
    count = max(1, record.num_nodes or 1)
    cpus = max(1, -(-(record.cpus or 1) // count))
    first = replace(
        _job(record, ids[0], _user(record.user_id or 0), record.allocated_nodes),
        preempted_at=_number(record.preempt_time),
        node_count=count,
        cpus=cpus,
        memory_mib=int(_number(record.memory_per_cpu) * cpus or _number(record.memory_per_node)),
        gpus=_requested_gpus(record, count),
        required_nodes=_nodes(record.required_nodes),
    )
    yield first
    for remote_id in ids[1:]:
        yield replace(first, remote_id=remote_id)


def convert_accounted_job(record: Any) -> SlurmJob:
    """Return a job of the accounting database."""
    return _job(record, _remote_ids(record)[0], record.user_name or "", record.nodelist)


def _job(record: Any, remote_id: str, user: str, nodes: str | None) -> SlurmJob:
    state = (record.state or "").upper()
    base = _PYSLURM_BASE_STATES.get(state, state)
    ended = base not in UNFINISHED_STATES
    reason = record.state_reason
    return SlurmJob(
        remote_id=remote_id,
        name=record.name or "",
        state=base,
        flags=frozenset({state}) if state == "COMPLETING" or state in _PYSLURM_BASE_STATES else frozenset(),
        reason="" if reason in (None, "None") else str(reason),
        user=user,
        account=record.account or "",
        partition=record.partition or "",
        qos=record.qos or "",
        submitted_at=_number(record.submit_time),
        started_at=_number(record.start_time),
        ends_at=_number(record.end_time),
        limit_s=60 * _number(record.time_limit),
        nodes=_nodes(nodes),
        exit_code=record.exit_code or 0 if ended else None,
        signal=record.exit_code_signal or 0 if ended else 0,
        restarts=record.requeue_count or 0,
    )


def _remote_ids(record: Any) -> tuple[str, ...]:
    """Return the ids of a record's jobs, as ``squeue -r`` prints them."""
    if not record.array_id:
        return (str(record.id),)
    if record.array_tasks_waiting:
        try:
            tasks = parse_tasks(record.array_tasks_waiting)
        except ValueError as error:
            raise UnavailableError(f"pyslurm reports the tasks of an array in an unknown format: {error}") from None
        return tuple(f"{record.array_id}_{task}" for task in tasks)
    return (f"{record.array_id}_{record.array_task_id or 0}",)


@cache
def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def convert_node(record: Any, used_gpus: Mapping[str, int] | None) -> SlurmNode:
    """Return a node. ``used_gpus``: those of its running jobs by type, where Slurm does not count them itself."""
    words = [word.rstrip("*~#!%$@^-") for word in (record.state or "UNKNOWN").upper().split("+")]
    gpus = count_gpus(record.configured_gres)
    used = count_gpus(record.allocated_gres, total=True) if used_gpus is None else used_gpus
    return SlurmNode(
        name=record.name,
        state=words[0],
        flags=frozenset(words[1:]),
        partitions=tuple(record.partitions or ()),
        features=tuple(record.active_features or record.available_features or ()),
        cpus=record.total_cpus or 0,
        used_cpus=record.allocated_cpus or 0,
        memory_mib=record.real_memory or 0,
        used_memory_mib=record.allocated_memory or 0,
        gpus=gpus,
        used_gpus=_typed(used, gpus),
        reason=record.reason or "",
        threads_per_core=record.threads_per_core or 0,
    )


def used_gpus_by_node(
    jobs: Sequence[SlurmJob], nodes: Mapping[str, Mapping[str, int]]
) -> Mapping[str, Mapping[str, int]]:
    """Return the GPUs that running jobs use, by node and type.

    ``nodes``: the GPUs of each. GPUs without a type are of the node's only type.
    """
    used: dict[str, Counter[str]] = {name: Counter() for name in nodes}
    for job in jobs:
        for name in job.nodes if job.state != "PENDING" else ():
            used.setdefault(name, Counter()).update(job.gpus)
    return {name: _typed(counts, nodes.get(name, {})) for name, counts in used.items()}


def _typed(used: Mapping[str, int], gpus: Mapping[str, int]) -> Mapping[str, int]:
    """Return used GPUs of a node: those without a type are of its only type."""
    if "" not in used or len(gpus) != 1:
        return dict(used)
    return {kind: sum(used.values()) for kind in gpus}


def convert_partition(record: Any) -> Partition:
    """Return a partition."""
    return Partition(
        name=record.name,
        up=record.state == "UP",
        nodes=_nodes(record.nodes),
        max_s=60 * _number(record.max_time),
        tier=record.priority_tier or 0,
        grace_s=_number(record.preemption_grace_time),
        preempt_mode=record.preempt_mode or "",
        max_memory_per_cpu_mib=int(_number(record.max_memory_per_cpu)),
        max_memory_per_node_mib=int(_number(record.max_memory_per_node)),
        max_cpus_per_node=int(_number(record.max_cpus_per_node)),
        default=bool(record.is_default),
    )


_RESERVATION_FLAGS = {"MAINTENANCE": "MAINT", "IGNORE_RUNNING_JOBS": "IGNORE_JOBS"}
"""pyslurm's name of a flag -> Slurm's."""


def convert_reservation(record: Any) -> Reservation:
    """Return a reservation."""
    names = (flag.name for flag in type(record.flags) if flag in record.flags)
    return Reservation(
        name=record.name or "",
        starts_at=_number(record.start_time),
        ends_at=_number(record.end_time),
        nodes=_nodes(record.nodes),
        flags=frozenset(_RESERVATION_FLAGS.get(name, name) for name in names),
        users=tuple(record.users or ()),
        accounts=tuple(record.accounts or ()),
    )


_PYSLURM_SECONDS = {"KillWait": "kill_wait_time", "MinJobAge": "min_job_age"}
_PYSLURM_SETTINGS = {
    "SLURM_VERSION": "version",
    "MaxArraySize": "max_array_size",
    "PreemptType": "preempt_type",
    "PreemptMode": "preempt_mode",
    "AccountingStorageType": "accounting_storage_type",
    "AccountingStorageTRES": "accounting_storage_tres",
    "PrivateData": "private_data",
}
"""scontrol's name of a setting -> pyslurm's."""


def convert_configuration(record: Any) -> Mapping[str, str]:
    """Return the settings of slurm.conf that are asked for, as ``scontrol show config`` prints them."""
    found = {name: f"{_number(getattr(record, attribute)):g} sec" for name, attribute in _PYSLURM_SECONDS.items()}
    for name, attribute in _PYSLURM_SETTINGS.items():
        value = getattr(record, attribute, None)
        if isinstance(value, dict | list | tuple):
            value = ",".join(str(item) for item in value)
        found[name] = "" if value is None else str(value)
    return {name: value for name, value in found.items() if value}


def count_gpus(gres: Mapping[str, Any] | None, *, total: bool = False) -> Mapping[str, int]:
    """Return GPUs by type from ``{"gpu:a100": 4}``. With ``total`` the GPUs without a type include those with one."""
    counts = {name: each.get("count", 0) if isinstance(each, dict) else each for name, each in (gres or {}).items()}
    return parse_gpus(",".join(f"{name}{'=' if total else ':'}{count}" for name, count in counts.items()))


def _requested_gpus(record: Any, nodes: int) -> Mapping[str, int]:
    per_node = count_gpus(record.gres_per_node)
    tres = record.requested_tres
    if per_node or tres is None or not tres.gres:
        return per_node
    total = count_gpus({str(name): getattr(item, "count", item) for name, item in tres.gres.items()}, total=True)
    return gpus_per_node(total, nodes)


def _number(value: object) -> float:
    """Return a number; 0 for None and for what has no limit, for which pyslurm has words."""
    return float(value) if isinstance(value, int | float) else 0.0


def _nodes(text: str | None) -> tuple[str, ...]:
    try:
        return expand_hostlist(text or "")
    except ValueError as error:
        raise UnavailableError(f"pyslurm reports an invalid list of nodes: {error}") from None
