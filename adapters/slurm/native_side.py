"""pyslurm at work. Lives in a child process: it blocks, holds the interpreter lock, and may end its process.

The interpreter may be one that has nothing but pyslurm and, by its path, our own packages: nothing else is imported.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

from adapters.shared.printing import printable
from adapters.slurm import native_records as records
from adapters.slurm.native_options import Unsayable, attributes
from adapters.slurm.native_python import NEEDED
from adapters.slurm.records import (
    Partition,
    Reservation,
    SlurmJob,
    SlurmNode,
    SlurmSubmission,
    fold_job_ids,
    format_ranges,
)
from adapters.slurm.states import classify_refusal, refusal_error
from provisioner.interfaces import AdapterError, AuthError, RejectedError, UnavailableError
from provisioner.model import FaultKind

_JOB_ENVIRONMENT = {"SLURM_EXPORT_ENV": "NIL"}
"""What a job gets of ours: what ``sbatch --export=NIL`` gives it. (pyslurm gives it everything if this is empty.)"""
_SIGKILL, _STEPS_ONLY = 9, 1 << 2
_GONE = ("Invalid job id specified", "Job/step already completing or completed")
_UNFINISHED = frozenset({"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING"})

T = TypeVar("T")


class NativeSide:
    """Serves the calls of :class:`adapters.slurm.native.SlurmNativeClient`."""

    def __init__(self) -> None:
        os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"
        hide_from_jobs()
        self._pyslurm = _imported()
        self._libslurm = _libslurm()
        self._libslurm.slurm_api_version.restype = ctypes.c_long
        check_release(self._pyslurm.__version__, self._libslurm.slurm_api_version() >> 16)
        _check_configured(self._libslurm)
        self._pyslurm.slurm_init()  # where there is no configuration after all, this process ends, with a word to us

    # ---------------------------------------------------------------------------------------------------- questions

    def own_jobs(self) -> list[SlurmJob]:
        us = os.getuid()
        return [job for each in self._jobs() if each.user_id == us for job in expanded(each)]

    def active_jobs(self, partitions: Collection[str]) -> list[SlurmJob]:
        found = (each for each in self._jobs() if each.state in _UNFINISHED)
        wanted = (each for each in found if not set((each.partition or "").split(",")).isdisjoint(partitions))
        return [job for each in wanted for job in expanded(each)]

    def ended_jobs(self, remote_ids: Collection[str], since: float) -> list[SlurmJob] | None:
        """Of these, or of all of ours that ended since then; None where there is no accounting."""
        if not self.configuration().get("AccountingStorageType", "").endswith("slurmdbd"):
            return None
        us, database = os.getuid(), self._pyslurm.db
        numbers = sorted({int(each.partition("_")[0]) for each in remote_ids})
        wanted = {"ids": numbers} if numbers else {"users": [us], "start_time": int(since)}
        told = self._asked(lambda: database.Jobs.load(database.JobFilter(**wanted)), "the accounting database")
        there = [each for each in told.values() if each.user_id == us and each.state != "PENDING"]
        jobs = [records.accounted(each) for each in there]
        return [job for job in jobs if not remote_ids or job.remote_id in remote_ids]

    def nodes(self) -> list[SlurmNode]:
        told = list(self._asked(self._pyslurm.Nodes.load).values())
        if "gres/gpu" in self.configuration().get("AccountingStorageTRES", "").split(","):
            return [records.node(each, None) for each in told]
        # Slurm tells pyslurm of a node's allocated GPUs only where they are accounted for.
        placed = [job for each in self._jobs() if each.allocated_nodes for job in expanded(each)]
        have = {each.name: records.gpus_of(each.configured_gres) for each in told}
        used = records.used_by([job for job in placed if job.state in _UNFINISHED], have)
        return [records.node(each, used.get(each.name, {})) for each in told]

    def partitions(self) -> list[Partition]:
        return [records.partition(each) for each in self._asked(self._pyslurm.Partitions.load).values()]

    def reservations(self) -> list[Reservation]:
        return [records.reservation(each) for each in self._asked(self._pyslurm.Reservations.load).values()]

    def configuration(self) -> Mapping[str, str]:
        return records.configuration(self._asked(self._pyslurm.slurmctld.Config.load))

    def _jobs(self) -> list[Any]:
        return list(self._asked(self._pyslurm.Jobs.load).values())

    def _asked(self, question: Callable[[], T], whom: str = "slurmctld") -> T:
        try:
            return question()
        except self._pyslurm.PyslurmError as error:
            raise unanswered(f"{whom}: {error}") from None

    # -------------------------------------------------------------------------------------------------------- orders

    def ready(self) -> None:
        """That this object is there says that everything is."""

    def submit(self, submission: SlurmSubmission) -> int | str:
        """The job id; or why slurmctld was certainly not asked."""
        try:
            return int(self._pyslurm.JobSubmitDescription(**described(submission)).submit())
        except self._pyslurm.PyslurmError as error:
            classify_refusal = refusal_error(str(error))
            if isinstance(classify_refusal, UnavailableError):
                return str(classify_refusal)
            raise classify_refusal from None
        except (ValueError, TypeError, OverflowError, AttributeError) as error:  # before anything was sent
            raise RejectedError(f"pyslurm: {printable(str(error), 300)}", FaultKind.CONFIG) from None

    def cancel(self, remote_ids: Sequence[str], kill: bool) -> None:
        """By the library's own call, which scancel makes: pyslurm knows jobs by number only, and the number of one task
        is that of its whole array. With ``kill`` the drone, a step, gets SIGKILL first."""
        trouble: AdapterError | None = None
        for remote_id in fold_job_ids(remote_ids):
            for flags in (_STEPS_ONLY, 0) if kill else (0,):
                ctypes.set_errno(0)
                if self._libslurm.slurm_kill_job2(remote_id.encode(), _SIGKILL, flags, None) != 0:
                    said = self._pyslurm.core.error.slurm_strerror(ctypes.get_errno())
                    if said not in _GONE and not flags:  # one of several that is gone does not spare the others
                        trouble = trouble or refusal_error(f"{remote_id}: {said}")
        if trouble is not None:
            raise trouble


# --------------------------------------------------------------------------------------------------------- to be ready


def hide_from_jobs() -> None:
    """pyslurm gives jobs whatever is in ``os.environ`` by a name of Slurm's, a token too. The library keeps it."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        os.putenv(name, os.environ.pop(name))
    os.putenv("SLURM_BITSTR_LEN", "0")  # else the tasks of a long array are told with "..." in the end


def _imported() -> Any:
    try:
        return import_module("pyslurm")
    except ModuleNotFoundError as error:
        if error.name != "pyslurm":
            raise
        raise UnavailableError(NEEDED, FaultKind.CONFIG) from None
    except ImportError as error:  # built beside another libslurm than there is now
        raise UnavailableError(
            f"pyslurm does not load: {printable(str(error), 300)}. It is built for one release of Slurm: {NEEDED}",
            FaultKind.CONFIG,
        ) from None


def _libslurm() -> ctypes.CDLL:
    """The very library that pyslurm has loaded, for all to see."""
    everything = ctypes.CDLL(None, use_errno=True)
    if not hasattr(everything, "slurm_kill_job2"):
        raise UnavailableError(f"pyslurm is there and libslurmfull.so is not: {NEEDED}", FaultKind.CONFIG)
    return everything


def check_release(pyslurm_version: str, api: int) -> None:
    """``api``: the library's own number, one more with each release: 41 is that of 24.05. Structures differ between
    releases, so nothing is tried with another one.

    Raises:
        UnavailableError: (CONFIG) pyslurm is not for this library.
    """
    numbers = re.match(r"(\d+)\.(\d+)", pyslurm_version)
    built_for = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    steps = api - 41
    there = (24 + steps // 2, 11 if steps % 2 else 5)
    if built_for != there:
        one, other = (f"{year}.{month:02}" for year, month in (built_for, there))
        raise UnavailableError(
            f"pyslurm {pyslurm_version} is for Slurm {one}, and the libslurm of this host is of {other}: {NEEDED}",
            FaultKind.CONFIG,
        )


def _check_configured(libslurm: ctypes.CDLL) -> None:
    """libslurm waits a minute for a slurm.conf that is not there, and then ends the process. Where one may come over
    the network it is left to find that out, which is quick."""
    told = _environment(b"SLURM_CONF")
    usual = ctypes.c_char_p.in_dll(libslurm, "default_slurm_config_file").value or b"/etc/slurm/slurm.conf"
    if told and not os.path.exists(told):
        named = printable(os.fsdecode(told), 200)
        raise UnavailableError(
            f"there is no slurm.conf: SLURM_CONF says {named}, and that is not there", FaultKind.CONFIG
        )
    if not told and os.path.lexists(usual) and not os.path.exists(usual):
        named = printable(os.fsdecode(usual), 200)
        raise UnavailableError(
            f"there is no slurm.conf: {named} points at something that is not there", FaultKind.CONFIG
        )


def _environment(name: bytes) -> bytes | None:
    """A variable as the library sees it."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value = getenv(name)
    return value if isinstance(value, bytes) else None


# ------------------------------------------------------------------------------------------------------------- to say


def unanswered(text: str) -> AdapterError:
    """The error for a question that was not answered: nothing is done by one, so it is never unsure."""
    message = printable(" ".join(text.split()), 300)
    if classify_refusal(text) is FaultKind.DENIED:
        return AuthError(message)
    return UnavailableError(message)


@cache
def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def expanded(told: Any) -> Iterator[SlurmJob]:
    """The jobs that one record of pyslurm's stands for."""
    ids = records.remote_ids(told)
    first = records.job(told, ids[0], _user)
    yield first
    for remote_id in ids[1:]:
        yield replace(first, remote_id=remote_id)


def described(submission: SlurmSubmission) -> Mapping[str, object]:
    """A submission as attributes of pyslurm's job description. RejectedError for an option that it cannot say."""
    try:
        more = attributes(submission.options)
    except Unsayable as error:
        raise RejectedError(str(error), FaultKind.CONFIG) from None
    told: dict[str, object] = {
        "name": submission.name,
        "script": submission.script.decode("utf-8", "surrogateescape"),
        "array": format_ranges(submission.tasks),
        "partitions": submission.partition,
        "account": submission.account,
        "qos": submission.qos,
        "reservations": submission.reservation,
        "constraints": submission.constraint,
        "gres_per_node": submission.gres,
        "memory_per_node": submission.memory_mib,
        "temporary_disk_per_node": submission.tmp_mib,
        "time_limit": submission.minutes,
    }
    if submission.notice_s:
        told["signal"] = {"signal": 15, "time": submission.notice_s, "batch_only": True}
    return {
        "profile_types": "none",  # without a word pyslurm asks for all of them
        **more,
        **{attribute: value for attribute, value in told.items() if value},
        "nodes": 1,
        "ntasks": 1,
        "cpus_per_task": submission.cpus,
        "is_requeueable": False,
        "environment": dict(_JOB_ENVIRONMENT),
        "working_directory": "/",
        "standard_output": submission.output,
    }
