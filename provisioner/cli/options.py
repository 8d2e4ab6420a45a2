"""Options that many verbs share, as two dataclasses that :func:`shared` spreads over a verb's signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer


class Format(StrEnum):
    """Forms of output. All but table and wide are for programs: never shortened, never coloured."""

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
        "--config", "-c", metavar="PATH", envvar="PROVISIONER_CONFIG", show_envvar=False, help="Configuration file "
        "[env: PROVISIONER_CONFIG; default: ./provisioner.yaml, ./site_configs/provisioner.yaml, "
        "/etc/provisioner/provisioner.yaml].",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Where:
    """Where the record and the configuration are."""

    config: ConfigPath = None
    store: Annotated[
        Path | None,
        typer.Option(
            "--store", metavar="PATH", envvar="PROVISIONER_STORE", show_envvar=False,
            help="The record itself, without reading a configuration [env: PROVISIONER_STORE].",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True, slots=True)
class Show:
    """How the answer is shown."""

    output: Annotated[
        Format,
        typer.Option(
            "--output", "-o", envvar="PROVISIONER_OUTPUT", show_envvar=False,
            help="Form of the output [env: PROVISIONER_OUTPUT].",
        ),
    ] = Format.TABLE  # fmt: skip
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="A,B", help="Only these, in this order; names as in JSON."),
    ] = None
    no_header: Annotated[bool, typer.Option("--no-header", help="No header line and no line of scope.")] = False
    no_color: Annotated[bool, typer.Option("--no-color", help="No colour, as with NO_COLOR set.")] = False
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show again and again; JSON as one object per line.")
    ] = False
    interval: Annotated[
        float, typer.Option("--interval", "-i", metavar="SECONDS", min=0.1, help="Pause between two with --watch.")
    ] = 2.0


@dataclass(frozen=True, slots=True)
class Pick:
    """Which rows of a list, and in which order."""

    sort: Annotated[
        str | None,
        typer.Option("--sort", metavar="A,-B", help="Order by these; a leading - turns one round."),
    ] = None
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=0, help="No more rows than this.")
    ] = None


def shared(verb: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of ``verb`` that is annotated as one of the dataclasses above by its fields."""
    hints = get_type_hints(verb, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if kind in (Where, Show, Pick)}
    own = [p.replace(annotation=hints[p.name]) for p in inspect.signature(verb).parameters.values()
           if p.name not in groups]  # fmt: skip
    spread = [_parameter(kind, f.name, f.default) for kind in groups.values() for f in fields(kind)]

    @wraps(verb)
    def call(**given: Any) -> None:
        made = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        verb(**given, **made)

    parameters = [*own, *spread]
    del call.__wrapped__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


def _parameter(kind: type, name: str, default: Any) -> inspect.Parameter:
    hint = get_type_hints(kind, include_extras=True)[name]
    nothing = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=nothing, annotation=hint)
