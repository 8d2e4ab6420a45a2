"""The ``provisioner`` command: its verbs, loaded when used, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from provisioner.answers import load_question
from provisioner.answers.errors import Exit, VerbError
from provisioner.cli.options import EXIT_HELP, VerbGroup, verb_error, verbs
from provisioner.formatting import sanitize

OWN_VERBS = {
    "run": "run:run",
    "serve": "serve:serve",
    "init": "init:init",
    "check": "check:check",
    "render": "check:render_app",
    "reload": "run:reload",
    "status": "status:status",
    "drones": "drones:drones_app",
    "sites": "sites:sites_app",
    "leader": "leader:leader_app",
    "explain": "questions:explain_app",
    "events": "status:events",
    "estimates": "estimates:estimates_app",
    "accounting": "accounting:accounting_app",
    "snapshot": "plan:snapshot",
    "replay": "plan:replay",
    "simulate": "simulate:simulate",
    "shadow": "shadow:shadow_app",
    "backup": "copies:backup",
    "restore": "copies:restore",
    "store": "copies:store_app",
    "jobs": "jobs:jobs",
    "submit": "jobs:submit_app",
    "demo": "demo:demo",
    "import": "check:import_tardis",
    "schema": "schema:schema",
    "version": "__main__:version",
}
"""Verbs that do more than ask a question, each with module and function (or group of verbs)."""
HIDDEN = {"names": "names:names"}
"""Verbs for programs, which the help does not list."""
VERBS = {
    "run": "Run the controller.",
    "serve": "Run the web service: API, metrics and pages.",
    "init": "Write a first configuration: the file of a controller and the file of one site.",
    "check": "Check the configuration and its site files.",
    "render": "Print configuration for administrators of sites and of the monitoring.",
    "reload": "Make the controller read its configuration again.",
    "status": "Show a summary: views, drones, demand, troubles.",
    "drones": "List drones; show, drain or kill some.",
    "sites": "List the sites; show, reset, disable or enable one.",
    "leader": "Change which of several members leads.",
    "demand": "List waiting jobs by class, with the reason.",
    "services": "List the inference services: servers, requests, and why there are so many servers.",
    "explain": "Explain a job, a drone, a job class, a site or a service (`explain ID`).",
    "plan": "Show what the next tick would do, and why.",
    "events": "List recorded events.",
    "estimates": "Show the estimates: run times, start delays, owner growth, idle gaps.",
    "usage": "Report the GPU use of jobs, and the smallest drone type that would be enough.",
    "accounting": "Report GPU-hours from the controller's ledger, against pledges and for owners of sites.",
    "snapshot": "Write a snapshot as JSON.",
    "replay": "Recompute the plan of a saved snapshot.",
    "simulate": "Replay jobs against the configured sites, with the real service in simulated time.",
    "shadow": "Compare another system with a controller in shadow mode.",
    "backup": "Copy the record to a file, also while the controller runs.",
    "restore": "Restore the record from a copy, on this host or on another one.",
    "store": "Move the record between a file and PostgreSQL.",
    "jobs": "List the jobs of the embedded queue.",
    "submit": "Submit jobs to the embedded queue.",
    "demo": "Run 40 jobs in drones on this host: no root, no GPU and no HTCondor needed.",
    "import": "Convert a COBalD/TARDIS configuration.",
    "schema": "Print a JSON Schema; without a name, list all schemas.",
    "version": "Print the version and the commit.",
}
"""First line of the help of each verb, in the order of the help: to list them must not import them all."""


def _verb(name: str) -> Any:
    """Return the function of a verb, or its group of verbs."""
    path = (OWN_VERBS | HIDDEN).get(name)
    if path is None:
        from provisioner.cli.questions import verb_of

        return verb_of(load_question(name))
    module, _, function = path.partition(":")
    return getattr(import_module(f"provisioner.cli.{module}"), function)


class LazyVerbs(VerbGroup):
    """Group of verbs that imports the module of a verb when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in (*VERBS, *HIDDEN):
            return None
        verb = _verb(cmd_name)
        if not isinstance(verb, typer.Typer):
            function = verb
            verb = verbs()
            verb.command()(function)
        command = typer.main.get_command(verb)
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=LazyVerbs,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    epilog=EXIT_HELP,
)


def _version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def provisioner(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Start pilot jobs (drones) at sites for GPU jobs that wait in an HTCondor pool.

    These verbs read only the record and also work while the controller is down: status, drones, sites, demand,
    services, explain, plan, events, estimates, usage, accounting, snapshot, replay, shadow report and backup. Results
    go to stdout, messages to stderr. Times are ISO-8601 in UTC (--local: local zone). In JSON, YAML and CSV they are
    seconds since the epoch in keys that end in _at; null means never.

    \b
    Examples:
      provisioner check && provisioner run
      provisioner status --watch
      provisioner explain job 204.17
    """


def version() -> None:
    """Print the version and the commit."""
    import provisioner

    commit = _commit(Path(provisioner.__file__).parent)
    print(provisioner.__version__, *([f"(commit {commit})"] if commit else ()))


def _commit(package: Path) -> str:
    """Return the commit that a package was built from, or that is checked out; empty if that is unknown."""
    built = package / "COMMIT"
    if built.exists():
        return built.read_text().strip()
    if not (package.parent / ".git").exists():
        return ""
    describe = ["git", "-C", str(package.parent), "describe", "--always", "--dirty", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(describe, capture_output=True, text=True, timeout=5, check=True)
        return found.stdout.strip()
    return ""


def run_process(argv: Sequence[str] | None = None) -> int:
    """Run one command line as the whole process; end quietly when the reader of the output goes away."""
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    # closed by who started us (`>&-`)
    sys.stdout = sys.stdout or nowhere
    sys.stderr = sys.stderr or nowhere
    code = run_verb(argv)
    try:
        sys.stderr.flush()
    except OSError:  # a log on a full disk: what could not be written must not become the exit code
        os.dup2(nowhere.fileno(), sys.stderr.fileno())
    if code == Exit.INTERRUPTED:
        # A KeyboardInterrupt that came up inside an `exec` of a text (a dataclass being made) is
        # remembered by CPython 3.11, handled or not: as `python -m` it would end by SIGINT instead
        # of with our code.
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    return code


def run_verb(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Only a bug shows a traceback."""
    command = typer.main.get_command(app)
    try:
        code = command.main(
            list(argv) if argv is not None else None, prog_name="provisioner", standalone_mode=False
        )
        sys.stdout.flush()
        return int(code or 0)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:  # `simulate` ignores SIGPIPE while it tells its progress
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:
        # usage errors have no fixed class in Typer
        if hasattr(error, "show") and hasattr(error, "exit_code"):
            error.show()
            return Exit.USAGE
        known = VerbError("aborted") if isinstance(error, typer.Abort) else verb_error(error)
        if known is None:
            raise
        first, *rest = [sanitize(part) for line in known.lines for part in line.splitlines()] or [
            "failed"
        ]
        print(f"provisioner: {first}", *(f"  {line}" for line in rest), sep="\n", file=sys.stderr)
        return known.code


if __name__ == "__main__":
    sys.exit(run_process())
