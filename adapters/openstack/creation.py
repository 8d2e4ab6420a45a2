"""An order for a drone as a request for a server: what can be asked for at all, and the JSON that asks for it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from adapters.openstack import names
from adapters.openstack.settings import BootVolume, OpenStackSiteConfig
from adapters.shared.parcel import Unfit, sendable
from provisioner.model import WHOLE_GPU, StartOrder

LARGEST_BODY = 114688
"""Bytes of a request that Nova reads (``max_request_body_size`` of oslo.middleware)."""
_GIB = 1024


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the settings name of one drone type, as this cloud calls it."""

    flavor: str
    """Id."""
    image: str
    """Id."""
    networks: tuple[str, ...] | None = None
    """Ids; None: as the cloud sees fit, empty: none."""
    security_groups: tuple[str, ...] = ()
    """Ids, or names where no two have the same; empty: the project's default."""


def checked(order: StartOrder, controller: str) -> None:
    """Raises Unfit if no server can ever be made of this order."""
    kind, bootstrap = order.type, order.bootstrap
    if not names.is_ours(order.drone_id, controller):
        raise Unfit("not a drone id of this controller")
    if bootstrap is None:
        raise Unfit("the order has no admission: nothing to run")
    if kind.gpu_milli % WHOLE_GPU or kind.gpu_milli < 0:
        raise Unfit(f"{kind.gpu_milli / WHOLE_GPU:g} GPUs: a server has whole ones")
    if kind.cpus < 1 or kind.memory_mib < 1:
        raise Unfit("a drone has a CPU and some memory at least")
    if kind.walltime_s < 0 or order.grace_s < 0:
        raise Unfit("a drone cannot live, or leave, for less than no time")
    sendable(bootstrap)


def request(
    order: StartOrder, config: OpenStackSiteConfig, ids: Resolved, user_data: bytes
) -> tuple[dict[str, Any], dict[str, str]]:
    """``server`` and scheduler hints of POST /servers, microversion 2.52 or later (2.67 with a volume type). Raises
    Unfit if Nova would not read it."""
    kind, wanted = order.type, config.server(order.type.name)
    controller = order.drone_id.rsplit("-", 2)[0]
    body: dict[str, Any] = {
        "name": order.drone_id,
        "flavorRef": ids.flavor,
        "networks": _networks(ids),
        "metadata": {**wanted.metadata, **names.metadata(order.drone_id, kind.name, controller, kind.site)},
        "tags": names.tags(order.drone_id, controller, kind.site),
        "user_data": base64.b64encode(user_data).decode(),
    }
    if wanted.boot_volume is None:
        body["imageRef"] = ids.image
    else:
        body["block_device_mapping_v2"] = [_volume(wanted.boot_volume, ids.image)]
    # Nova gives them to the ports that it makes; without a network it makes none, and looks for their names in vain.
    if ids.security_groups and ids.networks != ():
        body["security_groups"] = [{"name": name} for name in ids.security_groups]
    if wanted.key_pair:
        body["key_name"] = wanted.key_pair
    if wanted.availability_zone:
        body["availability_zone"] = wanted.availability_zone
    if wanted.config_drive is not None:
        body["config_drive"] = wanted.config_drive
    hints = {"group": wanted.server_group} if wanted.server_group else {}
    size = len(json.dumps({"server": body, "os:scheduler_hints": hints}))
    if size > LARGEST_BODY:
        share = len(body["user_data"])
        raise Unfit(f"the request is {size} bytes and may be {LARGEST_BODY}: user data {share}, the rest is metadata")
    return body, hints


def _networks(ids: Resolved) -> str | list[dict[str, str]]:
    if ids.networks is None:
        return "auto"
    return [{"uuid": network} for network in ids.networks] or "none"


def _volume(wanted: BootVolume, image: str) -> dict[str, Any]:
    volume: dict[str, Any] = {
        "boot_index": 0,
        "uuid": image,
        "source_type": "image",
        "destination_type": "volume",
        "volume_size": max(1, -(-wanted.size // _GIB)),
        "delete_on_termination": True,
    }
    if wanted.type:
        volume["volume_type"] = wanted.type
    return volume
