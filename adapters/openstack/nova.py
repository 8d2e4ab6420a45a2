"""One project of one cloud: the calls of Nova, and of Glance, Neutron and Cinder as far as drones need them.

Reads raise UnavailableError or AuthError. Writes raise OutcomeUnknownError where their outcome is
unknown. Nothing is tried twice here. Ids in addresses are those of parsed records: they are safe there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from adapters.openstack import servers
from adapters.openstack.servers import Flavor, Image, Limits, Server, ServerAction
from adapters.openstack.session import OpenStackSession, ServiceMissingError, listed
from adapters.shared.json_records import Record, mapping, text
from provisioner.interfaces import OutcomeUnknownError, UnavailableError

_MAY_RUN = frozenset(
    {"ACTIVE", "BUILD", "REBOOT", "HARD_REBOOT", "PASSWORD", "REBUILD", "RESCUE", "UNKNOWN"}
)
"""Statuses of a guest that runs, will, or may."""


class OpenStackCloud(OpenStackSession):
    """One project of one cloud."""

    async def servers(
        self, *, tag: str = "", name: str = "", since: float = 0.0
    ) -> Sequence[Server]:
        """List all pages of the project's servers.

        ``tag`` selects by tag, ``name`` by a regular expression, ``since`` those that changed after
        it, deleted ones included (without their tags). Without a filter, servers of cells that are
        down are listed as UNKNOWN; with one they are missing. Raises UnavailableError if a page is
        missing.
        """
        filters = {
            "tags": tag,
            "name": name,
            "changes-since": servers.nova_time(since) if since > 0 else "",
        }
        query = [(key, value) for key, value in filters.items() if value]
        return [
            servers.parse_server(each)
            for each in await self.pages("compute", "/servers/detail", "servers", query)
        ]

    async def create(self, server: Record, hints: Mapping[str, str], *, deadline_s: float) -> str:
        """Create a server and return its id. Raises RejectedError (QUOTA, CAPACITY, CONFIG, THROTTLED)."""
        body = {"server": dict(server), **({"os:scheduler_hints": dict(hints)} if hints else {})}
        reply = await self.order("compute", "POST", "/servers", body, deadline_s=deadline_s)
        server_id = text(reply.body, "server", "id")
        if not servers.is_id(server_id):
            raise OutcomeUnknownError("compute: it takes a server and does not tell its id")
        return server_id

    async def delete(self, server_id: str) -> None:
        """Delete a server. One that is gone is a success."""
        reply = await self.order("compute", "DELETE", f"/servers/{server_id}", accepted=(404, 409))
        if reply.status == 409:
            now = await self._server(server_id)
            if (
                now is not None
                and now.status not in servers.GONE
                and now.task not in servers.DELETING_TASKS
            ):
                raise servers.order_error(409, *reply.fault, words=f"compute: {reply}")

    async def shut_down(self, server_id: str) -> None:
        """Shut a server down (os-stop), which notifies its guest; the image's or Nova's shutdown timeout ends it.

        A server that is gone or not running is a success. Raises RejectedError if it does not run
        yet.
        """
        path = f"/servers/{server_id}/action"
        reply = await self.order("compute", "POST", path, {"os-stop": None}, accepted=(404, 409))
        if reply.status in (404, 409):
            # It is gone, not running, locked, or not running yet: Nova knows nothing to stop (404)
            # of a server that it has just accepted.
            now = await self._server(server_id)
            if (
                now is not None
                and now.status in _MAY_RUN
                and now.task not in {"powering-off", *servers.DELETING_TASKS}
            ):
                raise servers.order_error(409, *reply.fault, words=f"compute: {reply}")

    async def _server(self, server_id: str) -> Server | None:
        page = await self.read("compute", f"/servers/{server_id}", lacking=(404,))
        if page is None:
            return None
        if not (record := mapping(page, "server")):
            raise UnavailableError("compute: it gives an answer without a `server`")
        return servers.parse_server(record)

    async def console(self, server_id: str, lines: int) -> str:
        """Return the end of a server's console output; empty where there is none."""
        if lines <= 0:
            return ""
        path = f"/servers/{server_id}/action"
        body = {"os-getConsoleOutput": {"length": lines}}
        return text(
            await self.read("compute", path, body=body, lacking=(404, 409, 501)) or {}, "output"
        )

    async def actions(self, server_id: str) -> Sequence[ServerAction]:
        """Return a server's actions, newest first; empty where it is gone."""
        page = await self.read(
            "compute", f"/servers/{server_id}/os-instance-actions", lacking=(404,)
        )
        if page is None:
            return []
        actions = [
            servers.parse_action(each) for each in listed("compute", page, "instanceActions")
        ]
        return sorted(actions, key=lambda each: each.at, reverse=True)

    async def limits(self) -> Limits:
        page = await self.read("compute", "/limits")
        absolute = mapping(page, "limits").get("absolute")
        if not isinstance(absolute, dict):
            raise UnavailableError("compute: it gives an answer without `limits`")
        return servers.parse_limits(absolute)

    async def flavors(self) -> Sequence[Flavor]:
        """Return the flavours that the project may use, with extra specs."""
        flavors = [
            servers.parse_flavor(each)
            for each in await self.pages("compute", "/flavors/detail", "flavors")
        ]
        if not all(each.id for each in flavors):
            raise UnavailableError("the cloud tells of a flavour without an id")
        return flavors

    async def images(self, name_or_id: str) -> Sequence[Image]:
        """Return the image with this id, else those with this name, newest first."""
        if servers.is_id(name_or_id):
            record = await self.read("image", f"/images/{name_or_id}", lacking=(400, 404))
            if record is not None:
                return [servers.parse_image(record)]
        found = await self.pages("image", "/images", "images", [("name", name_or_id)])
        # Glance takes a name that begins with an operator (`in:`) for one.
        images = [
            image for each in found if (image := servers.parse_image(each)).name == name_or_id
        ]
        return sorted(images, key=lambda each: each.created_at, reverse=True)

    async def names_by_id(self, key: Literal["networks", "security_groups"]) -> Mapping[str, str]:
        """Return the names of what the project may use, by id."""
        path = f"/{key.replace('_', '-')}"
        found = await self.pages("network", path, key, [("fields", "id"), ("fields", "name")])
        return {
            servers.identity(each, "network or security group"): text(each, "name")
            for each in found
        }

    async def key_pairs(self) -> Sequence[str]:
        found = await self.pages("compute", "/os-keypairs", "keypairs")
        return [name for each in found if (name := text(each, "keypair", "name"))]

    async def ports(self) -> Mapping[str, str]:
        """Return the servers of the project's ports, by port; none where the cloud offers no network service.

        Neutron shows an admin the whole cloud's, so the project is asked for: the session is logged
        in already. ``compute:`` is Nova's prefix of the owner of a port that is bound to a server
        (Neutron API reference, "device_owner").
        """
        fields = [("fields", each) for each in ("id", "device_id", "device_owner")]
        try:
            found = await self.pages(
                "network", "/ports", "ports", [*fields, ("project_id", self.project)]
            )
        except ServiceMissingError:
            return {}
        owned = [each for each in found if text(each, "device_owner").startswith("compute:")]
        return {servers.identity(each, "port"): text(each, "device_id") for each in owned}

    async def delete_port(self, port_id: str) -> None:
        await self.order("network", "DELETE", f"/ports/{port_id}", accepted=(404,))

    async def volumes(self) -> Mapping[str, str]:
        """Return the statuses of the project's volumes by id; none where the cloud offers no volume service."""
        try:
            found = await self.pages("block-storage", "/volumes/detail", "volumes")
        except ServiceMissingError:
            return {}
        return {servers.identity(each, "volume"): text(each, "status") for each in found}

    async def delete_volume(self, volume_id: str) -> None:
        await self.order("block-storage", "DELETE", f"/volumes/{volume_id}", accepted=(404,))
