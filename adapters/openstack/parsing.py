"""Parsing of the services' JSON into records.

A field that is missing or invalid is left at its default; identities must be there. Names of fields: compute API
reference, "List Servers Detailed" and the like. Disk sizes come in GiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from adapters.openstack.records import (
    Flavor,
    Image,
    Limits,
    Port,
    Server,
    ServerAction,
    ServerFault,
    ServerFlavor,
    Volume,
)
from provisioner.interfaces import UnavailableError

Record = Mapping[str, Any]

_GIB_IN_MIB = 1024
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}")
"""Ids that go into addresses of ours: UUIDs, with or without dashes."""
_MOST = 2**53


def is_id(told: object) -> bool:
    """Return whether it can be the id of a server, a port, a volume or an image."""
    return isinstance(told, str) and _ID.fullmatch(told) is not None


def identity(record: Record, what: str) -> str:
    """Return the id of an object. Raises UnavailableError without one."""
    told = record.get("id")
    if not isinstance(told, str) or not is_id(told):
        raise UnavailableError(f"the cloud tells of a {what} without an id")
    return told


def text(record: Record, key: str) -> str:
    told = record.get(key)
    return told if isinstance(told, str) else ""


def number(record: Record, key: str, default: int = 0) -> int:
    told = record.get(key)
    known = isinstance(told, int) and not isinstance(told, bool) and abs(told) < _MOST
    return told if known and isinstance(told, int) else default


def texts(told: object) -> Mapping[str, str]:
    """Return a mapping of texts; other values are left out."""
    pairs = told.items() if isinstance(told, dict) else ()
    return {key: value for key, value in pairs if isinstance(value, str)}


def instant(record: Record, key: str) -> float:
    """``2026-11-21T23:00:00Z``, or without a zone, as Nova and Glance write what else is UTC."""
    try:
        at = datetime.fromisoformat(text(record, key))
        return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def moment(at: float) -> str:
    """Format a time for Nova's filters. Nova takes whole seconds, so this is the second before."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# -------------------------------------------------------------------------------------------------------------- compute


def server(record: Record) -> Server:
    """Parse a server of a detailed listing. One of a cell that is down has little more than id and UNKNOWN."""
    tags = record.get("tags")
    return Server(
        id=identity(record, "server"),
        name=text(record, "name"),
        status=text(record, "status").upper() or "UNKNOWN",
        task=text(record, "OS-EXT-STS:task_state"),
        power=number(record, "OS-EXT-STS:power_state"),
        created_at=instant(record, "created"),
        updated_at=instant(record, "updated"),
        launched_at=instant(record, "OS-SRV-USG:launched_at"),
        terminated_at=instant(record, "OS-SRV-USG:terminated_at"),
        host_id=text(record, "hostId"),
        project=text(record, "tenant_id"),
        flavor=_flavor_within(record.get("flavor")),
        tags=frozenset(each for each in tags if isinstance(each, str)) if isinstance(tags, list) else frozenset(),
        metadata=texts(record.get("metadata")),
        fault=_fault(record.get("fault")),
        volumes=_attached(record.get("os-extended-volumes:volumes_attached")),
    )


def _flavor_within(told: object) -> ServerFlavor | None:
    if not isinstance(told, dict) or "original_name" not in told:
        return None
    return ServerFlavor(
        name=text(told, "original_name"),
        vcpus=number(told, "vcpus"),
        memory_mib=number(told, "ram"),
        disk_mib=number(told, "disk") * _GIB_IN_MIB,
        extra=texts(told.get("extra_specs")),
    )


def _fault(told: object) -> ServerFault | None:
    if not isinstance(told, dict):
        return None
    return ServerFault(code=number(told, "code"), message=text(told, "message"), at=instant(told, "created"))


def _attached(told: object) -> tuple[str, ...]:
    """Those that go with the server: what a person has attached is his."""
    records = [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []
    return tuple(
        text(each, "id") for each in records if is_id(each.get("id")) and each.get("delete_on_termination") is True
    )


def action(record: Record) -> ServerAction:
    """One of os-instance-actions."""
    return ServerAction(
        action=text(record, "action"),
        user=text(record, "user_id"),
        project=text(record, "project_id"),
        at=instant(record, "start_time"),
    )


def limits(record: Record) -> Limits:
    """``limits.absolute``; what is not told is not limited."""
    return Limits(
        instances=number(record, "maxTotalInstances", -1),
        instances_used=number(record, "totalInstancesUsed"),
        cpus=number(record, "maxTotalCores", -1),
        cpus_used=number(record, "totalCoresUsed"),
        memory_mib=number(record, "maxTotalRAMSize", -1),
        memory_used_mib=number(record, "totalRAMUsed"),
    )


def flavor(record: Record) -> Flavor:
    """Its id may be any text (``m1.small``)."""
    found = text(record, "id")
    if not found:
        raise UnavailableError("the cloud tells of a flavour without an id")
    return Flavor(
        id=found,
        name=text(record, "name"),
        vcpus=number(record, "vcpus"),
        memory_mib=number(record, "ram"),
        disk_mib=number(record, "disk") * _GIB_IN_MIB,
        ephemeral_mib=number(record, "OS-FLV-EXT-DATA:ephemeral") * _GIB_IN_MIB,
        extra=texts(record.get("extra_specs")),
        disabled=record.get("OS-FLV-DISABLED:disabled") is True,
    )


# --------------------------------------------------------------------------------------------------------- the others


def image(record: Record) -> Image:
    return Image(
        id=identity(record, "image"),
        name=text(record, "name"),
        status=text(record, "status"),
        min_disk_mib=number(record, "min_disk") * _GIB_IN_MIB,
        min_memory_mib=number(record, "min_ram"),
        created_at=instant(record, "created_at"),
    )


def port(record: Record) -> Port:
    return Port(
        id=identity(record, "port"),
        device_id=text(record, "device_id"),
        device_owner=text(record, "device_owner"),
        status=text(record, "status"),
    )


def volume(record: Record) -> Volume:
    told = record.get("attachments")
    attachments = [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []
    servers = tuple(found for each in attachments if (found := text(each, "server_id")))
    return Volume(id=identity(record, "volume"), status=text(record, "status"), servers=servers)
