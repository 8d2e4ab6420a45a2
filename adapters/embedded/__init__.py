"""The ``embedded`` overlay: a queue in a SQLite file, for demos, laptops and tests.

It is imported lazily: the worker, which starts once per drone, needs the standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adapters.embedded.overlay import EmbeddedOverlay, EmbeddedOverlayConfig

__all__ = ["EmbeddedOverlay", "EmbeddedOverlayConfig"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from adapters.embedded import overlay

        return getattr(overlay, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
