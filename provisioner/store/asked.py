"""What operators ask for as rows, for the controller that takes it up and the reader that writes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from provisioner.model import DrainMode, DroneId, OperatorRequest, RequestKind

REQUEST_COLUMNS = ("id", "at", "kind", "drone_ids", "reason", "by", "mode")
FORGET_COLUMNS = ("id", "at", "what", "reason", "by")
"""As :class:`provisioner.store.Forget` wants them."""


def request_of(row: Sequence[Any]) -> OperatorRequest:
    """A request from a row with the columns :data:`REQUEST_COLUMNS`."""
    number, at, kind, drone_ids, reason, by, mode = row
    ids = tuple(DroneId(drone_id) for drone_id in json.loads(drone_ids))
    return OperatorRequest(number, at, RequestKind(kind), ids, reason, by, DrainMode(mode))
