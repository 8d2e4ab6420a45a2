"""Where a lab's services listen and what their configuration files say. Standard library only."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template

SERVICES = ("keystone", "placement", "glance", "nova")
"""The real ones, a process each, in the order in which they start."""
FRONTS: Mapping[str, tuple[str, str]] = {
    "keystone": ("identity", "/v3"),
    "placement": ("placement", ""),
    "glance": ("image", ""),
    "nova": ("compute", "/v2.1"),
    "neutron": ("network", ""),
    "cinderv3": ("volumev3", "/v3/%(project_id)s"),
}
"""What the catalogue holds: name -> its type and what follows the port."""

DATABASES = ("keystone", "placement", "glance", "nova_api", "nova_cell0", "nova_cell1")
SERVICE_PROJECT = (
    "project_name = service\nuser_domain_name = Default\nproject_domain_name = "
    "Default\nregion_name = RegionOne"
)
TOKEN_CHECK = (
    "service_token_roles_required = true\nservice_token_roles = service\ninterface = internal"
)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One lab: a directory, ports, and what differs between labs."""

    directory: Path
    venv: Path
    ports: Mapping[str, int]
    """Of the real services."""
    fronts: Mapping[str, int]
    """Ports that the catalogue tells, by the names of ``FRONTS``."""
    hosts: Sequence[str] = ("gpu01", "gpu02")
    token_s: int = 3600
    shutdown_s: int = 10
    """What a guest is given between the order to power off and its end."""
    sync_power_s: int = 3
    """How often nova looks whether guests have powered themselves off."""
    page: int = 100
    """Servers in one answer of a list (``max_limit``)."""

    def url(self, name: str) -> str:
        """Of a real service."""
        return f"http://127.0.0.1:{self.ports[name]}"

    def front(self, name: str) -> str:
        """Of what the catalogue tells."""
        return f"http://127.0.0.1:{self.fronts[name]}"

    def database(self, name: str) -> str:
        return f"sqlite:///{self.directory}/db/{name}.sqlite?timeout=30"

    @property
    def environment(self) -> dict[str, str]:
        """Of every process of the lab's interpreter."""
        etc = str(self.directory / "etc")
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(self.directory),
            "TMPDIR": str(self.directory),
            "OS_KEYSTONE_CONFIG_FILES": f"{etc}/keystone.conf",
            "OS_PLACEMENT_CONFIG_DIR": etc,
            "OS_GLANCE_CONFIG_DIR": etc,
            "OS_NOVA_CONFIG_DIR": etc,
            "OS_NOVA_CONFIG_FILES": "api-paste.ini;nova.conf",  # the paste file first
            "OPENSTACK_LAB": str(self.directory),
            # nova waits for them
            "OPENSTACK_FIRST": " ".join(self.url(name) for name in ("keystone", "placement")),
            "PYTHONWARNINGS": "ignore",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "MALLOC_ARENA_MAX": "2",  # many threads, little memory
        }

    def write(self) -> None:
        """All configuration files, from the templates ``*.conf`` beside this file."""
        for name in ("db", "log", "fernet", "credential", "images", "lock", "etc"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        for name in ("fernet", "credential"):
            (self.directory / name).chmod(0o700)
        # nova wants to know itself again at a second start; the lab's driver names the hosts.
        (self.directory / "compute_id").write_text("11111111-1111-4111-8111-111111111111")
        (self.directory / "etc/api-paste.ini").write_text(
            (self.venv / "etc/nova/api-paste.ini").read_text()
        )
        values = {
            **{
                name: str(getattr(self, name))
                for name in ("directory", "venv", "token_s", "shutdown_s", "page")
            },
            **{f"db_{name}": self.database(name) for name in DATABASES},
            **{f"url_{name}": self.url(name) for name in SERVICES},
            **{f"front_{name}": self.front(name) for name in FRONTS},
            **{f"login_{name}": self._login(name) for name in SERVICES},
            "sync_power_s": str(self.sync_power_s),
            "token_check": f"www_authenticate_uri = {self.front('keystone')}/v3\n{TOKEN_CHECK}",
        }
        for template in Path(__file__).parent.glob("*.conf"):
            (self.directory / "etc" / template.name).write_text(
                Template(template.read_text()).substitute(values)
            )

    def _login(self, name: str) -> str:
        url = self.url("keystone") + "/v3"
        return f"auth_type = password\nauth_url = {url}\nusername = {name}\npassword = svc\n{SERVICE_PROJECT}"

    def move_in(self) -> None:
        """Make databases that were copied from another lab's directory say where this one is."""
        with _open(self.directory / "db/keystone.sqlite") as keystone:
            for name, (kind, path) in FRONTS.items():
                # The services among themselves go to the internal ones, which no front's fault
                # meets.
                inside = self.url(name) if name in self.ports else self.front(name)
                for interface, url in (
                    ("public", self.front(name)),
                    ("internal", inside),
                    ("admin", inside),
                ):
                    keystone.execute(
                        "UPDATE endpoint SET url = ? WHERE interface = ?"
                        " AND service_id IN (SELECT id FROM service WHERE type = ?)",
                        (url + path, interface, kind),
                    )
        with _open(self.directory / "db/nova_api.sqlite") as nova:
            for cell in ("cell0", "cell1"):
                nova.execute(
                    "UPDATE cell_mappings SET database_connection = ? WHERE name = ?",
                    (self.database(f"nova_{cell}"), cell),
                )
        with _open(self.directory / "db/glance.sqlite") as glance:
            for number, value in glance.execute("SELECT id, value FROM image_locations").fetchall():
                there = f"file://{self.directory}/images/{os.path.basename(value)}"
                glance.execute("UPDATE image_locations SET value = ? WHERE id = ?", (there, number))


@contextmanager
def _open(file: Path) -> Iterator[sqlite3.Connection]:
    """A database, written and closed at the end."""
    with closing(sqlite3.connect(file)) as connection, connection:
        yield connection
