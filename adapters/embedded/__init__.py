"""The ``embedded`` overlay: a queue in a SQLite file, for demos, laptops and tests.

Loaded lazily: the worker, which starts once per drone, needs the standard library only and starts in milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adapters.embedded.config import Config
    from adapters.embedded.overlay import EmbeddedOverlay, Queue

__all__ = ["Config", "EmbeddedOverlay", "Queue"]


def __getattr__(name: str) -> object:
    match name:
        case "Config":
            from adapters.embedded.config import Config

            return Config
        case "EmbeddedOverlay" | "Queue":
            from adapters.embedded import overlay

            return getattr(overlay, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
