"""Options of sbatch as fields of slurmrestd's job description and as attributes of pyslurm's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from adapters.slurm.records import expand_hostlist

OptionValue = str | bool
Converter = Callable[[OptionValue], Any]


def _text(value: OptionValue) -> str:
    if not isinstance(value, str):
        raise ValueError("it needs a value")
    return value


def _integer(value: OptionValue) -> int:
    if not re.fullmatch(r"-?\d{1,9}", _text(value)):
        raise ValueError("it needs a number")
    return int(_text(value))


def _one_of(settings: Mapping[OptionValue, Any]) -> Converter:
    def convert(value: OptionValue) -> Any:
        if value not in settings:
            raise ValueError("not with this value")
        return settings[value]

    return convert


def _hosts(value: OptionValue) -> list[str]:
    return list(expand_hostlist(_text(value)))


_SAME: Mapping[str, tuple[str, Converter]] = {
    **{name: (name, _text) for name in ("account", "comment", "licenses", "qos", "wckey")},
    "constraint": ("constraints", _text),
    "nice": ("nice", lambda value: 100 if value is True else _integer(value)),
    "threads-per-core": ("threads_per_core", _integer),
}
_REST: Mapping[str, tuple[str, Converter]] = {
    **_SAME,
    "exclude": ("excluded_nodes", _hosts),
    "exclusive": ("shared", _one_of({True: ["none"], "user": ["user"], "mcs": ["mcs"]})),
    # 24.11 takes it without `gres/`, 26.05 does not
    "gres": ("tres_per_node", lambda value: f"gres/{_text(value)}"),
    "gres-flags": (
        "flags",
        _one_of(
            {
                "disable-binding": ["GRES_BINDING_DISABLED"],
                "enforce-binding": ["GRES_BINDING_ENFORCED"],
            }
        ),
    ),
    "nodelist": ("required_nodes", _hosts),
    "partition": ("partition", _text),
    "prefer": ("prefer", _text),
    "priority": ("priority", lambda value: {"set": True, "number": _integer(value)}),
    "reservation": ("reservation", _text),
}
_PYSLURM: Mapping[str, tuple[str, Converter]] = {
    **_SAME,
    "exclude": ("excluded_nodes", _text),
    "exclusive": ("resource_sharing", _one_of({True: "no", "user": "user", "mcs": "mcs"})),
    "gres": ("gres_per_node", _text),
    "gres-flags": (
        "gres_binding",
        _one_of({each: each for each in ("disable-binding", "enforce-binding")}),
    ),
    "nodelist": ("required_nodes", _text),
    "partition": ("partitions", _text),
    "priority": ("priority", _integer),
    "reservation": ("reservations", _text),
}
"""Without the options that pyslurm accepts and drops (``bb``, ``gpu-freq``, ``hint``, ``mem-bind``,
``propagate``), fails at (``switches``), or does not have (``prefer``, ``tres-bind``)."""

_TRANSPORTS = {"rest": ("slurmrestd", _REST), "native": ("pyslurm", _PYSLURM)}


def convert_options(
    options: Mapping[str, OptionValue], transport: Literal["rest", "native"]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields or attributes with the same meaning, and why which options cannot be expressed."""
    library, table = _TRANSPORTS[transport]
    found: dict[str, Any] = {}
    unsupported: dict[str, str] = {}
    for name, value in options.items():
        if name not in table:
            unsupported[name] = f"{library} does not support `{name}`"
        else:
            field, convert = table[name]
            try:
                found[field] = convert(value)
            except ValueError as error:
                unsupported[name] = f"{library} does not support `{name}: {value}`: {error}"
    return found, unsupported
