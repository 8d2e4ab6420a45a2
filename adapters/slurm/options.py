"""Options of sbatch as fields of slurmrestd's job description and as attributes of pyslurm's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from adapters.slurm.records import expand_hostlist

OptionValue = str | bool
Converter = Callable[[OptionValue], Any]


class UnsupportedOptionError(ValueError):
    """A transport cannot express an option, or not this value of it."""


def _text(value: OptionValue) -> str:
    if not isinstance(value, str):
        raise UnsupportedOptionError("it needs a value")
    return value


def _integer(value: OptionValue) -> int:
    if not re.fullmatch(r"-?\d{1,9}", _text(value)):
        raise UnsupportedOptionError("it needs a number")
    return int(_text(value))


def _nice(value: OptionValue) -> int:
    return 100 if value is True else _integer(value)


def _set_number(value: OptionValue) -> Mapping[str, Any]:
    return {"set": True, "number": _integer(value)}


def _one_of(settings: Mapping[OptionValue, Any]) -> Converter:
    def convert(value: OptionValue) -> Any:
        if value not in settings:
            raise UnsupportedOptionError("it takes no value" if settings.keys() == {True} else "not with this value")
        return settings[value]

    return convert


def _hosts(value: OptionValue) -> list[str]:
    try:
        return list(expand_hostlist(_text(value)))
    except ValueError as error:
        raise UnsupportedOptionError(str(error)) from None


_TEXT_OPTIONS = {name: (name, _text) for name in ("account", "comment", "licenses", "qos", "wckey")}
_REST: Mapping[str, tuple[str, Converter]] = {
    **_TEXT_OPTIONS,
    "constraint": ("constraints", _text),
    "exclude": ("excluded_nodes", _hosts),
    "exclusive": ("shared", _one_of({True: ["none"], "user": ["user"], "mcs": ["mcs"]})),
    "gres": ("tres_per_node", lambda value: f"gres/{_text(value)}"),  # 24.11 takes it without `gres/`, 26.05 does not
    "gres-flags": (
        "flags",
        _one_of({"disable-binding": ["GRES_BINDING_DISABLED"], "enforce-binding": ["GRES_BINDING_ENFORCED"]}),
    ),
    "nice": ("nice", _nice),
    "nodelist": ("required_nodes", _hosts),
    "oversubscribe": ("shared", _one_of({True: ["oversubscribe"]})),
    "partition": ("partition", _text),
    "prefer": ("prefer", _text),
    "priority": ("priority", _set_number),
    "reservation": ("reservation", _text),
    "threads-per-core": ("threads_per_core", _integer),
}
_PYSLURM: Mapping[str, tuple[str, Converter]] = {
    **_TEXT_OPTIONS,
    "constraint": ("constraints", _text),
    "exclude": ("excluded_nodes", _text),
    "exclusive": ("resource_sharing", _one_of({True: "no", "user": "user", "mcs": "mcs"})),
    "gres": ("gres_per_node", _text),
    "gres-flags": ("gres_binding", _one_of({each: each for each in ("disable-binding", "enforce-binding")})),
    "nice": ("nice", _nice),
    "nodelist": ("required_nodes", _text),
    "oversubscribe": ("resource_sharing", _one_of({True: "yes"})),
    "partition": ("partitions", _text),
    "priority": ("priority", _integer),
    "reservation": ("reservations", _text),
    "threads-per-core": ("threads_per_core", _integer),
}
"""Without the options that pyslurm accepts and drops (``bb``, ``gpu-freq``, ``hint``, ``mem-bind``, ``propagate``),
fails at (``switches``), or does not have (``prefer``, ``tres-bind``)."""

_TRANSPORTS = {"rest": ("slurmrestd", _REST), "native": ("pyslurm", _PYSLURM)}


def convert_options(options: Mapping[str, OptionValue], transport: Literal["rest", "native"]) -> dict[str, Any]:
    """Return the fields or attributes with the same meaning.

    Raises:
        UnsupportedOptionError: the transport cannot express one of the options; the message names it.
    """
    library, table = _TRANSPORTS[transport]
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in table:
            raise UnsupportedOptionError(f"{library} does not support `{name}`")
        field, convert = table[name]
        if field in found:
            raise UnsupportedOptionError(f"{library} does not support `{name}` together with another option")
        try:
            found[field] = convert(value)
        except UnsupportedOptionError as error:
            raise UnsupportedOptionError(f"{library} does not support `{name}: {value}`: {error}") from None
    return found


def unsupported_options(options: Mapping[str, OptionValue], transport: Literal["rest", "native"]) -> Mapping[str, str]:
    """Return the options that the transport cannot express, alone or beside those before it, and why."""
    found: dict[str, str] = {}
    supported: dict[str, OptionValue] = {}
    for name, value in options.items():
        try:
            convert_options({**supported, name: value}, transport)
            supported[name] = value
        except UnsupportedOptionError as error:
            found[name] = str(error)
    return found
