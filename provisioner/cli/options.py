"""Shared parts of all verbs: exit codes, errors, common options, and what these mean: files, drones, sites."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from provisioner.answers.errors import UnmetError, UsageError, VerbError
from provisioner.answers.query import (
    Options,
    Parameter,
    option as declared,
    parameters,
    switch as declared_switch,
)
from provisioner.formatting import count

if TYPE_CHECKING:
    from provisioner.store.database import Place
    from provisioner.store.reader import Reader

T = TypeVar("T")


EXIT_HELP = (
    "Exit codes: 0 success, also for an empty list; 1 failure; 2 wrong usage; 3 condition not met (check found "
    "problems, replay differs, reload refused, configuration invalid); 4 partial success; 124 timeout; "
    "130 interrupted."
)


_WEB = ("aiohttp", "jinja2", "jwt", "prometheus_client")
EXTRAS = {
    **dict.fromkeys(_WEB, "web"),
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
            return UnmetError(*map(str, error.problems), advice)
        case StoreError():
            return VerbError(str(error))
        case ModuleNotFoundError() if (package := (error.name or "").partition(".")[0]) in EXTRAS:
            repair = f"install the extra `{EXTRAS[package]}` (docs/how-to/install.md#extras)"
            return VerbError(f"this needs the Python package {package}: {repair}")
        case OSError() if error.filename is not None:
            return VerbError(f"{error.filename}: {error.strerror or error}")
        case OSError():
            return VerbError(error.strerror or str(error))
        case _:
            return None


LISTING_VERBS = {"list": "drones", "ls": "drones", "show": "drones show"}
"""Verbs of other tools, by what they mean where no group is named."""


class VerbGroup(TyperGroup):
    """Group of verbs. For an unknown verb it suggests one of any group."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:  # usage errors have no fixed class in Typer
            if hasattr(error, "message"):
                said = error.message.partition(" Did you mean")[0].rstrip(".?")
                meant = " or ".join(f"`{each}`" for each in _verbs_like(ctx, args[0]))
                error.message = f"{said}. Did you mean {meant}?" if meant else f"{said}."
            raise


def _verbs_like(ctx: Any, word: str) -> list[str]:
    """Return the verbs that ``word`` may mean: first those of the group in which it was written."""
    _, _, group = ctx.command_path.partition(" ")
    if word in LISTING_VERBS:
        return [group or LISTING_VERBS[word]]
    root = ctx.find_root()
    known = {names: names.rpartition(" ")[2] for names in _all_verbs(root, root.command)}
    near = [word] if word in known.values() else get_close_matches(word, set(known.values()))
    found = [names for names in known if known[names] in near]
    here = [names for names in found if group and names.startswith(f"{group} ")]
    return here or sorted(found, key=lambda names: near.index(known[names]))


def _all_verbs(ctx: Any, group: Any) -> Iterator[str]:
    for name in group.list_commands(ctx):
        yield name
        command = group.get_command(ctx, name)
        if isinstance(command, TyperGroup):
            yield from (f"{name} {inner}" for inner in _all_verbs(ctx, command))


def verbs(*, cls: type[VerbGroup] = VerbGroup, **more: Any) -> typer.Typer:
    """Return a group of verbs, which has none yet."""
    return typer.Typer(add_completion=False, rich_markup_mode=None, cls=cls, **more)


def option(metavar: str, help: str, *flags: str, **more: Any) -> Any:
    """Return an option with a value; its name is that of the parameter unless ``flags`` are given."""
    return typer.Option(*flags, metavar=metavar, help=help, **more)


def switch(help: str, *flags: str) -> Any:
    """Return an option without a value."""
    return typer.Option(*flags, help=help)


def argument(metavar: str, help: str, **more: Any) -> Any:
    return typer.Argument(metavar=metavar, help=help, show_default=False, **more)


_CONFIG_HELP = (
    "Configuration file [env: PROVISIONER_CONFIG; default: ./provisioner.yaml, ./site_configs/provisioner.yaml, "
    "/etc/provisioner/provisioner.yaml]."
)
_STORE_HELP = "Read this record; no configuration is needed [env: PROVISIONER_STORE]."
_URL_HELP = "Ask a web service, https://HOST:PORT or unix:PATH, instead of the record [env: PROVISIONER_URL]."
_TOKEN_HELP = (
    "With --url: file of the bearer token. Default over https: BEARER_TOKEN or BEARER_TOKEN_FILE."
)
CONFIG_OPTION = declared("PATH", _CONFIG_HELP, "--config", "-c", variable="PROVISIONER_CONFIG")
ConfigPath = Annotated[
    Path | None,
    typer.Option(
        *CONFIG_OPTION.flags,
        envvar=CONFIG_OPTION.variable,
        show_envvar=False,
        metavar=CONFIG_OPTION.metavar,
        help=CONFIG_OPTION.help,
    ),
]
ConfigArgument = Annotated[
    Path | None, argument("PATH", "Configuration file; default: see --config.")
]
EventReason = Annotated[str, option("TEXT", "Reason, recorded as an event.", "--reason", "-r")]


def tick_option(help: str) -> Any:
    """Return the option of a recorded tick. SQLite holds no larger number."""
    return option("N", help, "--tick", min=0, max=2**63 - 1)


class Where(Options):
    """Place of the record and of the configuration."""

    config: Annotated[Path | None, CONFIG_OPTION] = None
    store: Annotated[
        str | None, declared("PATH|URL", _STORE_HELP, variable="PROVISIONER_STORE")
    ] = None
    url: Annotated[str | None, declared("URL", _URL_HELP, variable="PROVISIONER_URL")] = None
    token_file: Annotated[Path | None, declared("FILE", _TOKEN_HELP)] = None


class Screen(Options):
    """Terminal on which an answer is shown."""

    no_color: Annotated[bool, declared_switch("Print no colours (as NO_COLOR does).")] = False
    watch: Annotated[
        bool,
        declared_switch("Repeat the output; JSON as one object per line.", "--watch", "-w"),
    ] = False
    interval: Annotated[
        float,
        declared(
            "SECONDS",
            "Pause between outputs of --watch.",
            "--interval",
            "-i",
            least=0.1,
            most=86400,
        ),
    ] = 2.0
    local: Annotated[
        bool, declared_switch("Print times of tables in the local zone (TZ), not in UTC.")
    ] = False


class Host(Screen, Where):
    """Options of verbs that show an answer on this host."""


def shared(verb: Callable[..., T], help: str = "") -> Callable[..., T]:
    """Replace each parameter of ``verb`` that is a class of options by an option per field.

    Typer makes its options of a signature. ``help``: instead of the docstring.
    """
    groups: dict[str, tuple[Parameter, ...]] = {}
    kinds: dict[str, type[Options]] = {}
    own: list[inspect.Parameter] = []
    for parameter in inspect.signature(verb, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, Options):
            groups[parameter.name], kinds[parameter.name] = parameters(kind), kind
        else:
            own.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    spread = [_typer_parameter(each) for group in groups.values() for each in group]

    @wraps(verb)
    def call(**given: Any) -> T:
        made = {
            name: kinds[name](**{each.field: given.pop(each.field) for each in group})
            for name, group in groups.items()
        }
        return verb(**given, **made)

    del call.__wrapped__
    call.__signature__ = inspect.Signature([*own, *spread])  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in (*own, *spread)}
    call.__doc__ = help or verb.__doc__
    return call


def _typer_parameter(of: Parameter) -> inspect.Parameter:
    """Return an option or argument of a verb as Typer wants it."""
    declared = of.option
    flags = of.option.flags or (f"--{of.name}",)
    info: Any
    if declared.is_subject:
        info = argument(declared.metavar or "", declared.help)
    else:
        info = typer.Option(
            *flags,
            metavar=declared.metavar,
            help=declared.help,
            min=declared.least,
            max=declared.most,
            envvar=declared.variable,
            show_envvar=False,
            case_sensitive=False,
        )
    return inspect.Parameter(
        of.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if of.default is MISSING else of.default,
        annotation=Annotated[of.annotation, info],
    )


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
        raise UsageError(f"put {option} after `{ctx.info_name} {ctx.invoked_subcommand}`")
    return True


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
        raise VerbError(f"no configuration at {where.config}: not a file")
    if found := next((path for path in CONFIG_PATHS if path.is_file()), None):
        return found
    places = ", ".join(map(str, CONFIG_PATHS))
    raise VerbError(
        f"no configuration found: tried {places}",
        "name it with --config PATH or PROVISIONER_CONFIG",
    )


def named_place(where: Where) -> Place | None:
    """Return the place of the record that ``--store`` names, if it is given."""
    from provisioner.store.database import place_of

    return place_of(where.store) if where.store is not None else None


def store_path(where: Where) -> Place:
    """Return the place of the record: ``--store``, else what the configuration says."""
    from provisioner.store.database import place_in

    if (named := named_place(where)) is not None:
        return named
    try:
        config = config_path(where)
    except VerbError as none:
        raise VerbError(
            *none.lines, "or name the record with --store PATH or PROVISIONER_STORE"
        ) from None
    from provisioner.config import strict_yaml

    document = strict_yaml.read(config)  # what is wrong elsewhere in it is for `run` and `check`
    place = place_in(document.tree, config.parent)
    if place is None:
        problems = [] if document.is_mapping else map(str, document.problems[:1])
        more = f"{config}: no `store.path`; run `provisioner check`"
        raise UnmetError(*problems, more)
    return place


def open_record(where: Where) -> Reader:
    """Open the record for reading. Raises :class:`VerbError` if there is none, ``StoreError`` if it is unusable."""
    if where.url is not None:
        raise VerbError(
            "this verb reads the record itself: run it on the record's host, without --url and PROVISIONER_URL"
        )
    path = store_path(where)
    if isinstance(path, Path) and not path.exists():
        advice = (
            "`provisioner run` creates it; name another one with --store PATH or PROVISIONER_STORE"
        )
        raise VerbError(f"no record at {path}", advice)
    if isinstance(path, Path) and path.is_dir():
        raise VerbError(f"{path} is a directory, not a record")
    from provisioner.store.reader import Reader

    return Reader(path)
