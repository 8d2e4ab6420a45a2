"""Transport by pyslurm, which blocks, holds the interpreter lock and may end its process: it runs in worker processes.

The worker's interpreter may have nothing but pyslurm and, by its path, our own packages: nothing
else is imported here. pyslurm's objects are read by attribute only: one of their methods crashes.
pyslurm has None for 0, also for the number of an array's task, and subtracts 128 from exit codes
from 128 on.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar

from adapters.shared.housekeeping import close_all
from adapters.shared.printing import printable
from adapters.slurm import records
from adapters.slurm.options import convert_options
from adapters.slurm.records import (
    Partition,
    Reservation,
    SlurmClient,
    SlurmJob,
    SlurmJobs,
    SlurmNode,
    SlurmSubmission,
    same,
)
from adapters.slurm.states import query_error, refusal_error
from provisioner.interfaces import OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import FaultKind
from provisioner.worker_process import WorkerProcess

if TYPE_CHECKING:  # the worker's interpreter has nothing of what the settings need
    from adapters.slurm.settings import SlurmSiteConfig

T = TypeVar("T")

_WORKER = "adapters.slurm.native:NativeWorker"
_NO_CONFIGURATION = re.compile(
    r"could not establish a configuration source|unable to process configuration file|fetch_config",
    re.IGNORECASE,
)
PYSLURM_REQUIRED = (
    "the native transport needs pyslurm: install the extra `slurm-native` on a host of the cluster"
    " with a C compiler, Slurm's headers and libslurmfull.so, of the release of Slurm that this pyslurm is for"
)
_SIGKILL = 9
_STEPS_ONLY = 1 << 2
_PYSLURM_NOTHING_TO_CANCEL = (
    "Invalid job id specified",
    "Job/step already completing or completed",
)
_PYSLURM_ACTIVE = frozenset({"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING"})


class SlurmNativeClient(SlurmClient):
    """The cluster of this host's slurm.conf, as the account that this process runs as."""

    def __init__(self, config: SlurmSiteConfig, name: str) -> None:
        self._config = config
        self._name = name
        self._workers: dict[str, WorkerProcess] = {}
        """By purpose: a slow submission does not delay a poll."""
        self._entered = False

    async def __aenter__(self) -> Self:
        self._entered = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._entered = False
        await close_all(self._workers)

    async def own_jobs(self) -> SlurmJobs:
        return await self._query(list, "own_jobs")

    async def ended_jobs(self, remote_ids: Collection[str], since: float) -> SlurmJobs | None:
        answer = await self._query(object, "ended_jobs", tuple(remote_ids), since)
        assert answer is None or isinstance(answer, list)
        return answer

    async def active_jobs(self, partitions: Collection[str]) -> SlurmJobs:
        return await self._query(list, "active_jobs", tuple(partitions))

    async def nodes(self, *, reserves: bool = False) -> Sequence[SlurmNode]:
        return await self._query(list, "nodes")

    async def partitions(self) -> Sequence[Partition]:
        return await self._query(list, "partitions")

    async def reservations(self) -> Sequence[Reservation]:
        return await self._query(list, "reservations")

    async def configuration(self) -> Mapping[str, str]:
        return await self._query(dict, "configuration")

    async def submit(self, submission: SlurmSubmission) -> int:
        answer = await self._order(self._config.submit_deadline, "submit", submission)
        if isinstance(answer, str):
            raise UnavailableError(f"submit: {answer}")
        assert isinstance(answer, int)
        return answer

    async def cancel(self, remote_ids: Sequence[str], *, kill: bool = False) -> None:
        if remote_ids:
            await self._order(self._config.deadline, "cancel", tuple(remote_ids), kill)

    async def _query(self, kind: type[T], method: str, *args: object, purpose: str = "poll") -> T:
        try:
            answer = await self._worker(purpose).call(
                method, *args, deadline_s=self._config.deadline
            )
        except UnavailableError as error:
            if not _NO_CONFIGURATION.search(str(error)):
                raise
            message = "libslurm finds no usable slurm.conf on this host (SLURM_CONF, its default path, or the network)"
            raise _unusable(
                f"{message}: the native transport works on hosts of the cluster only. {error}"
            ) from None
        assert isinstance(answer, kind)
        return answer

    async def _order(self, deadline_s: float, method: str, *args: object) -> object:
        # an order that fails before that has not been sent
        await self._query(object, "ready", purpose="orders")
        try:
            return await self._worker("orders").call(method, *args, deadline_s=deadline_s)
        except UnavailableError as error:  # the worker ended or did not answer
            raise OutcomeUnknownError(f"{method}: {error}") from None

    def _worker(self, purpose: str) -> WorkerProcess:
        if not self._entered:
            raise UnavailableError(f"site {self._name} is not connected")
        if purpose not in self._workers:
            self._workers[purpose] = WorkerProcess(_WORKER, python=self._config.native.python)
        return self._workers[purpose]


# --------------------------------------------------------------------------------------------------
# the worker process


class NativeWorker:
    """Serves the calls of :class:`adapters.slurm.native.SlurmNativeClient`."""

    def __init__(self) -> None:
        os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"
        configured = os.environ.get("SLURM_CONF", "")
        hide_from_jobs()
        self._pyslurm = _import_pyslurm()
        # the very library that pyslurm has loaded
        self._libslurm = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libslurm, "slurm_kill_job2"):
            raise _unusable(f"pyslurm is installed without libslurmfull.so: {PYSLURM_REQUIRED}")
        self._libslurm.slurm_api_version.restype = ctypes.c_long
        check_release(self._pyslurm.__version__, self._libslurm.slurm_api_version() >> 16)
        _check_configuration(self._libslurm, configured)
        # without a configuration this process ends, with a message to the parent
        self._pyslurm.slurm_init()

    def own_jobs(self) -> list[SlurmJob]:
        uid = os.getuid()
        return self._jobs(lambda record: record.user_id == uid)

    def active_jobs(self, partitions: Collection[str]) -> list[SlurmJob]:
        return self._jobs(
            lambda record: not set((record.partition or "").split(",")).isdisjoint(partitions), True
        )

    def ended_jobs(self, remote_ids: Collection[str], since: float) -> list[SlurmJob] | None:
        if not self.configuration().get("AccountingStorageType", "").endswith("slurmdbd"):
            return None
        uid = os.getuid()
        database = self._pyslurm.db
        numbers = sorted({int(each.partition("_")[0]) for each in remote_ids})
        query = {"ids": numbers} if numbers else {"users": [uid], "start_time": int(since)}
        found = self._query(
            lambda: database.Jobs.load(database.JobFilter(**query)), "the accounting database"
        )
        jobs = self._read(
            convert_accounted_job, [each for each in found.values() if each.user_id == uid]
        )
        return [
            job
            for job in jobs
            if job.state != "PENDING" and (not remote_ids or job.remote_id in remote_ids)
        ]

    def nodes(self) -> list[SlurmNode]:
        nodes = self._read(convert_node, self._query(self._pyslurm.Nodes.load).values())
        if "gres/gpu" in self.configuration().get("AccountingStorageTRES", "").split(","):
            return nodes
        # Slurm reports a node's allocated GPUs to pyslurm only where they are accounted for.
        placed = self._jobs(lambda record: bool(record.allocated_nodes), True)
        used = used_gpus_by_node(placed, {node.name: node.gpus for node in nodes})
        return [replace(node, used_gpus=used.get(node.name, {})) for node in nodes]

    def partitions(self) -> list[Partition]:
        found = self._query(self._pyslurm.Partitions.load).values()
        return self._read(
            lambda each: records.read(Partition, _attributes(each, _PYSLURM_PARTITION)), found
        )

    def reservations(self) -> list[Reservation]:
        found = self._query(self._pyslurm.Reservations.load).values()
        return self._read(
            lambda each: records.read(Reservation, _attributes(each, _PYSLURM_RESERVATION)), found
        )

    def configuration(self) -> Mapping[str, str]:
        return _settings(self._query(self._pyslurm.slurmctld.Config.load))

    def _jobs(self, is_wanted: Callable[[Any], bool], only_active: bool = False) -> list[SlurmJob]:
        found = self._query(self._pyslurm.Jobs.load).values()
        wanted = [
            each
            for each in found
            if is_wanted(each) and (not only_active or each.state in _PYSLURM_ACTIVE)
        ]
        return [job for jobs in self._read(convert_job, wanted) for job in jobs]

    def _query(self, question: Callable[[], T], server: str = "slurmctld") -> T:
        try:
            return question()
        except self._pyslurm.PyslurmError as error:
            raise query_error(f"{server}: {error}") from None

    def _read(self, convert: Callable[[Any], T], found: Iterable[Any]) -> list[T]:
        try:
            return list(map(convert, found))
        except ValueError as error:
            raise UnavailableError(f"pyslurm reports an invalid record: {error}") from None

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
        except (ValueError, TypeError, OverflowError, AttributeError) as error:
            # before anything was sent
            raise RejectedError(
                f"pyslurm: {printable(str(error), 300)}", FaultKind.CONFIG
            ) from None

    def cancel(self, remote_ids: Sequence[str], kill: bool) -> None:
        """Cancel jobs by the library's own call, as scancel does. A failed one does not spare the others.

        pyslurm knows jobs by number only, and the number of one task is that of its whole array.
        With ``kill`` the drone, a step, gets SIGKILL first, if there is one.
        """
        failures = []
        for remote_id in records.fold_job_ids(remote_ids):
            if kill:
                self._libslurm.slurm_kill_job2(remote_id.encode(), _SIGKILL, _STEPS_ONLY, None)
            ctypes.set_errno(0)
            if self._libslurm.slurm_kill_job2(remote_id.encode(), _SIGKILL, 0, None) != 0:
                message = self._pyslurm.core.error.slurm_strerror(ctypes.get_errno())
                if message not in _PYSLURM_NOTHING_TO_CANCEL:
                    failures.append(refusal_error(f"{remote_id}: {message}"))
        if failures:
            raise failures[0]


def hide_from_jobs() -> None:
    """Remove SLURM_* from ``os.environ``, but keep it for the library: pyslurm passes it on to jobs, a token too."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        os.putenv(name, os.environ.pop(name))
    os.putenv("SLURM_BITSTR_LEN", "0")  # else the tasks of a long array end with "..."


def _unusable(message: str) -> UnavailableError:
    return UnavailableError(message, FaultKind.CONFIG)


def _import_pyslurm() -> Any:
    try:
        return import_module("pyslurm")
    except ModuleNotFoundError:
        raise _unusable(PYSLURM_REQUIRED) from None
    except ImportError as error:  # built with another libslurm than there is now
        why = f"{printable(str(error), 300)}. It is built for one release of Slurm: {PYSLURM_REQUIRED}"
        raise _unusable(f"pyslurm does not load: {why}") from None


def check_release(pyslurm_version: str, api: int) -> None:
    """Raise UnavailableError if pyslurm is not for the installed release: structures differ between releases.

    ``api``: the library's own number, one more with each release: 41 is that of 24.05.
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

    Where one may come over the network the library finds that out itself, which is quick.
    ``configured``: SLURM_CONF.
    """
    default = (
        ctypes.c_char_p.in_dll(libslurm, "default_slurm_config_file").value
        or b"/etc/slurm/slurm.conf"
    )
    if configured and not os.path.exists(configured):
        raise _unusable(f"slurm.conf is missing: SLURM_CONF={printable(configured)} does not exist")
    if not configured and os.path.lexists(default) and not os.path.exists(default):
        raise _unusable(
            f"slurm.conf is missing: {printable(os.fsdecode(default))} is a dangling link"
        )


def job_description(submission: SlurmSubmission) -> Mapping[str, object]:
    return {
        "profile_types": "none",  # by default pyslurm requests all of them
        **convert_options(submission.options, "native")[0],
        "name": submission.name,
        "script": submission.script.decode("utf-8", "surrogateescape"),
        "array": records.format_ranges(submission.tasks) or None,
        "nodes": 1,
        "ntasks": 1,
        "cpus_per_task": submission.cpus,
        "memory_per_node": submission.memory_mib or None,
        "time_limit": submission.minutes or None,
        "signal": {"signal": 15, "time": submission.notice_s, "batch_only": True}
        if submission.notice_s
        else None,
        "is_requeueable": False,
        # as sbatch --export=NIL; if empty, pyslurm passes everything on
        "environment": {"SLURM_EXPORT_ENV": "NIL"},
        "working_directory": "/",
        "standard_output": submission.output,
    }


_PYSLURM_JOB = {**records.SLURMCTLD_JOB, "state": "state", "restarts": "requeue_count"}
_PYSLURM_ACCOUNTED_JOB = {**_PYSLURM_JOB, "user": "user_name", "nodes": "nodelist"}
_PYSLURM_LISTED_JOB = {
    **_PYSLURM_JOB,
    **same("cpus", "memory_per_cpu", "memory_per_node", "required_nodes", "comment"),
    "preempted_at": "preempt_time",
    "nodes": "allocated_nodes",
    "node_count": "num_nodes",
}
_PYSLURM_NODE = {
    **same("name", "state", "partitions", "threads_per_core"),
    "features": "active_features",
    "cpus": "total_cpus",
    "used_cpus": "allocated_cpus",
    "memory_mib": "real_memory",
    "used_memory_mib": "allocated_memory",
}
_PYSLURM_PARTITION = {
    **same("name", "nodes", "preempt_mode", "max_cpus_per_node", "oversubscribe", "min_nodes"),
    "up": "state",
    "max_s": "max_time",
    "tier": "priority_tier",
    "grace_s": "preemption_grace_time",
    "max_memory_per_cpu_mib": "max_memory_per_cpu",
    "max_memory_per_node_mib": "max_memory_per_node",
    "default": "is_default",
    "exclusive_user": "is_user_exclusive",
}
_PYSLURM_RESERVATION = {**same("name", "nodes"), "starts_at": "start_time", "ends_at": "end_time"}
_PYSLURM_SETTINGS = {
    "SLURM_VERSION": "version",
    "MaxArraySize": "max_array_size",
    "KillWait": "kill_wait_time",
    "MinJobAge": "min_job_age",
    "PreemptType": "preempt_type",
    "PreemptMode": "preempt_mode",
    "AccountingStorageType": "accounting_storage_type",
    "AccountingStorageTRES": "accounting_storage_tres",
    "PrivateData": "private_data",
    "SelectType": "select_type",
}
"""Our names, which are scontrol's for settings, and pyslurm's attributes."""


def _attributes(record: Any, names: Mapping[str, str]) -> dict[str, Any]:
    return {ours: getattr(record, attribute) for ours, attribute in names.items()}


def convert_job(record: Any) -> list[SlurmJob]:
    """Return the jobs of one record of slurmctld: a job, a task, or all waiting tasks of an array."""
    tres = _gres_text(record.requested_tres and record.requested_tres.gres, total=True)
    own = {
        "user": _user(record.user_id or 0),
        "tres_per_node": _gres_text(record.gres_per_node),
        "tres": tres,
    }
    return _read_jobs(record, {**_attributes(record, _PYSLURM_LISTED_JOB), **own})


def convert_accounted_job(record: Any) -> SlurmJob:
    return _read_jobs(record, _attributes(record, _PYSLURM_ACCOUNTED_JOB))[0]


def _read_jobs(record: Any, raw: Mapping[str, Any]) -> list[SlurmJob]:
    exit_code = f"{record.exit_code or 0}:{record.exit_code_signal or 0}"
    ids = [str(record.id)]
    if record.array_id and record.array_tasks_waiting:
        ids = [
            f"{record.array_id}_{task}" for task in records.parse_tasks(record.array_tasks_waiting)
        ]
    elif record.array_id:
        ids = [f"{record.array_id}_{record.array_task_id or 0}"]
    job = records.read_job({**raw, "remote_id": ids[0], "exit_code": exit_code})
    return [replace(job, remote_id=remote_id) for remote_id in ids]


@cache
def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def convert_node(record: Any) -> SlurmNode:
    gpus = records.parse_gpus(_gres_text(record.configured_gres))
    used = records.parse_gpus(_gres_text(record.allocated_gres, total=True), records.EVERY_SHARE)
    return records.read_node(
        {**_attributes(record, _PYSLURM_NODE), "gpus": gpus, "used_gpus": _typed(used, gpus)}
    )


def used_gpus_by_node(
    jobs: SlurmJobs, nodes: Mapping[str, Mapping[str, int]]
) -> Mapping[str, Mapping[str, int]]:
    """Return the GPUs that running jobs use, by node and type. ``nodes``: the GPUs of each."""
    used: dict[str, Counter[str]] = {name: Counter() for name in nodes}
    for job in jobs:
        for name in job.nodes if job.state != "PENDING" else ():
            used.setdefault(name, Counter()).update(job.gpus)
    return {name: _typed(counts, nodes.get(name, {})) for name, counts in used.items()}


def _typed(used: Mapping[str, int], gpus: Mapping[str, int]) -> Mapping[str, int]:
    """Return used GPUs of a node: those without a type are of its only type."""
    return (
        {kind: sum(used.values()) for kind in gpus} if "" in used and len(gpus) == 1 else dict(used)
    )


def _settings(record: Any) -> Mapping[str, str]:
    found = {
        name: getattr(record, attribute, None) for name, attribute in _PYSLURM_SETTINGS.items()
    }
    lists = {
        name: ",".join(map(str, value))
        for name, value in found.items()
        if isinstance(value, dict | list | tuple)
    }
    return {
        name: text for name, value in found.items() if (text := str(lists.get(name, value) or ""))
    }


def _gres_text(gres: Mapping[str, Any] | None, *, total: bool = False) -> str:
    """Return ``{"gpu:a100": 4}`` as ``gpu:a100:4``, or as a total, ``gpu:a100=4``."""
    counts = {
        name: each["count"] if isinstance(each, dict) else each
        for name, each in (gres or {}).items()
    }
    sign = "=" if total else ":"
    return ",".join(f"{name}{sign}{getattr(each, 'count', each)}" for name, each in counts.items())
