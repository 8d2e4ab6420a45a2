"""Shared parts of all verbs: exit codes, errors, common options, and what these mean: files, drones, sites."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum, StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import typer

from provisioner.formatting import count, local_times, sanitize
from provisioner.model import DroneId

if TYPE_CHECKING:
    from provisioner.store.reader import Reader

T = TypeVar("T")


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
    """Error of a verb that cannot do what was asked. Its lines go to stderr, without a traceback."""

    def __init__(self, *lines: str, code: Exit = Exit.FAILED) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.code = code


_WEB = ("aiohttp", "jinja2", "jwt", "prometheus_client", "pygal")
EXTRAS = {
    **dict.fromkeys(_WEB, "web"),
    "matplotlib": "report",
    "htcondor2": "htcondor",
    "classad2": "htcondor",
}
"""Extras that install the packages which verbs need."""


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
        case ModuleNotFoundError() if (package := (error.name or "").partition(".")[0]) in EXTRAS:
            extra = f"pip install 'gpu-drone-provisioner[{EXTRAS[package]}]'"
            return VerbError(f"this needs the Python package {package}: {extra}")
        case OSError() if error.filename is not None:
            return VerbError(f"{error.filename}: {error.strerror or error}")
        case OSError():
            return VerbError(error.strerror or str(error))
        case _:
            return None


def unknown(
    what: str, name: str, known: Sequence[str], where: str = "", code: Exit = Exit.FAILED
) -> VerbError:
    """Return the error for a name that is not among the known ones."""
    near = get_close_matches(name[:200], known, n=1)
    instead = f"did you mean `{near[0]}`?" if near else f"known: {named(known) or 'none'}"
    return VerbError(f"no {what} `{sanitize(name, 80)}`{where}; {instead}", code=code)


MAX_NAMED = 8


def named(ids: Sequence[str]) -> str:
    """Return the first of many ids, and how many more there are."""
    shown = ", ".join(sanitize(i, 80) for i in ids[:MAX_NAMED])
    return shown + (f" and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else "")


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
_URL_HELP = "Web service to ask instead, https://HOST:PORT or unix:PATH [env: PROVISIONER_URL]."
_TOKEN_HELP = "With --url: bearer token to send; over https by default that of BEARER_TOKEN or BEARER_TOKEN_FILE."
ConfigPath = Annotated[Path | None, _env_option("PATH", _CONFIG_HELP, "--config", "-c")]
ConfigArgument = Annotated[
    Path | None, argument("PATH", "Configuration file; default as --config.")
]
EventReason = Annotated[str, option("TEXT", "Why; it is recorded as an event.", "--reason", "-r")]


def tick_option(help: str) -> Any:
    """Return the option of a recorded tick. SQLite holds no larger number."""
    return option("N", help, "--tick", min=0, max=2**63 - 1)


class OptionGroup:
    """Base of dataclasses whose fields are options: a verb takes one as a parameter, see :func:`shared`."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]


@dataclass(frozen=True)
class Where(OptionGroup):
    """Options: the place of the record and of the configuration."""

    config: ConfigPath = None
    store: Annotated[Path | None, _env_option("PATH", _STORE_HELP, "--store")] = None
    url: Annotated[str | None, _env_option("URL", _URL_HELP, "--url")] = None
    token_file: Annotated[Path | None, option("FILE", _TOKEN_HELP, "--token-file")] = None


@dataclass(frozen=True)
class Show(OptionGroup):
    """Options: the form of the answer."""

    output: Annotated[
        Format, _env_option(None, "Form of the output [env: PROVISIONER_OUTPUT].", "--output", "-o")
    ] = Format.TABLE
    columns: Annotated[
        str | None, option("A,B", "Only these, in this order; names as in JSON.")
    ] = None
    no_header: Annotated[bool, switch("No header line and no line of scope.", "--no-header")] = (
        False
    )
    no_color: Annotated[bool, switch("No colour, as with NO_COLOR set.", "--no-color")] = False
    watch: Annotated[
        bool, switch("Show again and again; JSON as one object per line.", "--watch", "-w")
    ] = False
    interval: Annotated[
        float, option("SECONDS", "Pause with --watch.", "--interval", "-i", min=0.1, max=86400)
    ] = 2.0
    local: Annotated[
        bool, switch("Times in the local zone (TZ), not in UTC; tables only.", "--local")
    ] = False


@dataclass(frozen=True)
class Pick(OptionGroup):
    """Options: the rows of a list, and their order."""

    sort: Annotated[
        str | None, option("A,-B", "Order by these heads or keys; a leading - turns one round.")
    ] = None
    limit: Annotated[int | None, option("N", "No more rows than this.", "--limit", "-n", min=0)] = (
        None
    )


@dataclass(frozen=True)
class Query(Where, Show):
    """Options of verbs that answer from the record."""


@dataclass(frozen=True)
class ListQuery(Where, Show, Pick):
    """Options of verbs that list what is on record."""


def shared(verb: Callable[..., T]) -> Callable[..., T]:
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
    def call(**given: Any) -> T:
        made = {
            name: kind(**{f: given.pop(f) for f in kind.__dataclass_fields__})
            for name, kind in groups.items()
        }
        show = next((group for group in made.values() if isinstance(group, Show)), None)
        with local_times(show is not None and show.local and show.output.for_people):
            return verb(**given, **made)

    del call.__wrapped__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def verb_follows(ctx: typer.Context) -> bool:
    """Return True if another verb follows. Raises :class:`VerbError` for options before it: they would be ignored."""
    if ctx.invoked_subcommand is None:
        return False
    given = [
        name
        for name in ctx.params
        if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if given:
        option = "--" + given[0].rstrip("_").replace("_", "-")
        raise VerbError(
            f"put {option} after `{ctx.info_name} {ctx.invoked_subcommand}`", code=Exit.USAGE
        )
    return True


@contextmanager
def reported(*kinds: type[Exception], prefix: str = "", code: Exit = Exit.FAILED) -> Iterator[None]:
    """Turn errors of these kinds, whose messages are for people, into :class:`VerbError`."""
    try:
        yield
    except kinds as error:
        raise VerbError(
            *(f"{prefix}{line}" for line in str(error).splitlines()), code=code
        ) from error


def parsed(parse: Callable[[str], T], option: str, text: str) -> T:
    """Return the value of an option. Raises :class:`VerbError` that names the option and the remedy."""
    with reported(ValueError, prefix=f"{option}: ", code=Exit.USAGE):
        return parse(text)


CONFIG_PATHS = tuple(
    map(
        Path,
        ("provisioner.yaml", "site_configs/provisioner.yaml", "/etc/provisioner/provisioner.yaml"),
    )
)


def config_path(where: Where) -> Path:
    """Return the configuration file that is meant. Raises :class:`VerbError` when there is none."""
    if where.config is not None:
        if where.config.is_file():
            return where.config
        raise VerbError(f"no configuration at {where.config}: it is no file")
    if found := next((path for path in CONFIG_PATHS if path.is_file()), None):
        return found
    places = ", ".join(map(str, CONFIG_PATHS))
    raise VerbError(
        f"no configuration found: looked for {places}",
        "name it with --config PATH or PROVISIONER_CONFIG",
    )


def store_path(where: Where) -> Path:
    """Return the path of the record: ``--store``, else what the configuration says."""
    if where.store is not None:
        return where.store
    try:
        config = config_path(where)
    except VerbError as none:
        raise VerbError(
            *none.lines, "or name the record with --store PATH or PROVISIONER_STORE"
        ) from None
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
    if where.url is not None:
        raise VerbError(
            "this needs the record itself, on its host: leave out --url, and PROVISIONER_URL unset"
        )
    path = store_path(where)
    if not path.exists():
        advice = "`provisioner run` makes it; --store PATH or PROVISIONER_STORE names another"
        raise VerbError(f"no record at {path}", advice)
    if path.is_dir():
        raise VerbError(f"{path} is a directory, not a record")
    from provisioner.store.reader import Reader

    return Reader(path)


SUGGESTED_FROM = 200
"""Newest drones among whose ids the nearest to an unknown one is sought."""


def find_drone(reader: Reader, any_id: str) -> DroneId:
    """Return the drone of an id, a remote id or a slot name. Raises :class:`VerbError` that names the candidates."""
    found = reader.find(any_id) if any_id.strip() else []
    if len(found) > 1:
        raise VerbError(f"{sanitize(any_id, 80)} means {len(found)} drones: {named(found)}")
    if not found:
        ids = [
            i
            for d in reader.drones(ended=None, limit=SUGGESTED_FROM)
            for i in (d.id, d.remote_id, d.slot, d.site_slot)
            if i
        ]
        raise unknown("drone", any_id, ids, " on record")
    return found[0]


def require_known_sites(reader: Reader, sites: Sequence[str]) -> None:
    """Raise :class:`VerbError` for the first of ``sites`` that is neither configured nor has had a drone.

    Before the first tick the record does not tell what is configured.
    """
    views = reader.views() if sites else None
    if views is None:
        return
    for site in sites:
        if site not in views.policy.sites and not reader.drones(ended=None, sites=[site], limit=1):
            known = sorted({*views.policy.sites, *(drone.site for drone in reader.drones())})
            raise unknown("site", site, known, " on record")


DroneArgument = Annotated[str, argument("ID", "Any id of a drone.")]
