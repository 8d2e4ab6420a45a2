"""Options of sbatch as fields of slurmrestd's job description and as attributes of pyslurm's."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
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


def _integer(value: OptionValue, minimum: int | None = None) -> int:
    text = _text(value)
    if not re.fullmatch(r"-?\d{1,9}", text) or (minimum is not None and int(text) < minimum):
        raise UnsupportedOptionError("it needs a number" + ("" if minimum is None else f" of {minimum} or more"))
    return int(text)


def _number(minimum: int | None = None, default: int | None = None) -> Converter:
    return lambda value: default if value is True and default is not None else _integer(value, minimum)


def _set_number(value: OptionValue) -> Mapping[str, Any]:
    return {"set": True, "number": _integer(value)}


def _one_of(settings: Mapping[OptionValue, Any]) -> Converter:
    def convert(value: OptionValue) -> Any:
        if value not in settings:
            raise UnsupportedOptionError("it takes no value" if settings.keys() == {True} else "not with this value")
        return settings[value]

    return convert


def _switch(setting: Any = True) -> Converter:
    return _one_of({True: setting})


def _words(known: Collection[str]) -> Converter:
    def convert(value: OptionValue) -> str:
        if not isinstance(value, str) or not set(value.lower().split(",")) <= set(known):
            raise UnsupportedOptionError("not with this value")
        return value.lower()

    return convert


def _hosts(value: OptionValue) -> list[str]:
    try:
        return list(expand_hostlist(_text(value)))
    except ValueError as error:
        raise UnsupportedOptionError(str(error)) from None


_REST_MAIL = ("BEGIN", "END", "FAIL", "REQUEUE", "STAGE_OUT", "INVALID_DEPENDENCY")
_REST_MAIL_NOT_IN_ALL = ("ARRAY_TASKS", "TIME=100%", "TIME=90%", "TIME=80%", "TIME=50%")


def _rest_mail(value: OptionValue) -> list[str]:
    words = [word.strip().upper().replace("TIME_LIMIT_", "TIME=") for word in _text(value).split(",")]
    words = [f"{word}%" if re.fullmatch(r"TIME=\d+", word) else word for word in words]
    words = ["TIME=100%" if word == "TIME_LIMIT" else word for word in words]
    if words == ["NONE"]:
        return []
    if not set(words) <= {"ALL", *_REST_MAIL, *_REST_MAIL_NOT_IN_ALL}:
        raise UnsupportedOptionError("not with this value")
    return sorted({*words, *_REST_MAIL} - {"ALL"} if "ALL" in words else set(words))


_REST: Mapping[str, tuple[str, Converter]] = {
    "account": ("account", _text),
    "acctg-freq": ("account_gather_frequency", _text),
    "batch": ("batch_features", _text),
    "bb": ("burst_buffer", _text),
    "comment": ("comment", _text),
    "constraint": ("constraints", _text),
    "container": ("container", _text),
    "contiguous": ("contiguous", _switch()),
    "distribution": ("distribution", _text),
    "exclude": ("excluded_nodes", _hosts),
    "exclusive": ("shared", _one_of({True: ["none"], "user": ["user"], "mcs": ["mcs"], "topo": ["topo"]})),
    "extra": ("extra", _text),
    "gres": ("tres_per_node", lambda value: f"gres/{_text(value)}"),  # 24.11 takes it without `gres/`, 26.05 does not
    "gres-flags": (
        "flags",
        _one_of({"disable-binding": ["GRES_BINDING_DISABLED"], "enforce-binding": ["GRES_BINDING_ENFORCED"]}),
    ),
    "licenses": ("licenses", _text),
    "mail-type": ("mail_type", _rest_mail),
    "mail-user": ("mail_user", _text),
    "mcs-label": ("mcs_label", _text),
    "network": ("network", _text),
    "nice": ("nice", _number(default=100)),
    "nodelist": ("required_nodes", _hosts),
    "oversubscribe": ("shared", _switch(["oversubscribe"])),
    "partition": ("partition", _text),
    "prefer": ("prefer", _text),
    "priority": ("priority", _set_number),
    "qos": ("qos", _text),
    "reboot": ("reboot", _switch()),
    "reservation": ("reservation", _text),
    "segment": ("segment_size", _set_number),
    "spread-job": ("flags", _switch(["SPREAD_JOB"])),
    "switches": ("required_switches", _set_number),
    "threads-per-core": ("threads_per_core", _number()),
    "use-min-nodes": ("flags", _switch(["PREFER_MINIMUM_NODE_COUNT"])),
    "wckey": ("wckey", _text),
}
_PYSLURM_MAIL = frozenset(
    {"all", "begin", "end", "fail", "requeue", "stage_out", "array_tasks"}
    | {"time_limit", "time_limit_90", "time_limit_80", "time_limit_50"}
)
_PYSLURM: Mapping[str, tuple[str, Converter]] = {
    "account": ("account", _text),
    "acctg-freq": ("accounting_gather_frequency", _text),
    "batch": ("batch_constraints", _text),
    "cluster-constraint": ("cluster_constraints", _text),
    "comment": ("comment", _text),
    "constraint": ("constraints", _text),
    "container": ("container", _text),
    "container-id": ("container_id", _text),
    "contiguous": ("requires_contiguous_nodes", _switch()),
    "cores-per-socket": ("cores_per_socket", _number(1)),
    "exclude": ("excluded_nodes", _text),
    "exclusive": ("resource_sharing", _one_of({True: "no", "user": "user", "mcs": "mcs"})),
    "extra": ("extra", _text),
    "gres": ("gres_per_node", _text),
    "gres-flags": ("gres_binding", _one_of({each: each for each in ("disable-binding", "enforce-binding")})),
    "licenses": ("licenses", _text),
    "mail-type": ("mail_types", _words(_PYSLURM_MAIL)),
    "mail-user": ("mail_user", _text),
    "mcs-label": ("mcs_label", _text),
    "network": ("network", _text),
    "nice": ("nice", _number(-(2**31) + 3, 100)),
    "no-kill": ("kill_on_node_fail", _switch(False)),
    "nodelist": ("required_nodes", _text),
    "oversubscribe": ("resource_sharing", _switch("yes")),
    "partition": ("partitions", _text),
    "priority": ("priority", _number(0)),
    "profile": ("profile_types", _words({"all", "none", "energy", "task", "lustre", "network"})),
    "qos": ("qos", _text),
    "reboot": ("requires_node_reboot", _switch()),
    "reservation": ("reservations", _text),
    "sockets-per-node": ("sockets_per_node", _number(1)),
    "spread-job": ("spreads_over_nodes", _switch()),
    "threads-per-core": ("threads_per_core", _number(1)),
    "use-min-nodes": ("use_min_nodes", _switch()),
    "wckey": ("wckey", _text),
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
        try:
            setting = convert(value)
        except UnsupportedOptionError as error:
            raise UnsupportedOptionError(f"{library} does not support `{name}: {value}`: {error}") from None
        if field in found and transport == "native":
            raise UnsupportedOptionError(f"{library} does not support `{name}` together with another option")
        found[field] = [*found[field], *setting] if field == "flags" and field in found else setting
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
