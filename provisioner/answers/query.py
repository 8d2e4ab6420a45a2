"""Query models: what a question may be asked, as options, as parameters of the API and in OpenAPI.

They are dataclasses: a command that only lists drones must not wait for pydantic to be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from inspect import get_annotations
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints as type_hints,
)

from provisioner.answers.columns import Answer
from provisioner.answers.errors import Exit, parsed, unknown
from provisioner.formatting import sanitize

if TYPE_CHECKING:
    from provisioner.store.reader import Reader

Q = TypeVar("Q", bound="Options")
MAX_INTEGER = 10**9
API = "/api/v1"
"""Begin of the paths of all questions."""


class Option(NamedTuple):
    """Declaration of a field, in the annotation of its type."""

    help: str
    metavar: str | None = None
    flags: tuple[str, ...] = ()
    """Spelling on the command line; by default that of the field."""
    least: float | None = None
    most: float | None = None
    variable: str | None = None
    """Environment variable that sets it on the command line."""
    is_subject: bool = False
    """The thing that the question is about: an argument, and part of the path of the API."""


def option(metavar: str | None, help: str, *flags: str, **more: Any) -> Option:
    """Return an option with a value."""
    return Option(help, metavar, flags, **more)


def switch(help: str, *flags: str) -> Option:
    """Return an option without a value."""
    return Option(help, None, flags)


def subject(metavar: str, help: str) -> Option:
    """Return the thing that a question is about."""
    return Option(help, metavar, is_subject=True)


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Options:
    """Base of classes whose fields are options: each is a frozen dataclass with arguments by name."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class Parameter(NamedTuple):
    """Field of a class of options."""

    name: str
    """Name in the API; that of the field has underscores."""
    field: str
    annotation: Any
    """Type without the declaration."""
    kind: type
    """Type of a value, or of each of several."""
    is_list: bool
    default: Any
    """``MISSING``: it must be given."""
    option: Option

    def parse(self, texts: Sequence[str]) -> Any:
        """Return the value of a parameter of the API. Raises :class:`VerbError`."""
        values = [parsed(self._value, f"--{self.name}", text) for text in texts]
        return values if self.is_list else values[-1]

    def _value(self, text: str) -> Any:
        if self.kind is bool:
            if text not in ("true", "false"):
                raise ValueError("write true or false")
            return text == "true"
        if self.kind is int:
            least, most = self.bounds
            digits = text.isascii() and text.isdecimal() and len(text) < 11
            if not (digits and least <= int(text) <= most):
                raise ValueError(f"write a number from {least} to {most}")
            return int(text)
        if issubclass(self.kind, StrEnum):
            text = text.lower()
            if text not in list(self.kind):
                known = ", ".join(f"'{each}'" for each in self.kind)
                raise ValueError(f"'{sanitize(text, 80)}' is not one of {known}")
            return self.kind(text)
        return text

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and greatest integer."""
        return int(self.option.least or 0), int(self.option.most or MAX_INTEGER)

    def written(self, value: Any) -> list[str]:
        """Return a value as texts that :meth:`parse` takes."""
        if self.kind is bool:
            return [str(value).lower()]
        return [str(each) for each in value] if self.is_list else [str(value)]


def parameters(kind: type[Options]) -> tuple[Parameter, ...]:
    """Return the fields of a class of options: its own, then those of its bases."""
    hints = type_hints(kind, include_extras=True)
    defaults = {each.name: each.default for each in fields(kind)}  # type: ignore[arg-type]
    names = [name for base in kind.__mro__ for name in get_annotations(base)]
    found = []
    for name in dict.fromkeys(names):
        if name not in defaults:
            continue
        annotation, declared = get_args(hints[name])
        inner = next(each for each in (*get_args(annotation), annotation) if each is not type(None))
        is_list = get_origin(inner) is list
        if get_origin(annotation) is list:
            inner = annotation
            is_list = True
        found.append(
            Parameter(
                name.rstrip("_").replace("_", "-"),
                name,
                annotation,
                get_args(inner)[0] if is_list else inner,
                is_list,
                defaults[name],
                declared,
            )
        )
    return tuple(found)


def read_query(kind: type[Q], given: Mapping[str, Sequence[str]], *more: str) -> Q:
    """Return the query of parameters of an address; ``more``: others that are known.

    Raises :class:`VerbError`.
    """
    known = {each.name: each for each in parameters(kind)}
    values = {}
    for name, texts in given.items():
        if name not in known:
            raise unknown("parameter", name, [*known, *more], code=Exit.USAGE)
        values[known[name].field] = known[name].parse(texts)
    return kind(**values)


def written(query: Options) -> dict[str, list[str]]:
    """Return the parameters of an address that mean a query: all that differ from their defaults."""
    found = {}
    for each in parameters(type(query)):
        value = getattr(query, each.field)
        if value != each.default and not each.option.is_subject:
            found[each.name] = each.written(value)
    return found


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


_OUTPUT = Option(
    "Format of the output [env: PROVISIONER_OUTPUT].",
    flags=("--output", "-o"),
    variable="PROVISIONER_OUTPUT",
)


class Query(Options):
    """Form of an answer."""

    output: Annotated[Format, _OUTPUT] = Format.TABLE
    columns: Annotated[
        str | None, option("A,B", "Print only these columns, in this order; names as in JSON.")
    ] = None
    no_header: Annotated[bool, switch("Print neither header nor scope line.")] = False


class ListQuery(Query):
    """Form of an answer that is a list: rows and their order."""

    sort: Annotated[
        str | None, option("A,-B", "Sort by these columns; - before a name: descending.")
    ] = None
    limit: Annotated[
        int | None, option("N", "Print at most this number of rows.", "--limit", "-n", least=0)
    ] = None


@dataclass(frozen=True)
class RecordQuestion:
    """RecordQuestion about the record: a function of a reader and a query."""

    verb: str
    """Words of the command line."""
    path: str
    """Resource below ``/api/v1``."""
    samples: Callable[[], Sequence[Answer]]
    """Returns an answer of each schema that it may have, without rows."""
    answer: Callable[..., Answer]
    query: type[Query]

    @property
    def help(self) -> str:
        return self.answer.__doc__ or ""

    def __call__(self, reader: Reader, query: Query) -> Answer:
        return self.answer(reader, query)


def question(
    verb: str, path: str, samples: Callable[[], Sequence[Answer]]
) -> Callable[[Callable[..., Answer]], RecordQuestion]:
    """Make a question of a function of a reader and a query; its docstring is the help of the verb."""

    def made(answer: Callable[..., Answer]) -> RecordQuestion:
        return RecordQuestion(verb, path, samples, answer, type_hints(answer)["query"])

    return made
