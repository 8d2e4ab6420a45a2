"""Changed records of drones, made quickly: a decision after a restart changes the record of nearly every drone."""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter

from provisioner.model import Drone

_fields = attrgetter(*(field.name for field in fields(Drone)))
_set = object.__setattr__


def changed(drone: Drone, **news: object) -> Drone:
    """Return the drone with some fields changed, as ``dataclasses.replace`` does in twice the time. Raises
    AttributeError for a field that does not exist."""
    new = Drone(*_fields(drone))
    for name, value in news.items():
        _set(new, name, value)
    return new
