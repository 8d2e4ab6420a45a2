"""Keys with structure, each with one parser and one text: the scope of a circuit breaker, the subject of a refusal.

Store and JSON hold the text; inside, nobody takes it apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NewType, Self, cast

from provisioner.values import frozen

TypeKey = NewType("TypeKey", str)
"""``<site>/<drone type>``: names a drone type across all sites. A text, because each drone is looked up by it."""


def site_of(key: str) -> str:
    """Return the site of a drone type; a site is its own."""
    return key.partition("/")[0]


def type_name(key: str) -> str:
    """Return the name of a drone type at its site."""
    return key.partition("/")[2]


def serial_of(drone_id: str) -> int | None:
    """Return the serial number at the end of a drone id; None if it has none."""
    digits = drone_id.rpartition("-")[2]
    return int(digits) if len(digits) <= 18 and digits.isascii() and digits.isdecimal() else None


class TextKey:
    """A value that is written as its text."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the key that ``str()`` gives this text."""
        raise NotImplementedError

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, schema_of: Callable[[Any], Any]) -> Any:
        """Return how pydantic reads and writes the text. The model itself does not import pydantic."""
        return {
            "type": "function-after",
            "function": {"type": "no-info", "function": cls.parse},
            "schema": schema_of(str),
            "serialization": {"type": "to-string"},
        }


@frozen
class Scope(TextKey):
    """Part of the world that a circuit breaker covers.

    It is a site, a drone type (``<site>/<type>``), a job class on a type (``<site>/<type>#<class id>``),
    a node (``<site>@<node>``), or the use of shared GPUs by a user (``user:<name>``). The overlay has
    the scope of a site of that name.
    """

    site: str = ""
    type: str = ""
    class_id: str = ""
    node: str = ""
    user: str = ""

    @classmethod
    def parse(cls, text: str) -> Scope:
        if text.startswith("user:"):
            return cls(user=text.removeprefix("user:"))
        place, _, class_id = text.partition("#")
        place, _, node = place.partition("@")
        site, _, name = place.partition("/")
        return cls(site, name, class_id, node)

    def __str__(self) -> str:
        if self.user:
            return f"user:{self.user}"
        if self.node:
            return f"{self.site}@{self.node}"
        return f"{self.type_key if self.type else self.site}{self.class_id and '#'}{self.class_id}"

    @property
    def type_key(self) -> TypeKey:
        return TypeKey(f"{self.site}/{self.type}")

    def is_within(self, outer: Scope) -> bool:
        """Return True if it is ``outer`` or part of it: a type, a node or a class of a site or type."""
        return outer in (self, replace(self, class_id=""), Scope(self.site))


OVERLAY_SCOPE = Scope("overlay")
"""Breaker scope of the overlay. Failed polls never ban it."""

SubjectKind = Literal["class", "drone", "site", "service", "all"]


@frozen
class Subject(TextKey):
    """Object of a refusal: a job class, a drone, a site or a service, each as ``<kind>:<name>``, or ``all``."""

    kind: SubjectKind
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Subject:
        kind, _, name = text.partition(":")
        return cls(cast(SubjectKind, kind), name)

    def __str__(self) -> str:
        return "all" if self.kind == "all" else f"{self.kind}:{self.name}"


ALL = Subject("all")
