"""The ids that a person may have at hand for a drone, and how they are compared."""

from __future__ import annotations

import re

FIND_LIMIT = 100
"""Most drones that one ambiguous id is answered with."""

_DYNAMIC_SLOT = re.compile(r"^(?P<parent>slot\d+)(?:_\d+)+@(?P<host>.+)$")


def plausible(any_id: str) -> bool:
    """Whether ``any_id`` can be an id at all: not empty, and text (arguments of a command may be any bytes)."""
    try:
        return bool(any_id.encode())
    except UnicodeEncodeError:
        return False


def serial_meant(any_id: str) -> int | None:
    """The serial number that ``any_id`` is, if it is one."""
    return int(any_id) if len(any_id) <= 18 and any_id.isascii() and any_id.isdecimal() else None


def slots_meant(any_id: str) -> tuple[str, ...]:
    """``any_id`` as a slot name; a dynamic slot (``slot1_3@host``) belongs to the drone of its parent."""
    dynamic = _DYNAMIC_SLOT.match(any_id)
    return (any_id, f"{dynamic['parent']}@{dynamic['host']}") if dynamic else (any_id,)


def prefix_end(prefix: str) -> str:
    """The least string above all that begin with ``prefix``."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)
