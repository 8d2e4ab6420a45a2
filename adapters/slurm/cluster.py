"""What is asked of a Slurm cluster and what it answers, whichever way the question goes.

Slurm's own words stay as they are (states in capitals, reasons as ``squeue %r`` prints them); what they mean is said in
one table (:mod:`states`). Times are seconds since the epoch, 0 where there is none; memory is in MiB.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self


@dataclass(frozen=True, slots=True)
class Job:
    """One job, or one task of an array, as the cluster tells it."""

    remote_id: str
    """``123``, or ``123_4`` for a task of an array: as ``squeue -r %i`` prints it and ``scancel`` takes it."""
    name: str
    state: str
    """The base state: ``PENDING``, ``RUNNING``, ``PREEMPTED``, ..., or a word that we do not know."""
    flags: frozenset[str] = frozenset()
    """States on top of that, where told: ``COMPLETING``, ``REQUEUED``, ..."""
    reason: str = ""
    """Why it waits, or why it ended; "" for Slurm's ``None``."""
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    submitted_at: float = 0.0
    started_at: float = 0.0
    """When it began; of a pending job, when Slurm expects it to."""
    ends_at: float = 0.0
    """When it ended; of a running job, when its limit, or the grace of its preemption, is over."""
    limit_s: float = 0.0
    """Its time limit; 0 is without, or not told."""
    preempted_at: float = 0.0
    """When Slurm began to take its place back, where that is told (``preempt_time``)."""
    nodes: tuple[str, ...] = ()
    exit_code: int | None = None
    """Exit status of the batch script; None where not told."""
    signal: int = 0
    """Signal that ended it."""
    restarts: int = 0
    # Of others' jobs, what one of their nodes is asked for:
    node_count: int = 1
    cpus: int = 0
    memory_mib: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)
    """GPUs per node by their type; "" is any type."""
    wanted_nodes: tuple[str, ...] = ()
    """Nodes that it insists on."""


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node, all of it and what is allocated."""

    name: str
    state: str
    """The base state: ``IDLE``, ``MIXED``, ``ALLOCATED``, ``DOWN``, ``FUTURE``, ``ERROR``, ``UNKNOWN``."""
    flags: frozenset[str] = frozenset()
    """``DRAIN``, ``MAINTENANCE``, ``RESERVED``, ``PLANNED``, ``NOT_RESPONDING``, ``POWERED_DOWN``, ``POWERING_UP``, ...
    in Slurm's long words."""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    cpus: int = 0
    """As Slurm counts CPUs there: hardware threads, mostly."""
    used_cpus: int = 0
    memory_mib: int = 0
    used_memory_mib: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)
    """By type as in ``Gres``; "" where the site names none."""
    used_gpus: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    threads_per_core: int = 0
    """0: not told."""
    kept_cores_per_gpu: int = 0
    """``RestrictedCoresPerGPU``: cores that each GPU keeps from jobs that do not use it; 0 also where it is configured
    and not in force, and where it is not told."""


@dataclass(frozen=True, slots=True)
class Partition:
    name: str
    up: bool = True
    nodes: tuple[str, ...] = ()
    max_s: float = 0.0
    """Longest time limit; 0 is without."""
    tier: int = 1
    """PriorityTier."""
    grace_s: float = 0.0
    """GraceTime of a preemption."""
    preempt_mode: str = ""
    max_memory_per_cpu_mib: int = 0
    max_memory_per_node_mib: int = 0
    max_cpus_per_node: int = 0
    default: bool = False
    """Where jobs go that name no partition."""


@dataclass(frozen=True, slots=True)
class Reservation:
    name: str
    starts_at: float
    ends_at: float
    nodes: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()
    """``MAINT``, ``IGNORE_JOBS``, ...; in capitals."""
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Submission:
    """One submit: a job, or an array of jobs that differ by nothing but their number."""

    name: str
    script: bytes = field(repr=False)
    tasks: tuple[int, ...] = ()
    """Numbers of the array's tasks, ascending; none: a job of its own."""
    partition: str = ""
    account: str = ""
    qos: str = ""
    reservation: str = ""
    constraint: str = ""
    gres: str = ""
    """``gpu:a100:1``; "" without GPU."""
    cpus: int = 1
    memory_mib: int = 0
    tmp_mib: int = 0
    """Local disk asked for; 0: nothing is said of it."""
    minutes: int = 0
    """Time limit."""
    notice_s: int = 0
    """How long before its end the batch shell is told (``--signal=B:TERM@N``)."""
    output: str = "/dev/null"
    more: Mapping[str, str | bool] = field(default_factory=dict)
    """The admin's further options of sbatch by their long name without dashes; True for those without a value."""


class Cluster(Protocol):
    """A Slurm cluster, seen with our account's eyes. Calls overlap; each has a deadline of its own.

    Every call raises the four errors of :mod:`provisioner.interfaces` and nothing else. A question that is not answered
    whole is an error, never an empty answer.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def ours(self) -> Sequence[Job]:
        """Every job of our account that slurmctld remembers, ended ones too, arrays task by task: one listing."""
        ...

    async def ended(self, remote_ids: Collection[str], since: float) -> Sequence[Job] | None:
        """What the accounting database has of these jobs, or with no ids of all of ours since then; None where there is
        no accounting."""
        ...

    async def others(self, partitions: Collection[str]) -> Sequence[Job]:
        """Pending and running jobs of all users in these partitions, ours among them."""
        ...

    async def nodes(self) -> Sequence[SlurmNode]: ...

    async def partitions(self) -> Sequence[Partition]: ...

    async def reservations(self) -> Sequence[Reservation]: ...

    async def configuration(self) -> Mapping[str, str]:
        """slurm.conf as it runs, by the names that ``scontrol show config`` prints (``KillWait``, ``PreemptType``...)
        and with values as printed there, as far as this way tells; and ``SLURM_VERSION``."""
        ...

    def notices(self) -> Sequence[str]:
        """Return oddities of recent answers that a person should know of."""
        ...

    async def submit(self, submission: Submission) -> int:
        """The job id (of the whole array, if it is one).

        Raises:
            RejectedError: Slurm said no; ``kind`` tells QUOTA, CONFIG, DENIED, ... apart (:func:`states.refusal`).
            UnavailableError: it was certainly not asked.
            Unsure: it may have been taken.
        """
        ...

    async def cancel(self, remote_ids: Sequence[str], *, kill: bool = False) -> None:
        """End these jobs: SIGTERM, and SIGKILL after KillWait, or at once with ``kill``. Ids of jobs that have ended or
        are not known are no error."""
        ...
