"""Clients, transports and optional packages of several adapters. Adapters import this, never each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from provisioner.interfaces import UnavailableError
from provisioner.model import FaultKind


@contextlib.contextmanager
def optional_packages(extra: str, needed_by: str, *packages: str) -> Iterator[None]:
    """Import what uses optional packages. UnavailableError, with the remedy, if one is not installed."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in packages:
            raise
        repair = f"install the extra `{extra}` (docs/how-to/install.md#extras)"
        message = f"{needed_by} the Python package {package}: {repair}"
        raise UnavailableError(message, FaultKind.CONFIG) from None
