"""Options of sbatch as fields of slurmrestd's job description, as far as it has fields for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from adapters.slurm.records import expand_hostlist

Value = str | bool
Fields = Mapping[str, Any]
_MAIL = ("BEGIN", "END", "FAIL", "REQUEUE", "STAGE_OUT", "INVALID_DEPENDENCY")
_MAIL_TOO = ("ARRAY_TASKS", "TIME=100%", "TIME=90%", "TIME=80%", "TIME=50%")


class Unsayable(ValueError):
    """slurmrestd has no field for this option, or not for this value of it."""


def _said(value: Value) -> str:
    if not isinstance(value, str):
        raise Unsayable("it wants a value")
    return value


def _text(field: str) -> Callable[[Value], Fields]:
    return lambda value: {field: _said(value)}


def _whole(text: str) -> int:
    if not re.fullmatch(r"-?\d{1,9}", text):
        raise Unsayable("it wants a number")
    return int(text)


def _number(field: str, default: int | None = None) -> Callable[[Value], Fields]:
    def fields(value: Value) -> Fields:
        return {field: default if value is True and default is not None else _whole(_said(value))}

    return fields


def _counted(field: str) -> Callable[[Value], Fields]:
    return lambda value: {field: {"set": True, "number": _whole(_said(value))}}


def _switch(field: str, meant: Any) -> Callable[[Value], Fields]:
    def fields(value: Value) -> Fields:
        if value is not True:
            raise Unsayable("it takes no value")
        return {field: meant}

    return fields


def _one_of(field: str, meant: Mapping[Value, Any]) -> Callable[[Value], Fields]:
    def fields(value: Value) -> Fields:
        if value not in meant:
            raise Unsayable("not with this value")
        return {field: meant[value]}

    return fields


def _hosts(field: str) -> Callable[[Value], Fields]:
    def fields(value: Value) -> Fields:
        try:
            return {field: list(expand_hostlist(_said(value)))}
        except ValueError as error:
            raise Unsayable(str(error)) from None

    return fields


def _mail(value: Value) -> Fields:
    words = [word.strip().upper().replace("TIME_LIMIT_", "TIME=") for word in _said(value).split(",")]
    words = [f"{word}%" if re.fullmatch(r"TIME=\d+", word) else word for word in words]
    words = ["TIME=100%" if word == "TIME_LIMIT" else word for word in words]
    if words == ["NONE"]:
        return {"mail_type": []}
    if not set(words) <= {"ALL", *_MAIL, *_MAIL_TOO}:
        raise Unsayable("not with this value")
    return {"mail_type": sorted({*words, *_MAIL} - {"ALL"} if "ALL" in words else set(words))}


_TABLE: Mapping[str, Callable[[Value], Fields]] = {
    "acctg-freq": _text("account_gather_frequency"),
    "batch": _text("batch_features"),
    "bb": _text("burst_buffer"),
    "comment": _text("comment"),
    "container": _text("container"),
    "contiguous": _switch("contiguous", True),
    "distribution": _text("distribution"),
    "exclude": _hosts("excluded_nodes"),
    "exclusive": _one_of("shared", {True: ["none"], "user": ["user"], "mcs": ["mcs"], "topo": ["topo"]}),
    "extra": _text("extra"),
    "gres-flags": _one_of(
        "flags", {"disable-binding": ["GRES_BINDING_DISABLED"], "enforce-binding": ["GRES_BINDING_ENFORCED"]}
    ),
    "licenses": _text("licenses"),
    "mail-type": _mail,
    "mail-user": _text("mail_user"),
    "mcs-label": _text("mcs_label"),
    "network": _text("network"),
    "nice": _number("nice", 100),
    "nodelist": _hosts("required_nodes"),
    "oversubscribe": _switch("shared", ["oversubscribe"]),
    "prefer": _text("prefer"),
    "priority": _counted("priority"),
    "reboot": _switch("reboot", True),
    "segment": _counted("segment_size"),
    "spread-job": _switch("flags", ["SPREAD_JOB"]),
    "switches": _counted("required_switches"),
    "threads-per-core": _number("threads_per_core"),
    "use-min-nodes": _switch("flags", ["PREFER_MINIMUM_NODE_COUNT"]),
    "wckey": _text("wckey"),
}


def fields(options: Mapping[str, Value]) -> dict[str, Any]:
    """The fields that say the same. Unsayable, with the option's name, for one that cannot be said."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _TABLE:
            raise Unsayable(f"`{name}` cannot be said to slurmrestd")
        try:
            said = _TABLE[name](value)
        except Unsayable as error:
            raise Unsayable(f"`{name}: {value}` cannot be said to slurmrestd: {error}") from None
        for field, meant in said.items():
            found[field] = [*found[field], *meant] if field == "flags" and field in found else meant
    return found


def unsayable(options: Mapping[str, Value]) -> Mapping[str, str]:
    """Those of the options that slurmrestd has no field for, with such a value, and why."""
    found: dict[str, str] = {}
    for name, value in options.items():
        try:
            fields({name: value})
        except Unsayable as error:
            found[name] = str(error)
    return found
