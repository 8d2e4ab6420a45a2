"""Dataclasses with slots, by the names that attrs has for them: those that cannot be changed, and those that can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


def setting(*, default: Any = MISSING, **written: Any) -> Any:
    """Declare a field that is a setting (:mod:`provisioner.settings`) and is limited in what may be written.

    ``written``: bounds (``ge``, ``le``, ...), ``zero=True`` for a duration that may be 0, an
    ``example`` other than the default, or a ``key``, where that is not the name of the field. (To
    type checkers an ``alias`` would be the name of the argument.)
    """
    return field(default=default, metadata={"written": written})


@dataclass_transform(frozen_default=True, field_specifiers=(field, setting))
def frozen(made: type[T]) -> type[T]:
    """Make a frozen dataclass with slots of a class, which type checkers know as one (PEP 681).

    A docstring and a ``__repr__`` of its own would cost a fifth of the start-up time of a verb.
    """
    made.__doc__ = made.__doc__ or f"{made.__name__}()"
    made.__repr__ = _shown  # type: ignore[method-assign]
    return dataclass(frozen=True, slots=True, repr=False)(made)


def _shown(value: Any) -> str:
    shown = (f"{each.name}={getattr(value, each.name)!r}" for each in fields(value) if each.repr)
    return f"{type(value).__qualname__}({', '.join(shown)})"


@dataclass_transform(field_specifiers=(field,))
def define(made: type[T]) -> type[T]:
    """Make a dataclass with slots of a class."""
    return dataclass(slots=True)(made)


def factory(make: Callable[[], T]) -> T:
    """Declare a field whose default is made anew for each object, as of ``dict``."""
    made: T = field(default_factory=make)
    return made


def all_but(made: type, name: str) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the values of all fields but one."""
    return attrgetter(*(each.name for each in fields(made) if each.name != name))
