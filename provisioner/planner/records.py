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
    return amended(Drone(*_fields(drone)), **news)


def amended(copy: Drone, **news: object) -> Drone:
    """Return ``copy`` itself with some fields changed. It must be a copy that the caller has just made and that nobody
    else has yet: a drone with news of its site and of the pool is copied once."""
    for name, value in news.items():
        _set(copy, name, value)
    return copy
