"""Values: dataclasses that cannot be changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(made: type[T]) -> type[T]:
    """Make a frozen dataclass with slots of a class, which type checkers know as one (PEP 681)."""
    return dataclass(frozen=True, slots=True)(made)
