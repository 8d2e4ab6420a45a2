"""Drivers for HTCondor: the overlay pool, and HTCondor clusters as sites.

The Python bindings are imported at their first use: `check` and `render` of a site file need none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from adapters.shared import optional_packages

if TYPE_CHECKING:
    import classad2
    import htcondor2
else:

    class _LazyModule:
        """A module of the bindings. UnavailableError, with the remedy, where they are not installed."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> Any:
            with optional_packages("htcondor", "HTCondor needs", "htcondor2"):
                # makes ClassAds know its functions: countMatches is an error without it
                import_module("htcondor2")
            found = getattr(import_module(self._name), attribute)
            setattr(self, attribute, found)
            return found

    classad2 = _LazyModule("classad2")
    htcondor2 = _LazyModule("htcondor2")

__all__ = ["classad2", "htcondor2"]
