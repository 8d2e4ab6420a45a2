"""Format of drone ids: the controller, a random word, and a number."""

from __future__ import annotations

import re

LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
DRONE_ID_PATTERN = (
    rf"(?P<prefix>(?P<controller>{LABEL})-[a-z0-9]{{1,32}})-(?P<serial>0|[1-9][0-9]{{0,17}})"
)
MAX_DRONE_ID_LENGTH = 63
_DRONE_ID_FORMAT = re.compile(DRONE_ID_PATTERN)


def is_drone_id(drone_id: str, controller: str) -> bool:
    """Return whether a text is a drone id of this controller."""
    found = _DRONE_ID_FORMAT.fullmatch(drone_id)
    is_ours = found is not None and found["controller"] == controller
    return is_ours and len(drone_id) <= MAX_DRONE_ID_LENGTH
