"""Options of sbatch as fields of slurmrestd's job description and as attributes of pyslurm's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from adapters.slurm.records import expand_hostlist

OptionValue = str | bool
Fields = Mapping[str, Any]
Converter = Callable[[OptionValue], Fields]


class UnsupportedOptionError(ValueError):
    """A transport cannot express an option, or not this value of it."""


def _string(value: OptionValue) -> str:
    if not isinstance(value, str):
        raise UnsupportedOptionError("it needs a value")
    return value


def _text(field: str) -> Converter:
    return lambda value: {field: _string(value)}


def _integer(value: OptionValue, minimum: int | None = None) -> int:
    text = _string(value)
    if not re.fullmatch(r"-?\d{1,9}", text) or (minimum is not None and int(text) < minimum):
        raise UnsupportedOptionError("it needs a number" + ("" if minimum is None else f" of {minimum} or more"))
    return int(text)


def _number(field: str, minimum: int | None = None, default: int | None = None) -> Converter:
    def convert(value: OptionValue) -> Fields:
        return {field: default if value is True and default is not None else _integer(value, minimum)}

    return convert


def _set_number(field: str) -> Converter:
    return lambda value: {field: {"set": True, "number": _integer(value)}}


def _switch(field: str, setting: Any = True) -> Converter:
    def convert(value: OptionValue) -> Fields:
        if value is not True:
            raise UnsupportedOptionError("it takes no value")
        return {field: setting}

    return convert


def _one_of(field: str, settings: Mapping[OptionValue, Any]) -> Converter:
    def convert(value: OptionValue) -> Fields:
        if value not in settings:
            raise UnsupportedOptionError("not with this value")
        return {field: settings[value]}

    return convert


def _words(field: str, known: frozenset[str]) -> Converter:
    def convert(value: OptionValue) -> Fields:
        if not isinstance(value, str) or not set(value.lower().split(",")) <= known:
            raise UnsupportedOptionError("not with this value")
        return {field: value.lower()}

    return convert


def _hosts(field: str) -> Converter:
    def convert(value: OptionValue) -> Fields:
        try:
            return {field: list(expand_hostlist(_string(value)))}
        except ValueError as error:
            raise UnsupportedOptionError(str(error)) from None

    return convert


_REST_MAIL = ("BEGIN", "END", "FAIL", "REQUEUE", "STAGE_OUT", "INVALID_DEPENDENCY")
_REST_MAIL_NOT_IN_ALL = ("ARRAY_TASKS", "TIME=100%", "TIME=90%", "TIME=80%", "TIME=50%")


def _rest_mail(value: OptionValue) -> Fields:
    words = [word.strip().upper().replace("TIME_LIMIT_", "TIME=") for word in _string(value).split(",")]
    words = [f"{word}%" if re.fullmatch(r"TIME=\d+", word) else word for word in words]
    words = ["TIME=100%" if word == "TIME_LIMIT" else word for word in words]
    if words == ["NONE"]:
        return {"mail_type": []}
    if not set(words) <= {"ALL", *_REST_MAIL, *_REST_MAIL_NOT_IN_ALL}:
        raise UnsupportedOptionError("not with this value")
    return {"mail_type": sorted({*words, *_REST_MAIL} - {"ALL"} if "ALL" in words else set(words))}


_REST: Mapping[str, Converter] = {
    "acctg-freq": _text("account_gather_frequency"),
    "batch": _text("batch_features"),
    "bb": _text("burst_buffer"),
    "comment": _text("comment"),
    "container": _text("container"),
    "contiguous": _switch("contiguous"),
    "distribution": _text("distribution"),
    "exclude": _hosts("excluded_nodes"),
    "exclusive": _one_of("shared", {True: ["none"], "user": ["user"], "mcs": ["mcs"], "topo": ["topo"]}),
    "extra": _text("extra"),
    "gres-flags": _one_of(
        "flags", {"disable-binding": ["GRES_BINDING_DISABLED"], "enforce-binding": ["GRES_BINDING_ENFORCED"]}
    ),
    "licenses": _text("licenses"),
    "mail-type": _rest_mail,
    "mail-user": _text("mail_user"),
    "mcs-label": _text("mcs_label"),
    "network": _text("network"),
    "nice": _number("nice", default=100),
    "nodelist": _hosts("required_nodes"),
    "oversubscribe": _switch("shared", ["oversubscribe"]),
    "prefer": _text("prefer"),
    "priority": _set_number("priority"),
    "reboot": _switch("reboot"),
    "segment": _set_number("segment_size"),
    "spread-job": _switch("flags", ["SPREAD_JOB"]),
    "switches": _set_number("required_switches"),
    "threads-per-core": _number("threads_per_core"),
    "use-min-nodes": _switch("flags", ["PREFER_MINIMUM_NODE_COUNT"]),
    "wckey": _text("wckey"),
}
_PYSLURM_MAIL = frozenset(
    {"all", "begin", "end", "fail", "requeue", "stage_out", "array_tasks"}
    | {"time_limit", "time_limit_90", "time_limit_80", "time_limit_50"}
)
_PYSLURM: Mapping[str, Converter] = {
    "acctg-freq": _text("accounting_gather_frequency"),
    "batch": _text("batch_constraints"),
    "cluster-constraint": _text("cluster_constraints"),
    "comment": _text("comment"),
    "container": _text("container"),
    "container-id": _text("container_id"),
    "contiguous": _switch("requires_contiguous_nodes"),
    "cores-per-socket": _number("cores_per_socket", 1),
    "exclude": _text("excluded_nodes"),
    "exclusive": _one_of("resource_sharing", {True: "no", "user": "user", "mcs": "mcs"}),
    "extra": _text("extra"),
    "gres-flags": _one_of("gres_binding", {"disable-binding": "disable-binding", "enforce-binding": "enforce-binding"}),
    "licenses": _text("licenses"),
    "mail-type": _words("mail_types", _PYSLURM_MAIL),
    "mail-user": _text("mail_user"),
    "mcs-label": _text("mcs_label"),
    "network": _text("network"),
    "nice": _number("nice", -(2**31) + 3, 100),
    "no-kill": _switch("kill_on_node_fail", False),
    "nodelist": _text("required_nodes"),
    "oversubscribe": _switch("resource_sharing", "yes"),
    "priority": _number("priority", 0),
    "profile": _words("profile_types", frozenset({"all", "none", "energy", "task", "lustre", "network"})),
    "reboot": _switch("requires_node_reboot"),
    "sockets-per-node": _number("sockets_per_node", 1),
    "spread-job": _switch("spreads_over_nodes"),
    "threads-per-core": _number("threads_per_core", 1),
    "use-min-nodes": _switch("use_min_nodes"),
    "wckey": _text("wckey"),
}
"""Without the options that pyslurm accepts and drops (``bb``, ``gpu-freq``, ``hint``, ``mem-bind``, ``propagate``),
fails at (``switches``), or does not have (``prefer``, ``tres-bind``)."""

_TRANSPORTS = {"rest": ("slurmrestd", _REST), "native": ("pyslurm", _PYSLURM)}


def convert_options(options: Mapping[str, OptionValue], transport: Literal["rest", "native"]) -> dict[str, Any]:
    """Return the fields or attributes with the same meaning.

    Raises:
        UnsupportedOptionError: the transport cannot express one of the options; the message names it.
    """
    library, converters = _TRANSPORTS[transport]
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in converters:
            raise UnsupportedOptionError(f"{library} does not support `{name}`")
        try:
            fields = converters[name](value)
        except UnsupportedOptionError as error:
            raise UnsupportedOptionError(f"{library} does not support `{name}: {value}`: {error}") from None
        for field, setting in fields.items():
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
