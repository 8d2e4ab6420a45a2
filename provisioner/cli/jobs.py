"""``provisioner jobs`` and ``submit``: the jobs of the embedded queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import typer

from provisioner import formatting
from provisioner.answers.columns import Listing, picked
from provisioner.answers.errors import Exit, UsageError, VerbError, parsed, reported
from provisioner.answers.query import ListQuery
from provisioner.answers.queue import JOBS_SCHEMA, QUEUE_COLUMNS
from provisioner.cli import options as opt, output as out

T = TypeVar("T")
QUEUE_TIMEOUT_S = 30.0


def open_queue(where: opt.Where) -> Any:
    """Return the configured overlay, which keeps its own queue. Raises :class:`VerbError` for one that does not."""
    from provisioner.config import load
    from provisioner.loader import AdapterBrokenError, AdapterUnknownError, overlay_adapter

    settings = load(opt.config_path(where))
    with reported(AdapterUnknownError, AdapterBrokenError):
        overlay = overlay_adapter(settings.overlay.adapter)(
            settings.overlay.options, settings.controller
        )
    if not (
        callable(getattr(overlay, "submit", None)) and callable(getattr(overlay, "jobs", None))
    ):
        raise VerbError(
            f"overlay {settings.overlay.adapter} keeps its jobs itself: submit and list them with its own commands",
            "this verb is for the embedded overlay",
        )
    return overlay


def answer_of(work: Coroutine[Any, Any, T]) -> T:
    """Return what the queue answers within :data:`QUEUE_TIMEOUT_S`. Raises :class:`VerbError`."""
    import asyncio
    import sqlite3

    async def in_time() -> T:
        async with asyncio.timeout(QUEUE_TIMEOUT_S):
            return await work

    try:
        with reported(sqlite3.Error, prefix="the queue cannot be used: "):
            return asyncio.run(in_time())
    except TimeoutError:
        late = f"the queue gave no answer within {QUEUE_TIMEOUT_S:g} s"
        raise VerbError(late, code=Exit.TIMED_OUT) from None


@opt.shared
def jobs(
    query: ListQuery,
    host: opt.Host,
    ids: Annotated[list[int] | None, opt.argument("ID", "List only these jobs.")] = None,
    all_: Annotated[bool, opt.switch("Also list ended jobs.", "--all", "-a")] = False,
) -> None:
    """List the jobs of the embedded queue.

    Lists unfinished jobs by default. In an HTCondor pool use condor_q.

    \b
    Examples:
      provisioner jobs --all --sort -ended_at --limit 20
    """
    queue = open_queue(host)

    def listing() -> Listing:
        found = list(answer_of(queue.jobs(ids=ids or (), limit=1_000_000)))
        if not (all_ or ids):
            found = [job for job in found if job.state in ("idle", "running", "held")]
        states = (
            ", ".join(
                f"{n} {state}" for state, n in Counter(job.state for job in found).most_common()
            )
            or "none"
        )
        scope = f"{formatting.count(len(found), 'job')}: {states}{'' if all_ or ids else '; --all for ended ones'}"
        answer = Listing(JOBS_SCHEMA, QUEUE_COLUMNS, found, lambda job: str(job.id), scope)
        return picked(answer, query.sort, query.limit)

    out.present(query, host, listing)


submit_app = opt.verbs()


@submit_app.command(context_settings={"allow_interspersed_args": False})
@opt.shared
def submit(
    where: opt.Where,
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="Command of the job; it runs without a shell."),
    ],
    count: Annotated[int, opt.option("N", "Number of equal jobs.", "--count", "-n", min=1)] = 1,
    gpus: Annotated[
        str, opt.option("N", "GPUs per job: 1, 2, or a share such as 0.5; 0: none.")
    ] = "1",
    cpus: Annotated[int, opt.option("N", "CPUs.", min=1)] = 1,
    memory: Annotated[str, opt.option("SIZE", "Memory.")] = "1 GiB",
    disk: Annotated[str, opt.option("SIZE", "Disk.")] = "0 MiB",
    vram: Annotated[str, opt.option("SIZE", "Least VRAM per GPU.")] = "0 MiB",
    capability: Annotated[float, opt.option("X", "Least compute capability, as 8.0.", min=0)] = 0.0,
    gpu_model: Annotated[str, opt.option("NAME", "GPU model; default: any.")] = "",
    walltime: Annotated[
        str, opt.option("AGE", "Longest run time, for example 2h30m; 0s: no limit.")
    ] = "0s",
    env: Annotated[
        list[str] | None, opt.option("NAME=VALUE", "Environment variable of the job; repeatable.")
    ] = None,
    priority: Annotated[
        int, opt.option("N", "Priority; jobs with a higher number start first.")
    ] = 0,
    gpu_optional: Annotated[
        bool, opt.switch("Use an idle GPU or a CPU drone; start no GPU drone.", "--gpu-optional")
    ] = False,
) -> None:
    """Submit jobs to the embedded queue.

    Prints their ids. In an HTCondor pool use condor_submit.

    \b
    Examples:
      provisioner submit --count 20 --gpus 0.5 --memory "4 GiB" -- python train.py --epochs 3
    """
    from provisioner.config.units import parse_size
    from provisioner.durations import parse_duration

    queue = open_queue(where)
    variables = [variable.partition("=") for variable in env or ()]
    if wrong := [name for name, equals, _ in variables if not equals]:
        raise UsageError(f"--env {formatting.sanitize(wrong[0], 60)}: write NAME=VALUE")
    request = {
        "gpus": gpus,
        "cpus": cpus,
        "memory_mib": parsed(parse_size, "--memory", memory),
        "disk_mib": parsed(parse_size, "--disk", disk),
        "vram_mib": parsed(parse_size, "--vram", vram),
        "capability": round(capability * 10),
        "gpu_model": gpu_model,
        "walltime_s": parsed(parse_duration, "--walltime", walltime),
        "env": {name: value for name, _, value in variables},
        "priority": priority,
        "gpu_optional": gpu_optional,
    }
    # a request can never be met: it says what to write instead
    with reported(ValueError, code=Exit.USAGE):
        ids = answer_of(queue.submit(command, count=count, **request))
    print("\n".join(map(str, ids)))
    out.note(f"{formatting.count(len(ids), 'job')} submitted; `provisioner jobs` lists them")
