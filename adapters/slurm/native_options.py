"""Options of sbatch as attributes of pyslurm's job description, as far as it has some that do what they say."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Value = str | bool
Meant = str | int | bool
Attribute = tuple[str, Meant]


class Unsayable(ValueError):
    """pyslurm has no attribute for this option, or not for this value of it."""


def _text(attribute: str) -> Callable[[Value], Attribute]:
    def said(value: Value) -> Attribute:
        if not isinstance(value, str):
            raise Unsayable("it wants a value")
        return attribute, value

    return said


def _number(attribute: str, least: int = 1, default: int | None = None) -> Callable[[Value], Attribute]:
    def said(value: Value) -> Attribute:
        if value is True and default is not None:
            return attribute, default
        if not isinstance(value, str) or not re.fullmatch(r"-?\d{1,9}", value) or int(value) < least:
            raise Unsayable(f"it wants a number of {least} or more")
        return attribute, int(value)

    return said


def _switch(attribute: str, meant: Meant = True) -> Callable[[Value], Attribute]:
    def said(value: Value) -> Attribute:
        if value is not True:
            raise Unsayable("it takes no value")
        return attribute, meant

    return said


def _words(attribute: str, known: frozenset[str]) -> Callable[[Value], Attribute]:
    def said(value: Value) -> Attribute:
        if not isinstance(value, str) or not set(value.lower().split(",")) <= known:
            raise Unsayable("not with this value")
        return attribute, value.lower()

    return said


def _one_of(attribute: str, meant: Mapping[Value, str]) -> Callable[[Value], Attribute]:
    def said(value: Value) -> Attribute:
        if value not in meant:
            raise Unsayable("not with this value")
        return attribute, meant[value]

    return said


_MAIL = frozenset(
    {"all", "begin", "end", "fail", "requeue", "stage_out", "array_tasks"}
    | {"time_limit", "time_limit_90", "time_limit_80", "time_limit_50"}
)
_TABLE: Mapping[str, Callable[[Value], Attribute]] = {
    "acctg-freq": _text("accounting_gather_frequency"),
    "batch": _text("batch_constraints"),
    "cluster-constraint": _text("cluster_constraints"),
    "comment": _text("comment"),
    "container": _text("container"),
    "container-id": _text("container_id"),
    "contiguous": _switch("requires_contiguous_nodes"),
    "cores-per-socket": _number("cores_per_socket"),
    "exclude": _text("excluded_nodes"),
    "exclusive": _one_of("resource_sharing", {True: "no", "user": "user", "mcs": "mcs"}),
    "extra": _text("extra"),
    "gres-flags": _one_of("gres_binding", {"disable-binding": "disable-binding", "enforce-binding": "enforce-binding"}),
    "licenses": _text("licenses"),
    "mail-type": _words("mail_types", _MAIL),
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
    "sockets-per-node": _number("sockets_per_node"),
    "spread-job": _switch("spreads_over_nodes"),
    "threads-per-core": _number("threads_per_core"),
    "use-min-nodes": _switch("use_min_nodes"),
    "wckey": _text("wckey"),
}
"""Not in it: what pyslurm takes and then does not say (``bb``, ``gpu-freq``, ``hint``, ``mem-bind``, ``propagate``),
fails at (``switches``), or has nothing for (``prefer``, ``tres-bind``)."""


def attributes(options: Mapping[str, Value]) -> dict[str, Meant]:
    """The attributes that say the same. Unsayable, with the option's name, for one that cannot be said."""
    found: dict[str, Meant] = {}
    for name, value in options.items():
        if name not in _TABLE:
            raise Unsayable(f"`{name}` cannot be said to pyslurm")
        try:
            attribute, meant = _TABLE[name](value)
        except Unsayable as error:
            raise Unsayable(f"`{name}: {value}` cannot be said to pyslurm: {error}") from None
        if attribute in found:
            raise Unsayable(f"`{name}` and another option cannot both be said to pyslurm")
        found[attribute] = meant
    return found


def unsayable(options: Mapping[str, Value]) -> Mapping[str, str]:
    """Those of the options that pyslurm cannot say, with such a value or beside those before it, and why."""
    found: dict[str, str] = {}
    said: dict[str, Value] = {}
    for name, value in options.items():
        try:
            attributes({**said, name: value})
            said[name] = value
        except Unsayable as error:
            found[name] = str(error)
    return found
