"""Shared parts of all verbs: exit codes, errors, common options, and what these mean: files, drones, sites."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum, StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer
from typer.core import TyperGroup

from provisioner.formatting import count, local_times, sanitize
from provisioner.model import DroneId

if TYPE_CHECKING:
    from provisioner.store.reader import Reader


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
            advice = f"{count(len(error.problems), 'problem')} in the configuration; `provisioner check` shows them too"
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


def option(metavar: str, help: str, *flags: str, **more: Any) -> Any:
    """Return an option with a value; its name is that of the parameter unless ``flags`` are given."""
    return typer.Option(*flags, metavar=metavar, help=help, **more)


def switch(help: str, *flags: str) -> Any:
    """Return an option without a value."""
    return typer.Option(*flags, help=help)


def argument(metavar: str, help: str, **more: Any) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


def _env_option(metavar: str | None, help: str, *flags: str) -> Any:
    env = f"PROVISIONER_{flags[0].removeprefix('--').upper()}"
    return typer.Option(*flags, envvar=env, show_envvar=False, metavar=metavar, help=help)


_CONFIG_HELP = (
    "Configuration file [env: PROVISIONER_CONFIG; default: ./provisioner.yaml, ./site_configs/provisioner.yaml, "
    "/etc/provisioner/provisioner.yaml]."
)
_STORE_HELP = "The record itself, without reading a configuration [env: PROVISIONER_STORE]."
ConfigPath = Annotated[Path | None, _env_option("PATH", _CONFIG_HELP, "--config", "-c")]
ConfigArgument = Annotated[Path | None, argument("PATH", "Configuration file; default as --config.")]
EventReason = Annotated[str, option("TEXT", "Why; it is recorded as an event.", "--reason", "-r")]


def tick_option(help: str) -> Any:
    """Return the option of a recorded tick. SQLite holds no larger number."""
    return option("N", help, "--tick", min=0, max=2**63 - 1)


class OptionGroup:
    """Base of dataclasses whose fields are options: a verb takes one as a parameter, see :func:`shared`."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Where(OptionGroup):
    """Options: the place of the record and of the configuration."""

    config: ConfigPath = None
    store: Annotated[Path | None, _env_option("PATH", _STORE_HELP, "--store")] = None


@dataclass(frozen=True, slots=True)
class Show(OptionGroup):
    """Options: the form of the answer."""

    output: Annotated[Format, _env_option(None, "Form of the output [env: PROVISIONER_OUTPUT].", "--output", "-o")] = (
        Format.TABLE
    )
    columns: Annotated[str | None, option("A,B", "Only these, in this order; names as in JSON.")] = None
    no_header: Annotated[bool, switch("No header line and no line of scope.", "--no-header")] = False
    no_color: Annotated[bool, switch("No colour, as with NO_COLOR set.", "--no-color")] = False
    watch: Annotated[bool, switch("Show again and again; JSON as one object per line.", "--watch", "-w")] = False
    interval: Annotated[
        float, option("SECONDS", "Pause between two with --watch.", "--interval", "-i", min=0.1, max=86400)
    ] = 2.0
    local: Annotated[bool, switch("Times in the local zone (TZ), not in UTC; tables only.", "--local")] = False


@dataclass(frozen=True, slots=True)
class Pick(OptionGroup):
    """Options: the rows of a list, and their order."""

    sort: Annotated[str | None, option("A,-B", "Order by these; a leading - turns one round.")] = None
    limit: Annotated[int | None, option("N", "No more rows than this.", "--limit", "-n", min=0)] = None


def shared(verb: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of ``verb`` that is an :class:`OptionGroup` by an option per field."""
    groups: dict[str, type[OptionGroup]] = {}
    own: list[inspect.Parameter] = []
    spread: list[inspect.Parameter] = []
    for parameter in inspect.signature(verb, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            groups[parameter.name] = kind
            spread += inspect.signature(kind, eval_str=True).parameters.values()
        else:
            own.append(parameter)
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *spread)]

    @wraps(verb)
    def call(**given: Any) -> None:
        made = {name: kind(**{f: given.pop(f) for f in kind.__dataclass_fields__}) for name, kind in groups.items()}
        show = next((group for group in made.values() if isinstance(group, Show)), None)
        with local_times(show is not None and show.local and show.output.for_people):
            verb(**given, **made)

    del call.__wrapped__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def verb_follows(ctx: typer.Context) -> bool:
    """Return True if another verb follows. Raises :class:`VerbError` for options before it: they would be ignored."""
    if ctx.invoked_subcommand is None:
        return False
    given = [name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"]
    if not given:
        return True
    assert isinstance(ctx.command, TyperGroup)
    option, verb = "--" + given[0].rstrip("_").replace("_", "-"), f"{ctx.info_name} {ctx.invoked_subcommand}"
    takes = any(each.name == given[0] for each in ctx.command.commands[ctx.invoked_subcommand].params)
    repair = f"put {option} after `{verb}`" if takes else f"leave {option} away: `{verb}` has none"
    raise VerbError(repair, code=Exit.USAGE)


def parse_age(text: str) -> float:
    """Return ``30m``, ``1h30m``, ``45s`` or plain seconds as seconds. Raises :class:`VerbError`."""
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
    "top": "status --watch",
    "logs": "events --follow",
    "describe": "explain",
    "why": "explain",
    "drones list": "drones",
    "drones ls": "drones",
    "drones top": "drones --watch",
    "sites list": "sites",
    "sites ls": "sites",
}
"""Verbs of other tools that no verb here is spelt like, with their equivalents."""


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
        if within != "explain":
            return MEANT.get(name if ctx.parent is None else f"{within} {name}", "")
        misspelt = len(args) > 1 and get_close_matches(name, self.list_commands(ctx), n=1)
        if misspelt or not re.fullmatch(r"[\w.#@-]+", name):
            return ""
        is_job = name.replace(".", "", 1).isdecimal() or "#" in name
        return f"explain {'job' if is_job else 'drone' if '-' in name else 'class'} {name}"


# ---------------------------------------------------------------------------------------------- files, drones and sites

MAX_NAMED = 8
MAX_COMPLETIONS = 200

CONFIG_PATHS = (
    Path("provisioner.yaml"),
    Path("site_configs/provisioner.yaml"),
    Path("/etc/provisioner/provisioner.yaml"),
)
"""Places that are searched for a configuration if none is named."""


def config_path(where: Where) -> Path:
    """Return the configuration file that is meant. Raises :class:`VerbError` when there is none."""
    if where.config is not None:
        if where.config.is_file():
            return where.config
        wrong = "is a directory: name the file in it" if where.config.is_dir() else "does not exist"
        raise VerbError(f"no configuration at {where.config}: it {wrong}")
    for path in CONFIG_PATHS:
        if path.is_file():
            return path
    raise VerbError(
        "no configuration found: looked for " + ", ".join(map(str, CONFIG_PATHS)),
        "name it with --config PATH or PROVISIONER_CONFIG",
    )


def store_path(where: Where) -> Path:
    """Return the path of the record: ``--store``, else what the configuration says."""
    if where.store is not None:
        return where.store
    try:
        config = config_path(where)
    except VerbError as none:
        raise VerbError(*none.lines, "or name the record with --store PATH or PROVISIONER_STORE") from None
    from provisioner.config import strict_yaml

    document = strict_yaml.read(config)  # what is wrong elsewhere in it is for `run` and `check`
    section = document.tree.get("store")
    path = section.get("path") if isinstance(section, dict) else None
    if not isinstance(path, str) or not path:
        problems = [] if document.is_mapping else map(str, document.problems[:1])
        more = f"{config}: no store.path in it; `provisioner check` says more"
        raise VerbError(*problems, more, code=Exit.UNMET)
    return config.parent / Path(path).expanduser()


def open_record(where: Where) -> Reader:
    """Open the record for reading. Raises :class:`VerbError` if there is none, ``StoreError`` if it is unusable."""
    path = store_path(where)
    if not path.exists():
        advice = "`provisioner run` makes it; --store PATH or PROVISIONER_STORE names another"
        raise VerbError(f"no record at {path}", advice)
    if path.is_dir():
        raise VerbError(f"{path} is a directory, not a record")
    from provisioner.store.reader import Reader

    return Reader(path)


def find_drone(reader: Reader, any_id: str) -> DroneId:
    """Return the drone of an id, a remote id or a slot name. Raises :class:`VerbError` that names the candidates."""
    found = reader.find(any_id) if any_id.strip() else []
    if len(found) == 1:
        return found[0]
    if found:
        raise VerbError(f"{sanitize(any_id, 80)} means {len(found)} drones: {named(found)}")
    near = _similar_ids(reader, any_id)
    candidates = f"; nearest: {named(near)}" if near else ""
    raise VerbError(f"no drone is known by {sanitize(any_id, 80) or 'an empty id'}{candidates}")


def _similar_ids(reader: Reader, any_id: str) -> list[str]:
    drones = reader.drones(ended=None)
    ids = [i for d in drones for i in (d.id, d.remote_id, d.slot, d.site_slot) if i]
    containing = [i for i in ids if any_id and any_id in i][:3]
    return containing or get_close_matches(any_id[:200], ids, n=3, cutoff=0.5)


def require_known_sites(reader: Reader, sites: Sequence[str]) -> None:
    """Raise :class:`VerbError` for the first of ``sites`` that is neither configured nor has had a drone.

    Before the first tick the record does not tell what is configured.
    """
    views = reader.views() if sites else None
    if views is None:
        return
    for site in sites:
        if site not in views.policy.sites and not reader.drones(ended=None, sites=[site], limit=1):
            raise unknown_site(site, sorted({*views.policy.sites, *(drone.site for drone in reader.drones())}))


def unknown_site(name: str, known: Sequence[str]) -> VerbError:
    """Return the error for a site that is not on record."""
    near = get_close_matches(name[:200], known, n=1)
    instead = f"did you mean `{near[0]}`?" if near else f"known: {named(known) or 'none'}"
    return VerbError(f"no site `{sanitize(name, 80)}` on record; {instead}")


def named(ids: Sequence[str]) -> str:
    """Return the first of many ids, and how many more there are."""
    shown = ", ".join(sanitize(i, 80) for i in ids[:MAX_NAMED])
    return shown + (f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else "")


# ----------------------------------------------------------------------------------------------------- shell completion


def _completing(names: Callable[[Reader], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        found: list[str] = []
        with suppress(Exception):  # no record, no configuration: then there is nothing to complete
            config, store = (Path(str(path)) if (path := ctx.params.get(key)) else None for key in ("config", "store"))
            found = [name for name in names(open_record(Where(config, store))) if name.startswith(incomplete)]
        return found[:MAX_COMPLETIONS]

    return complete


complete_live_drones = _completing(lambda reader: [drone.id for drone in reader.drones()])
complete_drones = _completing(
    lambda reader: [d.id for d in (*reader.drones(), *reader.drones(ended=True, limit=MAX_COMPLETIONS))]
)
complete_sites = _completing(lambda reader: sorted(views.policy.sites) if (views := reader.views()) else ())
complete_types = _completing(lambda reader: [str(t.key) for t in views.types] if (views := reader.views()) else ())
complete_classes = _completing(
    lambda reader: [c.id for c in v.overlay.view.classes] if (v := reader.views()) and v.overlay.view else ()
)
