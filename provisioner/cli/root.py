"""The ``provisioner`` command: its verbs, loaded when wanted, and the one place where failures become exit codes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from provisioner.cli.exits import EXIT_HELP, Exit, failure_of

VERBS = (
    "run", "check", "reload", "status", "drones", "sites", "demand", "explain", "plan", "events", "snapshot",
    "replay", "jobs", "submit", "demo", "schema", "version",
)  # fmt: skip
"""In the order of the help. Each is the ``app`` of the module of that name: start-up imports only the one that runs."""

class Verbs(TyperGroup):
    """The group of verbs that imports a verb's module when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            self.commands = {verb: self.get_command(ctx, verb) for verb in VERBS}  # for "did you mean"
            return None
        command = typer.main.get_command(_typer_of(cmd_name))
        command.name = cmd_name
        return command


def _typer_of(verb: str) -> typer.Typer:
    """The verb's ``app``, or one made of the function that is named like its module."""
    module = import_module(f"provisioner.cli.{verb}")
    made = getattr(module, "app", None)
    if isinstance(made, typer.Typer):
        return made
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command()(getattr(module, verb))
    return alone


app = typer.Typer(
    cls=Verbs,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    epilog=EXIT_HELP,
)


def _version(wanted: bool) -> None:
    if wanted:
        from provisioner import __version__

        print(__version__)
        raise typer.Exit()


@app.callback()
def provisioner(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Turn idle GPU jobs of a pool into drones at sites, and let the drones go again.

    All verbs but run, check --live, submit, jobs and demo read the record alone: they work while the controller is
    down. Results go to stdout, everything else to stderr. Times are ISO-8601 in UTC; in JSON, YAML and CSV they are
    seconds since the epoch in keys that end in _at, and null means never.

    \b
    Examples:
      provisioner check && provisioner run
      provisioner status --watch
      provisioner explain job 204.17
    """


def run_process(argv: Sequence[str] | None = None) -> int:
    """As the process itself: a reader of our output that goes away ends us quietly, as it does any Unix tool."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    return run_verb(argv)


def run_verb(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Only a bug shows a traceback."""
    command = typer.main.get_command(app)
    try:
        code = command.main(list(argv) if argv is not None else None, prog_name="provisioner", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except typer.Abort:
        return _tell("given up", code=Exit.FAILED)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:
        if _is_usage(error):
            error.show()  # type: ignore[attr-defined]
            return Exit.USAGE
        failure = failure_of(error)
        if failure is None:
            raise
        return _tell(*failure.lines, code=failure.code)


def _is_usage(error: Exception) -> bool:
    """Typer's own complaints; which class they have depends on its version."""
    return hasattr(error, "show") and hasattr(error, "exit_code")


def _tell(*lines: str, code: Exit) -> int:
    from provisioner.say import clean

    first, *rest = [clean(part) for line in lines for part in line.splitlines()] or ["failed"]
    print(f"provisioner: {first}", file=sys.stderr)
    for line in rest:
        print(f"  {line}", file=sys.stderr)
    return code
