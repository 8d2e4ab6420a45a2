"""Where a lab's services listen and what their configuration files say. Standard library only."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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

Text = Mapping[str, Mapping[str, object]]


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
            "OPENSTACK_FIRST": " ".join(self.url(name) for name in ("keystone", "placement")),  # nova waits for them
            "PYTHONWARNINGS": "ignore",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "MALLOC_ARENA_MAX": "2",  # many threads, little memory
        }

    # ------------------------------------------------------------------------------------------------------- files

    def write(self) -> None:
        """All configuration files."""
        for name in ("db", "log", "fernet", "credential", "images", "lock", "etc"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        for name in ("fernet", "credential"):
            (self.directory / name).chmod(0o700)
        # nova wants to know itself again at a second start; the lab's driver names the hosts.
        (self.directory / "compute_id").write_text("11111111-1111-4111-8111-111111111111")
        (self.directory / "etc/api-paste.ini").write_text((self.venv / "etc/nova/api-paste.ini").read_text())
        self.write_keystone()
        files = {"placement": self._placement(), "glance-api": self._glance(), "nova": self._nova()}
        for name, sections in files.items():
            _write(self.directory / f"etc/{name}.conf", sections)

    def write_keystone(self) -> None:
        sections: Text = {
            "DEFAULT": self._log("keystone"),
            "database": {"connection": self.database("keystone")},
            "token": {"provider": "fernet", "expiration": self.token_s},
            "fernet_tokens": {"key_repository": self.directory / "fernet"},
            "credential": {"key_repository": self.directory / "credential"},
            # Or every call of nova would take keystone a hundred queries.
            "cache": {"enabled": "true", "backend": "dogpile.cache.memory"},
            "identity": {"password_hash_rounds": 4},  # they are only the lab's passwords
        }
        _write(self.directory / "etc/keystone.conf", sections)

    def _log(self, name: str) -> dict[str, object]:
        return {"log_file": self.directory / f"log/{name}.log", "use_stderr": "false"}

    def _login(self, name: str) -> dict[str, object]:
        return {
            "auth_type": "password",
            "auth_url": self.url("keystone") + "/v3",
            "username": name,
            "password": "svc",
            "project_name": "service",
            "user_domain_name": "Default",
            "project_domain_name": "Default",
            "region_name": "RegionOne",
        }

    def _tokens(self, name: str) -> dict[str, object]:
        return {
            **self._login(name),
            "www_authenticate_uri": self.front("keystone") + "/v3",
            "service_token_roles_required": "true",
            "service_token_roles": "service",
            "interface": "internal",
            "token_cache_time": 1,  # a token that is revoked is refused at once, not after five minutes
        }

    def _placement(self) -> Text:
        return {
            "DEFAULT": self._log("placement"),
            "placement_database": {"connection": self.database("placement")},
            "api": {"auth_strategy": "keystone"},
            "keystone_authtoken": {**self._tokens("placement"), "token_cache_time": 300},
        }

    def _glance(self) -> Text:
        images = self.directory / "images"
        return {
            "DEFAULT": {
                **self._log("glance"),
                "enabled_backends": "file:file",
                "enabled_import_methods": "[]",
                "worker_self_reference_url": self.url("glance"),
            },
            "database": {"connection": self.database("glance")},
            "glance_store": {"default_backend": "file"},
            "file": {"filesystem_store_datadir": images},
            "os_glance_staging_store": {"filesystem_store_datadir": images / "staging"},
            "os_glance_tasks_store": {"filesystem_store_datadir": images / "tasks"},
            "keystone_authtoken": self._tokens("glance"),
            "paste_deploy": {"flavor": "keystone", "config_file": self.venv / "etc/glance/glance-api-paste.ini"},
            "oslo_concurrency": {"lock_path": self.directory / "lock"},
        }

    def _nova(self) -> Text:
        login = self._login("nova")
        return {
            "DEFAULT": {
                **self._log("nova"),
                # One process, so that this needs no message broker.
                "transport_url": "fake://",
                "concurrency_backend": "threading",
                "compute_driver": "lab.LabDriver",
                "host": "controller",
                "state_path": self.directory,
                "my_ip": "127.0.0.1",
                "report_interval": 5,
                "service_down_time": 60,
                "sync_power_state_interval": self.sync_power_s,
                "shutdown_timeout": self.shutdown_s,
                "periodic_fuzzy_delay": 0,
                "rpc_response_timeout": 20,
                "update_resources_interval": 10,
                "running_deleted_instance_poll_interval": 0,
                "instance_build_timeout": 0,
                "max_concurrent_builds": 20,
                "cpu_allocation_ratio": 1.0,
                "ram_allocation_ratio": 1.0,
                "disk_allocation_ratio": 1.0,
                "reserved_host_memory_mb": 0,
                "vif_plugging_timeout": 0,
                "block_device_allocate_retries_interval": 1,
            },
            "api_database": {"connection": self.database("nova_api")},
            "database": {"connection": self.database("nova_cell1")},
            "api": {"auth_strategy": "keystone", "max_limit": self.page, "compute_link_prefix": self.front("nova")},
            "wsgi": {"api_paste_config": self.directory / "etc/api-paste.ini"},
            "keystone_authtoken": self._tokens("nova"),
            "service_user": {**login, "send_service_user_token": "true"},
            "placement": {**login, "endpoint_override": self.url("placement")},
            "keystone": {**login, "endpoint_override": self.url("keystone") + "/v3"},
            "glance": {"region_name": "RegionOne", "endpoint_override": self.url("glance"), "num_retries": 1},
            "neutron": {**login, "endpoint_override": self.front("neutron"), "http_retries": 0},
            "cinder": {**login, "catalog_info": "volumev3::publicURL", "http_retries": 0},
            "conductor": {"workers": 1},
            "scheduler": {
                "workers": 1,
                "discover_hosts_in_cells_interval": -1,
                "max_placement_results": 50,
                "max_attempts": 1,
            },
            "filter_scheduler": {
                "enabled_filters": "ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,PciPassthroughFilter"
            },
            "pci": {
                "alias": '{"vendor_id":"10de","product_id":"2330","device_type":"type-PCI","name":"h100"}',
                "device_spec": '{"vendor_id":"10de","product_id":"2330"}',
            },
            "quota": {"driver": "nova.quota.DbQuotaDriver", "instances": 10, "cores": 200, "ram": 1048576},
            "oslo_concurrency": {"lock_path": self.directory / "lock"},
            "vnc": {"enabled": "false"},
        }

    # --------------------------------------------------------------------------------------------------- databases

    def move_in(self) -> None:
        """Make databases that were copied from another lab's directory say where this one is."""
        with _open(self.directory / "db/keystone.sqlite") as keystone:
            for name, (kind, path) in FRONTS.items():
                # The services among themselves go to the internal ones, which no front's fault meets.
                inside = self.url(name) if name in self.ports else self.front(name)
                for interface, url in (("public", self.front(name)), ("internal", inside), ("admin", inside)):
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


class _open:
    """A database, written and closed at the end."""

    def __init__(self, file: Path) -> None:
        self.connection = sqlite3.connect(file)

    def __enter__(self) -> sqlite3.Connection:
        return self.connection

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.connection.commit()
        self.connection.close()


def _write(file: Path, sections: Text) -> None:
    lines = []
    for section, options in sections.items():
        lines += [f"[{section}]", *(f"{key} = {value}" for key, value in options.items()), ""]
    file.write_text("\n".join(lines))
