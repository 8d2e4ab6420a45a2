"""``provisioner submit``: put jobs into the embedded overlay's queue."""

from __future__ import annotations

from typing import Annotated

import typer

from provisioner import formatting
from provisioner.cli.events import age_s
from provisioner.cli.exits import Exit, Failure
from provisioner.cli.options import Where, shared
from provisioner.cli.output import note
from provisioner.cli.queue_rows import answer_of, open_queue

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(context_settings={"allow_interspersed_args": False})
@shared
def submit(
    where: Where,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run, without a shell.")],
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="How many equal jobs.")] = 1,
    gpus: Annotated[str, typer.Option("--gpus", metavar="N", help="1, 2, or a share such as 0.5; 0 for none.")] = "1",
    cpus: Annotated[int, typer.Option("--cpus", metavar="N", min=1, help="CPUs.")] = 1,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="Memory.")] = "1 GiB",
    disk: Annotated[str, typer.Option("--disk", metavar="SIZE", help="Disk.")] = "0 MiB",
    vram: Annotated[str, typer.Option("--vram", metavar="SIZE", help="Least VRAM per GPU.")] = "0 MiB",
    capability: Annotated[
        float, typer.Option("--capability", metavar="X", min=0, help="Least compute capability, as 8.0.")
    ] = 0.0,
    gpu_model: Annotated[str, typer.Option("--gpu-model", metavar="NAME", help="Only on this model.")] = "",
    walltime: Annotated[str, typer.Option("--walltime", metavar="AGE", help="Longest run time, as 2h30m.")] = "0s",
    env: Annotated[list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="Repeatable.")] = None,
    priority: Annotated[int, typer.Option("--priority", metavar="N", help="Higher goes first.")] = 0,
) -> None:
    """Submit jobs to the embedded queue.

    Their ids go to stdout. For a pool of HTCondor there is condor_submit.

    \b
    Examples:
      provisioner submit sleep 60
      provisioner submit --count 20 --gpus 0.5 --memory "4 GiB" -- python train.py --epochs 3
      provisioner submit --vram "40 GiB" --capability 8.0 --walltime 2h ./simulate.sh
    """
    queue = open_queue(where)
    try:
        ids = answer_of(
            queue.submit(
                command,
                count=count,
                gpus=gpus,
                cpus=cpus,
                memory_mib=_mib(memory),
                disk_mib=_mib(disk),
                vram_mib=_mib(vram),
                capability=round(capability * 10),
                gpu_model=gpu_model,
                walltime_s=age_s(walltime),
                env=_environment(env or []),
                priority=priority,
            )
        )
    except ValueError as error:  # the queue says which request can never be met, and what to write instead
        raise Failure(str(error), code=Exit.USAGE) from error
    print("\n".join(map(str, ids)))
    note(f"{formatting.count(len(ids), 'job')} submitted; `provisioner jobs` lists them")


def _mib(text: str) -> int:
    """``4 GiB`` as MiB. Raises :class:`Failure`."""
    from pydantic import TypeAdapter, ValidationError

    from provisioner.config.units import Size

    try:
        return int(TypeAdapter(Size).validate_python(text))
    except ValidationError as error:
        what = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise Failure(f"{formatting.sanitize(text, 40)!r}: {what}", code=Exit.USAGE) from None


def _environment(pairs: list[str]) -> dict[str, str]:
    wrong = [p for p in pairs if "=" not in p]
    if wrong:
        raise Failure(f"--env {formatting.sanitize(wrong[0], 60)}: write NAME=VALUE", code=Exit.USAGE)
    return {name: value for name, _, value in (p.partition("=") for p in pairs)}
