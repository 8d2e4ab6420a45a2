"""How a server says which drone it is: its name is the drone's id, its tags are for listings, its metadata for us.

Nova's names are not unique and its tags go with the server (a deleted one has none), so each of them has its use.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from adapters.openstack.records import Server
from provisioner.model import DroneId

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_ID = re.compile(rf"(?P<controller>{_LABEL})-[a-z0-9]{{1,32}}-(?:0|[1-9][0-9]{{0,17}})")
_LONGEST_ID = 63
_LONGEST_TAG = 60

DRONE, CONTROLLER, SITE, TYPE = (f"provisioner_{key}" for key in ("drone", "controller", "site", "type"))


@dataclass(frozen=True, slots=True)
class Named:
    """What a server tells of itself."""

    drone_id: DroneId
    type: str


def is_ours(drone_id: str, controller: str) -> bool:
    """Whether it is an id of a drone of this controller."""
    found = _ID.fullmatch(drone_id)
    return found is not None and found["controller"] == controller and len(drone_id) <= _LONGEST_ID


def tag(text: str) -> str:
    """``text`` as a tag of a server: the end of its hash where it is longer than a tag may be."""
    return text if len(text) <= _LONGEST_TAG else hashlib.sha256(text.encode()).hexdigest()[:40]


def group_tag(controller: str, site: str) -> str:
    """The tag of all servers of a controller at a site."""
    return tag(f"{controller}.{site}")


def name_pattern(controller: str) -> str:
    """Matches the names of all servers of a controller, deleted ones included (Nova's ``name`` filter)."""
    return f"^{re.escape(controller)}-"


def tags(drone_id: DroneId, controller: str, site: str) -> list[str]:
    """The tags of one drone's server."""
    return ["gpu-drone", group_tag(controller, site), tag(drone_id)]


def metadata(drone_id: DroneId, kind: str, controller: str, site: str) -> Mapping[str, str]:
    """The metadata of one drone's server."""
    return {DRONE: drone_id, CONTROLLER: controller, SITE: site, TYPE: kind}


def named(server: Server, controller: str, site: str) -> Named | None:
    """Which drone of ``controller`` at ``site`` a server is; None if it is nothing of that."""
    told = server.metadata
    drone_id = told.get(DRONE, "")
    if (told.get(CONTROLLER), told.get(SITE)) != (controller, site) or not is_ours(drone_id, controller):
        return None
    return Named(DroneId(drone_id), told.get(TYPE, ""))
