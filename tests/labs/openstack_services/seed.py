"""seed.py DIRECTORY: the state that every lab starts from a copy of: databases, keys, accounts,
catalogue, flavors, an image. ``ids.json`` in it says what has come of them."""

from __future__ import annotations

import getpass
import grp
import json
import os
import random
import shlex
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openstack
from services import answers, launch
from settings import FRONTS, SERVICES, Settings

TENANTS = {"atlas": "robot", "etp": "owner"}
"""Projects, each with its one user: who asks for drones, and whose machines these are."""
_LARGE = {"vcpus": 8, "ram": 20480, "disk": 80}
FLAVORS: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "cpu.small": ({"vcpus": 2, "ram": 2048, "disk": 10}, {}),
    "gpu.h100.pci": (_LARGE, {"pci_passthrough:alias": "h100:1"}),
    "gpu.h100.vgpu": (_LARGE, {"resources:VGPU": "1", "trait:CUSTOM_GPU_H100": "required"}),
    # No host has one.
    "gpu.absent": (_LARGE, {"resources:VGPU": "1", "trait:CUSTOM_GPU_B300": "required"}),
}


def free_port() -> int:
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def run(lab: Settings, command: str) -> None:
    """One of the projects' own tools; it is said how long it took."""
    began = time.monotonic()
    program, *words = shlex.split(command)
    done = subprocess.run(
        [sys.executable, str(lab.venv / "bin" / program), *words],
        env=lab.environment,
        text=True,
        capture_output=True,
    )
    print(f"{time.monotonic() - began:5.1f} s {command}", flush=True)
    if done.returncode != 0:
        sys.exit(done.stdout[-3000:] + done.stderr[-3000:])


def migrate(lab: Settings) -> None:
    """Empty databases of the four projects, side by side."""
    etc, us = (
        lab.directory / "etc",
        f"{getpass.getuser()} --keystone-group {grp.getgrgid(os.getgid()).gr_name}",
    )
    keystone = f"keystone-manage --config-file {etc}/keystone.conf"
    nova = f"nova-manage --config-file {etc}/nova.conf"
    urls = " ".join(
        f"--bootstrap-{kind}-url {lab.front('keystone')}/v3"
        for kind in ("admin", "internal", "public")
    )
    cell1 = (
        f"--name cell1 --transport-url fake:// --database_connection {lab.database('nova_cell1')}"
    )
    jobs = [
        [
            f"{keystone} db_sync",
            f"{keystone} fernet_setup --keystone-user {us}",
            f"{keystone} credential_setup --keystone-user {us}",
            f"{keystone} bootstrap --bootstrap-password admin --bootstrap-region-id RegionOne {urls}",
        ],
        [f"placement-manage --config-file {etc}/placement.conf db sync"],
        [f"glance-manage --config-file {etc}/glance-api.conf db_sync"],
        [
            f"{nova} api_db sync",
            f"{nova} cell_v2 map_cell0 --database_connection {lab.database('nova_cell0')}",
            f"{nova} db sync",
            f"{nova} cell_v2 create_cell {cell1}",
        ],
    ]

    def all_of(commands: list[str]) -> None:
        for command in commands:
            run(lab, command)

    with ThreadPoolExecutor(len(jobs)) as side_by_side:
        list(side_by_side.map(all_of, jobs))
    for file in (lab.directory / "db").glob("*.sqlite"):
        # kept in the file: who reads blocks no writer
        sqlite3.connect(file).execute("PRAGMA journal_mode=WAL")


def start(lab: Settings, *names: str) -> list[subprocess.Popen[bytes]]:
    began = time.monotonic()
    started = {name: launch(lab, name) for name in names}
    for name, process in started.items():
        while not answers(lab, name):
            if process.poll() is not None or time.monotonic() - began > 240:
                log = (lab.directory / f"log/{name}.out").read_text()
                sys.exit(f"{name} does not come up:\n{log[-4000:]}")
            time.sleep(0.1)
        print(f"{time.monotonic() - began:5.1f} s {name} answers", flush=True)
    return list(started.values())


def connect(lab: Settings, user: str, project: str) -> Any:
    return openstack.connect(
        auth_url=lab.url("keystone") + "/v3",
        username=user,
        password=user,
        project_name=project,
        user_domain_name="Default",
        project_domain_name="Default",
        region_name="RegionOne",
    )


def seed_identity(lab: Settings) -> dict[str, Any]:
    """Accounts of the services, the catalogue, two tenants with an application credential each."""
    identity = connect(lab, "admin", "admin").identity
    services = identity.create_project(name="service", domain_id="default")
    role = {each.name: each for each in identity.roles()}
    role["service"] = role.get("service") or identity.create_role(name="service")
    for name, (kind, path) in FRONTS.items():
        if name == "keystone":
            continue  # bootstrap has done it
        user = identity.create_user(
            name=name.removesuffix("v3"), password="svc", domain_id="default"
        )
        for each in ("admin", "service"):
            identity.assign_project_role_to_user(services, user, role[each])
        service = identity.create_service(name=name, type=kind)
        for interface in ("public", "internal", "admin"):
            url = lab.front(name) + path
            identity.create_endpoint(
                service_id=service.id, interface=interface, url=url, region_id="RegionOne"
            )
    tenants = {}
    for project, person in TENANTS.items():
        tenant = identity.create_project(name=project, domain_id="default")
        user = identity.create_user(
            name=person, password=person, domain_id="default", default_project_id=tenant.id
        )
        for each in ("member", "reader"):
            identity.assign_project_role_to_user(tenant, user, role[each])
        credential = connect(lab, person, project).identity.create_application_credential(
            user=user.id, name="first", roles=[{"name": "member"}]
        )
        secret = {"id": credential.id, "secret": credential.secret}
        tenants[project] = {"id": tenant.id, "user": user.id, "credential": secret}
    return tenants


def seed_cloud(lab: Settings) -> dict[str, Any]:
    cloud = connect(lab, "admin", "admin")
    image = cloud.image.create_image(
        name="worker",
        disk_format="raw",
        container_format="bare",
        visibility="public",
        data=b"x" * 1024,
        wait=True,
    )
    flavors = {}
    for name, (size, specs) in FLAVORS.items():
        flavor = cloud.compute.create_flavor(name=name, **size)
        if specs:
            cloud.compute.create_flavor_extra_specs(flavor, specs)
        flavors[name] = flavor.id
    return {"image": image.id, "flavors": flavors}


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
        process.wait(20)


def said(what: str, step: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    began = time.monotonic()
    found = step()
    print(f"{time.monotonic() - began:5.1f} s {what}", flush=True)
    return found


def main() -> None:
    directory = Path(sys.argv[1]).absolute()
    directory.mkdir()
    ports = {name: free_port() for name in SERVICES}
    fronts = {name: ports.get(name) or free_port() for name in FRONTS}
    lab = Settings(directory=directory, venv=Path(sys.prefix), ports=ports, fronts=fronts)
    lab.write()
    migrate(lab)
    processes = start(lab, "keystone")
    try:
        tenants = said("accounts", lambda: seed_identity(lab))
        processes += start(lab, "placement", "glance", "nova")  # nova logs in as it starts
        cloud = said("image and flavors", lambda: seed_cloud(lab))
    finally:
        stop(processes)
    (directory / "ids.json").write_text(json.dumps({"tenants": tenants, **cloud}))
    for file in (directory / "db").glob("*.sqlite"):
        sqlite3.connect(file).execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for each in ("etc", "log", "lock", "compute_id"):  # made anew for each lab
        path = directory / each
        shutil.rmtree(path) if path.is_dir() else path.unlink()


main()
