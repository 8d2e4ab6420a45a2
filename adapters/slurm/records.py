"""Records of a Slurm cluster, the interface of the transports, and the reader of Slurm's notations.

A transport (command-line tools, slurmrestd, pyslurm) says which of its words is which field of a
record. The values are read here, by the type of the field and in any notation: ``1:00:00``, ``60``
or ``{"set": true, "number": 60}``. Records keep the terms of Slurm: states in capitals, reasons as
``squeue %r`` prints them (:mod:`adapters.slurm.states` maps them). Times are seconds since the
epoch, 0 for none; memory is in MiB. Readers raise ValueError for an invalid value: it is no
complete answer.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache, lru_cache
from typing import Any, Protocol, Self, TypeVar

from adapters.shared.printing import printable
from adapters.slurm.states import UNFINISHED_STATES
from provisioner.formatting import spans
from provisioner.values import factory, frozen

# -------------------------------------------------------------------------------------------------------------
# records

LimitS = float
"""Seconds; reported as a duration or in minutes."""
Mib = int
Words = tuple[str, ...]
Hosts = tuple[str, ...]
"""Reported as a list with brackets, ``hkn[0801-0803]``."""
RequestedHosts = tuple[str, ...]
Flags = frozenset[str]
Gpus = Mapping[str, int]
"""By type; "" is any type."""
UsedGpus = Mapping[str, int]
"""The same, with the GPUs of which shares (``shard``, ``mps``) are in use."""


@frozen
class SlurmJob:
    """One job, or one task of an array."""

    remote_id: str
    """``123``, or ``123_4`` for a task of an array, as ``squeue -r %i`` prints it and ``scancel`` takes it."""
    name: str
    state: str
    """Base state: ``PENDING``, ``RUNNING``, ``PREEMPTED``, ..., or an unknown word."""
    flags: Flags = frozenset()
    """Further states, where reported: ``COMPLETING``, ``REQUEUED``, ..."""
    reason: str = ""
    """Why it waits, or why it ended; "" for Slurm's ``None``."""
    comment: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    submitted_at: float = 0.0
    started_at: float = 0.0
    """Expected start of a pending job."""
    ends_at: float = 0.0
    """End of a running job's limit, or of the grace period of its preemption."""
    limit_s: LimitS = 0.0
    """Time limit; 0 for none or not reported."""
    preempted_at: float = 0.0
    """When Slurm began to preempt it, where reported."""
    nodes: Hosts = ()
    exit_code: int | None = None
    """Exit status of the batch script; None where not reported."""
    signal: int = 0
    restarts: int = 0
    # Request per node, of jobs of others only:
    node_count: int = 1
    cpus: int = 0
    memory_mib: Mib = 0
    gpus: Gpus = factory(dict)
    required_nodes: RequestedHosts = ()


SlurmJobs = Sequence[SlurmJob]


@frozen
class SlurmNode:
    """A node, with CPUs as Slurm counts them: usually hardware threads."""

    name: str
    state: str
    """Base state: ``IDLE``, ``MIXED``, ``ALLOCATED``, ``DOWN``, ``FUTURE``, ``ERROR``, ``UNKNOWN``."""
    flags: Flags = frozenset()
    """``DRAIN``, ``MAINTENANCE``, ``RESERVED``, ``PLANNED``, ``NOT_RESPONDING``, ``POWERED_DOWN``,
    ``POWERING_UP``, ... in Slurm's long words."""
    partitions: Words = ()
    features: Words = ()
    cpus: int = 0
    used_cpus: int = 0
    memory_mib: Mib = 0
    used_memory_mib: Mib = 0
    gpus: Gpus = factory(dict)
    """By type as in ``Gres``; "" where the site names none."""
    used_gpus: UsedGpus = factory(dict)
    threads_per_core: int = 0
    """0: not reported."""
    restricted_cores_per_gpu: int = 0
    """``RestrictedCoresPerGPU``: cores per GPU that are reserved for GPU jobs. 0 also where it is
    configured but not in force, and where it is not reported."""


@frozen
class Partition:
    """A partition with MaxTime (0 for none), PriorityTier, GraceTime and further limits."""

    name: str
    up: bool = True
    nodes: Hosts = ()
    max_s: LimitS = 0.0
    tier: int = 1
    grace_s: float = 0.0
    preempt_mode: str = ""
    max_memory_per_cpu_mib: Mib = 0
    max_memory_per_node_mib: Mib = 0
    max_cpus_per_node: int = 0
    default: bool = False
    """True if jobs that name no partition run in it."""
    oversubscribe: str = ""
    """``NO``, ``EXCLUSIVE`` (before 26.05), ``FORCE:4``, ..."""
    exclusive: str = ""
    """Since 26.05: ``NO``, ``USER``, ``NODE``, ``TOPO``."""
    exclusive_user: bool = False
    """Before 26.05, where reported: jobs share a node only with those of the same user."""
    min_nodes: int = 0


@frozen
class Reservation:
    """A reservation of nodes."""

    name: str
    starts_at: float
    ends_at: float
    nodes: Hosts = ()


@frozen
class SlurmSubmission:
    """A job, or an array of jobs that differ only in their task number."""

    name: str
    script: bytes = field(repr=False)
    tasks: tuple[int, ...] = ()
    """Ascending task numbers of the array; empty for a single job."""
    cpus: int = 1
    memory_mib: int = 0
    minutes: int = 0
    notice_s: int = 0
    """Seconds between the signal to the batch shell and the end (``--signal=B:TERM@N``)."""
    output: str = "/dev/null"
    options: Mapping[str, str | bool] = factory(dict)
    """Further options of sbatch by long name without dashes (``partition``, ``gres``, ...); True
    for those without a value. Each transport expresses them in its own way: see
    :mod:`adapters.slurm.options`."""


BASE_JOB_STATES = frozenset(
    {"PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED"}
    | {"TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
)
BASE_NODE_STATES = frozenset(
    {"UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE", "INVALID"}
)
"""Base states; all other words are flags."""


class SlurmClient(Protocol):
    """A Slurm cluster as our account sees it, by one of the transports.

    Calls may overlap; each has its own deadline. Every call raises the four errors of
    :mod:`provisioner.interfaces` and nothing else. An incomplete answer is an error, never an empty
    result.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def own_jobs(self) -> SlurmJobs:
        """Return every job of our account that slurmctld remembers, ended ones included, arrays task by task."""

    async def ended_jobs(self, remote_ids: Collection[str], since: float) -> SlurmJobs | None:
        """Return what accounting has of these jobs, or with no ids of all of ours since then; None without it."""

    async def active_jobs(self, partitions: Collection[str]) -> SlurmJobs:
        """Return the pending and running jobs of all users in these partitions, ours included."""

    async def nodes(self, *, reserves: bool = False) -> Sequence[SlurmNode]:
        """Return all nodes. ``reserves``: with RestrictedCoresPerGPU, if that takes a further query."""

    async def partitions(self) -> Sequence[Partition]: ...

    async def reservations(self) -> Sequence[Reservation]: ...

    async def configuration(self) -> Mapping[str, str]:
        """Return slurm.conf and ``SLURM_VERSION`` as ``scontrol show config`` prints them, as far as reported."""

    def notices(self) -> Sequence[str]:
        """Return oddities of recent answers that a person should know of."""
        return ()

    async def submit(self, submission: SlurmSubmission) -> int:
        """Return the job id (of the whole array, if it is one). UnavailableError: Slurm was certainly not asked."""

    async def cancel(self, remote_ids: Sequence[str], *, kill: bool = False) -> None:
        """Cancel these jobs, if they live: SIGTERM, and SIGKILL after KillWait, or at once with ``kill``."""


# -------------------------------------------------------------------------------------------------------------
# job ids

_SLURM_JOB_ID = re.compile(r"(?P<job>[1-9][0-9]{0,17})(?:_(?P<task>[0-9]{1,9}))?")
_LISTED_JOB_ID = re.compile(r"[0-9]{1,18}([_+][0-9]{1,10})?")
"""With the parts of heterogeneous jobs, which are never ours."""
_TASK_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_MAX_ARRAY_TASKS = 4_000_001
"""Slurm's largest MaxArraySize."""


def split_job_id(remote_id: str) -> tuple[int, int] | None:
    """Return ``123_4`` as (123, 4), and ``123`` as (123, -1); None if it is not the id of a job or task."""
    found = _SLURM_JOB_ID.fullmatch(remote_id)
    return (int(found["job"]), int(found["task"] or -1)) if found else None


def job_id_chunks(remote_ids: Collection[str], size: int) -> list[list[str]]:
    """Return the ids in parts that fit into one call to Slurm. ValueError if one of them is not a job or task."""
    for remote_id in remote_ids:
        if not _SLURM_JOB_ID.fullmatch(remote_id):
            raise ValueError(f"`{printable(remote_id, 40)}` is not a job id")
    ids = list(remote_ids)
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def fold_job_ids(remote_ids: Sequence[str]) -> Iterator[str]:
    """Yield the same jobs with the tasks of one array together, ``123_[0-5,7]``, as scancel takes them."""
    tasks: dict[str, list[int]] = {}
    for remote_id in dict.fromkeys(remote_ids):
        job, _, task = remote_id.partition("_")
        if task:
            tasks.setdefault(job, []).append(int(task))
        else:
            yield remote_id
    for job, found in tasks.items():
        yield (
            f"{job}_{found[0]}"
            if len(found) == 1
            else f"{job}_[{format_ranges(sorted(set(found)))}]"
        )


def format_ranges(ascending: Sequence[int]) -> str:
    """Return ascending task numbers as ``0-6,8``."""
    return ",".join(spans(ascending))


def parse_tasks(text: str) -> tuple[int, ...]:
    """Return the waiting tasks of an array: ``0-3,7,10-20:2%5`` written out.

    A list that was cut short is an error: it does not name all tasks.
    """
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        each = _TASK_RANGE.fullmatch(part.strip())
        if each is None:
            raise ValueError(f"`{part[:40]}` is not a range of tasks")
        tasks = range(int(each[1]), int(each[2] or each[1]) + 1, int(each[3] or 1) or 1)
        if len(found) + len(tasks) > _MAX_ARRAY_TASKS:
            raise ValueError("an array of more tasks than there can be")
        found += tasks
    return tuple(found)


# ------------------------------------------------------------------------------------------------------
# lists of nodes

_MAX_NODES = 100_000
"""Names in one list: several times the nodes of the largest machines, and little memory."""
_HOSTLIST_TERM = re.compile(r"(?:[A-Za-z0-9_.-]|\[[0-9,-]*\])+")
_HOSTLIST = re.compile(rf"{_HOSTLIST_TERM.pattern}(?:,{_HOSTLIST_TERM.pattern})*")
_NODE_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


def expand_hostlist(text: str) -> tuple[str, ...]:
    """Return the names of ``hkn[0801-0803,0901],login1`` in order; none for Slurm's empty value.

    A name may have several brackets, and text after them; numbers keep their leading zeros.
    ValueError if it is not such a list, or has too many names.
    """
    text = text.strip()
    if text in _SLURM_NOTHING:
        return ()
    if not _HOSTLIST.fullmatch(text):
        raise ValueError(f"`{printable(text, 60)}` is not a list of node names")
    found: list[str] = []
    for term in _HOSTLIST_TERM.findall(text):
        names = [""]
        for plain, inside in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", term):
            choices = [plain] if plain else _node_numbers(inside)
            # a short text can stand for a million names
            if len(found) + len(names) * len(choices) > _MAX_NODES:
                raise ValueError(f"`{printable(term, 60)}` stands for more nodes than there can be")
            names = [f"{name}{choice}" for name in names for choice in choices]
        found += names
    return tuple(found)


def _node_numbers(text: str) -> list[str]:
    """Return the numbers of ``0801-0803,0901``."""
    numbers: list[str] = []
    for part in text.split(","):
        found = _NODE_RANGE.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if found is None or not 0 <= last - first < _MAX_NODES - len(numbers):
            raise ValueError(f"`{printable(part, 60)}` is not a range of node numbers")
        numbers += [f"{number:0{len(found[1])}d}" for number in range(first, last + 1)]
    return numbers


# -----------------------------------------------------------------------------------------------------
# reading records

Record = TypeVar("Record")


def same(*names: str) -> Mapping[str, str]:
    """Return fields of our records for which a transport has the same names."""
    return dict(zip(names, names, strict=True))


SLURMCTLD_JOB = {
    **same("name", "account", "partition", "qos"),
    "reason": "state_reason",
    "submitted_at": "submit_time",
    "started_at": "start_time",
    "ends_at": "end_time",
    "limit_s": "time_limit",
}
"""Fields of a job by the names that slurmrestd and pyslurm have for them."""


def pick(source: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a record by our names. ``names``: its keys, ``time.start`` for one inside another."""
    found: dict[str, Any] = {}
    for ours, path in names.items():
        value: Any = source
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        found[ours] = value
    return found


def read(kind: type[Record], raw: Mapping[str, Any]) -> Record:
    """Return a record from the values of a transport, each read by the type of its field; fields without one default.

    ValueError for a value that is not of that type, and for a record without a name.
    """
    if not raw.get("name") and kind is not SlurmJob:
        raise ValueError(f"it contains a {kind.__name__} without a name")
    readers = _readers(kind)  # type: ignore[arg-type]
    return kind(**{name: reader(raw[name]) for name, reader in readers if name in raw})


@cache
def _readers(kind: type) -> Sequence[tuple[str, Callable[[Any], Any]]]:
    return [(each.name, _VALUE_READERS[str(each.type)]) for each in dataclasses.fields(kind)]


def read_job(raw: Mapping[str, Any]) -> SlurmJob:
    """Return a job. ``raw`` has, beside fields of it, its request in all: see :func:`_request_per_node`."""
    state, flags = _split_state(raw["state"], BASE_JOB_STATES)
    if not state or not _LISTED_JOB_ID.fullmatch(raw["remote_id"]):
        raise ValueError(
            f"it contains a job without a state or a valid id: `{printable(str(raw['remote_id']), 40)}`"
        )
    if state not in BASE_JOB_STATES and state in _STATES_OF_FLAGS:
        state, flags = _STATES_OF_FLAGS[state] or state, flags | {state}
    code, signal = (None, 0) if state in UNFINISHED_STATES else _exit_status(raw.get("exit_code"))
    own = {
        "exit_code": code,
        "signal": signal,
        "state": state,
        "flags": flags,
        **_request_per_node(raw),
    }
    if state == "RUNNING":
        own["reason"] = ""
    return read(SlurmJob, {**raw, **own})


def read_node(raw: Mapping[str, Any]) -> SlurmNode:
    state, flags = _split_state(raw["state"], BASE_NODE_STATES)
    return read(SlurmNode, {**raw, "state": state or "UNKNOWN", "flags": flags})


_STATES_OF_FLAGS = {
    **dict.fromkeys(("CONFIGURING", "RESIZING", "SIGNALING", "STOPPED"), "RUNNING"),
    **dict.fromkeys(
        ("REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"), "PENDING"
    ),
    **dict.fromkeys(("COMPLETING", "STAGE_OUT", "REVOKED"), ""),
}
"""Flags that squeue and pyslurm report in place of the base state, and the base state, where there is only one."""


def _split_state(value: object, base_states: frozenset[str]) -> tuple[str, frozenset[str]]:
    """Return the base state among a record's words (the first word if none is known, "" without words), and flags."""
    words = [word.upper().rstrip("*~#!%$@^-") for text in _words(value) for word in text.split("+")]
    base = next((word for word in words if word in base_states), next(iter(words), ""))
    return base, frozenset(words) - {base}


def _request_per_node(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of one node in what a job requests.

    ``tres``: its total (``cpu=16,mem=20G,gres/gpu=4``); where it lacks something ``cpus`` (in all),
    ``memory_per_cpu`` or ``memory_per_node``. Only with accounting are GPUs in the total; else
    ``tres_per_node``, ``tres_per_job``, or ``tres_per_task`` and ``tasks``.
    """
    nodes_text = raw.get("node_count")
    total = _text(raw.get("tres"))
    nodes = max(
        1, count(nodes_text.partition("-")[0] if isinstance(nodes_text, str) else nodes_text)
    )
    amounts = dict(term.partition("=")[::2] for term in total.split(","))
    cpus = -(-count(amounts.get("cpu") or raw.get("cpus")) // nodes)
    memory_mib = -(-_memory_mib(amounts.get("mem")) // nodes)
    memory_mib = (
        memory_mib
        or _memory_mib(raw.get("memory_per_cpu")) * cpus
        or _memory_mib(raw.get("memory_per_node"))
    )
    # Shares of one job are on one GPU, which no job of whole GPUs can have meanwhile.
    gpus = parse_gpus(_text(raw.get("tres_per_node")), 1)
    if not gpus:
        tasks = max(1, count(raw.get("tasks")))
        of_tasks = {
            kind: n * tasks for kind, n in parse_gpus(_text(raw.get("tres_per_task")), 1).items()
        }
        in_all = parse_gpus(total, 1) or parse_gpus(_text(raw.get("tres_per_job")), 1) or of_tasks
        gpus = {kind: -(-n // nodes) for kind, n in in_all.items()}
    return {"node_count": nodes, "cpus": cpus, "memory_mib": memory_mib, "gpus": gpus}


_EXIT_CODE = re.compile(r"([0-9]{1,3}):([0-9]{1,3})")


def _exit_status(value: object) -> tuple[int | None, int]:
    """Return exit status (None where not reported) and signal.

    ``3:0``, ``{"return_code": ..., "signal": ...}``, or in 22.05 the status of wait(2), ``768``.
    """
    if isinstance(value, Mapping):
        code = value.get("return_code")
        signal = value.get("signal")
        number = signal.get("id", signal.get("signal_id")) if isinstance(signal, Mapping) else None
        return (count(code) if is_set(code) else None), count(number)
    if found := _EXIT_CODE.fullmatch(_text(value)):
        return int(found[1]), int(found[2])
    status = count(value)
    return status >> 8 & 0xFF, status & 0x7F


# ------------------------------------------------------------------------------------- numbers,
# times, sizes and words

_SLURM_NOTHING = ("", "N/A", "Unknown", "None", "none", "(null)", "None assigned")
_SLURM_NO_LIMIT = ("UNLIMITED", "unlimited", "NOT_SET", "Partition_Limit", "INVALID")
_SLURM_DURATION = re.compile(
    r"(?:(?P<days>[0-9]{1,6})-)?(?:(?P<hours>[0-9]{1,6}):)?(?P<minutes>[0-9]{1,9}):(?P<seconds>[0-9]{1,2})"
)
_SLURM_NUMBER = re.compile(r"(?P<count>[0-9]{1,15}(?:\.[0-9]{1,6})?)(?P<unit>[KMGTP]?)i?B?")
_SLURM_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4, "P": 1024**5}
_GRES_SEPARATOR = re.compile(r",(?![^(]*\))")
"""Commas inside brackets separate indexes, as in ``gpu:(null):2(IDX:0,2)``."""
_GPU_TERM = re.compile(
    r"(?:gres[/:])?(?P<name>gpu|shard|mps)(?::(?P<type>\(null\)|[^:=,()]+))??(?::no_consume)?"
    r"(?:(?P<sign>[:=])(?P<count>[0-9]{1,9})[KMGTP]?)?(?:\((?P<places>[^()]*)\))?"
)
_GPU_IN_SHARES = re.compile(r"([0-9]+)/[0-9]+")
"""Shares of one GPU that are in use: the places of ``shard:a100:4(1/4,3/4)``."""
EVERY_SHARE = 1 << 20


def is_set(value: object) -> bool:
    """Return whether a value, or ``{set, infinite, number}``, is there and finite."""
    if isinstance(value, Mapping):
        return bool(value.get("set")) and not value.get("infinite")
    return value is not None


def _number(value: object, unit: str = "") -> float:
    """Return a count, or a size in this unit: ``7``, ``1.50K``, ``20G``, 7, or ``{set, infinite, number}``.

    0 for none and for no limit; ValueError for anything else.
    """
    if isinstance(value, Mapping):
        value = value.get("number") if is_set(value) else None
    if isinstance(value, int | float):
        return float(value)
    text = _text(value)
    if not text or text in _SLURM_NO_LIMIT:
        return 0.0
    if (found := _SLURM_NUMBER.fullmatch(text)) is None:
        raise ValueError(f"`{text[:40]}` is not a number")
    return float(found["count"]) * _SLURM_UNITS[found["unit"] or unit] / _SLURM_UNITS[unit]


def count(value: object) -> int:
    """Return a count in any notation; 0 for none."""
    return int(_number(value))


def _memory_mib(value: object) -> int:
    return math.ceil(_number(value, "M"))


def _limit_s(value: object) -> float:
    """Return a time limit in seconds: ``2-00:00:00`` or ``5:00``, or a number of minutes; 0 for none."""
    if not isinstance(value, str) or ":" not in value:
        return 60 * _number(value)
    if (found := _SLURM_DURATION.fullmatch(value)) is None:
        raise ValueError(f"`{value[:40]}` is not a duration")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _text(value: object) -> str:
    """Return a text, "" for Slurm's empty values and for anything else."""
    return value if isinstance(value, str) and value not in _SLURM_NOTHING else ""


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, list | tuple | frozenset):
        return tuple(word for word in value if isinstance(word, str) and word)
    return tuple(filter(None, _text(value).split(",")))


def _hosts(value: object) -> tuple[str, ...]:
    return expand_hostlist(",".join(_words(value)))


def _requested_hosts(value: object) -> tuple[str, ...]:
    try:
        return _hosts(value)
    except ValueError:  # as the user wrote them: a node that does not exist
        return (_text(value)[:255],)


@lru_cache(maxsize=256)  # thousands of jobs have the same few requests
def parse_gpus(text: str, shares: int = 0) -> Mapping[str, int]:
    """Return GPUs by type ("" is any) from GRES or TRES text.

    ``gpu:a100:4(S:0-1)``, ``gpu:(null):4(IDX:0-3)``, ``gres/gpu:2``, or
    ``cpu=8,gres/gpu=2,gres/gpu:a100=2``. A total with ``=`` includes the GPUs with a type: only the
    rest of it is of any type. ``shares`` is the largest number of GPUs that a number of shares
    stands for where their places are not printed.
    """
    found = Counter[str]()
    total = 0
    for each in filter(None, map(_GPU_TERM.fullmatch, _GRES_SEPARATOR.split(text))):
        number = int(each["count"] or 1)
        if each["name"] != "gpu":
            in_use = _GPU_IN_SHARES.findall(each["places"] or "")
            number = sum(int(share) > 0 for share in in_use) if in_use else min(number, shares)
        if each["type"] is None and each["sign"] == "=":
            total += number
        else:
            found[_text(each["type"])] += number
    found[""] += max(0, total - found.total())
    return dict(+found)


_VALUE_READERS: Mapping[str, Callable[[Any], Any]] = {
    "str": _text,
    "int": count,
    "int | None": lambda value: value,
    "float": _number,
    "bool": lambda value: value is True or _words(value) in (("YES",), ("UP",)),
    "LimitS": _limit_s,
    "Mib": _memory_mib,
    "Words": _words,
    "Hosts": _hosts,
    "RequestedHosts": _requested_hosts,
    "Flags": lambda value: frozenset(word.upper() for word in _words(value)),
    "Gpus": lambda value: value if isinstance(value, Mapping) else parse_gpus(_text(value)),
    "UsedGpus": lambda value: (
        value if isinstance(value, Mapping) else parse_gpus(_text(value), EVERY_SHARE)
    ),
}
"""Readers of values by the type of the field."""
