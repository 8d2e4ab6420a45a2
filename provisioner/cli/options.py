"""Shared parts of all verbs: exit codes, the error that ends a verb, and common options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from enum import IntEnum, StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from provisioner.formatting import local_times, sanitize

LARGEST_TICK = 2**63 - 1
"""SQLite holds no larger number."""


# ----------------------------------------------------------------------------------------------------------- exit codes


class Exit(IntEnum):
    """Exit codes, the same for every verb."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNMET = 3
    PARTIAL = 4
    TIMED_OUT = 124
    INTERRUPTED = 130


EXIT_HELP = (
    "Exit codes: 0 success, an empty list included; 1 failed; 2 wrong usage; 3 condition not met (check found "
    "problems, replay differs, reload refused, configuration invalid); 4 some of several succeeded; 124 time is up; "
    "130 interrupted."
)


class VerbError(Exception):
    """A verb cannot do what was asked. Its lines go to stderr, without a traceback."""

    def __init__(self, *lines: str, code: Exit = Exit.FAILED) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.code = code


def verb_error(error: BaseException) -> VerbError | None:
    """Return the error to show; None for one that is a bug."""
    from provisioner.config import ConfigError
    from provisioner.store import StoreError

    match error:
        case VerbError():
            return error
        case ConfigError():
            count = f"{len(error.problems)} problem{'' if len(error.problems) == 1 else 's'}"
            advice = f"{count} in the configuration; `provisioner check` shows them too"
            return VerbError(*map(str, error.problems), advice, code=Exit.UNMET)
        case StoreError():
            return VerbError(str(error))
        case OSError() if error.filename is not None:
            return VerbError(f"{error.filename}: {error.strerror or error}")
        case OSError():
            return VerbError(error.strerror or str(error))
        case _:
            return None


# ------------------------------------------------------------------------------------------------------- shared options


class Format(StrEnum):
    """Output formats. All but table and wide are for programs: never shortened, never coloured."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"

    @property
    def for_people(self) -> bool:
        return self in (Format.TABLE, Format.WIDE)


ConfigPath = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="PATH",
        envvar="PROVISIONER_CONFIG",
        show_envvar=False,
        help="Configuration file [env: PROVISIONER_CONFIG; default: ./provisioner.yaml, "
        "./site_configs/provisioner.yaml, /etc/provisioner/provisioner.yaml].",
    ),
]
ConfigArgument = Annotated[
    Path | None,
    typer.Argument(metavar="PATH", help="Configuration file; default as --config.", show_default=False),
]
StorePath = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="PATH",
        envvar="PROVISIONER_STORE",
        show_envvar=False,
        help="The record itself, without reading a configuration [env: PROVISIONER_STORE].",
    ),
]
OutputFormat = Annotated[
    Format,
    typer.Option(
        "--output",
        "-o",
        envvar="PROVISIONER_OUTPUT",
        show_envvar=False,
        help="Form of the output [env: PROVISIONER_OUTPUT].",
    ),
]
Columns = Annotated[
    str | None, typer.Option("--columns", metavar="A,B", help="Only these, in this order; names as in JSON.")
]
NoHeader = Annotated[bool, typer.Option("--no-header", help="No header line and no line of scope.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colour, as with NO_COLOR set.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show again and again; JSON as one object per line.")]
Pause = Annotated[
    float,
    typer.Option("--interval", "-i", metavar="SECONDS", min=0.1, max=86400, help="Pause between two with --watch."),
]
Local = Annotated[bool, typer.Option("--local", help="Times in the local zone (TZ), not in UTC; tables only.")]
Sort = Annotated[
    str | None, typer.Option("--sort", metavar="A,-B", help="Order by these; a leading - turns one round.")
]
Limit = Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=0, help="No more rows than this.")]


class OptionGroup:
    """Base of dataclasses whose fields are options: a verb takes one as a parameter, see :func:`shared`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Where(OptionGroup):
    """Options: the place of the record and of the configuration."""

    config: ConfigPath = None
    store: StorePath = None


@dataclass(frozen=True, slots=True)
class Show(OptionGroup):
    """Options: the form of the answer."""

    output: OutputFormat = Format.TABLE
    columns: Columns = None
    no_header: NoHeader = False
    no_color: NoColor = False
    watch: Watch = False
    interval: Pause = 2.0
    local: Local = False


@dataclass(frozen=True, slots=True)
class Pick(OptionGroup):
    """Options: the rows of a list, and their order."""

    sort: Sort = None
    limit: Limit = None


def shared(verb: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of ``verb`` that is an :class:`OptionGroup` by an option per field."""
    hints = get_type_hints(verb, include_extras=True)
    groups: dict[str, Any] = {
        name: kind for name, kind in hints.items() if isinstance(kind, type) and issubclass(kind, OptionGroup)
    }
    own = [
        p.replace(annotation=hints[p.name]) for p in inspect.signature(verb).parameters.values() if p.name not in groups
    ]
    spread = [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if f.default is MISSING else f.default,
            annotation=annotations[f.name],
        )
        for kind in groups.values()
        for annotations in [get_type_hints(kind, include_extras=True)]
        for f in fields(kind)
    ]

    @wraps(verb)
    def call(**given: Any) -> None:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        show = next((group for group in made.values() if isinstance(group, Show)), None)
        with local_times(show is not None and show.local and show.output.for_people):
            verb(**given, **made)

    parameters = [*own, *spread]
    del call.__wrapped__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def refuse_options_before_verb(ctx: typer.Context) -> None:
    """Raise :class:`VerbError` for options before another verb: in ``sites -o json show`` they are ignored."""
    given = [name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if not given:
        return
    assert isinstance(ctx.command, TyperGroup) and ctx.invoked_subcommand is not None
    option, verb = "--" + given[0].rstrip("_").replace("_", "-"), f"{ctx.info_name} {ctx.invoked_subcommand}"
    takes = any(each.name == given[0] for each in ctx.command.commands[ctx.invoked_subcommand].params)
    repair = f"put {option} after `{verb}`" if takes else f"leave {option} away: `{verb}` has none"
    raise VerbError(repair, code=Exit.USAGE)


def parse_age(text: str) -> float:
    """``30m``, ``1h30m``, ``45s`` or plain seconds, as seconds. Raises :class:`Failure`."""
    found = re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text.strip())
    if not text.strip() or found is None:
        raise VerbError(f"{sanitize(text, 40)!r} is not an age: write 45s, 30m, 1h30m or 2d", code=Exit.USAGE)
    days, hours, minutes, rest = (int(n or 0) for n in found.groups())
    return float(days * 86400 + hours * 3600 + minutes * 60 + rest)


# --------------------------------------------------------------------------------------------------------- misspellings

MEANT = {
    "drain": "drones drain",
    "drian": "drones drain",
    "kill": "drones kill",
    "ls": "drones",
    "list": "drones",
    "ps": "drones",
    "get": "drones",
    "top": "status --watch",
    "logs": "events --follow",
    "log": "events --follow",
    "show": "drones show",
    "describe": "explain",
    "why": "explain",
    "reset": "sites reset",
    "validate": "check",
    "start": "run",
    "restart": "reload",
}
"""Verbs of other tools that no verb here is spelt like, with their equivalents."""

MEANT_OF_DRONES = {
    "get": "drones show",
    "describe": "drones show",
    "top": "drones --watch",
    "watch": "drones --watch",
    "rm": "drones kill",
    "delete": "drones kill",
    "stop": "drones drain",
}


class VerbGroup(TyperGroup):
    """Group of verbs that suggests a verb for one that does not exist."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        unknown = bool(name) and not name.startswith("-") and self.get_command(ctx, name) is None
        if unknown and (meant := self._meant(ctx, args)):
            ctx.fail(f"No such command '{name}'. Did you mean `provisioner {meant}`?")
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: Any, args: list[str]) -> str:
        name, within = args[0], ctx.info_name
        if within == "explain":
            if len(args) > 1 and get_close_matches(name, self.list_commands(ctx), n=1):
                return ""  # misspelt
            is_job = name.replace(".", "", 1).isdecimal() or "#" in name
            kind = "job" if is_job else "drone" if "-" in name else "class"
            return f"explain {kind} {name}" if re.fullmatch(r"[\w.#@-]+", name) else ""
        if name in ("list", "ls"):
            return within if within in ("drones", "sites") else "drones"
        if within == "drones":
            return MEANT_OF_DRONES.get(name, "")
        return MEANT.get(name, "") if within != "sites" else ""
