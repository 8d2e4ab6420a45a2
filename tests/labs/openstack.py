"""A real OpenStack for a test: keystone, placement, glance and nova as processes on loopback, with
GPUs that are not there and guests that are processes; neutron and cinder are fakes
(``openstack_fakes``).

``python -m tests.labs.openstack`` brings one up to play with.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.labs.htcondor import (
    LabError,
    fetched,
    kill,
    lab_directory,
    living_in,
    processes_with,
    until,
)
from tests.labs.openstack_fakes import Network, Volumes
from tests.labs.openstack_proxy import Front
from tests.labs.openstack_services.services import answers, launch
from tests.labs.openstack_services.settings import FRONTS, SERVICES, Settings
from tests.labs.ports import free_port

MICROVERSION = "2.90"

TENANT, OWNER = "atlas", "etp"
"""The project that asks for drones, and the one whose machines these are; either takes the GPUs
that the other wants."""
PEOPLE = {TENANT: "robot", OWNER: "owner"}
"""The one user of each."""


@dataclass(frozen=True, slots=True)
class OpenStack:
    """What ``get-openstack.sh`` made."""

    prefix: Path

    @classmethod
    def fetched(cls) -> OpenStack:
        """From the cache, or from this host's package mirror and package index (a minute or more).
        LabError says what is missing."""
        return cls(fetched("get-openstack.sh", timeout_s=1200))

    @property
    def venv(self) -> Path:
        return Path(os.readlink(self.prefix / "python")).parents[1]

    @property
    def root(self) -> Path:
        """A guest's system."""
        return (self.prefix / "root").resolve()


@dataclass(frozen=True, slots=True)
class Credential:
    """An application credential."""

    project: str
    auth_url: str
    id: str
    secret: str

    @property
    def cloud(self) -> dict[str, Any]:
        """As clouds.yaml says it."""
        ours = {"application_credential_id": self.id, "application_credential_secret": self.secret}
        entry = {
            "auth_type": "v3applicationcredential",
            "region_name": "RegionOne",
            "interface": "public",
        }
        return {**entry, "auth": {"auth_url": self.auth_url, **ours}}

    @property
    def clouds_yaml(self) -> str:
        """A whole file with the one cloud ``lab``; JSON is YAML."""
        return json.dumps({"clouds": {"lab": self.cloud}}, indent=2)


class Refusal(LabError):
    """A call was answered with a status that was not expected."""

    def __init__(self, what: str, status: int, document: Any) -> None:
        super().__init__(f"{what}: {status} {document}")
        self.status, self.document = status, document


class Session:
    """Calls as one account, straight to the services: no fault of a front meets them, and no front counts them."""

    def __init__(self, lab: OpenStackLab, identity: Mapping[str, Any]) -> None:
        self.lab, self.identity = lab, identity
        self.token, self.project_id = "", ""
        self._lock = threading.Lock()

    def login(self) -> None:
        url = self.lab.settings.url("keystone") + "/v3/auth/tokens"
        status, headers, document = self._raw("POST", url, {}, {"auth": self.identity})
        if status != 201:
            raise Refusal("login", status, document)
        self.token, self.project_id = headers["x-subject-token"], document["token"]["project"]["id"]

    def ask(
        self, method: str, url: str, document: object = None, **headers: str
    ) -> tuple[int, Any]:
        """Status and document, whatever they are. ``url``: ``nova:/servers``, or whole."""
        name, _, path = url.partition(":")
        if name in FRONTS or name == "cinder":
            with self._lock:
                if not self.token:
                    self.login()
            url = self._base(name) + path
        for _ in range(2):
            sent = {
                "X-Auth-Token": self.token,
                "OpenStack-API-Version": f"compute {MICROVERSION}",
                **headers,
            }
            status, _, said = self._raw(method, url, sent, document)
            if status != 401:
                break
            self.login()
        return status, said

    def __call__(self, method: str, url: str, document: object = None, **headers: str) -> Any:
        """The document; Refusal unless the status is one of success."""
        status, said = self.ask(method, url, document, **headers)
        if not 200 <= status < 300:
            raise Refusal(f"{method} {url}", status, said)
        return said

    def _base(self, name: str) -> str:
        lab = self.lab
        if name == "neutron":
            return f"{lab.network.url}/v2.0"
        if name == "cinder":
            return f"{lab.volumes.url}/v3/{self.project_id}"
        return lab.settings.url(name) + {"nova": "/v2.1", "keystone": "/v3", "glance": "/v2"}.get(
            name, ""
        )

    @staticmethod
    def _raw(
        method: str, url: str, headers: Mapping[str, str], document: object
    ) -> tuple[int, dict[str, str], Any]:
        parts = urlsplit(url)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        body = (
            document
            if isinstance(document, bytes)
            else json.dumps(document).encode()
            if document
            else None
        )
        kind = "application/octet-stream" if isinstance(document, bytes) else "application/json"
        with closing(HTTPConnection(parts.hostname or "", parts.port, timeout=120)) as service:
            service.request(method, target, body, {"Content-Type": kind, **headers})
            said = service.getresponse()
            text = said.read().decode(errors="replace")
        told = {name.lower(): value for name, value in said.getheaders()}
        return said.status, told, json.loads(text) if text[:1] in "{[" and text else text


class OpenStackLab:
    """One cloud: two hosts, ``gpu01`` and ``gpu02``, with 4 PCI and 4 virtual H100 each; flavors
    ``cpu.small``, ``gpu.h100.pci``, ``gpu.h100.vgpu``, ``gpu.absent``; image ``worker``; network
    ``drones``; projects ``atlas`` and ``etp``, with an application credential each. It ends when
    ``stop`` is called or this process ends.

    ``fronts`` are what the catalogue tells: each counts its calls, and fails on order
    (``openstack_proxy``).
    """

    def __init__(self, directory: Path, openstack: OpenStack, **knobs: Any) -> None:
        self.openstack, self.directory = openstack, directory
        ports = {name: free_port() for name in SERVICES}
        self.network, self.volumes = Network(ports["keystone"]), Volumes(ports["keystone"])
        self.fronts: dict[str, Front] = {name: Front(name, ports[name]) for name in SERVICES}
        self.fronts |= {"neutron": self.network, "cinderv3": self.volumes}
        self.keystone, self.nova = self.fronts["keystone"], self.fronts["nova"]
        fronts = {name: front.port for name, front in self.fronts.items()}
        self.settings = Settings(
            directory=directory, venv=openstack.venv, ports=ports, fronts=fronts, **knobs
        )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ids: Mapping[str, Any] = json.loads((openstack.prefix / "seed/ids.json").read_text())
        self.image: str = self.ids["image"]
        """Id of the image ``worker``."""
        self.flavors: Mapping[str, str] = self.ids["flavors"]
        """Ids by name."""
        self.admin = Session(self, _password("admin", "admin"))
        self._made: list[str] = []
        """What is to be deleted at ``reset``: addresses for ``admin``."""

    @property
    def shared(self) -> Path:
        """A directory that all guests have, too, at the same path; anybody may write there."""
        return self.directory / "shared"

    # --------------------------------------------------------------------------------------------------------
    # life

    def start(self) -> OpenStackLab:
        """Bring everything up."""
        for name in ("db", "fernet", "credential", "images"):
            shutil.copytree(self.openstack.prefix / "seed" / name, self.directory / name)
        self.shared.mkdir()
        self.shared.chmod(0o1777)
        self.settings.write()
        self.settings.move_in()
        for front in self.fronts.values():
            front.start()
        self._launch(*SERVICES)
        return self

    def _launch(self, *names: str) -> None:
        root, bind = str(self.openstack.root), str(self.openstack.prefix.parent)
        guests = {"OPENSTACK_GUEST_ROOT": root, "OPENSTACK_GUEST_BIND": bind}
        for name in names:
            self.processes[name] = launch(self.settings, name, guests)
        for name in names:
            until(lambda name=name: self._answers(name), 120, what=f"{name} answers", every_s=0.05)  # type: ignore[misc]

    def _answers(self, name: str) -> bool:
        if self.processes[name].poll() is not None:
            raise AssertionError(f"{name} has ended:\n{self.log(name)}")
        return answers(self.settings, name)

    def stop(self) -> None:
        """End it, guests included. Whatever is left then fails the test (``lab_directory`` looks)."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()
        for front in self.fronts.values():
            front.stop()
        kill(*living_in(self.directory))  # guests on their way out

    def reset(self) -> None:
        """As it was at the start, by deleting what is there: a second or two. Restarted services stay as they are."""
        self.heal()
        admin = self.admin
        every = "nova:/servers/detail?all_tenants=1&limit=100"

        def gone() -> bool:
            servers = admin("GET", every)["servers"]
            todo = [each["id"] for each in servers if each["OS-EXT-STS:task_state"] != "deleting"]
            with ThreadPoolExecutor(8) as at_once:
                list(
                    at_once.map(lambda number: admin.ask("DELETE", f"nova:/servers/{number}"), todo)
                )
            return not servers

        until(gone, 60, what="no server is left")
        self.network.reset()
        self.volumes.reset()
        for url in reversed(self._made):
            admin.ask("DELETE", url)
        self._made.clear()
        for tenant in self.ids["tenants"].values():
            admin.ask("DELETE", f"nova:/os-quota-sets/{tenant['id']}")

    def heal(self) -> None:
        """No fault any more, of the fronts and the fakes."""
        self.network.keep_ports = self.volumes.keep_volumes = False
        for front in self.fronts.values():
            front.heal()

    def log(self, name: str, lines: int = 30) -> str:
        """The end of what a service has written."""
        told = []
        for file in (self.directory / f"log/{name}.out", self.directory / f"log/{name}.log"):
            told += file.read_text(errors="replace").splitlines()[-lines:] if file.exists() else []
        return "\n".join(told)

    def story(self) -> str:
        """Everything there is to tell, for a failing test."""
        told = [f"--- {name}\n{self.log(name)}" for name in SERVICES]
        told += [
            f"--- calls of {name}\n" + "\n".join(map(str, f.calls()[-20:]))
            for name, f in self.fronts.items()
        ]
        return "\n".join(told)

    # -----------------------------------------------------------------------------------------------------
    # accounts

    @property
    def auth_url(self) -> str:
        """Of keystone, as the catalogue tells it."""
        return self.settings.front("keystone") + "/v3"

    def credential(self, project: str = TENANT) -> Credential:
        """The application credential that a project has from the start. Do not revoke it: make one."""
        told = self.ids["tenants"][project]["credential"]
        return Credential(project, self.auth_url, told["id"], told["secret"])

    def session(self, project: str = TENANT) -> Session:
        """Calls as the project's user."""
        found = self.credential(project)
        told = {"id": found.id, "secret": found.secret}
        return Session(
            self,
            {"identity": {"methods": ["application_credential"], "application_credential": told}},
        )

    def new_credential(
        self, project: str = TENANT, *, expires_s: float | None = None
    ) -> Credential:
        """One more, which ``revoke`` takes back. ``expires_s``: it is no good so much later."""
        user = self.ids["tenants"][project]["user"]
        asked: dict[str, Any] = {"name": os.urandom(4).hex(), "roles": [{"name": "member"}]}
        if expires_s is not None:
            moment = time.gmtime(time.time() + expires_s)
            asked["expires_at"] = time.strftime("%Y-%m-%dT%H:%M:%S", moment)
        url = f"keystone:/users/{user}/application_credentials"
        made = Session(self, _password(PEOPLE[project], project))(
            "POST", url, {"application_credential": asked}
        )
        told = made["application_credential"]
        self._made.append(f"{url}/{told['id']}")
        return Credential(project, self.auth_url, told["id"], told["secret"])

    def revoke(self, credential: Credential) -> None:
        """Tokens that were got with it are no good any more either (nova believes one for a second)."""
        user = self.ids["tenants"][credential.project]["user"]
        session = Session(self, _password(PEOPLE[credential.project], credential.project))
        session("DELETE", f"keystone:/users/{user}/application_credentials/{credential.id}")

    # ----------------------------------------------------------------------------------------------
    # what admins make

    def set_quota(self, project: str = TENANT, **limits: int) -> None:
        """``instances``, ``cores``, ``ram`` (MiB), until ``reset``."""
        self.admin(
            "PUT",
            f"nova:/os-quota-sets/{self.ids['tenants'][project]['id']}",
            {"quota_set": limits},
        )

    def new_flavor(self, name: str) -> str:
        """Its id."""
        asked = {"name": name, "vcpus": 2, "ram": 2048, "disk": 10}
        number: str = self.admin("POST", "nova:/flavors", {"flavor": asked})["flavor"]["id"]
        self._made.append(f"nova:/flavors/{number}")
        return number

    def new_image(self, name: str) -> str:
        """Its id; all projects see it."""
        asked = {
            "name": name,
            "disk_format": "raw",
            "container_format": "bare",
            "visibility": "public",
        }
        number: str = self.admin("POST", "glance:/images", asked)["id"]
        self._made.append(f"glance:/images/{number}")
        self.admin("PUT", f"glance:/images/{number}/file", b"x" * 1024)
        return number

    # ------------------------------------------------------------------------------------------------------
    # servers

    def boot(
        self,
        name: str,
        flavor: str = "cpu.small",
        *,
        project: str = TENANT,
        script: str = "",
        port: bool = False,
        **more: Any,
    ) -> str:
        """A server's id, once nova has taken the order. ``port``: on the network ``drones``.
        ``more`` as nova's API names it."""
        networks: Any = [{"uuid": self.network.network_id}] if port else "none"
        asked = {
            "name": name,
            "flavorRef": self.flavors.get(flavor, flavor),
            "networks": networks,
            **more,
        }
        if "block_device_mapping_v2" not in more:
            asked.setdefault("imageRef", self.image)
        if script:
            asked["user_data"] = base64.b64encode(script.encode()).decode()
        number: str = self.session(project)("POST", "nova:/servers", {"server": asked})["server"][
            "id"
        ]
        return number

    def server(self, number: str) -> dict[str, Any]:
        """As the admin sees it; status ``GONE`` if there is none."""
        status, said = self.admin.ask("GET", f"nova:/servers/{number}")
        if status == 404:
            return {"id": number, "status": "GONE"}
        if status != 200:
            raise Refusal(f"server {number}", status, said)
        found: dict[str, Any] = said["server"]
        return found

    def servers(self, project: str = TENANT) -> list[dict[str, Any]]:
        return self.session(project)("GET", "nova:/servers/detail")["servers"]

    def ports(self, project: str = TENANT) -> list[dict[str, Any]]:
        return self.session(project)("GET", "neutron:/ports")["ports"]

    def disks(self, project: str = TENANT) -> list[dict[str, Any]]:
        """The project's volumes."""
        return self.session(project)("GET", "cinder:/volumes/detail")["volumes"]

    def reaches(self, number: str, *statuses: str, within_s: float = 60) -> dict[str, Any]:
        """Wait until a server has one of these statuses (``GONE``: there is none)."""

        def there() -> dict[str, Any] | None:
            server = self.server(number)
            return server if server["status"] in statuses else None

        return until(there, within_s, what=f"server {number} is {' or '.join(statuses)}")

    def take_back(self, number: str, how: str = "os-stop") -> None:
        """Actions of the hosts' owner on any server: ``os-stop``, ``delete``, ``suspend``."""
        if how == "delete":
            self.admin("DELETE", f"nova:/servers/{number}")
        else:
            self.admin("POST", f"nova:/servers/{number}/action", {how: None})

    def console(self, number: str) -> str:
        """What a guest has written."""
        said = self.admin("POST", f"nova:/servers/{number}/action", {"os-getConsoleOutput": {}})
        return str(said["output"])

    def guest(self, number: str) -> dict[int, str]:
        """A server's processes: pid on this host -> command line. Those that the drone's id tells
        apart have ``PROVISIONER_DRONE_ID`` in their environment as anywhere
        (``lab.processes_with``)."""
        found = processes_with(f"OPENSTACK_SERVER={number}\0")
        return {
            pid: command for pid, command in found.items() if "bwrap" not in command.split(" ")[0]
        }


def _password(user: str, project: str) -> dict[str, Any]:
    domain = {"name": "Default"}
    person = {"name": user, "password": user, "domain": domain}
    return {
        "identity": {"methods": ["password"], "password": {"user": person}},
        "scope": {"project": {"name": project, "domain": domain}},
    }


@contextmanager
def running_openstack(openstack: OpenStack, **knobs: Any) -> Iterator[OpenStackLab]:
    """A cloud; ``knobs`` are fields of ``Settings``: ``hosts``, ``token_s``, ``shutdown_s``,
    ``sync_power_s``, ``page``. Leaving ends it, and fails if any process of it is left."""
    with lab_directory("openstack") as directory:
        lab = OpenStackLab(directory, openstack, **knobs)
        try:
            yield lab.start()
        except BaseException:
            print(lab.story(), file=sys.stderr)
            raise
        finally:
            lab.stop()


def main() -> None:
    with running_openstack(OpenStack.fetched()) as lab:
        clouds = lab.directory / "clouds.yaml"
        clouds.write_text(lab.credential().clouds_yaml)
        print(f"OpenStack is up; ctrl-D ends it\n  logs {lab.directory}/log")
        tool = f"{lab.settings.venv}/bin/python {lab.settings.venv}/bin/openstack"
        print(f"  OS_CLIENT_CONFIG_FILE={clouds} OS_CLOUD=lab {tool} server list", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
