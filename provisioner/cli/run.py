"""``provisioner run``: the controller itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from provisioner.cli.exits import Failure
from provisioner.cli.options import ConfigArgument, ConfigPath, Where
from provisioner.cli.where import config_path
from provisioner.logs import LogFormat, LogLevel, log_to_stderr

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def run(
    path: ConfigArgument = None,
    config: ConfigPath = None,
    once: Annotated[bool, typer.Option("--once", help="A single tick, then stop.")] = False,
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="DIR", help="Relative paths in the files start here, not where the files are."),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option("--log-format", help="Form of the log lines; default: journal under systemd, else console."),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option("--log-level", help="Log nothing below this.")] = LogLevel.INFO,
) -> None:
    """Run the controller.

    It ends by SIGTERM or Ctrl-C; drones outlive it, and the next one takes them over. One controller at a time
    holds a record; a second refuses and says who does. SIGHUP, or `provisioner reload`, takes over a changed
    configuration. Log lines go to stderr: under systemd with the priorities of the journal, as JSON on request.

    \b
    Examples:
      provisioner run
      provisioner run /etc/provisioner/provisioner.yaml
      provisioner run --once
      provisioner run --log-format json --log-level warning
    """
    import signal

    from provisioner import app as process
    from provisioner.interfaces import AdapterError
    from provisioner.loader import AdapterBrokenError, AdapterUnknownError

    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    config = config_path(Where(config=path or config))
    log_to_stderr(log_level, log_format)
    try:
        code = asyncio.run(process.run(config, once=once, root=root))
    except (AdapterError, AdapterBrokenError, AdapterUnknownError) as error:
        raise Failure(str(error)) from error
    raise typer.Exit(code)
