"""A server's user data: one shell script with all that its drone needs, which cloud-init runs once (``guest.sh``)."""

from __future__ import annotations

import base64
import gzip
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from adapters.openstack.settings import OpenStackSiteConfig
from adapters.shared.parcel import OURS, Unfit, exports, packed
from provisioner import drone
from provisioner.model import StartOrder

LARGEST = 65535
"""Nova takes no more, counted in base64 (compute API reference, "user_data")."""
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class Guest:
    """What the script takes for granted of its machine; tests, which have none of their own, say it."""

    root: str = ""
    """Before each path of the system."""
    path: str = _PATH
    setup_s: int = 900
    """The admin's setup script is ended after so long."""
    slack_s: int = 60
    """Beyond what it has been granted, nothing takes longer."""


def user_data(order: StartOrder, config: OpenStackSiteConfig, setup: bytes, guest: Guest = Guest()) -> bytes:
    """The script for one order (checked), as it comes before base64. ``setup``: the admin's script, empty without one.
    Raises Unfit if it is too large for Nova."""
    archive = gzip.compress(_archive(order, config, setup), mtime=0)
    told = {
        "drone_id": order.drone_id,
        "scratch": config.scratch.rstrip("/") or "/",
        "setup": "yes" if setup else "",
        "walltime_s": str(int(order.type.walltime_s)),
        "grace_s": str(round(order.grace_s)),
        "setup_s": str(guest.setup_s),
        "slack_s": str(guest.slack_s),
        "root": guest.root,
        "PATH": guest.path,
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in told.items()]
    files = f"files() {{\n    base64 -d <<'END_OF_FILES'\n{base64.encodebytes(archive).decode()}END_OF_FILES\n}}\n"
    text = ("\n".join(["#!/bin/sh", *lines, files]) + _body()).encode("ascii")
    size = len(base64.b64encode(text))
    if size > LARGEST:
        what = {"the drone's files": _files(order), "the setup script": {"setup": setup}}
        sizes = ", ".join(f"{name} {sum(map(len, content.values()))} bytes" for name, content in what.items())
        raise Unfit(f"its user data are {size} bytes and may be {LARGEST}, compressed: {sizes}")
    return text


@cache
def _body() -> str:
    shared = resources.files("adapters.shared").joinpath("tagged.sh").read_text()
    return shared + resources.files(__package__).joinpath("guest.sh").read_text()


def _files(order: StartOrder) -> Mapping[str, bytes]:
    assert order.bootstrap is not None
    return {**order.bootstrap.files, f"{OURS}/script": order.bootstrap.script}


def _archive(order: StartOrder, config: OpenStackSiteConfig, setup: bytes) -> bytes:
    """The drone's directory."""
    return packed({**_files(order), f"{OURS}/setup": setup, f"{OURS}/step": _step(order, config)})


def _step(order: StartOrder, config: OpenStackSiteConfig) -> bytes:
    """The drone's environment and, in the same process, the drone. Its directory, PATH and tag are there already."""
    assert order.bootstrap is not None
    env = {**order.bootstrap.env, **config.env, **drone.environment(order)}
    said_by_the_guest = {"DRONE_DIR", "HOME", "PROVISIONER_DRONE_ID"}
    lines = exports({name: value for name, value in env.items() if name not in said_by_the_guest})
    return "\n".join([*lines, f"exec sh {OURS}/script", ""]).encode("utf-8", "surrogateescape")
