"""The ``provisioner`` command as its parser knows it: its verbs, loaded when wanted."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from provisioner.cli.complete import Hints
from provisioner.cli.exits import EXIT_HELP, Exit, Failure

VERBS = (
    "run",
    "check",
    "render",
    "reload",
    "status",
    "drones",
    "sites",
    "demand",
    "explain",
    "plan",
    "events",
    "estimates",
    "snapshot",
    "replay",
    "simulate",
    "jobs",
    "submit",
    "demo",
    "import",
    "schema",
    "version",
)
"""In the order of the help. Each is the ``app`` of the module of that name: start-up imports only the one that runs."""


class Verbs(Hints):
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
    module = import_module(f"provisioner.cli.{'import_tardis' if verb == 'import' else verb}")  # a word of Python's own
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

    All verbs but run, check --live, simulate, submit, jobs and demo read the record alone: they work while the
    controller is down. Results go to stdout, everything else to stderr. Times are ISO-8601 in UTC, with --local in the
    local zone; in JSON, YAML and CSV they are seconds since the epoch in keys that end in _at, and null means never.

    \b
    Examples:
      provisioner check && provisioner run
      provisioner status --watch
      provisioner explain job 204.17
    """


def parse_and_run(argv: Sequence[str] | None) -> int:
    """Parse a command line and run its verb. Raises what the verb raises, :class:`Failure` for a question given up."""
    command = typer.main.get_command(app)
    try:
        code = command.main(list(argv) if argv is not None else None, prog_name="provisioner", standalone_mode=False)
    except typer.Abort:
        raise Failure("given up") from None
    except Exception as error:
        if not _is_usage(error):
            raise
        error.show()  # type: ignore[attr-defined]
        return Exit.USAGE
    return int(code or 0)


def _is_usage(error: Exception) -> bool:
    """Typer's own complaints; which class they have depends on its version."""
    return hasattr(error, "show") and hasattr(error, "exit_code")
