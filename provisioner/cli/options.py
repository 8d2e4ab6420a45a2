"""Options that many verbs share: :func:`shared` spreads the values of :mod:`provisioner.cli.forms` over a verb."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from provisioner.cli.exits import Exit, Failure
from provisioner.cli.forms import Format, Pick, Show, Where
from provisioner.formatting import local_times

__all__ = [
    "LARGEST_TICK",
    "ConfigArgument",
    "ConfigPath",
    "Format",
    "Pick",
    "Show",
    "Where",
    "nothing_before",
    "shared",
]

LARGEST_TICK = 2**63 - 1
"""SQLite holds no larger number."""

ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="PATH",
        envvar="PROVISIONER_CONFIG",
        show_envvar=False,
        help="Configuration file "
        "[env: PROVISIONER_CONFIG; default: ./provisioner.yaml, ./site_configs/provisioner.yaml, "
        "/etc/provisioner/provisioner.yaml].",
    ),
]

ConfigArgument = Annotated[
    Path | None,
    typer.Argument(metavar="PATH", help="Configuration file; default as --config.", show_default=False),
]

_OPTIONS: dict[type, dict[str, Any]] = {
    Where: {
        "config": ConfigPath,
        "store": Annotated[
            Path | None,
            typer.Option(
                "--store",
                metavar="PATH",
                envvar="PROVISIONER_STORE",
                show_envvar=False,
                help="The record itself, without reading a configuration [env: PROVISIONER_STORE].",
            ),
        ],
    },
    Show: {
        "output": Annotated[
            Format,
            typer.Option(
                "--output",
                "-o",
                envvar="PROVISIONER_OUTPUT",
                show_envvar=False,
                help="Form of the output [env: PROVISIONER_OUTPUT].",
            ),
        ],
        "columns": Annotated[
            str | None,
            typer.Option("--columns", metavar="A,B", help="Only these, in this order; names as in JSON."),
        ],
        "no_header": Annotated[bool, typer.Option("--no-header", help="No header line and no line of scope.")],
        "no_color": Annotated[bool, typer.Option("--no-color", help="No colour, as with NO_COLOR set.")],
        "watch": Annotated[
            bool, typer.Option("--watch", "-w", help="Show again and again; JSON as one object per line.")
        ],
        "interval": Annotated[
            float,
            typer.Option(
                "--interval", "-i", metavar="SECONDS", min=0.1, max=86400, help="Pause between two with --watch."
            ),
        ],
        "local": Annotated[
            bool, typer.Option("--local", help="Times in the local zone (TZ), not in UTC; tables only.")
        ],
    },
    Pick: {
        "sort": Annotated[
            str | None,
            typer.Option("--sort", metavar="A,-B", help="Order by these; a leading - turns one round."),
        ],
        "limit": Annotated[
            int | None, typer.Option("--limit", "-n", metavar="N", min=0, help="No more rows than this.")
        ],
    },
}
"""The option of each field; defaults are the fields' own."""


def shared(verb: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of ``verb`` that is annotated as one of the groups above by an option per field."""
    hints = get_type_hints(verb, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if kind in _OPTIONS}
    own = [
        p.replace(annotation=hints[p.name]) for p in inspect.signature(verb).parameters.values() if p.name not in groups
    ]
    spread = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=_OPTIONS[kind][f.name])
        for kind in groups.values()
        for f in fields(kind)
    ]

    @wraps(verb)
    def call(**given: Any) -> None:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        with local_times(any(isinstance(group, Show) and group.local_times for group in made.values())):
            verb(**given, **made)

    parameters = [*own, *spread]
    del call.__wrapped__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def nothing_before(ctx: typer.Context) -> None:
    """Options of a list that stand before another verb (``sites -o json show``) would be ignored: better refused."""
    given = [name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if not given:
        return
    assert isinstance(ctx.command, TyperGroup) and ctx.invoked_subcommand is not None
    option, verb = "--" + given[0].rstrip("_").replace("_", "-"), f"{ctx.info_name} {ctx.invoked_subcommand}"
    takes = any(each.name == given[0] for each in ctx.command.commands[ctx.invoked_subcommand].params)
    repair = f"put {option} after `{verb}`" if takes else f"leave {option} away: `{verb}` has none"
    raise Failure(repair, code=Exit.USAGE)
