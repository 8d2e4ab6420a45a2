"""The embedded overlay's queue as the command line sees it: found by entry point, jobs as rows."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from provisioner import formatting
from provisioner.cli.cells import span_s, text, time_at, whole
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.listing import Column
from provisioner.cli.options import Where
from provisioner.cli.where import config_path

SCHEMA = "provisioner.jobs/1"
T = TypeVar("T")

DEADLINE_S = 30.0
STATES = ("idle", "running", "done", "failed", "held")


class QueuedJob(Protocol):
    """One job of the queue, times in seconds since the epoch, 0 for not yet."""

    @property
    def id(self) -> int: ...
    @property
    def owner(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def gpu_milli(self) -> int: ...
    @property
    def cpus(self) -> int: ...
    @property
    def memory_mib(self) -> int: ...
    @property
    def vram_mib(self) -> int: ...
    @property
    def argv(self) -> tuple[str, ...]: ...
    @property
    def submitted_at(self) -> float: ...
    @property
    def state(self) -> str: ...
    @property
    def attempts(self) -> int: ...
    @property
    def drone_id(self) -> str: ...
    @property
    def started_at(self) -> float: ...
    @property
    def ended_at(self) -> float: ...
    @property
    def exit_code(self) -> int | None: ...
    @property
    def message(self) -> str: ...


class JobQueue(Protocol):
    """What an overlay that keeps its own queue offers beside the seam."""

    async def submit(
        self,
        argv: Sequence[str],
        *,
        count: int,
        gpus: str,
        cpus: int,
        memory_mib: int,
        disk_mib: int,
        vram_mib: int,
        capability: int,
        gpu_model: str,
        walltime_s: float,
        env: Mapping[str, str],
        priority: int,
    ) -> Sequence[int]: ...

    async def jobs(self, *, ids: Sequence[int] = (), limit: int = 1000) -> Sequence[QueuedJob]: ...


def open_queue(where: Where) -> JobQueue:
    """The queue of the configured overlay. Raises :class:`Failure` for an overlay that has none."""
    from provisioner.config import load
    from provisioner.loader import AdapterBrokenError, AdapterUnknownError, overlay_adapter

    settings = load(config_path(where))
    try:
        overlay = overlay_adapter(settings.overlay.adapter)(settings.overlay.options, settings.controller)
    except (AdapterUnknownError, AdapterBrokenError) as error:
        raise Failure(str(error)) from error
    if not (callable(getattr(overlay, "submit", None)) and callable(getattr(overlay, "jobs", None))):
        raise Failure(
            f"overlay {settings.overlay.adapter} keeps its jobs itself: submit and list them with its own commands",
            "this verb is for the embedded overlay",
        )
    return cast(JobQueue, overlay)


def answer_of(work: Coroutine[Any, Any, T]) -> T:
    """What the queue answers, within :data:`DEADLINE_S`. Raises :class:`Failure`."""
    import asyncio
    import sqlite3

    async def in_time() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    try:
        return asyncio.run(in_time())
    except TimeoutError:
        raise Failure(f"the queue gave no answer within {DEADLINE_S:g} s", code=Exit.TIMED_OUT) from None
    except sqlite3.Error as error:
        raise Failure(f"the queue cannot be used: {error}") from error


def columns(now: float) -> tuple[Column[QueuedJob], ...]:
    """Of jobs in the queue."""
    tints = {"running": "green", "failed": "red", "held": "yellow"}
    return (
        whole("id", lambda j: j.id, "Id of the job.", level=0),
        Column[QueuedJob](
            "state",
            lambda j: str(j.state),
            "State.",
            level=0,
            choices=STATES,
            tint=lambda j: tints.get(str(j.state), ""),
        ),
        text("owner", lambda j: j.owner, "Who submitted it.", level=0, least=8),
        whole("gpu_milli", lambda j: j.gpu_milli, "Thousandths of a GPU.", level=0, head="GPUS", show=formatting.gpus),
        whole("cpus", lambda j: j.cpus, "CPUs.", level=1),
        whole("memory_mib", lambda j: j.memory_mib, "Memory, MiB.", level=1, head="MEMORY", show=formatting.size),
        whole("vram_mib", lambda j: j.vram_mib, "Least VRAM per GPU, MiB; 0: any."),
        span_s(
            "age_s", lambda j: max(0.0, now - j.submitted_at), "Since it was submitted, seconds.", level=0, head="AGE"
        ),
        text("drone", lambda j: j.drone_id, "The drone that runs or ran it.", level=0, least=12, tail=True),
        whole("attempts", lambda j: j.attempts, "How often it was started.", level=1),
        Column[QueuedJob](
            "exit_code",
            lambda j: j.exit_code,
            "Its exit code; null: it has not ended.",
            kind="integer",
            null=True,
            level=0,
            head="EXIT",
            right=True,
        ),
        text("command", lambda j: " ".join(j.argv), "The command.", level=0, least=14),
        text("message", lambda j: j.message, "What went wrong.", level=1, least=12),
        Column[QueuedJob]("argv", lambda j: list(j.argv), "The command, word by word.", kind="array"),
        whole("priority", lambda j: j.priority, "Higher goes first."),
        time_at("submitted_at", lambda j: j.submitted_at, "When it was submitted."),
        time_at("started_at", lambda j: j.started_at, "When it was last started."),
        time_at("ended_at", lambda j: j.ended_at, "When it ended."),
    )
