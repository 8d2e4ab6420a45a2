"""neutron and cinder of the OpenStack lab: fakes that keep ports and volumes, and speak the real
services' protocol to nova and to tenants.

Real in them: tokens (keystone is asked about each), who may see what, statuses and error documents
of what is there, filters, the steps in which nova makes, binds, attaches and deletes. Not there:
packets and blocks, pages, quotas, policies finer than "owner, or admin", and any path that is not
below. Networks and types are fixed. A volume is available, and a port active, at once.
"""

from __future__ import annotations

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.labs.openstack_proxy import Answer, Front, Request, answer

Row = dict[str, Any]
Query = list[tuple[str, str]]


class Refused(Exception):
    """The answer is this one."""

    def __init__(self, given: Answer) -> None:
        super().__init__(str(given.status))
        self.given = given


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a token is."""

    project: str
    admin: bool
    """Or a service, which may do the same."""
    service: bool
    """Whether it is nova that calls, for itself or for the tenant whose token it passes on."""

    def sees(self, row: Row) -> bool:
        return self.admin or row["project_id"] == self.project


class Tokens:
    """Asks keystone who a token is; believes it for a second, as the lab's other services do."""

    def __init__(self, keystone_port: int) -> None:
        self.port = keystone_port
        self._known: dict[tuple[str, bool], tuple[float, Mapping[str, Any]]] = {}

    def caller(self, request: Request) -> Caller:
        """Refused with 401 if it is nobody."""
        token = request.headers.get("x-auth-token", "")
        helping = request.headers.get("x-service-token", "")
        if not token:
            raise Refused(_unauthorized())
        found = self._ask(token, helping)
        roles = {role["name"] for role in found["roles"]}
        service = bool(helping) or "service" in roles
        return Caller(
            found.get("project", {}).get("id", ""), bool(roles & {"admin", "service"}), service
        )

    def _ask(self, token: str, helping: str) -> Mapping[str, Any]:
        key = (token, bool(helping))
        until, found = self._known.get(key, (0.0, {}))
        if until > time.monotonic():
            return found
        keystone = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            # A service's own token lets it finish for a tenant whose token has expired meanwhile.
            path = "/v3/auth/tokens" + ("?allow_expired=1" if helping else "")
            keystone.request(
                "GET", path, headers={"X-Auth-Token": helping or token, "X-Subject-Token": token}
            )
            said = keystone.getresponse()
            text = said.read()
        except OSError:
            raise Refused(
                answer(503, {"error": {"code": 503, "message": "keystone does not answer"}})
            ) from None
        finally:
            keystone.close()
        if said.status != 200:
            raise Refused(_unauthorized())
        told: Mapping[str, Any] = json.loads(text)["token"]
        self._known[key] = (time.monotonic() + 1, told)
        return told


def _unauthorized() -> Answer:
    message = "The request you have made requires authentication."
    return answer(401, {"error": {"code": 401, "title": "Unauthorized", "message": message}})


class Fake(Front):
    """A service whose paths are methods: ``routes`` are (method, path pattern, what answers)."""

    public = "/?|/v[0-9.]+/?"
    """Paths that need no token."""

    def __init__(self, name: str, keystone_port: int) -> None:
        super().__init__(name)
        self.tokens = Tokens(keystone_port)
        self.state = threading.RLock()
        self.routes: list[tuple[str, str, Callable[..., Answer]]] = []

    def respond(self, request: Request) -> Answer:
        url = urlsplit(request.target)
        path = unquote(url.path)
        query = parse_qsl(url.query, keep_blank_values=True)
        try:
            if re.fullmatch(self.public, path):
                return self.versions()
            caller = self.tokens.caller(request)
            for method, pattern, what in self.routes:
                if method == request.method and (found := re.fullmatch(pattern, path)):
                    with self.state:
                        return what(caller, request, query, *found.groups())
        except Refused as refusal:
            return refusal.given
        return self.no_such_path(path)

    def versions(self) -> Answer:
        raise NotImplementedError

    def no_such_path(self, path: str) -> Answer:
        return answer(404, {"error": {"code": 404, "message": f"no {path} in this fake"}})

    def listed(self, key: str, rows: Iterable[Row], query: Query) -> Answer:
        """A list's document: the rows that fit, or those of their fields that are asked for."""
        shown = [row for row in rows if _fits(row, query)]
        if fields := [value for name, value in query if name == "fields"]:
            shown = [{name: row[name] for name in fields if name in row} for row in shown]
        return answer(200, {key: shown})


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _fits(row: Row, query: Query) -> bool:
    """Return whether a row has one of the values for each name that is asked for."""
    asked: dict[str, list[str]] = {}
    for name, value in query:
        asked.setdefault(name, []).append(value.lower())
    return all(str(row[name]).lower() in values for name, values in asked.items() if name in row)


class Network(Fake):
    """neutron: one shared network, ``drones``, and the ports on it."""

    def __init__(self, keystone_port: int) -> None:
        super().__init__("neutron", keystone_port)
        self.ports: dict[str, Row] = {}
        self.network_id, self.subnet_id = str(uuid.uuid4()), str(uuid.uuid4())
        self.keep_ports = False
        """Whether a port that nova deletes stays behind, although nova is told that it has gone."""
        self._born = _now()
        v2 = "/v2.0"
        self.routes = [
            ("GET", f"{v2}/extensions", self._extensions),
            ("GET", f"{v2}/(networks|subnets)", self._list_fixed),
            ("GET", f"{v2}/(networks|subnets)/([^/]+)", self._show_fixed),
            ("GET", f"{v2}/security-groups", self._groups),
            ("GET", f"{v2}/floatingips", lambda *_: answer(200, {"floatingips": []})),
            ("GET", f"{v2}/quotas/([^/]+)", self._quotas),
            ("GET", f"{v2}/ports", self._list),
            ("POST", f"{v2}/ports", self._create),
            ("GET", f"{v2}/ports/([^/]+)", self._show),
            ("PUT", f"{v2}/ports/([^/]+)", self._update),
            ("DELETE", f"{v2}/ports/([^/]+)", self._delete),
        ]

    def reset(self) -> None:
        with self.state:
            self.ports.clear()
            self.keep_ports = False

    def versions(self) -> Answer:
        links = [{"rel": "self", "href": f"{self.url}/v2.0/"}]
        return answer(200, {"versions": [{"id": "v2.0", "status": "CURRENT", "links": links}]})

    def no_such_path(self, path: str) -> Answer:
        return _neutron_error(404, "HTTPNotFound", f"The resource could not be found: {path}")

    def _extensions(self, *_: object) -> Answer:
        names = (
            "security-group",
            "binding",
            "quotas",
            "standard-attr-tag",
            "standard-attr-timestamp",
            "pagination",
        )
        rows = [
            {"alias": each, "name": each, "description": "", "updated": self._born, "links": []}
            for each in names
        ]
        return answer(200, {"extensions": rows})

    def _row(self, number: str, name: str, project: str, **more: Any) -> Row:
        common = {
            "id": number,
            "name": name,
            "project_id": project,
            "tenant_id": project,
            "tags": [],
        }
        return {**common, "created_at": self._born, **more}

    def _fixed(self, kind: str) -> Row:
        """The network, or its subnet."""
        if kind == "networks":
            row = self._row(
                self.network_id,
                "drones",
                "",
                shared=True,
                admin_state_up=True,
                status="ACTIVE",
                mtu=1450,
            )
            return {
                **row,
                "router:external": False,
                "subnets": [self.subnet_id],
                "port_security_enabled": True,
            }
        row = self._row(
            self.subnet_id, "drones", "", network_id=self.network_id, ip_version=4, enable_dhcp=True
        )
        pools = {
            "allocation_pools": [{"start": "10.0.0.2", "end": "10.0.255.254"}],
            "gateway_ip": "10.0.0.1",
        }
        return {**row, **pools, "cidr": "10.0.0.0/16", "dns_nameservers": [], "host_routes": []}

    def _list_fixed(self, caller: Caller, request: Request, query: Query, kind: str) -> Answer:
        return self.listed(kind, [self._fixed(kind)], query)

    def _show_fixed(
        self, caller: Caller, request: Request, query: Query, kind: str, number: str
    ) -> Answer:
        name, row = kind.removesuffix("s"), self._fixed(kind)
        if number != row["id"]:
            return _neutron_error(
                404, f"{name.title()}NotFound", f"{name.title()} {number} could not be found."
            )
        return answer(200, {name: row})

    def _groups(self, caller: Caller, request: Request, query: Query) -> Answer:
        asked = dict(query)
        projects = {asked.get("tenant_id") or asked.get("project_id") or caller.project}
        if caller.admin:
            projects |= {row["project_id"] for row in self.ports.values()}
        return self.listed(
            "security_groups", filter(caller.sees, map(self._group, sorted(projects))), query
        )

    def _group(self, project: str) -> Row:
        number = str(uuid.uuid5(uuid.NAMESPACE_DNS, project))
        rest: Row = {"description": "Default security group", "security_group_rules": []}
        return self._row(number, "default", project, **rest)

    def _quotas(self, caller: Caller, request: Request, query: Query, project: str) -> Answer:
        return answer(
            200, {"quota": {"port": -1, "network": -1, "subnet": -1, "security_group": -1}}
        )

    # --------------------------------------------------------------------------------------------------------
    # ports

    def _port(self, caller: Caller, number: str) -> Row:
        row = self.ports.get(number)
        if row is None or not caller.sees(row):
            raise Refused(_neutron_error(404, "PortNotFound", f"Port {number} could not be found."))
        return row

    def _list(self, caller: Caller, request: Request, query: Query) -> Answer:
        return self.listed("ports", filter(caller.sees, self.ports.values()), query)

    def _create(self, caller: Caller, request: Request, query: Query) -> Answer:
        asked = request.document["port"]
        if asked.get("network_id") != self.network_id:
            message = f"Network {asked.get('network_id')} could not be found."
            return _neutron_error(404, "NetworkNotFound", message)
        project = asked.get("project_id") or asked.get("tenant_id") or caller.project
        if project != caller.project and not caller.admin:
            return _neutron_error(
                403, "HTTPForbidden", "((rule:create_port and ...) is disallowed by policy"
            )
        used = {ip["ip_address"] for row in self.ports.values() for ip in row["fixed_ips"]}
        free = next(ip for n in range(2, 65000) if (ip := f"10.0.{n // 256}.{n % 256}") not in used)
        number = str(uuid.uuid4())
        binding = {
            "vnic_type": "normal",
            "vif_type": "unbound",
            "vif_details": {},
            "profile": {},
            "host_id": "",
        }
        row: Row = {
            **self._row(
                number, "", project, network_id=self.network_id, admin_state_up=True, status="DOWN"
            ),
            "mac_address": "fa:16:3e:" + ":".join(re.findall("..", number[:6])),
            "fixed_ips": [{"subnet_id": self.subnet_id, "ip_address": free}],
            "security_groups": [self._group(project)["id"]],
            "created_at": _now(),
            **dict.fromkeys(("device_id", "device_owner", "description"), ""),
            **{key: [] for key in ("allowed_address_pairs", "extra_dhcp_opts")},
            **{f"binding:{key}": value for key, value in binding.items()},
            "port_security_enabled": True,
        }
        row |= {name: value for name, value in asked.items() if name in row and name != "fixed_ips"}
        row |= {"project_id": project, "tenant_id": project}
        self.ports[number] = _bound(row)
        return answer(201, {"port": row})

    def _show(self, caller: Caller, request: Request, query: Query, number: str) -> Answer:
        return answer(200, {"port": self._port(caller, number)})

    def _update(self, caller: Caller, request: Request, query: Query, number: str) -> Answer:
        row = self._port(caller, number)
        asked = request.document["port"]
        row |= {
            name: value
            for name, value in asked.items()
            if name in row and name not in ("id", "fixed_ips")
        }
        return answer(200, {"port": _bound(row)})

    def _delete(self, caller: Caller, request: Request, query: Query, number: str) -> Answer:
        self._port(caller, number)
        if not (self.keep_ports and caller.service):
            del self.ports[number]
        return answer(204)


def _bound(row: Row) -> Row:
    on = bool(row["binding:host_id"])
    row["binding:vif_type"] = "ovs" if on else "unbound"
    row["status"] = "ACTIVE" if on and row["device_id"] else "DOWN"
    return row


def _neutron_error(status: int, kind: str, message: str) -> Answer:
    return answer(status, {"NeutronError": {"type": kind, "message": message, "detail": ""}})


class Volumes(Fake):
    """cinder 3.0 to 3.70: volumes and their attachments."""

    def __init__(self, keystone_port: int) -> None:
        super().__init__("cinder", keystone_port)
        self.volumes: dict[str, Row] = {}
        self.attachments: dict[str, Row] = {}
        self.keep_volumes = False
        """Whether a volume that nova deletes stays behind, although nova is told that it goes."""
        v3 = "/v3(?:/[0-9a-f]{32})?"
        self.routes = [
            ("GET", f"{v3}/volumes/detail", self._list),
            ("POST", f"{v3}/volumes", self._create),
            ("GET", f"{v3}/volumes/([^/]+)", self._show),
            ("DELETE", f"{v3}/volumes/([^/]+)", self._delete),
            ("POST", f"{v3}/volumes/([^/]+)/action", self._act),
            ("POST", f"{v3}/attachments", self._attach),
            ("GET", f"{v3}/attachments(?:/detail)?", self._list_attachments),
            ("GET", f"{v3}/attachments/([^/]+)", self._show_attachment),
            ("PUT", f"{v3}/attachments/([^/]+)", self._connect),
            ("POST", f"{v3}/attachments/([^/]+)/action", self._complete),
            ("DELETE", f"{v3}/attachments/([^/]+)", self._detach),
            ("GET", f"{v3}/limits", self._limits),
        ]

    def reset(self) -> None:
        with self.state:
            self.volumes.clear()
            self.attachments.clear()
            self.keep_volumes = False

    def versions(self) -> Answer:
        links = [{"rel": "self", "href": f"{self.url}/v3/"}]
        row = {
            "id": "v3.0",
            "status": "CURRENT",
            "version": "3.70",
            "min_version": "3.0",
            "links": links,
        }
        return answer(300, {"versions": [{**row, "updated": _now(), "media-types": []}]})

    def no_such_path(self, path: str) -> Answer:
        return _cinder_error(404, "itemNotFound", f"The resource could not be found: {path}")

    def _volume(self, caller: Caller, number: str) -> Row:
        row = self.volumes.get(number)
        if row is None or not caller.sees(row):
            raise Refused(
                _cinder_error(404, "itemNotFound", f"Volume {number} could not be found.")
            )
        return row

    def _told(self, row: Row) -> Row:
        """As a tenant sees it."""
        names = {
            "attachment_id": "id",
            "server_id": "instance",
            "host_name": "host",
            "device": "device",
        }
        attached = [
            {
                "id": row["id"],
                "volume_id": row["id"],
                **{name: each[key] for name, key in names.items()},
            }
            for each in self.attachments.values()
            if (each["volume_id"], each["status"]) == (row["id"], "attached")
        ]
        told = {name: value for name, value in row.items() if name != "project_id"}
        return {**told, "attachments": attached, "os-vol-tenant-attr:tenant_id": row["project_id"]}

    # ------------------------------------------------------------------------------------------------------
    # volumes

    def _list(self, caller: Caller, request: Request, query: Query) -> Answer:
        everyone = caller.admin and dict(query).get("all_tenants", "").lower() in ("1", "true")
        rows = [
            row for row in self.volumes.values() if everyone or row["project_id"] == caller.project
        ]
        return self.listed("volumes", map(self._told, rows), query)

    def _create(self, caller: Caller, request: Request, query: Query) -> Answer:
        asked = request.document["volume"]
        number, image = str(uuid.uuid4()), asked.get("imageRef")
        row: Row = {
            "id": number,
            **{key: asked.get(key) or "" for key in ("name", "description")},
            "size": asked.get("size") or 1,
            "status": "available",
            "bootable": "true" if image else "false",
            "metadata": asked.get("metadata") or {},
            "availability_zone": asked.get("availability_zone") or "nova",
            "volume_type": "ssd",
            **dict.fromkeys(("snapshot_id", "source_volid", "service_uuid"), None),
            **dict.fromkeys(("encrypted", "multiattach", "shared_targets"), False),
            **dict.fromkeys(("created_at", "updated_at"), _now()),
            "user_id": "",
            "project_id": caller.project,
            "links": [],
        }
        if image:
            row["volume_image_metadata"] = {
                "image_id": image,
                "disk_format": "raw",
                "container_format": "bare",
            }
        self.volumes[number] = row
        return answer(202, {"volume": self._told({**row, "status": "creating"})})

    def _show(self, caller: Caller, request: Request, query: Query, number: str) -> Answer:
        return answer(200, {"volume": self._told(self._volume(caller, number))})

    def _delete(self, caller: Caller, request: Request, query: Query, number: str) -> Answer:
        row = self._volume(caller, number)
        if row["status"] not in ("available", "error"):
            message = (
                "Invalid volume: Volume status must be available or error or error_restoring or ..."
            )
            return _cinder_error(400, "badRequest", message)
        if not (self.keep_volumes and caller.service):
            del self.volumes[number]
        return answer(202)

    def _act(self, caller: Caller, request: Request, query: Query, number: str) -> Answer:
        row = self._volume(caller, number)
        (what,) = request.document
        after = {
            "os-begin_detaching": "detaching",
            "os-roll_detaching": "in-use",
            "os-reserve": "reserved",
            "os-unreserve": "available",
        }
        if what not in after:
            return _cinder_error(400, "badRequest", f"There is no such action: {what}")
        row["status"] = after[what]
        return answer(202)

    def _limits(self, caller: Caller, request: Request, query: Query) -> Answer:
        held = [row for row in self.volumes.values() if row["project_id"] == caller.project]
        used = {
            "totalVolumesUsed": len(held),
            "totalGigabytesUsed": sum(row["size"] for row in held),
        }
        most = {"maxTotalVolumes": 100, "maxTotalVolumeGigabytes": 1000, "maxTotalSnapshots": 10}
        absolute = {**most, **used, "totalSnapshotsUsed": 0}
        return answer(200, {"limits": {"rate": [], "absolute": absolute}})

    # --------------------------------------------------------------------------------------------------
    # attachments

    def _attachment(self, caller: Caller, number: str) -> Row:
        row = self.attachments.get(number)
        if row is None or row["volume_id"] not in self.volumes:
            message = f"Volume attachment could not be found with id: {number}."
            raise Refused(_cinder_error(404, "itemNotFound", message))
        self._volume(caller, row["volume_id"])
        return row

    def _attach(self, caller: Caller, request: Request, query: Query) -> Answer:
        asked = request.document["attachment"]
        volume = self._volume(caller, asked["volume_uuid"])
        if volume["status"] not in ("available", "reserved", "detaching"):
            message = f"Invalid volume: Volume {volume['id']} status must be available or downloading to reserve, but"
            return _cinder_error(
                400, "badRequest", f"{message} the current status is {volume['status']}."
            )
        row: Row = {
            "id": str(uuid.uuid4()),
            "volume_id": volume["id"],
            "instance": asked.get("instance_uuid"),
            "status": "reserved",
            "attach_mode": asked.get("mode") or "null",
            "connection_info": {},
            **dict.fromkeys(("attached_at", "detached_at", "host", "device"), ""),
        }
        volume["status"] = "reserved"
        self.attachments[row["id"]] = row
        if asked.get("connector"):
            _connected(row, asked["connector"])
        return answer(200, {"attachment": _shown(row)})

    def _list_attachments(self, caller: Caller, request: Request, query: Query) -> Answer:
        rows = [
            _shown(row)
            for row in self.attachments.values()
            if caller.sees(self.volumes[row["volume_id"]])
        ]
        asked = [("instance" if name == "instance_id" else name, value) for name, value in query]
        return self.listed("attachments", rows, asked)

    def _show_attachment(
        self, caller: Caller, request: Request, query: Query, number: str
    ) -> Answer:
        return answer(200, {"attachment": _shown(self._attachment(caller, number))})

    def _connect(self, caller: Caller, request: Request, query: Query, number: str) -> Answer:
        row = self._attachment(caller, number)
        _connected(row, request.document["attachment"]["connector"])
        self.volumes[row["volume_id"]]["status"] = "attaching"
        return answer(200, {"attachment": _shown(row)})

    def _complete(self, caller: Caller, request: Request, query: Query, number: str) -> Answer:
        row = self._attachment(caller, number)
        row |= {"status": "attached", "attached_at": _now()}
        self.volumes[row["volume_id"]]["status"] = "in-use"
        return answer(204)

    def _detach(self, caller: Caller, request: Request, query: Query, number: str) -> Answer:
        row = self._attachment(caller, number)
        del self.attachments[number]
        if not any(each["volume_id"] == row["volume_id"] for each in self.attachments.values()):
            self.volumes[row["volume_id"]]["status"] = "available"
        return answer(200, {"attachments": []})


def _connected(row: Row, connector: Row) -> None:
    row["connection_info"] = {
        "driver_volume_type": "fake",
        "volume_id": row["volume_id"],
        "attachment_id": row["id"],
    }
    row |= {
        "status": "attaching",
        "host": connector.get("host") or "",
        "device": connector.get("mountpoint") or "",
    }


def _shown(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in ("host", "device")}


def _cinder_error(status: int, kind: str, message: str) -> Answer:
    return answer(status, {kind: {"code": status, "message": message}})
